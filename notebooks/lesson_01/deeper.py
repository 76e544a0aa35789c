"""What the deeper sections of lesson 01 show: TorchScript's winners and losers, threads, and compiling predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import EllipsisType

from course_utils import Provenance, Run, Samples, Verdict, claim, figures, launch, more_checks, published, recorded
from course_utils.for_lessons import Figure, bet, figure_first, say, say_disturbed
from course_utils.predict import BreakEven, crossing

from .compile_figures import Points, break_even, ratios

PRODUCTS, GPT2 = (Path(__file__).resolve().parents[1] / "programs" / f"01_{name}.py" for name in ("products", "gpt2"))
NAMES = {
    "fp32": "float32",
    "tf32": "TF32",
    "bf16": "bfloat16",
    "compiled": "compiled",
    "flash": "fused attention",
    "vocabulary": "50,304 tokens",
}

Guess = float | int | EllipsisType | None


def times_faster(run: Run, case: str, version: str) -> Samples:
    """Eager time over this version's, one ratio for each turn."""
    before, after = (run.samples("call_s", case=case, version=v).values for v in ("eager", version))
    return Samples(b / a for b, a in zip(before, after, strict=True))


@figure_first
def show_gpt2(guess: Guess = ...) -> Figure:
    """A step of GPT-2 on one A100, change by change: published, and emulated by a program that compiles nothing. And
    what the same steps took on one H200."""
    every = published.load(published.EMULATED)
    cases = [case for case in every if case.cls == "language_model" and case.inputs["cluster"] == "1xA100"]
    h200 = {case.inputs["case"]: case.observed for case in every if case.cls == "real" and case.unit == "ms"}
    run = launch(GPT2, 1, args=[case.inputs["case"] for case in cases], cluster="1xA100", quiet=True)
    took = {case.id.split("-")[1]: run.value("step_s", case=case.inputs["case"]) * 1e3 for case in cases}
    seen = {case.id.split("-")[1]: case.observed for case in cases}
    gain = seen["bf16"] / seen["compiled"]
    said = bet(
        guess,
        gain,
        "you've seen where its time goes.",
        over="Its products of matrices were fast before, and they take as long as ever.",
        under="Attention keeps a matrix of 1,024 x 1,024 for each head, and eager mode reads and writes it six times.",
        none="More than the paper's 1.41, since this one isn't fused by hand.",
        kind="a number, such as 1.4",
        positive=True,
    )
    say(
        f"Measured: {seen['bf16']:.0f} ms before and {seen['compiled']:.0f} after, {gain:.1f} times as fast. {said} The"
        f" emulated step goes from {took['bf16']:.0f} to {took['compiled']:.0f} ms."
    )
    emulated = ", ".join(f"{ms:.0f} ({NAMES[name]})" for name, ms in took.items())
    say(f"Emulated, in ms: {emulated}.")
    measured = ", ".join(f"{h200[case.inputs['case']]:.0f}" for case in cases)
    odd, even = (h200[f"gpt2-{tokens}:bf16:16:1024:1"] for tokens in (50257, 50304))
    say(
        f"On a real H200 we measured {measured} ms. There the last change matters more if you don't compile:"
        f" {odd:.0f} ms become {even:.0f}."
    )
    worst = max(abs(took[name] / seen[name] - 1) for name in seen)
    more_checks({f"all {len(seen)} steps are emulated within 15%": worst < 0.15})
    by, ours = Provenance("published", "one A100 by A. Karpathy"), Provenance("emulated", "1xA100")
    return figures.bars(
        {NAMES[name]: Samples([ms], "step_ms", by) for name, ms in seen.items()},
        predicted={NAMES[name]: Samples([ms], "step_ms", ours) for name, ms in took.items()},
        unit="ms",
        ylabel="a step of GPT-2 (ms)",
        title=f"GPT-2 on one A100: {seen['fp32']:,.0f} ms at first, {seen['vocabulary']:.0f} at last",
    )


@figure_first
def show_won(run: Run, guess: Mapping[str, Guess]) -> Figure:
    """How many times as fast each function became when it was scripted."""
    gain = {case: times_faster(run, case, "script") for case in guess}
    fast = [case for case in gain if gain[case].q1 >= 4]
    slow = [case for case in gain if gain[case].q3 < 1]
    told = f"faster: {'; '.join(fast)}. Slower: {'; '.join(slow)}"
    both_kinds = len(fast) >= 4 and len(slow) >= 2
    if why := run.disturbed:
        say_disturbed(why, "what became faster", again="run both cells again")
    claim(
        "four of the functions or more are at least 4 times as fast, and two or more are slower",
        Verdict("shown" if both_kinds else "not shown", told).unless(why),
    )
    found = {case: {"script": ratio} for case, ratio in gain.items()}
    return ratios(found, guess=guess, title=why or None)


def before_and_after(run: Run, case: str) -> None:
    """The graph of a function as it was read, and as it was optimised."""
    print("read from the source", run.value("before", case=case), "", sep="\n")
    print("optimised", run.value("after", case=case), sep="\n")


def show_products(won: Run) -> None:
    """How many of the 16 matrix products each compiler leaves, for inference and in training."""
    counted = launch(PRODUCTS, 1, args=[Path(won.script).parent], quiet=True, device="cpu")
    found = {name: counted.value("products", name=name) for name in ("inference", "training")}
    after = won.value("after", case="same product 8 times")
    script = sum(after.count(f"aten::{name}(") for name in ("matmul", "mm", "bmm"))
    say(
        f"The source has 16 matrix products. TorchScript leaves {script}. torch.compile leaves {found['inference']}"
        f" under no_grad, and {found['training']} in the forward pass of a training step."
    )
    more_checks(
        {
            "TorchScript computes the common product once": script == 2,
            "torch.compile computes it once in training": found["training"] == 2,
        }
    )


