"""The environment of a launch's ranks, except for the variables that say which rank one is."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..folders import compiler_cache
from ..machine.here import Machine
from .placement import Placement

# glibc gives the memory of every large tensor back to the system, and asks for it again in the next step. On a CPU the
# page faults cost a third of a step, and ranks on one machine slow each other down with them. PyTorch's tuning guide
# suggests another allocator for the same reason.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 30)}
# A quick rank leaves a gloo group, and closes its connections, while a slow one still waits for a third: then the slow
# one's `init_process_group` or `new_group` fails with "Connection closed by peer". torch no longer has a barrier at the
# end of these unless this is set (`_is_barrier_after_init` in distributed_c10d.py).
FORM_GROUPS_TOGETHER = {"TORCH_DIST_INIT_BARRIER": "1"}
# torch 2.15 hands restarted ranks the dead ranks' addresses unless the store of torchrun's agent is kept apart.
RESTARTS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# Variables that the kernel or a Slurm job passes on to its children, and that would mislead a rank.
_LEAKED = ("JPY_", "JUPYTER", "SLURM_", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_", "PYDEVD_")
_LEAKED_NAMES = {
    "COURSE_CLUSTER", "MPLBACKEND", "FORCE_COLOR", "CLICOLOR_FORCE", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK",
    "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
}  # fmt: skip


def rank_environment(
    machine: Machine, placement: Placement, extra: Mapping[str, str | None] | None, elsewhere: bool
) -> dict[str, str]:
    """A rank's whole environment, except the variables that say which rank it is; `extra` are the caller's own."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(_LEAKED) and k not in _LEAKED_NAMES}
    env = KEEP_MEMORY | FORM_GROUPS_TOGETHER | own
    if elsewhere:
        env = {k: v for k, v in env.items() if k not in ("CUDA_VISIBLE_DEVICES", "TMPDIR")}  # true here only
        env |= {k: v for k, v in os.environ.items() if k == "SLURM_CONF"}
    else:
        loopback = "lo0" if os.uname().sysname == "Darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            env.setdefault(name, loopback)  # ranks on one machine have no business on the network
        # otherwise each launch would compile everything again
        env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiler_cache(machine.name)))
    env |= {"MPLBACKEND": "Agg", **placement.env}
    for name, value in (extra or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    return env
