"""What this computer has, and which device, backend and threads the ranks of a launch get.

Nothing here initialises CUDA in the calling process: GPUs are counted through NVML and tried in a child process.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import operator
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from .folders import course_home

TRY_S = 180
# Runs in a child process: computes once on each visible GPU, and says in words what failed.
_TRY_GPUS = """
import json, sys
import torch
out = []
for i in range(torch.cuda.device_count()):
    try:
        x = torch.ones(64, 64, device=f"cuda:{i}")
        ok = (x @ x).sum().item() == 64.0**3
        out.append([str(torch.cuda.get_device_properties(i).uuid), ok, "" if ok else "a matrix product came out wrong"])
    except Exception as error:
        out.append([str(torch.cuda.get_device_properties(i).uuid), False, str(error).strip().splitlines()[0]])
reason = "" if out else "torch " + torch.__version__ + " sees no GPU (a build without CUDA, or one that needs a newer driver)"
print(json.dumps({"tried": out, "reason": reason}))
"""


MOST_RANKS = 32  # even on a small machine: enough for every effect, and at 400 MB for each cold rank no danger to a laptop


@dataclass(frozen=True)
class Gpu:
    """One GPU: its UUID names it in CUDA_VISIBLE_DEVICES; `usable` says that torch computed on it, `reason` why it could not."""

    index: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    driver: str
    uuid: str = ""
    usable: bool = True
    reason: str = ""


@dataclass(frozen=True)
class Machine:
    """This computer. `cores` are those this process may use (affinity and cgroup quota counted), `shm_bytes` the size of /dev/shm."""

    name: str
    cores: int
    memory_bytes: int
    shm_bytes: int
    gpus: tuple[Gpu, ...] = ()

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        return tuple(g for g in self.gpus if g.usable)

    @classmethod
    @cache
    def _fixed(cls) -> tuple[str, int]:
        return _cpu_name(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @classmethod
    def here(cls) -> Machine:
        """Look at this computer. GPUs are tried once for each driver and torch, and the answer is kept under runs/."""
        name, memory = cls._fixed()
        shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
        return cls(name, _cores(), memory, shm.f_frsize * shm.f_blocks if shm else 0, _gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))

    def __str__(self) -> str:
        gpus = "no GPU" if not self.gpus else ", ".join(f"{n} x {name}" for name, n in _count(g.name for g in self.gpus).items())
        return f"{self.name}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB, {gpus}"

    def _repr_html_(self) -> str:
        rows = [("processor", self.name), ("cores you may use", str(self.cores)), ("memory", f"{self.memory_bytes / 2**30:.0f} GiB")]
        rows += [("shared memory (/dev/shm)", f"{self.shm_bytes / 2**30:.1f} GiB")] if self.shm_bytes else []
        for g in self.gpus:
            what = f"{g.name}, {g.memory_bytes / 2**30:.0f} GiB, compute capability {g.capability[0]}.{g.capability[1]}, driver {g.driver}"
            rows.append((f"GPU {g.index}", what + ("" if g.usable else f"; not usable: {g.reason}")))
        rows += [] if self.gpus else [("GPUs", "none: ranks compute on the CPU and talk over gloo")]
        return "<table>" + "".join(f"<tr><th style='text-align:left'>{k}</th><td style='text-align:left'>{v}</td></tr>" for k, v in rows) + "</table>"


def _count(names: object) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:  # type: ignore[attr-defined]
        counts[name] = counts.get(name, 0) + 1
    return counts


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        found = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *_quota()]))


def _quota(cgroup: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """The cores that a container is given, in whole ones: none or one number, for a container may be given all."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # cgroups version 2, and 1
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in files).split()
            return [max(1, int(quota) // int(period))] if int(quota) > 0 else []
        except (OSError, ValueError):  # not this version, or "max"
            continue
    return []


def _gpus(visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, through NVML, each with what trying it gave."""
    found = _nvml()
    if visible is not None:
        chosen = []
        for want in (w.strip() for w in visible.split(",")):
            match = [g for g in found if want == str(g.index) or (want and g.uuid.startswith(want))]
            if not match:
                break  # CUDA, too, ignores what follows the first unknown entry
            chosen += match[:1]
        found = tuple(chosen)
    if not found:
        return ()
    tried = _try_gpus(",".join(g.uuid for g in found))
    known = {uuid: (ok, reason) for uuid, ok, reason in tried["tried"]}
    result = []
    for g in found:
        ok, reason = known.get(g.uuid.removeprefix("GPU-"), (False, tried["reason"] or "torch does not list this GPU"))
        result.append(Gpu(**{**asdict(g), "usable": ok, "reason": reason}))
    return tuple(result)


@cache
def _nvml() -> tuple[Gpu, ...]:
    """All GPUs of this machine, asked for once: the driver takes a while to answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, or no library: no GPU
        return ()
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        gpus = []
        for i in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(i)
            capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            gpus.append(Gpu(i, str(pynvml.nvmlDeviceGetName(handle)), memory, capability, driver, str(pynvml.nvmlDeviceGetUUID(handle))))
        return tuple(gpus)
    finally:
        pynvml.nvmlShutdown()


@cache
def _try_gpus(uuids: str) -> dict:
    key = hashlib.sha256(f"{uuids} {_nvml()[0].driver} {sys.executable} {_torch_version()}".encode()).hexdigest()[:12]
    kept = course_home() / "runs" / f".gpus-{key}.json"
    try:
        return json.loads(kept.read_text())
    except (OSError, ValueError):
        pass
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuids}
    try:
        child = subprocess.run([sys.executable, "-c", _TRY_GPUS], env=environment, capture_output=True, text=True, timeout=TRY_S)
    except subprocess.TimeoutExpired:
        return {"tried": [], "reason": f"trying the GPUs took more than {TRY_S} s"}
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return {"tried": [], "reason": f"trying the GPUs failed: {last}"}
    result = json.loads(child.stdout.strip().splitlines()[-1])
    if result["tried"] and all(ok for _, ok, _ in result["tried"]):  # a failure may be a GPU that was busy: look again next time
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(result))
        partial.replace(kept)
    return result


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Placement:
    """What the ranks of one launch get; `sentence` says it in a line, `env` tells it to the ranks."""

    ranks: int
    device: Literal["cpu", "cuda", "shared"]
    backend: str
    gpus_per_rank: int
    threads: int
    size: Literal["cpu", "gpu"]
    sentence: str
    env: dict[str, str]


def place(machine: Machine, ranks: int | str = "auto", gpus_per_rank: int | str = 1, device: str = "auto", threads: int | None = None) -> Placement:
    """Decide the devices of a launch. It never fails because the hardware is smaller than asked for: it falls back, and says so.

    `ranks="auto"` is one rank for each GPU (each group of `gpus_per_rank`) where there are two or more, otherwise 2, and 1 for
    `gpus_per_rank="all"`. `device` is auto, cuda, cpu, or shared (all ranks on the first GPU, over gloo: right but not fast).
    Raises ValueError for ranks below 1 or far beyond the cores, an unknown device, or a bad `gpus_per_rank` or `threads`.
    """
    gpus = machine.usable_gpus
    if device not in ("auto", "cuda", "cpu", "shared"):
        raise ValueError(f"device must be auto, cuda, cpu or shared; got {device!r}")
    per_rank = None if gpus_per_rank == "all" else _whole("gpus_per_rank", gpus_per_rank, "all")
    if ranks != "auto":
        world = _whole("ranks", ranks, "auto")
    elif per_rank is None:
        world = 1
    else:
        groups = len(gpus) // per_rank
        world = groups if groups >= 2 and device in ("auto", "cuda") else 2
    if world > (most := max(MOST_RANKS, 4 * machine.cores)):
        raise ValueError(f"{world} ranks on {machine.cores} cores would only wait for each other, and fill the memory; {most} is the most here")
    per_rank = per_rank or max(1, len(gpus) // world)
    per_thread = max(1, machine.cores // world) if threads is None else _whole("threads", threads)

    noun = "1 rank" if world == 1 else f"{world} ranks"
    need = world * per_rank
    env = {"COURSE_GPUS_PER_RANK": str(per_rank), "OMP_NUM_THREADS": str(per_thread)}
    if device == "shared" and gpus:
        sentence = f"{noun} share GPU {gpus[0].index} ({gpus[0].name}) over gloo: the results are right, the times say nothing about several GPUs."
        env |= {"COURSE_DEVICE": "shared", "COURSE_SIZE": "gpu", "CUDA_VISIBLE_DEVICES": gpus[0].uuid or str(gpus[0].index)}
        return Placement(world, "shared", "gloo", 1, per_thread, "gpu", sentence, env)
    if device != "cpu" and need <= len(gpus):
        each = "a GPU" if per_rank == 1 else f"{per_rank} GPUs"
        sentence = f"{noun} on {gpus[0].name}, {'with ' + each if world == 1 else each + ' each'}, backend nccl."
        env |= {"COURSE_DEVICE": "cuda", "COURSE_SIZE": "gpu", "CUDA_VISIBLE_DEVICES": ",".join(g.uuid or str(g.index) for g in gpus[:need])}
        return Placement(world, "cuda", "nccl", per_rank, per_thread, "gpu", sentence, env)
    sentence = f"{noun} on the CPU, backend gloo, {per_thread} of {machine.cores} cores{'' if world == 1 else ' each'}."
    if world * per_thread > machine.cores:
        sentence = f"{noun} on the CPU, backend gloo, sharing {machine.cores} core{'s' * (machine.cores > 1)}: times include waiting for a core."
    if device != "cpu":
        sentence += f" {_what_gpus_would_change(machine, world, per_rank)}"
    env |= {"COURSE_DEVICE": "cpu", "COURSE_SIZE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return Placement(world, "cpu", "gloo", per_rank, per_thread, "cpu", sentence, env)


def _what_gpus_would_change(machine: Machine, world: int, per_rank: int) -> str:
    need, here = world * per_rank, len(machine.usable_gpus)
    unusable = [g for g in machine.gpus if not g.usable]
    if unusable:
        return f"GPU {unusable[0].index} ({unusable[0].name}) cannot be used: {unusable[0].reason}."
    if here:
        share = "one" if per_rank == 1 else str(per_rank)
        return f"This machine has {here} GPU{'s' * (here > 1)}; with {need} {'the rank' if world == 1 else 'each rank'} would use {share}, over nccl."
    own = "its own" if per_rank == 1 else f"{per_rank} of its own"
    return f"With {need} GPU{'s' * (need > 1)} {'it' if world == 1 else 'each rank'} would have {own}, over nccl."


def _whole(name: str, value: object, word: str = "") -> int:
    """`value` as an int, when it is a whole number (of numpy too) from 1 on."""
    try:
        number = 0 if isinstance(value, (bool, str)) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a whole number from 1 on{f', or {word!r}' if word else ''}; got {value!r}")
    return number
