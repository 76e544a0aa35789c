"""What 16 bits bring: a step on emulated GPUs of two generations, on eight of them over Ethernet, and on this
machine."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Provenance, Run, Samples, claim, figures, launch, more_checks, published, recorded
from course_utils.for_lessons import Figure, as_number, bet, figure_first, say, say_disturbed

HERE = Path(__file__).resolve().parents[1] / "programs"
STEPS = HERE / "08_steps.py"
MINE = HERE / "08_here.py"
EIGHT = 8
ETHERNET: dict[str, Any] = {"count": EIGHT, "device": "A100", "inside": "ethernet100", "label": "8xA100 over Ethernet"}
SMALL = ("--batch", 1, 64)  # one short text

Guess = float | int | str | EllipsisType | None


@dataclass(frozen=True)
class Step:
    """A training step: its seconds, and the bytes of a GPU's memory at its fullest moment."""

    s: float
    nbytes: float


@functools.cache
def steps() -> dict[str, dict[str, Step]]:
    """A step of the transformer on an emulated A100, with a small batch as well, and on a T4, in each precision."""
    a100, t4 = ("fp32", "TF32", "bf16"), ("fp32", "bf16", "fp16")
    runs = {
        "A100": launch(STEPS, 1, args=["--ways", *a100], cluster="1xA100", quiet=True),
        "A100, one short text": launch(STEPS, 1, args=["--ways", *a100, *SMALL], cluster="1xA100", quiet=True),
        "T4": launch(STEPS, 1, args=["--ways", *t4], cluster="1xT4", quiet=True),
    }
    return {name: {way: _step(run, way) for way in dict.fromkeys(run.values("way"))} for name, run in runs.items()}


def _on_a_real_h200() -> dict[str, float]:
    """Milliseconds of the same step, by precision."""
    every = published.load(published.EMULATED)
    return {
        case.inputs["case"]: case.observed for case in every if case.id.startswith("real-steps") and case.unit == "ms"
    }


def _step(run: Run, way: str) -> Step:
    return Step(run.samples("step_s", way=way).median, max(run.values("peak_bytes", way=way)))


@figure_first
def show_steps(guess: Guess = ...) -> Figure:
    """How many times as fast a step becomes on two emulated GPUs, by precision; and what that does to memory. And what
    it took on a real H200."""
    found, h200 = steps(), _on_a_real_h200()
    a100, short, t4 = found["A100"], found["A100, one short text"], found["T4"]
    times = a100["fp32"].s / a100["bf16"].s
    left = a100["TF32"].s / a100["bf16"].s
    full, half = a100["fp32"].nbytes, a100["bf16"].nbytes
    answer = bet(
        guess,
        100 * half / full,
        close="you remembered what stays in float32.",
        over="Activations do shrink.",
        under="16-bit copies of the weights come on top, and the sums between blocks stay float32.",
        unit="%",
        within=0.1,
        traps={50: "That's half the bits everywhere. But weights, gradients and Adam's state stay in float32."},
        kind="a percentage, such as 60",
        positive=True,
        most=100,
    )
    say(
        f"{half / full:.0%}: at its fullest moment it holds {half / 1e9:.1f} GB, and {full / 1e9:.1f} in float32."
        f" {answer}"
    )
    say(
        f"A step takes {a100['fp32'].s * 1e3:.0f} ms in float32, {a100['TF32'].s * 1e3:.0f} with TF32 and"
        f" {a100['bf16'].s * 1e3:.0f} with autocast. Compared with TF32 that's a factor of {left:.1f}."
    )
    say(
        f"With one text of 64 tokens, a step takes {short['fp32'].s * 1e3:.1f} ms in float32 and"
        f" {short['bf16'].s * 1e3:.1f} with autocast. There the GPU waits for Python, and casts are more of that."
    )
    say(
        f"On a real H200 we measured {h200['fp32']:.0f} ms in float32, {h200['TF32']:.0f} with TF32 and"
        f" {h200['bf16']:.0f} with autocast: {h200['fp32'] / h200['bf16']:.1f} times as fast, and"
        f" {h200['TF32'] / h200['bf16']:.1f} times TF32."
    )
    claim(
        "on an A100 autocast is over 5 times as fast as float32, and not twice as fast as TF32",
        times > 5 and 1 < left < 2,
    )
    more_checks(
        {
            "with one short text it's no faster": short["fp32"].s < 1.05 * short["bf16"].s,
            "on a T4 fp16 is faster than float32": t4["fp16"].s < t4["fp32"].s,
            "autocast saves memory, and less than half": 0.5 < a100["bf16"].nbytes / a100["fp32"].nbytes < 1,
        }
    )
    bars = {
        "A100, TF32": a100["fp32"].s / a100["TF32"].s,
        "A100, bf16": times,
        "A100, bf16, a short text": short["fp32"].s / short["bf16"].s,
        "T4, bf16": t4["fp32"].s / t4["bf16"].s,
        "T4, fp16": t4["fp32"].s / t4["fp16"].s,
    }
    return figures.bars(
        {name: _emulated(value, f"an {name[:4]}" if name[0] == "A" else "a T4") for name, value in bars.items()},
        unit="",
        ylabel="times as fast as float32",
        title=f"The same line: {times:.1f} times as fast, {left:.1f} times TF32, or slower",
    )


