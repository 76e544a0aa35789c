"""What a task does on a rank: load the student's file, form process groups, count collectives, report to the notebook.

No task calls a collective of its own after the student's code: it could get mixed up with one that the student left
half done. Ranks meet through files instead.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import io
import json
import numbers
import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.launching.supervisor import patience
from course_utils.rank import report

# For collectives, and for ranks that wait for each other's files. It only catches what the launch doesn't: that ends
# when no rank uses a processor any more (`judging.PATIENCE`), since a clock can't tell a deadlock from a busy machine.
WAIT_S = 900
GONE_S = 2.0  # a rank that's gone for this long hasn't failed: the launch would have been ended
RANK = int(os.environ.get("RANK", 0))
RANKS = int(os.environ.get("WORLD_SIZE", 1))


PRINTED_BYTES = 100_000  # kept of what an answer prints on a rank


class Problem(SystemExit):
    """The end of a rank whose answer does not keep to its contract."""


def problem(sentence: str, symptom: str = "contract") -> NoReturn:
    """Report that the answer breaks its contract. Ends this rank, and with it the launch."""
    report(problem=sentence, symptom=symptom)
    raise Problem(1)


_facts: list[str] = []


def tell(**facts: Any) -> None:
    """Report facts (anything that JSON can hold) to the notebook's side of the check. They count once the task has
    finished."""
    _facts.append(json.dumps(facts))


def finish(marker: str) -> NoReturn:
    """Hand over all facts with the marker of this launch, and end the process, even if the answer left threads."""
    report(told=_facts, marker=marker)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def draw_seed() -> int:
    """`launch_seed`, which is also reported to the notebook."""
    seed = launch_seed()
    tell(seed=seed)
    return seed


def load(path: str) -> ModuleType:
    """The student's file as a module. What it prints goes to the notebook; what libraries print doesn't."""
    spec = importlib.util.spec_from_file_location("answer", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["answer"] = module

    left = PRINTED_BYTES

    def printed(*values: Any, file: Any = None, **options: Any) -> None:
        nonlocal left
        if file not in (None, sys.stdout, sys.stderr):
            return print(*values, file=file, **options)
        options.pop("flush", None)
        text = io.StringIO()
        print(*values, file=text, **options)
        shown = text.getvalue()[: min(2000, left)]
        if shown:
            left -= len(shown)
            report(printed=shown)

    module.__dict__["print"] = printed
    seed_differently()
    patience.begin()
    with _kept_alive("the cell"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _kept_alive(what: str) -> Iterator[None]:
    """Turns `sys.exit` in the student's code into a problem that the notebook shows."""
    try:
        yield
    except Problem:
        raise
    except SystemExit as ended:
        code = "" if ended.code is None else repr(ended.code)
        problem(
            f"{what[0].upper()}{what[1:]} ended the program: it called `sys.exit({code})` or something like it.",
            "ended early",
        )


def function(module: ModuleType, name: str, *parameters: str, changes: Collection[str] = ()) -> Callable[..., Any]:
    """The student's function `name`. Ends the rank with one clear sentence if it's missing or takes other parameters.

    Each call is guarded: it must leave the numbers, tensors, lists and dicts it's given as they were, and also what the
    whole program shares (`shared_state`). `changes` names what it may change: arguments, if the exercise's text says
    so, and parts of the shared state, such as "the random state". A change of shared state is reported to the notebook,
    which mentions it only if nothing else is wrong, because its consequences usually say more.
    """
    found = getattr(module, name, None)
    if not callable(found):
        problem(f"The cell defines no function `{name}`. Keep the name you were given.", "missing")
    wanted = f"{name}({', '.join(parameters)})"
    try:
        signature = inspect.signature(found)
        signature.bind(*parameters)
    except TypeError:
        problem(f"`{name}{signature}` cannot be called as `{wanted}`. Keep the parameters you were given.", "signature")
    named = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(named) >= len(parameters) and named[: len(parameters)] != list(parameters):
        problem(
            f"`{name}{signature}` has other parameters than `{wanted}`. Keep their names and their order.", "signature"
        )

    def called(*args: Any, doing: str = "", **kwargs: Any) -> Any:
        report(call=doing or f"`{name}` ran")
        given = dict(zip(parameters, args, strict=False)) | kwargs
        kept = {k: snapshot(v) for k, v in given.items() if k not in changes}
        shared = {k: v for k, v in shared_state().items() if not k.startswith(tuple(changes))}
        with _kept_alive(f"`{name}`"):
            result = found(*args, **kwargs)
        during = f", while {doing}" if doing else ""
        for argument, before in kept.items():
            if not same(before, given[argument]):
                problem(
                    f"`{name}` changed its argument `{argument}`{during}. It belongs to the caller.", "argument changed"
                )
        now = shared_state()
        for what, before in shared.items():
            if not same(before, now[what]):
                report(guard=f"`{name}` changed {what}{during}. The whole program shares it.")
        report(call="")
        return result

    return called


