"""What this computer has: processor, memory, and GPUs that torch can compute on.

Nothing here initialises CUDA in the calling process: GPUs are counted through NVML and tried in a child process.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..folders import course_home, write_whole
from ..show.table import ShowsTable, Table
from .gpu_builds import arch_fits, build_for

TRY_S = 180
# Runs in a child process, with the environment of this one: what CUDA lists, in CUDA's order, and whether each device
# computes.
_TRY_GPUS = """
import json
import torch
out, reason = [], ""
try:
    torch.cuda.init()
    count = torch._C._cuda_getDeviceCount()
except Exception as error:
    count, reason = 0, "no GPU" if "No CUDA GPUs" in str(error) else str(error).strip().splitlines()[0]
for i in range(count):
    about = torch.cuda.get_device_properties(i)
    found = {"uuid": str(about.uuid), "name": about.name, "memory_bytes": about.total_memory, "reason": ""}
    found["capability"] = [about.major, about.minor]
    try:
        x = torch.ones(64, 64, device=f"cuda:{i}")
        if (x @ x).sum().item() != 64.0**3:
            found["reason"] = "a matrix product came out wrong"
    except Exception as error:
        found["reason"] = str(error).strip().splitlines()[0]
    out.append(found)
if torch.version.cuda is None:
    reason = "a build without CUDA"
archs = (torch._C._cuda_getArchFlags() or "").split() if hasattr(torch._C, "_cuda_getArchFlags") else []
print(json.dumps({"listed": out, "reason": reason, "torch": torch.__version__, "archs": archs}))
"""
# Docker gives 64 MiB of /dev/shm. NCCL takes some 10 MB for each channel between GPUs that can't reach each other's
# memory, and NVIDIA asks for 1 GiB.
SHM_FOR_NCCL = 512 * 2**20
# What people write into CUDA_VISIBLE_DEVICES to mean no GPU.
_NONE_MEANT = ("", "-1", "none", "void", "nodevfiles")


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG slice of a GPU. `uuid` names it in CUDA_VISIBLE_DEVICES, and `index` is the GPU's number in
    nvidia-smi.

    `usable` says whether torch could compute on it, and `reason` why not. `slices` are the names of the GPU's MIG
    slices.
    """

    index: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    driver: str
    uuid: str = ""
    usable: bool = True
    reason: str = ""
    slices: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Its name, memory, compute capability and driver."""
        version = ".".join(map(str, self.capability))
        return f"{self.name}, {self.memory_bytes / 2**30:.0f} GiB, compute capability {version}, driver {self.driver}"


@dataclass(frozen=True, repr=False)
class Machine(ShowsTable):
    """This computer. `cores` are those this process may use (affinity and cgroup quota counted), `shm_bytes` the size
    of /dev/shm."""

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
        shm_bytes = shm.f_frsize * shm.f_blocks if shm else 0
        return cls(name, usable_cores(), memory, shm_bytes, _gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))

    def __str__(self) -> str:
        gpus = ", ".join(f"{n} x {name}" for name, n in Counter(g.name for g in self.gpus).items()) or "no GPU"
        return f"{self.name}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB, {gpus}"

    def table(self) -> Table:
        rows = [
            ("processor", self.name),
            ("cores you may use", str(self.cores)),
            ("memory", f"{self.memory_bytes / 2**30:.0f} GiB"),
        ]
        rows += [("shared memory (/dev/shm)", f"{self.shm_bytes / 2**30:.1f} GiB")] if self.shm_bytes else []
        for g in self.gpus:
            rows.append((f"GPU {g.index}", g.words + ("" if g.usable else f"; not usable: {g.reason}")))
        rows += [] if self.gpus else [("GPUs", "none: ranks compute on the CPU and talk over gloo")]
        return Table((), rows, "ll")


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


def usable_cores() -> int:
    """Cores that this process may use: its affinity and its container's quota count, not only what the host has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *_quota()]))


