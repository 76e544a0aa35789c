"""Launching on the GPUs of this machine, however many there are: `make test-gpu`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, gpu_count

from course_utils.launching import local
from course_utils.launching.launcher import launch
from course_utils.machine.here import Machine

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]  # one at a time

STEP = """import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from course_utils.rank import backend, device, devices, report, timer

if __name__ == "__main__":
    if device().type == "cuda":
        torch.cuda.set_device(device())
    dist.init_process_group(backend())
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(256, 64).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        with timer() as t:
            optimizer.zero_grad()
            model(torch.randn(128, 256, device=device())).square().mean().backward()
            optimizer.step()
        report(step_s=t.seconds)
    weight = model.module.weight.detach()
    sums = torch.zeros(dist.get_world_size(), device=device())
    sums[dist.get_rank()] = weight.double().sum().float()
    dist.all_reduce(sums)
    report(device=str(device()), devices=len(devices()), backend=dist.get_backend(),
           gap=(sums - sums[0]).abs().max().item(),
           name=torch.cuda.get_device_name() if device().type == "cuda" else "",
           visible=os.environ["CUDA_VISIBLE_DEVICES"])
    dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    path = tmp_path / "step.py"
    path.write_text(STEP)
    yield path


def test_the_gpus_of_this_machine_can_be_used() -> None:
    here = Machine.here()
    print(here)
    assert len(here.gpus) == gpu_count()
    for gpu in here.gpus:
        assert gpu.usable, f"GPU {gpu.index} ({gpu.name}, driver {gpu.driver}): {gpu.reason}"


@pytest.mark.parametrize("engine", ["local", "cold", "torchrun"])
def test_one_rank_a_gpu(script: Path, engine: str) -> None:
    """Each rank has its own GPU, over nccl. The start is warm if importing torch leaves CUDA alone."""
    n = len(Machine.here().usable_gpus)
    run = launch(script, n, engine=engine)
    assert run.values("backend") == ["nccl"] * n and run.values("device") == [f"cuda:{i}" for i in range(n)]
    assert max(run.values("gap")) == 0.0
    if engine == "local":
        assert run.engine == "warm", "the start was cold"
    print(run)


def test_auto_never_fails(script: Path) -> None:
    n = len(Machine.here().usable_gpus)
    run = launch(script)
    assert run.world_size == (n if n >= 2 else 2) and set(run.values("backend")) == {"nccl" if n >= 2 else "gloo"}


def test_more_ranks_than_gpus_fall_back_to_the_cpu(script: Path) -> None:
    n = len(Machine.here().usable_gpus)
    run = launch(script, n + 1)
    assert (
        set(run.values("device")) == {"cpu"}
        and set(run.values("visible")) == {""}
        and f"This machine has {n} GPU" in run.placement
    )


def test_ranks_share_a_gpu_over_gloo(script: Path) -> None:
    run = launch(script, 2, device="shared")
    assert (
        run.values("backend") == ["gloo"] * 2
        and run.values("device") == ["cuda:0"] * 2
        and max(run.values("gap")) == 0.0
    )


def test_all_gpus_in_one_rank(script: Path) -> None:
    run = launch(script, gpus_per_rank="all")
    assert run.world_size == 1 and run.values("devices") == [len(Machine.here().usable_gpus)]


@pytest.mark.gpu(4)
def test_two_gpus_a_rank(script: Path) -> None:
    run = launch(script, 2, gpus_per_rank=2)
    assert run.values("device") == ["cuda:0", "cuda:2"] and run.values("devices") == [2, 2]


def test_the_server_leaves_cuda_alone(script: Path) -> None:
    """A process that has opened the driver can't be forked."""
    launch(script, 1)
    pid = local.server()
    assert pid
    opened = [
        link for link in (p.resolve() for p in Path(f"/proc/{pid}/fd").iterdir()) if str(link).startswith("/dev/nvidia")
    ]
    assert not opened, opened


def test_a_kernel_that_has_already_used_cuda(script: Path) -> None:
    code = (
        "import sys, torch\nx = torch.ones(1000, 1000, device='cuda'); (x @ x).sum().item()\n"
        f"from course_utils import launch\nrun = launch({str(script)!r}, 1)\n"
        "assert run.engine == 'warm', run.engine\nassert run.values('device') == ['cuda:0']"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_rank_that_hangs_on_its_gpu_ends(script: Path) -> None:
    """Its stack is shown, its process is gone, and the GPU can be used again."""
    from course_utils.launching.launcher import RankError

    script.write_text("import torch, time\nx = torch.ones(4, device='cuda')\nprint('on', x.device)\ntime.sleep(600)\n")
    with pytest.raises(RankError) as raised:
        launch(script, 1, timeout=20)
    assert "`time.sleep(600)`, line 4" in raised.value.stacks[0]
    script.write_text(STEP)
    assert launch(script, 1).ok


BLOCKS = """import random
import torch
from course_utils.rank import device, report

torch.cuda.set_device(device())
draw, live, found = random.Random(0), [], []
streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
for _ in range(600):
    if live and draw.random() < 0.46:
        live.pop(draw.randrange(len(live)))
    else:
        nbytes = int(2 ** draw.uniform(5, 28.5))
        with torch.cuda.stream(streams[draw.randrange(3)]):
            live.append(torch.empty(nbytes, dtype=torch.uint8, device=device()))
    if draw.random() < 0.02:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    found += [torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), stats["segment.all.current"],
              stats["inactive_split_bytes.all.current"]]
report(found=found, calls=stats["num_device_alloc"])
"""


@pytest.mark.parametrize("asked", ["", "expandable_segments:True", "max_split_size_mb:64"])
def test_an_emulated_gpu_gives_out_memory_as_this_one(script: Path, asked: str) -> None:
    """As tests/recorded_allocator.json, by this machine's torch; it takes 4 GB."""
    script.write_text(BLOCKS)
    env = {"PYTORCH_ALLOC_CONF": asked}
    real, emulated = (launch(script, 1, env=env, **place) for place in ({}, {"cluster": "1xH100"}))
    assert "GPU" in real.placement
    assert real.values("found") == emulated.values("found") and real.values("calls") == emulated.values("calls")
