"""The job of lesson 00 on one rank and on all of them: predicted, measured, with the test shared; and on eight GPUs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Machine, Samples, Sweep, Verdict, claim, figures, launch, more_checks, predict, recorded, sweep
from course_utils.for_lessons import Figure, as_number, bet, disturbed, figure_first, say, say_disturbed

HERE = Path(__file__).resolve().parents[1]
JOB = HERE / "programs" / "00_job.py"

Guess = float | int | str | EllipsisType | None
DAY_H = 24.0  # the training of the lesson's first line, on one GPU
EIGHT = 8
FAR_BELOW = 0.85  # of the speed-up that Amdahl's law expects: more is missing than talk explains

_gpus = len(Machine.here().usable_gpus)
WORLDS = [n for n in (1, 2, 4, 8, 16) if n <= max(_gpus if _gpus >= 2 else Machine.here().cores, 2)]
SETTINGS: dict[str, Any] = {"device": "comparable", "threads": 1 if _gpus < 2 else None, "timeout": 300}


# --- On one rank, and on all ------------------------------------------------------------------------------------------


def run_job(ranks: Sequence[int] = WORLDS) -> Sweep:
    """Run 00_job.py three times on each number of ranks, round by round; on the largest also with the test shared."""
    points = [{"ranks": n, "share_test": False} for n in ranks]
    points += [{"ranks": n, "share_test": True} for n in ranks[-1:] if n > 1]
    return sweep(JOB, over=points, repeats=3, **SETTINGS)


def point(runs: Sweep, ranks: int, shared: bool = False) -> dict[str, Any]:
    """The point of so many ranks, with the test on rank 0 or shared."""
    (found,) = [p for p in runs.points if p["ranks"] == ranks and p.get("share_test", False) == shared]
    return found


def seconds(runs: Sweep, key: str, ranks: int, shared: bool = False) -> Samples:
    """What the runs on so many ranks reported as `key`: "train_s", "test_s" or "job_s"."""
    return runs.samples(key, **point(runs, ranks, shared))


def on_record(runs: Sweep) -> Sweep:
    """The job as it was recorded on a named machine; these runs if nobody has recorded any."""
    return next(iter(recorded.sweeps("00_runs")), runs)


def serial_share(alone: Sweep) -> float:
    """The part of the job's time on one rank that further ranks don't shorten: its test. Recorded, where other programs
    disturbed these runs."""
    trusted = on_record(alone) if alone.disturbed else alone
    train_s, test_s = (seconds(trusted, key, 1).median for key in ("train_s", "test_s"))
    return test_s / (train_s + test_s)


def expected_speedup(alone: Sweep, n: int) -> float:
    """What Amdahl's law says of n ranks, from the runs on one."""
    return predict.amdahl(n, serial_share(alone))


def show_prediction(alone: Sweep) -> None:
    """What one rank says about all."""
    n = WORLDS[-1]
    if why := alone.disturbed:
        say_disturbed(why, "how much of the job is serial")
        say(
            f"Until then we take what was recorded on {_machine(on_record(alone))}: {serial_share(alone):.1%} is"
            f" serial, and Amdahl expects {expected_speedup(alone, n):.2f} times the speed on {n} ranks."
        )
        return
    train_s, test_s = (seconds(alone, key, 1).median for key in ("train_s", "test_s"))
    say(
        f"On one rank: {train_s:.2f} s of training and {test_s:.2f} s of test. So {serial_share(alone):.1%} is serial,"
        f" and Amdahl expects {expected_speedup(alone, n):.2f} times the speed on {n} ranks."
    )


