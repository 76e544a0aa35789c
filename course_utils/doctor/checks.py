"""What each finding means: every check turns what was found into rows, ok or with a cure, and looks at nothing itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..machine import Gpu, Machine

Status = Literal["ok", "warning", "problem"]
GIB = 2**30

PYTHONS = ((3, 11), (3, 13))
TORCHES = ((2, 11), (2, 15))
DRIVER_FOR_CUDA = {12: 525, 13: 580}  # the oldest driver branch that runs a build for this CUDA release
REINSTALL = "uv pip install --torch-backend=auto torch torchvision"


@dataclass(frozen=True)
class Row:
    """One check: what was found, and the cure where it is not ok."""

    name: str
    status: Status
    found: str
    cure: str = ""


@dataclass(frozen=True)
class Torch:
    """What a process that imported torch said: version, CUDA release of the build (None: a CPU build), GPU architectures it has code for.

    `asked` is False where no process could answer in time, and only the installed version is known.
    """

    version: str
    cuda: str | None = None
    arch: tuple[str, ...] = ()
    asked: bool = True


@dataclass(frozen=True)
class Gloo:
    """How the trial of two ranks ended; `reached` is import, connect, sum or done, `error` the last line of what went wrong."""

    reached: str
    seconds: float
    error: str = ""


def python(found: Sequence[int]) -> list[Row]:
    text = ".".join(map(str, found))
    if PYTHONS[0] <= tuple(found[:2]) <= PYTHONS[1]:
        return [Row("Python", "ok", text)]
    return [Row("Python", "problem", f"{text}; the course needs {_range(PYTHONS)}", "run `make lab` in the course's folder: it fetches a Python that fits")]


def torch_build(torch: Torch) -> list[Row]:
    numbers = numbers_of(torch.version)
    if not numbers:
        return [Row("torch", "problem", "not installed, or its import fails", f"`{REINSTALL}`")]
    build = f", built for CUDA {torch.cuda}" if torch.cuda else ", built for the CPU only" if torch.asked else ""
    text = f"{torch.version}{build}"
    if TORCHES[0] <= numbers[:2] <= TORCHES[1]:
        return [Row("torch", "ok", text)]
    newest = ".".join(map(str, TORCHES[1]))
    wrong = f"{text}; the course was made for {_range(TORCHES)}"
    return [Row("torch", "warning" if numbers[:2] > TORCHES[1] else "problem", wrong, f'`uv pip install --torch-backend=auto "torch=={newest}.*" torchvision`')]


def gpus(machine: Machine, torch: Torch, cards: int = 0, visible: str | None = None) -> list[Row]:
    """One row for each GPU; `cards` are the NVIDIA cards on the PCI bus, which may be there without a driver, `visible` is CUDA_VISIBLE_DEVICES."""
    if not machine.gpus:
        if visible in ("", "-1"):
            return [Row("GPU", "ok", "hidden by CUDA_VISIBLE_DEVICES: ranks compute on the CPU")]
        if cards:
            cure = "install NVIDIA's driver, 580 or newer; in a container, start it with `--gpus all`; until then everything runs on the CPU"
            return [Row("GPU", "warning", f"{count(cards, 'NVIDIA card')} on the bus, but the driver does not answer", cure)]
        return [Row("GPU", "ok", "none: ranks compute on the CPU and talk over gloo")]
    return [_gpu(gpu, torch) for gpu in machine.gpus]


def _gpu(gpu: Gpu, torch: Torch) -> Row:
    name = f"GPU {gpu.index}"
    capability = f"{gpu.capability[0]}.{gpu.capability[1]}"
    text = f"{gpu.name}, {gpu.memory_bytes / GIB:.0f} GiB, compute capability {capability}, driver {gpu.driver}"
    if torch.asked and not torch.cuda:
        return Row(name, "problem", f"{text}; torch is a build without CUDA and cannot use it", f"`{REINSTALL}`")
    if torch.arch and not arch_fits(gpu.capability, torch.arch):  # before the driver: a new one would not help
        wrong = f"{text}; this torch has no code for it (it has {', '.join(torch.arch)})"
        return Row(name, "problem", wrong, f"`{REINSTALL}`, which picks a build for this GPU if there is one")
    needed = DRIVER_FOR_CUDA.get(numbers_of(torch.cuda)[0], 0) if torch.cuda else 0
    driver = numbers_of(gpu.driver)
    if driver and driver[0] < needed:
        cure = f"install driver {needed} or newer, or a torch that fits this driver: `{REINSTALL}`"
        return Row(name, "problem", f"{text}; torch for CUDA {torch.cuda} needs driver {needed} or newer", cure)
    if not gpu.usable:
        cure = f"check that `nvidia-smi` lists it and that no other program holds it; if that does not help, `{REINSTALL}`"
        return Row(name, "problem", f"{text}; a trial computation failed: {gpu.reason}", cure)
    return Row(name, "ok", f"{text}; a trial computation gave the right result")


def arch_fits(capability: tuple[int, int], archs: Sequence[str]) -> bool:
    """Whether a build has code for this compute capability.

    Machine code (`sm_86`) runs on the same major version from its minor version on, with an a (`sm_90a`) only on exactly its own version. Portable code
    (`compute_80`) is compiled on any newer GPU.
    """
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if not match:
            continue
        kind, major, minor, letter = match[1], int(match[2]), int(match[3]), match[4]
        if letter == "a":
            fits = capability == (major, minor)
        elif kind == "sm" or letter == "f":
            fits = capability[0] == major and capability[1] >= minor
        else:
            fits = capability >= (major, minor)
        if fits:
            return True
    return False


def cores(machine: Machine, total: int, load: float | None) -> list[Row]:
    """`total` are the computer's cores, `machine.cores` those this process may use; `load` is the mean number of busy processes in the last minute."""
    text = f"{machine.cores} to use" + (f" of {total} (an affinity mask or a container's quota holds back the rest)" if machine.cores < total else "")
    if machine.cores < 2:
        cure = "give the container or the virtual machine 2 cores or more; the lessons run, but two ranks are no faster than one"
        return [Row("cores", "warning", text, cure)]
    if load is not None and load > 0.75 * total:
        return [Row("cores", "warning", f"{text}; other programs keep {load:.1f} busy", "close them before you measure: speed-ups would look too small")]
    return [Row("cores", "ok", text)]


