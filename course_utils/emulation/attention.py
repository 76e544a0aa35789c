"""Attention on a modelled GPU: which of CUDA's kernels takes it, what a DTensor makes of it, and FlexAttention."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from . import costs
from .imports import after_import
from .plans import SMALL
from .remarks import say
from .state import Gpus, block

aten = torch.ops.aten
FLEX = "torch.nn.attention.flex_attention"
_HALVES = (torch.float16, torch.bfloat16)
_MOST = 256  # elements of a head that CUDA's flash attention and cuDNN's take
_NONE = "No available kernel. Aborting execution."  # aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
_compiled = False  # whether torch.compile would have compiled what runs now


def install(gpus: Gpus, operators: Any) -> None:
    """Take over scaled_dot_product_attention, and FlexAttention's kernels once that's imported."""
    functional: Any = torch.nn.functional
    real = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        parts: list[Any] = [query, key, value]
        if attn_mask is None and all(hasattr(t, "placements") for t in parts):
            found = _of_dtensors(gpus, parts, dropout_p, is_causal, scale, enable_gqa)
            if found is not None:
                return found
        if block(query) is None or query.is_nested:
            return real(
                query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        if dropout_p and query.numel() > SMALL:
            dropout_p = 0.0  # the CPU's fused kernel has none, and would give way to one that keeps the whole matrix
        kernel = _kernel(gpus, parts, attn_mask)
        if kernel == "math" and is_causal:  # C++ would make its mask on the CPU that it sees
            is_causal, sizes = False, (query.shape[-2], key.shape[-2])
            attn_mask = torch.ones(sizes, dtype=torch.bool, device=query.device).tril()
        with (
            _by(kernel),
            operators.making_on(*parts, attn_mask),
        ):  # its masks, too, which C++ makes where the CPU has no kernel
            return real(
                query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip

    functional.scaled_dot_product_attention = scaled_dot_product_attention
    _answer(gpus)
    after_import(FLEX, lambda: setattr(sys.modules[FLEX], "flex_attention_hop", _flex))


def compiled(model: Any) -> Any:
    """What `torch.compile` gives back. Whatever it compiles, FlexAttention becomes one kernel in there; if that's all
    that it gets, only what goes through it does."""
    global _compiled
    if getattr(model, "__module__", "") != FLEX:
        _compiled = True
        return model

    @functools.wraps(model)
    def call(*args: Any, **kwargs: Any) -> Any:
        global _compiled
        before, _compiled = _compiled, True
        warned: set[str] = getattr(sys.modules[FLEX], "_WARNINGS_SHOWN", set())
        warned.add("flex_attention_performance")  # that it isn't compiled
        try:
            return model(*args, **kwargs)
        finally:
            _compiled = before

    return call


def _takes(gpus: Gpus, parts: list[Any], mask: Any) -> dict[str, bool]:
    """Which of CUDA's kernels take an attention, the first choice first, by the names of torch's switches."""
    modern = tuple(gpus.device.capability) >= (8, 0)
    types = {torch.get_autocast_dtype("cuda")} if torch.is_autocast_enabled("cuda") else {t.dtype for t in parts}
    whole = all(t.dim() == 4 for t in parts) and len(types) == 1
    heads = {t.shape[-1] for t in parts}
    short = whole and modern and types <= set(_HALVES) and max(heads) <= _MOST
    single = {torch.float32, torch.float16} | ({torch.bfloat16} if modern else set())
    fits = {
        "flash": short and mask is None and len(heads) == 1,
        "cudnn": short,
        "mem_efficient": whole and types <= single,
        "math": True,
    }
    return {name: fit and getattr(torch._C, f"_get_{name}_sdp_enabled")() for name, fit in fits.items()}


def _kernel(gpus: Gpus, parts: list[Any], mask: Any) -> str:
    """The kernel that takes an attention: flash, cudnn, mem_efficient or math. Raises RuntimeError where torch's
    switches allow none that would, as torch does."""
    for name, does in _takes(gpus, parts, mask).items():
        if does:
            return name
    raise RuntimeError(
        f"{_NONE} An emulated {gpus.device.name} has the kernels that the real one has: flash attention takes float16"
        " and bfloat16 without a mask, cuDNN these with one, both from compute capability 8.0 on; efficient attention"
        " also takes float32. Allow one that fits in sdpa_kernel(...), or SDPBackend.MATH."
    )


def _answer(gpus: Gpus) -> None:
    """`torch.backends.cuda.can_use_flash_attention` and its like, by which nested tensors choose too."""
    for name in ("flash", "mem_efficient", "cudnn"):
        real = getattr(torch._C, f"_can_use_{name}_attention", lambda params, debug=False: False)

        def can(params: Any, debug: bool = False, name: str = name, real: Any = real) -> bool:
            if not params.query.is_cuda:
                return bool(real(params, debug))
            return bool(_takes(gpus, [params.query, params.key, params.value], params.attn_mask)[name])

        setattr(torch._C, f"_can_use_{name}_attention", can)


@contextmanager
def _by(kernel: str) -> Iterator[None]:
    """The CPU has one fused kernel, which does for all of CUDA's, and the one that keeps the whole matrix."""
    inside: Any = torch._C
    before = inside._get_flash_sdp_enabled(), inside._get_math_sdp_enabled()
    inside._set_sdp_use_flash(kernel != "math")
    inside._set_sdp_use_math(True)
    try:
        yield
    finally:
        inside._set_sdp_use_flash(before[0])
        inside._set_sdp_use_math(before[1])


