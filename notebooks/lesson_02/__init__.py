"""What lesson 02 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import (
    Machine,
    Provenance,
    Run,
    Samples,
    Sweep,
    Verdict,
    claim,
    figures,
    launch,
    more_checks,
    published,
)
from course_utils.figures.canvas import Figure
from course_utils.pages import Program, Words, guessed, say

from .deeper import (
    bar,
    cluster_for_a_gpu,
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
BATCH_MIB = 100  # what the program of section 5 copies
BUSY = 0.3  # cores that other programs used meanwhile
SEEN = 12  # samples of the stream in section 6

Guess = float | int | str | EllipsisType | None

# --- What the cells of the notebook show ------------------------------------------------------------------------------


def show_rate(alone: Run, guess: Guess = ...) -> None:
    """How many images one core loads in a second, and what that makes of an A100."""
    rate = alone.value("images_per_s")
    cores, busy = math.ceil(A100_IMAGES_PER_S / rate), rate / (rate + A100_IMAGES_PER_S)
    say(f"Your core loads {rate:,.0f} images a second. {_on_rate(guess, rate)}")
    if busy < 0.5:
        say(
            f"An A100 trains ResNet-50 on {A100_IMAGES_PER_S:,}. This loop loads, then computes, in turns: it would"
            f" compute {busy:.0%} of the time, and wait for the rest. It takes {cores} such cores to feed it."
        )
    else:
        say(f"That's a fast core: an A100 trains ResNet-50 on {A100_IMAGES_PER_S:,}, and would wait {1 - busy:.0%}.")
    more_checks({"a batch is 20 images of 3 x 224 x 224": alone.value("batch") == [20, 3, 224, 224]})


def _on_rate(guess: Guess, rate: float) -> str:
    if not guessed(guess):
        return "You made no bet. It's more fun with one, and you remember more."
    if not isinstance(guess, (int, float)) or guess <= 0:
        return "Your bet should be a number, such as 1000."
    if 0.67 < guess / rate < 1.5:
        return f"You said {guess:,}: you've decoded JPEGs before."
    if guess > rate:
        return f"You said {guess:,}. Most people do: decoding a JPEG is real work."
    return f"You said {guess:,}: your core is better than you thought."


def worker_counts() -> list[int]:
    """The numbers of workers to try: up to twice the cores, or 16."""
    cores = Machine.here().cores
    return [0, 1, 2, 4, *(n for n in (8, 16) if n <= cores)]


def show_workers(measured: Sweep, guess: Guess = ...) -> Figure:
    """Images per second over the number of workers. Claims that several load more than the loop alone."""
    counts = sorted({point["workers"] for point in measured.points})
    rate = {n: measured.samples("images_per_s", workers=n) for n in counts}
    cores, best = Machine.here().cores, max(counts, key=lambda n: rate[n].median)
    times, one = rate[best].median / rate[0].median, rate[1].median / rate[0].median
    helps = claim(
        "several workers load more images a second than the loop alone",
        _fair(rate[max(best, 2)].more_than(rate[0]), [run for n in counts for run in measured.at(workers=n)]),
        headline=True,
    )
    if helps:
        say(f"{bar(best)}: {times:.1f} times the images a second of none, on {_cores(cores)}.")
        say(_on_times(guess, times, cores))
        title = f"{bar(best)}: {times:.1f} times the images a second of none"
    else:
        few = "One core can't load twice as fast, however many share it." if cores == 1 else ""
        say(few or "Too close to tell. Other programs may be using your cores: close them and run the cell again.")
        title = f"Images a second on {_cores(cores)}"
    if abs(one - 1) < 0.25:
        say(f"One worker is about as fast as none ({one:.1f} times): the same work, in another process.")
    more_checks({"every number of workers was measured": all(len(samples) > 1 for samples in rate.values())})
    return figures.bars({bar(n): rate[n] for n in counts}, title=title)


def _on_times(guess: Guess, times: float, cores: int) -> str:
    if not guessed(guess):
        return ""
    if not isinstance(guess, (int, float)):
        return "Your bet should be a number, such as 2."
    if abs(guess / times - 1) < 0.25:
        return f"You said {guess:g} times. Well judged."
    if guess > times:
        return (
            f"You said {guess:g} times. Workers need cores, and there are {cores}."
            if cores < 8
            else (f"You said {guess:g} times. The loop takes over each batch, and cores share their memory and clock.")
        )
    return f"You said {guess:g} times: they do better than that."


def with_workers(starved: Run) -> Run:
    """Launch the same training once more, with as many workers as hide the loading, or as the cores allow."""
    workers = workers_for(starved)
    return launch(starved.script, 1, args=[workers], threads=1, timeout=300)


def workers_for(starved: Run, cores: int | None = None) -> int:
    """Enough workers to load a batch in each step's time, but one core less than there are, for the loop."""
    spare = (Machine.here().cores if cores is None else cores) - 1
    load_s, step_s = (_later(starved, name).median for name in ("wait_s", "step_s"))
    return max(1, min(spare, math.ceil(load_s / step_s)))


