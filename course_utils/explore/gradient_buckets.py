"""When DDP's gradients travel: bucket size, link and layers, as the timeline of one step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from .. import predict
from ..launching.launcher import launch
from ..results import traces
from ..show.units import counted, number, readable
from .controls import Control
from .drawing import Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values
from .parts import curve, table, timeline

# What the buttons of `explore.buckets()` run: real DDP at its settings, here or on modelled GPUs.

GPUS, DEVICE, ROWS, WIDE = 8, "A100", 2048, 1024
LAYER_BYTES = 4.0 * (WIDE * WIDE + WIDE)  # a linear layer of 1024 by 1024 in fp32
_SMALL = {"width": 256, "rows": 256, "steps": 5}  # the same layers, small enough for a CPU core


def run_buckets(bucket_mb: float, layers: int, link: str = "") -> dict[str, Any]:
    """Launch the real DDP: at full size on modelled GPUs over `link`, or without one, scaled down, on this machine's
    ranks. Returns what `gradient_buckets.render` draws."""
    size = {"width": WIDE, "rows": ROWS, "steps": 1} if link else _SMALL
    scale = (size["width"] ** 2 + size["width"]) / (WIDE**2 + WIDE)
    args: list[object] = [part for name, value in size.items() for part in (f"--{name}", value)]
    args += ["--layers", layers, "--bucket-bytes", bucket_mb * 2**20 * scale]
    options: dict[str, Any] = {"ranks": "auto", "quiet": True, "timeout": 100, "engine": "local"}
    program = PROGRAMS / "ddp_steps.py"
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


# What `explore.buckets()` says under its picture.


def _many(count: int) -> str:
    return f"{counted(count, 'bucket')}"


def how_many(values: Mapping[str, Any], step: predict.DDPStep) -> str:
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


# FLOP/s in fp32: 19.5e12 of the datasheet, of which we take large products to reach 80%.
FLOPS = 0.8 * 19.5e12
# Bus bandwidth and latency of a hop, as nccl-tests see them. Name, then what `data/clusters.toml` calls the link.
LINKS = {
    "NVLink 3: 235 GB/s": ("nvlink3", predict.Link(3.1e-6, 235e9)),  # stas00/ml-engineering network/README.md
    "Ethernet 100 Gb/s: 11 GB/s": ("ethernet100", predict.Link(10e-6, 11e9)),  # 88% of the line rate
    "PCIe 3, through memory: 5 GB/s": ("shm", predict.Link(5e-6, 5e9)),
    "Ethernet 25 Gb/s: 2.5 GB/s": ("ethernet25", predict.Link(20e-6, 2.5e9)),
}
CONTROLS = (
    Control("bucket_mb", "bucket size", 25, "bucket_cap_mb of DDP: a bucket is sent as soon as it holds this much",
            1, 500, "MiB", base=10, whole=False),
    Control("link", "link", "Ethernet 100 Gb/s: 11 GB/s", "what carries gradients between the GPUs",
            choices={name: name for name in LINKS}),
    Control("layers", "layers", 48, f"linear layers of {WIDE} by {WIDE}: 4 MiB of gradients each", 1, 100),
)  # fmt: skip
EACH, DEFAULT, ONE = "1 MiB, a bucket for each layer", "25 MiB", "500 MiB, one bucket for all"
HERE = "the real DDP on this machine's ranks and own link, with as many layers and buckets, each smaller"
EMULATED = f"the real DDP, at full size, on {GPUS} modelled {DEVICE}s: nothing large is computed"
LEAVES_OUT = (
    "NCCL takes some of the GPU's cores while it sends, so computing is a little slower than drawn; copies in and out"
    " of buckets; DDP's first bucket of 1 MiB, which only the default has; ranks that come late; the optimizer's step."
    f" A layer's time is its FLOPs over {FLOPS / 1e12:.1f} TFLOP/s."
)


def predicted(values: Values, bucket_mb: float | None = None) -> predict.DDPStep:
    """The step of the cost model at these settings, or with another bucket size."""
    flops = 6.0 * ROWS * WIDE * WIDE * values["layers"]  # 2 forward and 4 backward for each weight and row
    layers = predict.equal_layers(flops / FLOPS, LAYER_BYTES * values["layers"], values["layers"])
    link = LINKS[values["link"]][1]
    return predict.ddp_step(
        layers,
        lambda nbytes: predict.ring_all_reduce(GPUS, nbytes, link),
        bucket_bytes=(bucket_mb or values["bucket_mb"]) * 2**20,
    )


def sizes(values: Values) -> list[float]:
    """Bucket sizes in MiB over the whole range: every number of layers that a bucket may hold, but at most about 25."""
    layer, layers = LAYER_BYTES / 2**20, values["layers"]
    return [1.0, *(n * layer for n in sorted({round(layers ** (i / 24)) for i in range(25)})), 500.0]


def render(values: Values, found: Found, answered: bool = True) -> View:
    """The timeline of a step, how long a step takes with other bucket sizes, and below it what ran here."""
    step = predicted(values)
    extra = [(kind, found[kind]) for kind in ("emulated", "measured") if kind in found]
    drawing = Drawing((365 if answered else 130) + bool(extra) * 100 + 120 * len(extra))
    rows = [span for span in step.spans if answered or span[3] == "compute"]
    waits = f"waits {readable('s', step.exposed_s)}"
    if answered and step.exposed_s > 0:
        rows.append((0, step.compute_s, step.total_s, "waiting", waits))
    title = f"A step takes {readable('s', step.total_s)}, and {waits} of it for gradients"
    drawing.text(12, 24, title if answered else "When do the gradients travel, and how long does the step take?",
                 15, bold=True)  # fmt: skip
    timeline(drawing, 40, rows, "predicted", step.total_s if answered else step.compute_s)
    if not answered:
        return View.of(drawing, "The timeline of a step's forward and backward. The gradients show after your guess.")
    points, best = _best(values)
    now = (values["bucket_mb"], step.total_s)
    same = [(earlier, result) for earlier, kind, result in found.get("earlier", ()) if kind == "emulated"
            and all(earlier[name] == values[name] for name in ("link", "layers"))]  # fmt: skip
    ran = [*same, *((values, found["emulated"]) for _ in range("emulated" in found))]
    marks = [
        *[(best, "best")] * (best[1] < 0.99 * step.total_s),
        (now, "predicted"),
        *(((e["bucket_mb"], r["step_s"]), "emulated") for e, r in ran),
    ]
    floor = (step.compute_s, f"computing alone: {readable('s', step.compute_s)}")
    curve(drawing, 165, points, marks, "a step, by bucket size (MiB)", f"● {number(now[0])} MiB, drawn above", floor)
    said = f"{how_many(values, step)}: {step.hidden:.0%} of the communication is hidden, a step takes"
    said += f" {readable('s', step.total_s)}; {cheapest(values, step, best)}."
    start_s = predict.ring_all_reduce(GPUS, 1, LINKS[values["link"]][1])
    said += f" Each bucket costs {readable('s', start_s)} before its bytes travel."
    if extra:
        hidden = [traces.overlap(result["spans"]).get(0, 1.0) for _, result in extra]
        times, counts = ([result[key] for _, result in extra] for key in ("step_s", "buckets"))
        table(drawing, 368, ("predicted", *(kind for kind, _ in extra)), [
            ("a step", [readable("s", t) for t in (step.total_s, *times)]),
            ("buckets", [f"{n}" for n in (len(step.bucket_bytes), *counts)]),
            ("communication hidden", [f"{share:.0%}" for share in (step.hidden, *hidden)]),
        ])  # fmt: skip
    for i, (kind, result) in enumerate(extra):
        y = 468 + 120 * i
        drawing.text(12, y + 8, f"{kind.capitalize()}, on {result['where']}; purple: the optimizer", 13, bold=True)
        timeline(drawing, y + 14, result["spans"], kind, max(s[2] for s in result["spans"]))
        said += " " + compared(kind, result, step)
    return View.of(drawing, said)


def _best(values: Values) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Seconds of a step for every bucket size (MiB), and the fastest of them."""
    points = [(mb, predicted(values, mb).total_s) for mb in sizes(values)]
    return points, min(points, key=lambda point: point[1])