@figure_first
def show_speedup(alone: Sweep, runs: Sweep, guess: Guess = ...) -> Figure:
    """The speed-up over the number of ranks: bet, predicted, measured."""
    n, rate = WORLDS[-1], jobs_per_s(runs)
    measured, expected, why = speedup(runs), expected_speedup(alone, n), disturbed(alone, runs)
    faster = claim(f"{'two' if n == 2 else n} ranks finish the job before one", ahead(runs).unless(why), headline=True)
    if why:
        say_disturbed(why, f"how much faster {n} ranks are", guess, "run the cells of `alone` and `runs` again")
        say(f"{_as_recorded(runs)} Where a speed-up is needed below, we take Amdahl's {expected:.2f}.")
        title = why
    elif faster:
        one_s, all_s = (seconds(runs, "job_s", k).median for k in (1, n))
        said = [
            f"One rank took {one_s:.2f} s, and {n} took {all_s:.2f} s: {measured:.2f} times as fast, where Amdahl"
            f" expected {expected:.2f}."
        ]
        if measured < FAR_BELOW * expected:
            said.append(f"That's far below. {_on_gap(runs)}")
        if measured > 1.05 * expected:
            said.append(
                "That's more than the law allows. Either small pieces suit your cores, or another program slowed the"
                " runs on one rank."
            )
        say(" ".join([*said, bet(guess, measured, **_ON_SPEEDUP)]))
        title = f"{n} ranks finish the job {measured:.2f} times as fast as one"
    else:
        say(
            "Too close to tell: other programs may be using your cores. Close them and run this cell again, or go on."
            f" Where a speed-up is needed below, we take Amdahl's {expected:.2f}."
        )
        title = "This sweep couldn't show a speed-up"
    tested = [run.values("tested") for k in WORLDS for run in runs.at(**point(runs, k))]
    more_checks({"rank 0 tested alone": all(mine[0] > 0 and not any(mine[1:]) for mine in tested)})
    elsewhere = [] if faster else [jobs_per_s(found) for found in recorded.sweeps("00_runs")]
    curve = {k: expected_speedup(alone, k) for k in range(1, max(n, EIGHT) + 1)}
    return figures.speedup(rate, predicted=curve, guess={n: as_number(guess)}, recorded=elsewhere, title=title)


_ON_SPEEDUP: dict[str, Any] = {
    "close": "Well done.",
    "over": "The test and the talking cost more than you thought.",
    "under": "It's better than you feared.",
    "within": 0.06,
    "none": "You made no bet.",
    "kind": "a number, such as 1.7",
}


def _machine(runs: Sweep) -> str:
    return runs.runs[0][0].provenance.machine


def _as_recorded(runs: Sweep) -> str:
    """The speed-up of the recorded job, in a sentence."""
    found = on_record(runs)
    rate = jobs_per_s(found)
    n = max(rate)
    if found is runs:
        return ""
    return f"Recorded on {_machine(found)}: {n} ranks were {rate[n].median / rate[1].median:.2f} times as fast as one."


def gap_in(runs: Sweep) -> str:
    """Where most of the time went that Amdahl's law leaves out on all ranks: "training", "test", or "" where neither
    took longer."""
    n = WORLDS[-1]
    more_s = {
        "training": seconds(runs, "train_s", n).median - seconds(runs, "train_s", 1).median / n,
        "test": seconds(runs, "test_s", n).median - seconds(runs, "test_s", 1).median,
    }
    where = max(more_s, key=lambda part: more_s[part])
    return where if more_s[where] > 0 else ""


def _on_gap(runs: Sweep) -> str:
    """What all ranks took for training and for the test, next to what the law expects of them."""
    n = WORLDS[-1]
    train_ms, one_ms = (seconds(runs, "train_s", k).median * 1e3 for k in (n, 1))
    test_ms, test_one_ms = (seconds(runs, "test_s", k).median * 1e3 for k in (n, 1))
    share = "half" if n == 2 else f"a part in {n}"
    said = f"Training took {train_ms:.0f} ms, where {share} of {one_ms:.0f} is {one_ms / n:.0f}. The test took"
    said += f" {test_ms:.0f} ms, and {test_one_ms:.0f} on one rank."
    return f"{said} So what's missing is in the {gap_in(runs)}." if gap_in(runs) else said


