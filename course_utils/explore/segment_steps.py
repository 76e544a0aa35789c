"""A step that recomputes its activations in segments, part by part; and the real one on a modelled GPU: what
`explore.recompute()` draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import predict
from ..launcher import launch


def parts(layers: int, segments: int) -> list[int]:
    """How many layers each segment has; the longer ones come last."""
    base, more = divmod(layers, segments)
    return [base + (i >= segments - more) for i in range(segments)]


def step(layers: int, segments: int, share: float) -> list[tuple[str, float, float, float]]:
    """What happens one after the other: its name, when it ends (in forwards of a layer), and what is held before and
    after it (in activations of a layer). `share` is an input's part of those. No segment: everything is kept."""
    sizes = parts(layers, segments) if segments else []
    if not segments:
        return [("forward", layers, 0, layers), ("backward", 3 * layers, layers, 0)]
    found, now, held = [], 0.0, 0.0
    for size in sizes:
        now += size
        found.append(("forward", now, held + share, held := held + share))
    for size in reversed(sizes):
        now += size
        found.append(("again", now, held, held + size))
        now += 2 * size
        found.append(("backward", now, held + size, held := held - share))
    return found


def best(layers: int, share: float) -> int:
    """The number of segments that holds least; of several the smallest."""
    return min(range(1, layers + 1), key=lambda k: (predict.checkpoint_chain(layers, k, input_share=share).held, k))


def emulate(values: Mapping[str, Any]) -> dict[str, Any]:
    program = Path(__file__).with_name("recompute_steps.py")
    args = ["--layers", values["layers"], "--segments", values["segments"]]
    one = {"count": 1, "device": "A100", "inside": "nvlink3"}
    run = launch(program, 1, args=args, cluster=one, quiet=True, engine="local", timeout=300)
    held, took = ({w: run.value(key, what=w) for w in ("kept", "recomputed")} for key in ("held_bytes", "step_s"))
    return {"kept": held["kept"], "held": held["recomputed"], "time": took["recomputed"] / took["kept"]}
