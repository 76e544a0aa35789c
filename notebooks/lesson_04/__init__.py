"""What lesson 04 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Run, Samples, claim, figures, launch, more_checks, published, sweep
from course_utils.for_lessons import (
    Figure,
    Program,
    Words,
    as_number,
    bet,
    cluster,
    diff,
    disturbed,
    figure_first,
    say,
    say_disturbed,
)

from .speeds import conclusive, images_per_s, on_record, rate, rates_here, recorded_rates, step_s, when  # noqa: F401

HERE = Path(__file__).resolve().parents[1]
SCALING = HERE / "programs" / "04_scaling.py"  # a training step, timed; also for the deeper sections
TAKE_HOME = HERE / "take_home" / "04_ddp.py"
INFERENCE = HERE / "programs" / "04_inference.py"

WEEK_H = 7 * 24  # the training of the lesson's first paragraph, on one GPU
EIGHT = 8
SHARE = 32  # images of each emulated GPU in a step
ETHERNET = {"count": 8, "device": "A100", "inside": "ethernet25", "label": "8xA100 over Ethernet"}
_ETHERNET_BPS = cluster(ETHERNET).inside.busbw_Bps

Guess = float | int | str | EllipsisType | None

# --- What the cells of the notebook show ------------------------------------------------------------------------------


def show_sum(run: Run, guess: Guess = ...) -> None:
    """What `all_reduce` left on every rank, and the reader's guess."""
    n, held = run.world_size, run.values("total")
    total = n * (n + 1) / 2
    said = bet(
        guess,
        total,
        "You knew.",
        "Each rank brings one tensor, and each gets the sum of all of them.",
        within=0,
        traps={1: "That's what rank 0 brought, and it's overwritten: the sum arrives in place, on every rank."},
        none="You made no bet. It's more fun with one, and you remember more.",
    )
    say(f"{_everybody(n)} {total:g}: {' + '.join(str(r + 1) for r in range(n))}. {said}")
    more_checks({"all ranks hold the same sum": held == [total] * n})


@figure_first
def show_training(plain: Run, ddp: Run) -> Figure:
    """The loss of both trainings over time. Claims that several ranks train faster, and that no image was left out."""
    n, alone_s, together_s = ddp.world_size, step_s(plain), step_s(ddp)
    times = alone_s.median / together_s.median
    seen = _indices(ddp)
    images, dealt = sum(plain.values("images")) // len(seen), sum(map(len, seen[0]))
    why = disturbed(plain, ddp)
    faster = claim("several ranks train faster than one", together_s.faster_than(alone_s).unless(why), headline=True)
    used = sum(ddp.values("images")) == len(seen) * dealt
    whole = all(set(sum(epoch, [])) == set(range(images)) for epoch in seen) and used and dealt - images < n
    claim("every image had its turn in every epoch", whole, why=f"{images:,} images, {dealt - images} of them twice")
    before, after = (_losses(run) for run in (plain, ddp))
    change = diff(plain.script, ddp.script)
    more_checks(
        {
            "most lines stayed as they were": change.kept > 2 * change.removed,
            "all ranks took equally many steps": len({len(r.values("loss")) for r in ddp.ranks}) == 1,
            "each epoch had an order of its own": all(a != b for a, b in zip(seen, seen[1:], strict=False)),
            "no image is on two ranks but for the padding": all(_repeated(e) <= dealt - images for e in seen),
            "one rank learned": _mean(before[-10:]) < _mean(before[:10]),
            "several ranks learned": _mean(after[-10:]) < _mean(after[:10]),
        }
    )
    if why:
        say_disturbed(why, f"how much faster {n} ranks are", again="run the cells of `plain` and `ddp` again")
        say(on_record())
    elif faster:
        steps = f"the same {len(after)} steps" if len(after) == len(before) else f"{len(after)} steps"
        say(f"You just trained one model on {n} processes, {times:.1f} times as fast, in {steps}.")
        title = f"{n} ranks: the same steps, {times:.1f} times as fast"
    else:
        say(
            "Too close to call. Other programs may be using your cores: close them and run both cells again, or go on."
            " Nothing below needs this number."
        )
        title = f"One rank or {n}: no clear difference on this machine"
    if dealt > images:
        say(f"{images:,} images don't divide by {n}, so {dealt - images} of them came twice in each epoch.")
    if why:
        return figures.speedup(rates_here(plain, ddp), recorded=recorded_rates(), title=why)
    names = {"one rank": plain, f"{n} ranks": ddp}
    return figures.lines({k: _curve(run) for k, run in names.items()}, "seconds", "training loss", title=title)