def _of_dtensors(gpus: Gpus, parts: list[Any], dropout_p: float, is_causal: bool, scale: Any, gqa: bool) -> Any:
    """Attention of DTensors, which know how to share out the GPU's kernels and not the CPU's. None where these don't
    fit. A context parallel program passes its keys and values around inside of them."""
    placed = [t.placements for t in parts]
    if placed[0] == placed[1] == placed[2] and not any(
        p.is_partial() or (p.is_shard() and p.dim not in (0, 1)) for p in placed[0]
    ):  # batches and heads are independent
        local = (t.to_local() for t in parts)
        own = torch.nn.functional.scaled_dot_product_attention(*local, None, dropout_p, is_causal, scale, gqa)
        return parts[0].from_local(own, parts[0].device_mesh, placed[0], run_check=False)
    kernel = _kernel(gpus, parts, None) if parts[0].is_cuda else "math"
    if kernel == "math":
        return None
    if kernel == "mem_efficient":
        return aten._scaled_dot_product_efficient_attention(*parts, None, True, dropout_p, is_causal, scale=scale)[0]
    return aten._scaled_dot_product_flash_attention(*parts, dropout_p, is_causal, False, scale=scale)[0]


def _flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, mask: tuple[Any, ...], scale: float,
    options: Any, *buffers: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """FlexAttention: output, log of the sums and largest scores. Compiled it's one kernel, which leaves out the blocks
    that the mask leaves out. Otherwise torch computes all scores, and again in backward."""
    from torch._higher_order_ops.flex_attention import math_attention

    if torch.is_autocast_enabled("cuda") and block(query) is not None:
        query, key, value = (t.to(torch.get_autocast_dtype("cuda")) for t in (query, key, value))
    if block(query) is None or not _compiled or query.numel() <= SMALL:

        def plain(*qkv: torch.Tensor) -> Any:
            return math_attention(*qkv, score_mod, mask, scale, options, *buffers)

        return checkpoint(plain, query, key, value, use_reentrant=False, preserve_rng_state=False)
    say("flex", "FlexAttention takes the time and memory of the one kernel that torch.compile makes of it")
    out = _Fused.apply(query, key, value, scale, _share(mask), *_learned(score_mod))
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return out, sums, torch.empty_like(sums)


def _learned(score_mod: Any) -> list[torch.Tensor]:
    """What a score_mod holds that's trained, such as a bias: by itself, or in the module that it's written in."""
    held = [cell.cell_contents for cell in getattr(score_mod, "__closure__", None) or ()]
    names = getattr(getattr(score_mod, "__code__", None), "co_names", ())
    held += [getattr(score_mod, "__globals__", {}).get(name) for name in names]
    held += [*getattr(score_mod, "args", ()), getattr(score_mod, "__self__", None)]
    found = [p for x in held if isinstance(x, torch.nn.Module) for p in x.parameters(recurse=False)]
    return [x for x in [*held, *found] if isinstance(x, torch.Tensor) and x.requires_grad]


def _share(mask: tuple[Any, ...]) -> float:
    """The part of all blocks that a mask leaves to compute: those that it cuts through, and those that it lets pass."""
    counts, indices, full = mask[2:5]
    found = block(counts)
    if found is None or not found.computed:
        return 1.0
    with _disable_current_modes():
        blocks = int(counts.sum()) + (int(full.sum()) if full is not None else 0)
    return min(1.0, blocks / max(1, counts.numel() * indices.shape[-1]))


class _Fused(torch.autograd.Function):
    """One kernel forward, and backward the one of efficient attention, each over the `share` of the blocks."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, share: float,
        *learned: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        ctx.shapes = query.shape, key.shape, value.shape
        # Heads that share their keys are as many more queries.
        query = query.reshape(query.shape[0], key.shape[1], -1, query.shape[-1])
        if key.shape[0] != query.shape[0]:
            key, value = (t.expand(query.shape[0], -1, -1, -1) for t in (key, value))
        with costs.over(share):
            out, sums, *_ = aten._scaled_dot_product_efficient_attention(query, key, value, None, True, scale=scale)
        ctx.save_for_backward(query, key, value, out, sums, *learned)
        ctx.scale, ctx.share = scale, share
        return out.reshape(*ctx.shapes[0][:-1], value.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        query, key, value, out, sums, *learned = ctx.saved_tensors
        seed = torch.zeros((), dtype=torch.int64, device=query.device)
        with costs.over(ctx.share):
            found = aten._scaled_dot_product_efficient_attention_backward(
                gradients[0].reshape(out.shape), query, key, value, None, out, sums, seed, seed, 0.0,
                [True, True, True, False], scale=ctx.scale,
            )  # fmt: skip
        of_query, (_, *kv) = found[0].reshape(ctx.shapes[0]), ctx.shapes
        of_kv = [t.sum_to_size(shape) for t, shape in zip(found[1:3], kv, strict=True)]
        return of_query, *of_kv, None, None, *map(torch.zeros_like, learned)


__all__: list[str] = ["compiled", "install"]
