"""Lesson 09.2: whether a resumed run goes on like one that was never interrupted."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from typing import Any

from ..judging import Answer, Got, by_rank, differ, require, some
from .cases import BATCH, EPOCHS, RANKS, SAMPLES


def judge_resume(answer: Answer) -> list[str]:
    cases = [_run_case(ranks) for ranks in RANKS]
    with tempfile.TemporaryDirectory(prefix="course-resume-") as folder:
        given = {"folder": folder, "cases": cases}
        ran = answer.on_ranks("resume.run", ranks=max(RANKS), given=given)
        for rank, seen in enumerate(ran):
            for changed in (case["changed"] for case in seen["cases"] if case):
                require(not changed, "changed", parts=some(changed), rank=rank)
        resumed = answer.on_ranks("resume.resume", ranks=max(RANKS), given=given)
    if refused := next((s["refused"] for s in resumed if "refused" in s), None):
        differ("refused", refused=refused)
    for i, case in enumerate(cases):
        for j, stop in enumerate(case["stops"]):
            seen_here = [r["cases"][i][j] for r in resumed[: case["ranks"]]]
            first = [r["cases"][i] for r in ran[: case["ranks"]]]
            words = f"{case['ranks']} ranks, saved after {stop[1]} batches of epoch {stop[0]}"
            _resumed(seen_here, [f["before"][j] for f in first], [f["end"] for f in first], stop, words)
    return [
        "interrupted twice: the same batches as in one go, in the same order, on every rank",
        "every part and every random state equal to the last bit at the end, in new processes, on 2 and on 3 ranks",
        "what is saved loads with weights_only=True",
    ]


def _run_case(ranks: int) -> dict[str, Any]:
    """A run on so many ranks, and where it is saved: in the second epoch after an odd number of steps, so that both
    generators of normal numbers have kept one, and in the third after an even number, on 3 ranks at its beginning."""
    each = -(-SAMPLES // ranks)
    batches = -(-each // BATCH)
    middle = random.choice([k for k in range(1, batches) if (batches + k) % 2])
    late = 0 if ranks == 3 else random.choice([k for k in range(1, batches) if k % 2 == 0])
    full = next(size for size in range(2, each) if each % size == 0)  # no smaller batch at the end
    questions = [(random.randrange(1, 9), random.randrange(3), random.randint(2, 7)) for _ in range(3)]
    questions += [(random.randrange(1, 9), 1, full), (random.randrange(1, 9), each // full, full)]
    sizes = {"ranks": ranks, "samples": SAMPLES, "batch": BATCH, "epochs": EPOCHS}
    return sizes | {"stops": [[1, middle], [2, late]], "questions": questions}


def _resumed(
    seen: list[dict[str, Any]], before: list[dict[str, str]], end: list[dict[str, str]], stop: Sequence[int], case: str
) -> None:
    """Compare what the ranks saw after one stop with the states at the save and at the end of the run."""
    positions = [s["position"] for s in seen]
    got = by_rank([str(tuple(p)) for p in positions])
    require(all(p == list(stop) for p in positions), "position", got, case=case, stop=tuple(stop))
    lacking = [
        [name for name, state in b.items() if state != s["after_load"][name]] for s, b in zip(seen, before, strict=True)
    ]
    for rank, names in enumerate(lacking):
        parts = [name for name in names if not name.startswith("random")]
        require(not parts, "part", parts=some(parts), rank=rank, case=case)
    torchs = "random numbers of torch"
    require(not lacking[1] or seen[1]["after_load"][torchs] != before[0][torchs], "one rank's", case=case)
    for rank, names in enumerate(lacking):
        require(not names, "random", names=some(names), rank=rank, case=case)
    for s in seen:
        _batches(s["done"], s["wanted"], by_rank([some(t["done"][0], 3) for t in seen]), case)
    for rank, s in enumerate(seen):
        for batches, wanted in s["asked"]:
            _batches([batches], [wanted], [(f"rank {rank}", some(batches, 3))], "another epoch and batch size")
    if touched := next((s["touched"] for s in seen if s["touched"]), None):
        differ("draws", touched=some(touched))
    for rank, s in enumerate(seen):
        others = [name for name, state in s["end"].items() if state != end[rank][name]]
        require(not others, "another run", others=some(others), rank=rank, case=case)


def _batches(done: list[list[list[int]]], wanted: list[list[list[int]]], got: Sequence[Got], case: str) -> None:
    if done == wanted:
        return
    facts = {"case": case, "wanted": some(wanted[0], 3)}
    flat = [[i for batch in epoch for i in batch] for epoch in done]
    want = [[i for batch in epoch for i in batch] for epoch in wanted]
    require(flat != want, "batch size", got, **facts)
    again = len(flat[0]) > len(want[0]) and flat[0][len(flat[0]) - len(want[0]) :] == want[0]
    missing = len(flat[0]) < len(want[0]) and (
        flat[0] == want[0][: len(flat[0])] or flat[0] == want[0][len(want[0]) - len(flat[0]) :]
    )
    differ("done twice" if again else "left out" if missing else "order", got, **facts)
