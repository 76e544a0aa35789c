"""Descriptions of clusters, what collectives take over their links, and a group of ranks on modelled GPUs."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import load_tool

from course_utils import predict
from course_utils.emulation import edges, links, meeting
from course_utils.emulation.clusters import EmulatedCluster, EmulatedLink, UnknownCluster, cluster
from course_utils.failure.errors import RankError, records_of
from course_utils.launching.launcher import launch
from course_utils.results.collectives import unnoticed

OWN = """
[device.big]
like = "A100"
memory_bytes = 20e9
[device.zero]
like = "A100"
memory_Bps = 0
[device.typo]
like = "A100"
memroy_Bps = 1e12
[device.dtype]
like = "A100"
flops = { float31 = 1e12 }
[device.bare]
name = "bare"
[device.linked]
like = "A100"
inside = "late"
[device.round]
like = "about"
[device.about]
like = "round"
[link.late]
busbw_Bps = 1e9
hop_s = -1e-6
"""


@pytest.mark.parametrize(
    "name, nodes, bytes_",
    [
        ("2xT4", 1, 15_636_037_632),
        ("8xV100", 1, 16_935_682_048),
        ("8xA100-40GB", 1, 42_505_273_344),
        ("16xH100", 2, 85_028_765_696),
        ("1024xH100", 128, 85_028_765_696),
        ("own.toml:4xbig", 1, 20_000_000_000),
        ({"count": 4, "device": {"like": "A100", "memory_bytes": 1e9}, "inside": "shm"}, 1, 1_000_000_000),
    ],
)
def test_clusters_by_name_file_and_dict(name: Any, nodes: int, bytes_: int, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    found = cluster(f"{tmp_path}/{name}" if str(name).startswith("own") else name)
    assert (found.nodes, found.device.memory_bytes) == (nodes, bytes_)
    assert EmulatedCluster.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "name, options, says",
    [
        ("A100", {}, "write 8xA100"),
        ("0xA100", {}, "no GPUs"),
        ("8xB300", {}, "known are T4, V100"),
        ("8xa100", {}, "Did you mean A100?"),
        ("8xA100", {"nodes": 3}, "shared out evenly"),
        ("8xA100", {"nodes": 0}, "nodes must be"),
        ("8xA100", {"slow": {8: 2.0}}, "ranks 0 to 7"),
        ("8xA100", {"slow": {0: 0}}, "such as 1.3"),
        ("8xA100", {"one_of": 9}, "up to 8"),
        ("8xA100", {"one_of": 8, "slow": {0: 1.1, 3: 1.3}}, "none can be slow"),
        ("8xA100", {"host": "real"}, "host can be 'measured'"),
        ("nothing.toml:8xA100", {}, "No such file"),
        ("own.toml:8xzero", {}, "line 7: device zero: memory_Bps must be a number above 0"),
        ("own.toml:8xtypo", {}, "line 10: device typo: memroy_Bps isn't known"),
        ("own.toml:8xdtype", {}, "line 13: device dtype: flops has the dtype 'float31'"),
        ("own.toml:8xbare", {}, "line 14: device bare needs 'inside'"),
        ("own.toml:8xlinked", {}, "line 25: link late: hop_s must be a number of seconds, 0 or more"),
        ("own.toml:8xround", {}, "comes back to itself"),
        ({"count": 2}, {}, "needs its 'device'"),
        ({"count": True, "device": "A100"}, {}, "count must be"),
        ({"count": 2, "device": "A100", "inside": {"busbw_Bps": 0}}, {}, "link inside: busbw_Bps"),
        ({"count": 2, "device": {"like": "A100", "sm_count": 0}}, {}, "sm_count must be a whole number above 0"),
    ],
)
def test_a_wrong_description_is_one_clear_error(name: Any, options: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    with pytest.raises(UnknownCluster, match=says.replace("?", r"\?")):
        cluster(f"{tmp_path}/{name}" if str(name).startswith("own") else name, **options)


def test_this_machine_is_a_cluster_once_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    with pytest.raises(UnknownCluster, match="calibrate"):
        cluster("2xthis-machine")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".calibration-1.json").write_text(
        '{"device": "cpu", "matmul_flops": {"float32": 1e11}, "memory_Bps": 1e10, "copy_Bps": {},'
        ' "all_reduce": {"2": [[4, 1e-4], [1e8, 0.1]]}}'
    )
    found = cluster("2xthis-machine")
    assert found.device.flops == {"float32": 1e11}
    assert links.seconds("all_reduce", 1e8, links.Route.of(found, range(2))) == pytest.approx(0.1, rel=0.01)


def _plain(count: int, nodes: int = 1, cards: int = 1) -> EmulatedCluster:
    side = {"kind": "plain", "hop_s": 1e-6, "cards": cards}
    own = {"count": count, "device": {"like": "A100", "per_node": 8}, "inside": {"busbw_Bps": 1e11, **side}}
    return cluster({**own, "between": {"busbw_Bps": 1e10, **side}, "nodes": nodes})


@pytest.mark.parametrize("kind, other", [("all_reduce", predict.ring_all_reduce), ("all_gather", predict.all_gather)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_plain_ring_takes_what_the_textbook_says(kind: str, other: Callable[..., float], ranks: int) -> None:
    route = links.Route.of(_plain(8), range(ranks))
    assert links.seconds(kind, 1e8, route) == pytest.approx(other(ranks, 1e8, predict.Link(1e-6, 1e11)))


def test_groups_that_cross_a_network_share_it() -> None:
    one_card, eight = _plain(16, nodes=2), _plain(16, nodes=2, cards=8)
    everyone, rows = range(16), [(r, r + 8) for r in range(8)]
    assert links.sharing(one_card, everyone, rows) == 1  # they're all of its own ranks
    assert links.sharing(one_card, rows[0], [everyone, *rows, *rows]) == 8
    assert links.sharing(one_card, range(8), rows) == 1  # stays in its node
    # 512 ranks as 8 stages of 8 groups of 8: along each dimension groups have as many ranks, and only those along one
    # of them send at the same time.
    large = cluster("512xH100")
    stages = [range(first, 512, 64) for first in range(64)]
    data = [range(64 * stage + first, 64 * stage + 64, 8) for stage in range(8) for first in range(8)]
    assert links.sharing(large, data[0], [*stages, *data]) == 8 == links.sharing(large, stages[0], [*stages[:8], *data])
    for found in (one_card, eight):
        assert links.Route.of(found, everyone).node_Bps == 1e10
        assert links.Route.of(found, rows[0], sharing=8).node_Bps == 1e10 / 8
    assert links.Route.of(one_card, rows[0]).node_Bps == 1e10
    assert links.Route.of(eight, rows[0]).node_Bps == 1e10 / 8  # a GPU has one card


def test_nccl_takes_the_fastest_of_its_ways() -> None:
    """Small sums take fewer steps than a ring over all nodes has; large ones are bound by the slowest link."""
    many = links.Route.of(cluster("1024xH100"), range(1024))
    assert links.seconds("all_reduce", 8, many) < 1e-3
    for name in ("8xA100", "8xH100", "2xT4"):
        found = cluster(name)
        route = links.Route.of(found, range(found.count))
        factor = 2 * (found.count - 1) / found.count
        assert links.seconds("all_reduce", 1e11, route) == pytest.approx(
            factor * 1e11 / found.inside.busbw_Bps, rel=0.01
        )
        times = [links.seconds("all_reduce", 4.0**k, route) for k in range(16)]
        assert times == sorted(times) and times[0] < 100e-6
    assert links.seconds("all_reduce", 1e9, links.Route.of(cluster("8xA100"), [3])) == 0
    assert replace(found.inside, busbw_Bps=1.0) != found.inside and isinstance(found.inside, EmulatedLink)


def test_only_sums_over_many_gpus_profit_from_the_switch() -> None:
    """The switch of NVLink 4 adds up for an all-reduce over more than four GPUs; all else goes through rings."""
    found = cluster("8xH200")

    def busbw_GBps(ranks: int, kind: str = "all_reduce", where: EmulatedCluster = found) -> float:
        rounds = 2 if kind == "all_reduce" else 1
        seconds = links.seconds(kind, 2**33, links.Route.of(where, range(ranks)))
        return rounds * (ranks - 1) / ranks * 2**33 / seconds / 1e9

    assert busbw_GBps(2) == pytest.approx(busbw_GBps(8, "all_gather"), rel=0.01) == pytest.approx(367, rel=0.01)
    assert busbw_GBps(4) < 375 < busbw_GBps(5) < busbw_GBps(8)
    slow = cluster({"count": 8, "device": {"like": "H200"}, "inside": {"like": "nvlink4", "busbw_Bps": 100e9}})
    assert busbw_GBps(8, "all_gather", slow) == pytest.approx(100, rel=0.01)
    assert links.seconds("all_reduce", 2**30, links.Route.of(cluster("16xH200"), range(16))) > 2**30 / 380e9


PROGRAM = """
import torch, torch.distributed as dist
from course_utils.rank import device, report
from torch.distributed.device_mesh import init_device_mesh
import torch.distributed._functional_collectives as functional

