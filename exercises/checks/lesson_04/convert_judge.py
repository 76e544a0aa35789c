"""Lesson 04, exercise 5: what shows that a script isn't converted yet."""

from __future__ import annotations

import tempfile
from typing import Any

from ..judging import Answer, by_rank, gap, left_the_group, one_rank_writes, require, some
from .cases import PER_STEP
from .trainer_judge import ROUNDING, beside_its_twin, decide

OTHER_RANKS = (1, 4)  # besides the two that are held beside their twin


def judge_convert(answer: Answer) -> list[str]:
    said = {r"process group has not been initialized": "no group"}
    with tempfile.TemporaryDirectory(prefix="course-convert-") as folder:
        ranks = answer.on_ranks("convert.script", ranks=2, said=said, given=folder)
        checked = decide("script", beside_its_twin(answer, ranks))
        (saved,) = answer.on_ranks("twins.saved", ranks=1, given=folder)
    _file(ranks, saved)
    left_the_group(ranks)
    for n in OTHER_RANKS:
        with tempfile.TemporaryDirectory(prefix="course-convert-") as folder:
            _whole_batches(answer.on_ranks("convert.script", ranks=n, said=said, given=folder))
    others = " and ".join(map(str, OTHER_RANKS))
    return [
        *checked,
        f"{PER_STEP} samples a step on {others} ranks, too",
        "one rank alone writes the file, which loads into a plain model",
    ]


def _whole_batches(ranks: list[dict[str, Any]]) -> None:
    """On another number of ranks a step still takes as many samples, over all ranks together."""
    taken = [sum(map(len, parts)) for parts in zip(*(rank["samples"] for rank in ranks), strict=False)]
    got = by_rank([f"{len(rank['samples'][0])} in the first step" if rank["samples"] else "none" for rank in ranks])
    most = max(taken, default=0)
    require(set(taken) == {PER_STEP}, "ranks built in", got, ranks=len(ranks), most=most, right=PER_STEP)


def _file(ranks: list[dict[str, Any]], saved: dict[str, Any]) -> None:
    one_rank_writes(ranks)
    require(saved["names"] is not None, "no file")
    wanted = list(ranks[0]["start"])
    require(saved["names"] == wanted, "keys", [some(saved["names"], 3)], wanted=some(wanted, 3))
    require(gap(saved["weights"], ranks[0]["weights"][-1]) <= ROUNDING, "other weights")
