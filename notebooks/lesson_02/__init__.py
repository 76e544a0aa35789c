"""What lesson 02 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Machine, Run, Samples, Sweep, Verdict, claim, figures, launch, more_checks, recorded
from course_utils.for_lessons import Figure, Program, Words, bet, disturbed, figure_first, say, say_disturbed

from .copies import published_copies, run_copies, show_copies
from .deeper import (
    bar,
    show_ahead,
    show_deaths,
    show_draws,
    show_locks,
    show_overlap,
    show_persistent,
    show_pins,
    show_predicted,
    show_published,
    show_seeds,
    timed_loading,
)

__all__ = [
    "show_seeds",
    "show_pins",
    "show_ahead",
    "TAKE_HOME",
    "published_copies",
    "run_copies",
    "show_copies",
    "show_deaths",
    "show_draws",
    "show_locks",
    "show_overlap",
    "show_persistent",
    "show_predicted",
    "show_published",
    "show_rate",
    "show_starving",
    "show_streams",
    "show_workers",
    "take_home",
    "timed_loading",
    "waiting_share",
    "what_you_saw",
    "with_workers",
    "worker_counts",
    "workers_for",
]

HERE = Path(__file__).resolve().parents[1]
TAKE_HOME = HERE / "take_home" / "02_loading.py"

# ResNet-50, mixed precision, with a loader that keeps up (NVIDIA DALI): NVIDIA/DeepLearningExamples@729963d,
# PyTorch/Classification/ConvNets/resnet50v1.5/README.md
A100_IMAGES_PER_S = 2470
PRICE = 3.0  # dollars an hour for an H100, as in the lesson's first paragraph
NIGHT_H = 12
SEEN = 12  # samples of the stream in section 6

Guess = float | int | str | EllipsisType | None

# --- What the cells of the notebook show ------------------------------------------------------------------------------


def show_rate(alone: Run, guess: Guess = ...) -> None:
    """How many images one core loads in a second, and what that makes of an A100."""
    rate = alone.value("images_per_s")
    cores, busy = math.ceil(A100_IMAGES_PER_S / rate), rate / (rate + A100_IMAGES_PER_S)
    more_checks({"a batch is 20 images of 3 x 224 x 224": alone.value("batch") == [20, 3, 224, 224]})
    if why := alone.disturbed:
        say_disturbed(why, "how many images your core loads", guess, "run both cells again")
        say(f"An A100 trains ResNet-50 on {A100_IMAGES_PER_S:,} a second in mixed precision.")
        return
    said = bet(
        guess,
        rate,
        "you've decoded JPEGs before.",
        over=", as most people do: decoding a JPEG is real work.",
        under="your core is better than you thought.",
        within=(0.67 * rate, 1.5 * rate),
        none="You made no bet. It's more fun with one.",
        kind="a number, such as 1000",
        positive=True,
    )
    say(f"Your core loads {rate:,.0f} images a second. {said}")
    if busy < 0.5:
        say(
            f"An A100 trains ResNet-50 on {A100_IMAGES_PER_S:,} in mixed precision: in this loop it would wait"
            f" {1 - busy:.0%} of the time, and it takes {cores} such cores to feed it."
        )
    else:
        say(
            f"That's a fast core: an A100 trains ResNet-50 on {A100_IMAGES_PER_S:,} in mixed precision, and would wait"
            f" {1 - busy:.0%} of the time."
        )


def worker_counts() -> list[int]:
    """The numbers of workers to try: up to 4 everywhere, 8 and 16 where there are as many cores."""
    cores = Machine.here().cores
    return [0, 1, 2, 4, *(n for n in (8, 16) if n <= cores)]


@figure_first
def show_workers(measured: Sweep, guess: Guess = ...) -> Figure:
    """Images per second over the number of workers. Claims that several load more than the loop alone."""
    counts = sorted({point["workers"] for point in measured.points})
    rate = {n: measured.samples("images_per_s", workers=n) for n in counts}
    cores, best = Machine.here().cores, max(counts, key=lambda n: rate[n].median)
    times, one = rate[best].median / rate[0].median, rate[1].median / rate[0].median
    why = measured.disturbed
    helps = claim(
        "several workers load more images a second than the loop alone",
        _fair(rate[max(best, 2)].more_than(rate[0])).unless(why),
        headline=True,
    )
    if why:
        say_disturbed(why, "how much several workers bring", guess)
        title = why
    elif helps:
        say(f"{bar(best)}: {times:.1f} times the images a second of none, on {_cores(cores)}.")
        over = "The loop takes over each batch, and cores share their memory and clock."
        if cores < 8:
            over = f"Workers need cores, and there are {cores}."
        under, kind = "they do better than that.", "a number, such as 2"
        say(bet(guess, times, "Well judged.", over, under, unit=" times", within=0.25, kind=kind))
        title = f"{bar(best)}: {times:.1f} times the images a second of none"
    else:
        few = "One core can't load twice as fast, however many share it." if cores == 1 else ""
        say(few or "Too close to tell. Other programs may be using your cores: close them and run the cell again.")
        title = f"Images a second on {_cores(cores)}"
    if not why and abs(one - 1) < 0.25:
        say(f"One worker is about as fast as none ({one:.1f} times): the same work, in another process.")
    for told in recorded.sweeps("02_measured"):
        say(_as_recorded(told))
    more_checks({"every number of workers was measured": all(len(samples) > 1 for samples in rate.values())})
    return figures.bars({bar(n): rate[n] for n in counts}, title=title)


def _as_recorded(measured: Sweep) -> str:
    """What the most workers brought on another machine, in a sentence."""
    most = max(point["workers"] for point in measured.points)
    none, many = (measured.samples("images_per_s", workers=n) for n in (0, most))
    cores = many.provenance.machine.split(", ")[1]
    return (
        f"On a machine of {cores} we recorded {many.median:,.0f} images a second with {most} workers,"
        f" {many.median / none.median:.0f} times as many as without."
    )


def with_workers(starved: Run) -> Run:
    """Launch the same training once more, with as many workers as hide the loading, or as the cores allow."""
    workers = workers_for(starved)
    return launch(starved.script, 1, args=[workers], threads=1, timeout=300)


def workers_for(starved: Run, cores: int | None = None) -> int:
    """Enough workers to load a batch in each step's time, but one core less than there are, for the loop."""
    spare = (Machine.here().cores if cores is None else cores) - 1
    load_s, step_s = (_later(starved, name).median for name in ("wait_s", "step_s"))
    return max(1, min(spare, math.ceil(load_s / step_s)))