def ahead(runs: Sweep) -> Verdict:
    """Whether all ranks finish the job before one does. Where one was faster, the machine was too busy to tell."""
    verdict = seconds(runs, "job_s", WORLDS[-1]).faster_than(seconds(runs, "job_s", 1)).unless(runs.disturbed)
    return Verdict("not shown", verdict.detail) if verdict.status == "contradicted" else verdict


def jobs_per_s(runs: Sweep) -> dict[int, Samples]:
    """Rates over the number of ranks."""
    counts = sorted({point["ranks"] for point in runs.points})
    return {k: seconds(runs, "job_s", k).map(lambda s: 1 / s, "jobs_per_s") for k in counts}


def speedup(runs: Sweep) -> float:
    """Times as fast on all ranks as on one."""
    rate = jobs_per_s(runs)
    return rate[WORLDS[-1]].median / rate[1].median


@figure_first
def show_shared_test(runs: Sweep) -> Figure:
    """The same job with the test on rank 0, and shared by all."""
    n = WORLDS[-1]
    rows = {
        f"{n} ranks, {name}": {key: seconds(runs, f"{key}_s", n, shared) for key in ("train", "test")}
        for name, shared in (("test on rank 0", False), ("test shared", True))
    }
    before_s, after_s = (seconds(runs, "test_s", n, shared) for shared in (False, True))
    job_s = {name: sum(part.median for part in parts.values()) for name, parts in rows.items()}
    job_before_s, job_after_s = job_s.values()
    verdict = after_s.faster_than(before_s)
    if verdict.status == "contradicted":  # ranks that have to share a core gain nothing by sharing the work
        verdict = Verdict("not shown", f"{verdict.detail}; did each rank have a core to itself?")
    why = runs.disturbed
    faster = claim("the test is faster when the ranks share it", verdict.unless(why))
    if why:
        say_disturbed(why, "what sharing the test gains", again="run the cell of `runs` again")
        rows |= _recorded_rows(on_record(runs))
    elif faster:
        before_ms, after_ms = before_s.median * 1e3, after_s.median * 1e3
        one_s = seconds(runs, "job_s", 1).median
        then = f" {speedup(runs):.2f} times the speed of one rank becomes {one_s / job_after_s:.2f}."
        say(
            f"Shared, the test takes {after_ms:.0f} ms instead of {before_ms:.0f}. The whole job takes"
            f" {job_after_s * 1e3:.0f} ms instead of {job_before_s * 1e3:.0f}."
            + then
            * (ahead(runs).status == "shown" and job_after_s < job_before_s)
        )
        say("The training is the same in both: where its bars differ, that's the machine.")
    else:
        say("Too close to tell: the test is short, and your machine has other things to do.")
    alone, shared = ({sum(run.values("tested")) for run in runs.at(**point(runs, n, s))} for s in (False, True))
    more_checks({"shared or not, as many images were tested": alone == shared and len(alone) == 1})
    title = (
        f"Shared, the test takes {after_s.median * 1e3:.0f} ms instead of {before_s.median * 1e3:.0f}"
        if faster
        else "Too close to tell what sharing the test gains"
    )
    return figures.parts(rows, title=why or title)


def _recorded_rows(found: Sweep) -> dict[str, dict[str, Samples]]:
    """The bars of recorded runs on the most ranks that they had; says on which machine."""
    if found.runs[0][0].provenance.kind != "recorded":
        return {}
    n = max(point["ranks"] for point in found.points)
    before_ms, after_ms = (seconds(found, "test_s", n, shared).median * 1e3 for shared in (False, True))
    say(f"Recorded on {_machine(found)}: shared, the test took {after_ms:.0f} ms instead of {before_ms:.0f}.")
    return {
        f"recorded: {n} ranks, {name}": {key: seconds(found, f"{key}_s", n, shared) for key in ("train", "test")}
        for name, shared in (("test on rank 0", False), ("test shared", True))
    }


