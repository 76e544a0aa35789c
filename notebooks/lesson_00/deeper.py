"""What the deeper sections of lesson 00 show: tensors, residuals, queues, and what looks serial from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_utils import Run, Sweep, Verdict, claim, explore, figures, more_checks, predict, published, sweep
from course_utils.for_lessons import Figure, Table, bet, disturbed, figure_first, say, say_disturbed

from .job import (
    DAY_H,
    HERE,
    SETTINGS,
    WORLDS,
    Guess,
    ahead,
    expected_speedup,
    on_record,
    seconds,
    serial_share,
    speedup,
)

PIECES = HERE / "programs" / "00_pieces.py"


@figure_first
def show_doubled(run: Run, guess: Guess = ...) -> Figure:
    """Doubling numbers by a loop and by one tensor operation, over how many there are."""
    sizes = sorted(set(run.values("n")))
    double_s = {how: [run.samples("double_s", how=how, n=n) for n in sizes] for how in dict.fromkeys(run.values("how"))}
    loop, tensor = double_s["Python loop"], double_s["tensor, CPU"]
    times = loop[-1].median / tensor[-1].median
    said = bet(guess, times, close="", none="You made no bet.", kind="a number, such as 50")
    if why := run.disturbed:
        say_disturbed(why, "how much faster a tensor is", guess, "run both cells again")
    else:
        say(f"For {sizes[-1]:,} numbers the tensor is {times:.0f} times as fast. {said}")
    claim(
        "one tensor operation doubles a million numbers at least five times as fast as a loop",
        tensor[-1].faster_than(loop[-1], factor=5).unless(why),
    )
    claim("for ten numbers the loop is the faster one", loop[0].faster_than(tensor[0]).unless(why))
    curves = {how: (sizes, [each.map(lambda s: s * 1e6) for each in found]) for how, found in double_s.items()}
    title = why or f"A tensor doubles a million numbers {times:.0f} times as fast as a loop"
    return figures.lines(curves, xlabel="numbers", ylabel="microseconds", log="xy", title=title)


def show_residuals(alone: Sweep, runs: Sweep) -> Figure:
    """The job on all ranks, part by part, next to Amdahl's law; the recorded one where these runs were disturbed."""
    n, what = WORLDS[-1], "measured"
    if why := disturbed(alone, runs):
        say_disturbed(why, "what the law leaves out", again="run the cells of `alone` and `runs` again")
        alone = runs = on_record(runs)
        n = max(point["ranks"] for point in runs.points)
        what = f"recorded on {runs.runs[0][0].provenance.machine.split(',')[0]}"
    expected = {"train": seconds(alone, "train_s", 1).median / n, "test": seconds(alone, "test_s", 1).median}
    measured = {key: seconds(runs, f"{key}_s", n) for key in ("train", "test", "job")}
    rows = [(key, expected[key], measured[key]) for key in expected]
    rows.append(("the whole job", sum(expected.values()), measured["job"]))
    return figures.residuals(rows, unit="s", title=f"{n} ranks: predicted by Amdahl's law, and {what}")


def show_pieces(alone: Sweep, runs: Sweep) -> Table:
    """The four causes of the residual, each timed alone, in ms of a step on all ranks."""
    n = WORLDS[-1]
    job = alone.at(ranks=1)[0]
    batch, steps = job.value("batch"), job.value("steps")
    part = batch // n  # images of each rank in a step
    points = {
        "whole": {"ranks": 1, "batch_size": batch},
        "part": {"ranks": 1, "batch_size": part},
        "together": {"ranks": n, "batch_size": part},
    }
    timed = sweep(PIECES, over=list(points.values()), repeats=3, **SETTINGS)
    if why := disturbed(timed, alone, runs):
        again = f"run {'this cell' if timed.disturbed else 'the cells of `alone` and `runs`'} again"
        say_disturbed(why, "which of the four costs most", again=again)

    def ms(point: str, what: str) -> float:
        return timed.samples(what, **points[point]).median * 1e3

    found_ms = {
        "smaller pieces": ms("part", "compute_s") - ms("whole", "compute_s") / n,
        "the update": ms("together", "update_s") - ms("part", "update_s") / n,
        "sharing the machine": ms("together", "compute_s") - ms("part", "compute_s"),
        "the exchange": ms("together", "exchange_s"),
    }
    missing_s = seconds(runs, "train_s", n).median - seconds(alone, "train_s", 1).median / n
    found_ms |= {"together": sum(found_ms.values()), "the residual, a step of the job": missing_s / steps * 1e3}
    rows = [(what, f"{more:+.1f}") for what, more in found_ms.items()]
    return Table([f"in a step of {n} ranks", "ms"], rows, "lr")


