"""A step of a pipeline under four schedules: who computes when, how much is bubble, and how much activations take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import predict
from ..figures.canvas import BLUE, INK, ORANGE, PURPLE, RUST, SKY
from ..launching.launcher import launch
from ..show.units import number, readable
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening
from .parts import AXIS, table

# What the button of `explore.schedules()` runs: torch's own schedules on modelled GPUs.

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
        PROGRAMS / "schedule_steps.py", p,
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


SCHEDULES = {"GPipe": "gpipe", "1F1B": "1f1b", f"interleaved 1F1B, {CHUNKS} chunks": "interleaved",
             "zero bubble (ZB-H1)": "zero-bubble"}  # fmt: skip
CONTROLS = (
    Control("schedule", "schedule", "1f1b", "in which order each stage works", choices=SCHEDULES),
    Control("micro_batches", "micro-batches", 8, "that the batch is cut into; each stays as large as it is", 1, 16),
    Control("slow", "slow stage", 1.0, "how many times as long it takes as the others", 1, 3, "times", whole=False),
    Control("stages", "stages", 4, "parts of the model, a GPU each", 2, 8, more=True),
    Control("slow_stage", "which is slow", 1, "its number, counted from 0", 0, 7, more=True),
)
LEAVES_OUT = (
    "messages, which take no time here, and what each micro-batch costs in Python. Backward takes two forwards, half of"
    " it for the weights. The paper's GPipe runs the last micro-batch back first, torch's the first; the time is the"
    " same. Zero bubble is the fastest of three such orders. Interleaved, each stage has two parts of half"
    " its layers. Recomputation."
)
EMULATED = "torch's own schedules, a process for each stage, on modelled A100s (8 layers of 1024 by 1024 each)"
LEFT, WIDE = 84.0, WIDTH - 84.0 - 108.0
_LOOKS = {"F": (SKY, ""), "B": (BLUE, ""), "I": (BLUE, ""), "W": (PURPLE, "---")}
_CHOICES = ("an eighth longer", "about a quarter longer", "half as long again", "twice as long")


def simulated(values: Values) -> predict.PipelineRun:
    """The step in units of one micro-batch's forward on a stage. Raises ValueError where schedule and numbers don't go
    together."""
    p, slow = values["stages"], min(values["slow_stage"], values["stages"] - 1)
    times = [values["slow"] if stage == slow else 1.0 for stage in range(p)]
    chunks = CHUNKS if values["schedule"] == "interleaved" else 1
    forward = [t / chunks for _ in range(chunks) for t in times]
    return predict.simulate_pipeline(
        values["schedule"], forward, values["micro_batches"], chunks=chunks, activation_bytes=1 / chunks
    )


def render(values: Values, found: Found, answered: bool = True) -> View:
    """A row of boxes for each stage, the activations that the first and the last hold meanwhile, and what ran."""
    try:
        run = simulated(values)
    except ValueError:
        return View.refusal(f"Interleaved, micro-batches come in multiples of the {values['stages']} stages.")
    p, emulated = values["stages"], found.get("emulated")
    high = 32.0 if p < 6 else 24.0
    low = 46 + p * high
    drawing = Drawing(low + (166 if answered else 50) + (130 + p * 18 if emulated else 0))
    name = next(words for words, value in SCHEDULES.items() if value == values["schedule"]).partition(",")[0]
    title = f"{name}: {run.bubble:.0%} of the stages' time is bubble" if answered else "How much is bubble?"
    drawing.text(12, 24, title, 15, bold=True)
    scale = WIDE / run.total_s
    for stage in range(p):
        y = 42 + stage * high
        drawing.text(LEFT - 8, y + high / 2 + 4, f"stage {stage}", 12, "end")
        drawing.bar(LEFT, y + 2, WIDE, high - 4, "#DADADA", "..." if answered else "", edge_width=0)
        if answered:
            drawing.text(LEFT + WIDE + 8, y + high / 2 + 4, f"holds {number(run.peak_bytes[stage])}", 12)
    for stage, start, end, what, label in run.spans if answered else ():
        if what != "compute":
            continue
        x, y, wide = LEFT + scale * start, 42 + stage * high, scale * (end - start)
        drawing.bar(x, y + 2, wide, high - 4, *_LOOKS[label[0]], edge_width=0.8 if wide > 4 else 0.3)
        if wide > 7.5 * len(label[1:]) + 3:
            color = INK if label[0] in "FW" else "#FFFFFF"
            drawing.text(x + wide / 2, y + high / 2 + 4, label[1:], 11, "middle", color=color)
    if not answered:
        return View.of(drawing, f"{p} stages, each with {values['micro_batches']} micro-batches to do.")
    for i, (look, words) in enumerate((("F", "forward"), ("B", "backward"), ("W", "of it for weights"))):
        drawing.bar(LEFT + 110 * i, low + 4, 14, 11, *_LOOKS[look])
        drawing.text(LEFT + 110 * i + 19, low + 14, words, 12)
    drawing.bar(LEFT + 345, low + 4, 14, 11, "#DADADA", "...")
    drawing.text(LEFT + 364, low + 14, "bubble (numbers: micro-batches)", 12)
    _held(drawing, low + 30, run, p)
    said = f"{name}: a step takes {number(run.total_s)} times one micro-batch's forward, {run.bubble:.0%} of it bubble."
    many = f"{number(run.peak_bytes[0])} micro-batch{'es' * (run.peak_bytes[0] != 1)}"
    said += f" The first stage holds the activations of {many} at its fullest."
    if values["slow"] > 1:
        longer = run.total_s / simulated({**values, "slow": 1.0}).total_s - 1
        said += f" Stage {min(values['slow_stage'], p - 1)} sets the pace: {longer:.0%} longer than with equal stages."
    if emulated:
        draw_run(drawing, low + 172, emulated, (LEFT, WIDE))
        off = emulated["step_s"] / emulated["predicted_s"] - 1
        said += f" Emulated: {off:+z.1%} against a prediction from what each stage took alone. torch's own"
        said += " schedule ran; the times come from a model, not from GPUs."
    return View.of(drawing, said)


def _held(drawing: Drawing, y: float, run: predict.PipelineRun, p: int) -> None:
    """Over the same time, the micro-batches whose activations the first and the last stage hold; 120 pixels high."""
    drawing.text(12, y + 12, "activations held, in micro-batches", 12)
    low, tall, most = y + 110, 84.0, max(*run.peak_bytes, 1)
    share = run.peak_bytes[0] / max(1, run.peak_micro_batches[0])  # of a micro-batch that one box holds
    ends = "W" if any(span[4][0] == "W" for span in run.spans if span[4]) else "B"
    for stage, color, dashes in ((0, ORANGE, ""), (p - 1, INK, "5 3")):
        changes = [(start, share) for s, start, end, what, label in run.spans if s == stage and label[:1] == "F"]
        changes += [(end, -share) for s, start, end, what, label in run.spans if s == stage and label[:1] == ends]
        at_once: dict[float, float] = {}
        for at, change in changes:
            at_once[round(at, 6)] = at_once.get(round(at, 6), 0.0) + change
        held, points = 0.0, [(LEFT, low)]
        for at, change in sorted(at_once.items()):
            x = LEFT + WIDE * at / run.total_s
            points.append((x, low - tall * held / most))
            held += change
            points.append((x, low - tall * held / most))
        drawing.line([*points, (LEFT + WIDE, low)], color, 2, dashes)
    drawing.line([(LEFT, low - tall), (LEFT, low), (LEFT + WIDE, low)], AXIS, 1)
    for level in sorted({0.0, most}):
        drawing.text(LEFT - 8, low - tall * level / most + 4, number(level), 11, "end")
    drawing.text(LEFT + WIDE + 8, low - tall + 10, "— stage 0", 12, color=RUST)
    drawing.text(LEFT + WIDE + 8, low - tall + 28, f"- - stage {p - 1}", 12)


def schedules(**settings: Any) -> Explorer:
    """A step of a pipeline. `settings` are schedule, micro_batches, slow, stages and slow_stage."""
    start = {control.name: control.default for control in CONTROLS}

    def judge(guess: str | None) -> str:
        longer = simulated({**start, "slow": 1.5}).total_s / simulated(start).total_s - 1
        first = opening(guess, _CHOICES[1])
        many = simulated({**start, "slow": 1.5, "micro_batches": 16}).total_s
        many = many / simulated({**start, "micro_batches": 16}).total_s - 1
        why = {
            _CHOICES[0]: "That's the work, but it's all in one place. ",
            _CHOICES[2]: "Nearly: that's the limit for many micro-batches. ",
        }.get(guess or "", "")
        return f"{first}{why}{longer:.0%} longer, since all wait for the slow one; with 16 micro-batches {many:.0%}."

    text = (
        "Four stages, 8 micro-batches, 1F1B. Stage 1 gets half as much work again, so in all there's an eighth more"
        " to do. How much longer does a step take?"
    )
    question = Question(text, _CHOICES, judge)
    actions = [Action("Emulate", "emulated", run_schedule, seconds, EMULATED, refusal)]
    return Explorer(
        "schedules", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=actions
    )
