"""What an adapter script does on a rank: load the student's file, form process groups, count collectives, tell the notebook.

No adapter calls a collective of its own after the student's code: one that the student left half done would swallow it. Ranks
meet through files instead.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.rank import report

# A collective that waits this long counts as a hang. A rank that has imported torch itself (a cold start, and its processor time tells) imports
# more in its first steps, and on a busy machine that takes seconds in which the others wait.
HANG_S = 5 if time.process_time() < 0.5 else 20
MEET_S = 60  # ranks may import at very different speeds on a busy machine
RANK = int(os.environ.get("RANK", 0))
RANKS = int(os.environ.get("WORLD_SIZE", 1))


def problem(sentence: str, symptom: str = "contract") -> NoReturn:
    """Tell the notebook that the answer does not keep to its contract, and end this rank, and with it the launch."""
    report(problem=sentence, symptom=symptom)
    sys.exit(1)


def tell(**facts: Any) -> None:
    """Facts for the notebook's side of the check: anything that JSON holds."""
    report(told=json.dumps(facts))


def load(path: str) -> ModuleType:
    """The student's file as a module. What it prints goes to the notebook, without the noise that libraries print."""
    spec = importlib.util.spec_from_file_location("answer", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["answer"] = module

    def printed(*values: Any, file: Any = None, **options: Any) -> None:
        if file not in (None, sys.stdout, sys.stderr):
            return print(*values, file=file, **options)
        options.pop("flush", None)
        text = io.StringIO()
        print(*values, file=text, **options)
        report(printed=text.getvalue()[:2000])

    module.__dict__["print"] = printed
    seed_differently()
    spec.loader.exec_module(module)
    return module


def function(module: ModuleType, name: str, *parameters: str) -> Callable[..., Any]:
    """The student's function `name`; ends the rank with one clear sentence when it is missing or takes something else."""
    found = getattr(module, name, None)
    if not callable(found):
        problem(f"The cell defines no function `{name}`. Keep its name as it was given.", "missing")
    wanted = f"{name}({', '.join(parameters)})"
    try:
        signature = inspect.signature(found)
        signature.bind(*parameters)
    except TypeError:
        problem(f"`{name}{signature}` cannot be called as `{wanted}`. Keep the parameters as they were given.", "signature")
    named = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(named) >= len(parameters) and named[: len(parameters)] != list(parameters):
        problem(f"`{name}{signature}` has other parameters than `{wanted}`. Keep their names and order as they were given.", "signature")

    def called(*args: Any, doing: str = "", **kwargs: Any) -> Any:
        report(call=doing or f"`{name}` ran")
        result = found(*args, **kwargs)
        report(call="")
        return result

    return called


def seed_differently() -> None:
    """Another seed on every rank, on purpose: what needs the same numbers everywhere must not get them by luck."""
    torch.manual_seed(1000 + RANK)
    random.seed(2000 + RANK)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(3000 + RANK)


def random_states() -> dict[str, Any]:
    """The global random states that an answer could touch, to be compared."""
    states = {"torch": torch.get_rng_state().tolist(), "random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = str(sys.modules["numpy"].random.get_state())
    return states


def folder() -> Path:
    """Where the ranks of this launch leave files for each other."""
    return Path(os.environ["COURSE_RUN_DIR"])


_meetings = 0


def meet() -> None:
    """Wait for all ranks, by files. When another rank fails, the launch is ended from outside."""
    global _meetings
    _meetings += 1
    (folder() / f"met{_meetings}.{RANK}").touch()
    wait_for(*(folder() / f"met{_meetings}.{r}" for r in range(RANKS)))


def wait_for(*paths: Path) -> None:
    """Wait until all files are there. Raises TimeoutError after `MEET_S`."""
    deadline = time.monotonic() + MEET_S
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {RANK} waited {MEET_S} s for {', '.join(p.name for p in paths if not p.exists())}")
        time.sleep(0.005)


_store: Any = None


@contextmanager
def world(size: int) -> Iterator[bool]:
    """A process group of the first `size` ranks; gives False on the others. All ranks enter it.

    The ranks meet first, so that a slow import is not taken for a hang: from then on a collective may wait `HANG_S`.
    """
    global _store
    meet()
    if size <= RANK:
        yield False
        return
    if _store is None:
        _store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(size)
    prefixed = dist.PrefixStore(f"check{_meetings}", _store)
    dist.init_process_group("gloo", store=prefixed, rank=RANK, world_size=size, timeout=timedelta(seconds=HANG_S))
    seed_differently()
    yield True
    dist.destroy_process_group()


class Collectives(TorchDispatchMode):
    """Counts the collectives that this rank takes part in, DDP's own included: `calls` holds (name, bytes) in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.calls.append((func.overloadpacket.__name__.strip("_"), _nbytes(args)))
        return func(*args, **(kwargs or {}))


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(_nbytes(item) for item in value) if isinstance(value, (list, tuple)) else 0
