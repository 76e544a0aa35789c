"""What the deeper part of lesson 06 shows: branches, six schedules, a slow stage, and published pipelines."""

from __future__ import annotations

from pathlib import Path
from types import EllipsisType

from course_utils import Provenance, Run, Samples, claim, figures, more_checks, predict, published
from course_utils.for_lessons import Figure, ShowsTable, Table, bet, figure_first, say
from course_utils.predict import pipeline

SCHEDULES = Path(__file__).resolve().parents[1] / "programs" / "06_schedules.py"
MIB = 2**20
SHORT = {"Interleaved1F1B": "inter- leaved", "InterleavedZeroBubble": "zero bubble", "ZBVZeroBubble": "ZBV"}
SLOW = 1.5  # times as long as the others

Guess = float | int | str | EllipsisType | None


def speedup_bound(p: int, m: int) -> float:
    """How many times as fast as one piece m micro-batches can be on p equal stages."""
    return (1 - predict.bubble_fraction(p, m)) * p


@figure_first
def show_branches(run: Run, guess: Guess = ...) -> Figure:
    """Two towers on one GPU, and on two with the copy of their input late and first."""
    ways = list(dict.fromkeys(run.values("way")))
    seconds = {way: run.values("forward_s", way=way)[-1] for way in ways}
    one, late, first = (seconds[way] for way in ("one_gpu", "copy_late", "copy_first"))
    answer = bet(
        guess,
        one / first,
        close="both towers run at once.",
        over="There are two GPUs.",
        under="The towers don't need each other.",
        unit=" times",
        within=0.1,
        traps={1: "That's what you get with the copy in the wrong place."},
    )
    say(f"{one / first:.2f} times as fast with the copy first, and {one / late:.2f} times with the copy late. {answer}")
    claim("two branches on two GPUs run at once, if the copy comes first", one / first > 1.8 and one / late < 1.1)
    bars = {way.replace("_", " "): Samples([s], "forward_s", run.provenance) for way, s in seconds.items()}
    return figures.bars(bars, unit="s", title=f"One line in another place: {late / first:.1f} times as fast")


def show_orders(run: Run) -> Table:
    """What rank 0 did in a step, schedule by schedule."""
    orders = {name: run.ranks[0].values("order", schedule=name)[0] for name in _names(run)}
    p = run.world_size
    mine = {
        "1F1B": [f"{part}{kind}{i}" for kind, part, i in pipeline.one_f_one_b(p, _micro_batches(run))[0]],
        "Interleaved1F1B": [f"{part}{kind}{i}" for kind, part, i in pipeline.interleaved(p, _micro_batches(run), 2)[0]],
    }
    for name, order in mine.items():
        claim(f"torch ran {name} in the order that the model of this course simulates", orders[name] == order)
    return Table(("schedule", "what rank 0 did"), [[name, " ".join(order)] for name, order in orders.items()], "ll")


def _names(run: Run) -> list[str]:
    return list(dict.fromkeys(run.values("schedule")))


def _micro_batches(run: Run) -> int:
    """How many the batch was cut into: rank 0 begins each of them once under GPipe."""
    return sum(action[1] == "F" for action in run.ranks[0].values("order", schedule="GPipe")[0])


@figure_first
def show_held(run: Run) -> Figure:
    """The most that each rank held on top of its model, under GPipe and 1F1B."""
    held = {name: run.values("held_bytes", schedule=name) for name in ("GPipe", "1F1B")}
    first = held["GPipe"][0] / held["1F1B"][0]
    say(f"GPipe's first stage holds {first:.1f} times as much as that of 1F1B.")
    claim(
        "under 1F1B later stages hold less, under GPipe all hold about the same",
        held["1F1B"] == sorted(held["1F1B"], reverse=True) and max(held["GPipe"]) < 1.2 * min(held["GPipe"]),
    )
    more_checks({"1F1B holds less on each rank": all(b < a for a, b in zip(*held.values(), strict=True))})
    bars = {
        f"{name}, {rank}": Samples([nbytes / MIB], "MiB", run.provenance)
        for name, found in held.items()
        for rank, nbytes in enumerate(found)
    }
    return figures.bars(
        bars, unit="MiB", ylabel="held by stage 0 to 3", title="GPipe holds every micro-batch, 1F1B a few"
    )


