"""A cluster's settings, and the file that they are read from."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..folders import course_home


@dataclass(frozen=True)
class Site:
    """The settings of one cluster. You can leave out any of them; data/slurm/gpus.toml explains each, and there are
    examples next to it."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    gpus_per_node: int = 0
    gpu_option: str = "--gpus-per-node={gpus}"
    cpus_per_rank: int = 1
    memory: str = ""
    interface: str = ""
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    sbatch: list[str] = field(default_factory=list)
    srun: list[str] = field(default_factory=list)
    container: str = ""
    python: str = ""
    env: dict[str, str] = field(default_factory=dict)


def site_file() -> Path | None:
    """The file with this cluster's settings: what COURSE_SLURM names, else slurm.toml in the course's home, else
    ~/.config/course/slurm.toml."""
    if named := os.environ.get("COURSE_SLURM"):
        return Path(named).expanduser()
    usual = (course_home() / "slurm.toml", Path("~/.config/course/slurm.toml").expanduser())
    return next((path for path in usual if path.is_file()), None)


def load_site() -> Site:
    """This cluster's settings; all empty without a file. Raises ValueError for a file that we can't read, or with an
    unknown setting."""
    path = site_file()
    if path is None:
        return Site()
    try:
        raw = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"can't read the cluster's settings in {path} ({error})") from None
    known: dict[str, Any] = {f.name: getattr(Site(), f.name) for f in fields(Site)}
    for name, value in raw.items():
        if name not in known:
            raise ValueError(f"{path} sets {name!r}, which isn't a setting; choose from {', '.join(known)}")
        wanted = type(known[name])
        inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [str(value)]
        lines = all(isinstance(v, str) and "\n" not in v for v in inside)
        if type(value) is not wanted or not lines or (wanted is int and value < 0):
            raise ValueError(f"{path}: {name} must be like {known[name] or _LIKE[wanted]}; got {value!r}")
    return Site(**raw)


_LIKE = {
    str: '"text in one line"',
    int: "4",
    list: '["a list", "of text"]',
    dict: 'a table such as env = { NAME = "value" }',
}
