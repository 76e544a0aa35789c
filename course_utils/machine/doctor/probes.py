"""What `doctor` finds out about this machine: two trial ranks, and facts on memory, network, compiler and packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .diagnoses import Gloo, Torch

# Runs on two ranks. Prints what torch is, without touching a GPU, then how far it got: after a hang, the last line says
# where.
_RANK = """
import datetime, json, sys
import torch
import torch.distributed as dist
flags = torch._C._cuda_getArchFlags() if torch.version.cuda and hasattr(torch._C, "_cuda_getArchFlags") else ""
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "arch": (flags or "").split()}), flush=True)
rank = int(sys.argv[2])
timeout = datetime.timedelta(seconds=10)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2, timeout=timeout)
print("connected", flush=True)
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
print("sum", total.item(), flush=True)
dist.destroy_process_group()
"""
# Prints why its child can't be traced. A process of its own, because some sandboxes kill whoever asks.
_TRACE = """
import ctypes, os, time
libc, child = ctypes.CDLL(None, use_errno=True), os.fork()
if child == 0:
    time.sleep(5)
    os._exit(0)
refused = libc.ptrace(0x4206, child, None, None)  # PTRACE_SEIZE, which doesn't stop it
print(os.strerror(ctypes.get_errno()) if refused else "")
os.kill(child, 9)
os.waitpid(child, 0)
"""


class Trial:
    """Two ranks in processes of their own, started at once and read at the end; none outlives the block."""

    def __enter__(self) -> Trial:
        self.start = time.monotonic()
        self.folder: Path | None = None
        self.ranks: list[subprocess.Popen[bytes]] = []
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="course-doctor-"))
        except OSError:  # another row says so
            return self
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        for rank in range(2):
            command = [sys.executable, "-c", _RANK, str(self.folder / "meeting"), str(rank)]
            with (self.folder / f"{rank}.out").open("wb") as out, (self.folder / f"{rank}.err").open("wb") as err:
                process = subprocess.Popen(
                    command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
                )
                self.ranks.append(process)
        return self

    def finish(self, deadline: float) -> tuple[Torch | None, Gloo]:
        """Wait until both ranks end, one fails, or the deadline (of time.monotonic) passes."""
        if self.folder is None:
            return None, Gloo("start", 0.0, "there's no folder for temporary files")
        folder = self.folder
        while time.monotonic() < deadline:
            codes = [rank.poll() for rank in self.ranks]
            if any(codes) or None not in codes:
                break
            time.sleep(0.02)
        seconds = time.monotonic() - self.start
        codes = [rank.poll() for rank in self.ranks]
        said = [(folder / f"{rank}.out").read_text(errors="replace") for rank in range(2)]
        torch = None
        if facts := re.search(r'^{"version".*}$', said[0] + said[1], re.M):
            build = json.loads(facts[0])
            torch = Torch(build["version"], build["cuda"], tuple(build["arch"]))
        sums = re.findall(r"^sum (.*)$", said[0] + said[1], re.M)
        connected = all("connected" in text for text in said)
        reached = "sum" if connected else "connect" if all(said) else "import"
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            lines = (folder / f"{failed}.err").read_text(errors="replace").strip().splitlines()
            return torch, Gloo(reached, seconds, lines[-1] if lines else f"exit code {codes[failed]}")
        if len(sums) == 2 and set(sums) != {"3.0"}:
            return torch, Gloo("sum", seconds, f"1 + 2 gave {' and '.join(sums)}")
        return torch, Gloo("done" if len(sums) == 2 else reached, seconds)

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def available_memory() -> int | None:
    """Bytes that new processes can use, within a container's limit; None if the system doesn't say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        cache = re.search(r"^inactive_file (\d+)", Path("/sys/fs/cgroup/memory.stat").read_text(), re.M)
        if limit != "max":
            available = min(available, int(limit) - int(used) + int(cache[1] if cache else 0))
    except (OSError, ValueError):
        pass
    return available


def existing(path: Path) -> Path:
    return path if path.exists() else existing(path.parent)


def home() -> Path | None:
    """The user's home; None for a user whom nobody knows, as in a container started with a number."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def writable(home: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=existing(home)):
            return True
    except OSError:
        return False


def shm_free() -> int:
    """Bytes of /dev/shm that nothing takes; 0 if there's none."""
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return shm.f_frsize * shm.f_bavail


def temporary() -> tuple[Path | None, int]:
    """Where Python puts temporary files, and the bytes that are free there; None if nowhere."""
    try:
        folder = Path(tempfile.gettempdir())
        return folder, shutil.disk_usage(folder).free
    except OSError:
        return None, 0


def ipv6_works() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def ptrace_error() -> str:
    """Why a process may not be traced by its parent; empty if it may, or where there's no ptrace to ask."""
    if sys.platform != "linux":
        return ""
    try:
        tried = subprocess.run([sys.executable, "-S", "-c", _TRACE], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return tried.stdout.strip() if tried.returncode == 0 else f"who asks is killed (exit code {tried.returncode})"


def cuda_held() -> int | None:
    """Bytes of GPU memory in this process's tensors; None if it hasn't started CUDA."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return sum(cuda.memory_allocated(i) for i in range(cuda.device_count()))


def open_files() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def loopback_error() -> str:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2) as client,
        ):
            server.settimeout(2)
            connection, _ = server.accept()
            with connection:
                connection.settimeout(2)
                client.sendall(b"?")
                return "" if connection.recv(1) == b"?" else "a byte that was sent did not arrive"
    except OSError as error:
        return str(error)


def host_addresses(host: str, limit_s: float = 3.0) -> list[str] | None:
    """Addresses of a host name; None if the look-up takes longer than `limit_s`. Nothing can interrupt it, so it has
    its own thread."""
    found: list[list[str]] = []

    def look_up() -> None:
        try:
            found.append([str(entry[4][0]) for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)])
        except OSError:
            found.append([])

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else None


def compiler() -> tuple[str, str]:
    """The C++ compiler that torch.compile would use, and what went wrong when it compiled a small program."""
    name = next((c for c in (os.environ.get("CXX"), "g++", "clang++", "c++") if c and shutil.which(c)), "")
    if not name:
        return "", ""
    source = "#include <vector>\nint main() { return std::vector<int>{}.size(); }\n"
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = [name, *"-x c++ - -o".split(), f"{folder}/a.out"]
            done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return name, str(error)
    if done.returncode == 0:
        return name, ""
    return name, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]


def nvidia_cards() -> int:
    """NVIDIA display controllers on the PCI bus, with or without a driver."""
    cards = 0
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
            cards += vendor.strip() == "0x10de" and kind.startswith("0x03")
        except OSError:
            continue
    return cards


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