def _emulated(value: float, machine: str) -> Samples:
    return Samples([value], "ratio", Provenance("emulated", machine))


@functools.cache
def eight() -> dict[str, float]:
    """How many times as fast as one A100 eight of them are over Ethernet, by precision."""
    one = steps()["A100"]
    run = launch(STEPS, args=["--ways", *one], cluster=ETHERNET, one_of=EIGHT, quiet=True)
    return {way: EIGHT * step.s / _step(run, way).s for way, step in one.items()}


@figure_first
def show_eight(guess: Guess = ...) -> Figure:
    """Eight A100 over Ethernet, in times of one of them with the same precision."""
    found, one = eight(), steps()["A100"]
    took = {way: EIGHT * one[way].s / times for way, times in found.items()}
    answer = bet(
        guess,
        found["bf16"],
        close="you asked what the messages do.",
        over="The step got shorter, and what has to be sent didn't.",
        under="Part of the sending still hides behind backward.",
        unit=" times",
        traps={(7.0, 8.01): "That's float32's number, and the messages didn't shrink with the step."},
        kind="a number from 1 to 8",
        positive=True,
        most=EIGHT,
    )
    say(f"{found['fp32']:.1f} times in float32, {found['TF32']:.1f} in TF32, and {found['bf16']:.1f} in bf16. {answer}")
    say(f"A step takes {', '.join(f'{s * 1e3:.0f} ms in {way}' for way, s in took.items())}.")
    more_checks(
        {
            "the faster a GPU computes, the worse eight of them scale": found["fp32"] > found["TF32"] > found["bf16"],
            "and still the step with bf16 is the shortest": min(took, key=lambda way: took[way]) == "bf16",
        }
    )
    return figures.bars(
        {way: _emulated(times, "8 A100 over 100 Gbit/s Ethernet") for way, times in found.items()},
        guess={"bf16": as_number(guess, " times")},
        unit="",
        ylabel="times as fast as one of them",
        title=f"Eight A100 over Ethernet: {found['fp32']:.1f} times one in float32, {found['bf16']:.1f} in bf16",
    )


@figure_first
def show_here() -> Figure:
    """A training step of an MLP on this machine, in float32 and under autocast."""
    run = launch(MINE, 1, threads=1, quiet=True)
    half, has = run.value("half"), run.value("has")
    name = {"bfloat16": "bf16", "float16": "fp16"}[half]
    full, mixed = (run.samples("step_s", dtype=dtype) for dtype in ("float32", half))
    times = full.median / mixed.median
    on = "GPU" if run.value("on") == "cuda" else "processor"
    title = f"Here a step takes {mixed.median / full.median:.2g} times as long in {name}"
    if times >= 1:
        title = f"Here a step is {times:.2g} times as fast in {name}"
    if why := run.disturbed:
        say_disturbed(why, f"what {name} brings here")
        title = "Too busy to tell what 16 bits bring here"
    else:
        say(f"A step of an MLP takes {full.median * 1e3:.1f} ms in float32, and {mixed.median * 1e3:.1f} in {name}.")
    if has:
        say(f"For products in {name} your {on} has {' and '.join(has)}.")
    else:
        costs = " It converts, and that costs more than it saves." * (times < 1 and not why)
        say(f"Your {on} shows no instructions for {name}.{costs}")
    return figures.bars({"float32": full, f"autocast to {name}": mixed}, title=title)


def recorded_speedups() -> list[dict[str, Samples]]:
    """How many times as fast a step of each model became in 16 bits, on each machine where somebody recorded it."""
    return [
        {model: _speedup(run, model) for model in dict.fromkeys(run.values("model"))}
        for run in recorded.runs("08_speed")
    ]


def _speedup(run: Run, model: str) -> Samples:
    half = next(dtype for dtype in run.values("dtype") if dtype != "float32")
    pairs = zip(*(run.values("step_s", model=model, dtype=dtype) for dtype in ("float32", half)), strict=True)
    gpu = run.provenance.machine.rpartition(" x ")[2]  # the step knows no more of the machine
    return Samples([before / after for before, after in pairs], "ratio", replace(run.provenance, machine=gpu))
