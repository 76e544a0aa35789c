"""What lesson 01 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import functools
import math
import os
import shutil
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Provenance, Run, Samples, Verdict, claim, figures, launch, more_checks, published
from course_utils.for_lessons import Figure, Program, Words, as_number, bet, figure_first, readable, say, say_disturbed
from course_utils.predict import BreakEven

from .compile_figures import about, break_even, ratios
from .deeper import (
    before_and_after,
    show_forked,
    show_gpt2,
    show_products,
    show_race,
    show_residuals,
    show_threads,
    show_won,
    times_faster,
)
from .paying import pays_back

__all__ = [
    "before_and_after", "break_even", "pays_back", "ratios", "show_forked", "show_gpt2", "show_products", "show_race",
    "show_residuals", "show_threads", "show_won", "times_faster",
]  # fmt: skip

HERE = Path(__file__).resolve().parents[1]
OPERATORS = HERE / "programs" / "01_operators.py"  # counts what eager mode calls in a training step
TAKE_HOME = HERE / "take_home" / "01_compile.py"
PUBLISHED = "script-ten-products"
NO_COMPILER = "no C++ compiler: nothing was made faster"

Guess = float | int | str | EllipsisType | None

# --- What the cells of the notebook show ------------------------------------------------------------------------------


def compiler() -> str:
    """The C++ compiler that torch.compile would find on a CPU, or nothing."""
    return next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), "")


def backend() -> str:
    """What torch.compile can use here, and what that means: `aot_eager` captures graphs and makes no new code."""
    if found := compiler():
        say(f"C++ compiler: {found}. Good, torch.compile can write new code.")
        return "inductor"
    say(
        "No C++ compiler found, so torch.compile will capture graphs here and write no new code. You can follow all of"
        " the lesson, but nothing will get faster. (Linux: install g++. macOS: xcode-select --install.)"
    )
    return "aot_eager"


@figure_first
def show_painting(eager: Run) -> Figure:
    """The picture after the first and after the last step, and how long a step took."""
    losses, step_s = eager.values("loss"), _later(eager, "eager")
    pictures = eager.values("picture")
    of = "" if eager.disturbed else f" of {readable('s', step_s.median)}"
    say(f"{len(losses)} steps{of}, and the loss fell from {losses[0]:.2g} to {losses[-1]:.2g}.")
    say("It's a sunset, if you squint.")
    more_checks({"it learned to paint": losses[-1] < losses[0] / 2, "two pictures came back": len(pictures) == 2})
    names = ["after one step", f"after {len(losses)} steps"]
    return figures.images(pictures, names, title="64 spots learn to be a sunset", columns=2)


@figure_first
def show_one_line(run: Run, guess: Guess = ...) -> Figure:
    """The first compiled step, and the later ones next to eager mode's."""
    first, later, eager = _first_s(run), _later(run, "compiled"), _later(run, "eager")
    times, written, why = eager.median / later.median, _wrote_code(run), run.disturbed
    verdict = later.faster_than(eager).unless(why) if written else None
    faster = claim("compiled, a training step is faster", verdict, why="" if written else NO_COMPILER, headline=True)
    gap = _loss_gap(run)
    claim("compiled, it's the same training", gap < 1e-2, why=f"the losses differ by {gap:.0e} of their size at most")
    more_checks({"the first step is the slow one": first > 2 * later.median})
    both = f"{readable('s', later.median)} instead of {readable('s', eager.median)}"
    if why:
        say_disturbed(why, "what compiling costs and what it gains", guess, "run both cells again")
        title = why
    else:
        gained = f", and all later ones {both}, {times:.1f} times as fast" if faster else ""
        said = bet(guess, first, **_ON_FIRST, within=(0.5 * first, 2 * first))
        say(f"The first compiled step took {readable('s', first)}{gained}. {said}")
    if written:
        say(
            f"Of the {_operators(run)} operators that eager mode calls in forward and backward, the compiler made"
            f" {run.value('kernels')} kernels, and left the matrix products as they were."
        )
    if faster:
        title = f"Once compiled, a step is {times:.1f} times as fast"
    elif not written:
        title = "Without a C++ compiler nothing gets faster"
    elif not why:
        say(
            f"Too close to tell: {both}. Other programs may be using your cores. Run the cell again, or go on: you've"
            " seen what it costs."
        )
        title = "Compiled and in eager mode, a step takes about as long here"
    return figures.bars({"eager": eager, "compiled": later}, title=title)


_ON_FIRST: dict[str, Any] = {
    "close": "you've waited for a compiler before.",
    "over": "it could have been worse, since large models do take minutes.",
    "under": "a C++ compiler has to start, or Triton's on a GPU, and that surprises everybody.",
    "unit": " s",
    "none": "You made no bet. It's more fun with one, and you remember more.",
    "kind": "a number of seconds",
    "positive": True,
}


