"""Lesson 00, exercise 3: what shows that a script isn't converted yet."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Difference, apart, by_rank, left_the_group, some
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
            raise Difference(
                "own address",
                f"The ranks meet at {others[0]}, which your code names. With several machines nobody would find it.",
                "the address and the port that the launcher has put into the environment",
            )
    tests = ", ".join(f"{count} pictures on {counted(size, 'rank')}" for size, count in cases.TESTS)
    return [
        f"{tests}: each is looked at once, and no rank has two more than another",
        "every rank returns the share of all pictures, and one of them writes it",
    ]


def _dealt(ranks: Ranks, count: int) -> None:
    """Every picture once, and about as many on each rank."""
    times = Counter(i for rank in ranks for i in rank["looked"])
    got = by_rank([f"looked at {some(rank['looked'], 12)}" for rank in ranks])
    expected = f"each of the pictures 0 to {count - 1} on one rank"
    machines = " on 2 machines" * (len(ranks) == cases.ON_TWO_MACHINES)
    where = f"({count} pictures, {counted(len(ranks), 'rank')}{machines})"
    if len(ranks) > 1 and all(len(set(rank["looked"])) == count for rank in ranks):
        raise Difference("everything", f"Every rank looks at all pictures {where}.", expected, got)
    if lost := [i for i in range(count) if not times[i]]:
        raise Difference("left out", f"Nobody looked at picture {some(lost)} {where}.", expected, got)
    if twice := [i for i in range(count) if times[i] > 1]:
        raise Difference("twice", f"Pictures were looked at more than once {where}: {some(twice)}.", expected, got)
    counts = [len(rank["looked"]) for rank in ranks]
    if max(counts) - min(counts) > 1:
        raise Difference(
            "uneven", f"One rank looks at {max(counts)} pictures and another at {min(counts)} {where}.",
            "as many pictures on each rank, or one more", got,
        )  # fmt: skip


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
    expected = f"{sum(right)} of {count}, {share:.4g}, on every rank"
    got = by_rank(["None" if each is None else apart(share, each)[1] for each in found])
    if any(_same(each, share) for each in found):
        raise Difference("one rank knows", "Not every rank returns the share of all pictures.", expected, got)
    if any(each is None for each in found):
        raise Difference("nothing", "`main` returns nothing on some rank.", expected, got)
    alone = zip(found, mine, own, strict=True)
    if all(_same(each, part) or _same(each, n / count) for each, n, part in alone):
        raise Difference("not summed", "Each rank returns what it found in its own pictures.", expected, got)
    if all(_same(each, sum(own) / len(own)) for each in found):
        raise Difference("mean of means", "You took the mean of the ranks' shares.", expected, got)
    if all(_same(each, sum(right)) for each in found):
        raise Difference("a count", "`main` returns how many are right, not their share.", expected, got)
    raise Difference("wrong share", "The share of right answers is another one.", expected, got)


def _same(found: float | None, expected: float) -> bool:
    return found is not None and math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-9)


def _written(ranks: Ranks, text: str | None, share: float) -> None:
    writers = [rank for rank in ranks if rank["writes"]]
    if len(writers) > 1:
        raise Difference(
            "all write", "More than one rank writes the file, at the same time.", "one rank writes",
            by_rank([f"opened it {rank['writes']} times" if rank["writes"] else "didn't" for rank in ranks]),
        )  # fmt: skip
    if text is None:
        raise Difference("no file", "There is no file at `path`.", f"a file with {share:.4g} in it")
    try:
        written = float(text)
    except ValueError:
        written = math.nan
    if not _same(written, share):
        raise Difference("other text", "The file doesn't hold the share.", f"{share:.4g}", [repr(text[:60])])