def show_twin(run: Run, guess: Guess = ...) -> None:
    """How far the DDP model and its twin are from each other after the last step, and what became of the copies that
    nothing kept in step."""
    steps = sorted(set(run.values("step")))
    gaps = [max(run.values("gap", step=i)) for i in steps]
    sums = [list(zip(*run.values("sums", step=i), strict=True)) for i in steps]  # of all ranks: with DDP, without it
    said = bet(
        guess,
        gaps[-1],
        "rounding is all that's left.",
        "It's far less, because only rounding is left: the same sums in another order.",
        within=(0, 1e-9),
        traps={0: ", and that's nearly it: the same numbers, added in another order, round differently."},
        none="Would you have guessed so little?",
        kind="a number, such as 1e-3",
    )
    say(f"After {len(steps)} steps the two models differ by {gaps[-1]:.0e} at most. {said}")
    claim("DDP goes where one process goes with the whole batch, to rounding", gaps[-1] < 1e-9)
    with_it, _, without = zip(*run.values("losses", step=steps[-1]), strict=True)
    say(
        f"And the copies without the wrapper? On the ranks their losses are {_few(without, '.2f')}, where DDP's are"
        f" {_few(with_it, '.2f')}. They look as good. But add up the weights of each rank's copy, and you get"
        f" {_few(sums[-1][1], '.3f')}."
    )
    claim("without the wrapper every rank trains a model of its own", len(set(sums[-1][1])) == run.world_size)
    more_checks(
        {
            **{
                f"after step {i + 1} all ranks hold the same weights": len(set(w)) == 1 for i, (w, _) in enumerate(sums)
            },
            "the weights moved": len({w[0] for w, _ in sums}) == len(sums),
        }
    )


def _few(numbers: Sequence[float], form: str) -> str:
    shown = [format(x, form) for x in numbers[:4]]
    return ", ".join(shown) + ", ..." if len(numbers) > 4 else " and ".join([", ".join(shown[:-1]), shown[-1]])


@figure_first
def show_eight(plain: Run, ddp: Run, guess: Guess = ...) -> Figure:
    """Eight emulated A100, over NVLink and over Ethernet, next to what ran here and what others published."""
    near, far, nbytes = _emulated()
    times, slow = near[8].median / near[1].median, far[8].median / far[1].median
    week = {"NVLink": WEEK_H / times, "Ethernet": WEEK_H / slow}
    enough = [f"{h:.0f} hours over {link}, {_to_spare(h)}" for link, h in week.items()]
    say(f"Over Ethernet, eight A100 train {slow:.1f} times as fast as one. {bet(guess, slow, **_ON_ETHERNET)}")
    why = disturbed(plain, ddp)
    if why:
        say(f"{why}, so your machine's own points say nothing. Next to them are the recorded ones.")
    say(f"Your week of training takes {', and '.join(enough)}.")
    compute_s, on_paper = SHARE / far[1].median, step_on_paper(SHARE / far[1].median, nbytes, _ETHERNET_BPS)
    say(
        f"On paper: each GPU sends 2 x 7/8 of its {nbytes / 1e6:.0f} MB of gradients. At {_ETHERNET_BPS / 1e9:.1f} GB/s"
        f" (90% of the line) that takes {(on_paper - compute_s / 3) * 1e3:.1f} ms. Computing takes"
        f" {compute_s * 1e3:.1f} ms, a third of it forward. So a step takes about"
        f" {compute_s / 3 * 1e3:.1f} + {(on_paper - compute_s / 3) * 1e3:.1f} ="
        f" {on_paper * 1e3:.1f} ms, and eight GPUs are 8 x {compute_s * 1e3:.1f} / {on_paper * 1e3:.1f} ="
        f" {EIGHT * compute_s / on_paper:.1f} times as fast as one."
    )
    cases = published.cases("ddp_overlap")
    lowest = min(point.speedup for point in published.ddp_scaling())
    if (hours := WEEK_H / lowest) > 24:
        say(f"And with the lowest of the published ones, {lowest:.2f} times: {hours:.1f} hours. Just too long.")
    links = sorted(case.inputs["busbw_GBps"] for case in cases)
    waits = sorted(case.inputs["accum"] for case in cases if case.inputs["accum"] > 1)
    say(
        f"The published points are from servers whose links carry {links[0]} to {links[-1]} GB/s. Those of BERT also"
        f" sum only once in {waits[0]} to {waits[-1]} forward and backward passes."
    )
    more_checks(
        {
            "on paper it's the same to a fifth": abs(EIGHT * compute_s / on_paper / slow - 1) < 0.2,
            "eight A100 are more than 1.5 times as fast over NVLink as over Ethernet": times > 1.5 * slow,
            "over NVLink most of the eight is left": times > 6,
            "more GPUs are faster, over either link": all(
                s[2 * k].median > s[k].median for s in (near, far) for k in (1, 2, 4)
            ),
        }
    )
    title = f"Eight emulated A100: {times:.1f} times one over NVLink, {slow:.1f} times over Ethernet"
    return figures.speedup(
        rates_here(plain, ddp),
        guess={EIGHT: as_number(guess)},
        recorded=recorded_rates() if why else [],
        published=published.ddp_scaling(),
        emulated=[near, far],
        title=title,
    )


