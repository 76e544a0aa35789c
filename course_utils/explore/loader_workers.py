"""Workers that load while an accelerator computes: a timeline of an epoch's first batches."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from .. import predict
from ..figures.canvas import GREY, INK
from ..launching.launcher import launch
from ..machine.here import Machine
from ..results.spans import Span
from ..show.units import counted, readable
from .controls import Control
from .drawing import Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening
from .parts import _FILLS, AXIS, LEFT, WIDE, ticks

# What the button of `explore.loader()` runs: the real DataLoader at its settings, on this machine's cores.


def run_loader(batches: int, load_s: float, step_s: float, workers: int) -> dict[str, Any]:
    """Launch it, and play the cost model through once more with the time that each batch took to load. Returns what
    `loader_workers.render` draws."""
    args = ["--batches", batches, "--workers", workers, "--load-s", load_s, "--step-s", step_s]
    program = PROGRAMS / "timed_loader.py"
    run = launch(program, 1, args=args, timeout=300, device="cpu", threads=1, quiet=True, engine="local")
    spans: list[Span] = []
    for number, record in enumerate(record for record in run.records if "times" in record):
        began, ended, asked, came, done = record["times"]
        spans.append((record["worker"], began, ended, "loading", f"{number}"))
        if record["worker"]:
            spans.append((0, asked, came, "waiting", ""))
        spans.append((0, came, done, "compute", f"{number}"))
    loads = [end - start for _, start, end, what, _ in spans if what == "loading"]
    replayed = predict.loader_run(batches, loads, step_s, workers=workers)
    return {
        "spans": spans, "total_s": run.value("total_s"), "replayed_s": replayed.total_s, "load_s": median(loads),
        "cores": Machine.here().cores,
    }  # fmt: skip


# Rows of a timeline: a GPU, the queue of batches that wait for it, and the workers that fill it.

ROW = 24.0
QUEUE = 8.0  # a full queue; its length as a number stands above it


def legend(drawing: Drawing, y: float) -> None:
    """What the colours mean."""
    x = LEFT
    for kind, words in (("loading", "loading"), ("waiting", "waiting"), ("communication", "copy"), ("compute", "step")):
        drawing.bar(x, y, 16, 12, *_FILLS[kind])
        drawing.text(x + 21, y + 11, words, 12)
        x += 50 + 6.6 * len(words)


def rows(drawing: Drawing, y: float, spans: Sequence[Span], workers: int, length: float, copy: float) -> None:
    """The loop and its GPU, the queue, and each worker, from 0 to `length` seconds."""
    names = ["GPU" if workers else "loop, GPU", "queue", *(f"worker {n}" for n in range(workers))]
    drawing_rows = [name for name in names if workers or name != "queue"]
    for i, name in enumerate(drawing_rows):
        drawing.text(LEFT - 8, y + ROW * i + 16, name, 12, "end")
    for row, start, end, what, label in spans:
        top = y + ROW * (row + 1 if row else 0)
        pieces = [(start, end, what)]
        if what == "compute" and copy:
            pieces = [(start, start + copy, "communication"), (start + copy, end, what)]
        for begin, stop, kind in pieces:
            x, wide = LEFT + WIDE * begin / length, WIDE * (stop - begin) / length
            tip = f"{label and f'batch {label}, '}{kind}: {readable('s', stop - begin)}"
            drawing.bar(x, top + 2, wide, ROW - 4, *_FILLS[kind], tip, edge_width=0.8 if wide > 3 else 0)
            if label and kind in ("compute", "loading") and wide > 16:
                color = "#FFFFFF" if kind == "compute" else INK
                if kind == "loading":
                    drawing.bar(x + wide / 2 - 9, top + 5, 18, ROW - 10, "#FFFFFF", edge="none")
                drawing.text(x + wide / 2, top + 16, label, 11, "middle", color=color)
    if workers:
        _queue(drawing, y + ROW, spans, length, workers)
    low = y + ROW * len(drawing_rows) + 4
    drawing.line([(LEFT, low), (LEFT + WIDE, low)], AXIS, 1)
    for share, words in ticks(length):
        drawing.line([(LEFT + WIDE * share, low), (LEFT + WIDE * share, low + 4)], AXIS, 1)
        drawing.text(LEFT + WIDE * share, low + 17, words, 11, "middle")


def waiting_batches(spans: Sequence[Span]) -> list[tuple[float, int]]:
    """(when, how many batches are ready and not taken), at every change."""
    events = [(end, 1) for row, _, end, what, _ in spans if row and what == "loading"]
    events += [(start, -1) for row, start, _, what, _ in spans if not row and what == "compute"]
    ready, found = 0, [(0.0, 0)]
    for when, change in sorted(events, key=lambda event: (event[0], -event[1])):
        ready += change
        found.append((when, ready))
    return found


def _queue(drawing: Drawing, y: float, spans: Sequence[Span], length: float, workers: int) -> None:
    steps = waiting_batches(spans)
    for (start, ready), (end, _) in zip(steps, steps[1:], strict=False):
        x, wide = LEFT + WIDE * start / length, WIDE * (end - start) / length
        if ready and wide > 0.2:
            tall = QUEUE * min(1.0, ready / (2 * workers))
            drawing.bar(x, y + ROW - 2 - tall, wide, tall, GREY, "", f"{ready} ready", edge="none")
            if wide > 9:
                drawing.text(x + wide / 2, y + ROW - QUEUE - 4, f"{ready}", 11, "middle", color=INK)


BATCHES = 12
CONTROLS = (
    Control("workers", "workers", 1, "num_workers: processes that load; with 0 the loop loads itself", 0, 8),
    Control("load_ms", "loading", 300, "time of a batch: reading, decoding, augmenting, on a core of its own", 10, 1000,
            "ms a batch", base=10),
    Control("step_ms", "step", 100, "what the accelerator computes with a batch", 10, 1000, "ms", base=10),
    Control("cores", "cores", 8, "that the workers share", 1, 16, more=True),
    Control("pinned", "pinned memory", True, "pin_memory=True: the copy to the GPU takes no detour", more=True),
    Control("batch_MiB", "batch", 100, "what is copied to the GPU for each step", 1, 1000, "MiB", base=10, more=True),
)  # fmt: skip
PCIE4_BPS = 31.5e9  # 16 lanes, one direction
# stas00/ml-engineering, training/performance: on an A100 ten batches of 100 MiB took 0.646 s instead of 0.459.
PAGEABLE_BPS = 10 * 100 * 2**20 / (0.646 - 0.459)
LEAVES_OUT = (
    "the start of the workers, which takes seconds once where each imports your program; what it costs to hand a batch"
    " over; a disk that can't keep up. The copy goes over PCIe 4 before its step; with non_blocking=True and a stream"
    " of its own it can hide behind the step before. Two batches are ordered ahead for each worker (prefetch_factor=2)."
)


def copy_s(values: Values) -> float:
    """Seconds that a batch is on its way to the GPU: by the rule of `predict.copy_s`, or as was published for pageable
    memory."""
    nbytes = values["batch_MiB"] * 2**20
    return predict.copy_s(nbytes, PCIE4_BPS) if values["pinned"] else float(nbytes / PAGEABLE_BPS)


def epoch(values: Values, workers: int | None = None) -> predict.LoaderRun:
    """The first batches by the cost model, whose step is the copy and the computing."""
    return predict.loader_run(
        BATCHES, values["load_ms"] / 1e3, values["step_ms"] / 1e3 + copy_s(values),
        workers=values["workers"] if workers is None else workers, cores=values["cores"],
    )  # fmt: skip


def enough(values: Values) -> int | None:
    """The fewest workers that hide loading in a long epoch; None where the cores don't suffice."""
    needed = predict.workers_needed(values["load_ms"] / 1e3, values["step_ms"] / 1e3 + copy_s(values))
    return needed if needed <= values["cores"] else None


