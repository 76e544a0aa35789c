"""What single operators cost on a modelled GPU, by their plans: no launch, nothing is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.emulation.clusters import cluster
from course_utils.emulation.plans import Plans, flat

aten = torch.ops.aten


def seconds(name: str, func: Any, *args: Any, **kwargs: Any) -> float:
    """What one operator takes on a GPU of that name."""
    return plan(name, func, args, kwargs).seconds


def plan(name: str, func: Any, args: Any, kwargs: Any, plans: Plans | None = None) -> Any:
    leaves = flat((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    return (plans or Plans(cluster(f"1x{name}").device)).plan(func, args, kwargs, leaves, tensors)


class Priced(TorchDispatchMode):
    """Adds up what a program's operators take; their outputs have the shapes and strides that the plans say."""

    def __init__(self, name: str):
        super().__init__()
        self.plans, self.seconds, self.convolutions = Plans(cluster(f"1x{name}").device), 0.0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func._overloadpacket in (aten.detach, aten._unsafe_view):
            return func(*args, **kwargs)
        found = plan("", func, args, kwargs, self.plans)
        self.seconds += found.seconds
        self.convolutions += found.seconds if "convolution" in found.name else 0.0
        out = func(*args, **kwargs)
        if func is aten.convolution.default:
            shape, stride, dtype = found.outputs[0]
            return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return out


def test_matrices_with_odd_rows_are_slower_on_tensor_cores() -> None:
    """A vocabulary of 50,257 costs more than one of 50,304, forward and backward; without tensor cores it doesn't."""

    def of(vocabulary: int, name: str = "A100", dtype: torch.dtype = torch.bfloat16) -> list[float]:
        x, weight = (
            torch.empty(8192, 768, dtype=dtype, device="meta"),
            torch.empty(vocabulary, 768, dtype=dtype, device="meta"),
        )
        out = torch.empty(8192, vocabulary, dtype=dtype, device="meta")
        products = [(x, weight.t()), (out, weight), (out.t(), x)]
        return [seconds(name, aten.mm.default, a, b) for a, b in products]

    for odd, even in zip(of(50257), of(50304), strict=True):
        assert 1.3 < odd / even < 2
    halves = [of(n)[0] for n in (50304, 50260, 50258, 50257)]  # rows that start at 16, 8, 4 and 2 bytes
    assert halves == sorted(halves) and halves[1] > 1.1 * halves[0]
    assert of(50257, "V100", torch.float32)[0] < of(50304, "V100", torch.float32)[0]
    assert of(50257, "V100", torch.float16)[0] > 1.3 * of(50304, "V100", torch.float16)[0]
    bias, x = (
        torch.empty(50257, dtype=torch.half, device="meta"),
        torch.empty(8192, 768, dtype=torch.half, device="meta"),
    )
    weight = torch.empty(50257, 768, dtype=torch.half, device="meta")
    with_bias = seconds("A100", aten.addmm.default, bias, x, weight.t())
    assert with_bias == pytest.approx(of(50257, dtype=torch.half)[0], rel=0.01)


