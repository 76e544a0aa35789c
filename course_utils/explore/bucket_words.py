"""What `explore.buckets()` says under its picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import predict
from ..units import number, readable
from .bucket_runs import LAYER_BYTES


def _many(count: int) -> str:
    return f"{count} bucket{'s' * (count > 1)}"


def sizes(values: Mapping[str, Any], step: predict.DDPStep) -> str:
    """How many buckets, and how large."""
    most = readable("bytes", max(step.bucket_bytes))
    if len(step.bucket_bytes) == 1:
        return f"1 bucket of {most}"
    over = max(step.bucket_bytes) > values["bucket_mb"] * 2**20
    why = f", since a bucket closes with the layer that passes {number(values['bucket_mb'])} MiB" * over
    return f"{_many(len(step.bucket_bytes))} of up to {most}{why}"


def cheapest(values: Mapping[str, Any], step: predict.DDPStep, best: tuple[float, float]) -> str:
    """The fastest bucket size, if it matters."""
    if best[1] > 0.99 * step.total_s:
        return "no bucket size is more than 1% faster"
    size = "a bucket for each layer" if best[0] * 2**20 <= LAYER_BYTES else f"{number(best[0])} MiB"
    return f"{size} would be the fastest ({readable('s', best[1])})"


def compared(kind: str, result: dict[str, Any], step: predict.DDPStep) -> str:
    """What was compared with what."""
    if kind == "emulated":
        off = f"Emulated: {result['step_s'] / step.total_s - 1:+z.0%} against the prediction."
        return off + " The real DDP ran; the times come from a model, not from GPUs."
    scaled = f"gradients scaled down to {readable('bytes', result['nbytes'])}"
    return f"Measured here: {scaled}, on other hardware, so compare the shapes, not the seconds."