dist.init_process_group()
torch.cuda.set_device(device())
r, n, d = dist.get_rank(), dist.get_world_size(), device()
mine, total, found = torch.full((4,), r + 1.0, device=d), n * (n + 1) / 2, {}

def ones(k, **options):
    return torch.zeros(k, device=d, **options)

x = mine.clone(); dist.all_reduce(x); found["all_reduce"] = x.tolist() == [total] * 4
x = mine.clone(); dist.all_reduce(x, op=dist.ReduceOp.AVG); found["mean"] = x.tolist() == [total / n] * 4
x = ones(1, dtype=torch.long) + r; dist.all_reduce(x, op=dist.ReduceOp.MAX); found["max"] = x.item() == n - 1
x = mine.clone(); dist.broadcast(x, 1); found["broadcast"] = x[0].item() == 2
x = mine.clone(); dist.reduce(x, 1); found["reduce"] = x[0].item() == (total if r == 1 else r + 1)
x = [ones(4) for _ in range(n)]; dist.all_gather(x, mine); found["all_gather"] = [t[0].item() for t in x] == list(range(1, n + 1))
x = ones(4 * n); dist.all_gather_into_tensor(x, mine); found["all_gather_into_tensor"] = x[::4].tolist() == list(range(1, n + 1))
whole = torch.arange(2.0 * n, device=d)
x = ones(2); dist.reduce_scatter_tensor(x, whole); found["reduce_scatter_tensor"] = x.tolist() == [2 * r * n, (2 * r + 1) * n]
x = ones(2); dist.reduce_scatter(x, list(whole.split(2))); found["reduce_scatter"] = x.tolist() == [2 * r * n, (2 * r + 1) * n]
x = ones(n); dist.all_to_all_single(x, torch.arange(n, device=d) + 10.0 * r); found["all_to_all"] = x.tolist() == [10 * k + r for k in range(n)]
x = [ones(1) for _ in range(n)]; dist.all_to_all(x, [ones(1) + 10 * r + k for k in range(n)]); found["lists"] = [t.item() for t in x] == [10 * k + r for k in range(n)]
x = [ones(4) for _ in range(n)] if r == 0 else None; dist.gather(mine, x); found["gather"] = r > 0 or [t[0].item() for t in x] == list(range(1, n + 1))
x = ones(1); dist.scatter(x, [ones(1) + k for k in range(n)] if r == 0 else None); found["scatter"] = x.item() == r
x = [None] * n; dist.all_gather_object(x, {"rank": r}); found["objects"] = [o["rank"] for o in x] == list(range(n))
x = [r, "a"]; dist.broadcast_object_list(x, 1); found["object list"] = x == [1, "a"]
x = ones(4); works = [dist.irecv(x, (r - 1) % n), dist.isend(mine, (r + 1) % n)]; [w.wait() for w in works]; found["isend"] = x[0].item() == (r - 1) % n + 1
x = ones(4); pairs = [dist.P2POp(dist.isend, mine, (r + 1) % n), dist.P2POp(dist.irecv, x, (r - 1) % n)]
[w.wait() for w in dist.batch_isend_irecv(pairs)]; found["batch"] = x[0].item() == (r - 1) % n + 1
dist.barrier(); dist.monitored_barrier()
pair = dist.new_group([0, 1])
if r < 2:
    x = mine.clone(); dist.all_reduce(x, group=pair); found["new_group"] = x[0].item() == 3