def show_starving(starved: Run, fed: Run, guess: Guess = ...) -> Figure:
    """What the model waits for, without workers and with them. Claims that with them a step takes less time."""
    workers, device = _workers_of(fed), _device(starved)
    before, after = waiting_share(starved), waiting_share(fed)
    say(f"Without workers {device} waits for images {before:.0%} of the time. {_on_share(guess, before)}")
    lost = before * NIGHT_H * PRICE
    say(f"If your H100 waited as long, that would be {lost:.0f} of the {NIGHT_H * PRICE:g} dollars of a night.")
    load_s, step_s = (_later(starved, name).median for name in ("wait_s", "step_s"))
    needed = max(1, math.ceil(load_s / step_s))
    limit = "" if needed <= workers else f", but {_cores(Machine.here().cores)} have room for {workers}"
    say(
        f"A batch takes {load_s * 1e3:.0f} ms to load and a step {step_s * 1e3:.0f}:"
        f" {bar(needed)} should hide it{limit}."
    )
    slow, fast = _whole_step(starved), _whole_step(fed)
    faster = claim("with workers the same training takes less time", _fair(fast.faster_than(slow), [starved, fed]))
    if faster:
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


def _fair(verdict: Verdict, runs: Sequence[Run]) -> Verdict:
    """Workers that had no core to themselves, on a machine with one or one that was busy, prove nothing."""
    busy = Machine.here().cores == 1 or any(run.others and run.others[0] > BUSY for run in runs)
    return Verdict("not shown", verdict.detail) if busy and verdict.status == "contradicted" else verdict


def _on_share(guess: Guess, share: float) -> str:
    if not guessed(guess):
        return ""
    if not isinstance(guess, (int, float)):
        return "Your bet should be a percentage, such as 20."
    if abs(guess - 100 * share) <= 10:
        return f"You said {guess:g}%. Good eye."
    if guess < 100 * share:
        return f"You said {guess:g}%. It's easy to miss: the loss falls, and no line of your program says *wait*."
    return f"You said {guess:g}%: your cores are better than their reputation."


def run_copies(script: Path | str) -> Run:
    """Launch section 5's program on this machine's GPU, or else on an emulated A100."""
    return launch(script, 1, quiet=True, cluster=cluster_for_a_gpu())


def show_copies(run: Run, guess: Guess = ...) -> Figure:
    """How long a batch takes from pageable and from pinned memory, and when the call came back. Copies of an emulated
    GPU take modelled time, so without a GPU of your own the bet is judged by what was published."""
    kinds = ("pageable", "pinned", "pinned, non_blocking")
    took = {kind: run.samples("took_s", what=kind) for kind in kinds}
    back_s, whole_s = run.samples("returned_s", what=kinds[2]).median, took[kinds[2]].median
    emulated = run.provenance.kind == "emulated"
    real = published_copies()
    shown: dict[str, Any] = {} if emulated else dict(took)
    source = Provenance("published", "A100")
    for kind, seconds in real.items():
        shown[kind if emulated else f"{kind}, A100"] = Samples([seconds], "took_s", source)
    times = real["pageable"] / real["pinned"] if emulated else took["pageable"].median / took["pinned"].median
    where = "On an A100, as published," if emulated else "On your GPU"
    say(f"{where} a copy from pageable memory takes {times:.1f} times as long. {_on_copy(guess, times)}")
    say(
        f"That's {BATCH_MIB / 1e3 * 1.048576 / real['pinned']:.0f} GB/s from pinned memory, in a real loop, where the"
        " link could carry 31."
        if emulated
        else f"Published for an A100: {real['pageable'] / real['pinned']:.1f} times."
    )
    device = "Our program ran on an emulated A100, whose copies take modelled time: w" if emulated else "W"
    say(
        f"{device}ith non_blocking=True the call came back after {back_s * 1e3:.2f} ms, and the copy took"
        f" {whole_s * 1e3:.1f} ms{' in our model' * emulated}."
    )
    verdict = None if emulated else took["pinned"].faster_than(took["pageable"])
    claim("a copy from pinned memory takes less time", verdict, why="needs a GPU" if emulated else "")
    more_checks({"non_blocking comes back before the copy is done": back_s < 0.5 * whole_s})
    title = f"{where} pageable memory takes {times:.1f} times as long as pinned"
    return figures.bars(shown, ylabel=f"time to copy {BATCH_MIB} MiB (ms)", title=title)