@pytest.mark.parametrize("name", ["addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "_addmm_activation"])
def test_a_product_that_is_added_to_something_costs_what_a_product_does(name: str) -> None:
    """Also in place, and by its own kernel: none of them does its arithmetic for nothing."""
    half = {"dtype": torch.bfloat16, "device": "meta"}
    a, b, sums = (torch.empty(2048, 2048, **half) for _ in range(3))
    if "bmm" in name:
        a, b = a.expand(4, 2048, 2048), b.expand(4, 2048, 2048)
        sums = sums.expand(4, 2048, 2048) if name.startswith("b") else sums
    bias = sums[0] if name == "_addmm_activation" else sums
    plain = seconds("A100", (aten.bmm if a.dim() == 3 else aten.mm).default, a, b)
    assert seconds("A100", getattr(aten, name).default, bias, a, b) == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_sequences_of_different_lengths_costs_what_they_do(causal: bool) -> None:
    """By flash attention's operator, as jagged tensors and varlen call it: real lengths, and half if it's causal."""
    q = torch.empty(8192, 16, 64, dtype=torch.bfloat16, device="meta")

    def of(ends: list[int], causal: bool = causal, longest: int = 8192) -> float:
        lengths = torch.tensor(ends, dtype=torch.int32)
        args = (q, q, q, lengths, lengths, longest, longest, 0.0, causal, False)
        return seconds("A100", aten._flash_attention_forward.default, *args)

    whole = of([0, 8192])
    assert of([0, 4096, 8192]) == pytest.approx(whole / 2, rel=0.01)
    assert of([0, 6144, 8192]) == pytest.approx(whole * (0.75**2 + 0.25**2), rel=0.01)
    assert whole == pytest.approx(of([0, 8192], causal=False) / (2 if causal else 1), rel=0.01)
    assert of([0, 0, 0]) == pytest.approx(2 * whole, rel=0.01), "not computed: each may be as long as the longest"


def test_attention_that_varlen_and_efficient_kernels_call_is_halved_too() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    q = torch.empty(8192, 16, 64, dtype=torch.bfloat16, device="meta")
    ends = torch.tensor([0, 4096, 8192], dtype=torch.int32)

    def of_varlen(causal: bool) -> float:
        return seconds("A100", torch.ops.torch_attn._varlen_attn.default, q, q, q, ends, ends, 4096, 4096, causal)

    def of_efficient(kind: int) -> float:
        whole = q.unsqueeze(0)
        args = (whole, whole, whole, None, ends, ends, 4096, 4096, 0.0, kind, True)
        return seconds("A100", aten._efficient_attention_forward.default, *args)

    assert varlen and of_varlen(True) == pytest.approx(of_varlen(False) / 2, rel=0.01)
    assert of_efficient(1) == of_efficient(2) == pytest.approx(of_efficient(0) / 2, rel=0.01)
    assert of_efficient(0) == pytest.approx(of_varlen(False), rel=0.01)


def trained(name: str, model_last: bool, images_last: bool, dtype: torch.dtype = torch.half, groups: int = 1) -> Priced:
    """The price of a step of a few layers of convolutions, by the order of weights and images."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False, groups=groups), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers).to("meta", dtype)
    x = torch.empty(64, 64, 56, 56, dtype=dtype, device="meta")
    model = model.to(memory_format=torch.channels_last) if model_last else model
    x = x.contiguous(memory_format=torch.channels_last) if images_last else x
    with Priced(name) as priced:
        model(x).sum().backward()
    return priced


def test_convolutions_on_tensor_cores_like_channels_last() -> None:
    usual, last = trained("A100", False, False), trained("A100", True, True)
    assert 1.3 < usual.convolutions / last.convolutions < 2.5
    assert usual.seconds - last.seconds == pytest.approx(usual.convolutions - last.convolutions, rel=0.05)
    half = trained("A100", True, False)  # only the first layer's images are reordered
    assert last.convolutions < half.convolutions < last.convolutions + 0.2 * (usual.convolutions - last.convolutions)
    for name, dtype, groups in (("V100", torch.float32, 1), ("A100", torch.float32, 1), ("A100", torch.half, 64)):
        plain, other = trained(name, False, False, dtype, groups), trained(name, True, True, dtype, groups)
        assert plain.convolutions == pytest.approx(other.convolutions), "in float32, or where each channel is alone"


def test_a_product_in_fp8_takes_half_as_long_as_in_bf16_by_either_name() -> None:
    with torch.device("meta"):
        a, scale = torch.empty(4096, 4096), torch.empty(())
    bf16 = seconds("H100", aten.mm.default, a.bfloat16(), a.bfloat16())
    eight = a.to(torch.float8_e4m3fn)
    found = [seconds("H100", aten._scaled_mm.default, eight, eight.t(), scale, scale, out_dtype=torch.bfloat16)]
    if hasattr(aten, "_scaled_mm_v2"):
        by_recipe = ([scale], [0], [0], [scale], [0], [0], None, torch.bfloat16)
        found.append(seconds("H100", aten._scaled_mm_v2.default, eight, eight.t(), *by_recipe))
    assert all(each == pytest.approx(bf16 / 2, rel=0.02) for each in found), (found, bf16)
