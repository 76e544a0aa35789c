"""Run a real PyTorch program on modelled GPUs: nothing large is computed, memory is counted, and the clock is virtual.

`activate` is called in each rank before the program starts. What the program sees as `cuda:K` lies on the CPU with a
tag; a dispatch mode looks at every operator, leaves out the arithmetic of large ones, and lets the clock advance by
what the operator would take.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable

SPANS = 200_000  # of the timeline, that are kept


def activate(cluster: str, rank: int, world_size: int = 1, spawned_at: float | None = None) -> Callable[[], None]:
    """Let torch believe in the GPUs of a cluster (its JSON) in this process and all threads that it starts from now on.
    A process that a rank spawned has no place among the launch's ranks; its clock begins at `spawned_at`.

    Returns what to call when the program has ended: it leaves the timeline and the memory's peak next to the rank's
    records, and gives back the real clocks.
    """
    from torch.distributed import is_available

    from . import (
        autocast,
        choices,
        cuda,
        data_parallel,
        driver,
        edges,
        group,
        host_clocks,
        kinds,
        loaders,
        marks,
        measured,
        old_types,
        spawned,
        tensors,
    )  # fmt: skip
    from .clusters import EmulatedCluster
    from .state import Gpus

    found = EmulatedCluster.from_json(cluster)
    gpus = Gpus(found, rank, world_size)
    if found.one_of:  # the others are only thought of; each that runs is the first of so many
        os.environ["COURSE_RANK"] = str(rank)
        rank, world_size = rank * gpus.alike, found.one_of
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    if spawned_at is None:  # all ranks run here; the program sees the node that it would be on
        at_most = max(1, found.per_node // int(os.environ.get("COURSE_GPUS_PER_RANK", "1")))
        node, local_rank = divmod(rank, at_most)
        on_node = min(at_most, world_size - node * at_most)
        os.environ.update(LOCAL_RANK=str(local_rank), LOCAL_WORLD_SIZE=str(on_node), GROUP_RANK=str(node))
    gpus.spawned, gpus.clock.host = spawned_at is not None, spawned_at or 0.0
    cuda.install(gpus)
    operators = tensors.install(gpus)
    old_types.install()
    autocast.install()
    data_parallel.install(gpus)
    kinds.install(gpus)
    marked = marks.install(gpus)
    if is_available():
        group.install(gpus)
    clocks = host_clocks.HostClocks(gpus)
    if found.host == "measured":
        measured.install(gpus, clocks)
    clocks.install()
    edges.install(gpus, operators, clocks)
    loaders.install(gpus, clocks)
    spawned.install(gpus)
    forget = driver.install(gpus)

    def finish() -> None:
        clocks.stop()
        forget()
        folder = os.environ.get("COURSE_RUN_DIR")
        if gpus.forked:
            return
        choices.say_at_the_end()
        if gpus.spawned:
            spawned.leave_clock(gpus)
        if folder is None or (gpus.spawned and not gpus.joined):
            return
        kinds.find_gradients()
        used = max(gpus.memory, key=lambda memory: memory.most)
        left = {
            "host_s": gpus.clock.host,
            "peak_bytes": used.most,
            "at_peak": used.at_peak,
            "peak_s": used.peak_at[0],
            "peak_line": used.peak_at[1],
            "limit_bytes": used.limit,
            "flops": gpus.flops,
            "collective_bytes": gpus.collective_bytes,
            "marks": marked,
            "spans": gpus.clock.spans[:SPANS],
        }
        path = os.path.join(folder, f"rank{gpus.rank}.emulated.json")
        if not gpus.spawned and os.path.exists(path):  # of the rank that it spawned, which did the work
            with open(path) as file:
                left = json.load(file) | {"host_s": gpus.clock.host}
        with open(path, "w") as file:
            json.dump(left, file)

    return finish


def begin(number: int, host_s: float) -> None:
    """In a process that a rank spawned, before its program is imported: it's the `number`th of its parent, whose host's
    clock stands at `host_s`."""
    atexit.register(activate(os.environ["COURSE_CLUSTER"], number, spawned_at=host_s))


__all__ = ["activate", "begin"]