@figure_first
def show_break_even(run: Run, guess: Guess = ...) -> Figure:
    """After how many steps the compile time is paid back, as a line through what was measured has it."""
    model = _paid(run)
    curves = [_total(run, name) for name in ("eager", "compiled")]
    if run.disturbed:
        say_disturbed(run.disturbed, _AFTER_HOW_MANY, guess, "run the cell of `one_line` again")
        drawn = {
            name: ([n for n, _ in curve], [s for _, s in curve])
            for name, curve in zip(("eager", "compiled"), curves, strict=True)
        }
        return figures.lines(drawn, "steps", "seconds since the first of them began", title=run.disturbed)
    if not math.isfinite(model.calls):
        said = bet(guess, model.calls, close="", kind="a number of steps", positive=True)
        say(f"A compiled step saved nothing here, so nothing pays it back. {said}")
    else:
        divide = "divide what compiling costs by what one step saves."
        said = bet(
            guess,
            model.calls,
            "close enough to plan with.",
            over=f"It comes sooner: {divide}",
            under=f"It comes later: {divide}",
            within=(0.5 * model.calls, 2 * model.calls),
            kind="a number of steps",
            positive=True,
        )
        say(
            f"{readable('s', model.once_s)} / ({readable('s', model.before_s)} - {readable('s', model.after_s)}) is"
            f" about {about(model.calls)} steps, or {readable('s', model.before(model.calls))} of training."
            f" {said}"
        )
        day = 24 * 3600
        say(
            f"In eager mode a day of such training is about {about(day / model.before_s)} steps. Compiled, they take"
            f" {model.after(day / model.before_s) / 3600:.1f} hours."
        )
    more_checks({"each step was counted": len(run.values("step_s", name="compiled")) > 10})
    reach = max(2 * model.calls, 100.0) if math.isfinite(model.calls) else 0
    title = (
        f"Paid back after about {about(model.calls)} steps"
        if math.isfinite(model.calls)
        else "A compiled step saves nothing here"
    )
    guessed = as_number(guess)
    mark = ... if guessed is None else guessed  # None would mean that nobody was asked
    return break_even(curves[0], [curves[1]], model, mark, title=title, reach=reach, unit_name="steps")


_AFTER_HOW_MANY = "after how many steps compiling is paid back"


def paid(run: Run) -> BreakEven | None:
    """What compiling costs, and a step before and after. None where other programs disturbed the run."""
    if run.disturbed:
        say_disturbed(run.disturbed, _AFTER_HOW_MANY, again="run the cell of `one_line` again")
        say("Until then the controls begin at invented numbers.")
        return None
    return _paid(run)


def _paid(run: Run) -> BreakEven:
    """What compiling costs, and a step before and after, as `run` measured them."""
    later = _later(run, "compiled").median
    return BreakEven(max(0.0, _first_s(run) - later), _later(run, "eager").median, later)


def show_breaks(run: Run, guess: Guess = ...) -> None:
    """Into how many graphs each version of the model fell, and at which line."""
    graphs = {name: run.value("graphs", name=name) for name in ("watched", "mended")}
    said = bet(
        guess,
        graphs["watched"],
        "one up to the if, one after it.",
        "There's one up to the if, and one for what comes after it.",
        within=0,
        traps={1: "Python needs the answer to go on, so the graph has to end there."},
        kind="a number of graphs",
    )
    say(f"With the if: {graphs['watched']} graphs. {said}")
    for line in run.value("cuts", name="watched"):
        say(f"Cut at `{line.strip()}`: Python must know which way to go.")
    claim("without the if, forward is one graph", graphs["mended"] == 1)
    more_checks({"the if breaks the graph": graphs["watched"] > 1})


@figure_first
def show_again(run: Run, guess: Guess = ...) -> Figure:
    """How many times the compiler ran so far, step by step, for a batch that changes and for a counter that does."""
    so_far = {name: run.values("compiled", name=name) for name in ("sizes", "counter", "tensor")}
    sizes, counter, tensor = so_far.values()
    steps = len(counter)
    sizes_too = ", as most do, but a second size is enough: the compiler learns that sizes change."
    said = bet(guess, "counter", "you saw it coming.", traps={"sizes": sizes_too}, kind='"sizes" or "counter"')
    say(
        f"{said} {steps} batch sizes: {_times(sizes[-1])}; a counter in Python: {_times(counter[-1])}, and"
        f" from then on step after step in eager mode. The same counter in a tensor: {_times(tensor[-1])}."
    )
    claim("a number that changes costs more than a shape that does", counter[-1] > sizes[-1])
    more_checks(
        {
            "from the second size on, one graph fits all": sizes[-1] == 2,
            "it gives up at the limit": counter[-1] == run.value("limit") < steps,
            "a tensor may change as it likes": tensor[-1] == 1,
        }
    )
    steps_axis = [float(i + 1) for i in range(steps)]
    curves = {
        "another batch size each time": (steps_axis, sizes),
        "self.steps += 1": (steps_axis, counter),
        "the counter, in a tensor": (steps_axis, tensor),
    }
    title = f"One counter, {counter[-1]} compilations; {steps} batch sizes, {sizes[-1]}"
    return figures.lines(curves, "step", "compilations so far", title=title)


def _times(n: int) -> str:
    return "compiled once" if n == 1 else f"compiled {n} times"


