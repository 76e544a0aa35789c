"""What each finding means. A check turns what was found into rows, ok or with a cure; it never looks at the machine
itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...show.units import readable
from ..gpu_builds import arch_fits, build_for
from ..here import SHM_FOR_NCCL, Gpu, Machine

Status = Literal["ok", "warning", "problem"]
GIB = 2**30

PYTHONS = ((3, 11), (3, 13))
TORCHES = ((2, 10), (2, 15))
DRIVER_FOR_CUDA = {12: 525, 13: 580}  # the oldest driver branch that runs a build for this CUDA release
REINSTALL = "uv pip install --torch-backend=auto torch torchvision"


@dataclass(frozen=True)
class Row:
    """One check: what was found, and the cure if it isn't ok."""

    name: str
    status: Status
    found: str
    cure: str = ""


@dataclass(frozen=True)
class Torch:
    """What a process that imported torch said: version, CUDA release of the build (None: a CPU build), GPU
    architectures it has code for.

    `asked` is False if no process could answer in time, so that only the installed version is known.
    """

    version: str
    cuda: str | None = None
    arch: tuple[str, ...] = ()
    asked: bool = True


@dataclass(frozen=True)
class Gloo:
    """How the trial of two ranks ended; `reached` is start, import, connect, sum or done, `error` the last line of what
    went wrong."""

    reached: str
    seconds: float
    error: str = ""


def python(found: Sequence[int]) -> list[Row]:
    text = ".".join(map(str, found))
    if PYTHONS[0] <= tuple(found[:2]) <= PYTHONS[1]:
        return [Row("Python", "ok", text)]
    cure = "run `make lab` in the course's folder: it fetches a Python that fits"
    return [Row("Python", "problem", f"{text}; the course needs {_range(PYTHONS)}", cure)]


def torch_build(torch: Torch) -> list[Row]:
    numbers = numbers_of(torch.version)
    if not numbers:
        return [Row("torch", "problem", "not installed, or its import fails", f"`{REINSTALL}`")]
    build = f", built for CUDA {torch.cuda}" if torch.cuda else ", built for the CPU only" if torch.asked else ""
    text = f"{torch.version}{build}"
    if TORCHES[0] <= numbers[:2] <= TORCHES[1]:
        return [Row("torch", "ok", text)]
    status: Status = "warning" if numbers[:2] > TORCHES[1] else "problem"
    cure = f'`uv pip install --torch-backend=auto "torch=={".".join(map(str, TORCHES[1]))}.*" torchvision`'
    return [Row("torch", status, f"{text}; the course was made for {_range(TORCHES)}", cure)]


def gpus(machine: Machine, torch: Torch, cards: int = 0, visible: str | None = None) -> list[Row]:
    """One row for each GPU; `cards` is the number of NVIDIA cards on the PCI bus, which may be there without a driver;
    `visible` is CUDA_VISIBLE_DEVICES."""
    if not machine.gpus:
        if visible in ("", "-1"):
            return [Row("GPU", "ok", "hidden by CUDA_VISIBLE_DEVICES: ranks compute on the CPU")]
        if cards:
            cure = (
                "install NVIDIA's driver, 580 or newer; in a container, start it with `--gpus all`; until then"
                " everything runs on the CPU"
            )
            found = f"{count(cards, 'NVIDIA card')} on the bus, but the driver does not answer"
            return [Row("GPU", "warning", found, cure)]
        return [Row("GPU", "ok", "none: ranks compute on the CPU and talk over gloo")]
    return [_gpu(gpu, torch) for gpu in machine.gpus]


def _gpu(gpu: Gpu, torch: Torch) -> Row:
    name = f"GPU {gpu.index}"
    text = gpu.words
    if torch.asked and not torch.cuda:
        return Row(name, "problem", f"{text}; torch is a build without CUDA and can't use it", f"`{REINSTALL}`")
    if torch.arch and not arch_fits(gpu.capability, torch.arch):  # before the driver: a new one would not help
        wrong = f"{text}; this torch has no code for it (it has {', '.join(torch.arch)})"
        setting = build_for(gpu.capability)
        by_hand = REINSTALL.replace("auto", setting.removeprefix("TORCH="))
        cure = f"`make lab {setting}` in the course's folder, or `{by_hand}`: that build of torch has code for this GPU"
        return Row(name, "problem", wrong, cure)
    needed = DRIVER_FOR_CUDA.get(numbers_of(torch.cuda)[0], 0) if torch.cuda else 0
    driver = numbers_of(gpu.driver)
    if driver and driver[0] < needed:
        cure = f"install driver {needed} or newer, or a torch that fits this driver: `{REINSTALL}`"
        return Row(name, "problem", f"{text}; torch for CUDA {torch.cuda} needs driver {needed} or newer", cure)
    if not gpu.usable:
        cure = (
            f"check that `nvidia-smi` lists it and that no other program holds it; if that does not help, `{REINSTALL}`"
        )
        return Row(name, "problem", f"{text}; a trial computation failed: {gpu.reason}", cure)
    half = "bf16" if gpu.capability >= (8, 0) else "fp16 and a loss scaler (bf16 needs 8.0)"
    return Row(name, "ok", f"{text}; a trial computation gave the right result; mixed precision means {half}")