def _run_here(values: Values) -> dict[str, Any]:
    return run_buckets(values["bucket_mb"], values["layers"])


def _emulate(values: Values) -> dict[str, Any]:
    return run_buckets(values["bucket_mb"], values["layers"], LINKS[values["link"]][0])


def buckets(**settings: Any) -> Explorer:
    """When DDP's gradients travel. `settings` are bucket_mb, link and layers."""
    actions = [Action("Run here", "measured", _run_here, lambda values: 3 + values["layers"] / 25, HERE)]
    if "cluster" in inspect.signature(launch).parameters:
        actions.append(Action("Emulate", "emulated", _emulate, lambda values: 5 + values["layers"] / 8, EMULATED))
    start = {control.name: control.default for control in CONTROLS}

    def judge(guess: str | None) -> str:
        took = {name: [predicted({**start, "link": link}, mb).total_s for link in LINKS]
                for name, mb in ((EACH, 1), (DEFAULT, 25), (ONE, 500))}  # fmt: skip
        at = list(LINKS).index(start["link"])
        best = min(took, key=lambda name: took[name][at])
        times = ", ".join(f"{readable('s', seconds[at])} with {name}" for name, seconds in took.items())
        first = "" if guess is None else "Yes, of these three. " if guess == best else "Not this time. "
        nvlink = max(t[0] for t in took.values()) / min(t[0] for t in took.values()) - 1
        return f"{first}A step takes {times}. Now change the link: on NVLink the three are within {nvlink:.0%}."

    text = (
        f"{GPUS} {DEVICE}s train {start['layers']} layers, each with 4 MiB of gradients, over 100 Gb/s Ethernet. Which"
        " bucket size makes the fastest step?"
    )
    question = Question(text, (EACH, DEFAULT, ONE), judge)
    return Explorer(
        "buckets", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=actions
    )