def render(values: Values, found: Found, answered: bool = True) -> View:
    """The loop and its accelerator above, the queue of batches that wait for it, the workers below."""
    run = epoch(values, None if answered else 0)
    workers = values["workers"] if answered else 0
    measured = found.get("measured")
    alone = epoch({**values, "cores": 16}, 0)
    length = max(alone.total_s, run.total_s, measured["total_s"] if measured else 0.0)
    tall = 62 + ROW * (workers + 2 if workers else 1) + 30
    drawing = Drawing(tall + (24 + tall - 62) * bool(measured))
    idle = run.wait_s / run.total_s
    title = (
        f"{_workers(workers)}: {BATCHES} batches take {readable('s', run.total_s)}, and the GPU waits {idle:.0%} of it"
    )
    drawing.text(12, 24, title if answered else "The loop loads each batch itself. How many workers would hide that?",
                 15, bold=True)  # fmt: skip
    legend(drawing, 44)
    rows(drawing, 62, run.spans, workers, length, copy_s(values))
    if not answered:
        return View.of(drawing, "The loop alone: loading and computing take turns. Workers come after your guess.")
    if measured:
        heading = f"Measured here: {readable('s', measured['total_s'])}"
        drawing.text(12, tall + 10, heading, 13, bold=True)
        rows(drawing, tall + 20, measured["spans"], workers, length, 0.0)
    return View.of(drawing, _sentence(values, run, measured))


