"""Measure what a launch costs on this machine: warm and cold against `torchrun --standalone`, memory of a rank,
imports, and a whole lesson.

Times are seconds from the call until all ranks have ended: the median, the fastest and the slowest. Close other
programs first.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LESSON = ROOT / "notebooks" / "04_distributed_data_parallel.ipynb"
WARM_REPEATS, SLOW_REPEATS = 15, 3

PRIVATE = """
def private_MiB():
    try:
        with open("/proc/self/smaps_rollup") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1024
    except OSError:
        return float("nan")
"""

ALL_REDUCE = f"""
import torch
import torch.distributed as dist
from course_utils.rank import report
{PRIVATE}
if __name__ == "__main__":
    dist.init_process_group("gloo")
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == dist.get_world_size()
    report(private_MiB=private_MiB())
    dist.destroy_process_group()
"""

DDP_STEP = f"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from course_utils.rank import report
{PRIVATE}
if __name__ == "__main__":
    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(10, (32,)))
    loss.backward()
    optimizer.step()
    report(private_MiB=private_MiB())
    dist.destroy_process_group()
"""

# One rank, so that nobody is waited for; the fastest of many blocks, since other work only adds.
COLLECTIVES = """
import time, torch, torch.distributed as dist
from course_utils.rank import report
dist.init_process_group("gloo")
t = torch.ones(10)
for _ in range(40):
    start = time.perf_counter()
    for _ in range(500):
        dist.all_reduce(t)
    report(call_us=(time.perf_counter() - start) / 500 * 1e6)
dist.destroy_process_group()
"""


def timed(function: Callable[[], object], repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def span(values: list[float]) -> str:
    return f"{statistics.median(values):7.3f} ({min(values):.3f} to {max(values):.3f})"


def by_torchrun(script: Path, ranks: int) -> None:
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    env = {**os.environ, "OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        command, env=env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def launches(folder: Path) -> None:
    from course_utils.launching.launcher import launch, warm_up

    warm_up()
    print(f"{'launch, seconds':34}{'warm':>27}{'cold':>27}{'torchrun':>27}{'torchrun/warm':>15}{'torchrun/cold':>15}")
    memory: dict[str, float] = {}
    for name, source in (("tiny all-reduce", ALL_REDUCE), ("DDP step with an optimizer", DDP_STEP)):
        script = folder / f"{name.split()[0].lower()}.py"
        script.write_text(source)
        for ranks in (2, 4):
            first = launch(script, ranks, device="cpu", quiet=True)  # waits for the server, the first time
            if first.engine != "warm":
                print(f"no warm start here: launches were {first.engine}")
            warm = timed(partial(launch, script, ranks, device="cpu", quiet=True), WARM_REPEATS)
            cold_run = launch(script, ranks, device="cpu", quiet=True, engine="cold")
            cold = timed(partial(launch, script, ranks, device="cpu", quiet=True, engine="cold"), SLOW_REPEATS)
            peer = timed(partial(by_torchrun, script, ranks), SLOW_REPEATS)
            slow = statistics.median(peer)
            ratios = f"{slow / statistics.median(warm):15.1f}{slow / statistics.median(cold):15.1f}"
            print(f"{name + f', {ranks} ranks':34}{span(warm):>27}{span(cold):>27}{span(peer):>27}{ratios}", flush=True)
            memory = {"warm": first.samples("private_MiB").median, "cold": cold_run.samples("private_MiB").median}
    print("private memory a rank, DDP step:  " + ", ".join(f"{how} {mib:.0f} MiB" for how, mib in memory.items()))


def collectives(folder: Path) -> None:
    """What the record of collectives costs, from launches that take turns."""
    from course_utils.launching.launcher import launch

    script = folder / "collectives.py"
    script.write_text(COLLECTIVES)
    fastest: dict[str, list[float]] = {"0": [], "64": []}
    for _ in range(5):
        for size, found in fastest.items():
            env = {"TORCH_FR_BUFFER_SIZE": size}
            found.append(min(launch(script, 1, device="cpu", quiet=True, env=env, engine="cold").values("call_us")))
    without, kept = (statistics.median(found) for found in fastest.values())
    print(f"a collective of one rank: {without:.1f} us, with its record {kept:.1f} us: {kept - without:.1f} us more")


def imports() -> None:
    def start(code: str) -> float:
        return min(timed(lambda: subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT), 5))

    bare = start("pass")
    kernel = "from course_utils import claim, figures, launch, predict, sweep, Machine, Samples"
    print(
        f"imports beyond the interpreter's {bare:.3f} s: course_utils {start('import course_utils') - bare:.3f} s, ",
        end="",
        flush=True,
    )
    print(f"with what a lesson imports {start(kernel) - bare:.3f} s, torch {start('import torch') - bare:.2f} s")


def lesson() -> None:
    import nbformat
    from nbclient import NotebookClient

    if not LESSON.exists():
        return
    os.environ["COURSE_NOTEBOOK"] = LESSON.name
    notebook = nbformat.read(LESSON, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(LESSON.parent)}}
    )
    print(f"lesson {LESSON.stem}, all cells: {timed(client.execute, 1)[0]:.0f} s")


def main() -> None:
    from course_utils.machine.here import Machine

    print(Machine.here())
    print(f"load of the last minute: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        launches(Path(folder))
        collectives(Path(folder))
    imports()
    lesson()


if __name__ == "__main__":
    main()
