"""What lesson 12 shows. Each function takes what a cell has run, says in words what came out, and checks it. A run that
needs a framework is None where that isn't installed: then a recording is shown, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Any

import numpy as np

from course_utils import Run, claim, figures, launch, more_checks, recorded
from course_utils.for_lessons import Figure, Program, Words, beside_programs, bet, figure_first, say

from .deeper import WAYS, empty_steps, free_addresses, show_empty, show_other_two, show_sixteen, show_two_workers, ways  # noqa: F401
from .files import FILES, PLAIN, SIXTEEN  # noqa: F401
from .recordings import (
    BATCH,
    EACH,
    EARLY,
    NEAR,
    STEPS,
    apart,
    by_steps,
    frameworks,  # noqa: F401
    here,
    here_or_recorded,
    pictures,
)

REPLICAS = 8  # that section 4 asks about
CALLED = 256  # pictures that TensorFlow's model is asked about
Guess = float | int | str | EllipsisType | None


# --- 1: the program we know -------------------------------------------------------------------------------------------


def show_plain(plain: Run) -> None:
    """That the program to compare with has trained."""
    losses = by_steps(plain)
    n = plain.world_size
    say(f"{len(losses)} steps on {n} ranks, and the loss went from {losses[0]:.3f} to {losses[-1]:.3f}.")
    say(f"In a step, each rank takes {BATCH // n} of the {BATCH} pictures.")


# --- 2: Lightning -----------------------------------------------------------------------------------------------------


def show_order(plain: Run, run: Run | None, guess: Guess = ...) -> Figure | None:
    """Which pictures rank 0 trained on first, and whether the losses are those of DDP with its shuffled ones."""
    found = here_or_recorded("lit", run, "lightning")
    return None if found is None else _show_order(_same_machine(plain, found), found, guess)


def _same_machine(plain: Run, run: Run) -> Run:
    """The DDP run that a curve is compared with: a recording's is the one that was recorded with it."""
    beside = [one for one in recorded.runs("12_plain") if one.provenance.machine == run.provenance.machine]
    return beside[-1] if beside and not here(run) else plain