def memory(total: int, available: int | None) -> list[Row]:
    if not total:
        return []
    text = f"{total / GIB:.1f} GiB" + (f", {available / GIB:.1f} GiB available" if available is not None else "")
    free = total if available is None else available
    if free < 1.5 * GIB:
        return [Row("memory", "problem", text, "close other programs or other notebooks' kernels (Kernel, Shut Down All); a lesson needs about 2 GiB")]
    if free < 3 * GIB:
        return [Row("memory", "warning", text, "enough for two ranks; close other notebooks' kernels before you start more")]
    return [Row("memory", "ok", text)]


def shared_memory(machine: Machine) -> list[Row]:
    if not machine.shm_bytes:
        return [Row("shared memory", "warning", "there is no /dev/shm", "DataLoader workers need it: mount a tmpfs there")]
    text = f"/dev/shm has {machine.shm_bytes / GIB:.1f} GiB" if machine.shm_bytes >= GIB else f"/dev/shm has {machine.shm_bytes / 2**20:.0f} MiB"
    cure = "start the container with `--shm-size=2g` (Docker gives 64 MiB otherwise), or `sudo mount -o remount,size=2g /dev/shm`"
    if machine.shm_bytes < 128 * 2**20:
        return [Row("shared memory", "problem", f"{text}: DataLoader workers die with a bus error when it is full", cure)]
    if machine.shm_bytes < 512 * 2**20:
        return [Row("shared memory", "warning", f"{text}: enough for small batches only", cure)]
    return [Row("shared memory", "ok", text)]


def disk(home: Path, writable: bool, free: int) -> list[Row]:
    text = f"{free / GIB:.1f} GiB free where runs/ lies ({home})"
    if not writable:
        return [Row("disk", "problem", f"{home} cannot be written", "name a folder of yours, `export COURSE_HOME=~/course`, and start JupyterLab again")]
    if free < GIB // 2:
        return [Row("disk", "problem", text, "free some space, or set COURSE_HOME to a folder on another disk")]
    if free < 3 * GIB:
        return [Row("disk", "warning", text, "enough for the image sets drawn by the course; CIFAR-100 or ImageNet need more")]
    return [Row("disk", "ok", text)]