def cores(machine: Machine, total: int, load: float | None) -> list[Row]:
    """`total` are the computer's cores, `machine.cores` those this process may use; `load` is the mean number of busy
    processes in the last minute."""
    text = f"{machine.cores} usable"
    if machine.cores < total:
        text += f" of {total} (an affinity mask or a container's quota holds back the rest)"
    if machine.cores < 2:
        cure = (
            "give the container or the virtual machine 2 cores or more; the lessons run, but two ranks are no faster"
            " than one"
        )
        return [Row("cores", "warning", text, cure)]
    if load is not None and load > 0.75 * total:
        cure = "close them before you measure: speed-ups would look too small"
        return [Row("cores", "warning", f"{text}; other programs keep {load:.1f} busy", cure)]
    return [Row("cores", "ok", text)]


def memory(total: int, available: int | None) -> list[Row]:
    if not total:
        return []
    text = f"{total / GIB:.1f} GiB" + (f", {available / GIB:.1f} GiB available" if available is not None else "")
    free = total if available is None else available
    if free < 1.5 * GIB:
        cure = "close other programs or other notebooks' kernels (Kernel, Shut Down All); a lesson needs about 2 GiB"
        return [Row("memory", "problem", text, cure)]
    if free < 3 * GIB:
        cure = "enough for two ranks; close other notebooks' kernels before you start more"
        return [Row("memory", "warning", text, cure)]
    return [Row("memory", "ok", text)]


def shared_memory(machine: Machine, free: int) -> list[Row]:
    """`free` are the bytes of /dev/shm that nothing takes yet."""
    if not machine.shm_bytes:
        cure = "DataLoader workers need it: mount a tmpfs there"
        return [Row("shared memory", "warning", "there is no /dev/shm", cure)]
    text = f"/dev/shm has {readable('bytes', machine.shm_bytes)}"
    cure = (
        "start the container with `--shm-size=2g` (Docker gives 64 MiB otherwise), or `sudo mount -o remount,size=2g"
        " /dev/shm`"
    )
    if machine.shm_bytes < 128 * 2**20:
        found = f"{text}: DataLoader workers die with a bus error when it is full"
        if len(machine.usable_gpus) > 1:
            found += ", and NCCL fails between GPUs without NVLink or P2P (until then: `export NCCL_SHM_DISABLE=1`)"
        return [Row("shared memory", "problem", found, cure)]
    if free < 64 * 2**20:
        cure = "`ls -l /dev/shm` shows what takes it; files of programs that have ended may be removed"
        return [Row("shared memory", "problem", f"{text}, of which {readable('bytes', free)} are free", cure)]
    if len(machine.usable_gpus) > 1 and machine.shm_bytes < SHM_FOR_NCCL:
        found = f"{text}: too little for NCCL between many GPUs without NVLink or P2P"
        return [Row("shared memory", "warning", found, cure)]
    if machine.shm_bytes < 512 * 2**20:
        return [Row("shared memory", "warning", f"{text}: enough for small batches only", cure)]
    return [Row("shared memory", "ok", text)]


def disk(home: Path, writable: bool, free: int) -> list[Row]:
    text = f"{free / GIB:.1f} GiB free for runs/ (in {home})"
    if not writable:
        cure = "choose a folder of your own, `export COURSE_HOME=~/course`, and start JupyterLab again"
        return [Row("disk", "problem", f"can't write to {home}", cure)]
    if free < GIB // 2:
        return [Row("disk", "problem", text, "free some space, or set COURSE_HOME to a folder on another disk")]
    if free < 3 * GIB:
        cure = "enough for the images that the course draws; CIFAR-100 or ImageNet need more"
        return [Row("disk", "warning", text, cure)]
    return [Row("disk", "ok", text)]


def home_folder(home: Path | None, writable: bool) -> list[Row]:
    if writable:
        return [Row("home folder", "ok", f"{home} can be written to")]
    cure = (
        "`mkdir -p /tmp/home && export HOME=/tmp/home` before you start JupyterLab; a kernel that runs already has what"
        " it needs"
    )
    what = f"can't write to {home}" if home else "this user has none"
    found = f"{what}: JupyterLab may not start, IPython and matplotlib keep nothing"
    return [Row("home folder", "warning", found, cure)]


