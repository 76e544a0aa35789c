"""Lesson 04, exercise 5: what shows that a script isn't converted yet."""

from __future__ import annotations

import tempfile
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Difference, by_rank, gap, left_the_group, one_rank_writes, some
from .cases import PER_STEP
from .trainers import ROUNDING, beside_its_twin, decide

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
    if set(taken) != {PER_STEP}:
        count = f"{counted(len(ranks), 'rank')}"
        raise Difference(
            "ranks built in",
            f"On {count} a step takes {max(taken, default=0)} samples.",
            f"{PER_STEP} samples a step, on any number of ranks that divides {PER_STEP}",
            by_rank([f"{len(rank['samples'][0])} in the first step" if rank["samples"] else "none" for rank in ranks]),
        )


def _file(ranks: list[dict[str, Any]], saved: dict[str, Any]) -> None:
    one_rank_writes(ranks)
    if saved["names"] is None:
        raise Difference("no file", "There is no file that `torch.load` reads.", "`model.state_dict()` in it")
    wanted = list(ranks[0]["start"])
    if saved["names"] != wanted:
        raise Difference("keys", "A plain model can't load the file.", some(wanted, 3), [some(saved["names"], 3)])
    if gap(saved["weights"], ranks[0]["weights"][-1]) > ROUNDING:
        raise Difference("other weights", "The file doesn't hold the weights after the last step.", "the trained model")
