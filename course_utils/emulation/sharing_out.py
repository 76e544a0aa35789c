"""How the GPUs of an emulated cluster are shared out to ranks, and what is said of that."""

from __future__ import annotations

from ..show.units import counted
from .clusters import EmulatedCluster


def share_out(
    cluster: EmulatedCluster, ranks: int | None, gpus_per_rank: int | None, most: int
) -> tuple[int, int, str]:
    """The number of ranks that run, the GPUs of each, and a sentence that says so.

    `ranks` None is one for each GPU, or for each group of `gpus_per_rank`; `gpus_per_rank` None shares out all GPUs.
    `most` is how many ranks this machine can run. Raises ValueError if there are too few GPUs, or too many ranks.
    """
    if cluster.one_of and cluster.one_of % (ranks or 1):
        raise ValueError(
            f"with one_of={cluster.one_of} each rank that runs stands for as many, and {cluster.one_of} isn't a"
            f" multiple of ranks={ranks}"
        )
    alike = cluster.one_of // (ranks or 1)  # what a rank that runs stands for
    world = ranks or (cluster.count // gpus_per_rank if gpus_per_rank and not cluster.one_of else 1)
    each = gpus_per_rank or max(1, cluster.count // (cluster.one_of or world))
    if (cluster.one_of or world) * each > cluster.count or not world:
        asked = cluster.one_of or world or 1
        raise ValueError(
            f"{counted(asked, 'rank')} need{'s' * (asked == 1)} {counted(asked * each, 'GPU')}, and {cluster.label} has"
            f" {cluster.count}; name a larger cluster, or take fewer ranks"
        )
    if world > most:
        raise ValueError(
            f"{world} ranks are {world} processes, too many for this machine: take {most} at most. If all ranks do the"
            f" same, emulate one of them: one_of={world} (--one-of {world})"
        )
    noun = f"{counted(world, 'rank')} of {cluster.one_of:,}" if cluster.one_of > 1 else counted(world, "rank")
    gpus = "" if each == 1 else f", {each} GPUs each"
    others = ", and the other ranks are taken to do the same" if alike > 1 else ""
    others = f", and each rank stands for {alike:,} that do the same" if alike > 1 and world > 1 else others
    return world, each, (
        f"{noun} on an emulated {cluster.title} ({cluster.device.name}){gpus}: times are modelled, nothing large is"
        f" computed{others}."
    )  # fmt: skip