@figure_first
def show_threads(run: Run, guess: Mapping[str, Guess], cores: int) -> Figure:
    """What a second thread gains, for eager and for scripted code."""
    both = {version: run.samples("gain", version=version) for version in ("eager", "script")}
    if why := run.disturbed:
        say_disturbed(why, "what a second thread gains", again="run both cells again")
    for version in both if not why else ():
        one, two = (run.samples(f"{n}_per_s", version=version).median for n in ("one", "two"))
        say(f"{version}: {one:,.0f} calls a second in one thread, {two:,.0f} in two.")
    enough = cores >= 2 and run.value("gil")
    claim(
        "scripted code gains more from a second thread than eager code",
        both["script"].more_than(both["eager"]).unless(why) if enough else None,
        why="" if enough else "needs two cores" if cores < 2 else "this Python has no lock",
    )
    told = ", ".join(f"{version} {ratio.median:.2f}" for version, ratio in both.items())
    title = why or f"What two threads do, over one: {told}"
    return figures.bars(both, guess=guess, unit="", ylabel="calls a second, two threads over one", title=title)


@figure_first
def show_race(race: Run, model: BreakEven, guess: Guess = ...) -> Figure:
    """The measured crossing of `chain` in eager mode and compiled, next to what was predicted."""
    eager, compiled = _curves(race)
    paid = Samples([crossing(eager, curve) for curve in compiled], "calls", race.provenance)
    met = 0.5 <= paid.median / model.calls <= 2
    if race.disturbed:
        say_disturbed(race.disturbed, "when compiling is paid back", guess, "run the cell of `race` again")
    verdict = Verdict("shown" if met else "not shown", f"{paid.median:.0f} against {model.calls:.0f}")
    why = "" if race.value("writes_code") else "no C++ compiler: nothing was made faster"
    claim(
        "compiling is paid back after as many calls as predicted, within a factor of 2",
        None if why else verdict.unless(race.disturbed),
        why=why,
    )
    steady = _steady(race)
    three_times = steady["compiled 2"].faster_than(steady["eager"], factor=3).unless(race.disturbed)
    claim("the fused chain is at least 3 times as fast as the eager one", None if why else three_times, why=why)
    for told in recorded.runs("01_race"):
        if "no GPU" not in told.provenance.machine:
            say(_as_recorded(told))
    title = race.disturbed or None
    return break_even(eager, compiled, predicted=model, guess=guess, title=title)


def show_residuals(race: Run, model: BreakEven) -> object:
    """Where the prediction was off: the break-even point with one measured number after another."""
    eager, compiled = _curves(race)
    first, steady = Samples([c[0][1] for c in compiled], "first_call_s", race.provenance), _steady(race)
    step_1 = replace(model, once_s=first.median)
    step_2 = replace(step_1, before_s=steady["eager"].median)
    step_3 = replace(step_2, after_s=steady["compiled 2"].median)
    paid = Samples([crossing(eager, curve) for curve in compiled], "calls")
    if why := race.disturbed:
        say_disturbed(why, "where the prediction was off", again="run the cell of `race` again")
    else:
        say(
            f"predicted {model.calls:.0f} calls; with the C of the chain {step_1.calls:.0f}, with its e as well"
            f" {step_2.calls:.0f}, with its c {step_3.calls:.0f}. Measured: {paid.median:.0f}"
        )
    rows = [
        ("compiling, C", model.once_s, first),
        ("eager call, e", model.before_s, steady["eager"]),
        ("compiled call, c", model.after_s, steady["compiled 2"]),
    ]
    return figures.residuals(rows, unit="s", title=why or "Where the prediction was off")


@figure_first
def show_forked(run: Run, cores: int) -> Figure:
    """Two branches one after the other, and forked."""
    turns = {v: run.samples("call_s", version=v) for v in ("in turn", "forked")}
    if why := run.disturbed:
        say_disturbed(why, "what forking gains", again="run both cells again")
    claim(
        "two forked branches end sooner than one after the other",
        turns["forked"].faster_than(turns["in turn"]).unless(why) if cores >= 2 else None,
        why="" if cores >= 2 else "needs two cores",
    )
    share = turns["forked"].median / turns["in turn"].median
    return figures.bars(turns, title=why or f"Forked, both branches take {share:.2f} of the time")


def _as_recorded(race: Run) -> str:
    """When compiling `chain` was paid back on the GPU of another machine, in a sentence."""
    eager, compiled = _curves(race)
    paid = Samples([crossing(eager, curve) for curve in compiled], "calls", race.provenance).median
    before, after = (_steady(race)[version].median * 1e3 for version in ("eager", "compiled 2"))
    gpu = race.provenance.machine.rpartition(" x ")[2]
    return (
        f"Recorded on {gpu}, where the tensor has 64 million numbers: {paid:.0f} calls. Compiling took"
        f" {compiled[-1][0][1]:.2f} s, and a call {before:.1f} ms before and {after:.2f} after."
    )


def _curves(race: Run) -> tuple[Points, list[Points]]:
    """Calls and total seconds: in eager mode, and of each repeat compiled."""

    def curve(version: str) -> Points:
        return list(zip(race.values("calls", version=version), race.values("total_s", version=version), strict=True))

    return curve("eager"), [curve(f"compiled {repeat}") for repeat in range(3)]


def _steady(race: Run) -> dict[str, Samples]:
    """Seconds of a call after the first."""
    versions = ("eager", "compiled 2")
    return {v: Samples(race.values("call_s", version=v)[1:], "call_s", race.provenance) for v in versions}