@figure_first
def show_classic(run: Run, guess: Guess = ...) -> Figure:
    """TorchScript on ten small products: what scripting them gains, and what its graph still does."""
    ten = {version: run.samples("call_s", version=version) for version in ("eager", "script", "trace")}
    times = ten["eager"].median / ten["script"].median
    script, trace, optimised = (run.value(graph) for graph in ("script", "trace", "optimised"))
    if why := run.disturbed:
        say_disturbed(why, "what scripting gains", guess, "run both cells again")
    else:
        eager_us, script_us = (ten[version].median * 1e6 for version in ("eager", "script"))
        say(
            f"Ten products take {eager_us:.1f} µs in eager mode and {script_us:.1f} µs scripted, {times:.1f} times as"
            f" fast. {bet(guess, times, **_ON_SCRIPT, within=(0.7 * times, 1.4 * times))}"
        )
    say(f"Optimised, the graph still has {optimised.count('aten::mul')} products.")
    few = Verdict("shown" if times < 2 else "not shown", f"{times:.1f} times")
    claim("scripted, ten products are less than twice as fast", few.unless(why))
    more_checks(
        {
            "script keeps the loop": "prim::Loop" in script,
            "trace never saw one": "prim::Loop" not in trace and trace.count("aten::mul") == 10,
            "optimised, all ten products are still there": optimised.count("aten::mul") == 10,
        }
    )
    case = next(case for case in published.cases("times_faster", prefix=PUBLISHED))
    there = {
        f"{name}, published": Samples([case.inputs[key] * 1e-6], "call_s", Provenance("published", case.label))
        for name, key in (("eager", "before_us"), ("script", "after_us"))
    }
    guessed = as_number(guess)
    drawn = {"script": ten["eager"].median / guessed} if guessed else {}
    title = f"Scripted, ten products are {times:.1f} times as fast here; {case.observed} times were published"
    return figures.bars({**ten, **there}, guess=drawn, title=why or title)


_ON_SCRIPT: dict[str, Any] = {
    "close": "well judged.",
    "over": ", but Python is only a part of what a small operation costs.",
    "under": "It's better than you thought.",
    "kind": "a number, such as 3",
    "positive": True,
}


def take_home() -> Program:
    """Compile a training step, and see whether it pays: one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(one_line: Run, breaks: Run, again: Run, classic: Run) -> Words:
    """The lesson in the reader's own numbers."""
    model, first = _paid(one_line), _first_s(one_line)
    saved = model.before_s / model.after_s
    if one_line.disturbed:
        pays = "While you timed one line, other programs were in the way. Run section 2 again to see what it brings."
    elif not _wrote_code(one_line):
        pays = "Without a C++ compiler torch.compile couldn't make anything faster here."
    elif not math.isfinite(model.calls):
        pays = f"One line cost {readable('s', first)} and saved nothing here."
    else:
        pays = (
            f"One line cost {readable('s', first)} once and made each step {saved:.1f} times as fast. It would be"
            f" paid back after about {about(model.calls)} steps."
        )
    return Words(
        [
            pays,
            f"An if on a tensor cut one graph into {breaks.value('graphs', name='watched')}. A counter in Python made"
            f" the compiler start {again.values('compiled', name='counter')[-1]} times, and all batch sizes together"
            f" {again.values('compiled', name='sizes')[-1]} times.",
            _ten_you_saw(classic),
        ]
    )


def _ten_you_saw(classic: Run) -> str:
    if classic.disturbed:
        return "While you timed TorchScript, other programs were in the way. Run section 6 again for its numbers."
    eager_us, script_us = (classic.samples("call_s", version=v).median * 1e6 for v in ("eager", "script"))
    return f"TorchScript's ten products: {eager_us:.1f} µs in eager mode and {script_us:.1f} µs scripted."


# --- From records to numbers ------------------------------------------------------------------------------------------


def _first_s(run: Run) -> float:
    return float(run.values("step_s", name="compiled")[0])


def _later(run: Run, name: str) -> Samples:
    """The steps after the first three, which compile and warm up."""
    return Samples(run.values("step_s", name=name)[3:], "step_s", run.provenance)


def _total(run: Run, name: str) -> list[tuple[float, float]]:
    """Steps, and the seconds since the first began."""
    total, points = 0.0, []
    for i, step_s in enumerate(run.values("step_s", name=name)):
        total += step_s
        points.append((float(i + 1), total))
    return points


def _loss_gap(run: Run) -> float:
    both = zip(*(run.values("loss", name=name) for name in ("eager", "compiled")), strict=True)
    return max(abs(a - b) / abs(a) for a, b in both)


def _wrote_code(run: Run) -> bool:
    """Whether Inductor was there to write kernels."""
    return bool(run.value("kernels"))


@functools.cache
def _counted(script: str) -> int:
    counted = launch(OPERATORS, 1, args=[Path(script).parent], quiet=True, device="cpu")
    return int(counted.value("operators"))


def _operators(run: Run) -> int:
    """How many operators a training step of the lesson's model calls in eager mode."""
    return _counted(run.script)
