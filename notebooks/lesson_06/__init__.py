"""What lesson 06 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType

from course_utils import Run, Samples, claim, figures, launch, more_checks
from course_utils.for_lessons import (
    Figure,
    Program,
    Span,
    Words,
    bet,
    covered,
    disturbed,
    figure_first,
    intervals,
    say,
    say_disturbed,
    union,
)

from .deeper import (  # noqa: F401
    SCHEDULES,
    show_branches,
    show_held,
    show_orders,
    show_published,
    show_schedules,
    show_slow,
    speedup_bound,
)
from .schedule_drawing import IDLE, KINDS, schedule  # noqa: F401

HERE = Path(__file__).resolve().parents[1]
REAL = HERE / "programs" / "06_here.py"
TWIN = HERE / "programs" / "06_twin.py"
TAKE_HOME = HERE / "take_home" / "06_pipeline.py"

LAYERS, WIDTH = 80, 8192  # of the model of this page
GIB = 2**30
ASKED = [str(LAYERS), str(WIDTH), "1"]  # of the pipeline: the batch in one piece
PARTS = {"weights": 1, "gradients": 1, "Adam's two running means": 2}  # float32 numbers a parameter
TWICE, ONCE_MORE = 2.0, 1.25

Guess = float | int | str | EllipsisType | None


def show_needs(one: Run, guess: Guess = ...) -> None:
    """What the model asks of one GPU, part by part, and that it doesn't fit."""
    weights = LAYERS * (WIDTH * WIDTH + WIDTH) * 4 / GIB
    total = weights * sum(PARTS.values())
    answer = bet(
        guess,
        total,
        close="you counted everything.",
        over="Each parameter takes four numbers of 4 bytes: weight, gradient, and Adam's two.",
        under="Gradients are as large as the weights, and Adam keeps two numbers for each of them.",
        unit=" GiB",
        within=0.1,
        traps={
            (
                0.9 * weights,
                1.1 * weights,
            ): "That's the weights. Training also keeps their gradients, and Adam's state.",
            (1.8 * weights, 2.2 * weights): "That's weights and gradients. Adam keeps two more numbers for each.",
            (
                1.19 * total,
                1.31 * total,
            ): "That's with the activations: 80 inputs of 256 MiB are 20 GiB more. We asked for"
            " what's there before them.",
            (2.7 * weights, 3.3 * weights): "Nearly. Adam keeps *two* numbers for each weight.",
        },
        kind="a number of GiB, such as 10",
    )
    parts = ", ".join(f"{name} {weights * times:.0f}" for name, times in PARTS.items())
    say(f"It takes {total:.0f} GiB: {parts}. {answer} Activations come on top, and the GPU has 79.")
    more_checks({"the GPU ran out of memory": "out of memory" in (one.ranks[0].stack or one.log())})


@figure_first
def show_two(run: Run) -> Figure:
    """Who of two GPUs computed when, in the last step."""
    spans = _last_step(run)
    busy = _busy(spans)
    both = _both(spans)
    say(
        f"A step takes {run.values('step_s')[-1]:.1f} s. GPU 0 computes {busy[0]:.0%} of it and GPU 1 {busy[1]:.0%}."
        " They take turns, but for a moment: GPU 1 updates its weights while GPU 0 goes back."
    )
    more_checks(
        {"each GPU computes about half of the step": max(busy.values()) < 0.55, "hardly ever both": both < 0.05}
    )
    title = "Two GPUs, and one of them always waits"
    return figures.rank_timeline(spans, kind="emulated", title=title, names={gpu: f"GPU {gpu}" for gpu in busy})


def _last_step(run: Run) -> list[Span]:
    """What each GPU of one process did in the last step, small pieces joined."""
    start, end = run.emulated.steps(0)[-1]
    inside = [s for s in run.emulated.by_gpu() if start <= s[1] < end and s[3] == "compute"]
    return [
        (gpu, a, b, "compute", label)
        for gpu in sorted({s[0] for s in inside})
        for label in ("forward", "backward", "step")
        for a, b in _joined([(s[1], s[2]) for s in inside if s[0] == gpu and s[4] == label], (end - start) / 100)
    ]


def _joined(parts: list[tuple[float, float]], gap_s: float) -> list[tuple[float, float]]:
    """Stretches of work, those less than `gap_s` apart as one."""
    found: list[tuple[float, float]] = []
    for start, end in union(parts):
        if found and start - found[-1][1] < gap_s:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _busy(spans: list[Span]) -> dict[int, float]:
    """The share of the time from the first start to the last end that each row computes."""
    length = max(s[2] for s in spans) - min(s[1] for s in spans)
    return {row: covered(intervals(spans, row)) / length for row in sorted({s[0] for s in spans})}


def _both(spans: list[Span]) -> float:
    """The share of the time in which the first two rows compute at once."""
    first, second = (intervals(spans, row) for row in (0, 1))
    length = max(s[2] for s in spans) - min(s[1] for s in spans)
    return (covered(first) + covered(second) - covered(union([*first, *second]))) / length