# --- On eight GPUs ----------------------------------------------------------------------------------------------------


@functools.cache
def emulated_s() -> dict[tuple[int, bool], tuple[float, float]]:
    """Seconds of training and of test on 1 and 8 emulated A100, with the test on rank 0 and shared. Rank 0 is
    emulated; the others wait for it, or do the same."""
    found = {}
    for gpus, shared in ((1, False), (EIGHT, False), (EIGHT, True)):
        options = ["--steps", 4] + ["--share-test"] * shared
        run = launch(JOB, 1, cluster="8xA100", one_of=gpus, args=options, quiet=True, timeout=120)
        found[gpus, shared] = run.value("train_s"), run.value("test_s")
    return found


def hours(gpus: int, shared: bool = False) -> dict[str, float]:
    """The day of the lesson's first line on emulated GPUs, part by part."""
    found = emulated_s()
    scale = DAY_H / sum(found[1, False])
    return dict(zip(("train", "test"), (scale * s for s in found[gpus, shared]), strict=True))


@figure_first
def show_eight(guess: Guess = ..., alone: Sweep | None = None) -> Figure:
    """The 24 hours on one emulated GPU, on eight with the test on rank 0, and with the test shared. `alone` says how
    large the serial part was here."""
    one, rank_0, shared = hours(1), hours(EIGHT), hours(EIGHT, shared=True)
    rank_0_h, shared_h = sum(rank_0.values()), sum(shared.values())
    said = bet(
        guess,
        rank_0_h,
        "You've waited for a rank 0 before.",
        over="it's not as bad as you feared.",
        under="between the two, and better than most.",
        within=0.15,
        traps={
            (0, 3): "For that, every GPU would have to work overtime.",
            (3, shared_h): ", as nearly everybody does, since 24 / 8 = 3.",
        },
        none="You made no bet.",
        kind="a number of hours",
    )
    say(
        f"Eight GPUs need {rank_0_h:.1f} hours: {rank_0['train']:.1f} to train and {rank_0['test']:.1f} to test."
        f" If they share the test, it's {shared_h:.1f}. {said}"
    )
    say(
        f"So eight are {DAY_H / rank_0_h:.1f} times as fast as one and cost {EIGHT * rank_0_h:.0f} GPU hours, where one"
        f" GPU costs {DAY_H:.0f}. With the test shared they're {DAY_H / shared_h:.1f} times as fast, for"
        f" {EIGHT * shared_h:.0f}."
    )
    by_hand_h = one["train"] / EIGHT + one["test"]
    say(
        f"By hand, from one GPU: {one['train']:.1f} hours of training / 8 + {one['test']:.1f} of test ="
        f" {by_hand_h:.1f}. The other {rank_0_h - by_hand_h:.1f} go to smaller pieces, and to ranks that talk."
    )
    if alone is not None:
        share, here = one["test"] / DAY_H, serial_share(alone)
        why = " A device isn't equally fast at training and at testing." if abs(share - here) > 0.03 else ""
        if alone.disturbed:
            say(f"The test is {share:.0%} of the day on an A100. On your device other programs were in the way.")
        else:
            say(f"The test is {share:.0%} of the day on an A100, and {here:.0%} of the job on your device.{why}")
    more_checks(
        {
            "the test takes as long with eight as with one": abs(rank_0["test"] / one["test"] - 1) < 0.02,
            "eight GPUs aren't faster than Amdahl allows": rank_0_h > 0.98 * by_hand_h,
            "sharing the test helps": shared_h < 0.6 * rank_0_h,
        }
    )
    rows = {"1 GPU": one, "8 GPUs, test on rank 0": rank_0, "8 GPUs, test shared": shared}
    title = f"Emulated: {DAY_H:.0f} hours become {rank_0_h:.1f}, or {shared_h:.1f} with the test shared"
    return figures.parts(rows, unit="hours", title=title)
