"""Lesson 10, exercise 4: what shows that a program isn't converted from DDP to FSDP yet."""

from __future__ import annotations

import math
import random
import tempfile
from typing import Any

from ..judging import Answer, Difference, apart, by_rank, gap, left_the_group, one_rank_writes, some
from .cases import SCALES, ConvertCase, convert_cases

ROUNDING = 1e-8  # in double precision right answers differ by about 1e-15, and every mistake here by more than 1e-5
SMALL = 64  # bytes of a sum that isn't one of gradients: a loss, a norm
ROOM = 1.02  # for what lies beside the shards
EXPECTED = "the weights that the DDP program saves"
SAID = {
    r"mixed torch\.Tensor and DTensor": "mixed",
    r"has no attribute 'module'": "module",
    r"Invariant encountered": "outside in",
    r"c10d\.broadcast_": "wrapped",
}
KNOWN = {"own norm": "Each rank clips by the norm of its own shards", "not clipped": "The gradients aren't clipped"}


def judge_convert(answer: Answer) -> list[str]:
    off, shares, sent = [], [], []
    cases = convert_cases(random.Random())
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="course-convert-") as folder:
            given: dict[str, Any] = {"folder": folder, "case": case}
            seen = answer.on_ranks("convert.script", ranks=case[0], said=SAID, given=given)
            shares.append(_held(seen, _words(case)))
            sent.append(_sent(seen, case))
            start = _start(seen, _words(case))
            given |= {"start": start, "seeds": [s["seed"] for s in seen]}
            (twin,) = answer.on_ranks("convert.twin", ranks=1, given=given)
        off.append(_case(seen, twin, case))
    return [
        (
            f"{len(SCALES)} steps on 2 ranks and on 3: the saved weights and the losses are those of the DDP program"
            f" (largest gap {max(off):.0e})"
        ),
        (
            "a rank holds at most "
            + " and ".join(f"{share:.0%}" for share in shares)
            + " of the weights, and as much of each of Adam's averages"
        ),
        f"in a step on 2 ranks {sent[0]}, none larger than a block; no gradient is all-reduced",
        "one rank writes one ordinary file, which loads into the plain model",
    ]


def _words(case: ConvertCase) -> str:
    ranks, blocks, width = case
    return f"{ranks} ranks, {blocks} blocks of width {width}"


# --- what a rank holds ------------------------------------------------------------------------------------------------


def _held(seen: list[dict[str, Any]], words: str) -> float:
    """Which part of the weights the rank with the most of them holds."""
    if any(len(s["calls"]) < 2 for s in seen):
        raise _steps(seen, words)
    if not all(s["held"]["moves"] for s in seen):
        raise Difference(
            "not trained",
            f"When the optimizer makes a step, none of its parameters has a gradient: nothing changes ({words}).",
            "an optimizer of the parameters that the model has, and steps after `backward()`",
        )
    sizes, held = seen[0]["sizes"], [s["held"] for s in seen]
    got = by_rank([f"{h['weights']:,} bytes of weights, {h['averages']:,} of the optimizer" for h in held])
    most = max(h["weights"] for h in held)
    expected = f"{sizes['share']:,} bytes of {sizes['all']:,}, and twice as many of the optimizer"
    if most <= ROOM * sizes["share"] and max(h["averages"] for h in held) <= 2.5 * sizes["share"]:
        return most / sizes["all"]
    whole = held[0]["whole"]
    if whole and most < sizes["all"] and not any(name.startswith("blocks") for name in whole):
        raise Difference(
            "left over",
            f"{some([f'`{name}`' for name in whole])} are whole on every rank, and nobody averages their gradients"
            f" ({words}).",
            expected,
            got,
        )
    raise Difference("whole", f"A rank holds more than its share ({words}).", expected, got)


def _steps(seen: list[dict[str, Any]], words: str) -> Difference:
    counts = [len(s["calls"]) for s in seen]
    return Difference(
        "steps",
        f"The optimizer makes another number of steps than the DDP program ({words}).",
        f"{len(SCALES)}: one for each batch",
        by_rank([f"{count} steps" for count in counts]),
    )


# --- what a rank sends ------------------------------------------------------------------------------------------------


def _gathered(name: str, nbytes: int, ranks: int) -> float:
    """The bytes that lie on a rank after a collective, if it's an all-gather; 0 for any other. The count has the bytes
    that go in and those that come out; for functional collectives only those that go in."""
    if name.startswith("allgather"):
        return nbytes * ranks / (ranks + 1)
    return nbytes * ranks if name.startswith("all_gather") else 0.0