def temporary_files(folder: Path | None, free: int) -> list[Row]:
    """`folder` is where Python would put them, None if no place can be written to."""
    cure = "`export TMPDIR=` and a folder on a disk with space, then start JupyterLab again"
    if folder is None:
        return [Row("temporary files", "problem", "neither /tmp nor another usual place can be written to", cure)]
    text = f"{readable('bytes', free)} free in {folder}"
    if free < 200 * 2**20:
        return [Row("temporary files", "problem", f"{text}: torch.compile and launches need some", cure)]
    return [Row("temporary files", "ok", text)]


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
    """`error` of a connection over 127.0.0.1, empty if it worked; `addresses` are those of the host name, None if
    looking it up took too long."""
    hosts = f"add a line `127.0.1.1 {host}` to /etc/hosts"
    if error:
        cure = "ranks find each other there; allow loopback in the firewall or the sandbox"
        return [Row("network", "problem", f"no TCP connection over 127.0.0.1: {error}", cure)]
    if addresses is None:
        found = f"looking up this host's name ({host}) takes too long, and may slow every launch"
        return [Row("network", "warning", found, hosts)]
    if not addresses:
        return [Row("network", "warning", f"this host's name ({host}) has no address", hosts)]
    return [Row("network", "ok", f"connections over 127.0.0.1 work; {host} is {addresses[0]}")]


def ipv6(works: bool, localhost: Sequence[str] | None) -> list[Row]:
    """Whether ::1 `works`, and the addresses of the name localhost."""
    if works:
        return [Row("IPv6", "ok", "::1 is there")]
    if localhost and ":" in localhost[0]:
        cure = (
            "take ::1 away from localhost in /etc/hosts, or start the container with `--sysctl"
            " net.ipv6.conf.all.disable_ipv6=0`"
        )
        found = "there's none, but `localhost` means ::1 first: programs of yours that meet at localhost wait in vain"
        return [Row("IPv6", "warning", found, cure)]
    return [Row("IPv6", "ok", "none, and none is needed: the course's ranks meet at 127.0.0.1")]


def debuggers(error: str) -> list[Row]:
    """`error` of a process that wanted to be traced, empty if it may."""
    if not error:
        return [
            Row("debuggers", "ok", "a program may look into its children (others with sudo), so py-spy and gdb work")
        ]
    cure = (
        "`docker run --cap-add=SYS_PTRACE`, if you want py-spy or gdb; the course needs neither, its ranks write their"
        " stacks themselves"
    )
    return [Row("debuggers", "warning", f"py-spy and gdb may not look into processes: {error}", cure)]


def kernel_cuda(held: int | None) -> list[Row]:
    """`held` are the bytes of GPU memory that this kernel's own tensors take, None if it hasn't started CUDA."""
    if held is None:
        return []
    cure = "Kernel, Restart; then leave GPUs to `%%ranks` cells, whose memory is free again when they end"
    found = (
        f"it has started CUDA and holds {readable('bytes', held)} of tensors, besides some 500 MB for itself: less for"
        " your ranks, and DataLoader workers or processes that it forks can't use a GPU"
    )
    return [Row("this kernel", "warning", found, cure)]


def compiler(name: str, error: str) -> list[Row]:
    """`name` of the C++ compiler, empty when there is none; `error` when it did not compile."""
    cure = (
        "`sudo apt install g++`, `conda install cxx-compiler` or, on macOS, `xcode-select --install`; only"
        " torch.compile needs it"
    )
    if not name:
        return [Row("C++ compiler", "warning", "none found", cure)]
    if error:
        return [Row("C++ compiler", "warning", f"{name} does not compile a small program: {error}", cure)]
    return [Row("C++ compiler", "ok", f"{name} compiles, so torch.compile can be used")]


def packages(found: Mapping[str, str | None]) -> list[Row]:
    """Versions of what the notebooks need besides torch; None for a package that is missing."""
    least = {
        "jupyterlab": (4, 4), "ipython": (7, 34), "ipykernel": (6, 17), "ipywidgets": (7, 7, 1), "matplotlib": (3, 9),
        "torchvision": (0, 25),
    }  # fmt: skip
    wrong = []
    for name, got in found.items():
        if got is None:
            wrong.append(f"{name} is missing")
        elif numbers_of(got) < least[name]:
            wrong.append(f"{name} {got} (needs {'.'.join(map(str, least[name]))}) is too old")
    if wrong:
        cure = "`uv sync` or `pip install -e .` in the course's folder, with the Python that this kernel runs"
        return [Row("notebooks", "problem", "; ".join(wrong), cure)]
    return [Row("notebooks", "ok", ", ".join(f"{name} {got}" for name, got in found.items()))]


def gloo_ranks(gloo: Gloo) -> list[Row]:
    after = f"after {gloo.seconds:.1f} s"
    if gloo.reached == "done":
        return [Row("two ranks", "ok", f"summed a tensor over gloo in {gloo.seconds:.1f} s, imports of torch included")]
    if gloo.reached == "start":
        return [Row("two ranks", "problem", f"not tried: {gloo.error}", "give Python one, as said below")]
    if gloo.error and gloo.reached == "import":
        return [Row("two ranks", "problem", f"torch cannot be imported: {gloo.error}", f"`{REINSTALL}`")]
    if gloo.error:
        cure = (
            "read the error; if it names an interface or an address, `export GLOO_SOCKET_IFNAME=lo` (macOS: lo0) and"
            " try again"
        )
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
