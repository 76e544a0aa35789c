"""What the buttons of `explore.buckets()` run: real DDP at its settings, here or on modelled GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import traces
from ..launcher import launch

GPUS, DEVICE, ROWS, WIDE = 8, "A100", 2048, 1024
LAYER_BYTES = 4.0 * (WIDE * WIDE + WIDE)  # a linear layer of 1024 by 1024 in fp32
HERE = {"width": 256, "rows": 256, "steps": 5}  # the same layers, small enough for a CPU core


def run_buckets(bucket_mb: float, layers: int, link: str = "") -> dict[str, Any]:
    """Launch the real DDP: at full size on modelled GPUs over `link`, or without one, scaled down, on this machine's
    ranks. Returns what `gradient_buckets.render` draws."""
    size = {"width": WIDE, "rows": ROWS, "steps": 1} if link else HERE
    scale = (size["width"] ** 2 + size["width"]) / (WIDE**2 + WIDE)
    args: list[object] = [part for name, value in size.items() for part in (f"--{name}", value)]
    args += ["--layers", layers, "--bucket-bytes", bucket_mb * 2**20 * scale]
    options: dict[str, Any] = {"ranks": "auto", "quiet": True, "timeout": 100, "engine": "local"}
    program = Path(__file__).with_name("ddp_steps.py")
    if link:
        options |= {"ranks": GPUS, "cluster": {"count": GPUS, "device": DEVICE, "inside": link}}
    else:
        args.append("--profile")
    run = launch(program, args=args, **options)
    spans = [span for span in traces.load(run) if span[0] == 0]
    where = f"{GPUS} modelled {DEVICE}s" if link else run.placement.partition(",")[0]
    return {
        "spans": spans, "step_s": run.samples("step_s").median, "buckets": run.value("buckets"),
        "nbytes": run.value("nbytes"), "where": where,
    }  # fmt: skip