def _quota(cgroup: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """The number of whole cores that a container may use, in a list; the list is empty if there's no limit."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # cgroups version 2, and 1
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in files).split()
            return [max(1, int(quota) // int(period))] if int(quota) > 0 else []
        except (OSError, ValueError):  # not this version, or "max"
            continue
    return []


def _gpus(visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in CUDA's order, each with what trying it gave.

    We ask CUDA itself what the variable means: CUDA counts from the fastest GPU on, unless CUDA_DEVICE_ORDER says
    otherwise, and nvidia-smi doesn't. From then on a GPU goes by its UUID, which means the same to everybody.
    """
    there = _nvml()
    if not there or (visible is not None and visible.strip().lower() in _NONE_MEANT):
        return ()
    tried = _try_gpus(visible, os.environ.get("CUDA_DEVICE_ORDER"))
    if tried["reason"] == "no GPU" and visible is not None:
        reason = (
            f"CUDA_VISIBLE_DEVICES={visible} names no GPU that CUDA finds here; `nvidia-smi -L` lists the names of GPUs"
            " and of MIG slices"
        )
        return (replace(there[0], usable=False, reason=reason),)
    if not tried["listed"]:
        reason = tried["reason"] if tried["reason"] not in ("", "no GPU") else "CUDA lists no GPU"
        return tuple(replace(g, usable=False, reason=reason) for g in there)
    wanted = [] if visible is None else [name.strip() for name in visible.split(",")]
    found = [_known(there, i, listed, wanted[i] if i < len(wanted) else "") for i, listed in enumerate(tried["listed"])]
    found = [_without_code(gpu, tried) for gpu in found]
    seen = {g.index for g in found}
    if found[-1].uuid.startswith("MIG-"):
        why = f"CUDA lists {found[-1].uuid}, but not {{}} next to it; name one MIG slice"
        found += [
            replace(found[-1], uuid=name, usable=False, reason=why.format(name))
            for name in wanted[len(found) :]
            if name.startswith("MIG-")
        ]
    if visible is None:
        why = "CUDA does not list it" + (" next to a MIG slice" if found[0].uuid.startswith("MIG-") else "")
        found += [replace(g, usable=False, reason=why) for g in there if g.index not in seen]
    return tuple(found)


def _known(there: tuple[Gpu, ...], place: int, listed: dict[str, Any], wanted: str) -> Gpu:
    """The device that CUDA lists at `place`, with a name that selects the same one in a rank's CUDA_VISIBLE_DEVICES.
    `wanted` is the name that was asked for."""
    by_uuid = {g.uuid: g for g in there} | {name: g for g in there for name in g.slices}
    whole, part = f"GPU-{listed['uuid']}", f"MIG-{listed['uuid']}"
    # MIG-GPU-<uuid>/<gpu instance>/<compute instance>
    of_old_name = next((g for g in there if wanted.startswith(f"MIG-{g.uuid}/")), None)
    parent = by_uuid.get(wanted) or of_old_name or by_uuid.get(part) or by_uuid.get(whole)
    reason = listed["reason"]
    if wanted.startswith("MIG-"):
        name = wanted
    elif part in by_uuid:
        name = part
    elif parent and len(parent.slices) == 1:
        name = parent.slices[0]
    else:
        name = whole
        if parent and parent.slices:
            reason = (
                "it is divided into MIG slices, and CUDA does not say which one it takes; name one: export"
                f" CUDA_VISIBLE_DEVICES={parent.slices[0]}"
            )
    major, minor = listed["capability"]
    index, driver = (parent.index, parent.driver) if parent else (place, there[0].driver)
    return Gpu(index, listed["name"], listed["memory_bytes"], (major, minor), driver, name, not reason, reason)


def _without_code(gpu: Gpu, tried: dict[str, Any]) -> Gpu:
    """A GPU that failed because this torch has no code for it says so, and which build has."""
    archs = tried.get("archs", [])
    if gpu.usable or not archs or arch_fits(gpu.capability, archs):
        return gpu
    has = f"torch {tried['torch']} has no code for compute capability {'.'.join(map(str, gpu.capability))}"
    return replace(gpu, reason=f"{has}; a build that has: `make lab {build_for(gpu.capability)}`")


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
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            name, uuid = str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle))
            gpus.append(Gpu(i, name, memory, (int(major), int(minor)), driver, uuid, slices=_slices(pynvml, handle)))
        return tuple(gpus)
    finally:
        pynvml.nvmlShutdown()


def _slices(pynvml: Any, handle: Any) -> tuple[str, ...]:
    """The UUIDs of a GPU's MIG slices; none if it isn't divided, or too old for that."""
    names = []
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            for i in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                try:
                    names.append(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i))))
                except pynvml.NVMLError:  # nothing has this number
                    continue
    except pynvml.NVMLError:
        pass
    return tuple(names)


@cache
def _try_gpus(visible: str | None, order: str | None) -> dict[str, Any]:
    """What CUDA lists if CUDA_VISIBLE_DEVICES is `visible` and CUDA_DEVICE_ORDER is `order`; None means not set."""
    there = [(g.uuid, g.slices) for g in _nvml()]
    asked_of = repr((visible, order, there, _nvml()[0].driver, sys.executable, _torch_version()))
    key = hashlib.sha256(asked_of.encode(errors="replace")).hexdigest()[:12]
    kept = course_home() / "runs" / f".gpus-{key}.json"
    try:
        return json.loads(kept.read_text())
    except (OSError, ValueError):
        pass
    asked = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    env = {k: v for k, v in {**os.environ, **asked}.items() if v is not None}
    command = [sys.executable, "-c", _TRY_GPUS]
    try:
        child = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TRY_S)
    except subprocess.TimeoutExpired:
        return {"listed": [], "reason": f"trying the GPUs took more than {TRY_S} s"}
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return {"listed": [], "reason": f"trying the GPUs failed: {last}"}
    result = json.loads(child.stdout.strip().splitlines()[-1])
    if result["reason"] not in ("", "no GPU"):
        result["reason"] = f"torch {result['torch']} cannot use it: {result['reason']}"
    # a failure may be a GPU that was busy: look again next time
    if result["listed"] and not any(found["reason"] for found in result["listed"]):
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(kept, json.dumps(result))
    return result


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
