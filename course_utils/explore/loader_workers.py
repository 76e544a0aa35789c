"""Workers that load while an accelerator computes: a timeline of an epoch's first batches."""

from __future__ import annotations

from typing import Any

from .. import predict
from ..units import readable
from .controls import Control
from .drawing import Drawing, View
from .explorer import Action, Explorer, Found, Question, Values
from .loader_rows import ROW, legend, rows
from .loader_runs import run_loader

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
        cores = f"{values['cores']} core{'s' * (values['cores'] > 1)}"
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
        first = "" if guess is None else "Yes. " if guess == _workers(right or 0) else "Not this time. "
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
    question = None if settings else Question(text, tuple(map(_workers, choices)), judge)
    action = Action("Run here", "measured", _run_here, estimate, why)
    return Explorer(CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=[action])
