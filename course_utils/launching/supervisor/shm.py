"""Remove what the processes of a launch made in /dev/shm and left there.

We only remove what they provably made, and a name alone proves little: containers may share /dev/shm and then have
processes with the same pids, and Python and NCCL draw their names at random. So we remove a file if it is

- a semaphore of Python: its name has the prefix that only this launch's ranks use;
- shared memory of Python (`multiprocessing.shared_memory`): its maker noted its name and inode (see `rank_process`);
- a shared tensor of torch (strategy "file_system"): a manager that is our descendant knows it, and would remove it 2 s
  after its last user's end;
- NCCL's: a process that we stopped had it mapped. NCCL removes such a file as soon as all ranks have it, so one that is
  still there is on its way;
- OpenMP's registration of one of our ranks. It's named after pid and user, so two processes that share both share that
  file too.

Whatever else a process made before it ended, and before we looked, stays, as it does under torchrun.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHM = "/dev/shm"
File = tuple[str, int, int]  # name, device, inode


class SharedMemory:
    """Notes what the processes of a launch made, while they are being ended; `remove` removes it."""

    def __init__(self) -> None:
        self.tensors: set[str] = set()
        self.files: set[File] = set()

    def look(self, pids: Iterable[int]) -> None:
        """Note which files of NCCL these processes have mapped; they are about to be stopped."""
        for pid in pids:
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                    _, _, _, device, inode, *path = line.split(maxsplit=5)
                    if path and path[0].startswith(f"{SHM}/nccl-") and not path[0].endswith(" (deleted)"):
                        major, minor = (int(number, 16) for number in device.split(":"))
                        self.files.add((os.path.basename(path[0]), os.makedev(major, minor), int(inode)))

    def ask(self, manager: int) -> None:
        """Note the shared tensors that this torch_shm_manager knows. It answers no questions, so we read its
        memory."""
        with (
            suppress(OSError),
            open(f"/proc/{manager}/maps") as maps,
            open(f"/proc/{manager}/mem", "rb", buffering=0) as memory,
        ):
            for span in (line.split()[0] for line in maps if line.endswith("[heap]\n")):
                start, end = (int(address, 16) for address in span.split("-"))
                memory.seek(start)
                self.tensors |= {
                    name.decode() for name in re.findall(rb"/(torch_\d+_\d+_\d+)\0", memory.read(end - start))
                }

    def remove(self, tmp: str, folder: Path) -> None:
        """Remove what was noted here and in `tmp`, the launch's temporary folder. `folder` has the pids of its
        ranks."""
        for name, device, inode in self.files | _noted(tmp):
            found = _found(name)
            if found and (found.st_dev, found.st_ino) == (device, inode):
                _unlink(name)
        with suppress(OSError):
            semaphores = f"sem.{os.path.basename(tmp)}-"
            registrations = {f"__KMP_REGISTERED_LIB_{pid}_{os.getuid()}" for pid in _pids(folder)}
            for name in os.listdir(SHM):
                if (name in self.tensors or name in registrations or name.startswith(semaphores)) and _found(name):
                    _unlink(name)


def is_manager(pid: int) -> bool:
    """Whether this process is a torch_shm_manager, which removes torch's shared tensors."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "torch_shm_manager"
    except OSError:
        return False


def _noted(tmp: str) -> set[File]:
    found: set[File] = set()
    with suppress(OSError):
        for line in Path(tmp, ".shared_memory").read_text(errors="replace").splitlines():
            name, _, numbers = line.rpartition("\t")
            with suppress(ValueError):  # the script can write there too
                device, inode = (int(number) for number in numbers.split())
                found.add((name.removeprefix("/"), device, inode))
    return found


def _pids(folder: Path) -> set[str]:
    pids = set()
    for path in folder.glob("rank*.pid"):
        with suppress(OSError):
            pids |= {word for word in path.read_text(errors="replace").split()[:1] if word.isdecimal()}
    return pids


def _found(name: str) -> os.stat_result | None:
    """What `stat` says about a file in /dev/shm; None unless it's a plain file of this user."""
    if not name or "/" in name or name in (".", ".."):
        return None
    try:
        info = os.lstat(f"{SHM}/{name}")
    except (OSError, ValueError):
        return None
    return info if stat.S_ISREG(info.st_mode) and info.st_uid == os.getuid() else None


def _unlink(name: str) -> None:
    with suppress(OSError):
        os.unlink(f"{SHM}/{name}")
