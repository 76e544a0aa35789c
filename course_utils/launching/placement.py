"""Which device, backend and threads the ranks of a launch get on this machine."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

from ..emulation.clusters import EmulatedCluster
from ..emulation.sharing_out import share_out
from ..machine.here import SHM_FOR_NCCL, Gpu, Machine
from ..show.units import counted, readable

# allowed even on a small machine: enough to show every effect, and at 400 MB for a cold rank no danger to a laptop
MOST_RANKS = 32
MOST_EMULATED, EMULATED_RANK_BYTES = 256, 256 << 20  # which compute nothing large, and take less than that
DEVICES = ("auto", "cuda", "cpu", "shared", "comparable")  # what you can ask the ranks to compute on


@dataclass(frozen=True)
class Placement:
    """What the ranks of one launch get: `sentence` says it in a line, `env` are the variables that tell the ranks."""

    ranks: int
    device: Literal["cpu", "cuda", "shared"]
    backend: str
    gpus_per_rank: int
    threads: int
    sentence: str
    env: dict[str, str]
    emulated: str = ""  # the cluster, if its GPUs are modelled ones


def place(
    machine: Machine,
    ranks: int | str = "auto",
    gpus_per_rank: int | str = 1,
    device: str = "auto",
    threads: int | None = None,
) -> Placement:
    """Choose devices, backend and threads for a launch. If there are too few GPUs for it, it takes the CPU and says so,
    so that a launch works on any machine, unless you insist on GPUs.

    `ranks="auto"` takes one rank for each GPU (each group of `gpus_per_rank`) if that makes two or more, otherwise 2;
    with `gpus_per_rank="all"` it takes 1. `device` is one of `DEVICES`:

    auto        GPUs if there are enough for all ranks, otherwise the CPU
    cuda        GPUs, or an error: nothing runs on the CPU instead
    cpu         the CPU
    shared      all ranks on the first GPU, over gloo: right but not fast
    comparable  for launches that you'll compare: GPUs if there are enough for two ranks, otherwise the CPU, even for
                a launch of one rank. So you never compare one rank on the only GPU with two on the CPU.

    Raises ValueError for ranks below 1 or far beyond the cores, an unknown device, too few GPUs for "cuda", or a bad
    `gpus_per_rank` or `threads`.
    """
    gpus = machine.usable_gpus
    if device not in DEVICES:
        raise ValueError(f"device must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}; got {device!r}")
    per_rank = None if gpus_per_rank == "all" else _whole("gpus_per_rank", gpus_per_rank, "all")
    comparable, pair = device == "comparable", 2 * (per_rank or 1)
    if comparable:
        device = "auto" if len(gpus) >= pair else "cpu"
    if ranks != "auto":
        world = _whole("ranks", ranks, "auto")
    elif per_rank is None:
        world = 1
    else:
        groups = len(gpus) // per_rank
        world = groups if groups >= 2 and device in ("auto", "cuda") else 2
    if world > (most := _most(machine)):
        raise ValueError(
            f"{world} ranks on {machine.cores} cores would only wait for each other, and fill the memory; take {most}"
            " at most"
        )
    per_rank = per_rank or max(1, len(gpus) // world)
    per_thread = max(1, machine.cores // world) if threads is None else _whole("threads", threads)

    noun = counted(world, "rank")
    need = world * per_rank
    if device == "cuda" and need > len(gpus):
        raise ValueError(_too_few(machine, world, need))
    env = {"COURSE_GPUS_PER_RANK": str(per_rank), "OMP_NUM_THREADS": str(per_thread)}
    if device == "shared" and gpus:
        sentence = (
            f"{noun} share GPU {gpus[0].index} ({gpus[0].name}) over gloo: the results are right, the times say nothing"
            " about several GPUs."
        )
        env |= {"COURSE_DEVICE": "shared", **_visible(gpus[:1]), **_memory(gpus, world)}
        return Placement(world, "shared", "gloo", 1, per_thread, sentence, env)
    if device != "cpu" and need <= len(gpus):
        each = "a GPU" if per_rank == 1 else f"{per_rank} GPUs"
        sentence = f"{noun} on {gpus[0].name}, {'with ' + each if world == 1 else each + ' each'}, backend nccl."
        sentence += " All launches that you compare run on GPUs." if comparable else ""
        if world > 1 and 0 < machine.shm_bytes < SHM_FOR_NCCL:
            sentence += (
                f" /dev/shm has only {readable('bytes', machine.shm_bytes)}, and NCCL needs more between GPUs without"
                " NVLink or P2P: if it fails, start the container with `--shm-size=2g`, or set NCCL_SHM_DISABLE=1."
            )
        env |= {"COURSE_DEVICE": "cuda", **_visible(gpus[:need]), **_memory(gpus)}
        return Placement(world, "cuda", "nccl", per_rank, per_thread, sentence, env)
    sentence = f"{noun} on the CPU, backend gloo, {per_thread} of {machine.cores} cores{'' if world == 1 else ' each'}."
    if world * per_thread > machine.cores:
        sentence = (
            f"{noun} on the CPU, backend gloo, sharing {counted(machine.cores, 'core')}: times include"
            " waiting for a core."
        )
    if comparable:
        sentence += f" {_what_compares(machine, pair)}"
    elif device != "cpu":
        sentence += f" {_what_gpus_would_change(machine, world, per_rank)}"
    env |= {"COURSE_DEVICE": "cpu", "COURSE_SIZE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return Placement(world, "cpu", "gloo", per_rank, per_thread, sentence, env)


def place_on_cluster(
    cluster: EmulatedCluster, machine: Machine, ranks: int | str, gpus_per_rank: int | str, threads: int | None
) -> Placement:
    """The ranks of an emulated cluster, with the arguments of `place`. Raises ValueError for more than fit there."""
    world, per_rank, sentence = share_out(
        cluster,
        None if ranks == "auto" else _whole("ranks", ranks, "auto"),
        None if gpus_per_rank == "all" else _whole("gpus_per_rank", gpus_per_rank, "all"),
        _most_emulated(machine),
    )
    own_threads = 1 if threads is None else _whole("threads", threads)
    env = {"COURSE_CLUSTER": cluster.to_json(), "COURSE_DEVICE": "cuda", "COURSE_GPUS_PER_RANK": str(per_rank)}
    env |= {"COURSE_GPU_BYTES": str(cluster.device.memory_bytes), "CUDA_VISIBLE_DEVICES": ""}
    env["OMP_NUM_THREADS"] = str(own_threads)
    return Placement(world, "cuda", "nccl", per_rank, own_threads, sentence, env, cluster.title)


def _most(machine: Machine) -> int:
    return max(MOST_RANKS, 4 * machine.cores)


def _most_emulated(machine: Machine) -> int:
    """Ranks that compute nothing large need memory more than cores."""
    return max(_most(machine), min(MOST_EMULATED, machine.memory_bytes // EMULATED_RANK_BYTES))


def _visible(gpus: tuple[Gpu, ...]) -> dict[str, str]:
    """The variables that give a rank these GPUs, in this order. A GPU without a UUID goes by its index in nvidia-smi,
    which counts by place on the bus."""
    names = {"CUDA_VISIBLE_DEVICES": ",".join(g.uuid or str(g.index) for g in gpus)}
    return names if all(g.uuid for g in gpus) else names | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _memory(gpus: tuple[Gpu, ...], sharing: int = 1) -> dict[str, str]:
    """What a rank may fill, by which `workloads` chooses the size of models. The machine's smallest GPU decides, also
    for launches that don't use it, so that launches can be compared."""
    return {"COURSE_GPU_BYTES": str(min(g.memory_bytes for g in gpus) // sharing)}


def _too_few(machine: Machine, world: int, need: int) -> str:
    """Why this launch can't have the GPUs that it asked for, and what to do."""
    here = len(machine.usable_gpus)
    unusable = [g for g in machine.gpus if not g.usable]
    there = f"this machine has {here or 'none'}{' that torch can use' * bool(unusable)}"
    if unusable:
        there += f": GPU {unusable[0].index} ({unusable[0].name}) cannot be used, {unusable[0].reason}"
    most = here // (need // world)
    fewer = f" take {counted(most, 'rank')} at most;" if most else ""
    return (
        f"device 'cuda' needs {counted(need, 'GPU')} for {counted(world, 'rank')}, and {there}. What you can do:{fewer}"
        f" write auto instead of cuda, and it runs on the CPU; or emulate GPUs, with --cluster {need}xA100"
        f" (cluster='{need}xA100')"
    )


def _what_gpus_would_change(machine: Machine, world: int, per_rank: int) -> str:
    need, here = world * per_rank, len(machine.usable_gpus)
    unusable = [g for g in machine.gpus if not g.usable]
    if unusable:
        return f"GPU {unusable[0].index} ({unusable[0].name}) cannot be used: {unusable[0].reason}."
    if here:
        share = "one" if per_rank == 1 else str(per_rank)
        return (
            f"This machine has {counted(here, 'GPU')}; with {need} {'the rank' if world == 1 else 'each rank'}"
            f" would use {share}, over nccl."
        )
    own = "its own" if per_rank == 1 else f"{per_rank} of its own"
    return f"With {counted(need, 'GPU')} {'it' if world == 1 else 'each rank'} would have {own}, over nccl."


def _what_compares(machine: Machine, pair: int) -> str:
    """Why a comparable launch runs on the CPU. `pair` is how many GPUs two ranks need."""
    here = len(machine.usable_gpus)
    unusable = [g for g in machine.gpus if not g.usable]
    if here >= pair:
        return f"Don't compare it with launches of fewer ranks: those run on GPUs, and there are only {here} here."
    why = f"there {'is' if here == 1 else 'are'} {here or 'none'} here"
    if unusable:
        why = f"GPU {unusable[0].index} ({unusable[0].name}) cannot be used: {unusable[0].reason}"
    return f"All launches that you compare run on the CPU: two ranks would need {pair} GPUs, and {why}."


def _whole(name: str, value: object, word: str = "") -> int:
    """`value` as an int, if it's a whole number (numpy's too) of at least 1; raises ValueError otherwise."""
    try:
        number = 0 if isinstance(value, (bool, str)) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a whole number above 0{f', or {word!r}' if word else ''}; got {value!r}")
    return number
