"""The text of a job: the course's template, filled with a cluster's settings and with what ranks need to leave their
results."""

from __future__ import annotations

import math
import re
import shlex
import sys
from pathlib import Path

from ..launching.options import LaunchOptions
from ..launching.placement import Placement
from ..launching.rank_environment import FORM_GROUPS_TOGETHER, KEEP_MEMORY, RESTARTS
from ..launching.request import Request
from ..launching.torchrun import CHILD
from .job_template import batch_file, torchrun
from .site import Site

# from the start of a job to the start of its ranks, at most: imports from a busy shared file system are slow
MARGIN_S = 120
WARN_S = 60  # so long before its time is up a job is warned, so that it can save its state


def job_file(request: Request, placement: Placement, site: Site, options: LaunchOptions) -> str:
    """The text of the batch file of a launch: the course's template with this cluster's settings and what ranks need to
    leave their results. Raises ValueError for a name or a path that it can't hold."""
    nodes = options.nodes
    each = placement.ranks // nodes
    gpus = each * placement.gpus_per_rank if placement.device == "cuda" else 0
    named = [
        f"--{name}={getattr(site, name)}"
        for name in ("partition", "account", "qos", "constraint", "reservation")
        if getattr(site, name)
    ]
    exports = [
        (
            f"export COURSE_RUN_DIR={shlex.quote(request.folder)}  # ranks leave their logs and records here, where all"
            " nodes can write"
        ),
        f"export COURSE_PACKAGE_PATH={shlex.quote(request.package_path)}  # where the script finds course_utils",
    ]
    interface = {
        name: site.interface
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        if site.interface
    }
    usual = FORM_GROUPS_TOGETHER | (KEEP_MEMORY if placement.device == "cpu" else {})
    usual |= RESTARTS if options.max_restarts else {}
    for name, value in {
        "COURSE_TIMEOUT_S": f"{request.timeout:g}",
        **placement.env,
        **usual,
        **interface,
        **site.env,
        **(options.env or {}),
    }.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"{name!r} can't be the name of a shell variable")
        exports.append(f"unset {name}" if value is None else f"export {name}={shlex.quote(str(value))}")
    python = f"{site.container + ' ' if site.container else ''}{shlex.quote(site.python or sys.executable)}"
    program = f"{shlex.quote(str(CHILD))} \\\n    {shlex.join(request.program)}"
    return batch_file(
        "\\\n    " + torchrun(program, each, options.max_restarts, launcher=f"{python} -m torch.distributed.run"),
        name=Path(request.script).stem,
        nodes=nodes,
        cpus_per_node=each * max(placement.threads, site.cpus_per_rank),
        minutes=math.ceil((request.timeout + MARGIN_S) / 60),
        warn_s=WARN_S,
        gpu_option=site.gpu_option.replace("{gpus}", str(gpus)) if gpus else "",
        output=f"{_for_slurm(request.folder)}/launcher.log",
        options=[*([f"--mem={site.memory}"] if site.memory else []), *named, *site.sbatch],
        folder=shlex.quote(request.folder),
        exports=exports,
        setup=[
            *([f"module load {' '.join(map(shlex.quote, site.modules))}"] if site.modules else []),
            *site.setup,
            f"cd {shlex.quote(request.cwd)} || exit",
            'rm -f "$COURSE_RUN_DIR"/rank*.pid "$COURSE_RUN_DIR"/exitcode',
        ],
        srun=[f"--output={shlex.quote(_for_slurm(request.folder) + '/node%n.log')}", *site.srun],
        at_end=[
            'echo "$code" > "$COURSE_RUN_DIR/exitcode"  # for whoever asks later, when Slurm has forgotten the job'
        ],
    )


def _for_slurm(path: str) -> str:
    """`path`, for one of Slurm's options, where % begins a pattern and a space would end it. Raises ValueError."""
    if any(c in path for c in " %\\\"'#"):
        raise ValueError(
            f"Slurm can't write its logs to {path}: set COURSE_HOME to a folder without spaces, quotes, # and %"
        )
    return path
