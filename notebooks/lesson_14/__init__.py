"""What lesson 14 shows: `%%attempt NAME` judges a training program, scores it on eight emulated A100, and keeps it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from IPython import get_ipython

from course_utils import LaunchError, Run, claim, figures, more_checks, predict, published
from course_utils.for_lessons import (
    BLUE,
    CELL,
    GREY,
    INK,
    ORANGE,
    RUST,
    Card,
    Figure,
    Table,
    add_json_line,
    bet,
    checked_script,
    counted,
    digest,
    figure_first,
    intersection,
    json_lines,
    new_axes,
    notebook_folder,
    readable,
    save_script,
    say,
    show,
    union,
)

from .rules import Refused, check
from .scoring import (
    CHECKED,
    GPT,
    GPUS,
    STEPS,
    Score,
    flops_per_token,
    light_tokens_per_s,
    peak_flops,
    score,
    sequences,
    weights_of,
)
from .steps import Step, way_up
from .toy import gate

BOARD = "capstone.jsonl"  # in the notebook's folder of runs; nothing is sent anywhere
# MFU that `show_one_way` reaches with fused AdamW, and with sharding; the published ones lie around the second.
COURSE, EXPERT = 0.43, 0.52
WALL = 0.65  # of a GPU that does products and attention, at the rates they reach, and nothing else
LONGEST = 12  # kernels that are shown
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85}
Guess = float | int | str | EllipsisType | None
_runs: dict[str, Run] = {}


@figure_first
def show_light(guess: Guess = ...) -> Figure:
    """How many tokens a second eight A100 could train on, if they did nothing but products, at their peak."""
    flops, peak, light = flops_per_token(GPT), peak_flops(), light_tokens_per_s()
    answer = bet(
        guess,
        light,
        close="you know your GPUs.",
        over="More than the speed of light. Divide the peak of eight GPUs by what a token needs.",
        under="Bet on the peak of all eight: no program reaches it, but that's what *speed of light* means.",
        within=(0.7 * light, 1.4 * light),
        traps={(0.8 * light / GPUS, 1.2 * light / GPUS): "That's one GPU. There are eight."},
        kind="tokens a second, such as 50000",
        positive=True,
    )
    say(
        f"A token needs {flops / 1e9:.1f} billion operations, and eight A100 do {peak / 1e12:,.0f} trillion a second:"
        f" {light:,.0f} tokens a second. {answer}"
    )
    more_checks(
        {
            "1.3 billion weights": abs(weights_of(GPT) / 1.3e9 - 1) < 0.02,
            "the course's cost model counts alike": abs(_mfu(light) - 1) < 1e-9,
        }
    )
    others = {
        f"MPT of {c.inputs['N'] / 1e9:.0f} billion, {c.inputs['gpus']} H100": c.observed / 100
        for c in published.cases("mfu")
    }
    (fsdp,) = published.cases("util")
    others["GPT of 175 billion by FSDP, A100"] = fsdp.observed / 100
    mpl, (ax,) = new_axes(size=(7.2, 2.6))
    ax.barh(
        range(len(others)), [100 * part for part in others.values()], color=GREY, height=0.62, hatch="//", edgecolor="w"
    )
    for place, part in enumerate(others.values()):
        ax.text(100 * part + 0.8, place, f"{part:.0%}", va="center", color=INK, fontsize=9, bbox=_PAPER)
    _rungs(ax, list(others))
    ax.set_xlabel("% of what their GPUs can do in 16 bits (MFU), published")
    listed = ", ".join(f"{name} {part:.0%}" for name, part in others.items())
    return Figure(mpl, f"What others reached of the speed of light: {listed}.")


def _mfu(tokens_per_s: float) -> float:
    size = {"layers": GPT["layers"], "hidden": GPT["width"], "seq": GPT["length"]}
    return predict.mfu(tokens_per_s, params=weights_of(GPT), **size, gpus=GPUS, peak_flops=peak_flops() / GPUS)


def _run_attempt(line: str, cell: str) -> None:
    """What `%%attempt NAME [TIMES]` does: look at a program, let it through the gate, score it, and show what it did.
    TIMES is a bet: how many times as fast as the attempt before."""
    name, expected = _asked(line)
    program = checked_script(save_script(CELL + cell, f"{name.replace('-', '_')}.py"))
    before = [s for s in board() if s.name != name]
    began = time.monotonic()
    try:
        check(cell)
        found, run = score(program, name)  # which is quicker, so that what it refuses needn't wait
        holds = gate(program)
    except Refused as refused:
        show(Card("not solved", f"{name}: no score.", str(refused)))
        return
    _runs[name] = run
    kept = Score(**{**found.as_dict(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "expected": expected})
    add_json_line(notebook_folder() / BOARD, kept.as_dict() | {"program": digest(cell)})
    head = f"{name}: {found.tokens_per_s:,.0f} tokens a second, {found.part:.1%} of eight A100."
    show(Card("solved", head, checked=holds, how="before the score"))
    say(_in_words(kept, before))
    show(_spent_figure([*before[-1:], kept]))
    print(f"[{time.monotonic() - began:.0f} s; the program is kept as {program}]")


def _asked(line: str) -> tuple[str, float | None]:
    words = line.split()
    if not words or not words[0].replace("-", "_").isidentifier() or len(words) > 2:
        raise LaunchError(
            "name your attempt, as in %%attempt flash-attention, and bet behind it: %%attempt flash-attention 1.5"
        )
    if len(words) == 1:
        return words[0], None
    try:
        times = float(words[1].rstrip("x"))
        if not times > 0:
            raise ValueError
    except ValueError:
        raise LaunchError(
            f"bet on how many times as fast it gets, as in %%attempt {words[0]} 1.5; got {words[1]!r}"
        ) from None
    return words[0], times


def _in_words(found: Score, before: Sequence[Score]) -> str:
    step = f"A step takes {readable('s', found.step_s)}, and {found.peak_bytes / 2**30:.0f} GiB of 79."
    if not before:
        return f"{step} {_rung(found.part)}"
    times = found.tokens_per_s / before[-1].tokens_per_s
    versus = (
        f"{times:.2f} times as fast as {before[-1].name}"
        if times >= 1
        else f"{1 / times:.2f} times slower than {before[-1].name}"
    )
    said = "" if found.expected is None else f" You bet on {found.expected:g}: {_near(found.expected, times)}."
    return f"{step} That's {versus}.{said} {_rung(found.part)}"


def _near(expected: float, times: float) -> str:
    if abs(expected / times - 1) < 0.15:
        return "well predicted"
    return "it brought more" if times > expected else "it brought less"


def _rung(part: float) -> str:
    if part >= EXPERT:
        return f"That's what experts reach. From here on each percent is a day's work; the wall is near {WALL:.0%}."
    if part >= COURSE:
        return f"You've done this course. Experts reach {EXPERT:.0%}."
    return f"Somebody who did this course reaches {COURSE:.0%}."


def board() -> list[Score]:
    """All attempts that got a score, the latest of each name, in order."""
    names = Score.__dataclass_fields__
    latest: dict[str, Score] = {}
    for r in json_lines(notebook_folder() / BOARD):
        latest.pop(r["name"], None)  # a name that's used again comes last
        latest[r["name"]] = Score(**{k: v for k, v in r.items() if k in names})
    return list(latest.values())


def show_staircase() -> Figure:
    """What each attempt brought, up to the speed of light: emulated, and expected where there was a bet."""
    steps = board()
    if not steps:
        raise LaunchError("there are no attempts yet: run a cell that begins with %%attempt first")
    best = max(steps, key=lambda s: s.part)
    mpl, (ax,) = new_axes(size=(7.2, max(2.2, 1.2 + 0.42 * len(steps))))
    _ladder(ax, steps)
    versus = f", {best.part / steps[0].part:.1f} times as much as {steps[0].name}" if best is not steps[0] else ""
    claim(f"{best.name} uses {best.part:.1%} of eight A100{versus}", 0 < best.part < 1)
    return Figure(
        mpl, f"{counted(len(steps), 'attempt')}, emulated: from {steps[0].part:.1%} to {best.part:.1%} of eight A100."
    )


def _ladder(ax: Any, steps: Sequence[Score]) -> None:
    """Attempts as bars, by the part that they use of eight A100; the rungs are lines."""
    places = range(len(steps))
    ax.barh(places, [100 * s.part for s in steps], color=BLUE, height=0.62, label="emulated")
    for place, (step, last) in enumerate(zip(steps, [None, *steps], strict=False)):
        words = f"{step.part:.1%}, {step.tokens_per_s:,.0f} tokens/s"
        ax.text(100 * step.part + 0.8, place, words, va="center", color=INK, fontsize=9, bbox=_PAPER)
        if step.expected is not None and last is not None:
            ax.plot(
                [100 * last.part * step.expected], [place], marker="D", color=ORANGE, markersize=6, linestyle="none"
            )
    _rungs(ax, [s.name for s in steps])
    ax.set_xlabel("% of what eight A100 can do in 16 bits (MFU), emulated")


def _rungs(ax: Any, names: Sequence[str]) -> None:
    """Lines for what others reach, and the names of the bars."""
    for part, words, colour, side in ((COURSE, "this course ", GREY, "right"), (EXPERT, " experts", RUST, "left")):
        ax.axvline(100 * part, color=colour, linestyle="--", linewidth=1.2)
        ax.text(100 * part, -0.7, words, ha=side, va="bottom", color=colour, fontsize=9)
    ax.axvline(100, color=INK, linewidth=1.5)
    ax.text(99, -0.7, "speed of light", ha="right", va="bottom", color=INK, fontsize=9)
    ax.set_xlim(0, 102)
    ax.set_ylim(max(0.6, len(names) - 0.4), -0.75)
    ax.set_yticks(range(len(names)), list(names))


def _spent_figure(attempts: Sequence[Score]) -> Figure:
    """Where a step's time goes on rank 0's GPU."""
    parts = {s.name: {k: v / (STEPS - 1) for k, v in s.seconds.items()} for s in attempts}
    return figures.parts(parts, unit="s", title="Where a step's time goes, emulated")


def show_kernels(name: str = "") -> Table:
    """What rank 0's GPU ran in the last step of an attempt of this session, by default the latest: the kernels that
    took the longest together, those of one name and length in a row. The whole trace is kept in a file."""
    if not _runs:
        raise LaunchError("run an attempt first: its kernels are kept while the notebook runs")
    run = _run_of(name or [*_runs][-1])
    begin, end = run.emulated.steps(0)[-1]
    found: dict[tuple[str, str], list[float]] = {}
    for kind, label, start, stop, *_ in run.emulated.found[0]["spans"]:
        if kind != "waiting" and start >= begin and stop <= end:
            found.setdefault((label, readable("s", stop - start)), []).append(stop - start)
    longest = sorted(found.items(), key=lambda item: -sum(item[1]))
    rows = [
        (label, f"{len(times):,}", each, readable("s", sum(times)), f"{sum(times) / (end - begin):.1%}")
        for (label, each), times in longest[:LONGEST]
    ]
    trace = Path(run.path) / "trace.json"
    run.emulated.save_trace(trace)
    say(f"All of them, on one clock: {trace}, for ui.perfetto.dev.")
    return Table(("kernel", "times", "each", "together", "of the step"), rows, "lrrrr")


def _run_of(name: str) -> Run:
    if name not in _runs:
        raise LaunchError(f"no attempt {name!r} in this session; there are {', '.join(_runs)}")
    return _runs[name]


def show_timelines(first: str = "", last: str = "") -> Figure:
    """The last step of two attempts of this session on one clock: the first and the best, unless named."""
    known = [s for s in board() if s.name in _runs]
    if not known:
        raise LaunchError("run an attempt first: timelines are kept while the notebook runs")
    one, other = first or known[0].name, last or max(known, key=lambda s: s.part).name
    rows = {}
    for row, name in enumerate(dict.fromkeys((one, other))):
        rows[row] = (name, _last_step(_run_of(name)))
    spans = [(row, s, e, what, label) for row, (_, found) in rows.items() for s, e, what, label in found]
    return figures.rank_timeline(
        spans, title="The last step", kind="emulated", names={row: name for row, (name, _) in rows.items()}
    )


def _last_step(run: Run) -> list[tuple[float, float, str, str]]:
    """What rank 0's GPU did in its last step, in stretches, from 0 s on."""
    begin, end = run.emulated.steps(0)[-1]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _, s, e, what, label in run.emulated.spans(0):
        if e > begin and s < end and what != "loading":  # microseconds, which would halve what they lie beside
            kind = (what, label if what == "compute" else "")
            found.setdefault(kind, []).append((max(s, begin), min(e, end)))
    sending = union([stretch for (what, _), all_ in found.items() if what == "communication" for stretch in all_])
    near = (end - begin) / 500
    joined = (
        (kind, stretch)
        for kind, all_ in found.items()
        for stretch in (union(all_) if kind[0] == "communication" else _joined(all_, near, sending))
    )
    return sorted((s - begin, e - begin, what, label) for (what, label), (s, e) in joined)


