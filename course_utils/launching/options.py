"""The arguments of `launch` as one object. Those that make no sense are refused here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..show.units import is_number, is_whole
from .supervisor.patience import USUAL, Patience

ENGINES = ("auto", "local", "cold", "torchrun", "slurm")


@dataclass(frozen=True)
class LaunchOptions:
    """The arguments of `launch`, whose docstring explains them; `script` is the file that runs, even if you named a
    module.

    Raises ValueError for a value that no engine could use. Each engine refuses what it can't do itself, and the
    placement of ranks refuses numbers that depend on the machine (ranks, GPUs, threads).
    """

    script: Path
    ranks: int | str = "auto"
    args: Sequence[object] = ()
    timeout: float | Patience | None = None
    engine: str = "auto"
    env: Mapping[str, str | None] | None = None
    nodes: int = 1
    gpus_per_rank: int | str = 1
    threads: int | None = None
    device: str = "auto"
    max_restarts: int = 0
    check: bool = True
    quiet: bool = False
    dry: bool = False
    detach: bool = False
    module: str = ""
    cluster: str | Mapping[str, Any] = ""
    slow: Mapping[int, float] | None = None
    one_of: int = 0
    host: str = ""

    def __post_init__(self) -> None:
        args, env, timeout, nodes, restarts = self.args, self.env, self.timeout, self.nodes, self.max_restarts
        if isinstance(args, (str, bytes)) or not isinstance(args, Iterable):
            raise ValueError(f"args must be a list, one element for each word of the command line; got {args!r}")
        if env is not None and not (
            isinstance(env, Mapping) and all(isinstance(name, str) and name and "=" not in name for name in env)
        ):
            raise ValueError(f"env must be a dict of names and values, as in {{'NCCL_DEBUG': 'INFO'}}; got {env!r}")
        if self.engine not in ENGINES:
            raise ValueError(f"unknown engine {self.engine!r}; choose {', '.join(ENGINES)}")
        if not isinstance(timeout, Patience | None) and (not is_number(timeout) or not timeout > 0):
            raise ValueError(f"timeout must be a number of seconds above 0; got {timeout!r}")
        if not is_whole(nodes) or nodes < 1:
            raise ValueError(f"nodes must be a whole number above 0; got {nodes!r}")
        if not is_whole(restarts) or restarts < 0:
            raise ValueError(f"max_restarts must be a whole number, 0 or more; got {restarts!r}")
        if (self.slow or self.one_of or self.host) and not self.cluster:
            raise ValueError("slow, one_of and host are for emulated GPUs; name them too, as in cluster='8xA100'")
        if self.cluster and (restarts or self.engine not in ("auto", "local", "cold")):
            asked = f"max_restarts={restarts}" if restarts else f"engine={self.engine!r}"
            raise ValueError(f"our own launcher emulates GPUs, on this machine: leave out {asked}")
        if self.cluster and self.device not in ("auto", "cuda"):
            raise ValueError(f"a cluster says what the ranks compute on: leave out device={self.device!r}")

    @property
    def patience(self) -> Patience:
        """What `timeout` means."""
        if isinstance(self.timeout, Patience):
            return self.timeout
        return USUAL if self.timeout is None else Patience(total_s=float(self.timeout), deadlock_s=USUAL.deadlock_s)

    @property
    def seconds(self) -> float:
        """`timeout` for ranks that we can't watch, on other machines."""
        return min(self.patience.idle_s, self.patience.total_s)