_ON_ETHERNET: dict[str, Any] = {
    "close": "you could plan a cluster.",
    "over": "as most people, who don't expect the sum of the gradients to cost that much.",
    "under": "it's better than you feared, since DDP sums while backward still runs.",
    "kind": "a number between 1 and 8",
}


def _to_spare(hours: float) -> str:
    return f"{24 - hours:.0f} hours to spare" if hours <= 24 else f"{hours - 24:.0f} hours too long"


def step_on_paper(compute_s: float, nbytes: int, link_Bps: float, n: int = EIGHT) -> float:
    """Seconds of a DDP step: its computing, or forward (a third of it) and then the sum of `nbytes` over `n` GPUs."""
    return max(compute_s, compute_s / 3 + 2 * (n - 1) / n * nbytes / link_Bps)


@functools.cache
def _emulated() -> tuple[dict[int, Samples], dict[int, Samples], int]:
    """Images per second of 1, 2, 4 and 8 emulated A100, over NVLink and over Ethernet, and the gradients' bytes."""
    over: dict[str, Sequence[Any]] = {"cluster": ["8xA100", ETHERNET], "one_of": [1, 2, 4, 8]}
    found = sweep(SCALING, over, repeats=1, args=["--batch-size", SHARE, "--steps", 1])
    near, far = (
        {k: rate(found.samples("step_s", cluster=cluster, one_of=k), k * SHARE) for k in (1, 2, 4, 8)}
        for cluster in ("8xA100", ETHERNET)
    )
    return near, far, round(found.samples("nbytes", cluster="8xA100", one_of=8).median)


def without(run: Run, line: str) -> Run:
    """Launch the program of `run` once more, without one of its lines."""
    return changed(run, {line: "pass"})


def changed(run: Run, replacements: Mapping[str, str]) -> Run:
    """Launch a changed copy of the program of `run`, in a folder of its own. Raises ValueError where a text to replace
    isn't in the program exactly once."""
    script = Path(run.script)
    text = script.read_text(encoding="utf-8")
    for old, new in replacements.items():
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is in the program {text.count(old)} times, and should be there once")
        text = text.replace(old, new)
    folder = Path(tempfile.mkdtemp(prefix="changed-", dir=script.parent))  # its checkpoint replaces nobody's
    copy = folder / script.name
    copy.write_text(text, encoding="utf-8")
    return launch(copy, "auto", threads=1, timeout=300, quiet=True)


def tested(run: Run) -> Run:
    """One process that loads what a run of the trainer saved, tests it, and reports what it found."""
    weights = Path(run.script).with_name("ddp.pt")
    return launch(INFERENCE, 1, args=[weights], quiet=True, timeout=300, device="comparable")


