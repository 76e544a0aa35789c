"""How the ranks of an emulated group meet: each says what it calls and when its GPU is ready, and all learn the same.

Small tensors and those of the CPU really travel, over gloo: in a collective by a `Meeting`, from one rank to another by
`Post`. `Alone` is a rank whose others are only thought of: they do what it does, at the same time. Of `Some`, a few
run.
"""

from __future__ import annotations

import json
import sys
import zlib
from bisect import bisect
from collections import Counter, deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..results.collectives import Call, disagreement
from .clusters import EmulatedCluster
from .plans import SMALL
from .state import HERE, block

KEPT = 64  # calls that are remembered, for whoever asks where this rank stands
PRIME = 2**31 - 1
_TORCH = torch.__file__.removesuffix("__init__.py")
_DTYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "int64": "Long", "int32": "Int", "uint8": "Byte"}
recorded: deque[dict[str, Any]] = deque(maxlen=KEPT)  # as `on_rank/flight_record.py` writes them


class Meeting:
    """The ranks of a group, over gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        self.rank, self.size, self.present = rank, size, range(size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.own: dict[int, deque[torch.Tensor]] = {}  # by tag, what this rank sends to itself, which gloo can't

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
        told = {rank: f"{own[0].op} with {own[0].shape} of {own[0].dtype.lower()}" for rank, own in calls.items()}
        said = said or "; ".join(f"rank {rank} calls {what}" for rank, what in told.items())
        raise RuntimeError(f"the ranks don't call the same collective. {said[0].upper()}{said[1:]}.")

    def say_splits(self, sent: Sequence[int], expected: Sequence[int]) -> None:
        """Tell all ranks who doesn't get as many elements as it expects."""
        mine = torch.tensor([list(sent), list(expected)])
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self.gloo.allgather([found], [mine]).wait()
        gives, gets = torch.stack(found).unbind(1)
        source, target = (gives != gets.t()).nonzero()[0].tolist()
        raise RuntimeError(
            f"the ranks don't agree how to split an all_to_all: rank {source} of the group sends"
            f" {gives[source, target]} numbers to rank {target}, which expects {gets[target, source]}"
        )

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        if to != self.rank:
            return self.gloo.send(tensors, to, tag)
        self.own.setdefault(tag, deque()).append(tensors[0])
        return _Done()

    def receive(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self.gloo.recv(tensors, source, tag) if source != self.rank else _FromItself(self.own, tensors[0], tag)


class Alone:
    """Rank 0 of a group whose other ranks do the same at the same time, with the same values. It has gloo's methods."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.gloo, self.present = rank, size, self, [rank]

    def exchange(self, words: str, *numbers: float) -> list[list[float]]:
        return [list(numbers)]

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
            for t in tensors:
                t.mul_(self.size)
        return _Done()

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
        out.view(self.size, own.numel()).copy_(own.reshape(1, -1).expand(self.size, -1))
        return _Done()

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


class Some(Alone):
    """The ranks of a group of which a few are `present`, by their places in it. Each does for itself what those do
    after it, up to the next; so their values are the same."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, present: Sequence[int]):
        super().__init__(rank, size)
        self.present = list(present)
        self.among = Meeting(store, self.present.index(rank), len(present), timeout)
        self.for_each = [max(0, bisect(self.present, i) - 1) for i in range(size)]  # who does its work
        self.counts = Counter(self.for_each)

    def exchange(self, words: str, *numbers: float) -> list[list[float]]:
        return self.among.exchange(words, *numbers)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
            for t in tensors:
                t.mul_(self.counts[self.among.rank])
        return self.among.gloo.allreduce(tensors, opts or dist.AllreduceOptions())

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        root = 0 if opts is None else opts.rootRank
        if root not in self.present and block(tensors[0]) is None:
            raise self._nothing_comes(root)
        options = dist.BroadcastOptions()
        options.rootRank = self.for_each[root]
        return self.among.gloo.broadcast(tensors, options)

    def allgather(self, outs: list[list[torch.Tensor]], ins: list[torch.Tensor], opts: Any = None) -> Any:
        """As `gather`, too, where only the root has `outs`."""
        for i, own in enumerate(ins):
            found = [torch.empty_like(own) for _ in self.present]
            self.among.gloo.allgather([found], [own]).wait()
            for out, who in zip(outs[i] if outs else [], self.for_each, strict=False):
                out.copy_(found[who])
        return _Done()

    gather = allgather

    def _allgather_base(self, out: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Any:
        return self.allgather([list(out.view(self.size, -1))], [own.reshape(-1)])

    def scatter(self, outs: list[torch.Tensor], ins: list[list[torch.Tensor]], opts: Any = None) -> Any:
        options = dist.ScatterOptions()
        options.rootRank = self.for_each[opts.rootRank]
        return self.among.gloo.scatter(outs, [[parts[i] for i in self.present] for parts in ins], options)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.among.gloo.monitored_barrier(timeout, wait_all_ranks)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        if to not in self.present:
            return super().send(tensors, to, tag)
        return self.among.send(tensors, self.present.index(to), tag)

    def receive(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        if source not in self.present:
            return super().receive(tensors, source, tag)
        return self.among.receive(tensors, self.present.index(source), tag)

    def _nothing_comes(self, source: int) -> RuntimeError:
        ran = ", ".join(map(str, self.present))
        return RuntimeError(f"only ranks {ran} of this group run here, so nothing can come from rank {source}")


def on_one_gpu(cluster: EmulatedCluster, ranks: Sequence[int], rows: Sequence[Sequence[float]]) -> str:
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


class _FromItself:
    """A message from this rank, that's to come."""

    def __init__(self, own: dict[int, deque[torch.Tensor]], into: torch.Tensor, tag: int):
        self.own, self.into, self.tag = own, into, tag

    def wait(self) -> None:
        if not self.own.get(self.tag):
            raise RuntimeError("this rank waits for a message from itself, and hasn't sent it")
        came = self.own[self.tag].popleft()
        self.into.view(-1).view(torch.uint8).copy_(came.reshape(-1).view(torch.uint8))


class Letter:
    """A message that's expected. `stamp` will hold what its sender says of it: see `Post.send`."""

    def __init__(self, tensor: torch.Tensor, key: tuple[int, int], stamp: torch.Tensor, coming: Any):
        self.numel, self.itemsize, self.on_gpu = tensor.numel(), tensor.element_size(), block(tensor) is not None
        # What's large isn't kept: its values don't come, and who gave the memory may take it back.
        self.tensor = tensor if travels(tensor) else None
        self.key, self.stamp, self.coming, self.opened = key, stamp, coming, False


class Post:
    """The messages of one rank. Each has a stamp, which says when it was sent and how large it is, and its values if
    they travel. Nobody has to meet for it.

    Gloo reads a message from its sender's memory once the receiver has come, so that's kept until then: a copy of the
    values, never the tensor. Gloo itself doesn't say when it's done. So each stamp says how many messages of the other
    side were received, and when the ranks meet for a collective, all that's `open` may sum up to none.
    """

    def __init__(self, meeting: Any):
        self.meeting = meeting
        # By the other rank and the tag: what was sent and may not have been received, how much has been, and what's to
        # come. Gloo keeps the order of a tag.
        self.leaving: dict[tuple[int, int], deque[tuple[list[Any], list[torch.Tensor]]]] = {}
        self.gone: dict[tuple[int, int], int] = {}
        self.received: dict[tuple[int, int], int] = {}
        self.coming: dict[tuple[int, int], deque[Letter]] = {}
        self.open = 0  # how many more this rank has sent than received

    def send(self, tensor: torch.Tensor, to: int, tag: int, ready: float, known: bool) -> None:
        """Send a tensor that's `ready` at this time, with values that were computed if they're `known`."""
        key = to, tag
        buffers = [self._stamp(tensor, key, ready, known)]
        if travels(tensor) and tensor.numel():
            buffers.append(tensor.detach().clone())
        works = [self.meeting.send([buffer], to, 2 * tag + i) for i, buffer in enumerate(buffers)]
        if not all(work.is_completed() for work in works):  # gloo's never are before somebody waits for them
            self.leaving.setdefault(key, deque()).append((works, buffers))
        self.open += 1

    def expect(self, tensor: torch.Tensor, source: int, tag: int) -> Letter:
        """Look out for the next message of a rank."""
        stamp = self._stamp(tensor, (source, tag), 0.0, True)
        letter = Letter(tensor, (source, tag), stamp, self.meeting.receive([stamp], source, 2 * tag))
        self.coming.setdefault(letter.key, deque()).append(letter)
        return letter

    def take(self, letter: Letter) -> tuple[float, bool]:
        """Wait, in real time, until a message is there, and all that this rank sent before it. Returns when it was sent
        and whether its values are there and were computed. Raises RuntimeError if it isn't what's expected."""
        while not letter.opened:
            self._open(self.coming[letter.key].popleft())
        return float(letter.stamp[0]), bool(letter.stamp[3] == 2)

    def arrive(self) -> None:
        """Wait, in real time, until all that was sent has been received."""
        for key, letters in self.leaving.items():
            while letters:
                self._forget(key)

    def _stamp(self, tensor: torch.Tensor, key: tuple[int, int], ready: float, known: bool) -> torch.Tensor:
        state = 1 + known if travels(tensor) else 0
        size = tensor.numel(), tensor.element_size()
        return torch.tensor([ready, *size, state, self.received.get(key, 0)], dtype=torch.float64)

    def _open(self, letter: Letter) -> None:
        letter.coming.wait()
        letter.opened = True
        _, numel, itemsize, state, received = letter.stamp.tolist()
        source, tag = letter.key
        if numel != letter.numel:
            raise RuntimeError(f"a message of {numel:.0f} numbers arrives where {letter.numel} are expected")
        if itemsize != letter.itemsize:
            raise RuntimeError(
                f"a message of numbers of {itemsize:.0f} bytes arrives where {letter.itemsize} bytes are expected: the"
                " two sides have different dtypes"
            )
        if not state and not letter.on_gpu:
            raise RuntimeError(
                "a message from a GPU arrives where a tensor of the CPU is to be filled. NCCL would carry the one and"
                " gloo the other, so on real GPUs both sides would wait for ever. Send and receive on GPUs, or on CPUs"
            )
        if state and numel:
            into = letter.tensor if letter.tensor is not None else torch.empty(int(numel * itemsize), dtype=torch.uint8)
            self.meeting.receive([into], source, 2 * tag + 1).wait()
        self.received[letter.key] = self.received.get(letter.key, 0) + 1
        self.open -= 1
        letter.tensor = None
        while self.gone.get(letter.key, 0) < received and self.leaving.get(letter.key):
            self._forget(letter.key)

    def _forget(self, key: tuple[int, int]) -> None:
        """The other side has received the oldest message to it."""
        for work in self.leaving[key].popleft()[0]:
            work.wait()
        self.gone[key] = self.gone.get(key, 0) + 1


def reduce(found: Any, tensors: Sequence[torch.Tensor], op: Any) -> None:
    """Reduce in place over the ranks of a `Meeting`, as NCCL does: gloo has no mean, and no sum of what's multiplied
    first, by which NCCL gets the mean, too, except that of integers. Raises TypeError if integers were to be
    multiplied."""
    mean, scaled = op == dist.ReduceOp.AVG, op == dist.ReduceOp.PREMUL_SUM
    factor = op.__getstate__()[1] if scaled else 1 / found.size  # torch 2.10 has no `op.factor`
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM if mean or scaled else op
    for t in tensors:
        if scaled and not t.dtype.is_floating_point:
            raise TypeError(f"ReduceOp.PREMUL_SUM multiplies numbers of half, bfloat16, float or double, not {t.dtype}")
        if (mean or scaled) and t.dtype.is_floating_point:
            t.mul_(torch.as_tensor(factor).to(t.dtype).reshape(()))
        if t.numel():
            found.gloo.allreduce([t], options).wait()
        if mean and not t.dtype.is_floating_point:
            t.div_(found.size, rounding_mode="trunc")


def gather_uneven(found: Any, outs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    """Gather tensors of several sizes. Gloo's own all_gather wants them all alike."""
    outs[found.rank].copy_(own.view_as(outs[found.rank]))
    for rank, out in enumerate(outs):
        if out.numel():
            options = dist.BroadcastOptions()
            options.rootRank = rank
            found.gloo.broadcast([out], options).wait()


def split(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    """The elements of a tensor for each rank: `sizes` rows, or as many for each. Raises ValueError, as torch does, if
    it can't be split so."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if rows % ranks:
            raise ValueError("Tensor's dim 0 does not divide equally across group size")
        return [tensor.numel() // ranks] * ranks
    if len(sizes) != ranks:
        raise ValueError("Number of tensor splits not equal to group size")
    if sum(sizes) != rows:
        raise ValueError("Split sizes doesn't match total dim 0 size")
    return [size * (tensor.numel() // rows) if rows else 0 for size in sizes]


def alike(kind: str, lists: Sequence[Sequence[torch.Tensor]], own: torch.Tensor, ranks: int) -> None:
    """Raise ValueError if a root's list isn't one tensor for each rank, as large as its own."""
    for sizes in ([t.numel() for t in parts] for parts in lists):
        if sizes and sizes != [own.numel()] * ranks:
            raise ValueError(f"{kind} needs a list of {ranks} tensors of {own.numel()} numbers, got {sizes}")


def moved(rank: int, sent: Sequence[int], expected: Sequence[int]) -> float:
    """The elements of a buffer, split evenly, of which a rank would move as many as it sends or gets here, whichever is
    more. What it keeps takes no link."""
    n, most = len(sent), max(sum(sent) - sent[rank], sum(expected) - expected[rank])
    return most * n / (n - 1) if n > 1 else 0.0


def balance(rank: int, sent: Sequence[int], expected: Sequence[int]) -> float:
    """A number whose sum over all ranks is 0, modulo PRIME, if each rank gets as many elements as it expects; and by
    chance once in 2**31 times."""
    gives = sum(_weight(rank, other) * n for other, n in enumerate(sent))
    return float((gives - sum(_weight(other, rank) * n for other, n in enumerate(expected))) % PRIME)


def _weight(source: int, target: int) -> int:
    return zlib.crc32(b"%d %d" % (source, target))


def travels(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are carried. A large one of floats on a GPU only takes its time."""
    return tensor.numel() <= SMALL or not tensor.dtype.is_floating_point or block(tensor) is None


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
