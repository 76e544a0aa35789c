"""What the deeper part of lesson 09 shows: selective recomputation, published steps, and saves next to training."""

from __future__ import annotations

from types import EllipsisType

from course_utils import Provenance, Run, Samples, claim, figures, more_checks, predict, published
from course_utils.for_lessons import Figure, ShowsTable, bet, disturbed, figure_first, say, say_disturbed

GIB = 2**30

Guess = float | int | str | EllipsisType | None


@figure_first
def show_selective(run: Run) -> Figure:
    """Memory of a step that keeps everything, products only, and inputs of blocks only; and its time."""
    ways = list(dict.fromkeys(run.values("way")))
    peak = {way: run.value("peak_bytes", way=way) for way in ways}
    took = {way: run.value("step_s", way=way) for way in ways}
    kept, some, again = ways
    say(
        f"Selective takes {took[some] / took[kept]:.2f} times as long as everything kept, and whole blocks computed"
        f" again {took[again] / took[kept]:.2f} times. It holds {peak[some] / peak[kept]:.0%} of the memory, and they"
        f" {peak[again] / peak[kept]:.0%}."
    )
    claim("selective lies between the two, in bytes and in time", _between(peak, ways[::-1]) and _between(took, ways))
    bars = {f"{way}, {peak[way] / GIB:.0f} GiB": Samples([took[way]], "step_s", run.provenance) for way in ways}
    return figures.bars(bars, unit="s", title=f"Selective: {took[some] / took[kept]:.2f} times the time")


def _between(values: dict[str, float], order: list[str]) -> bool:
    low, middle, high = (values[name] for name in order)
    return low < middle < high


def show_published() -> ShowsTable:
    """Full recomputation against selective recomputation with sequence parallelism, as published and as predicted."""
    rows = []
    for case in published.cases("recompute_ratio"):
        seq, hidden = case.inputs["s"], case.inputs["h"]
        full, selective = (predict.recompute_time(mode, seq=seq, hidden=hidden) for mode in ("full", "selective"))
        observed = Samples([case.observed], "ratio", Provenance("published", "A100"))
        rows.append((f"{case.id.rpartition('-')[2]} parameters", full / selective, observed))
    errors = [predicted / observed.median - 1 for _, predicted, observed in rows]
    say(f"The prediction is {min(errors):.1%} to {max(errors):.1%} above what was measured.")
    claim("counting FLOPs predicts all four ratios within 5%", max(map(abs, errors)) < 0.05)
    return figures.residuals(rows, unit="x", title="Everything again, over selective and sequence parallel")


@figure_first
def show_paused(run: Run, guess: Guess = ...) -> Figure:
    """How long a plain save stops the training, and one that goes on in a thread."""
    plain, pause = (
        Samples(run.ranks[0].values(name, first=False), name, run.provenance) for name in ("plain_s", "pause_s")
    )
    steps = run.ranks[0].values("steps", first=False)
    share = pause.median / plain.median
    if why := disturbed(run):
        say_disturbed(why, "how long a pause is", guess)
    else:
        answer = bet(
            guess,
            share,
            close="you know your disk.",
            over="It's a copy in memory, and no disk.",
            under="A copy takes time, too, and so does the agreement between ranks.",
            within=0.3,
            kind="a share from 0 to 1",
        )
        say(f"The pause is {share:.0%} of that of a plain save. {answer}")
        claim("a save next to training stops it for less time than a plain one", pause.faster_than(plain))
    say(f"While a thread wrote, the ranks trained for {min(steps)} to {max(steps)} steps.")
    claim("what was written is the state at the call, not what training made of it", all(run.values("as_it_was")))
    more_checks({"training went on meanwhile": min(steps) >= 1})
    return figures.bars({"plain save": plain, "async_save": pause}, unit="s", ylabel="training stops for")
