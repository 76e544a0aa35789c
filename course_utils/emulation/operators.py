"""The dispatch mode that sees every operator: what is small is computed, what is large is only priced."""

from __future__ import annotations

import functools
import mmap
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import choices, sparse
from .compiled import Fusion, fusible
from .copies import Copies
from .costs import LIKE, OVERWRITES
from .imports import after_import
from .not_emulated import CUDA_ONLY, NotEmulated
from .plans import SMALL, Plan, Plans, flat, tensors_in, written
from .remarks import NOT_COMPUTED, say
from .state import Gpus, Host, MemoryBlock, block, host

aten = torch.ops.aten
FRESH = 1 << 17  # bytes: malloc may hand out used memory below it; larger blocks come fresh from the system
_COPIES = (aten.copy_.default, aten._to_copy.default)
_ITEM = aten._local_scalar_dense.default
# GradScaler's check: what wasn't computed has no infinities, and nobody need be told.
_CHECK = aten._amp_foreach_non_finite_check_and_unscale_.default
# What wasn't computed passes every test, such as those that distributions make of their parameters.
_TESTS = {aten._is_all_true.default, aten._assert_async.default, aten._assert_async.msg}
# These share the storage of what they get, and touch no element.
_METADATA = {aten.detach, aten.alias, aten.lift_fresh, aten.set_, aten._unsafe_view, aten._reshape_alias, aten.resize_}
# The values decide about the shape of what comes out, or come out as a number.
_BY_VALUE = {
    aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.equal,
    aten.bincount, aten.repeat_interleave,
}  # fmt: skip
# Indices may lie on the CPU.
_INDEXING = {aten.index, aten.index_put_, aten.index_put, aten._unsafe_index, aten.index_fill_}
_OWN_NAMESPACES = ("c10d", "_dtensor")
_FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd")
_NO_SUBCLASS = torch._C._disabled_torch_dispatch_impl


def active_fake_mode() -> Any:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def _fsdp(func: Any) -> Any:
    """The Python behind one of FSDP's own operators."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    name = func._schema.name.partition("::")[2]
    if name == "record_grad_output_stream":
        return lambda *_: None
    return getattr(_fsdp_collectives, f"{name}_cuda", None) or getattr(_fsdp_collectives, name, None)


@functools.cache
def _composite(func: Any) -> bool:
    """Whether an operator is made of others. Mostly we see those; below autograd, as in inference_mode and in what a
    DTensor does, it comes whole."""
    return bool(func._can_decompose() and not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU))


def _custom(func: Any, args: Any, kwargs: Any) -> Any:
    """The Python behind an operator of `torch.library.custom_op`, if one of its tensors is on a GPU."""
    made = OPDEFS.get(func._schema.name)
    if made is None or not any(block(t) for t in tensors_in((args, kwargs))):
        return None
    return getattr(made, "_backend_fns", {}).get("cuda") or made._init_fn


def _draw(mode: Any, start: int, end: int, op: Any, *args: Any, **kwargs: Any) -> Any:
    """DTensor's random numbers on a GPU: torch moves the generator to this rank's part of them, and here it draws."""
    with mode:
        return op(*args, **kwargs)


def let_dtensor_draw() -> None:
    """Teach the operator by which DTensor draws random numbers that our mode may look at it, once it's imported."""

    def register() -> None:
        draws = getattr(sys.modules["torch._prims.rng_prims"], "run_dtensor_rng_op", None)
        if draws is not None:
            draws.py_impl(Operators)(_draw)

    after_import("torch._prims.rng_prims", register)


def _only_shapes(kwargs: dict[str, Any]) -> bool:
    """Whether torch itself asks for shapes, on its device for that or under its own mode."""
    wanted = kwargs.get("device")
    return (wanted is not None and torch.device(wanted).type == "meta") or active_fake_mode() is not None


