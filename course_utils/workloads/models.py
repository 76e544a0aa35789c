"""The models that the lessons train, in a size for a CPU core and sizes for GPUs (see `size.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .size import MLP, TRANSFORMER, checked

__all__ = ["batch", "deep_mlp", "image_model", "resnet", "tokens", "transformer"]

CLASSES = 100
VOCABULARY = 256


def image_model(
    size: str | None = None, classes: int = CLASSES, norm: str | None = None, width: float = 1.0
) -> nn.Module:
    """The course's image classifier, [n, 3, side, side] to logits [n, classes].

    `"cpu"`: six convolutions for images of 32x32, 237,172 parameters. A training step with a batch of 128 or 256 is
    large against its 1 MB of gradients, so ranks have something to share, and three epochs of the glyphs train it:
    `AdamW(model.parameters(), lr=3e-3)`, batch 128. GPUs get torchvision's ResNet-50, for images of
    `PIXELS[size]`.

    `norm` is what follows each convolution: `"batch"`, or `"group"`, which looks at one image at a time. Group is the
    default of the cpu size: with it, ranks that share a batch compute exactly what one process computes with all of it.
    BatchNorm takes its statistics from the images of one rank; it's the default of ResNet-50, which is published that
    way. `width` multiplies the channels (in ResNet-50 the inner ones), rounded up to a multiple of 8. Raises ValueError
    for another size or norm, or a width that isn't above 0.
    """
    if not width > 0:
        raise ValueError(f"width multiplies the channels, so it must be above 0; got {width}")
    size = checked(size)
    norm_layer = _norm_layer(norm or ("group" if size == "cpu" else "batch"))
    if size != "cpu":
        return _resnet50(classes, norm_layer, width)
    few, some, many = (8 * math.ceil(channels * width / 8) for channels in (16, 32, 64))

    def convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [layer, norm_layer(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        # Few channels while the image is large, so that ranks don't wait for the memory that they share.
        *convolution(3, few),
        *convolution(few, some, stride=2),
        *convolution(some, many),
        *convolution(many, many, stride=2),
        *convolution(many, many),
        *convolution(many, many, stride=2),
        # Flattened rather than averaged over the image: where a stroke lies is what tells one letter from another.
        nn.Flatten(),
        nn.Linear(many * 4 * 4, classes),
    )


def resnet(size: str | None = None, classes: int = CLASSES, norm: str = "batch") -> nn.Module:
    """A residual network, [n, 3, side, side] to logits [n, classes].

    `"cpu"`: the 18 layers of ResNet-18 at a quarter of its width, with a first layer for images of 32x32 instead of
    224x224. GPUs get torchvision's ResNet-50. `norm` as in `image_model`.
    """
    norm_layer = _norm_layer(norm)
    if checked(size) != "cpu":
        return _resnet50(classes, norm_layer)
    from torchvision.models.resnet import BasicBlock

    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), norm_layer(16), nn.ReLU(inplace=True)]
    inputs = 16
    for width, stride in ((16, 1), (32, 2), (64, 2), (128, 2)):
        shortcut = None
        if stride > 1:
            shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), norm_layer(width))
        layers.append(BasicBlock(inputs, width, stride, shortcut, norm_layer=norm_layer))
        layers.append(BasicBlock(width, width, norm_layer=norm_layer))
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _resnet50(classes: int, norm_layer: Callable[[int], nn.Module], width: float = 1.0) -> nn.Module:
    from torchvision.models import resnet50

    inner = 8 * math.ceil(8 * width)
    return cast(nn.Module, resnet50(num_classes=classes, norm_layer=norm_layer, width_per_group=inner))


def _norm_layer(norm: str) -> Callable[[int], nn.Module]:
    if norm == "batch":
        return nn.BatchNorm2d
    if norm == "group":
        return partial(nn.GroupNorm, 8)
    raise ValueError(f'norm must be "batch" or "group"; got {norm!r}')


def deep_mlp(width: int | None = None, depth: int | None = None, size: str | None = None) -> nn.Module:
    """`depth` layers of `width` by `width` and ReLU, then `CLASSES` logits: [n, width] to [n, 100].

    It has many equal layers with many parameters, so its gradients take long to send and arrive one after the other.
    The default is 12 layers of 512 for `"cpu"` (3.2 million parameters), 16 of 2048 for `"small-gpu"`
    (67 million) and 16 of 4096 for `"gpu"` (269 million). `batch` makes its input.
    """
    usual_width, usual_depth, _ = MLP[checked(size)]
    width, depth = width or usual_width, depth or usual_depth
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def batch(n: int | None = None, size: str | None = None, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Random input and labels for `deep_mlp`: float32 [n, width] and int64 [n], from torch's own generator.

    `n` is 256 for `"cpu"` and 2048 for GPUs by default.
    """
    usual_width, _, usual_n = MLP[checked(size)]
    n = n or usual_n
    return torch.randn(n, width or usual_width), torch.randint(CLASSES, (n,))


def transformer(size: str | None = None) -> Transformer:
    """A decoder-only transformer over bytes: `"cpu"` 4 blocks of width 128, `"small-gpu"` 12 of 768, `"gpu"` 12 of
    1024. `tokens` makes its input."""
    width, depth, heads, length, _ = TRANSFORMER[checked(size)]
    return Transformer(width, depth, heads, length)


def tokens(n: int | None = None, size: str | None = None) -> tuple[Tensor, Tensor]:
    """Random sequences for `transformer` and the token that follows each position: int64 [n, length] twice."""
    *_, length, usual_n = TRANSFORMER[checked(size)]
    sequence = torch.randint(VOCABULARY, (n or usual_n, length + 1))
    return sequence[:, :-1], sequence[:, 1:]


class Transformer(nn.Module):
    """int64 [n, t] to logits [n, t, VOCABULARY], with `t` at most `length`. Wrap or split the layers in `blocks`."""

    def __init__(self, width: int, depth: int, heads: int, length: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return cast(Tensor, self.head(self.norm(h)))


class Block(nn.Module):
    """Attention and MLP, each normalised before and added after: [n, t, width] to the same."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.head_width = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        # Three layers instead of one, because tensor parallelism gives each rank some of the heads and splits each
        # layer by rows.
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (
            layer(h).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return cast(Tensor, x + self.down(F.gelu(self.up(self.norm2(x)))))
