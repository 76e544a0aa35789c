"""Lesson 10, exercise 4: what shows that a program isn't converted from DDP to FSDP yet."""

from __future__ import annotations

import math
import random
import tempfile
from typing import Any

from ..judging import Answer, apart, by_rank, differ, gap, left_the_group, one_rank_writes, require, some
from .cases import SCALES, ConvertCase, convert_cases

ROUNDING = 1e-8  # in double precision right answers differ by about 1e-15, and every mistake here by more than 1e-5
SMALL = 64  # bytes of a sum that isn't one of gradients: a loss, a norm
ROOM = 1.02  # for what lies beside the shards
SAID = {
    r"mixed torch\.Tensor and DTensor": "mixed",
    r"has no attribute 'module'": "module",
    r"Invariant encountered": "outside in",
    r"c10d\.broadcast_": "wrapped",
}
KNOWN = ("own norm", "not clipped")  # mistakes that have twins


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
    _steps(all(len(s["calls"]) >= 2 for s in seen), seen, words)
    require(all(s["held"]["moves"] for s in seen), "not trained", case=words)
    sizes, held = seen[0]["sizes"], [s["held"] for s in seen]
    got = by_rank([f"{h['weights']:,} bytes of weights, {h['averages']:,} of the optimizer" for h in held])
    most = max(h["weights"] for h in held)
    if most <= ROOM * sizes["share"] and max(h["averages"] for h in held) <= 2.5 * sizes["share"]:
        return most / sizes["all"]
    whole = held[0]["whole"]
    facts = {"share": sizes["share"], "all": sizes["all"], "case": words}
    left = whole and most < sizes["all"] and not any(name.startswith("blocks") for name in whole)
    differ("left over" if left else "whole", got, names=some([f"`{name}`" for name in whole]), **facts)


def _steps(ok: bool, seen: list[dict[str, Any]], words: str) -> None:
    """Raise unless the number of steps is `ok`."""
    require(ok, "steps", by_rank([f"{len(s['calls'])} steps" for s in seen]), case=words, right=len(SCALES))


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
    require(not types, "another type", types=some(types), case=words)
    summed = max(sum(n > SMALL for name, n in step if name.startswith(("allreduce", "all_reduce"))) for step in steps)
    require(not summed, "all-reduce", summed=summed, case=words)
    gathers = [[size for name, n in step if (size := _gathered(name, n, ranks)) > SMALL * ranks] for step in steps]
    largest = max((size for step in gathers for size in step), default=0.0)
    fits = largest <= ROOM * sizes["unit"]
    require(fits, "one unit", largest=largest, all=sizes["all"], unit=sizes["unit"], case=words)
    kept = max(s["kept"] for s in seen)  # the last block may stay, since backward begins there
    require(kept <= 1, "kept", kept=kept, blocks=blocks, case=words)
    most = max(map(len, gathers[1:]))
    few = most <= 2 * (blocks + 3)  # of the blocks, and of what's left in three parts
    require(few, "too many", most=most, right=2 * blocks + 1, case=words)
    scatters = sum(name.startswith("reduce_scatter") for name, _ in steps[-1])
    return f"{most} all-gathers and {scatters} reduce-scatters"


def _start(seen: list[dict[str, Any]], words: str) -> int:
    """The seed with which the DDP program begins: rank 0's."""
    starts = seen[0]["start"]
    require(starts, "meta", case=words)
    start: int = starts[0]
    return start


# --- the file ---------------------------------------------------------------------------------------------------------


def _case(seen: list[dict[str, Any]], twin: dict[str, Any], case: ConvertCase) -> float:
    """How far the weights in the file are from those of one process."""
    words = _words(case)
    one_rank_writes(seen)
    _file(twin, words)
    off: dict[str, float] = {how: math.inf if value is None else value for how, value in twin["off"].items()}
    if off[""] > ROUNDING:
        _steps(all(len(s["calls"]) == len(SCALES) for s in seen), seen, words)
        _other_weights(off, [s["start"] for s in seen], words)
    for rank, s in enumerate(seen):
        if gap(s["losses"], twin["losses"]) > ROUNDING:
            _losses(rank, s["losses"], twin["losses"], words)
    left_the_group(seen)
    return off[""]


def _file(twin: dict[str, Any], words: str) -> None:
    found, shapes, names = twin["found"], twin["shapes"], twin["names"]
    if found in ("nothing", "a folder", "something else"):
        differ("no file", [found], found=found if found != "nothing" else "not there", case=words)
    require(found != "DTensors", "shards", how="DTensors", case=words)
    if twin["off"] is not None:
        return
    got = [some([f"{name} {shape}" for name, shape in shapes.items()], 4)]
    require(list(shapes) != names, "shards", got, how="shapes", case=words)
    differ("keys", [some(list(shapes), 3)], case=words, names=some(names, 3))


def _other_weights(off: dict[str, float], starts: list[list[int]], words: str) -> None:
    require(off["the start"] != 0, "saved too early", case=words)
    alike = all(start[:1] in ([], starts[0][:1]) for start in starts)
    require(alike, "different start", case=words)
    for how in KNOWN:
        require(off[how] > ROUNDING, how, case=words)
    differ("weights", off=off[""], rounding=ROUNDING, case=words)


def _losses(rank: int, losses: list[float], right: list[float], words: str) -> None:
    if len(losses) != len(right):
        wanted, got = f"{len(right)} losses", f"{len(losses)}"
    else:
        i = max(range(len(right)), key=lambda i: abs(losses[i] - right[i]))
        wanted, got = apart(right[i], losses[i])
    differ("losses", [(f"rank {rank}", got)], case=words, wanted=wanted)