def _joined(
    stretches: Sequence[tuple[float, float]], near: float, apart: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The same, where gaps too small to be drawn are closed, but for those in which something of `apart` lies."""
    found: list[tuple[float, float]] = []
    for start, end in union(stretches):
        gap = [(found[-1][1], start)] if found else []
        if gap and start - found[-1][1] < near and not intersection(gap, apart):
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


@figure_first
def show_one_way() -> Figure:
    """One way up, step by step, on the virtual clock; and each step's changes behind a click."""
    found = [(step, _way_score(step)) for step in way_up()]
    scores = [each for _, each in found]
    times = [1.0, *(now.tokens_per_s / before.tokens_per_s for before, now in zip(scores, scores[1:], strict=False))]
    rows = [(step.name, f"{by:.2f}", step.why) for (step, _), by in list(zip(found, times, strict=True))[1:]]
    show(Table(("step", "times as fast", "why"), rows, "lrl"))
    claim(
        f"each of the {len(found) - 1} changes makes it faster, {scores[-1].part / scores[0].part:.0f} times in all",
        all(by > 1 for by in times[1:]),
        headline=True,
    )
    mpl, (ax,) = new_axes(size=(7.2, 1.2 + 0.42 * len(scores)))
    _ladder(ax, scores)
    return Figure(
        mpl, f"{len(scores)} programs, emulated: from {scores[0].part:.1%} to {scores[-1].part:.1%} of eight A100."
    )


def _way_score(step: Step) -> Score:
    return score(save_script(step.program, f"way_{step.name.replace('-', '_')}.py"), step.name)[0]


def where() -> Path:
    """The folder with the programs of your attempts."""
    return save_script("", "nothing.py").parent


def deal(path: str | Path, sizes: Mapping[str, int] = GPT, count: int = 512) -> Path:
    """Write so many sequences for free play, as `--data` wants them; `sizes` has their "words" and "length"."""
    import torch

    torch.save((sequences(count, sizes), sequences(CHECKED, sizes)), path)
    return Path(path)


if (_shell := get_ipython()) is not None:
    _shell.register_magic_function(_run_attempt, "cell", "attempt")

__all__ = ["board", "deal", "show_light", "show_one_way", "show_staircase", "show_timelines", "where"]