def shown(value: Any) -> str:
    """A value that an answer returned, as words for a sentence."""
    return "nothing" if value is None else f"{value!r:.60} (a {type(value).__name__})"


def must_return(ok: bool, function: str, value: Any, wanted: str) -> None:
    """Unless it's `ok`, that the student's `function` returned this value is a problem of symptom "type"."""
    if not ok:
        problem(f"`{function}` returned {shown(value)}; it must return {wanted}.", "type")


def number(value: Any, what: str) -> float:
    """The number that `what` returned, also in a tensor with one element; anything else, or NaN, is a problem."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        problem(f"{what} returned {shown(value)}; it must return a number.", "type")
    if value != value:
        problem(f"{what} returned NaN; it must return a number.", "type")
    return float(value)


def whole(value: Any, what: str) -> int:
    """The whole number that `what` returned; anything else is a problem."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        problem(f"{what} returned {shown(value)}; it must return a whole number, an int.", "type")
    return int(value)


_OTHER = object()  # marks anything that isn't plain data: a model, an optimizer, a function


def snapshot(value: Any) -> Any:
    """A copy of plain data (numbers, text, tensors, arrays, lists, dicts, sets), for `same`."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return type(value)(*map(snapshot, value)) if hasattr(value, "_fields") else type(value)(map(snapshot, value))
    if type(value) is dict:
        return {k: snapshot(v) for k, v in value.items()}
    if (
        isinstance(value, (bool, int, float, complex, str, bytes, set, frozenset, torch.dtype, torch.device))
        or value is None
    ):
        return copy.copy(value)
    return value.copy() if type(value).__module__ == "numpy" and hasattr(value, "copy") else _OTHER


def same(before: Any, now: Any) -> bool:
    """Whether `now` still equals its snapshot `before`, to the last bit."""
    if before is _OTHER:
        return True
    if type(before) is not type(now) and not isinstance(before, torch.Tensor):
        return False
    if isinstance(before, torch.Tensor):
        return (
            isinstance(now, torch.Tensor)
            and before.dtype == now.dtype
            and before.shape == now.shape
            and _equal(before, now.detach())
        )
    if isinstance(before, (list, tuple)):
        return len(before) == len(now) and all(map(same, before, now))
    if isinstance(before, dict):
        return list(before) == list(now) and all(same(before[k], now[k]) for k in before)
    if type(before).__module__ == "numpy":
        return bool((before == now).all()) if hasattr(before, "all") else before == now
    return bool(before == now) or before != before


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or (
        a.is_floating_point()
        and torch.equal(a.nan_to_num(nan=1.0), b.nan_to_num(nan=1.0))
        and torch.equal(a.isnan(), b.isnan())
    )


def shared_state() -> dict[str, Any]:
    """What all parts of a program share. A function should leave it as it was."""
    return {
        **{f"the random state of {name}": state for name, state in random_states().items()},
        "the default dtype": torch.get_default_dtype(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "the environment": {k: v for k, v in os.environ.items() if k not in ("KINETO_USE_DAEMON",)},
        "the working folder": os.getcwd(),
        "the number of threads": torch.get_num_threads(),
    }


def seed_differently() -> None:
    """Another seed on every rank, so that no answer gets the same numbers everywhere by luck."""
    torch.manual_seed(1000 + RANK)
    random.seed(2000 + RANK)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(3000 + RANK)


def random_states() -> dict[str, Any]:
    """The global random states that an answer could touch, to be compared."""
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "random": random.getstate()}
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state()
        states["numpy"] = (state[1].tobytes(), *state[2:])
    return states


def folder() -> Path:
    """Where the ranks of this launch leave files for each other."""
    return Path(os.environ["COURSE_RUN_DIR"])


def launch_seed() -> int:
    """A seed for cases that nobody can look up: the same on all ranks of a launch, different in each launch."""
    return zlib.crc32(folder().name.encode())


def secret_seed() -> int:
    """A seed that only this rank knows until its task tells it: no other rank can work out what the sum over all ranks
    will be."""
    return int.from_bytes(os.urandom(6))


def take(dealt: str) -> Any:
    """This rank's part of what the judge dealt (see `judging.dealt`). Call it before you load the student's file: when
    it returns, all ranks have taken theirs, and the files are gone."""
    path = Path(dealt) / f"rank{RANK}.json"
    part = json.loads(path.read_text())
    path.unlink()
    meet()
    return part


_meetings = 0


def watch_groups() -> list[str]:
    """Have a process group that the student's file forms behave as those that `world` forms: its ranks meet when all
    have joined. Call it before the file is loaded, which may import `init_process_group` by name.

    Returns where these groups meet, if that isn't what the launcher has said: such an address is right on one machine
    only. The list grows while the file runs.
    """
    form, formed = dist.init_process_group, 0
    told = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    others: list[str] = []

    def forms(*args: Any, **kwargs: Any) -> None:
        nonlocal formed
        if len(args) < 3:  # the third is the timeout
            kwargs["timeout"] = timedelta(seconds=WAIT_S)
        method = kwargs.get("init_method") or (args[1] if len(args) > 1 else None)
        if method not in (None, "env://"):
            others.append(str(method))
        others.extend(f"{name}={os.environ.get(name)}" for name, said in told.items() if os.environ.get(name) != said)
        form(*args, **kwargs)
        formed += 1
        if dist.get_world_size() == RANKS:
            _await(f"formed{formed}", RANKS)

    dist.init_process_group = forms
    return others


def meet() -> None:
    """Wait for all ranks, by files. When another rank fails, the launch is ended from outside."""
    global _meetings
    _meetings += 1
    _await(f"met{_meetings}", RANKS)


def _await(what: str, size: int) -> None:
    """Wait until the first `size` ranks, this one among them, have come here."""
    (folder() / f"{what}.{RANK}").touch()
    wait_for(*(folder() / f"{what}.{r}" for r in range(size)))


def wait_for(*paths: Path) -> None:
    """Wait until all files are there. Raises TimeoutError after `WAIT_S`."""
    began, gone_since = time.monotonic(), 0.0
    while not all(path.exists() for path in paths):
        now = time.monotonic()
        if now > began + WAIT_S:
            raise TimeoutError(
                f"rank {RANK} waited {WAIT_S} s for {', '.join(p.name for p in paths if not p.exists())}"
            )
        gone = [rank for rank in range(RANKS) if not _alive(rank)]
        gone_since = (gone_since or now) if gone else 0.0
        if gone and now > gone_since + GONE_S:  # if it had failed, the launch would have been ended by now
            problem(f"Rank {gone[0]} ended before its part was done.", "ended early")
        time.sleep(0.005 if now < began + 1 else 0.05)  # a rank that waits long should look idle


def _alive(rank: int) -> bool:
    """Whether a rank's process is running, or hasn't started yet."""
    try:
        os.kill(int((folder() / f"rank{rank}.pid").read_text().split()[0]), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, IndexError):
        pass
    return True


_store: Any = None


@contextmanager
def world(size: int) -> Iterator[bool]:
    """A process group of the first `size` ranks; yields False on the others. All ranks enter it.

    The ranks meet first, since imports take some longer than others. They meet again when all have joined. Gloo lets a
    rank go on as soon as its own connections stand; if it then calls nothing and leaves, a slower rank finds them
    closed while it's still joining ("connectFullMesh failed ... Connection closed by peer").
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
    dist.init_process_group("gloo", store=prefixed, rank=RANK, world_size=size, timeout=timedelta(seconds=WAIT_S))
    _await(f"joined{_meetings}", size)
    seed_differently()
    yield True
    dist.destroy_process_group()


@contextmanager
def after_each_step(note: Callable[[Optimizer], object]) -> Iterator[None]:
    """Calls `note` after every step of any optimizer, wherever the answer has made it."""
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: note(optimizer))
    try:
        yield
    finally:
        handle.remove()


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
