"""The process group of modelled GPUs: small values really travel, large ones only take their time.

Each call of a collective exchanges what every rank calls and when its GPU is ready for it. So a difference in kind,
shape or type is an error on all ranks, and all agree on when it begins and ends.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from . import links, meeting, several_gpus, sparse
from .state import Gpus, block
from .works import Batch, EmulatedWork, Message

_gpus: Gpus  # of this rank; `install` sets it
_groups: list[tuple[int, ...]] = []  # the global ranks of all groups that this rank has heard of
_inits = 0
_Tensors = list[torch.Tensor]


class EmulatedGroup(dist.ProcessGroup):
    """A process group over modelled links. What torch asks of a group has torch's names and arguments."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any, ranks: Sequence[int]):
        super().__init__(rank, size)
        self.rank_, self.size_, self.ranks = rank, size, tuple(ranks)
        self.meeting = _meeting(store, rank, size, timeout, self.ranks)
        self.real = self.meeting.gloo
        self.free = 0.0  # when this group's stream has done all that it was given
        self.lanes: dict[int, float] = {}  # other rank -> when all messages to it have been sent
        self.post = meeting.Post(self.meeting)
        self.batch: list[EmulatedWork] | None = None
        self.number = 0  # of calls
        self.routes: dict[int, links.Route] = {}

    def rank(self) -> int:
        return self.rank_

    def size(self) -> int:
        return self.size_

    def getBackendName(self) -> str:
        return "emulated"

    def setGroupName(self, name: str) -> None:
        self.name_ = name

    _set_group_name = setGroupName

    def getGroupName(self) -> str:
        return getattr(self, "name_", "0")

    @property
    def group_name(self) -> str:
        return self.getGroupName()

    @property
    def _device_types(self) -> list[torch.device]:
        """None while torch makes the group: it would attach a recorder, which asks C++ for a backend."""
        if self not in dist.distributed_c10d._world.pg_map:
            return []
        both = [torch.device("cpu"), torch.device("cuda")]
        return both[1:] if dist.get_backend(self) == "nccl" else both

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        """NCCL makes one work of a batch of messages, gloo one of each."""
        return dist.get_backend(self) != "gloo"

    def shutdown(self) -> None:
        """Messages that were sent arrive before their sender goes."""
        with _disable_current_modes():
            self.post.arrive()

    def abort(self) -> None:
        self.post.leaving.clear()

    def _get_backend(self, device: Any) -> EmulatedGroup:
        return self

    def _start_coalescing(self, device: Any) -> None:
        """What comes now is one batch; each part waits for its own message all the same."""
        self.batch = []

    def _end_coalescing(self, device: Any) -> Any:
        works, self.batch = self.batch, None
        return Batch(works or [])

    # Collectives.
    def allreduce(self, tensors: _Tensors, opts: Any = None) -> EmulatedWork:
        if tensors[0].layout is torch.sparse_coo:
            return self._kept(sparse.all_reduce(self, _gpus, tensors, opts))
        return self._collective("all_reduce", tensors, tensors, lambda: self._sum(tensors, opts))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: _Tensors, opts: Any = None) -> EmulatedWork:
        real = functools.partial(self.real.broadcast, tensors, *_given(opts))
        return self._collective("broadcast", tensors, tensors, lambda: real().wait(), root=self._root(opts))

    def reduce(self, tensors: _Tensors, opts: Any = None) -> EmulatedWork:
        def real() -> None:
            sums = [t.clone() for t in tensors]
            self._sum(sums, opts)
            if opts is None or opts.rootRank == self.rank_:  # the others keep what they had
                for t, total in zip(tensors, sums, strict=True):
                    t.copy_(total)

        return self._collective("reduce", tensors, tensors, real, root=self._root(opts))

    def allgather(self, outs: list[_Tensors], ins: _Tensors, opts: Any = None) -> EmulatedWork:
        sizes = [t.numel() for t in outs[0]]
        if len(sizes) != self.size_ or ins[0].numel() != sizes[self.rank_]:
            raise ValueError(
                f"rank {self.rank_} of {self.size_} gives {ins[0].numel()} numbers to all_gather, and has a list for"
                f" {sizes}"
            )
        even = all(t.shape == ins[0].shape for t in outs[0])
        words = None if even else f" {ins[0].dtype} {sizes}"

        def real() -> None:
            if even:
                self.real.allgather(outs, ins).wait()
            else:
                meeting.gather_uneven(self.meeting, outs[0], ins[0])

        return self._collective("all_gather", ins, outs[0], real, outs, _bytes(outs[0]), words)

    def _allgather_base(self, out: torch.Tensor, own: torch.Tensor, opts: Any = None) -> EmulatedWork:
        return self.allgather_into_tensor_coalesced([out], [own], opts, out)

    def all_gather_single(self, out: torch.Tensor, own: torch.Tensor, opts: Any = None, **_: Any) -> EmulatedWork:
        return self._allgather_base(out, own, opts)

    def allgather_into_tensor_coalesced(
        self, outs: _Tensors, ins: _Tensors, opts: Any = None, result: Any = None
    ) -> EmulatedWork:
        def real() -> None:
            for out, own in zip(outs, ins, strict=True):
                self.real._allgather_base(out.view(-1), own.reshape(-1)).wait()

        return self._collective("all_gather", ins, outs, real, outs if result is None else result, _bytes(outs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, outs: _Tensors, ins: list[_Tensors], opts: Any = None) -> EmulatedWork:
        def real() -> None:
            parts = [t.clone() for t in ins[0]]
            self._sum(parts, opts)
            outs[0].copy_(parts[self.rank_].view_as(outs[0]))

        words = f" {outs[0].dtype} {[t.numel() for t in ins[0]]}"
        return self._collective("reduce_scatter", ins[0], outs, real, words=words)

    def _reduce_scatter_base(self, out: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> EmulatedWork:
        return self.reduce_scatter_tensor_coalesced([out], [whole], opts, out)

    def reduce_scatter_single(self, out: torch.Tensor, whole: torch.Tensor, opts: Any = None, **_: Any) -> EmulatedWork:
        return self._reduce_scatter_base(out, whole, opts)

    def reduce_scatter_tensor_coalesced(
        self, outs: _Tensors, ins: _Tensors, opts: Any = None, result: Any = None
    ) -> EmulatedWork:
        def real() -> None:
            for out, whole in zip(outs, ins, strict=True):
                sums = whole.reshape(-1).clone()
                self._sum([sums], opts)
                out.copy_(sums[self.rank_ * out.numel() :][: out.numel()].view_as(out))

        return self._collective("reduce_scatter", ins, outs, real, outs if result is None else result)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall_base(
        self, out: torch.Tensor, own: torch.Tensor, out_sizes: Any, in_sizes: Any, opts: Any = None
    ) -> EmulatedWork:
        sent, expected = meeting.split(own, in_sizes, self.size_), meeting.split(out, out_sizes, self.size_)

        def real() -> None:
            self.real.alltoall_base(out.view(-1), own.reshape(-1), expected, sent).wait()

        return self._collective("all_to_all", [own], [out], real, out, splits=(sent, expected))

    all_to_all_single = alltoall_base

    def alltoall(self, outs: _Tensors, ins: _Tensors, opts: Any = None) -> EmulatedWork:
        sent, expected = [t.numel() for t in ins], [t.numel() for t in outs]
        if not len(sent) == len(expected) == self.size_:
            raise ValueError(
                f"all_to_all needs a tensor for each of {self.size_} ranks, got {len(sent)}, {len(expected)}"
            )

        def real() -> None:  # gloo has the form with one tensor only
            found = outs[0].new_empty(sum(expected))
            self.real.alltoall_base(found, torch.cat([t.reshape(-1) for t in ins]), expected, sent).wait()
            for out, part in zip(outs, found.split(expected), strict=True):
                out.copy_(part.view_as(out))

        return self._collective("all_to_all", ins, outs, real, outs, splits=(sent, expected))

    all_to_all = alltoall

    def gather(self, outs: list[_Tensors], ins: _Tensors, opts: Any = None) -> EmulatedWork:
        def real() -> None:
            self.real.gather(outs, ins, *_given(opts)).wait()

        meeting.alike("gather", outs, ins[0], self.size_)
        nbytes = _bytes(ins) * self.size_
        return self._collective("gather", ins, outs[0] if outs else [], real, outs, nbytes, root=self._root(opts))

    def scatter(self, outs: _Tensors, ins: list[_Tensors], opts: Any = None) -> EmulatedWork:
        def real() -> None:
            self.real.scatter(outs, ins, *_given(opts)).wait()

        meeting.alike("scatter", ins, outs[0], self.size_)
        return self._collective("scatter", outs, outs, real, outs, _bytes(outs) * self.size_, root=self._root(opts))

    def barrier(self, opts: Any = None) -> EmulatedWork:
        _gpus.clock.synchronize()
        end, _ = self._meet("barrier", [], 0, None, "")
        _gpus.clock.wait_until(end)
        return EmulatedWork(_gpus, [], end, [], None)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        with _disable_current_modes():
            self.real.monitored_barrier(timeout, wait_all_ranks)
        self.barrier()

    def send(self, tensors: _Tensors, to: int, tag: int = 0) -> Any:
        return self._message(tensors[0], to, tag, sending=True)

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> Any:
        return self._message(tensors[0], source, tag, sending=False)

    def _root(self, opts: Any) -> int | None:
        """The global rank that has the values or gets them."""
        return None if opts is None else self.ranks[opts.rootRank]

    def _sum(self, tensors: _Tensors, opts: Any) -> None:
        """Reduce in place, over all ranks."""
        meeting.reduce(self.meeting, tensors, dist.ReduceOp.SUM if opts is None else opts.reduceOp)

    def _collective(
        self, kind: str, ins: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], real: Callable[[], None],
        result: Any = None, nbytes: float | None = None, words: str | None = None, root: int | None = None,
        splits: tuple[list[int], list[int]] | None = None,
    ) -> EmulatedWork:  # fmt: skip
        """Price a collective, and do it if it's small or on the CPU. `nbytes` is the size of the whole buffer, that of
        `ins` unless given. All ranks have to say the same `words`, the types and shapes of `ins` unless given. With
        `splits`, the elements that go to each rank and come from each, only the type has to be the same."""
        ins, outs = list(ins), list(outs)
        if _gpus.adopting is not None:
            for t in [*ins, *outs]:
                if block(t) is None:
                    _gpus.tag(t, *_gpus.adopting)
        blocks = [b for t in [*ins, *outs] if (b := block(t)) is not None]
        device = blocks[0].device if blocks else None
        known = all(b.computed for b in blocks)
        if device is not None:
            filled = {b for t in outs if (b := block(t)) is not None}
            several_gpus.wait_for_buckets(_gpus, _gpus.queue(device), blocks)
            _gpus.use(_gpus.queue(device), kind, [b for b in blocks if b not in filled], filled)
        elif ins and dist.get_backend(self) == "nccl" and _called_by_the_program():
            raise RuntimeError("No backend type associated with device type cpu")
        told = outs if kind == "all_gather" and words else ins  # of what all ranks know alike
        if splits is not None:
            words, nbytes = f" {ins[0].dtype}", meeting.moved(self.rank_, *splits) * ins[0].element_size()
        if words is None:
            words = "".join(f" {t.dtype} {list(t.shape)}" for t in ins)
        nbytes = _bytes(ins) if nbytes is None else nbytes
        large = device is not None and not all(meeting.travels(t) for t in [*ins, *outs])
        end, large = self._meet(kind, told, nbytes, device, words, root, large, splits)
        if not large:
            with torch.no_grad(), _disable_current_modes():
                real()
        written = [b for t in outs if (b := block(t)) is not None]
        for b in written:
            b.computed = b.computed and known and not large
            b.arrives = end
        return self._kept(EmulatedWork(_gpus, outs if result is None else result, end, written, device, ins))

    def _meet(
        self, kind: str, tensors: Sequence[torch.Tensor], nbytes: float, device: int | None, words: str,
        root: int | None = None, large: bool = False, splits: tuple[list[int], list[int]] | None = None,
    ) -> tuple[float, bool]:  # fmt: skip
        """Exchange with all ranks what they call and when they're ready. Returns when it ends, and whether it's `large`
        for one of them: then no rank's values travel. Raises RuntimeError if they don't call the same."""
        clock, host_s = _gpus.clock, _gpus.device.host_s
        nccl = _gpus.cluster.inside.kind != "plain" and (device is not None or kind == "barrier")
        clock.host += links.CALL * host_s if nccl else 0.0
        ready = clock.host if device is None else max(clock.host, _gpus.queue(device).free)
        clock.host += 0.0 if nccl else host_s
        self.number += 1
        called = f"{kind} {'' if root is None else root}{words}"
        with _disable_current_modes():
            meeting.record(self.getGroupName(), self.number, kind, tensors, root)
            share = links.sharing(_gpus.cluster, self.ranks, _groups)
            ready = max(ready, self.free)  # behind this group's earlier collectives
            balance = 0.0 if splits is None else meeting.balance(self.rank_, *splits)
            place = -1.0 if device is None else float(_gpus.seen[device])
            rows = self.meeting.exchange(called, ready, share, large, nbytes, balance, self.post.open, place)
            if not sum(row[5] for row in rows):
                self.post.arrive()
            if splits is not None and sum(row[4] for row in rows) % meeting.PRIME and len(rows) == self.size_:
                self.meeting.say_splits(*splits)
        here = [self.ranks[i] for i in self.meeting.present]
        if (twice := meeting.on_one_gpu(_gpus.cluster, here, rows)) and dist.get_backend(self) != "gloo":
            raise RuntimeError(twice)
        start, groups, any_large, most = (max(row[i] for row in rows) for i in range(4))
        end = start + links.seconds(kind, most, self._route(int(groups)))
        if device is not None:
            if start > ready:
                clock.spans.append(("waiting", kind, ready, start, device))
            clock.spans.append(("communication", kind, start, end, device))
            _gpus.collective_bytes[kind] += int(nbytes)
            self.free = end
        return end, bool(any_large)

    def _route(self, sharing: int) -> links.Route:
        if sharing not in self.routes:
            self.routes[sharing] = links.Route.of(_gpus.cluster, self.ranks, sharing)
        return self.routes[sharing]

    def _message(self, tensor: torch.Tensor, other: int, tag: int, sending: bool) -> Message:
        """Send or receive a tensor; gloo carries the sender's time, and the values if they're small."""
        found = block(tensor)
        device = found.device if found is not None else None
        clock, batch = _gpus.clock, self.batch is not None
        ready = clock.host if device is None else max(clock.host, _gpus.queue(device).free)
        clock.host += _gpus.device.host_s
        took = links.message_s(
            _gpus.cluster, self.ranks[self.rank_], self.ranks[other], tensor.numel() * tensor.element_size()
        )
        take: Callable[[], tuple[float, bool]] | None = None
        if sending:
            ready = max(ready, self.lanes.get(other, 0.0))
            self.lanes[other] = ready + took
        elif found is not None:
            found.computed = found.computed and meeting.travels(tensor)
        with _disable_current_modes():
            if sending:
                self.post.send(tensor, other, tag, ready, found is None or found.computed)
            else:
                take = functools.partial(self.post.take, self.post.expect(tensor, other, tag))
        work = Message(_gpus, tensor, device, ready=ready, took=took, batch=batch, take=take)
        self._kept(work)
        return work

    def _kept(self, work: EmulatedWork) -> EmulatedWork:
        if self.batch is not None:
            self.batch.append(work)
        return work


def _meeting(store: dist.Store, rank: int, size: int, timeout: Any, ranks: Sequence[int]) -> Any:
    """How the ranks of a group meet: all of them, those that run, or this one alone."""
    if _gpus.alike == 1:
        return meeting.Meeting(store, rank, size, timeout)
    present = [i for i, r in enumerate(ranks) if r % _gpus.alike == 0]
    if len(present) < 2:
        return meeting.Alone(rank, size)
    return meeting.Some(store, rank, size, timeout, present)


def _given(opts: Any) -> tuple[Any, ...]:
    return () if opts is None else (opts,)


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _called_by_the_program() -> bool:
    """Whether a collective comes from one of `dist`'s functions for tensors. C++ code, as DDP's, takes what it sees for
    its GPU, and objects travel as the group likes it."""
    frame = sys._getframe(3)
    names = []
    ours = ("distributed_c10d.py", "c10d_logger.py", "torch/overrides.py", "emulation/tensors.py")
    while frame is not None and frame.f_code.co_filename.endswith(ours):
        names.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return bool(names) and not any("object" in name for name in names)


class _Everybody(dist.Store):
    """Where ranks that are only thought of have all come already, so that nobody waits for them: FakeStore as it is
    since it's written in C++. In torch 2.10 and 2.11 it can't do anything."""

    def add(self, key: str, amount: int) -> int:
        return amount

    def set(self, key: str, value: str) -> None:
        pass

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        pass

    def get(self, key: str) -> bytes:
        return b""

    def check(self, keys: Sequence[str]) -> bool:
        return True


def install(gpus: Gpus) -> None:
    """From here on every new process group is an emulated one, whatever backend the program asks for."""
    global _gpus
    _gpus = gpus
    inside = dist.distributed_c10d
    real_init, real_helper = dist.init_process_group, inside._new_process_group_helper
    world = inside._world

    live: list[dist.Store] = []  # where those meet that run, if the others are only thought of

    def make(options: Any, _: Any) -> EmulatedGroup:
        ranks = options.global_ranks_in_group or range(options.group_size)
        store = dist.PrefixStore(f"{_inits}/", options.store)  # a second init meets at fresh keys
        if live:
            store = dist.PrefixStore(f"{_inits}/{options.group_id}/", live[-1])
        return EmulatedGroup(store, options.group_rank, options.group_size, options.timeout, ranks)

    dist.Backend.register_backend("emulated", make, extended_api=True, devices=["cpu"])

    def helper(size: int, rank: Any, ranks: list[int], backend: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
        if "mpi" in str(backend):
            raise ValueError("an emulated cluster has nccl and gloo, and not mpi")
        _groups.append(tuple(ranks or range(size)))
        kwargs.pop("device_id", None)
        group, prefix = real_helper(size, rank, ranks, "emulated", store, *args, **kwargs)
        if group in world.pg_map:
            world.pg_map[group] = (dist.Backend(str(backend)), world.pg_map[group][1])
        return group, prefix

    @functools.wraps(real_init)
    def init(*args: Any, **kwargs: Any) -> None:
        global _inits
        _inits += 1
        kwargs.pop("device_id", None)  # torch would compare it with the devices of this build
        _groups.clear()
        real_init(*args, **kwargs)
        if gpus.spawned:  # it says now which rank it is
            gpus.rank, gpus.joined = dist.get_rank(), True

    several_gpus.install()
    inside._new_process_group_helper = helper
    dist.init_process_group = inside.init_process_group = init
    if gpus.alike > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        in_cpp = FakeStore.__module__.startswith("torch._C")
        everybody = FakeStore() if in_cpp else _Everybody()  # kept here, since torch has its C++ half only
        real = inside.rendezvous

        def rendezvous(url: str, *_: Any, **more: Any) -> Any:
            if gpus.running > 1:
                live.append(next(real("env://", gpus.rank, gpus.running, **more))[0])
            return iter([(everybody, gpus.rank * gpus.alike, gpus.cluster.one_of)])

        inside.rendezvous = rendezvous