def show_cut(two: Run, cut: Run, guess: Guess = ...) -> None:
    """Eight GPUs against two, with the batch in one piece."""
    before, after = two.values("step_s")[-1], _step_s(cut)
    held = max(peak for _, peak in cut.emulated.peaks()) / GIB
    if _tries(cut):
        say(f"A step takes {after:.1f} s, and no GPU holds more than {held:.0f} GiB. {_tries(cut)}")
        return
    answer = bet(
        guess,
        before / after,
        close="they still take turns.",
        over="There are four times the GPUs, and still just one that works.",
        under="It's no slower, either: messages take milliseconds.",
        unit=" times",
        within=0.1,
        traps={cut.world_size / 2: "That's how many more GPUs you have. But only one of them works at a time."},
    )
    say(f"{before / after:.2f} times: a step takes {after:.1f} s on {cut.world_size} GPUs, as on two. {answer}")
    say(f"What you did get is room: no GPU holds more than {held:.0f} GiB.")
    claim("with the batch in one piece, eight emulated GPUs are as slow as two", abs(before / after - 1) < 0.05)
    more_checks({"no GPU holds a quarter of the model": held < LAYERS * WIDTH * WIDTH * 16 / GIB / 4})


def _tries(cut: Run) -> str:
    """What to say to a reader who ran the pipeline with other numbers than the page; empty for those of the page."""
    asked = cut.ranks[0].values("asked")[-1]
    wanted = f"This page goes on with {' '.join(ASKED)}: put that back when you've tried enough."
    return "" if asked == ASKED else f"That's with {' '.join(asked)}. {wanted}"


def _step_s(run: Run) -> float:
    """The last step of an emulated pipeline, in seconds: the slowest rank's."""
    return max(rank.values("step_s")[-1] for rank in run.ranks)


def show_same_gradients() -> None:
    """Compare a pipeline on this machine's ranks with the whole model, in double precision."""
    run = launch(TWIN, "auto", threads=1, quiet=True)
    gap = max(run.values("gap"))
    say(f"{run.world_size} stages: the largest difference is {gap:.0e} of the largest gradient.")
    claim("a pipeline has the gradients of the whole model on the whole batch", gap < 1e-12)
    pieces = run.ranks[-1].values("losses")
    more_checks({"there's a loss for each micro-batch": pieces == [2 * run.world_size] * 2})


@figure_first
def show_pieces(cut: Run, pieces: Mapping[int, Run], guess: Guess = ...) -> Figure:
    """A step of the eight emulated GPUs with more and more micro-batches, the formula's bound, and what's missing."""
    steps = _steps(cut, pieces)
    p, most = cut.world_size, max(pieces)
    words = {m: "one piece" if m == 1 else f"{m} micro-batches" for m in steps}
    bars = {words[m]: Samples([s], "step_s", cut.provenance) for m, s in steps.items()}
    if _tries(cut):
        say(_tries(cut))
        return figures.bars({words[m]: bars[words[m]] for m in pieces}, unit="s")
    gained, bound = steps[1] / steps[most], speedup_bound(p, most)
    answer = bet(
        guess,
        gained,
        close="you have a feeling for bubbles.",
        over="The bubble is smaller, but it's still there, and pieces cost something.",
        under="By now most GPUs work most of the time.",
        unit=" times",
        within=0.1,
        traps={
            p: f"That needs a pipeline without a bubble. With {most} micro-batches the formula allows {bound:.1f}.",
            (0.97 * bound, 1.02 * bound): "That's what the formula allows. Something takes a little more.",
        },
    )
    say(f"{gained:.1f} times as fast, and the formula allows {bound:.1f}. {answer}")
    say(_missing(cut, pieces[most], most))
    claim(f"{most} micro-batches make eight emulated GPUs more than five times as fast", gained > 5)
    more_checks(
        {
            "no step beats the formula": all(steps[1] / steps[m] <= 1.001 * speedup_bound(p, m) for m in pieces),
            "each cut helps": list(steps.values()) == sorted(steps.values(), reverse=True),
        }
    )
    return figures.bars(
        bars,
        predicted={words[m]: steps[1] / speedup_bound(p, m) for m in pieces},
        unit="s",
        title=f"Eight GPUs: {most} micro-batches make a step {gained:.1f} times as fast",
    )


def _steps(cut: Run, pieces: Mapping[int, Run]) -> dict[int, float]:
    """Seconds of a step on emulated GPUs, by micro-batches; `cut` has the batch in one piece."""
    return {1: _step_s(cut), **{m: _step_s(run) for m, run in pieces.items()}}


def _missing(cut: Run, many: Run, m: int) -> str:
    """What makes m micro-batches slower than the formula says, from what a GPU in the middle did."""
    before, after = _parts(cut), _parts(many)
    longer = after["backward"] / before["backward"] - 1
    return (
        f"What's missing? In pieces, backward takes {longer:.0%} longer: each adds its gradients to the sum so far, so"
        f" all of them are read and written {m} times. The optimizer takes {after['step'] * 1e3:.0f} ms, and stage 0,"
        f" which ends last, can't hide its own. Messages are {after['sent'] * 1e3:.0f} ms."
    )