def _workers(count: int) -> str:
    return f"{count or 'No'} worker{'s' * (count != 1)}"


def _sentence(values: Values, run: predict.LoaderRun, measured: Any) -> str:
    needed = enough(values)
    if needed is None:
        cores = f"{counted(values['cores'], 'core')}"
        said = f"On {cores} no number of workers loads as fast as the GPU computes."
    elif values["workers"] < needed:
        said = f"{_workers(needed)} would hide the loading: after the first batch the GPU would never wait."
    elif values["workers"] == needed:
        said = f"{_workers(needed)} are just enough: only the first batch can't be hidden. One more changes nothing."
        said = said.replace("1 worker are", "1 worker is")
    else:
        said = f"{_workers(needed)} would do: more of them only fill the queue."
    first = (
        f"The GPU waits {readable('s', run.wait_s)} in all, {readable('s', run.first_batch_s)} for the first batch. "
    )
    if measured:
        loads = [readable("s", seconds) for seconds in (values["load_ms"] / 1e3, measured["load_s"])]
        replayed, took = (readable("s", measured[name]) for name in ("replayed_s", "total_s"))
        said += (
            f" Measured here, with the real DataLoader on {measured['cores']} cores: {took}. Loading was real work for"
            f" a core, the step a wait, and nothing was copied. A batch took {loads[1]} (set: {loads[0]}; it's longer"
            f" where others use the cores). With these times the model says {replayed}."
        )
    return first + said


def _run_here(values: Values) -> dict[str, Any]:
    return run_loader(BATCHES, values["load_ms"] / 1e3, values["step_ms"] / 1e3, values["workers"])


def loader(**settings: Any) -> Explorer:
    """Workers that load while an accelerator computes. `settings` are workers, load_ms, step_ms, and cores, pinned,
    batch_MiB."""
    start = {control.name: control.default for control in CONTROLS}
    right, choices = enough(start), (1, 2, 3, 8)

    def judge(guess: str | None) -> str:
        first = opening(guess, _workers(right or 0))
        why = (
            f"{_workers(right or 0)}: each takes {start['load_ms']} ms, and together they have a batch ready every 100"
        )
        return f"{first}{why}. One worker loads while the GPU computes, but it still is the slower one. Try them."

    text = (
        f"A batch takes {start['load_ms']} ms to load, and a step {start['step_ms']}. How many workers does it take"
        " until the GPU waits for the first batch only?"
    )
    why = "the real DataLoader, whose batches cost real work on this machine's cores; the step is a wait"
    estimate = lambda values: 3 + BATCHES * (values["load_ms"] + values["step_ms"]) / 1e3  # noqa: E731
    question = Question(text, tuple(map(_workers, choices)), judge)
    action = Action("Run here", "measured", _run_here, estimate, why)
    return Explorer(
        "loader", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=[action]
    )