@figure_first
def show_starving(starved: Run, fed: Run, guess: Guess = ...) -> Figure:
    """What the model waits for, without workers and with them. Claims that with them a step takes less time."""
    workers, device = _workers_of(fed), _device(starved)
    before, after = waiting_share(starved), waiting_share(fed)
    slow, fast, why = _whole_step(starved), _whole_step(fed), disturbed(starved, fed)
    if why:
        say_disturbed(why, f"how long {device} waits", guess, "run both cells again")
    else:
        _say_waiting(starved, workers, guess)
    verdict = _fair(fast.faster_than(slow)).unless(why)
    faster = claim("with workers the same training takes less time", verdict)
    if why:
        title = why
    elif faster:
        say(f"With {bar(workers)} it waits {after:.0%}, and trains {slow.median / fast.median:.1f} times as fast.")
        title = f"Without workers {device} waits {before:.0%} of the time, with {bar(workers)} {after:.0%}"
    else:
        say(
            f"Too close to tell whether {bar(workers)} helped: a worker needs a core of its own, and yours may"
            " be busy. Close other programs and run both cells again, or go on."
        )
        title = f"The same training without and with {bar(workers)}"
    if faster and after > 0.2:
        say(
            "It still waits: workers share the cores with the loop and with each other. Section 7 says what else helps."
        )
    more_checks(
        {
            "both trained on the same number of batches": len(_whole_step(starved)) == len(_whole_step(fed)),
            "only the loop alone was without workers": _workers_of(starved) == 0 < workers,
        }
    )
    return figures.rank_timeline(
        _spans(starved, 0) + _spans(fed, 1), names={0: "no worker", 1: bar(workers)}, title=title
    )


def _say_waiting(starved: Run, workers: int, guess: Guess) -> None:
    """What the loop alone waits for, what that costs, and how many workers would hide it."""
    before = waiting_share(starved)
    said = bet(
        guess,
        100 * before,
        "Good eye.",
        over="your cores are better than their reputation.",
        under="It's easy to miss: the loss falls, and no line of your program says *wait*.",
        unit="%",
        within=(100 * before - 10, 100 * before + 10),
        kind="a percentage, such as 20",
    )
    say(f"Without workers {_device(starved)} waits for images {before:.0%} of the time. {said}")
    lost = before * NIGHT_H * PRICE
    say(f"If your H100 waited as long, that would be {lost:.0f} of the {NIGHT_H * PRICE:g} dollars of a night.")
    load_s, step_s = (_later(starved, name).median for name in ("wait_s", "step_s"))
    needed = max(1, math.ceil(load_s / step_s))
    limit = "" if needed <= workers else f", but {_cores(Machine.here().cores)} have room for {workers}"
    say(
        f"A batch takes {load_s * 1e3:.0f} ms to load and a step {step_s * 1e3:.0f}:"
        f" {bar(needed)} should hide it{limit}."
    )


def _fair(verdict: Verdict) -> Verdict:
    """Workers that have no core to themselves prove nothing."""
    alone = Machine.here().cores == 1
    return Verdict("not shown", verdict.detail) if alone and verdict.status == "contradicted" else verdict


