"""`torch.cuda.FloatTensor` and its like, which name a type and a device: how programs said it before `torch.device`."""

from __future__ import annotations

from typing import Any

import torch

from .state import block

_TYPES = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "ByteTensor": torch.uint8, "CharTensor": torch.int8, "ShortTensor": torch.int16,
    "IntTensor": torch.int32, "LongTensor": torch.int64, "BoolTensor": torch.bool,
}  # fmt: skip


class _OnCuda(type):
    """Such a type: it makes tensors, and knows its own."""

    dtype: torch.dtype

    def __instancecheck__(cls, found: Any) -> bool:
        return isinstance(found, torch.Tensor) and found.is_cuda and found.dtype is cls.dtype

    def __call__(cls, *args: Any, device: Any = "cuda") -> torch.Tensor:
        if args and all(isinstance(size, int) for size in args):
            return torch.empty(args, dtype=cls.dtype, device=device)
        return getattr(torch, cls.__name__)(*args).to(device)


class _Sparse(type):
    """A type that stays one, and makes nothing."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            "an emulated cluster has no torch.cuda.sparse types: use torch.sparse_coo_tensor(..., device='cuda')"
        )


def install() -> None:
    """Put them into `torch.cuda`, and let a tensor be asked for its type and turned into one."""
    named = {}
    for name, dtype in _TYPES.items():
        made = _OnCuda(name, (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"})
        named[f"torch.cuda.{name}"] = made
        setattr(torch.cuda, name, made)
    for name in dir(torch.cuda.sparse):
        if name.endswith("Tensor"):
            setattr(torch.cuda.sparse, name, _Sparse(name, (), {"__module__": "torch.cuda.sparse"}))
    tensor: Any = torch.Tensor
    real_type, real_default = tensor.type, torch.set_default_tensor_type

    def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        on_gpu = block(self) is not None
        if dtype is None:
            name = real_type(self)
            return f"torch.cuda.{name.rpartition('.')[2]}" if on_gpu else name
        wanted = named.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(wanted, _OnCuda):
            return self.to(self.device if on_gpu else "cuda", wanted.dtype, non_blocking=non_blocking)
        here = self if isinstance(wanted, torch.dtype) else self.cpu()
        return real_type(here, wanted, non_blocking, **kwargs)

    def set_default_tensor_type(t: Any) -> None:
        wanted = named.get(t, t) if isinstance(t, str) else t
        if isinstance(wanted, _OnCuda):
            torch.set_default_dtype(wanted.dtype)
            torch.set_default_device("cuda")
        else:
            real_default(t)
            torch.set_default_device(None)

    tensor.type, torch.set_default_tensor_type = type_, set_default_tensor_type
