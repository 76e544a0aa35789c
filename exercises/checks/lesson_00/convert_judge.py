"""Lesson 00, exercise 3: what shows that a script isn't converted yet."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, apart, by_rank, differ, left_the_group, require, some
from . import cases

Ranks = list[dict[str, Any]]


def judge_convert(answer: Answer) -> list[str]:
    said = {"process group has not been initialized": "no group"}
    for size, count in cases.TESTS:
        with tempfile.TemporaryDirectory(prefix="course-convert-") as folder:
            if (size, count) != cases.TESTS[0]:  # from an earlier run
                Path(folder, cases.FILE).write_text("0.875")
            ranks = answer.on_ranks("convert.script", ranks=size, said=said, given=[str(Path(folder).resolve()), count])
            file = Path(folder, cases.FILE)
            text = file.read_text(errors="replace") if file.is_file() else None
        _dealt(ranks, count)
        share = _counted(ranks, count)
        _written(ranks, text, share)
        left_the_group(ranks)
        if others := [address for rank in ranks for address in rank["addresses"]]:
            differ("own address", address=others[0])
    tests = ", ".join(f"{count} pictures on {counted(size, 'rank')}" for size, count in cases.TESTS)
    return [
        f"{tests}: each is looked at once, and no rank has two more than another",
        "every rank returns the share of all pictures, and one of them writes it",
    ]


def _dealt(ranks: Ranks, count: int) -> None:
    """Every picture once, and about as many on each rank."""
    times = Counter(i for rank in ranks for i in rank["looked"])
    got = by_rank([f"looked at {some(rank['looked'], 12)}" for rank in ranks])
    machines = " on 2 machines" * (len(ranks) == cases.ON_TWO_MACHINES)
    facts = {"last": count - 1, "where": f"({count} pictures, {counted(len(ranks), 'rank')}{machines})"}
    everything = len(ranks) > 1 and all(len(set(rank["looked"])) == count for rank in ranks)
    require(not everything, "everything", got, **facts)
    lost, twice = [i for i in range(count) if not times[i]], [i for i in range(count) if times[i] > 1]
    require(not lost, "left out", got, lost=some(lost), **facts)
    require(not twice, "twice", got, twice=some(twice), **facts)
    counts = [len(rank["looked"]) for rank in ranks]
    require(max(counts) - min(counts) <= 1, "uneven", got, most=max(counts), least=min(counts), **facts)


def _counted(ranks: Ranks, count: int) -> float:
    """The right share, on every rank."""
    rows = cases.pictures(ranks[0]["seed"], count)
    right = [label == predicted for _, label, predicted in rows]
    share = sum(right) / count
    found = [rank["share"] for rank in ranks]
    if all(_same(each, share) for each in found):
        return share
    mine = [sum(right[i] for i in rank["looked"]) for rank in ranks]
    own = [n / len(rank["looked"]) if rank["looked"] else 0.0 for n, rank in zip(mine, ranks, strict=True)]
    got = by_rank(["None" if each is None else apart(share, each)[1] for each in found])
    facts = {"right": sum(right), "count": count, "share": share}
    require(not any(_same(each, share) for each in found), "one rank knows", got, **facts)
    require(not any(each is None for each in found), "nothing", got, **facts)
    alone = zip(found, mine, own, strict=True)
    own_part = all(_same(each, part) or _same(each, n / count) for each, n, part in alone)
    require(not own_part, "not summed", got, **facts)
    require(not all(_same(each, sum(own) / len(own)) for each in found), "mean of means", got, **facts)
    require(not all(_same(each, sum(right)) for each in found), "a count", got, **facts)
    differ("wrong share", got, **facts)


def _same(found: float | None, expected: float) -> bool:
    return found is not None and math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-9)


def _written(ranks: Ranks, text: str | None, share: float) -> None:
    got = by_rank([f"opened it {rank['writes']} times" if rank["writes"] else "didn't" for rank in ranks])
    require(sum(bool(rank["writes"]) for rank in ranks) <= 1, "all write", got)
    if text is None:
        differ("no file", share=share)
    try:
        written = float(text)
    except ValueError:
        written = math.nan
    require(_same(written, share), "other text", [repr(text[:60])], share=share)