@figure_first
def show_schedules(run: Run) -> Figure:
    """A step under each schedule, and what it costs in memory."""
    steps = {name: max(run.values("step_s", schedule=name)) for name in _names(run)}
    held = {name: max(run.values("held_bytes", schedule=name)) / MIB for name in steps}
    fastest = min(steps, key=lambda name: steps[name])
    say(
        f"{fastest} is the fastest here: it takes {steps[fastest] / steps['1F1B']:.0%} of 1F1B's time, and its fullest"
        f" rank holds {held[fastest] / held['1F1B']:.1f} times as much."
    )
    claim("interleaved and zero-bubble schedules are faster than 1F1B", _all_below(steps, "1F1B", ("GPipe", "1F1B")))
    more_checks({"each of them holds more": all(held[n] > held["1F1B"] for n in steps if n not in ("GPipe", "1F1B"))})
    bars = {f"{SHORT.get(n, n)}, {held[n]:.0f} MiB": Samples([s], "step_s", run.provenance) for n, s in steps.items()}
    return figures.bars(bars, unit="s", title=f"Faster than 1F1B, for more memory: {fastest}")


def _all_below(values: dict[str, float], name: str, but: tuple[str, ...]) -> bool:
    return all(value < values[name] for other, value in values.items() if other not in but)


@figure_first
def show_slow(even: Run, slow: Run, guess: Guess = ...) -> Figure:
    """A step with equal stages, and with one that takes 1.5 times as long."""
    before, after = (max(run.values("step_s")) for run in (even, slow))
    p = even.world_size
    share = 100 * (SLOW - 1) / p  # of all the work
    answer = bet(
        guess,
        100 * (after / before - 1),
        close="everybody waits for the slowest.",
        over="Filling and emptying the pipeline still take the time of all stages.",
        under="Once the pipeline is full, everybody waits for the slowest.",
        unit="%",
        within=0.2,
        traps={
            (
                share - 1,
                share + 1,
            ): "That's how much more work there is. But it's all in one place, where all have to pass.",
            (49, 51): "Nearly: that would be it, if the pipeline were always full.",
        },
        kind="a percentage, such as 10",
    )
    say(f"{after / before - 1:.0%} longer. {answer}")
    claim("a slow stage costs more than its share of the work", after / before - 1 > 1.5 * share / 100)
    bars = {
        name: Samples([s], "step_s", even.provenance)
        for name, s in {"equal stages": before, "one is slow": after}.items()
    }
    expected = predict.simulate_pipeline("1f1b", [SLOW if stage == 2 else 1.0 for stage in range(p)], 8).total_s
    expected /= predict.simulate_pipeline("1f1b", [1.0] * p, 8).total_s
    return figures.bars(
        bars,
        predicted={"one is slow": before * expected},
        unit="s",
        title=f"{100 * (SLOW - 1):.0f}% longer on one of {p} stages: the step takes {after / before - 1:.0%} longer",
    )


def show_published() -> ShowsTable:
    """Published speed-ups of pipelines next to what the formula for equal stages allows."""
    rows = []
    for case in published.cases("pipe_norm"):
        p, m, ref_p, ref_m = (int(case.inputs[name]) for name in ("p", "m", "ref_p", "ref_m"))
        bound = speedup_bound(p, m) / speedup_bound(ref_p, ref_m)
        whose = "GPipe" if case.id.startswith("gpipe") else "torchgpipe"
        rows.append((case.id, bound, Samples([case.observed], "ratio", Provenance("published", whose))))
    below = [seen.median / bound for _, bound, seen in rows]
    say(
        f"{sum(share < 0.98 for share in below)} of {len(below)} stay below the formula, and"
        f" {sum(share > 1.02 for share in below)} lie above it."
    )
    return figures.residuals(rows, unit="x", order="worst first", title="Published pipelines, and the formula's bound")
