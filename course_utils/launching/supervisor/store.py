"""The rendezvous store of a launch. It lives outside the ranks, as in torchrun's agent, so it outlives any of them."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def serve(listening_fd: int, port: int, world_size: int) -> Any:
    """Serve a TCPStore on a socket that listens already, in threads of this process, until the returned object is
    dropped."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    return TCPStore(
        "127.0.0.1",
        port,
        world_size,
        True,
        timedelta(seconds=300),
        wait_for_workers=False,
        master_listen_fd=listening_fd,
    )


def main() -> None:
    """Cold start, with a supervisor that hasn't imported torch: `store.py FD PORT WORLD_SIZE PARENT`, until the
    supervisor ends it."""
    sys.path[0] = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "on_rank")
    from rank_process import die_with_parent  # type: ignore[import-not-found]

    listening_fd, port, world_size, parent = (int(word) for word in sys.argv[1:])
    del sys.path[0]  # otherwise torch might find our modules instead of others of the same name
    os.set_inheritable(listening_fd, False)
    die_with_parent(parent)
    served = serve(listening_fd, port, world_size)
    while served is not None:
        signal.pause()


if __name__ == "__main__":
    main()
