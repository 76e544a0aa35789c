"""Whether the kernel that asked for a launch still lives: everything ends with it."""

from __future__ import annotations

import os


def watch_kernel(pid: int) -> int | None:
    """A descriptor that becomes readable when the kernel ends. Its socket wouldn't do: processes that the kernel forked
    may hold it open.

    None where the system has no such descriptor; then call `kernel_ended` from time to time.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(0)
    except (AttributeError, OSError):  # not Linux, or one without this call
        return None


def kernel_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
