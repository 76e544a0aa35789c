"""Lesson 10, exercise 2: whether a rank reads the right rows of the right files."""

from __future__ import annotations

import random

from course_utils.show.units import counted

from ..judging import Answer, differ, require, some
from .cases import RESHARD_CASES, random_reshards


def _cut(rows: int, ranks: int) -> list[range]:
    """Which rows each rank has, as torch.chunk cuts."""
    each = -(-rows // ranks)
    return [range(min(r * each, rows), min((r + 1) * each, rows)) for r in range(ranks)]


def _right(rows: int, saved_on: int, loaded_on: int, rank: int) -> list[tuple[int, int, int]]:
    mine, files = _cut(rows, loaded_on)[rank], _cut(rows, saved_on)
    pieces = [
        (f, max(mine.start, file.start) - file.start, min(mine.stop, file.stop) - file.start)
        for f, file in enumerate(files)
    ]
    return [piece for piece in pieces if piece[1] < piece[2]]


def judge_reshard(answer: Answer) -> list[str]:
    cases = [*RESHARD_CASES, *random_reshards(random.Random())]
    told = answer.on_ranks("reshard", ranks=1, given=cases)[0]
    asked = [(*case, rank) for case in cases for rank in range(case[2])]
    plans = [[tuple(piece) for piece in pieces] for case in told["plans"] for pieces in case]
    rights = [_right(*question) for question in asked]
    one_less = all(pieces == [(f, a, b - 1) for f, a, b in right] for pieces, right in zip(plans, rights, strict=True))
    for (rows, saved_on, loaded_on, rank), pieces, right in zip(asked, plans, rights, strict=True):
        case = f"rank {rank} of {loaded_on}, {rows} rows from {counted(saved_on, 'file')}"
        require(not one_less or pieces == right, "last", [some(pieces)], case=case, right=some(right))
        _pieces(pieces, right, _cut(rows, saved_on), _cut(rows, loaded_on)[rank], case)
    return [
        (
            f"{len(cases)} tensors of 1 to {max(case[0] for case in cases)} rows, from 1 to 16 ranks onto 1 to 16:"
            " every rank gets its rows, in order"
        ),
        "no piece is empty, and none reads a row that the rank does not need",
    ]


def _pieces(
    pieces: list[tuple[int, ...]], right: list[tuple[int, int, int]], files: list[range], wanted: range, case: str
) -> None:
    if pieces == right:
        return
    got, facts = [some(pieces)], {"case": case, "right": some(right)}
    require(all(first < last for _, first, last in pieces), "empty", got, **facts)
    known = [piece for piece in pieces if piece[0] in range(len(files))]
    of_files = [(f, first - files[f].start, last - files[f].start) for f, first, last in known]
    require(of_files != right, "rows of the tensor", got, **facts)
    there = all(f in range(len(files)) and first >= 0 and last <= len(files[f]) for f, first, last in pieces)
    require(there, "beyond", got, **facts)
    read = [files[f].start + row for f, first, last in pieces for row in range(first, last)]
    require(sorted(read) != list(wanted), "order", got, **facts)
    require(not set(read) > set(wanted), "too much", got, more=len(read) - len(wanted), **facts)
    differ("rows", got, first=wanted.start, last=wanted.stop - 1, **facts)