@figure_first
def show_streams(run: Run, guess: Guess = ...) -> Figure:
    """How often each sample of an iterable dataset arrives, as it stands and dealt out."""
    names = ("as it stands", "with get_worker_info")
    seen = {name: [_by_worker(run, name)] for name in names}
    twice, once = (sorted(sum(seen[name][0], [])) for name in names)
    said = bet(
        guess,
        2,
        "Remember it the day you write one.",
        "There are two workers, and each goes through its own copy.",
        within=0,
        traps={1: ", as everybody would. But nobody deals: each worker has a copy, and goes through all of it."},
        none="Would you have noticed?",
        kind="a number of times",
    )
    say(f"{SEEN} samples: {len(twice)} arrive as it stands, {len(once)} when they're dealt out. {said}")
    claim(
        "two workers hand out each sample of an iterable dataset twice, unless they deal it out",
        twice == sorted([*range(SEEN)] * 2) and once == [*range(SEEN)],
    )
    title = f"{SEEN} samples: {len(twice)} arrive as it stands, {len(once)} when dealt out"
    return figures.who_has_what(seen, n_samples=SEEN, row="worker", title=title)


def take_home() -> Program:
    """The whole technique in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(alone: Run, measured: Sweep, starved: Run, fed: Run, streams: Run) -> Words:
    """The lesson in the reader's own numbers."""
    made = len(sum(_by_worker(streams, "as it stands"), []))
    return Words(
        [
            _loading_you_saw(alone, measured),
            _waiting_you_saw(starved, fed),
            f"Two workers made {made} samples of {SEEN}, without an error.",
        ]
    )


def _loading_you_saw(alone: Run, measured: Sweep) -> str:
    if disturbed(alone, measured):
        return "While you loaded images, other programs were in the way. Run sections 1 and 2 again for your rates."
    rate = alone.value("images_per_s")
    counts = sorted({point["workers"] for point in measured.points})
    medians = {n: measured.samples("images_per_s", workers=n).median for n in counts}
    best = max((n for n in counts if n), key=lambda n: medians[n])
    loaded = f"{bar(best)} loaded {medians[best]:,.0f}"
    if medians[best] <= medians[0]:
        loaded = f"workers loaded no more than that ({medians[best]:,.0f} at best)"
    return (
        f"One core loads {rate:,.0f} images a second, and an A100 uses {A100_IMAGES_PER_S:,}. On"
        f" {_cores(Machine.here().cores)}, {loaded}."
    )


def _waiting_you_saw(starved: Run, fed: Run) -> str:
    if disturbed(starved, fed):
        return "While you trained, other programs were in the way. Run section 4 again to see what workers bring."
    slow, fast = _whole_step(starved), _whole_step(fed)
    faster = fast.faster_than(slow).status == "shown"
    gained = f"{slow.median / fast.median:.1f} times as fast" if faster else "too close to tell here"
    return (
        f"A training without workers waited {waiting_share(starved):.0%} of its time. With"
        f" {bar(_workers_of(fed))} it waited {waiting_share(fed):.0%}: {gained}."
    )


# --- For the deeper sections ------------------------------------------------------------------------------------------


def waiting_share(run: Run) -> float:
    """The part of the time in which the loop waited for a batch, after the first epoch, which starts the workers."""
    wait, step = _later(run, "wait_s").values, _later(run, "step_s").values
    return sum(wait) / (sum(wait) + sum(step))


# --- From records to numbers ------------------------------------------------------------------------------------------


def _steps(run: Run) -> list[Mapping[str, Any]]:
    """The steps after the first epoch."""
    return [record for record in run.records if record.get("epoch", 0) > 0]


def _later(run: Run, name: str) -> Samples:
    return Samples([step[name] for step in _steps(run)], name, run.provenance)


def _whole_step(run: Run) -> Samples:
    return Samples([step["wait_s"] + step["step_s"] for step in _steps(run)], "step_s", run.provenance)


def _spans(run: Run, row: int, batches: int = 10) -> list[tuple[int, float, float, str, str]]:
    """Waiting and computing of the first steps of the second epoch."""
    spans, now = [], 0.0
    for number, step in enumerate(_steps(run)[:batches]):
        came, done = now + step["wait_s"], now + step["wait_s"] + step["step_s"]
        spans.append((row, now, came, "waiting", ""))
        spans.append((row, came, done, "compute", f"{number}"))
        now = done
    return spans


def _workers_of(run: Run) -> int:
    """How many workers it had."""
    return int(run.args[-1])


def _device(run: Run) -> str:
    return "the GPU" if run.value("device") == "cuda" else "the model"


def _by_worker(run: Run, name: str) -> list[list[int]]:
    records = [record for record in run.records if record["dataset"] == name]
    return [[i for r in records if r["worker"] == worker for i in r["samples"]] for worker in range(2)]


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count != 1)}"