def open_files(limit: int | None) -> list[Row]:
    if limit is None:
        return []
    cure = "`ulimit -n 4096` in the terminal that starts JupyterLab"
    if limit < 256:
        return [Row("open files", "problem", f"at most {limit} a process", cure)]
    if limit < 1024:
        return [Row("open files", "warning", f"at most {limit} a process: too few for many DataLoader workers", cure)]
    return [Row("open files", "ok", f"at most {limit} a process")]


def loopback(error: str, host: str, addresses: Sequence[str] | None) -> list[Row]:
    """`error` of a connection over 127.0.0.1, empty when it worked; `addresses` are those of the host name, None when looking it up did not end."""
    hosts = f"add a line `127.0.1.1 {host}` to /etc/hosts"
    if error:
        cure = "ranks find each other there; allow loopback in the firewall or the sandbox"
        return [Row("network", "problem", f"no TCP connection over 127.0.0.1: {error}", cure)]
    if addresses is None:
        return [Row("network", "warning", f"looking up this host's name ({host}) takes too long, and may slow every launch", hosts)]
    if not addresses:
        return [Row("network", "warning", f"this host's name ({host}) has no address", hosts)]
    return [Row("network", "ok", f"connections over 127.0.0.1 work; {host} is {addresses[0]}")]


def compiler(name: str, error: str) -> list[Row]:
    """`name` of the C++ compiler, empty when there is none; `error` when it did not compile."""
    cure = "`sudo apt install g++`, `conda install cxx-compiler` or, on macOS, `xcode-select --install`; only torch.compile needs it"
    if not name:
        return [Row("C++ compiler", "warning", "none found", cure)]
    if error:
        return [Row("C++ compiler", "warning", f"{name} does not compile a small program: {error}", cure)]
    return [Row("C++ compiler", "ok", f"{name} compiles: torch.compile can be used")]


def packages(found: Mapping[str, str | None]) -> list[Row]:
    """Versions of what the notebooks need beside torch; None for a package that is missing."""
    least = {"jupyterlab": (4, 4), "ipywidgets": (8, 1), "matplotlib": (3, 9), "torchvision": (0, 26)}
    missing = [name for name, got in found.items() if got is None]
    old = [f"{name} {got} (needs {'.'.join(map(str, least[name]))})" for name, got in found.items() if got is not None and numbers_of(got)[:2] < least[name]]
    text = ", ".join(f"{name} {got}" for name, got in found.items() if got is not None)
    if missing or old:
        wrong = [*(f"{name} is missing" for name in missing), *(f"{name} is too old" for name in old)]
        return [Row("notebooks", "problem", "; ".join(wrong), "`uv sync` or `pip install -e .` in the course's folder, with the Python that this kernel runs")]
    return [Row("notebooks", "ok", text)]


def gloo_ranks(gloo: Gloo) -> list[Row]:
    after = f"after {gloo.seconds:.1f} s"
    if gloo.reached == "done":
        return [Row("two ranks", "ok", f"summed a tensor over gloo in {gloo.seconds:.1f} s, with two imports of torch")]
    if gloo.error and gloo.reached == "import":
        return [Row("two ranks", "problem", f"torch cannot be imported: {gloo.error}", f"`{REINSTALL}`")]
    if gloo.error:
        cure = "read the error; if it names an interface or an address, `export GLOO_SOCKET_IFNAME=lo` (macOS: lo0) and try again"
        return [Row("two ranks", "problem", f"failed at {gloo.reached} {after}: {gloo.error}", cure)]
    if gloo.reached == "import":
        cure = "a slow disk or a busy machine: run this again; the course imports torch once and keeps it"
        return [Row("two ranks", "warning", f"still importing torch {after}", cure)]
    cure = "a firewall or a VPN may drop local traffic: `export GLOO_SOCKET_IFNAME=lo` (macOS: lo0), and try again"
    return [Row("two ranks", "problem", f"stuck at {gloo.reached} {after}", cure)]


def numbers_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.15.0+cu132 is (2, 15, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _range(ends: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(".".join(map(str, end)) for end in ends)


def count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
