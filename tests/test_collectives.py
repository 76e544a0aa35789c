"""What the records of collectives say about ranks that disagree. Decided without ranks; real ones are in
test_launch_collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from course_utils.launching.on_rank import flight_record
from course_utils.results.collectives import Call, ahead, disagreement, ranks_in_words, read_records, unnoticed


def call(
    number: int, op: str = "all_reduce", *size: int, group: str = "0", dtype: str = "float32", line: int = 0
) -> Call:
    return Call(group, number, op, (size or (10,),), dtype, "", line, op)


SAME = [call(1), call(2, "broadcast", 3, 4)]


def test_ranks_that_agree() -> None:
    assert disagreement({0: SAME, 1: list(SAME)}, finished=[0, 1]) == ""
    assert disagreement({}) == "" and disagreement({0: SAME}) == "" and disagreement({0: [], 1: []}, [0, 1]) == ""
    assert ahead({0: SAME, 1: list(SAME)}, [0, 1]) == ahead({}, []) == ahead({0: [], 1: []}, [0, 1]) == ""


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (call(3, "barrier", line=6), call(3, line=8),
         "Different collectives: rank 0 calls barrier (line 6), rank 1 calls all_reduce (line 8)."),
        (call(3, "all_reduce", 10, line=5), call(3, "all_reduce", 12, line=5),
         "Different shapes in all_reduce (line 5): rank 0 has 10 numbers, rank 1 has 12 numbers."),
        (call(3, "all_reduce", 3, 4), call(3, "all_reduce", 4, 3),
         "Different shapes in all_reduce: rank 0 has 3 x 4 numbers, rank 1 has 4 x 3 numbers."),
        (call(3), call(3, dtype="float64"),
         "Different types in all_reduce: rank 0 has float32, rank 1 has float64."),
        (call(3, "scatter", 10), call(3, "scatter", 12), ""),
        (call(3, "all_to_all", 10), call(3, "all_to_all", 12), ""),
    ],
)  # fmt: skip
def test_the_first_collective_that_differs(one: Call, other: Call, said: str) -> None:
    assert disagreement({0: [*SAME, one, call(4)], 1: [*SAME, other, call(4, "gather")]}).startswith(
        said or "Different c"
    )


def test_many_ranks_are_told_together() -> None:
    calls = {rank: [call(1, "all_reduce", 10 if rank != 2 else 12)] for rank in range(8)}
    assert disagreement(calls).endswith(": ranks 0, 1, 3, 4, 5, 6 and 7 have 10 numbers, rank 2 has 12 numbers.")
    assert [ranks_in_words(r) for r in ([3], [0, 1], [0, 1, 2], [0, 2, 3])] == [
        "rank 3", "ranks 0 and 1", "ranks 0 to 2", "ranks 0, 2 and 3",
    ]  # fmt: skip


def test_a_rank_that_finished_without_one() -> None:
    calls = {0: [*SAME, call(3, "barrier", line=10)], 1: SAME}
    assert disagreement(calls, [1]) == "Rank 0 waits in barrier (line 10), and rank 1 finished without joining in."
    assert disagreement(calls) == ""  # rank 1 stopped for another reason
    assert disagreement({0: SAME, 1: [], 2: SAME}, [1]) == ""  # ranks 0 and 2 went on from their first one
    assert disagreement({0: [call(1)], 1: []}, [1]).startswith("Rank 0 waits in all_reduce")


def test_who_is_ahead_when_time_runs_out() -> None:
    calls = {0: [*SAME, call(3, "barrier", line=14)], 1: SAME, 2: SAME}
    assert ahead(calls, [0, 2]) == "Rank 0 waits in barrier (line 14), and ranks 1 and 2 haven't joined in."
    assert ahead({0: [call(1)], 1: []}, [0]) == "Rank 0 waits in all_reduce, and rank 1 hasn't joined in."
    assert ahead(calls, [1, 2]) == "", "rank 0 has gone on, for example with async_op"


def test_only_what_all_remember_is_compared() -> None:
    """A ring buffer forgets; ranks may have forgotten different calls."""
    long = [call(k) for k in range(5, 20)]
    assert disagreement({0: long, 1: [call(k) for k in range(10, 20)]}) == ""
    assert "12 numbers" in disagreement({0: long, 1: [*[call(k) for k in range(10, 15)], call(15, "all_reduce", 12)]})


def test_groups_are_compared_by_themselves() -> None:
    assert disagreement({0: [call(1, group="1")], 1: [call(1, "gather", group="2")]}) == ""
    other = {0: [call(1), call(1, "gather", group="1")], 1: [call(1), call(1, "barrier", group="1")]}
    assert disagreement(other).startswith("Different collectives") and unnoticed(other) == ""


def test_records_as_ranks_leave_them(tmp_path: Path) -> None:
    frames = [["/lib/torch/c10d.py", 4174, "all_reduce"], ["/my/train.py", 5, "<module>"]]
    entry = {"group": "0", "number": 1, "op": "all_reduce", "inputs": [[10]], "dtypes": ["Float"], "frames": frames}
    (tmp_path / "rank0.collectives.json").write_text(
        json.dumps({"ended": True, "calls": [entry, entry | {"frames": [], "inputs": [], "dtypes": []}]})
    )
    (tmp_path / "rank1.collectives.json").write_text("[")  # killed while it wrote
    left = read_records(tmp_path, 3, lambda file: file.startswith("/my"))
    calls = left.calls
    assert list(calls) == [0] and left.ended == {0} and not left.standing
    assert calls[0][0] == Call("0", 1, "all_reduce", ((10,),), "float32", "/my/train.py", 5, "all_reduce")
    assert calls[0][1].line == 0 and calls[0][1].where == ""


def test_a_record_keeps_the_call_into_torch_and_the_script() -> None:
    def frame(file: str, name: str) -> dict[str, object]:
        return {"filename": file, "line": 1, "name": name}

    inside = [frame("/torch/c10d.py", "all_reduce"), frame("/torch/log.py", "wrapper"), frame("/torch/x.py", "step")]
    outside = [frame("/lightning/loop.py", f"f{i}") for i in range(3)] + [frame("/my/train.py", "<module>")]
    kept = [name for _, _, name in flight_record._from_the_script([*inside, *outside], "/torch/")]
    assert kept == ["step", "f0", "f1", "f2", "<module>"]
    assert [n for _, _, n in flight_record._from_the_script(inside, "/torch/")] == ["step"]
    assert flight_record._from_the_script([], "/torch/") == []