mesh = init_device_mesh("cuda", (2, n // 2), mesh_dim_names=("dp", "tp"))
x = mine.clone(); dist.all_reduce(x, group=mesh["dp"].get_group()); found["mesh"] = x[0].item() == 2 * (r % (n // 2)) + 2 + n // 2
found["functional"] = functional.wait_tensor(functional.all_reduce(mine, "sum", dist.group.WORLD))[0].item() == total
x = torch.ones(3); dist.all_reduce(x); found["on the CPU"] = x.tolist() == [n] * 3
dist.destroy_process_group()
dist.init_process_group("nccl", device_id=d); found["again"] = dist.get_backend() == "nccl"
x = torch.randn(1 << 20, device=d); dist.all_reduce(x); torch.cuda.synchronize()
report(wrong=sorted(name for name, right in found.items() if not right), checked=len(found))
dist.destroy_process_group()
"""  # noqa: E501


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Launch a program on a cluster."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))

    def run(program: str, ranks: int, name: str = "8xA100", timeout: float = 60.0, **options: Any) -> Any:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(program))
        return launch(script, ranks, cluster=name, quiet=True, timeout=timeout, **options)

    return run


def test_all_collectives_do_what_they_do_elsewhere(start: Callable[..., Any]) -> None:
    for rank in start(PROGRAM, 4, nodes=2).ranks:
        assert rank.records[-1]["wrong"] == [] and rank.records[-1]["checked"] >= 21


STEP = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from course_utils.rank import device, report, timer

dist.init_process_group(); torch.cuda.set_device(device())
model = DDP(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).to(device()), bucket_cap_mb=20)
x = torch.randn(1024, 2048, device=device())
for _ in range(3):
    torch.cuda.synchronize()
    with timer() as t:
        model(x).square().mean().backward()
        torch.cuda.synchronize()
x = torch.ones(2, device=device())
dist.all_reduce(x)
report(step_s=t.seconds, world=dist.get_world_size(), sum=x[0].item())
dist.destroy_process_group()
"""


def test_stragglers_nodes_and_one_rank_of_many(start: Callable[..., Any]) -> None:
    def step_s(ranks: int = 4, name: str = "8xA100", **options: Any) -> float:
        run = start(STEP, 1 if "one_of" in options else ranks, name, **options)
        times = [rank.records[-1]["step_s"] for rank in run.ranks]
        assert max(times) - min(times) < 1e-12, "all ranks end their step at once"
        world = options.get("one_of", ranks)
        assert run.ranks[0].records[-1]["world"] == run.ranks[0].records[-1]["sum"] == world
        return float(times[0])

    even = step_s()
    assert step_s(nodes=4) > even
    assert step_s(slow={3: 1.5}) > 1.3 * even
    assert step_s(one_of=4) == pytest.approx(even)
    assert even < step_s(one_of=1024, name="1024xA100") < 20 * even


BLOCKS = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from course_utils.rank import device, report, timer

dist.init_process_group(); torch.cuda.set_device(device())
n, r, d = dist.get_world_size(), dist.get_rank(), device()
size = n // 2
block = r // size  # all ranks of a block do the same
mesh = init_device_mesh("cuda", (2, size), mesh_dim_names=("pipe", "data"))
pipe, data = mesh["pipe"].get_group(), mesh["data"].get_group()
found = {}
mine = torch.full((4,), block + 1.0, device=d)

def after(call, group=None, **more):
    x = mine.clone(); call(x, group=group, **more); return x.tolist()

found["sum"] = after(dist.all_reduce)
found["sum of a block"] = after(dist.all_reduce, data)
found["sum of a pipeline"] = after(dist.all_reduce, pipe)
found["mean"] = after(dist.all_reduce, op=dist.ReduceOp.AVG)
found["most"] = after(dist.all_reduce, op=dist.ReduceOp.MAX)
found["broadcast"] = after(dist.broadcast, src=size)
x = [torch.empty(4, device=d) for _ in range(n)]; dist.all_gather(x, mine); found["all_gather"] = [t[0].item() for t in x]
x = torch.empty(4 * n, device=d); dist.all_gather_into_tensor(x, mine); found["into one"] = x.tolist()
x = torch.empty(1, device=d); dist.reduce_scatter_tensor(x, torch.full((n,), block + 1.0, device=d)); found["scatter"] = x.tolist()
x = [None] * n; dist.all_gather_object(x, ["block", block]); found["objects"] = x
x = [block]; dist.broadcast_object_list(x, size); found["one object"] = x
x = [torch.empty(4, device=d) for _ in range(n)] if r == 0 else None; dist.gather(mine, x); found["gather"] = x and [t[0].item() for t in x]
x = torch.empty(4, device=d); dist.scatter(x, [mine * 3] * n if r == 0 else None); found["scattered"] = x.tolist()
x = torch.ones(3); dist.all_reduce(x); found["on the CPU"] = x.tolist()
other = (r + size) % n
x = torch.empty(4, device=d)
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine * 5, other), dist.P2POp(dist.irecv, x, other)]):
    work.wait()
found["message"] = x.tolist()
dist.barrier(); dist.monitored_barrier()
large, back = torch.randn(1 << 22, device=d), torch.empty(1 << 22, device=d)
with timer() as t:
    for _ in range(1 + 3 * block):
        large @ large
    dist.all_reduce(large, group=data)
    if block:
        dist.send(large, other)
    else:
        dist.recv(back, other)
    dist.all_reduce(large)
    torch.cuda.synchronize()
report(found=str(found), seconds=t.seconds)
dist.destroy_process_group()
"""  # noqa: E501


def test_few_ranks_stand_for_many(start: Callable[..., Any]) -> None:
    """Two of eight, one for each half, find what all eight find, to the last digit."""
    few, all_of_them = start(BLOCKS, 2, one_of=8), start(BLOCKS, 8)
    for rank, same in zip(few.ranks, (all_of_them.ranks[0], all_of_them.ranks[4]), strict=True):
        for name in ("found", "seconds"):
            assert rank.records[0][name] == same.records[0][name]
    assert few.emulated.collective_bytes(1) == all_of_them.emulated.collective_bytes(4)
    same = start(BLOCKS, 8, one_of=8)
    assert [r.records[0]["found"] for r in same.ranks] == [r.records[0]["found"] for r in all_of_them.ranks]


def test_nothing_comes_from_a_rank_that_is_only_thought_of(start: Callable[..., Any]) -> None:
    words = "only ranks 0, 4 of this group run here, so nothing can come from rank 5"
    for call in ("dist.broadcast(torch.ones(3), 5)", "dist.recv(torch.ones(3), 5)"):
        with pytest.raises(RankError, match=words):
            start(f"import torch, torch.distributed as dist\ndist.init_process_group()\n{call}\n", 2, one_of=8)


SUMS = """
import torch, torch.distributed as dist
from course_utils.rank import device, report

dist.init_process_group(); torch.cuda.set_device(device())
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

def each_us(nbytes, times):
    x = torch.zeros(nbytes // 4, device=device())
    dist.barrier(); torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        dist.all_reduce(x)
    end.record(); torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / times

report(waits=each_us(1 << 15, 1), small=each_us(1 << 15, 50), large=each_us(1 << 22, 50))
dist.destroy_process_group()
"""


def test_a_sum_that_a_program_waits_for_starts_once_the_host_has_called_it(start: Callable[..., Any]) -> None:
    """32 KiB on 8 H200 took 39.8 us so (stas00/ml-engineering). In a row, the host is ahead of what takes longer."""
    (found,) = start(SUMS, 1, "8xH200", one_of=8).ranks[0].records
    route = links.Route.of(cluster("8xH200"), range(8))
    assert found["waits"] == pytest.approx(39.8, rel=0.15)
    assert found["small"] == pytest.approx(links.CALL * 6, rel=0.1)
    assert found["large"] == pytest.approx(links.seconds("all_reduce", 1 << 22, route) * 1e6, rel=0.1)


@pytest.mark.parametrize(
    "calls, says",
    [
        ("dist.all_reduce(torch.ones(10**6 + r // 3, device=d))", "rank 3 has 1000001 numbers"),
        ("dist.all_reduce(torch.ones(4, device=d, dtype=torch.half if r else torch.float))", "rank 0 has float32"),
        ("dist.all_reduce(t) if r else dist.broadcast(t, 0)", "rank 0 calls broadcast, ranks 1 to 3 call all_reduce"),
        ("r == 1 or dist.all_reduce(t)", "rank 1 finished without joining in"),
        (
            "dist.all_to_all_single(t, t, [1] * 4, [2, 1, 1, 0] if r == 1 else [1] * 4)",
            "rank 1 .*2 numbers to rank 0.* 1",
        ),
        ("dist.send(t, 1) if r == 0 else r == 1 and dist.recv(t[:3], 0)", "4 numbers arrives where 3 are expected"),
    ],
)
def test_ranks_that_disagree_are_named(start: Callable[..., Any], calls: str, says: str) -> None:
    head = "import torch, torch.distributed as dist\nfrom course_utils.rank import device\ndist.init_process_group()\n"
    body = "d, r = device(), dist.get_rank()\ntorch.cuda.set_device(d)\nt = torch.ones(4, device=d)\n"
    with pytest.raises(RankError, match=says):
        start(f"{head}{body}{calls}\ndist.destroy_process_group()\n", 4)


class Wire:
    """What gloo does for `meeting.Post`, in one process: in order for each tag, and done once somebody waits."""

    def __init__(self, rank: int, sent: dict[Any, list[torch.Tensor]]):
        self.rank, self.sent = rank, sent

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        self.sent.setdefault((self.rank, to, tag), []).append(tensors[0])
        return Sent(lambda: None)

    def receive(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return Sent(lambda: tensors[0].copy_(self.sent[source, self.rank, tag].pop(0)))


class Sent:
    def __init__(self, act: Callable[[], Any]):
        self.act, self.done = act, False

    def is_completed(self) -> bool:
        return self.done

    def wait(self) -> None:
        assert not self.done, "gloo would wait for ever"
        self.act()
        self.done = True


def test_messages_come_in_order_and_their_copies_go() -> None:
    sent: dict[Any, list[torch.Tensor]] = {}
    one, other = (meeting.Post(Wire(rank, sent)) for rank in (0, 1))
    for value in (1.0, 2.0, 3.0):
        one.send(torch.full((2,), value), 1, tag=7, ready=value, known=value != 2)
    found = [torch.zeros(2) for _ in range(3)]
    letters = [other.expect(t, 0, tag=7) for t in found]
    assert other.take(letters[1]) == (2.0, False)  # what came before it, too
    assert other.take(letters[0]) == (1.0, True)
    assert [t.tolist() for t in found] == [[1, 1], [2, 2], [0, 0]]
    assert len(one.leaving[1, 7]) == 3
    other.send(torch.zeros(0), 0, tag=7, ready=0.0, known=True)
    one.take(one.expect(torch.zeros(0), 1, tag=7))  # which says that two were received
    assert len(one.leaving[1, 7]) == 1
    one.send(torch.zeros(4), 1, tag=7, ready=0.0, known=True)
    other.take(letters[2])
    with pytest.raises(RuntimeError, match="4 numbers arrives where 5"):
        other.take(other.expect(torch.zeros(5), 0, tag=7))
    one.send(torch.zeros(4), 1, tag=7, ready=0.0, known=True)
    with pytest.raises(RuntimeError, match="numbers of 4 bytes arrives where 8 bytes"):
        other.take(other.expect(torch.zeros(4, dtype=torch.int64), 0, tag=7))
    one.arrive()  # each is waited for once
    assert not one.leaving[1, 7] and one.gone[1, 7] == 5


def test_who_gets_another_number_of_elements_is_seen() -> None:
    sent = [[(3 * i + k) % 4 for k in range(3)] for i in range(3)]
    expected = [list(column) for column in zip(*sent, strict=True)]

    def total() -> float:
        return sum(meeting.balance(i, sent[i], expected[i]) for i in range(3)) % meeting.PRIME

    assert total() == 0
    expected[2][0] += 1
    assert total() != 0
    expected[2][1] -= 1
    assert total() != 0
    assert meeting.moved(0, [9, 4, 4], [9, 4, 4]) == 12.0 and meeting.moved(0, [9, 0, 0], [9, 6, 6]) == 18.0
    assert (
        meeting.split(torch.zeros(5, 2), [2, 0, 3], 3) == [4, 0, 6] and meeting.split(torch.zeros(0), [], 3) == [0] * 3
    )
    for sizes, says in (([2, 3], "not equal to group size"), ([2, 2, 2], "match total dim 0"), ([], "divide equally")):
        with pytest.raises(ValueError, match=says):
            meeting.split(torch.zeros(5), sizes, 3)
    meeting.alike("gather", [[torch.zeros(2)] * 3], torch.zeros(2), 3)
    with pytest.raises(ValueError, match=r"gather needs a list of 3 tensors of 2 numbers, got \[2, 2\]"):
        meeting.alike("gather", [[torch.zeros(2)] * 2], torch.zeros(2), 3)


UNEVEN = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from course_utils.rank import device, report

dist.init_process_group()
torch.cuda.set_device(device())
r, n, d, found = dist.get_rank(), dist.get_world_size(), device(), {}
sizes = [[i * k % 3 for k in range(n)] for i in range(n)]  # rows from rank i to rank k; rank 0 has none at all

def full(rows, width, value):
    return torch.full((rows, width), float(value), device=d)

for width in (3, 20_000):  # the second is large on some ranks and small on others

    def check(name, got, want):
        same = all(torch.equal(a, full(*a.shape, value)) for a, value in zip(got, want, strict=True))
        found[f"{name}, {width} wide"] = same or width > 3

    into, out_of = [sizes[i][r] for i in range(n)], sizes[r]
    own, out = full(sum(out_of), width, r), full(sum(into), width, -1)
    dist.all_to_all_single(out, own, into, out_of)
    check("all_to_all_single", out.split(into), range(n))
    outs = [full(rows, width, -1) for rows in into]
    dist.all_to_all(outs, list(own.split(out_of)))
    check("all_to_all", outs, range(n))
    into = [5 * (r == 2)] * n
    out = full(sum(into), width, -1)
    dist.all_to_all_single(out, full(5, width, r), into, [5 * (k == 2) for k in range(n)])
    check("all to rank 2", out.split(into), range(n))
    outs = [full(k, width, -1) for k in range(n)]
    dist.all_gather(outs, full(r, width, r))
    check("all_gather", outs, range(n))
    out = full(r, width, -1)
    dist.reduce_scatter(out, [full(k, width, r) for k in range(n)])
    check("reduce_scatter", [out], [n * (n - 1) / 2])
    a, b, before, after = full(3, width, -1), full(5, width, -1), (r - 1) % n, (r + 1) % n
    first, second = dist.irecv(a, before), dist.irecv(b, before)
    for rows, value in ((3, r), (5, r + 0.5)):
        dist.isend(full(rows, width, value), after)
    second.wait(), first.wait()
    check("messages", [a, b], [before, before + 0.5])

empty = torch.ones(0, 4, device=d)
for call in (
    lambda out: dist.all_reduce(out), lambda out: dist.broadcast(out, 1), lambda out: dist.reduce(out, 1),
    lambda out: dist.all_gather([out] * n, empty), lambda out: dist.all_gather_into_tensor(out, empty),
    lambda out: dist.reduce_scatter(out, [empty] * n), lambda out: dist.reduce_scatter_tensor(out, empty),
    lambda out: dist.all_to_all_single(out, empty), lambda out: dist.all_to_all([out] * n, [empty] * n),
    lambda out: dist.gather(out, [empty] * n if r == 0 else None),
    lambda out: dist.scatter(out, [empty] * n if r == 0 else None),
    lambda out: dist.isend(out, after) and dist.recv(out, before),
):
    call(empty.clone())

for dtype in (torch.float32, torch.bfloat16, torch.float16):
    mine = torch.full((2 * n,), r + 1.0, device=d, dtype=dtype)
    for op, want in ((dist.ReduceOp.AVG, (n + 1) / 2), (dist._make_nccl_premul_sum(0.25), n * (n + 1) / 8)):

        def check(name, got, want=want):
            found[f"{name} by {op} of {dtype}"] = got.tolist() == [want] * got.numel() and mine.tolist() == [r + 1] * 2 * n

        x = mine.clone(); dist.all_reduce(x, op); check("all_reduce", x)
        x = mine[:2].clone(); dist.reduce_scatter_tensor(x, mine, op); check("reduce_scatter_tensor", x)
        x = mine[:2].clone(); dist.reduce_scatter(x, list(mine.split(2)), op); check("reduce_scatter", x)
        x = mine.clone(); dist.reduce(x, 1, op); check("reduce", x, want if r == 1 else r + 1)
x = torch.arange(3, device=d) + r; dist.all_reduce(x, dist.ReduceOp.AVG); found["mean of integers"] = x.tolist() == [1, 2, 3]
x = torch.full((4,), 6e4, device=d).half(); dist.all_reduce(x, dist.ReduceOp.AVG); found["overflow"] = x[0].item() == 6e4

for shape, names in (((n,), ("shard",)), ((2, n // 2), ("replicate", "shard"))):
    for dtype in (torch.float32, torch.bfloat16):
        for factor in (2.0, 3.0, 4.0):
            model = nn.Linear(8, 4, bias=False).to(d)
            fully_shard(model, mesh=init_device_mesh("cuda", shape, mesh_dim_names=names), mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
            model.set_gradient_divide_factor(factor)
            model(torch.full((2, 8), r + 1.0, device=d)).sum().backward()
            gradient = model.weight.grad.to_local().cpu()
            want = torch.full_like(gradient, n * (n + 1) / factor)
            found[f"divided by {factor}, {dtype}, {shape}"] = torch.allclose(gradient, want, rtol=1e-2 * (dtype != torch.float32) + 1e-6)
dist.all_gather([full(k, 3, -1) for k in range(n)], full(r, 3, r))
report(wrong=sorted(name for name, right in found.items() if not right), checked=len(found))
dist.destroy_process_group()
"""  # noqa: E501


def test_ranks_decide_alike_and_sum_as_nccl_does(start: Callable[..., Any]) -> None:
    run = start(UNEVEN, 4)
    assert unnoticed(records_of(run).calls) == "", "other sizes are no other calls"
    for rank in run.ranks:
        assert rank.records[-1]["wrong"] == [] and rank.records[-1]["checked"] == 12 + 24 + 2 + 12


SENDS = """
import time, torch, torch.distributed as dist
from course_utils.rank import device, report

dist.init_process_group()
torch.cuda.set_device(device())
r, x, found = dist.get_rank(), torch.empty(1 << 28, device=device()), {}

def gib():
    return torch.cuda.memory_allocated() / 2**30

if r == 0:
    for _ in range(100):
        dist.send(x.clone(), 1)
    found["sent"] = [gib(), torch.cuda.max_memory_allocated() / 2**30]
    work = dist.isend(x.clone(), 1)
    found["a work keeps its tensor"] = gib()
    work.wait()
    found["waited for"] = gib()
    del work
    found["gone"] = gib()
    dist.isend(x.clone(), 1)
    found["nobody waits"] = gib()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x.clone(), 1)])
    found["a batch keeps none"] = gib()
else:
    time.sleep(100)  # on the virtual clock: it comes late
    for _ in range(102):
        dist.recv(x, 0)
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 0)])
    found["received"] = [gib(), torch.cuda.max_memory_allocated() / 2**30]
works[0].wait()
report(works=len(works), **found)
dist.destroy_process_group()
"""


def test_a_send_holds_memory_as_long_as_nccls_does(start: Callable[..., Any]) -> None:
    """By ProcessGroupNCCL: an isend's work has a reference to its tensor, a batch's has none."""
    sender, receiver = (rank.records[-1] for rank in start(SENDS, 2, "2xA100").ranks)
    want = {"sent": [1, 2], "a work keeps its tensor": 2, "waited for": 2, "gone": 1, "nobody waits": 1,
            "a batch keeps none": 1}  # fmt: skip
    assert {name: sender[name] for name in want} == want and receiver["received"] == [1, 1]


PIPELINE = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from course_utils.rank import device, report

dist.init_process_group()
torch.cuda.set_device(device())
r, p, rows, width, layers = dist.get_rank(), dist.get_world_size(), 256, 256, 31
x = torch.randn(8 * rows, width, device=device())
for name in ("GPipe", "1F1B", "Interleaved1F1B"):
    chunks = 2 if name == "Interleaved1F1B" else 1
    parts = [nn.Sequential(nn.Linear(width, width), *[nn.Tanh() for _ in range(layers)]) for _ in range(chunks)]
    stages = [pipelining.PipelineStage(part.to(device()), r + i * p, chunks * p, device()) for i, part in enumerate(parts)]
    kind = pipelining.schedules.get_schedule_class(name)
    schedule = kind(stages if chunks > 1 else stages[0], 8, loss_fn=nn.functional.mse_loss)
    held = []
    for step in range(2):
        torch.cuda.reset_peak_memory_stats()
        schedule.step(*([x] if r == 0 else []), **({"target": x} if r == p - 1 else {}))
        held.append(torch.cuda.memory_allocated())
    unit = layers * rows * width * 4  # what a micro-batch keeps: what each Tanh gives
    report(schedule=name, in_flight=(torch.cuda.max_memory_allocated() - held[0]) / unit, grown=held[-1] - held[0])
dist.destroy_process_group()
"""  # noqa: E501


def test_a_pipeline_keeps_the_micro_batches_that_are_in_flight(start: Callable[..., Any]) -> None:
    """By schedule and rank, counted by hand. The last rank keeps outputs and losses, too. For interleaved stages the
    count is that of torch's `analyze_pipeline_activation_liveness`."""
    want = {"GPipe": [8, 8, 8], "1F1B": [4, 3, 2], "Interleaved1F1B": [11, 9, 7]}
    for rank, found in enumerate(start(PIPELINE, 4, "4xA100").ranks):
        for record in found.records:
            assert record["grown"] == 0
            assert rank == 3 or int(record["in_flight"]) == want[record["schedule"]][rank], (rank, record)


def test_torch_2_10_runs_a_pipeline_in_one_piece_too() -> None:
    """As its `PipelineScheduleSingle` is written."""

    class GPipe:
        def __init__(self, stage: Any, n_microbatches: int, loss_fn: Any = None) -> None:
            assert n_microbatches >= stage.num_stages
            self._n_microbatches, self.loss_fn = n_microbatches, loss_fn

    edges.allow_few_pieces(GPipe)
    one, many = (GPipe(SimpleNamespace(num_stages=8), n, loss_fn="a") for n in (1, 32))
    assert (one._n_microbatches, many._n_microbatches, one.loss_fn) == (1, 32, "a")


def test_a_hang_names_who_is_missing(start: Callable[..., Any]) -> None:
    program = """
    import time, torch, torch.distributed as dist
    from course_utils.rank import device
    dist.init_process_group(); torch.cuda.set_device(device())
    while dist.get_rank() == 1:
        time.monotonic()
    dist.all_reduce(torch.ones(4, device=device()))
    """
    with pytest.raises(RankError, match="(?i)rank 0 waits in all_reduce.*rank 1 hasn't joined in"):
        start(program, 2, timeout=4)


@pytest.mark.parametrize("width", (8, 1024))
def test_ddp_makes_its_buckets_where_its_module_lies(start: Callable[..., Any], width: int) -> None:
    """Also without set_device: with a second bucket, and after the buckets were made again in step 2."""
    program = f"""
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from course_utils.rank import device, report
    dist.init_process_group()
    layers = torch.nn.Sequential(*[torch.nn.Linear({width}, {width}) for _ in range(3)])
    model = DDP(layers.to(device()), bucket_cap_mb=4)
    for _ in range(3):
        model(torch.ones(4, {width}, device=device())).sum().backward()
        dist.barrier()
    report(here=torch.cuda.memory_allocated(dist.get_rank()), there=torch.cuda.memory_allocated(1 - dist.get_rank()))
    """
    run = start(program, 2)
    assert all(
        record["there"] == 0 < record["here"] for rank in run.ranks for record in rank.records if "here" in record
    )


@pytest.fixture
def bench() -> Any:
    """`tools/bench_emulation.py`, which prints all of the rows that the tests below take some of."""
    return load_tool("bench_emulation")


def test_large_all_reduces_take_what_others_measured(bench: Any) -> None:
    rows = {row.what: row.off for row in bench.link_rows()}
    assert len(rows) == 8 and statistics.median(map(abs, rows.values())) < 0.15
    assert {what: off for what, off in rows.items() if what.endswith("1024MiB") and abs(off) > 0.1} == {}


def test_collectives_of_all_sizes_take_what_others_measured(bench: Any) -> None:
    """Over NVLink 4, from 32 KiB to 16 GiB, by nccl-tests and by a program that waits for each. 11 rows were fitted."""
    assert len(list(bench.collective_rows("calibration"))) == 11
    off = {row.what: row.off for row in bench.collective_rows("validation")}
    assert len(off) == 37 and statistics.median(map(abs, off.values())) < 0.03
    assert {what: error for what, error in off.items() if abs(error) > 0.17} == {}


def test_data_parallel_takes_what_others_measured(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a model that nothing was fitted to, on one A100 and divided among two and four."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    off = {row.what: row.off for row in bench.parallel_rows("validation", ("resnet50",))}
    assert len(off) == 9 and statistics.median(map(abs, off.values())) < 0.1
    assert {what: error for what, error in off.items() if abs(error) > 0.2} == {}


@pytest.mark.slow
def test_language_models_take_what_others_measured(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that nothing was fitted to: GPT-2 at each precision, compiled and not; FSDP on 8 to 256 GPUs; tensor
    parallelism. (Of pipelines, which take minutes, `bench_emulation.py language` tells.)"""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    quick = [case.id for case in bench.of_class("language_model") if "pp" not in case.inputs["case"].split(":")[4]]
    off = {row.what: row.off for row in bench.language_rows("validation", tuple(quick))}
    assert len(off) == 25 and statistics.median(map(abs, off.values())) < 0.1
    assert {what: error for what, error in off.items() if abs(error) > 0.25} == {}


def test_few_values_are_fitted_and_to_few_rows(bench: Any) -> None:
    assert all(case.inputs["cluster"].startswith("1x") for case in bench.cases(role="calibration"))
    assert len(bench.cases(role="calibration")) == 11 < len(bench.cases(role="validation"))
    assert all(len(types) + 1 <= 6 for types in bench.GENERATIONS.values())


def test_memory_is_what_torch_counts(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own MemTracker on fake tensors sees the same peaks, but for what isn't worth to be cut off a block, a MiB at
    most; a GPT's is what its formula says."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    rows = list(bench.memory_rows(("resnet18", "gpt-small")))
    assert len(rows) == 3
    assert all(abs(row.off) < (0.03 if by == "counted by torch" else 0.1) for row, by in rows), rows


@pytest.mark.slow
def test_programs_take_what_they_took_on_a_real_gpu(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200, in rows that nothing was fitted to: times, and memory but for cuBLAS's workspace."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    rows = list(bench.real_rows("validation"))
    off = {unit: [abs(row.off) for row in rows if row.unit == unit] for unit in ("ms", "GB")}
    assert len(off["ms"]) == 14 and statistics.median(off["ms"]) < 0.12 and max(off["ms"]) < 0.25, rows
    assert len(off["GB"]) == 7 and all(-1e-3 < row.other - row.emulated < 0.15 for row in rows if row.unit == "GB"), (
        rows
    )


@pytest.mark.slow
def test_training_takes_what_others_measured(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that nothing was fitted to, on one GPU."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    rows = list(bench.published_rows(1, "validation"))
    assert len(rows) >= 19 and statistics.median(abs(row.off) for row in rows) < 0.15


@pytest.mark.slow
def test_the_same_steps_as_predicted(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real reducer and the real schedules on modelled GPUs against `predict`, which shares no code with them."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    rows = [*bench.ddp_rows((1, 2, 8), (4.0, 25.0, 1000.0)), *bench.pipeline_rows("free", (4,))]
    assert {row.what: row.off for row in rows if abs(row.off) > 0.01} == {}
    assert len(rows) == 17
