"""RNN, LSTM and GRU as cuDNN runs them: one operator for all layers and all steps, where the CPU has many."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import _VF

from .state import block

aten = torch.ops.aten
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cuDNN's numbers for them
# What backward needs of each step, in elements a hidden unit: the output; for an LSTM four gates, the cell and the
# output; for a GRU three gates, the hidden state's part of the last and the output. How cuDNN packs them isn't known.
_KEPT = (1, 1, 6, 5)
_NAMES = ("rnn_relu", "rnn_tanh", "lstm", "gru")


def install() -> None:
    """Take over torch's functions for recurrent layers, for tensors on a modelled GPU."""
    for name in _MODES:
        setattr(_VF, name, _recurrent(name, getattr(_VF, name)))
    setattr(_VF, "_pack_padded_sequence", _packing(_VF._pack_padded_sequence))  # noqa: B010
    setattr(_VF, "_pad_packed_sequence", _padding(_VF._pad_packed_sequence))  # noqa: B010
    layers: Any = torch.nn.RNNBase
    layers.flatten_parameters = lambda self: None  # cuDNN's one buffer for all weights has as many bytes as they


def _recurrent(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.lstm` and its like: `(input, hx, weights, biases, layers, dropout, train, bidirectional, batch_first)`, or
    for packed sequences `(data, batch_sizes, hx, weights, biases, layers, dropout, train, bidirectional)`."""

    def run(*args: Any) -> Any:
        if block(args[0]) is None:
            return real(*args)
        packed = not isinstance(args[3], bool)
        sizes = args[1].tolist() if packed else []
        hidden, weights, biases, layers, dropout, train, bidirectional = args[2:9] if packed else args[1:8]
        hx, cx = hidden if name == "lstm" else (hidden, None)
        given, weights = args[0], list(weights)
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            given, hx, cx = (t if t is None else t.to(dtype) for t in (given, hx, cx))
            weights = [w.to(dtype) for w in weights]
        size = (hx if cx is None else cx).shape[2]
        projected = hx.shape[2] if hx.shape[2] != size else 0
        each = (4 if biases else 2) + bool(projected)
        found = aten._cudnn_rnn(
            given, weights, each, None, hx, cx, _MODES[name], size, projected, layers, not packed and args[8], dropout,
            train, bidirectional, sizes, None,
        )  # fmt: skip
        return found[:3] if name == "lstm" else found[:2]

    return run


def _packing(real: Callable[..., Any]) -> Callable[..., Any]:
    """How many sequences go on at each step is the CPU's business; the data is put together on the GPU."""

    def pack(given: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        if block(given) is None:
            return real(given, lengths, batch_first)
        if block(lengths) is not None:
            raise RuntimeError(
                "'lengths' argument should be a 1D CPU int64 tensor, but got"
                f" {lengths.dim()}D {lengths.device} {str(lengths.dtype).removeprefix('torch.')} tensor"
            )
        sizes = real(torch.empty(*given.shape[:2], 1, device="cpu"), lengths, batch_first)[1]
        steps = given.transpose(0, 1) if batch_first else given
        return torch.cat([steps[at, :size].flatten(0, 1) for at, size in _alike(sizes)]), sizes

    return pack


def _padding(real: Callable[..., Any]) -> Callable[..., Any]:
    def pad(data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, value: float, total: int) -> Any:
        if block(data) is None:
            return real(data, sizes, batch_first, value, total)
        like, lengths = real(torch.empty(len(data), 1, device="cpu"), sizes, batch_first, value, total)
        out, first = data.new_full((*like.shape[:2], *data.shape[1:]), value), 0
        steps = out.transpose(0, 1) if batch_first else out
        for at, size in _alike(sizes):
            last = first + (at.stop - at.start) * size
            steps[at, :size] = data[first:last].unflatten(0, (-1, size))
            first = last
        return out, lengths

    return pad


def _alike(sizes: torch.Tensor) -> list[tuple[slice, int]]:
    """Stretches of steps in which as many sequences go on, and how many."""
    found, first = [], 0
    for size, alike in itertools.groupby(sizes.tolist()):
        last = first + len(list(alike))
        found.append((slice(first, last), size))
        first = last
    return found


def forward(
    given: torch.Tensor, weights: Any, stride: int, buffer: Any, hx: torch.Tensor, cx: Any, mode: int, size: int,
    projected: int, layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool, sizes: Any,
    state: Any,
) -> Any:  # fmt: skip
    """What `_cudnn_rnn` returns: output, hidden states, cells, what's kept for backward, and its buffer of weights."""
    ways = 2 if bidirectional else 1
    out = given.new_empty(*given.shape[:-1], (projected or size) * ways)
    rows = given.shape[:-1].numel()
    kept = _KEPT[mode] * layers * ways * rows * size * given.element_size() if train else 0
    cy = cx.new_empty(cx.shape) if cx is not None else given.new_empty(0)
    return out, hx.new_empty(hx.shape), cy, given.new_empty(kept, dtype=torch.uint8), given.new_empty(0)


def backward(given: torch.Tensor, weights: Any, stride: int, buffer: Any, hx: torch.Tensor, cx: Any, *_: Any) -> Any:
    """What `_cudnn_rnn_backward` returns: the gradients of the input, of the first states and cells, of the weights."""
    of_cells = torch.empty_like(cx) if cx is not None else given.new_empty(0)
    return torch.empty_like(given), torch.empty_like(hx), of_cells, [torch.empty_like(w) for w in weights]


def flops(given: torch.Tensor, weights: Any, *_: Any, passes: int = 1, **__: Any) -> float:
    """Each matrix of weights takes part once a step and a sequence."""
    rows = given.shape[:-1].numel()
    return float(2 * passes * rows * sum(w.numel() for w in weights if w.dim() == 2))


def kernels(given: torch.Tensor, layers: int, batch_first: bool, sizes: Any) -> int:
    """How many kernels run one after the other: of each layer the product with all inputs, then for each step a product
    with the hidden state, and what the gates do. A layer follows a step behind the one below, and both directions run
    at once: Appleyard et al., 2016, arXiv:1604.01946."""
    steps = len(sizes) or given.shape[1 if batch_first else 0]
    return layers + 2 * (steps + layers - 1)