@figure_first
def show_order(ddp: Run, forgot: Run, guess: Guess = ...) -> Figure:
    """Which images the ranks began each epoch with, without and with `set_epoch`, and what the loss said."""
    good, bad = _indices(ddp), _indices(forgot)
    with_it, without_it = (_curve(run)[1][-1] for run in (ddp, forgot))
    said = bet(
        guess,
        "nothing",
        ", and nothing tells you.",
        traps={
            "error": ", and hoped for one. There's none: to the sampler it's simply always epoch 0.",
            "loss": ", and hoped that it would tell. Would you stop a training for a difference like that?",
        },
        none="Would you have noticed?",
        kind='"error", "loss" or "nothing"',
    )
    say(f"The loss at the end: {with_it:.2f} with it, {without_it:.2f} without. {said}")
    same = all(order == bad[0] for order in bad)
    claim("without set_epoch every epoch has the same order", same and len(bad) > 1)
    more_checks(
        {
            "with set_epoch each epoch has another": all(a != b for a, b in zip(good, good[1:], strict=False)),
            "no rank failed without it": forgot.ok,
            "nothing was printed without it": not any(forgot.log(r).strip() for r in range(forgot.world_size)),
        }
    )
    begins = {
        name: [[rank[:6] for rank in epoch] for epoch in orders]
        for name, orders in (("without set_epoch", bad), ("with set_epoch", good))
    }
    return figures.who_has_what(begins, title="The first six images of each rank, without and with set_epoch")


@figure_first
def show_checkpoint(together: Run) -> Figure:
    """Count once more in one process that knows nothing of DDP, and look at ten of its answers."""
    counted, of = together.value("correct", rank=0), together.value("of")
    alone = tested(together)
    correct = alone.value("correct")
    say(
        f"{together.world_size} ranks together: {counted:,} of {of:,} right ({counted / of:.1%}). One process, with the"
        f" same file: {correct:,}."
    )
    claim("one process counts what all ranks counted together", abs(counted - correct) <= 2)  # a GPU may round a tie
    more_checks({"every rank knows the count": len(set(together.values("correct"))) == 1})
    from course_utils.workloads import image_set

    test_set = image_set(split="test", pixels=alone.value("pixels"))
    chosen, found = alone.value("chosen"), alone.value("found")
    names = [
        (test_set.classes[int(test_set.labels[i])], test_set.classes[k]) for i, k in zip(chosen, found, strict=True)
    ]
    return figures.images([test_set.picture(i) for i in chosen], names)


def take_home() -> Program:
    """The whole technique in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(plain: Run, ddp: Run, same: Run, together: Run) -> Words:
    """The lesson in the reader's own numbers."""
    change, n = diff(plain.script, ddp.script), ddp.world_size
    alone_s, together_s = step_s(plain), step_s(ddp)
    near, far, _ = _emulated()
    faster = together_s.faster_than(alone_s).status == "shown"
    measured = (
        f"On {n} ranks it was {alone_s.median / together_s.median:.1f} times as fast."
        if faster
        else f"Whether {n} ranks were faster was too close to call here."
    )
    if disturbed(plain, ddp):
        measured = (
            f"While you timed it, other programs were in the way: run section 2 again to see what {n} ranks bring."
        )
    return Words(
        [
            f"You turned a training loop for one device into one for any number: {change.added} lines added,"
            f" {change.removed} removed, {change.kept} kept. {measured}",
            f"It's still the same training. Five steps ended {max(same.values('gap')):.0e} away from one process with"
            f" the whole batch, and {n} ranks counted {together.value('correct', rank=0):,} right answers, as one"
            " process did.",
            f"Eight emulated A100 are {near[8].median / near[1].median:.1f} times as fast as one over NVLink, and"
            f" {far[8].median / far[1].median:.1f} times over Ethernet.",
        ]
    )


def mean_loss(run: Run, steps: int) -> list[float]:
    """The loss averaged over the ranks, and over every few steps."""
    losses = _losses(run)
    return [_mean(losses[i : i + steps]) for i in range(0, len(losses) - steps + 1, steps)]


# --- From records to numbers ------------------------------------------------------------------------------------------


def _everybody(n: int) -> str:
    return "Both ranks hold" if n == 2 else f"All {n} ranks hold"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _losses(run: Run) -> list[float]:
    """One a step, averaged over the ranks."""
    return [_mean(step) for step in zip(*(rank.values("loss") for rank in run.ranks), strict=True)]


def _curve(run: Run, steps: int = 6) -> tuple[list[float], list[float]]:
    return when(run)[steps - 1 :: steps], mean_loss(run, steps)


def _indices(run: Run) -> list[list[list[int]]]:
    """For each epoch and rank, the numbers of its images, in their order."""
    return [run.values("indices", epoch=epoch) for epoch in sorted(set(run.values("epoch")))]


def _repeated(epoch: Sequence[Sequence[int]]) -> int:
    """How many more times than once the images of an epoch were dealt."""
    return sum(count - 1 for count in Counter(i for rank in epoch for i in rank).values())
