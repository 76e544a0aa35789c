"""What the button of `explore.schedules()` runs: torch's own schedules on modelled GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import predict
from ..figures.canvas import BLUE
from ..launcher import launch
from ..units import readable
from .drawing import Drawing
from .parts import table

CHUNKS = 2  # of each stage, if it's interleaved


def refusal(values: Mapping[str, Any]) -> str:
    """Why torch's schedules don't take these settings, if so."""
    p, m = values["stages"], values["micro_batches"]
    if values["schedule"] == "1f1b" and m < p:
        return f"torch's 1F1B wants at least as many micro-batches as stages, {p}"
    if values["schedule"] == "interleaved" and m % p:
        return f"an interleaved schedule takes micro-batches in multiples of the {p} stages"
    if values["schedule"] == "zero-bubble" and m % max(1, m // p):
        return f"torch's zero-bubble schedule wants whole rounds: take a multiple of the {p} stages"
    return ""


def seconds(values: Mapping[str, Any]) -> float:
    """About how long the emulation takes, with a process for each stage."""
    return 3 + values["stages"] * values["micro_batches"] / 12


def run_schedule(values: Mapping[str, Any]) -> dict[str, Any]:
    """Emulate a step. Returns its seconds, when each stage computed, and what the prediction says of stages that take
    what these took alone."""
    p, m, name = values["stages"], values["micro_batches"], values["schedule"]
    chunks = CHUNKS if name == "interleaved" else 1
    slow = {values["slow_stage"]: values["slow"]} if values["slow"] > 1 else None
    run = launch(
        Path(__file__).with_name("schedule_steps.py"), p,
        ["--schedule", name, "--micro-batches", m, "--chunks", chunks], cluster=f"{p}xA100", slow=slow, quiet=True,
        engine="local", timeout=120,
    )  # fmt: skip
    alone = {r["rank"] + p * r["chunk"]: r for r in run.records if "chunk" in r}
    forward_s, backward_s = ([alone[i][key] for i in range(p * chunks)] for key in ("forward_s", "backward_s"))
    predicted = predict.simulate_pipeline(name, forward_s, m, backward_s=backward_s, chunks=chunks)
    start = min(run.emulated.steps(rank)[-1][0] for rank in range(p))
    busy = [_busy(run.emulated.spans(rank), start) for rank in range(p)]
    step_s = max(record["step_s"] for record in run.records if "step_s" in record)
    idle = 1 - sum(b - a for row in busy for a, b in row) / (p * step_s)
    return {"step_s": step_s, "bubble": idle, "busy": busy, "predicted_s": predicted.total_s,
            "predicted_bubble": predicted.bubble}  # fmt: skip


def _busy(spans: list[Any], start: float) -> list[tuple[float, float]]:
    """When a GPU computed in the last step, from its start on; what's less than 20 µs apart is one."""
    found: list[tuple[float, float]] = []
    for _, begin, end, what, _ in spans:
        if what != "compute" or begin < start:
            continue
        if found and begin - start - found[-1][1] < 20e-6:
            found[-1] = (found[-1][0], max(end - start, found[-1][1]))
        else:
            found.append((begin - start, end - start))
    return found


def draw_run(drawing: Drawing, y: float, ran: Mapping[str, Any], axis: tuple[float, float]) -> None:
    """What the emulated GPUs did, and next to it what was predicted for their own times. `axis` begins at its first
    number and is as long as its second."""
    (left, wide), p = axis, len(ran["busy"])
    rows = [("a step", [readable("s", ran[key]) for key in ("predicted_s", "step_s")]),
            ("bubble", [f"{ran[key]:.0%}" for key in ("predicted_bubble", "bubble")])]  # fmt: skip
    table(drawing, y, ("predicted", "emulated"), rows)
    drawing.text(12, y + 92, f"Emulated, on {p} modelled A100s: blue is busy", 12, bold=True)
    scale = wide / ran["step_s"]
    for stage, row in enumerate(ran["busy"]):
        up = y + 102 + 18 * stage
        drawing.text(left - 8, up + 12, f"stage {stage}", 11, "end")
        drawing.bar(left, up, wide, 15, "#DADADA", "...", edge_width=0)
        for start, end in row:
            drawing.bar(left + scale * start, up, scale * (end - start), 15, BLUE, edge_width=0)