def _parts(run: Run) -> dict[str, float]:
    """Seconds that a GPU in the middle spent in the last step on backward, the optimizer and messages."""
    rank = run.world_size // 2
    start = run.emulated.steps(rank)[-1][0]
    spans = [s for s in run.emulated.spans(rank) if s[1] >= start - 1e-9]
    parts = {
        label: sum(s[2] - s[1] for s in spans if s[3] == "compute" and s[4] == label) for label in ("backward", "step")
    }
    return {**parts, "sent": sum(s[2] - s[1] for s in spans if s[3] == "communication")}


def run_here() -> Run:
    """The pipeline on this machine's ranks: in one piece, and in four times as many pieces as there are stages."""
    from course_utils import Machine

    gpus = len(Machine.here().usable_gpus)
    p = gpus if gpus > 1 else 2
    return launch(REAL, "auto", args=[1, 4 * p], threads=None if gpus > 1 else 1, quiet=True)


@figure_first
def show_here(run: Run, guess: Guess = ...) -> Figure:
    """A step on the reader's own ranks in one piece and in many, with what the formula allows."""
    pieces = sorted(set(run.values("m")))
    p, most = run.world_size, pieces[-1]
    steps = {m: Samples(run.ranks[0].values("step_s", m=m), "step_s", run.provenance) for m in pieces}
    gained, bound = steps[1].median / steps[most].median, speedup_bound(p, most)
    title = f"{p} stages: {most} micro-batches make a step {gained:.2f} times as fast"
    if why := disturbed(run):
        say_disturbed(why, "what micro-batches bring", guess)
        title = f"{p} stages: too busy to tell what cutting brings"
    else:
        answer = bet(
            guess,
            gained,
            close="you know your machine.",
            over="Each piece costs some Python, and small ones use the device less well.",
            under="With more pieces all stages work most of the time.",
            unit=" times",
            within=0.15,
            traps={p: "That would be a pipeline without a bubble."} if p < bound + 1 else None,
        )
        say(f"{gained:.2f} times as fast, and the formula allows {bound:.2f}. {answer}")
        better = claim(
            f"on your own ranks {most} micro-batches are faster than one piece",
            steps[most].faster_than(steps[1], factor=1.05),
            headline=True,
        )
        if not better:
            near = "whether cutting helps is too close to call" if 0.95 < gained < 1.1 else "cutting doesn't help"
            title = f"{p} stages: {near} here"
    words = {m: "one piece" if m == 1 else f"{m} micro-batches" for m in pieces}
    return figures.bars(
        {words[m]: steps[m] for m in pieces},
        predicted={words[m]: steps[1].median / speedup_bound(p, m) for m in pieces[1:]},
        unit="s",
        title=title,
    )


def show_twice(run: Run, guess: Guess = ...) -> None:
    """How large a gradient is after two steps of the same batch without `zero_grad` between them."""
    once, twice = run.ranks[0].values("norm")
    times = twice / once
    answer = bet(
        guess,
        times,
        close="you've read the source.",
        over="Less: of the first batch only a part is left.",
        under="More: the second batch is there in full, and some of the first.",
        unit=" times",
        within=0.05,
        traps={
            TWICE: "Autograd alone would do that. But step() ends with a division, also of what was there before.",
            1: "Then it would forget the first batch. It keeps some of it.",
            4: "Each of four micro-batches adds its gradient, but step() divides by their number.",
        },
    )
    say(f"{times:.2f} times as large. {answer}")
    claim("two steps without zero_grad() don't give the sum of two gradients", abs(times - TWICE) > 0.1)
    more_checks({"it's 1/m more": abs(times - ONCE_MORE) < 1e-3})


def take_home() -> Program:
    """Pipelines side by side under DDP, in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(two: Run, cut: Run, pieces: Mapping[int, Run], run: Run, twice: Run) -> Words:
    """The lesson in the reader's own numbers."""
    steps, most = _steps(cut, pieces), max(pieces)
    counts = sorted(set(run.values("m")))
    here = [Samples(run.ranks[0].values("step_s", m=m)).median for m in counts]
    own = (
        f"On your own {run.world_size} ranks {counts[-1]} micro-batches were {here[0] / here[-1]:.2f} times as fast as"
        " one piece."
    )
    if disturbed(run):
        own = "While your own ranks ran, other programs were in the way."
    busy = _busy(_last_step(two))
    norms = twice.ranks[0].values("norm")
    return Words(
        [
            f"A model that didn't fit on one emulated A100 fitted on two. GPU 0 computed {busy[0]:.0%} of the time.",
            _tries(cut)
            or f"Cut over eight, a step took {steps[1]:.1f} s in one piece and {steps[most]:.1f} s in {most}.",
            own,
            f"Two steps without zero_grad() gave {norms[1] / norms[0]:.2f} times the gradient, and no error.",
        ]
    )