@figure_first
def show_queue(queue_h: Mapping[int, float], alone: Sweep, runs: Sweep) -> Figure:
    """When a training of 24 hours is done, with the time in the queue, for each number of GPUs."""
    n = WORLDS[-1]
    shown = ahead(runs).status == "shown"
    scaling = speedup(runs) if shown else expected_speedup(alone, n)
    if not shown:
        lead = runs.disturbed or "Your sweep couldn't show a speed-up"
        say(f"{lead}, so this takes Amdahl's: {scaling:.2f} on {n} ranks.")
    fit = predict.fit_amdahl({1: 1.0, n: 1 / scaling})
    run_h = {k: DAY_H * fit.time_s(k) / fit.time_s(1) for k in queue_h}
    finish_h = {k: queue_h[k] + run_h[k] for k in queue_h}
    best, most = min(finish_h, key=lambda k: finish_h[k]), max(queue_h)
    limit_h = min((finish_h[k] for k in queue_h if k < most), default=0.0) - run_h[most]
    name = {k: f"{k} GPU{'s' * (k > 1)}" for k in queue_h}
    say(
        f"{name[most]} are worth waiting for if their queue is shorter than {max(limit_h, 0):.1f} hours."
        f" GPU hours paid: {', '.join(f'{k * run_h[k]:.0f} on {name[k]}' for k in queue_h)}."
    )
    bars = {name[k]: {"queue": queue_h[k], "run": run_h[k]} for k in queue_h}
    return figures.parts(
        bars, unit="hours", title=f"{name[best]}: the result is there after {finish_h[best]:.1f} hours"
    )


def show_product(run: Run) -> None:
    """What a clock sees of a matrix product that it doesn't wait for."""
    asked, done = run.samples("asked_s"), run.samples("done_s")
    if why := run.disturbed:
        say_disturbed(why, "when a product is there", again="run both cells again")
    else:
        say(
            f"The call comes back after {asked.median * 1e3:.2f} ms, the product is there after"
            f" {done.median * 1e3:.2f} ms."
        )
    sentence = "on a GPU a clock that doesn't wait misses most of a matrix product"
    if run.value("on_gpu"):
        claim(sentence, asked.faster_than(done, factor=2).unless(why))
    else:
        claim(sentence, None, why="no GPU")


def show_variables(run: Run) -> Table:
    """What two ranks find in their environment."""
    by_rank = [{r["name"]: r["value"] for r in rank.records if "name" in r} for rank in run.ranks]
    differ = [name for name in by_rank[0] if by_rank[0][name] != by_rank[1][name]]
    more_checks(
        {
            "each rank is a process of its own": len(set(run.values("process"))) == 2,
            "only their numbers differ": differ == ["RANK", "LOCAL_RANK"],
        }
    )
    return Table(
        ["variable", "rank 0", "rank 1"], [(name, *(rank[name] for rank in by_rank)) for name in by_rank[0]], "lll"
    )


def show_fit(alone: Sweep, runs: Sweep) -> None:
    """The serial part as it looks from outside."""
    n, inside = WORLDS[-1], serial_share(alone)
    if why := disturbed(alone, runs):
        say_disturbed(why, "what is serial", again="run the cells of `alone` and `runs` again")
        claim("from outside at least as much looks serial", Verdict("not shown", "").unless(why))
        return
    if ahead(runs).status != "shown":
        say("Your sweep couldn't show a speed-up. From outside everything looks serial then.")
        claim("from outside at least as much looks serial", None, why="there's no speed-up to explain")
        return
    fit = predict.fit_amdahl({k: seconds(runs, "job_s", k).median for k in WORLDS})
    found = predict.karp_flatt(speedup(runs), n)
    say(
        f"Measured inside, on one rank: {inside:.0%} serial. Fitted to all runs: {fit.serial:.0%}."
        f" Karp-Flatt: {found:.0%}."
    )
    say(f"If the law holds on: {fit.speedup(8):.1f} times as fast on 8 ranks, {fit.speedup(64):.1f} on 64.")
    status = "shown" if fit.serial >= inside else "not shown"
    claim("from outside at least as much looks serial", Verdict(status, f"{fit.serial:.3f} against {inside:.3f}"))
    if len(WORLDS) > 2:
        fits = Verdict("shown" if fit.worst < 0.1 else "not shown", f"off by {fit.worst:.1%} at most")
        claim("the law explains all times to within a tenth", fits)
    else:
        claim("the law explains all times to within a tenth", None, why="it fits any two times; a third would test it")


def explore_serial(alone: Sweep) -> Any:
    """The explorer of scaling, at the reader's own serial part."""
    return explore.scaling(serial=round(100 * min(serial_share(alone), 0.5), 1))


def published_table() -> Table:
    """What others measured on the GPUs of one machine."""
    points = published.ddp_scaling()
    rows = [(p.label, str(p.n), f"{p.speedup:.2f}", f"{predict.efficiency(p.speedup, p.n):.0%}") for p in points]
    return Table(["published", "GPUs", "speed-up", "efficiency"], rows, "lrrr")
