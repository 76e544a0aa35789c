"""How the ranks of an emulated group meet: each says what it calls and when its GPU is ready, and all learn the same.

Small tensors and those of the CPU really travel, over gloo. `Alone` is a rank whose others are only thought of: they do
what it does, at the same time.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..clusters import Cluster
from ..collectives import Call, disagreement
from .state import HERE, block

KEPT = 64  # calls that are remembered, for whoever asks where this rank stands
_TORCH = torch.__file__.removesuffix("__init__.py")
_DTYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "int64": "Long", "int32": "Int", "uint8": "Byte"}
recorded: deque[dict[str, Any]] = deque(maxlen=KEPT)  # as `engines.flight_record` writes them


class Meeting:
    """The ranks of a group, over gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        self.rank, self.size = rank, size
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def exchange(self, words: str, *numbers: float) -> list[list[float]]:
        """The numbers of all ranks, once all have come. Raises RuntimeError if their words differ."""
        mine = torch.tensor([float(zlib.crc32(words.encode())), *numbers], dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self.gloo.allgather([found], [mine]).wait()
        rows = [row.tolist() for row in found]
        if any(row[0] != rows[0][0] for row in rows):
            self._say_difference()
        return [row[1:] for row in rows]

    def _say_difference(self) -> None:
        """Tell all what each one calls, in the words of a launch that fails for it."""
        text = json.dumps(recorded[-1]).encode()
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(text)
        self.gloo.allreduce([sizes]).wait()
        mine = torch.frombuffer(bytearray(text.ljust(int(sizes.max()))), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self.gloo.allgather([found], [mine]).wait()
        calls = {rank: [_call(json.loads(bytes(row.tolist())))] for rank, row in enumerate(found)}
        said = disagreement(calls).rstrip(".")
        said = said or "; ".join(f"rank {rank} calls {own[0].op} with {own[0].shape}" for rank, own in calls.items())
        raise RuntimeError(f"the ranks don't call the same collective. {said[0].upper()}{said[1:]}.")

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        return self.gloo.send(tensors, to, tag)

    def receive(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self.gloo.recv(tensors, source, tag)


class Alone:
    """Rank 0 of a group whose other ranks do the same at the same time, with the same values. It has gloo's methods."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.gloo = rank, size, self

    def exchange(self, words: str, *numbers: float) -> list[list[float]]:
        return [list(numbers)]

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
            for t in tensors:
                t.mul_(self.size)
        return _Done()

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if opts is not None and opts.rootRank != self.rank and block(tensors[0]) is None:
            raise self._nothing_comes(opts.rootRank)
        return _Done()

    def allgather(self, outs: list[list[torch.Tensor]], ins: list[torch.Tensor], opts: Any = None) -> Any:
        for all_of_one, own in zip(outs, ins, strict=True):
            for out in all_of_one:
                out.copy_(own)
        return _Done()

    gather = allgather

    def _allgather_base(self, out: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Any:
        out.view(self.size, -1).copy_(own.reshape(1, -1).expand(self.size, -1))
        return _Done()

    def reduce_scatter(self, outs: list[torch.Tensor], ins: list[list[torch.Tensor]], opts: Any = None) -> Any:
        for out, parts in zip(outs, ins, strict=True):
            out.copy_(parts[self.rank])
        return self.allreduce(outs, opts)

    def _reduce_scatter_base(self, out: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> Any:
        out.view(-1).copy_(whole.view(self.size, -1)[self.rank])
        return self.allreduce([out], opts)

    def alltoall_base(
        self, out: torch.Tensor, own: torch.Tensor, out_sizes: Any, in_sizes: Any, opts: Any = None
    ) -> Any:
        out.zero_()
        return _Done()

    def scatter(self, outs: list[torch.Tensor], ins: list[list[torch.Tensor]], opts: Any = None) -> Any:
        for out, parts in zip(outs, ins, strict=False):
            out.copy_(parts[self.rank])
        return _Done()

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        return None

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        return _Done()

    def receive(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        if tag % 2 and (block(tensors[0]) is None or not tensors[0].dtype.is_floating_point):
            raise self._nothing_comes(source)
        if tag % 2:
            tensors[0].zero_()
        return _Done()

    def _nothing_comes(self, source: int) -> RuntimeError:
        return RuntimeError(f"only rank 0 of {self.size} runs here, so nothing can come from rank {source}")


def on_one_gpu(cluster: Cluster, ranks: Sequence[int], rows: Sequence[Sequence[float]]) -> str:
    """What to say if two ranks of a node come with tensors on the same GPU, which NCCL refuses; otherwise empty. Each
    row's last number is the rank's GPU, below 0 for the CPU."""
    first: dict[tuple[int, float], int] = {}
    for rank, row in zip(ranks, rows, strict=False):
        other = first.setdefault((cluster.node_of(rank), row[-1]), rank)
        if other != rank and row[-1] >= 0:
            return (
                f"NCCL error (emulated), invalid usage: ranks {other} and {rank} both use GPU {row[-1]:.0f} of their"
                " node, and NCCL wants another one for each. Before anything uses a GPU, call"
                ' torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
            )
    return ""


class _Done:
    """Gloo's answer where nothing is left to wait for."""

    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def record(group: str, number: int, op: str, tensors: Sequence[torch.Tensor], root: int | None = None) -> None:
    """Remember a call, with the lines of the program that made it."""
    frames, frame = [], sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((HERE, "<")):
            frames.append([code.co_filename, frame.f_lineno, code.co_name])
        frame = frame.f_back  # type: ignore[assignment]
    calls = [f for f in frames if f[2] != "wrapper"]  # which torch puts around each collective
    at = next((i for i, f in enumerate(calls) if not f[0].startswith(_TORCH)), len(calls))
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
    recorded.append(
        {
            "group": group, "number": number, "op": op, "root": root, "inputs": [list(t.shape) for t in tensors],
            "dtypes": [_DTYPES.get(dtype, dtype)] if dtype else [], "frames": calls[max(0, at - 1) : at + 8],
        }
    )  # fmt: skip


def _call(raw: dict[str, Any]) -> Call:
    """A call as `collectives` compares them. The line is the first outside of torch: the program's own, or that of a
    library it uses."""
    frames = raw["frames"]
    at = next((i for i, f in enumerate(frames) if not f[0].startswith(_TORCH)), None)
    file, line = (frames[at][0], frames[at][1]) if at is not None else ("", 0)
    function = frames[at - 1][2] if at else ""
    sizes = tuple(tuple(size) for size in raw["inputs"])
    return Call("0", 1, raw["op"], sizes, (raw["dtypes"] or [""])[0], file, line, function, raw["root"])
