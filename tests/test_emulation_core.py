"""Programs on modelled GPUs: what a rank sees of them, and which mistakes are found. Each program runs in a launch of
its own, with the warm server."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course_utils.emulation.clusters import cluster
from course_utils.launching.launcher import RankError, launch

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all

HEAD = """import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from course_utils.rank import device, report, timer
"""
TRAIN = """dist.init_process_group()
torch.cuda.set_device(device())
model = DDP(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(64, 1024), torch.randint(10, (64,))
for step in range(2):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(device())), y.to(device()))
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Launch a program on an emulated cluster. Returns the Run, which also has what was `said`, line by line."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))

    def start(program: str, ranks: int = 1, cluster: str = "2xT4") -> Any:
        script = tmp_path / "program.py"
        script.write_text(HEAD + textwrap.dedent(program).lstrip("\n"))
        found = launch(script, ranks, cluster=cluster, quiet=True, timeout=100)
        log = (Path(found.path) / "rank0.log").read_text()
        found.said = [line for line in log.splitlines() if line.startswith("emulated:")]
        return found

    return start


# What's planted, on how many ranks, what of TRAIN is replaced by what, and what the failure says.
FAULTS: dict[str, tuple[int, str, str, str]] = {
    "labels left on the CPU": (1, "y.to(device())", "y", "same device.*cuda:0 and cpu"),
    "model left on the CPU": (1, ".to(device()))\noptimizer", ")\noptimizer", "same device.*cuda:0 and cpu"),
    "half times float after autocast": (
        1,
        "    loss = nn",
        "    with torch.autocast('cuda'):\n        h = model(x.to(device()))\n    h @ torch.eye(10, device=device())\n"
        "    loss = nn",
        "same dtype",
    ),
    "binary_cross_entropy under autocast": (
        1,
        "    loss = nn",
        "    with torch.autocast('cuda'):\n        h = model(x.to(device())).sigmoid()\n"
        "        nn.functional.binary_cross_entropy(h, torch.zeros_like(h))\n    loss = nn",
        "unsafe to autocast",
    ),
    "wrong keyword of an event": (
        1,
        "    loss.b",
        "    torch.cuda.Event(timing=True)\n    loss.b",
        "unexpected keyword",
    ),
    "events without timing": (
        1,
        "    loss.b",
        "    a, b = torch.cuda.Event(), torch.cuda.Event()\n    a.record(); b.record(); a.elapsed_time(b)\n    loss.b",
        "enable_timing=True",
    ),
    "elapsed_time before anybody waited": (
        1,
        "    loss.b",
        "    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n    a.record()\n"
        "    big = torch.randn(4096, 4096, device='cuda')\n"
        "    big @ big; b.record(); a.elapsed_time(b)\n    loss.b",
        "must be completed",
    ),
    "a GPU that isn't there": (1, "set_device(device())", "set_device(2)", "invalid device ordinal"),
    "a CPU tensor through nccl": (
        2,
        "dist.init_process_group()",
        "dist.init_process_group('nccl')\ndist.all_reduce(torch.ones(3))",
        "No backend type associated with device type cpu",
    ),
    "numpy of a GPU tensor": (1, "    loss.b", "    x.to(device()).numpy()\n    loss.b", "Tensor.cpu()"),
    "shapes that differ by rank": (
        2,
        "    loss.b",
        "    dist.all_reduce(torch.ones(3 + dist.get_rank(), device=device()))\n    loss.b",
        "don't call the same collective",
    ),
    "20 GB on a GPU of 15": (
        1,
        "    loss.b",
        "    torch.empty(5_000_000_000, device='cuda')\n    loss.b",
        "out of memory.*weights",
    ),
    "a tensor moved to a wrong ordinal": (1, "x.to(device())", "x.to('cuda:7')", "invalid device ordinal"),
    "forgotten set_device": (
        2,
        "torch.cuda.set_device(device())",
        "torch.ones(3, device='cuda') + torch.ones(3, device=device())",
        "same device.*cuda:0 and cuda:1",
    ),
    "all ranks on the first GPU": (
        2,
        "torch.cuda.set_device(device())\n",
        "device = lambda: 'cuda'\n",
        "ranks 0 and 1 both use GPU 0 of their node.*set_device",
    ),
    "CUDA_VISIBLE_DEVICES that leaves one GPU": (
        1,
        "torch.cuda.set_device(device())",
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '1'; torch.cuda.set_device(1)",
        "invalid device ordinal.*CUDA_VISIBLE_DEVICES leaves 1",
    ),
    "a worker that uses the GPU": (
        1,
        "    loss.b",
        "    move = lambda rows: torch.stack(rows).cuda()\n"
        "    next(iter(torch.utils.data.DataLoader(x, 4, num_workers=1, collate_fn=move)))\n    loss.b",
        "forked subprocess",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, run: Callable[..., Any]) -> None:
    ranks, old, new, says = FAULTS[fault]
    assert old in TRAIN
    with pytest.raises(RankError, match=f"(?s){says}"):
        run(TRAIN.replace(old, new, 1), ranks)


# Programs and the remarks that they get, one pattern for each.
REMARKS: dict[str, tuple[str, list[str]]] = {
    "what's right": (TRAIN, []),
    "a stream that nobody waits for": (
        """
        a, side = torch.randn(1000, 1000, device="cuda"), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a @ a
        b + 1
        torch.cuda.current_stream().wait_stream(side)
        b + 2
        """,
        ["a race: aten::add reads.*line 9"],
    ),
    "written while it's read": (
        """
        a, side = torch.randn(1000, 1000, device="cuda"), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a @ a
        a.zero_()
        del a, b
        torch.cuda.synchronize()
        """,
        ["a race: aten::zero_ overwrites what another stream may still be reading.*line 9"],
    ),
    "events order two streams": (
        """
        side, done = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(side):
            b = torch.randn(1000, 1000, device="cuda") * 2
            done.record()
        done.wait()
        b + 1
        """,
        [],
    ),
    "a collective in flight": (
        """
        dist.init_process_group()
        x = torch.randn(100_000, device=device())
        work = dist.all_reduce(x, async_op=True)
        torch.zeros_like(x), torch.empty_like(x)
        x + 1
        work.wait()
        x + 2
        """,
        ["a race: aten::add uses a tensor that a collective still fills.*line 9"],
    ),
    "a copy that may not be there": (
        """
        there = torch.randint(9, (100_000,), device="cuda").to("cpu", non_blocking=True)
        there.sum()
        again = torch.randint(9, (100_000,), device="cuda").to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        assert again.sum() > 0
        """,
        ["the CPU reads what a non_blocking copy may still bring.*line 6"],
    ),
    "values that weren't computed": (
        """
        x = torch.randn(400, 400, device="cuda")
        loss = x.mean()
        if loss > 0:
            print("never")
        report(loss=loss)
        small = torch.zeros(2, device="cuda")
        small += loss
        small.cpu().numpy()
        """,
        ["not computed.*line 7", "not computed.*line 9", "not computed.*line 12"],
    ),
    "weights that are drawn until they fit": (
        """
        weight = torch.empty(400, 400, device="cuda")
        nn.init.trunc_normal_(weight, std=0.02)
        nn.init.trunc_normal_(weight, std=3.0)
        """,
        [],
    ),
    "tensors that are made like others": (
        """
        x, y = torch.randn(400, 400, device="cuda"), torch.ones(3)
        made = [x.new_full((2,), 3.0, device="cpu"), torch.zeros_like(x, device="cpu"), x.new_tensor(1.0, device="cpu")]
        made += [torch.empty_like(y.cuda(), device="cpu", pin_memory=True), torch.ones_like(x).type_as(y)]
        assert all(t.device.type == "cpu" for t in made) and made[0].tolist() == [3.0, 3.0]
        made = [y.new_zeros(2, device="cuda"), torch.rand_like(y, device="cuda"), x.new_ones(2), y.type_as(x)]
        assert all(t.device == x.device for t in made) and made[2].tolist() == [1.0, 1.0]
        elsewhere = x.new_zeros(4, device="cuda:1")
        assert elsewhere.device.index == 1 and torch.cuda.memory_allocated(1) == 512
        assert y.requires_grad_().type_as(x).sum().backward() is None and y.grad.device.type == "cpu"
        """,
        [],
    ),
    "half precision where the CPU's autocast would cast": (
        """
        for dtype in (torch.float16, torch.bfloat16):
            x = torch.ones(2, 3, 8, 8, device="cuda", dtype=dtype)
            with torch.autocast("cuda", dtype):
                assert torch.cat([x, x.float()]).dtype == torch.stack([x, x.float()]).dtype == torch.float32
                assert nn.functional.pad(x, (1, 1, 1, 1), mode="reflect").dtype == dtype
                assert nn.functional.max_pool3d(x, 2).dtype == torch.cat([x, x]).dtype == dtype
                assert nn.functional.mse_loss(x, x).dtype == torch.float32 and (x @ x.float()).dtype == dtype
        """,
        [],
    ),
    "values that were": (
        """
        x = torch.randint(1000, (1 << 20,), device="cuda")
        assert 450 < x.float().cpu().double().mean().item() * 0 + x.sum().item() / x.numel() < 550
        assert (x == 7).sum() > 500 and x.bincount().sum().item() == 1 << 20
        t = torch.ones(3, device="cuda")
        assert t.mul_(2).tolist() == [2.0] * 3 and torch.zeros(1 << 20, device="cuda").dtype == torch.float32
        """,
        ["not computed.*line 6"],
    ),
    "half precision with a scaler": (
        """
        model = nn.Linear(1024, 1024).cuda()
        scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                out = model(torch.randn(64, 1024, device="cuda"))
                assert out.dtype == torch.float16 and out.softmax(-1).dtype == torch.float32
            scaler.scale(out.float().sum()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 65536.0 and optimizer.state[model.weight]["step"] == 3
        """,
        [],
    ),
    "compiled": (
        "f = torch.compile(nn.Linear(3, 3).cuda())\nf(torch.ones(2, 3, device='cuda'))\n",
        ["torch.compile: operators that it would fuse take the time of fused kernels"],
    ),
}


@pytest.mark.parametrize("name", REMARKS)
def test_what_is_said_of_a_program(name: str, run: Callable[..., Any]) -> None:
    import re

    program, patterns = REMARKS[name]
    said = run(program).said
    assert len(said) == len(patterns) and all(map(re.search, patterns, said)), said


def test_what_a_program_asks_of_its_gpu(run: Callable[..., Any]) -> None:
    """Streams, clocks, memory, copies, threads, files: whatever it isn't would be an AssertionError there."""
    run("""
        import copy, io, threading, time
        assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and device() == torch.device("cuda", 0)
        assert torch.cuda.get_device_capability() == (7, 5)
        assert not torch.cuda.is_bf16_supported(including_emulation=False)
        assert torch.accelerator.current_accelerator().type == "cuda" and torch.cuda.mem_get_info()[1] > 14 * 2**30

        a = torch.randn(4096, 4096, device="cuda")
        before, start, end = time.perf_counter(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ a
        end.record()
        assert time.perf_counter() - before < 1e-3 and not end.query()      # the host runs ahead ...
        torch.cuda.synchronize()
        took = time.perf_counter() - before
        assert 0.01 < took < 0.1 and abs(start.elapsed_time(end) / 1e3 / took - 1) < 0.05
        before = time.time()
        time.sleep(3600)
        assert 3600 <= time.time() - before < 3601

        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        b = torch.empty(1 << 20, device="cuda")
        b.untyped_storage().resize_(0)
        assert torch.cuda.memory_allocated() == held and torch.cuda.max_memory_allocated() == held + (4 << 20)

        model = nn.Linear(512, 512).cuda()
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        assert twin.weight.device == device() == torch.load(file)["weight"].device
        file.seek(0)
        assert torch.load(file, map_location="cpu")["weight"].device.type == "cpu"
        assert b.new_zeros(3).is_cuda and torch.as_tensor(torch.ones(2), device="cuda:1").get_device() == 1
        assert torch.ones(3, device="cuda").to("cuda:1").device.index == 1

        seen = []
        def other():
            torch.cuda.set_device(1)
            seen.append((torch.ones(2, device="cuda") + 1).device.index)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert seen == [1] and torch.cuda.current_device() == 0

        data = torch.utils.data.DataLoader(torch.arange(8.0), 4, num_workers=1, pin_memory=True)
        assert [(b.cuda(non_blocking=True).sum().item(), b.is_pinned()) for b in data] == [(6.0, True), (22.0, True)]
    """)


def test_what_memory_is_used_for(run: Callable[..., Any]) -> None:
    """By kind, at its peak, with FSDP's own gathering and DDP's own buckets."""
    program = """
        import sys
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group()
        torch.cuda.set_device(device())
        model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)]).to(device())
        if sharded:
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
        else:
            model = DDP(model)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4096, 1024, device=device())).sum().backward()
            optimizer.step()
        dist.destroy_process_group()
    """
    mib = {}
    for sharded in (False, True):
        found = run(f"sharded = {sharded}\n" + textwrap.dedent(program), 2, "2xH100")
        rank = json.loads((Path(found.path) / "rank0.emulated.json").read_text())
        mib[sharded] = {kind: nbytes / 2**20 for kind, nbytes in rank["at_peak"].items()}
        assert sum(rank["at_peak"].values()) == rank["peak_bytes"] and 0 < rank["peak_s"] < rank["host_s"]
    assert mib[False]["weights"] == mib[False]["buckets"] == 16 and mib[False]["optimizer"] == 32
    assert mib[True]["weights"] == 8 and mib[True]["optimizer"] == 16 and 4 <= mib[True]["gathered"] <= 16


def test_gradients_come_back_to_where_they_belong(run: Callable[..., Any]) -> None:
    run("""
        from torch.utils.checkpoint import checkpoint
        table, head = nn.Embedding(20_000, 32), nn.Linear(32, 10).to("cuda:1")
        rows = checkpoint(lambda i: table(i).to("cuda:0") * 2, torch.randint(20_000, (256,)), use_reentrant=False)
        head(rows.to("cuda:1")).sum().backward()
        assert table.weight.grad.device.type == "cpu" and head.weight.grad.device.index == 1
        x = torch.arange(3.0, dtype=torch.float64, requires_grad=True)
        gradient, = torch.autograd.grad((x.to("cuda", torch.float32) ** 3).sum(), x, create_graph=True)
        gradient.sum().backward()
        assert x.grad.dtype == torch.float64 and x.grad.tolist() == [0.0, 6.0, 12.0]
    """)


def test_a_model_is_sharded_before_it_has_weights(run: Callable[..., Any]) -> None:
    """The device is nobody's choice until a mesh takes this rank's, and DTensors draw, hold and attend to their own
    part only."""
    run(
        """
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group()
        assert not torch.cuda.is_initialized()
        with torch.device("meta"):
            model = nn.Linear(512, 256)
        fully_shard(model)
        assert torch.cuda.current_device() == dist.get_rank() and torch.cuda.is_initialized()
        model.to_empty(device=device())
        assert torch.cuda.memory_allocated() == (512 * 128 + 128) * 4
        model.reset_parameters()
        model(torch.ones(4, 512, device=device())).sum().backward()
        assert model.weight.grad.to_local().shape == (128, 512) and model.weight.grad.device == device()
        from torch.distributed.tensor import DTensor, Shard, init_device_mesh
        mesh = init_device_mesh("cuda", (2,))
        q = DTensor.from_local(torch.randn(2, 4, 16, 8, device=device(), requires_grad=True), mesh, [Shard(1)])
        out = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        assert out.shape == (2, 8, 16, 8) and out.placements == (Shard(1),)
        out.sum().backward()
        dist.destroy_process_group()
        """,
        2,
    )


def test_a_model_may_lie_on_two_gpus_of_one_process(run: Callable[..., Any]) -> None:
    """Its optimizer and `clip_grad_norm_` work on each GPU's tensors apart; the timeline says which GPU did what."""
    found = run("""
        for optimizer in (torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW):
            for choice in ({}, {"foreach": False}, {"fused": True}):
                torch.manual_seed(0)
                lower, upper = nn.Linear(64, 64, device="cuda:0"), nn.Linear(64, 64, device="cuda:1")
                steps = optimizer([*lower.parameters(), *upper.parameters()], lr=0.1, **choice)
                upper(lower(torch.ones(8, 64, device="cuda:0")).to("cuda:1")).sum().backward()
                norm = nn.utils.clip_grad_norm_([*upper.parameters(), *lower.parameters()], 1.0)
                assert norm.device.index == 1 and norm.item() > 1
                steps.step()
                assert [p.grad.device.index for p in (lower.weight, upper.weight)] == [0, 1]
        groups = torch.optim.Optimizer._group_tensors_by_device_and_dtype(
            [[upper.weight, lower.weight, upper.bias, torch.ones(1)], [None] * 4], with_indices=True)
        assert [(str(device), at) for (device, _), (_, at) in sorted(groups.items(), key=str)] == [
            ("cpu", [3]), ("cuda:0", [1]), ("cuda:1", [0, 2])]
    """)
    spans = found.emulated.by_gpu()
    assert {gpu for gpu, *_ in spans} == {0, 1} and len(spans) == len(found.emulated.spans(0))
    assert {label for *_, label in spans} == {"forward", "backward", "step"}


@pytest.mark.parametrize(("backend", "busy"), [("nccl", 100), ("gloo", 0)])
def test_a_gpu_that_waits_in_nccl_is_busy_to_a_monitor(run: Callable[..., Any], backend: str, busy: int) -> None:
    """A kernel that waits is a kernel that runs. gloo waits on the CPU."""
    found = run(
        f"""
        import time, pynvml
        dist.init_process_group("{backend}")
        torch.cuda.set_device(device())
        x = torch.zeros(4, device=device())
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            time.sleep(5)
        dist.all_reduce(x)
        x.sum().item()
        report(busy=torch.cuda.utilization())
        dist.destroy_process_group()
        """,
        2,
        "2xA100",
    )
    slept, waited = found.values("busy")
    assert slept <= 2 and abs(waited - busy) <= 2


def test_the_driver_is_emulated_too(run: Callable[..., Any]) -> None:
    """`nvidia-smi`, pynvml, and what torch.cuda asks of them, see the modelled GPUs and the memory of all ranks."""
    found = run(
        """
        import os, subprocess, pynvml
        dist.init_process_group()
        torch.cuda.set_device(device())
        x = torch.ones((1 + dist.get_rank()) * 64 * 2**20, device=device())  # 256 and 512 MiB
        x + 1
        torch.cuda.synchronize()
        dist.barrier()
        def smi(*words):
            return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True).stdout
        asked = "--query-gpu=index,name,memory.used,temperature.gpu"
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(1)
        try:
            refused = torch.cuda.temperature()
        except pynvml.NVMLError as error:
            refused = str(error)
        report(table=smi(), query=smi(asked, "--format=csv,noheader,nounits"), listed=smi("-L"), odd=smi("-q"),
               shell=os.popen("nvidia-smi -i 1 --query-gpu memory.total --format csv").read(),
               count=pynvml.nvmlDeviceGetCount(), name=pynvml.nvmlDeviceGetName(handle), refused=refused,
               used=pynvml.nvmlDeviceGetMemoryInfo(handle).used, torchs=torch.cuda.device_memory_used(1),
               reserved=torch.cuda.memory_reserved(), busy=torch.cuda.utilization())
        dist.barrier()
        """,
        2,
        "2xA100",
    )
    zero, one = found.ranks[0].records[0], found.ranks[1].records[0]
    held = [zero["reserved"], one["reserved"]]
    assert held == [512 << 20, 1 << 30]
    assert zero["query"].splitlines() == [f"{i}, NVIDIA A100-SXM4-80GB, {held[i] >> 20}, [N/A]" for i in (0, 1)]
    assert zero["table"].startswith("Emulated GPUs of 2xA100") and f"{held[1] >> 20} MiB" in zero["table"]
    assert zero["listed"].splitlines()[1].startswith("GPU 1: NVIDIA A100-SXM4-80GB") and "emulated" in zero["listed"]
    assert zero["shell"].splitlines() == ["memory.total [MiB]", "81152 MiB"]
    assert zero["odd"].startswith("an emulated nvidia-smi doesn't know -q")
    assert (zero["count"], zero["name"], zero["refused"]) == (2, "NVIDIA A100-SXM4-80GB", "Not Supported")
    assert zero["used"] == zero["torchs"] == held[1] and 0 < zero["busy"] <= 100
    assert any("nvmlDeviceGetTemperature" in line and "program.py, line" in line for line in found.said)
    assert not list(Path(found.path).glob("*.gpus")), "left behind"


def test_what_memory_an_operator_touches() -> None:
    """In times of a tensor of 64 MiB."""
    import torch

    from course_utils.emulation.plans import Plans, flat, tensors_in

    aten, plans = torch.ops.aten, Plans(cluster("1xA100").device)
    a, b = (torch.empty(2**24, device="meta") for _ in range(2))
    half = torch.empty(2**24, dtype=torch.bfloat16, device="meta")

    def times(func: Any, *args: Any, **kwargs: Any) -> float:
        leaves = flat((args, kwargs) if kwargs else args)
        took = plans.plan(func, args, kwargs, leaves, tensors_in(leaves)).seconds
        return round(took * plans.device.memory_Bps * plans.device.memory_reached / 2**26, 3)

    for func in (aten.empty_like.default, aten.new_empty.default):
        assert times(func, a, *([[2**24]] if "new" in func.name() else [])) == 0, "memory is only taken"
    assert times(aten.empty.memory_format, [2**24]) == 0
    for func in (aten.zero_.default, aten.normal_.default, aten.zeros_like.default, aten.randn_like.default):
        assert times(func, a) == 1, f"{func} only writes"
    assert times(aten.copy_.default, a, b) == 2 and times(aten.copy_.default, a, half) == 1.5
    assert times(aten._foreach_copy_.default, [a], [b]) == 2 and times(aten._foreach_zero_.default, [a]) == 1
    assert times(aten.clone.default, a) == 2 and times(aten.mul_.Tensor, a, b) == 3
    assert times(aten.add.Tensor, a, b) == times(aten.add.out, a, b, out=b) == 3


@pytest.mark.parametrize(
    ("name", "sms"),
    [("T4", 40), ("V100", 80), ("V100-32GB", 80), ("A100", 108), ("A100-40GB", 108), ("H100", 132), ("H200", 132)],
)
def test_streaming_multiprocessors(name: str, sms: int) -> None:
    assert cluster(f"1x{name}").device.sm_count == sms


@pytest.mark.parametrize(("name", "mib"), [("T4", 4), ("V100-32GB", 6), ("A100", 40), ("H100", 50), ("H200", 0)])
def test_caches(name: str, mib: int) -> None:
    """Libraries size their chunks by it; of an H200 nobody has told it."""
    assert cluster(f"1x{name}").device.l2_bytes == mib * 2**20


def test_properties_are_the_devices(run: Callable[..., Any]) -> None:
    found = run(
        """
        known = torch.cuda.get_device_properties(0)
        report(sms=known.multi_processor_count, threads=known.max_threads_per_multi_processor,
               l2=getattr(known, "L2_cache_size", None))
        """
    )
    assert {key: found.value(key) for key in ("sms", "threads", "l2")} == {"sms": 40, "threads": 1024, "l2": 4 * 2**20}


@pytest.mark.parametrize("tuned", [False, True])
def test_triton_is_refused_in_a_line(run: Callable[..., Any], tuned: bool) -> None:
    pytest.importorskip("triton")
    tune = '@triton.autotune(configs=[triton.Config({"n": 8}), triton.Config({"n": 16})], key=[])' if tuned else ""
    with pytest.raises(RankError, match="NotEmulated: an emulated cluster can't run Triton kernels: .*torch's operat"):
        run(
            f"""
            import triton, triton.language as tl
            {tune}
            @triton.jit
            def add_one(x, n: tl.constexpr):
                at = tl.arange(0, n)
                tl.store(x + at, tl.load(x + at) + 1)
            add_one[(1,)](torch.ones(16, device="cuda"){"" if tuned else ", n=16"})
            """
        )


def test_nvidia_smi_can_be_started() -> None:
    """It has to keep its permission in a checkout and in a wheel."""
    import course_utils.emulation

    assert os.access(Path(course_utils.emulation.__file__).parent / "bin" / "nvidia-smi", os.X_OK)
