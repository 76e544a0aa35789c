"""Which devices the ranks of a job get, and how they are spread over its nodes."""

from __future__ import annotations

from ..launching.placement import Placement
from ..show.units import counted, is_whole
from .site import Site


def place_job(
    site: Site, nodes: int, ranks: int | str, gpus_per_rank: int | str, device: str, threads: int | None
) -> Placement:
    """The devices of a job's ranks: GPUs if the settings say that nodes have enough of them, otherwise cores. Nothing
    more is needed for comparable launches, because another node brings another GPU.

    `ranks` is the number on all nodes together; "auto" takes one for each GPU, otherwise one for each node, and 2 on a
    single node. Raises ValueError if they can't be spread evenly over the nodes, or for a value that makes no sense.
    """
    if device not in ("auto", "cuda", "cpu", "comparable"):
        raise ValueError(f"device must be auto, cuda, cpu or comparable on several nodes; got {device!r}")
    for name, value, word in (
        ("ranks", ranks, "auto"),
        ("gpus_per_rank", gpus_per_rank, "all"),
        ("threads", 1 if threads is None else threads, None),
    ):
        if value != word and (not is_whole(value) or value < 1):
            raise ValueError(f"{name} must be a whole number above 0{f', or {word!r}' if word else ''}; got {value!r}")
    gpus = 0 if device == "cpu" else site.gpus_per_node
    own = 1 if gpus_per_rank == "all" else int(gpus_per_rank)
    if ranks == "auto":
        ranks = nodes * (1 if gpus_per_rank == "all" else gpus // own) or max(2, nodes)
    world = int(ranks)
    if world % nodes:
        raise ValueError(
            f"{world} ranks can't be spread evenly over {nodes} nodes; ranks counts those of all nodes, so give a"
            f" multiple of {nodes}"
        )
    each = world // nodes
    own = max(1, gpus // each) if gpus_per_rank == "all" else own
    per_thread = threads or site.cpus_per_rank or 1
    words = f"{counted(world, 'rank')} on {counted(nodes, 'node')}, {each} on each"
    env = {"COURSE_GPUS_PER_RANK": str(own), "OMP_NUM_THREADS": str(per_thread)}
    if each * own <= gpus:
        sentence = f"{words}, with {counted(own, 'GPU')} a rank, backend nccl."
        env |= {"COURSE_DEVICE": "cuda"}
        return Placement(world, "cuda", "nccl", own, per_thread, sentence, env)
    sentence = f"{words}, on CPU{'s' * (world > 1)}, backend gloo, {counted(per_thread, 'core')} a rank."
    if device != "cpu":
        has = f"gpus_per_node = {gpus}" if gpus else "no gpus_per_node"
        sentence += f" The cluster's settings have {has}; with {each * own} each rank would have its own, over nccl."
    env |= {"COURSE_DEVICE": "cpu", "COURSE_SIZE": "cpu"}
    return Placement(world, "cpu", "gloo", own, per_thread, sentence, env)