def _on_copy(guess: Guess, times: float) -> str:
    if not guessed(guess):
        return ""
    if not isinstance(guess, (int, float)):
        return "Your bet should be a number, such as 2."
    if abs(guess / times - 1) < 0.25:
        return f"You said {guess:g}: that's it."
    if guess > times:
        return f"You said {guess:g}. The detour is cheaper than that: it's one more copy, by a CPU that's good at it."
    return f"You said {guess:g}. The CPU has to touch every byte before the GPU gets it."


def published_copies() -> dict[str, float]:
    """Seconds that a batch of 100 MiB takes to an A100, as published: what the epoch took beyond one whose copies
    hide, for each of its ten batches."""
    cases = {case.id.removeprefix("copy-a100-"): case for case in published.cases("copy_pass")}
    hidden = cases["non-blocking"].observed
    return {name: (cases[name].observed - hidden) / cases[name].inputs["copies"] for name in ("pageable", "pinned")}


def show_streams(run: Run, guess: Guess = ...) -> Figure:
    """How often each sample of an iterable dataset arrives, as it stands and dealt out."""
    names = ("as it stands", "with get_worker_info")
    seen = {name: [_by_worker(run, name)] for name in names}
    twice, once = (sorted(sum(seen[name][0], [])) for name in names)
    say(f"{SEEN} samples: {len(twice)} arrive as it stands, {len(once)} when they're dealt out. {_on_twice(guess)}")
    claim(
        "two workers hand out each sample of an iterable dataset twice, unless they deal it out",
        twice == sorted([*range(SEEN)] * 2) and once == [*range(SEEN)],
    )
    title = f"{SEEN} samples: {len(twice)} arrive as it stands, {len(once)} when dealt out"
    return figures.who_has_what(seen, n_samples=SEEN, row="worker", title=title)


def _on_twice(guess: Guess) -> str:
    if not guessed(guess):
        return "Would you have noticed?"
    if guess == 2:
        return "You said twice. Remember it the day you write one."
    if guess == 1:
        return (
            "You said once, as everybody would. But nobody deals: each worker has a copy, and goes through all of it."
        )
    return f"You said {guess}. There are two workers, and each goes through its own copy."


def take_home() -> Program:
    """The whole technique in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(alone: Run, measured: Sweep, starved: Run, fed: Run, streams: Run) -> Words:
    """The lesson in the reader's own numbers."""
    rate = alone.value("images_per_s")
    counts = sorted({point["workers"] for point in measured.points})
    medians = {n: measured.samples("images_per_s", workers=n).median for n in counts}
    best = max((n for n in counts if n), key=lambda n: medians[n])
    faster = _whole_step(fed).faster_than(_whole_step(starved)).status == "shown"
    gained = (
        f"{_whole_step(starved).median / _whole_step(fed).median:.1f} times as fast"
        if faster
        else "too close to tell here"
    )
    loaded = f"{bar(best)} loaded {medians[best]:,.0f}"
    if medians[best] <= medians[0]:
        loaded = f"workers loaded no more than that ({medians[best]:,.0f} at best)"
    made = len(sum(_by_worker(streams, "as it stands"), []))
    return Words(
        [
            f"One core loads {rate:,.0f} images a second, and an A100 eats {A100_IMAGES_PER_S:,}. On"
            f" {_cores(Machine.here().cores)}, {loaded}.",
            f"A training without workers waited {waiting_share(starved):.0%} of its time. With"
            f" {bar(_workers_of(fed))} it waited {waiting_share(fed):.0%}: {gained}.",
            f"Two workers made {made} samples of {SEEN}, without an error.",
        ]
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