def _sent(seen: list[dict[str, Any]], case: ConvertCase) -> str:
    """How many gathers and reduce-scatters there are in a step."""
    ranks, blocks, _ = case
    words, sizes, steps = _words(case), seen[0]["sizes"], seen[0]["calls"]
    types = [name for name in seen[0]["types"] if name != "float64"]
    if types:
        raise Difference(
            "another type",
            f"The blocks compute with weights in {some(types)} ({words}).",
            "float64, as the model has them",
        )
    summed = max(sum(n > SMALL for name, n in step if name.startswith(("allreduce", "all_reduce"))) for step in steps)
    if summed:
        raise Difference(
            "all-reduce",
            f"In a step {summed} tensors are all-reduced that are larger than a loss ({words}).",
            "gradients are reduce-scattered, by `fully_shard`, and by nobody else",
        )
    gathers = [[size for name, n in step if (size := _gathered(name, n, ranks)) > SMALL * ranks] for step in steps]
    if (largest := max((size for step in gathers for size in step), default=0.0)) > ROOM * sizes["unit"]:
        raise Difference(
            "one unit",
            f"A gather brings {largest:,.0f} bytes onto every rank, of {sizes['all']:,} in all ({words}).",
            f"at most {sizes['unit']:,}: one block",
        )
    if (kept := max(s["kept"] for s in seen)) > 1:  # the last block may stay, since backward begins there
        raise Difference(
            "kept",
            f"When forward ends, {kept} of {blocks} blocks lie whole on a rank: what was gathered stays until backward"
            f" ({words}).",
            "every block is gathered for forward, dropped, and gathered again for backward",
        )
    most = max(map(len, gathers[1:]))
    if most > 2 * (blocks + 3):  # of the blocks, and of what's left in three parts
        raise Difference(
            "too many",
            f"There are {most} gathers in a step ({words}).",
            f"{2 * blocks + 1}: each block twice, and what's left once",
        )
    scatters = sum(name.startswith("reduce_scatter") for name, _ in steps[-1])
    return f"{most} all-gathers and {scatters} reduce-scatters"


def _start(seen: list[dict[str, Any]], words: str) -> int:
    """The seed with which the DDP program begins: rank 0's."""
    starts = seen[0]["start"]
    if not starts:
        raise Difference(
            "meta",
            f"No model was made with the weights from which the DDP program starts ({words}).",
            "`make_model()` on the CPU, with the program's seed",
        )
    start: int = starts[0]
    return start


# --- the file ---------------------------------------------------------------------------------------------------------


def _case(seen: list[dict[str, Any]], twin: dict[str, Any], case: ConvertCase) -> float:
    """How far the weights in the file are from those of one process."""
    words = _words(case)
    one_rank_writes(seen)
    _file(twin, words)
    off: dict[str, float] = {how: math.inf if value is None else value for how, value in twin["off"].items()}
    if off[""] > ROUNDING and any(len(s["calls"]) != len(SCALES) for s in seen):
        raise _steps(seen, words)
    if off[""] > ROUNDING:
        raise _other_weights(off, [s["start"] for s in seen], words)
    for rank, s in enumerate(seen):
        if gap(s["losses"], twin["losses"]) > ROUNDING:
            _losses(rank, s["losses"], twin["losses"], words)
    left_the_group(seen)
    return off[""]


def _file(twin: dict[str, Any], words: str) -> None:
    found, shapes, names = twin["found"], twin["shapes"], twin["names"]
    if found in ("nothing", "a folder", "something else"):
        raise Difference(
            "no file",
            f"`path` is {found if found != 'nothing' else 'not there'} ({words}).",
            "a file by `torch.save`, with a state_dict in it",
            [found],
        )
    if found == "DTensors":
        raise Difference(
            "shards", f"The file has DTensors, with the shards of one rank ({words}).", "whole, ordinary tensors"
        )
    if twin["off"] is not None:
        return
    if list(shapes) == names:
        raise Difference(
            "shards",
            f"The file has tensors of other shapes than the model ({words}).",
            "whole tensors",
            [some([f"{name} {shape}" for name, shape in shapes.items()], 4)],
        )
    raise Difference("keys", f"A plain model can't load the file ({words}).", some(names, 3), [some(list(shapes), 3)])


def _other_weights(off: dict[str, float], starts: list[list[int]], words: str) -> Difference:
    if off["the start"] == 0:
        return Difference("saved too early", f"The file has the weights of the start ({words}).", EXPECTED)
    if any(start[:1] not in ([], starts[0][:1]) for start in starts):
        return Difference(
            "different start",
            f"The ranks make models with different weights, and each keeps its part of its own ({words}).",
            "all shards are of one model",
        )
    for how, what in KNOWN.items():
        if off[how] <= ROUNDING:
            return Difference(how, f"{what} ({words}).", EXPECTED)
    return Difference(
        "weights",
        f"The weights in the file are off by {off['']:.2g} ({words}).",
        f"{EXPECTED}, to within {ROUNDING:.0e}",
    )


def _losses(rank: int, losses: list[float], right: list[float], words: str) -> None:
    if len(losses) != len(right):
        wanted, got = f"{len(right)} losses", f"{len(losses)}"
    else:
        i = max(range(len(right)), key=lambda i: abs(losses[i] - right[i]))
        wanted, got = apart(right[i], losses[i])
    raise Difference(
        "losses",
        f"The weights are right, and `main` returns other losses than before ({words}).",
        f"{wanted}: the mean over all ranks, for each batch",
        [(f"rank {rank}", got)],
    )
