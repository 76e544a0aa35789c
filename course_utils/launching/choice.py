"""Which engine serves a launch."""

from __future__ import annotations

from ..slurm.engine import Slurm
from .engine import Engine
from .local import Cold, Local
from .options import LaunchOptions
from .torchrun import Torchrun

_NAMED: dict[str, type[Engine]] = {"auto": Local, "local": Local, "cold": Cold, "torchrun": Torchrun, "slurm": Slurm}


def engine_for(options: LaunchOptions) -> Engine:
    """The engine that serves a launch with these options. Raises ValueError for options that it can't serve."""
    # Only torchrun restarts ranks. A dry run has to name its engine.
    restarts = options.engine == "auto" and options.max_restarts > 0 and not options.dry
    engine = (Torchrun if restarts else _NAMED[options.engine])(options)
    engine.validate()
    return engine