def _from_c() -> tuple[str, int | None]:
    """What a factory makes that was called by torch's C++ code, which takes what it sees, a CPU, for the device: DDP's
    reducer makes its buckets so, and autograd its zeros. Empty for any other. With the GPU of DDP's module, if it lies
    on one: its buckets are made there, whatever the current GPU is."""
    frame: Any = sys._getframe(3)
    # Between it and us: torch's ways of calling an operator, and modes of the program's own.
    between = ("emulation/tensors.py", "torch/_ops.py", "torch/_compile.py", "eval_frame.py")
    while frame is not None and (
        frame.f_code.co_name == "__torch_dispatch__" or frame.f_code.co_filename.endswith(between)
    ):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else ""
    if name.endswith("nn/parallel/distributed.py"):
        ddp = frame.f_locals.get("self")
        lies: Any = getattr(ddp, "device", None)
        alone = lies is not None and lies.type == "cuda" and not ddp.is_multi_device_module
        return "buckets", lies.index if alone else None
    return ("activations" if name.endswith("autograd/graph.py") else ""), None


def _either(tensor: torch.Tensor) -> str:
    try:
        return getattr(tensor.untyped_storage(), "_course_either", "")
    except NotImplementedError:  # a sparse one
        return ""


def _unwritten(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose memory nobody has touched. The system may refuse one larger than all it has, unless told that most
    of it will never be used."""
    try:
        return torch.empty_strided(shape, stride, dtype=dtype)
    except RuntimeError:
        elements = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        pages = mmap.mmap(-1, elements * dtype.itemsize, flags=flags)
        return torch.frombuffer(pages, dtype=dtype, count=elements).as_strided(shape, stride)


def _passed(func: Any) -> torch.Tensor | None:
    return torch.ones((), dtype=torch.bool, device="cpu") if func._schema.returns else None


def _made(spec: Any) -> Any:
    """An output as a plan has it: a fresh tensor, a list of them, or the value itself."""
    if isinstance(spec, list):
        return [_made(each) for each in spec]
    if not isinstance(spec, tuple):
        return spec
    out = _unwritten(*spec)
    if out.untyped_storage().nbytes() < FRESH:
        out.zero_()
    return out


class _Target(threading.local):
    """Where a factory's tensor goes in this thread, if the call says it: the number of a GPU, "cpu", or None."""

    where: int | str | None = None
    default: torch.device | None = None  # what `torch.set_default_device` was given


class Operators(TorchDispatchMode):
    def __init__(self, gpus: Gpus):
        super().__init__()
        self.gpus = gpus
        self.plans = Plans(gpus.device)
        self.copies = Copies(gpus)
        self.fusion = Fusion(gpus)
        self.off = False  # in a process that was forked
        self.factories: Callable[[], Any] = nullcontext  # the other mode, which sees calls that name a device
        self._target = _Target()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and its wrapper would take a few microseconds of each operator

    @property
    def target(self) -> int | str | None:
        return self._target.where

    @target.setter
    def target(self, where: int | str | None) -> None:
        self._target.where = where

    @property
    def default(self) -> torch.device | None:
        return self._target.default

    @default.setter
    def default(self, device: torch.device | None) -> None:
        self._target.default = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.off:
            return func(*args, **kwargs)
        fake = any(issubclass(t, FakeTensor) for t in types)
        if not fake and any(t.__torch_dispatch__ is not _NO_SUBCLASS for t in types if t is not torch.Tensor):
            return NotImplemented  # DTensor and its like unwrap first
        if fake or func.namespace in _OWN_NAMESPACES or _only_shapes(kwargs):
            return func(*args, **kwargs)
        if func.namespace in _FUNCTIONAL:
            return self._functional(func, args, kwargs)
        if func.namespace != "aten":
            inner = _fsdp(func) if func.namespace == "fsdp" else _custom(func, args, kwargs)
            if inner is not None:
                with self, self.factories():  # its parts are what is priced
                    return inner(*args, **kwargs)
        leaves = flat((args, kwargs) if kwargs else args)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        blocks = [block(t) for t in tensors]
        if torch.device(wanted).type == "cuda" if (wanted := kwargs.get("device")) is not None else False:
            kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"} | {"device": torch.device("cpu")}
            device = self._device(func, tensors, blocks, self.gpus.index(wanted))
        else:
            device = self._device(func, tensors, blocks, self.target)
        if device is None:
            return self._on_the_host(func, args, kwargs, tensors)
        if _composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        return self._on_a_gpu(func, args, kwargs, leaves, tensors, blocks, device)

    def _on_a_gpu(
        self, func: Any, args: Any, kwargs: Any, leaves: list[Any], tensors: list[torch.Tensor],
        blocks: list[MemoryBlock | None], device: int,
    ) -> Any:  # fmt: skip
        gpus = self.gpus
        for i, t in enumerate(tensors):
            if blocks[i] is None and _either(t):
                blocks[i] = self._adopt(t, device)
        if func.is_view or torch.Tag.inplace_view in func.tags or func._overloadpacket in _METADATA:
            out = self._same_storage(func, args, kwargs)
            if sparse.any_of(tensors):  # whose transpose is a copy
                return self._tagged(out, device, all(b is None or b.computed for b in blocks))
            return out
        gpus.clock.turn_to(device)
        compiled = self.fusion.used and self.fusion.active()
        if not compiled:
            gpus.clock.spend(gpus.device.host_s)
        alike = func._overloadpacket in LIKE
        known = alike or all(
            b.computed if b is not None else (h := host(t)) is None or h.computed
            for t, b in zip(tensors, blocks, strict=True)
        )
        if func in _COPIES and (kind := self.copies.crossing(func, args, kwargs, self.target)):
            return self.copies.copy(kind, func, args, kwargs, known)
        changed = [t for value in written(func, args, kwargs) for t in tensors_in(value)]
        changed_blocks = [b for t in changed if (b := block(t)) is not None]
        queue = gpus.queue(device)
        read = [b for b in blocks if b and b not in changed_blocks and not alike]
        gpus.use(queue, func._schema.name, read, changed_blocks)
        if sparse.takes(func, tensors):
            out, known = sparse.run(gpus, queue, func, args, kwargs, tensors, changed, known)
            return self._tagged(out, device, known)
        if func is _ITEM or func._overloadpacket in _BY_VALUE:
            gpus.clock.wait_for(gpus.clock.mark(queue))
            if not known:
                decides = f"{func._schema.name} decides by values that were not computed"
                say("value", NOT_COMPUTED if func is _ITEM else decides)
            return self._tagged(func(*args, **kwargs), device, known)
        plan = self.plans.plan(func, args, kwargs, leaves, tensors)
        gpus.make_sure(device, plan.nbytes)
        gpus.flops += plan.flops
        if self.fusion.used:
            return self._fused(plan, compiled, func, args, kwargs, tensors, blocks, changed, device, known)
        gpus.clock.enqueue(queue, plan.seconds, "compute", plan.name, plan.flops > 0)
        return self._made(plan, func, args, kwargs, tensors, blocks, changed, device, known)

    def _fused(
        self, plan: Plan, compiled: bool, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor],
        blocks: list[MemoryBlock | None], changed: list[torch.Tensor], device: int, known: bool,
    ) -> Any:  # fmt: skip
        """As `_made`, where something was compiled: what an operator takes depends on the kernel it's part of."""
        queue, fusion, clock = self.gpus.queue(device), self.fusion, self.gpus.clock
        made: Any = None
        if not compiled:
            seconds = plan.seconds + (0.0 if func._overloadpacket in LIKE else fusion.settle(tensors, blocks))
        elif fusible(func, tensors):
            seconds, made = fusion.fused(queue, func, tensors, blocks, changed)
        else:
            seconds = fusion.whole(queue, min(plan.seconds, plan.padded_s), tensors, blocks)
        clock.enqueue(queue, seconds, "compute", plan.name if made is None else "fused", plan.flops > 0)
        out = self._made(plan, func, args, kwargs, tensors, blocks, changed, device, known)
        if made is not None:
            clock.enqueue(queue, fusion.give(out, made, tensors, changed), "compute", "fused")
        return out

    def _made(
        self, plan: Plan, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor],
        blocks: list[MemoryBlock | None], changed: list[torch.Tensor], device: int, known: bool,
    ) -> Any:  # fmt: skip
        """What an operator gives: computed if it's small, and otherwise only its shape."""
        changed_blocks = [b for t in changed if (b := block(t)) is not None]
        if not known and func in _TESTS:
            return self._tagged(_passed(func), device, True)
        if not known and choices.among(func) and plan.outputs:
            out = self._outputs(plan, args, kwargs)
            self._tagged(choices.choose(func, args, kwargs, out), device, choices.is_meant(func))
            return self._tagged(out, device, False)
        computes = plan.small or (plan.whole and known)
        if func is not _CHECK:
            overwritten = func._overloadpacket in OVERWRITES and all(b is None or b.computed for b in blocks[1:])
            for t, b in zip(changed, changed_blocks, strict=False):
                if overwritten and (computes or func is aten.zero_.default):
                    b.computed = b.computed or t.numel() * t.element_size() == b.nbytes
                else:
                    b.computed = b.computed and known and computes
        if computes:
            try:
                out = func(*args, **kwargs)
            except NotImplementedError as error:  # only CUDA has it, as batch_norm_stats or _cudnn_rnn
                if not plan.outputs:
                    raise NotEmulated(str(CUDA_ONLY._replace(what=plan.name))) from error
            else:
                return self._tagged(out, device, known)
        return self._tagged(self._outputs(plan, args, kwargs), device, False)

    @contextmanager
    def making_on(self, *like: torch.Tensor | None) -> Iterator[None]:
        """What's made inside lies where these tensors lie, if that's one GPU."""
        before = self.target
        found = {None if (b := block(t)) is None else b.device for t in like if t is not None}
        self.target = found.pop() if len(found) == 1 and None not in found else before
        try:
            yield
        finally:
            self.target = before

    def _on_the_host(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """The CPU computes. What was copied there from a GPU may not have come yet, or not have been computed."""
        copied = [h for t in tensors if (h := host(t)) is not None]
        known = True
        if copied and not (func.is_view or func._overloadpacket in _METADATA):
            for h in copied:
                if h.mark is not None and not all(
                    self.gpus.clock.waited.get(k, 0) >= n for k, n in h.mark.done.items()
                ):
                    say("race", "a race: the CPU reads what a non_blocking copy may still bring. Synchronize first")
                h.mark = None
            known = all(h.computed for h in copied)
            if not known and (func is _ITEM or func._overloadpacket in _BY_VALUE):
                say("value", NOT_COMPUTED)
        if not known and func is aten.multinomial.default:  # which refuses a row of zeros
            found = torch.zeros(*args[0].shape[:-1], args[1], dtype=torch.int64, device="cpu")
            return choices.choose(func, args, kwargs, found)
        if not known and func in _TESTS:
            return _passed(func)
        pinned = kwargs.get("pin_memory")
        try:
            out = func(*args, **({**kwargs, "pin_memory": False} if pinned else kwargs))
        except RuntimeError:  # DDP's one bucket of the first step may be larger than all memory of this machine
            if func is not aten.empty.memory_format or not _from_c():
                raise
            out = _unwritten(args[0], (1,), kwargs.get("dtype") or torch.get_default_dtype())
        if pinned:
            out.untyped_storage()._course_pinned = True
        if not known:
            for t in tensors_in(out):
                t.untyped_storage()._course_host = Host(False)
        if not tensors and isinstance(out, torch.Tensor):
            kind, lies = _from_c()
            if kind:
                out.untyped_storage()._course_either = kind
            if kind == "buckets" and out.numel() > SMALL and out.dtype.is_floating_point:
                self._adopt(out, self.gpus.current if lies is None else lies)
        return out

    def _functional(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A functional collective, whose C++ code makes what it fills."""
        blocks = [b for t in tensors_in((args, kwargs)) if (b := block(t)) is not None]
        if not blocks:
            return func(*args, **kwargs)
        device, known = blocks[0].device, all(b.computed for b in blocks)
        self.gpus.adopting = (device, known)
        try:
            return self._tagged(func(*args, **kwargs), device, known)
        finally:
            self.gpus.adopting = None

    def _adopt(self, tensor: torch.Tensor, device: int) -> MemoryBlock:
        """A tensor that C++ code made for the GPU it believes it sees."""
        kind, self.gpus.kind = self.gpus.kind, _either(tensor)
        try:
            return self.gpus.tag(tensor, device)
        finally:
            self.gpus.kind = kind

    def _device(
        self, func: Any, tensors: list[torch.Tensor], blocks: list[MemoryBlock | None], target: int | str | None
    ) -> int | None:
        """The GPU that the operator runs on, or None for the CPU. Raises RuntimeError if its tensors lie apart."""
        indices = {b.device for b in blocks if b is not None}
        wanted = target if isinstance(target, int) else None
        if func in _COPIES:
            return blocks[0].device if func is _COPIES[0] and blocks[0] is not None else min(indices, default=wanted)
        if target is not None and any(argument.name == "device" for argument in func._schema.arguments):
            return wanted  # what it makes lies where the call says, whatever it's like
        if not tensors or target is not None:
            return wanted if not indices else min(indices)
        if not indices:
            return None
        # A number without dimensions may come from the CPU, as in torch.
        apart = [t for t, b in zip(tensors, blocks, strict=True) if b is None and t.dim() and not _either(t)]
        if apart and func._overloadpacket in _INDEXING and blocks[0] is not None:
            apart = [t for t in apart if t.dtype.is_floating_point]
        if func._overloadpacket is aten._sparse_addmm:  # C++ made what it adds to
            apart = []
        if len(indices) > 1 or apart:
            if func.is_view or func._schema.name == "aten::set_":
                return min(indices)
            # DDP's C++ puts the gradients of a module on two GPUs into one bucket, as if both were the CPU.
            own = {b.device for t, b in zip(tensors, blocks, strict=True) if b is not None and not _either(t)}
            if len(own) == 1 and not apart:
                return own.pop()
            names = [f"cuda:{index}" for index in sorted(indices)] + ["cpu"] * bool(apart)
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices,"
                f" {' and '.join(names)}! (when checking the arguments of {func._schema.name})"
            )
        return indices.pop()

    def _same_storage(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        if func._overloadpacket is aten.resize_ and (found := block(out)) is not None:
            nbytes = out.untyped_storage().nbytes()
            if nbytes != found.nbytes:
                found.resize(nbytes)
        return out

    def _outputs(self, plan: Plan, args: Any, kwargs: Any) -> Any:
        """Fresh tensors of the right shapes, whose memory nobody touches."""
        found: list[Any] = []
        for i, spec in enumerate(plan.outputs):
            alias = plan.aliases[i] if i < len(plan.aliases) else None
            if alias is not None:
                at, name = alias
                out = args[at] if at < len(args) else kwargs[name]
                if isinstance(spec, tuple) and out.shape != spec[0]:  # `out=` of another shape
                    self._same_storage(aten.resize_.default, (out, spec[0]), {})
                found.append(out)
            else:
                found.append(_made(spec))
        if plan.container is None:
            return found[0] if found else None
        return plan.container(found) if plan.container in (list, tuple) else tuple(found)

    def _tagged(self, out: Any, device: int, known: bool) -> Any:
        """Give what came out of an operator its tag, unless it has one."""
        queue = self.gpus.queue(device)
        for t in tensors_in(out):
            if t.layout not in (torch.strided, torch.sparse_coo):
                raise NotImplementedError(f"an emulated GPU has no tensors of layout {t.layout}")
            if block(t) is None:
                self.gpus.tag(t, device, known).wrote = (queue.key, queue.given)
        return out