@figure_first
def _show_order(plain: Run, run: Run, guess: Guess) -> Figure:
    n = run.world_size
    kinds = run.ranks[0].values("kinds")[0]
    asked = [i // EACH for i in range(0, BATCH // n * n, n)]
    gap = apart(run, plain)
    answer = bet(
        guess,
        len(set(kinds)),
        close="you don't trust frameworks.",
        over="It's less.",
        under="It's more.",
        traps={
            len(set(asked)): "So it would be if shuffle=False were still true.",
            2: f"So it would be if rank 0 took the first {len(kinds)}, in order.",
            (0.9 * len(kinds), len(kinds) + 1): "You saw that they're shuffled. By chance, some then share a kind.",
        },
        kind=f"a whole number from 1 to {len(kinds)}",
        most=len(kinds),
        within=0.25,
    )
    shuffled = len(set(kinds)) > 2 * len(set(asked))
    say(f"{len(set(kinds))} kinds{', so they are shuffled' if shuffled else ''}. {answer}")
    say(f"The first {EARLY} losses differ from those of section 1's DDP, which shuffles, too, by {_small(gap)}.")
    _claim("Lightning shuffles a loader that says shuffle=False", shuffled, "Lightning", run)
    if here(run):
        more_checks({"the losses are DDP's, but for rounding": BATCH % n > 0 or gap < NEAR})
    at = range(len(kinds))
    figure = figures.lines(
        {"ideal: as you asked": (at, asked), _named(run, "as they came"): (at, kinds)},
        xlabel="picture of rank 0's first step",
        ylabel="its kind",
        title=f"You asked for {len(set(asked))} kinds in order, and got {len(set(kinds))}",
    )
    came = figure.mpl.axes[0].lines[1]
    came.set(linestyle="none", markevery=None)  # points, as nothing lies between two pictures
    return figure


def _claim(sentence: str, holds: bool, framework: str, *runs: Run, headline: bool = False) -> None:
    """A claim about runs of this machine. A recording proves nothing about it."""
    if all(map(here, runs)):
        claim(sentence, bool(holds), headline=headline)
    else:
        claim(sentence, None, why=f"needs {framework}", headline=headline)


def _named(run: Run, name: str) -> str:
    """A curve's name in a figure, which says if it was recorded."""
    return name if here(run) else f"recorded: {name}"


def _small(gap: float) -> str:
    """A difference of losses: below a millionth it's rounding, and how much of it is chance."""
    return "nothing" if gap == 0 else "less than 1e-6" if gap < 1e-6 else f"{gap:.1g}"


# --- 3: two arguments -------------------------------------------------------------------------------------------------


def show_points(silent: Run | None, guess: Guess = ...) -> None:
    """How many points TensorBoard has of thirty steps."""
    run = here_or_recorded("silent", silent, "lightning")
    if run is None:
        return
    points = len(_points(run)[0])
    answer = bet(
        guess,
        points,
        close="you've looked at an empty TensorBoard before.",
        over="By default it writes after every 50th step, and you have 30.",
        within=0,
        traps={
            STEPS: "One for each step would be natural. By default it writes after every 50th, and you have 30.",
            2: "120 by 50 is 2. But it counts steps, not batches, and you have 30.",
        },
        kind="a whole number, 0 or more",
    )
    say(f"{points or 'None'}. {answer}")
    _claim("thirty steps leave no trace in TensorBoard", points == 0, "Lightning", run)
    if here(run):
        more_checks({f"{4 * STEPS} batches made {STEPS} steps": set(run.values("steps")) == {STEPS}})


def _points(run: Run) -> tuple[list[int], list[float]]:
    return run.ranks[0].values("at")[0], run.ranks[0].values("logged")[0]


def show_curve(plain: Run, every: Run | None) -> Figure | None:
    """What TensorBoard drew, next to DDP's losses."""
    found = here_or_recorded("every", every, "lightning")
    return None if found is None else _show_curve(_same_machine(plain, found), found)


@figure_first
def _show_curve(plain: Run, run: Run) -> Figure:
    at, logged = _points(run)
    whole = by_steps(plain)
    say(
        f"{len(at)} points, one for each step. They jump more than DDP's, because each is the loss of the last of four"
        " batches: a quarter of the step's pictures."
    )
    if here(run):
        more_checks({"a point for each step": len(at) == STEPS})
    return _losses(
        {_named(plain, "DDP, all pictures of a step"): whole, _named(run, "TensorBoard"): np.asarray(logged)},
        "With accumulation, TensorBoard sees a quarter of each step",
    )


def _losses(curves: Mapping[str, np.ndarray], title: str) -> Figure:
    """Curves of losses, on the part of the axis where those lie that are no mistakes: each jag is a batch."""
    figure = figures.lines(
        {name: (range(1, len(curve) + 1), curve) for name, curve in curves.items()},
        xlabel="step",
        ylabel="training loss",
        title=title,
    )
    right = np.concatenate([curve for name, curve in curves.items() if not name.startswith("mistake")])
    margin = (0.5 if len(right) < sum(map(len, curves.values())) else 0.1) * (right.max() - right.min())
    figure.mpl.axes[0].set_ylim(right.min() - 0.1 * (right.max() - right.min()), right.max() + margin)
    return figure


# --- 4 and 5: TensorFlow, and three frameworks ------------------------------------------------------------------------


def show_mirrored(run: Run | None, guess: Guess = ...) -> Figure | None:
    """How many pictures of a batch each of eight replicas gets, and what the trained model says."""
    found = here_or_recorded("mirrored", run, "tensorflow")
    return None if found is None else _show_mirrored(found, guess)


@figure_first
def _show_mirrored(run: Run, guess: Guess) -> Figure:
    parts, copies = run.value("parts"), run.value("copies")
    answer = bet(
        guess,
        parts[0],
        close="you've read what batch() is asked for.",
        over=f"The batch is cut in {len(parts)}.",
        under=f"The batch is cut in {len(parts)}.",
        within=0,
        traps={BATCH: "That's PyTorch's convention. Here, 128 are all replicas' together."},
        kind=f"a whole number from 1 to {BATCH}",
        most=BATCH,
    )
    say(f"{parts[0]} pictures. {answer}")
    say(f"The first kernel has a copy on {' and on '.join(copies)}, and after training they're equal.")
    say(f"The model names {run.value('accuracy'):.0%} of the pictures that it was trained on; chance names 1%.")
    each = BATCH // len(parts)
    cut = parts == [each] * len(parts)
    _claim(f"batch({BATCH}) gives each of {len(parts)} replicas {each} pictures", cut, "TensorFlow", run)
    if here(run):
        more_checks({"all copies of a mirrored variable are equal": run.value("same") is True})
    images, labels = pictures()
    said, truth = run.value("said"), labels[:CALLED].tolist()
    right = [i for i in range(CALLED) if said[i] == truth[i]][:4]
    shown = right + [i for i in range(CALLED) if said[i] != truth[i]][: 8 - len(right)]
    titles = [f"said {said[i]}, is {truth[i]}" for i in shown]
    which = f"{len(right)} that the model names after {STEPS} steps, and {8 - len(right)} that it doesn't"
    return figures.images(images[shown], titles, title=which, columns=4)


def plain_but(line: str, instead: str) -> Run:
    """Section 1's program, with another line in the place of one of its own."""
    copy = beside_programs(PLAIN, "plain_but.py")
    source = copy.read_text(encoding="utf-8")
    if source.count(line) != 1:
        raise ValueError(f"{PLAIN.name} has {source.count(line)} times {line!r}, and one is to be replaced")
    copy.write_text(source.replace(line, instead), encoding="utf-8")
    return launch(copy, "auto", threads=1, quiet=True)


def show_one_curve(
    plain: Run, lit: Run | None, mirrored: Run | None, undivided: Run, in_order: Run, guess: Guess = ...
) -> Figure | None:
    """Two ports, and two mistakes that ports make: how far each is from DDP."""
    one, other = here_or_recorded("lit", lit, "lightning"), here_or_recorded("mirrored", mirrored, "tensorflow")
    if one is None or other is None:
        return None
    return _show_one_curve(plain, one, other, undivided, in_order, guess)


@figure_first
def _show_one_curve(plain: Run, lit: Run, mirrored: Run, undivided: Run, in_order: Run, guess: Guess) -> Figure:
    base = _same_machine(plain, mirrored if here(lit) else lit)
    ran = {"DDP": base, "Lightning": lit, "TensorFlow": mirrored}
    gaps = {name: apart(run, base) for name, run in ran.items()}
    later = abs(by_steps(mirrored) - by_steps(base))
    say(_of_the_division(plain, undivided, guess))
    say(f"In another order, the first loss is off by {abs(by_steps(in_order) - by_steps(plain))[0]:.2g}.")
    say(
        f"The two ports: in {EARLY} steps, Lightning's losses differ from DDP's by {_small(gaps['Lightning'])}, and"
        f" TensorFlow's by {_small(gaps['TensorFlow'])}. Later, rounding alone makes up to {_small(later.max())} (step"
        f" {int(later.argmax()) + 1})."
    )
    words = "three frameworks draw one curve"
    near = max(gaps.values()) < NEAR
    if BATCH % base.world_size:
        claim(words, None, why=f"{BATCH} doesn't divide by {base.world_size} ranks", headline=True)
    else:
        _claim(words, near, "Lightning and TensorFlow", lit, mirrored, headline=True)
    top = 10 * max(by_steps(run).max() for run in ran.values())  # for a loss that isn't a number any more
    mistakes = {"mistake: no division": undivided, "mistake: another order": in_order}
    return _losses(
        {_named(run, name): by_steps(run) for name, run in ran.items()}
        | {name: np.nan_to_num(by_steps(run), nan=top, posinf=top) for name, run in mistakes.items()},
        "Two ports draw DDP's curve, two mistakes don't" if near else "A port that doesn't draw DDP's curve",
    )


def _of_the_division(plain: Run, undivided: Run, guess: Guess) -> str:
    """How soon a division that was forgotten shows."""
    if plain.world_size == 1:
        return "With one rank there's nothing to divide, so the program without the division is right."
    off = abs(by_steps(undivided) - by_steps(plain))[:EARLY]
    at = int(np.argmax(~(off < NEAR)))  # a loss that isn't a number counts
    more_checks({"a missing division shows at once": not off.max() < NEAR})
    answer = bet(
        guess,
        at + 1,
        close="the first loss comes before the first update.",
        over="It's sooner.",
        within=0,
        traps={1: "The first loss is computed before there's any gradient."},
        kind=f"a step, from 1 to {STEPS}",
        positive=True,
        most=STEPS,
    )
    return f"Without the division, step {at + 1} is off by {off[at]:.2g}. {answer}"


# --- 6: break it ------------------------------------------------------------------------------------------------------


def show_resumed(run: Run | None, guess: Guess = ...) -> Figure | None:
    """Which batches a resumed training sees."""
    found = here_or_recorded("resumed", run, "lightning")
    return None if found is None else _show_resumed(found, guess)


def _after_the_resume(run: Run) -> tuple[dict[tuple[int, ...], int], list[dict[str, Any]], list[int]]:
    """By its pictures, the number of each batch of a whole epoch; the records after the resume, and which batch of the
    epoch each of them got, or -1."""
    records = [record for record in run.ranks[0].records if "kinds" in record or "resumed" in record]
    at = next(i for i, record in enumerate(records) if "resumed" in record)
    whole, again = {tuple(r["kinds"]): r["batch"] for r in records[:at]}, records[at + 1 :]
    return whole, again, [whole.get(tuple(r["kinds"]), -1) for r in again]


def _again(run: Run) -> tuple[int, int]:
    """How many batches of an epoch come twice, and how many never, since a resume began the data anew."""
    _, again, batches = _after_the_resume(run)
    first = again[0]["batch"]
    return len(set(batches) & set(range(first))), len(set(range(first, STEPS)) - set(batches))


@figure_first
def _show_resumed(run: Run, guess: Guess) -> Figure:
    whole, again, batches = _after_the_resume(run)
    first = again[0]["batch"]
    answer = bet(
        guess,
        batches[0],
        close="you know what isn't in the file.",
        over="The loader doesn't know that it had begun.",
        within=0,
        traps={first: "So the trainer counts. But the loader begins anew."},
        kind=f"a whole number from 0 to {STEPS - 1}",
        most=STEPS - 1,
    )
    say(f"Batch {batches[0]}, and the trainer calls it batch {first}. {answer}")
    twice, never = _again(run)
    say(f"In this epoch, {twice} batches come twice, and {never} never.")
    anew = batches == list(range(STEPS - first))
    _claim("resumed in mid-epoch, Lightning's trainer begins the data anew", anew, "Lightning", run)
    return figures.lines(
        {
            _named(run, "without a stop"): (sorted(whole.values()), sorted(whole.values())),
            _named(run, "after the resume"): ([r["batch"] for r in again], batches),
        },
        xlabel="batch, as the trainer counts",
        ylabel="batch of the epoch that came",
        title=f"{twice} of {STEPS} batches come twice, and {never} never",
    )


# --- 8 and 9 ---------------------------------------------------------------------------------------------------------


def take_home(name: str) -> Program:
    """One of the files of section 8."""
    (path,) = (path for path in FILES if path.name == name)
    return Program(path)


def what_you_saw(plain: Run, lit: Run | None, mirrored: Run | None, resumed: Run | None) -> Words:
    """The lesson in the reader's own numbers."""
    lines = [f"{plain.world_size} ranks trained {STEPS} steps with DDP."]
    if lit is not None:
        gap = apart(lit, plain)
        kinds = len(set(lit.ranks[0].values("kinds")[0]))
        lines.append(
            f"Lightning's first losses differed from its by {_small(gap)}, and it shuffled your loader: {kinds} kinds"
            " in rank 0's part of a step."
        )
    if mirrored is not None:
        lines.append(
            f"TensorFlow cut a batch of {BATCH} into {mirrored.value('parts')[0]} for each of {REPLICAS} replicas."
        )
    if resumed is not None:
        twice, never = _again(resumed)
        lines.append(f"A training that was resumed in mid-epoch saw {twice} of its batches twice, and {never} never.")
    if lit is None or mirrored is None:
        lines.append("What needs a framework that isn't here, you saw as it was recorded.")
    return Words(lines)
