"""What is said of ranks that wait for each other. Decided without ranks; real ones are in mistakes.toml, and in
test_launch_table and test_launch_collectives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from course_utils.failure.deadlocks import why
from course_utils.launching.on_rank import standing
from course_utils.launching.request import Request
from course_utils.launching.supervisor import deadlock
from course_utils.results.collectives import Call, Records, Standing


def stands(op: str, line: int = 7, group: str = "0", members: tuple[int, ...] = (0, 1), **more: Any) -> Standing:
    call = Call(group, 0, op, (), "", "", line, op, more.pop("root", None))
    return Standing(call, members, **more)


def called(number: int, op: str = "all_reduce", group: str = "0", line: int = 3) -> Call:
    return Call(group, number, op, ((10,),), "float32", "", line, op)


HANGS: dict[str, tuple[dict[int, Standing], dict[int, list[Call]], str]] = {
    "one number for two ranks": (
        {r: stands("init_process_group", rank=0, world_size=3) for r in (0, 1)} | {2: stands("init_process_group")},
        {},
        "Ranks 0 and 1 both call init_process_group as rank 0 (line 7)",
    ),
    "three for three": (
        {r: stands("init_process_group", rank=2, world_size=3) for r in range(3)},
        {},
        "Ranks 0 to 2 all call init_process_group as rank 2 (line 7)",
    ),
    "worlds of different sizes": (
        {r: stands("init_process_group", rank=r, world_size=2 + r) for r in (0, 1)},
        {},
        "Different world sizes in init_process_group (line 7): rank 0 has 2, rank 1 has 3.",
    ),
    "a world of more ranks than there are": (
        {r: stands("init_process_group", rank=r, world_size=4) for r in (0, 1)},
        {},
        "init_process_group waits for 4 ranks (line 7), and only 2 ranks run here.",
    ),
    "a group that one rank makes": (
        {0: stands("new_group", 5), 1: stands("barrier", 7)},
        {1: [called(1, "barrier")], 0: []},
        "Rank 0 waits in new_group (line 5), and rank 1 hasn't called it. Every rank has to call new_group",
    ),
    "roots": (
        {r: stands("broadcast", root=r) for r in (0, 1)},
        {r: [called(1, "broadcast")] for r in (0, 1)},
        "Different roots in broadcast (line 7): rank 0 has src=0, rank 1 has src=1. One rank has it",
    ),
    "roots of a list of objects": (
        {r: stands("gather_object", 7 + r, root=r) for r in (0, 1)},
        {},
        "Different roots in gather_object: rank 0 has dst=0 (line 7), rank 1 has dst=1 (line 8). One rank gets it",
    ),
    "a collective without a record": (
        {0: stands("monitored_barrier", 5), 1: stands("barrier", 7)},
        {1: [called(1, "barrier")], 0: []},
        "Different collectives: rank 0 calls monitored_barrier (line 5), rank 1 calls barrier (line 7).",
    ),
    "groups in another order": (
        {0: stands("all_reduce", 7, "1"), 1: stands("all_reduce", 8, "2")},
        {0: [called(1, group="1")], 1: [called(1, group="2")]},
        "Rank 0 waits in all_reduce on one group (line 7), and rank 1 waits in all_reduce on another group (line 8).",
    ),
    "both send": (
        {r: stands("send", peer=1 - r) for r in (0, 1)},
        {},
        "All ranks wait in send (line 7): rank 0 waits for rank 1, rank 1 waits for rank 0, and nobody receives.",
    ),
    "a ring of receives": (
        {r: stands("recv", peer=(r + 1) % 3) for r in range(3)},
        {},
        "All ranks wait in recv (line 7): rank 0 waits for rank 1, rank 1 waits for rank 2, rank 2 waits for rank 0,"
        " and nobody sends. Let one of them send first.",
    ),
    "another tag": (
        {0: stands("send", 5, peer=1, tag=3), 1: stands("recv", 7, peer=0, tag=4)},
        {},
        "Rank 0 waits in send to rank 1 (line 5) with tag 3, and rank 1 in recv (line 7) with tag 4.",
    ),
    "a message and a barrier": (
        {0: stands("barrier", 5), 1: stands("recv", 7, peer=0)},
        {0: [called(1, "barrier")], 1: []},
        "Rank 1 waits in recv from rank 0 (line 7), and rank 0 waits in barrier (line 5).",
    ),
    "a batch that is longer": (
        {0: stands("wait", messages=(("recv", 1), ("recv", 1))), 1: stands("barrier", 9, messages=(("send", 0),))},
        {1: [called(1, "barrier")], 0: []},
        "Rank 0 receives 2 messages from rank 1 (line 7), and rank 1 sends 1.",
    ),
    "a member that went elsewhere": (
        {0: stands("all_reduce", 7, "1", (0, 1)), 1: stands("barrier", 9, members=(0, 1, 2)),
         2: stands("barrier", 9, members=(0, 1, 2))},
        {0: [called(1, group="1")], 1: [called(1, "barrier")], 2: [called(1, "barrier")]},
        "Rank 0 waits in all_reduce of the group of ranks 0 and 1 (line 7), and rank 1 waits in barrier of the group of"
        " ranks 0 to 2 (line 9).",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HANGS)
def test_the_first_line(name: str) -> None:
    standing, calls, said = HANGS[name]
    n = 2 if set(standing) == {0, 1} else 3
    found = why(Records(calls, standing), [], n, certain=True)
    assert found.startswith(said), found


@pytest.mark.parametrize(
    "standing",
    [
        {r: stands("all_reduce") for r in (0, 1)},
        {r: stands("backward") for r in (0, 1)},
        {0: stands("send", peer=1), 1: stands("recv", peer=0)},
        {r: stands("new_group") for r in (0, 1)},
        {r: stands("broadcast", root=0) for r in (0, 1)},
        {r: stands("init_process_group", rank=r, world_size=2) for r in (0, 1)},
        {r: stands("wait", messages=(("send", 1 - r), ("recv", 1 - r))) for r in (0, 1)},
        {},
    ],
)
def test_calls_that_fit_together_are_no_deadlock(standing: dict[int, Standing]) -> None:
    """They may be on their way; only a clock can end them, and then we say where they stood."""
    calls = {rank: [called(4, "all_reduce")] for rank in standing}
    assert why(Records(calls, standing), [], 2, certain=True) == ""
    assert why(Records(calls, standing), [], 2).startswith("Every rank that still runs waits") == bool(standing)


def test_a_rank_that_has_finished() -> None:
    left = Records({0: [called(1), called(2)], 1: [called(1)]}, {0: stands("all_reduce")}, {1})
    assert "and rank 1 finished without joining in" in why(left, [1], 2, certain=True)
    assert why(Records({}, {0: stands("recv", peer=1)}), [1], 2).endswith("and rank 1 has finished.")


@pytest.mark.parametrize(
    ("change", "proven"),
    [
        ({}, True),
        ({"timeout_s": 60.0}, False),  # it gives up by itself
        ({"timeout_s": None}, True),
        ({"busy": True}, False),  # another thread may send
        ({"size": 4}, True),  # nobody else knows where to meet
        ({"size": 4, "init_method": "tcp://other:29500"}, False),  # others may come from outside
        (None, False),  # it does something else
    ],
)
def test_what_is_taken_for_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any] | None, proven: bool
) -> None:
    def answer(pids: dict[int, int], folder: Path, limit_s: float) -> None:
        for rank in pids:
            own = {"call": "recv", "frames": [], "busy": False, "peer": 1 - rank, "timeout_s": 1800.0, "size": 2}
            standing = None if rank == 1 and change is None else own | (change if rank == 1 and change else {})
            left = {"ended": False, "calls": [], "standing": standing}
            (folder / f"rank{rank}.collectives.json").write_text(json.dumps(left))

    stack = '  File "x/torch/distributed/distributed_c10d.py", line 9 in recv\n  File "on_rank/rank_process.py"'
    stack += ", line 1 in run"
    monkeypatch.setattr(deadlock, "dump", lambda pids, folder: dict.fromkeys(pids, f"Current thread 0x1:\n{stack}"))
    monkeypatch.setattr(deadlock, "record", answer)
    request = Request("x.py", [], 2, {"GLOO_SOCKET_IFNAME": "lo"}, "/", str(tmp_path), 9.0, "/", 1)
    assert deadlock.in_deadlock({0: 10, 1: 11}, request) is proven
    elsewhere = Request("x.py", [], 2, {"GLOO_SOCKET_IFNAME": "eth0"}, "/", str(tmp_path), 9.0, "/", 1)
    assert not deadlock.in_deadlock({0: 10, 1: 11}, elsewhere), "on a network a message may be on its way"


@pytest.mark.parametrize(
    ("files", "waits"),
    [
        (["distributed/distributed_c10d.py"], True),
        (["_ops.py", "distributed/_functional_collectives.py"], True),
        (["_ops.py", "nn/functional.py"], False),
        (["nn/parallel/distributed.py"], True),
        (["distributed/fsdp/_fully_shard/_fsdp_collectives.py"], True),
        (["distributed/distributed_c10d.py", "distributed/checkpoint/utils.py"], True),
        (["distributed/checkpoint/filesystem.py"], False),  # it writes to a disk, perhaps a slow one
        (["distributed/elastic/multiprocessing/api.py"], False),
        (["distributed/distributed_c10d.py", "distributed/rpc/api.py"], False),
        (["serialization.py"], False),
    ],
)
def test_which_frames_of_torch_wait_for_other_ranks(files: list[str], waits: bool) -> None:
    def frame(file: str) -> Any:
        found: dict[str, Any] = {}
        exec(compile("import sys\ndef call():\n    return sys._getframe()", f"/torch/{file}", "exec"), found)
        return found["call"]()

    assert standing._waits([frame(file) for file in files], "/torch/") is waits
