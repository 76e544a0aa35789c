"""Judge the emulated cluster: against `predict`, and against what others published.

    python tools/bench_emulation.py predict      the same steps by both, which share no code for collectives
    python tools/bench_emulation.py published    rates and speed-ups of other people's GPUs
    python tools/bench_emulation.py changes      what a change gained them: channels_last, another vocabulary
    python tools/bench_emulation.py links        their collectives, by size
    python tools/bench_emulation.py parallel     their steps under nn.DataParallel
    python tools/bench_emulation.py language     their language models: compiled, sharded, with tensor parallelism
    python tools/bench_emulation.py plan         ways to train 8, 47 and 70 billion parameters; `predict` on FSDP's rows
    python tools/bench_emulation.py memory       peaks, against torch's own count, a count by hand, and published ones
    python tools/bench_emulation.py real         steps and memory that the course's programs took on an H200
    python tools/bench_emulation.py here         the same on the GPU of this machine, and emulated (--as H100)
    python tools/bench_emulation.py fit          what programs reach of the makers' peaks, for data/clusters.toml

`predict` gets the emulator's own times of single layers and stages on one GPU. What's left is how the two combine them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from course_utils import predict, published
from course_utils.emulation import links
from course_utils.emulation.clusters import Device, cluster
from course_utils.failure.errors import RankError
from course_utils.folders import COURSE
from course_utils.launching.launcher import launch

HERE = Path(__file__).resolve().parent
STEP, TRAINING, MEMORY, PARALLEL = (HERE / f"emulated_{name}.py" for name in ("step", "training", "memory", "parallel"))
GPT2, LANGUAGE = (COURSE / "notebooks" / "programs" / name for name in ("01_gpt2.py", "10_language.py"))
# A link on which it matters when a message starts, one that costs nothing, and both without NCCL's tables, which
# `predict` doesn't know.
LAB = """
[device.lab]
like = "A100"
per_node = 16
inside = "lab"
[device.free]
like = "A100"
per_node = 16
inside = "free"
[link.lab]
busbw_Bps = 20e9
hop_s = 5e-6
[link.free]
busbw_Bps = 1e16
"""
# Cards that others measured, and that the course has no tables of.
CARDS = """
[device.H100-96GB]
like = "H100"
memory_bytes = 101e9
memory_Bps = 2.4e12
source = "pytorch/torchtitan@31a17bf benchmarks/llama3_h100_202412_torchtitan.md: HBM2e, limited to 500 W"
[device.A100-160GB]
like = "A100"
memory_bytes = 170e9
source = "an A100 with more memory, for what others kept there by other means"
[device.RTX3090]
like = "A100"
memory_Bps = 936e9
flops = { float32 = 35.6e12, tf32 = 35.6e12, float16 = 71e12, bfloat16 = 71e12 }
sm_count = 82
source = "NVIDIA Ampere GA102 GPU Architecture, 2021, without sparsity, sums in float32"
"""
# The machine on which others measured nn.DataParallel in 2021: its host takes so long for an operator (PyTorch 1.8,
# 2.25 GHz), fitted to inference on one GPU, where that's nearly all.
HOST = """
[device.A100-40GB-2021]
like = "A100-40GB"
host_s = 42e-6
"""
LINK = predict.Link(5e-6, 20e9)
BUCKETS_MB = (4.0, 8.0, 25.0, 60.0, 1000.0)  # of 50 layers of 4 MiB: 50, 25, 8, 4 buckets and 1


class Row(NamedTuple):
    what: str
    emulated: float
    other: float
    unit: str = "ms"

    @property
    def off(self) -> float:
        return self.emulated / self.other - 1


def on_lab(kind: str, ranks: int, *args: Any) -> list[dict[str, Any]]:
    """The records of rank 0 of a program on GPUs of the lab's clusters."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lab.toml"
        file.write_text(LAB)
        run = launch(STEP, ranks, [str(a) for a in args], cluster=f"{file}:16x{kind}", quiet=True, timeout=600)
    return list(run.ranks[0].records)


def ddp_rows(ranks: tuple[int, ...] = (1, 2, 4, 8, 16), buckets_mb: tuple[float, ...] = BUCKETS_MB) -> Iterator[Row]:
    """DDP's step, by the real reducer and by `predict.ddp_step`."""
    args = ("ddp", "--layers", 50, "--bucket-mb", *buckets_mb)
    one = on_lab("lab", 1, *args)
    for n in ranks:
        for alone, found in zip(one, on_lab("lab", n, *args) if n > 1 else one, strict=True):
            times = zip(alone["forward_s"], alone["backward_s"], strict=True)
            step = predict.ddp_step(
                [predict.Layer(forward_s, backward_s, 4 << 20) for forward_s, backward_s in times],
                functools.partial(_all_reduce_s, n),
                bucket_bytes=found["bucket_mb"] * 2**20,
            )
            yield Row(f"DDP, {n} ranks, {len(step.bucket_bytes)} buckets", found["step_s"] * 1e3, step.total_s * 1e3)


def _all_reduce_s(ranks: int, nbytes: float) -> float:
    return predict.ring_all_reduce(ranks, nbytes, LINK)


def pipeline_rows(kind: str = "free", ranks: tuple[int, ...] = (4, 8)) -> Iterator[Row]:
    """A step of a pipeline, by torch's schedules and by `predict.simulate_pipeline`.

    On a link that takes time torch is slower than predicted: it posts a receive once the computation before it has been
    queued, and NCCL moves nothing until both sides have come to it. So messages aren't hidden as the prediction takes
    them to be.
    """
    batch = 4096
    parts = {record["stage"]: record for record in on_lab(kind, 1, "stage", "--layers", 4, "--batch", batch)}
    middle = parts["middle"]
    for n in ranks:
        for found in on_lab(kind, n, "pipeline", "--layers", 4, "--batch", batch, "--micro-batches", n, 2 * n):
            chunks = 2 if found["schedule"] == "interleaved" else 1
            stages = [parts["first"], *[middle] * (n * chunks - 2), parts["last"]]
            step = predict.simulate_pipeline(
                found["schedule"],
                [stage["forward_s"] for stage in stages],
                found["micro_batches"],
                backward_s=[stage["backward_s"] for stage in stages],
                weight_share=1 - middle["input_s"] / middle["backward_s"],
                chunks=chunks,
                comm_s=LINK.send_s(batch * 1024 * 4) if kind == "lab" else 0.0,
            )
            what = f"{found['schedule']}, {n} stages, {found['micro_batches']} micro-batches, link {kind}"
            yield Row(what, found["step_s"] * 1e3, step.total_s * 1e3)


def link_rows() -> Iterator[Row]:
    """All-reduces that others measured with nccl-tests, by `emulation.links`. Only the empty one and the largest of
    each machine went into `data/clusters.toml`."""
    machines = {"ar-a100x8": ("8xA100", ""), "ar-h100x8": ("8xH100", ""), "ar-2xp4de": ("16xA100", "efa400")}
    for case in published.cases("allreduce"):
        name, between = next(found for start, found in machines.items() if case.id.startswith(start))
        count, kind = name.split("x")
        asked: dict[str, Any] = {"count": int(count), "device": kind, **({"between": between} if between else {})}
        found = cluster(asked)
        seconds = links.seconds("all_reduce", case.inputs["bytes"], links.Route.of(found, range(found.count)))
        yield Row(case.id, seconds * 1e6, case.observed, "us")


def collective_rows(role: str) -> Iterator[Row]:
    """Collectives of all sizes over NVLink 4, by `emulation.links`. A program that waits for each also waits for the
    host to start it."""
    for case in of_class("collective"):
        if case.role == role:
            found = cluster(case.inputs["cluster"])
            route = links.Route.of(found, range(case.inputs["ranks"]))
            seconds = links.seconds(case.inputs["kind"], case.inputs["bytes"], route)
            seconds += links.CALL * found.device.host_s if case.inputs["waits"] else 0.0
            yield Row(case.id, seconds * 1e6, case.observed, "us")


# Llama 3.1 8B under FSDP2, 2 sequences of 8192 words a GPU, by how many GPUs: GiB, as torchtitan says it, which is what
# the allocator has reserved, in expandable segments.
RESERVED_GIB = {8: 82.4, 128: 67.0}  # pytorch/torchtitan@31a17bf benchmarks/llama3_h100_202412_torchtitan.md


def memory_rows(cases: tuple[str, ...] = ("resnet18", "resnet50", "gpt-small", "gpt")) -> Iterator[tuple[Row, str]]:
    """Peaks on one GPU: emulated, and counted by torch's MemTracker on fake tensors or by formula."""
    sys.path.insert(0, str(HERE))
    emulated_memory: Any = importlib.import_module("emulated_memory")  # which needs torch

    run = launch(MEMORY, 1, list(cases), cluster="1xA100", quiet=True, timeout=600)
    for record in run.ranks[0].records:
        case, peak = record["case"], record["peak_bytes"] / 1e9
        yield Row(case, peak, emulated_memory.counted(case) / 1e9, "GB"), "counted by torch"
        if case in emulated_memory.GPT:
            yield Row(case, peak, emulated_memory.by_hand(case) / 1e9, "GB"), "counted by hand"


def reserved_rows() -> Iterator[Row]:
    for ranks, published_gib in RESERVED_GIB.items():
        args = ["llama3-8b:2:8192:selective:1:eager:1"]
        found = language(args[0], f"{ranks}xH200", env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
        yield Row(f"Llama 3.1 8B, FSDP2 on {ranks} GPUs", found["reserved_bytes"] / 2**30, published_gib, "GiB")


def of_class(cls: str) -> list[published.Case]:
    """What others measured, in `data/emulated_cases.json`."""
    return [case for case in published.load(published.EMULATED) if case.cls == cls]


def cases(gpus: int | None = None, role: str = "") -> list[published.Case]:
    """Rates of training that others measured."""
    return [
        case
        for case in of_class("throughput")
        if (gpus is None or case.inputs["cluster"].startswith(f"{gpus}x")) and role in ("", case.role)
    ]


def train(cluster_name: str, names: list[str], *flags: str) -> dict[str, dict[str, Any]]:
    """What the program reports for each case, by its name. One launch for a few, since it takes a while to start; a
    case that doesn't fit into the memory is left out, and said."""
    found: dict[str, dict[str, Any]] = {}
    ranks = cluster(cluster_name).count
    kinds = [[n for n in names if n.startswith("gpt2") == is_gpt] for is_gpt in (False, True)]
    left = [kind[i : i + 3] for kind in kinds for i in range(0, len(kind), 3)]
    while left:
        few = left.pop(0)
        try:
            program = GPT2 if few[0].startswith("gpt2") else TRAINING
            run = launch(program, ranks, [*few, *flags], cluster=cluster_name, quiet=True, timeout=900)
        except RankError as error:
            if "OutOfMemoryError" not in str(error):
                raise
            if len(few) == 1:
                print(f"{few[0]} doesn't fit into the modelled memory of {cluster_name}")
            else:
                left = [[name] for name in few] + left
        else:
            found |= {record["case"]: dict(record) for record in run.ranks[0].records}
    return found


def published_rows(gpus: int, role: str) -> Iterator[Row]:
    wanted: dict[str, list[published.Case]] = {}
    for case in cases(gpus, role):
        wanted.setdefault(case.inputs["cluster"], []).append(case)
    for name, here in wanted.items():
        records = train(name, [case.inputs["case"] for case in here])
        for case in here:
            if case.inputs["case"] in records:
                yield Row(case.id, records[case.inputs["case"]]["samples_per_s"], case.observed, "/s")


def change_rows(role: str) -> Iterator[Row]:
    """How many times as fast a program trains after a change as before."""
    wanted: dict[str, list[published.Case]] = {}
    for case in of_class("change"):
        if case.role == role:
            wanted.setdefault(case.inputs["cluster"], []).append(case)
    with tempfile.TemporaryDirectory() as folder:
        cards = Path(folder) / "cards.toml"
        cards.write_text(CARDS)
        for name, here in wanted.items():
            steps = [case.inputs[key] for case in here for key in ("before", "after")]
            records = train(f"{cards}:{name}" if name == "1xRTX3090" else name, steps)
            for case in here:
                before, after = (records[case.inputs[key]]["samples_per_s"] for key in ("before", "after"))
                yield Row(case.id, after / before, case.observed, "x")


def parallel_rows(role: str, models: tuple[str, ...] = (), gpus: tuple[int, ...] = (1, 2, 4)) -> Iterator[Row]:
    """Steps of models under nn.DataParallel, with 12 images a GPU; on one GPU without it."""
    wanted: dict[str, list[published.Case]] = {}
    for case in of_class("data_parallel"):
        if case.role == role and (not models or case.inputs["case"].partition(":")[0] in models):
            wanted.setdefault(case.inputs["cluster"], []).append(case)
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "hosts.toml"
        hosts.write_text(HOST)
        for name, here in wanted.items():
            if int(name.partition("x")[0]) in gpus:
                arguments = [case.inputs["case"] for case in here]
                run = launch(PARALLEL, 1, arguments, cluster=f"{hosts}:{name}-2021", quiet=True, timeout=900)
                seconds = {record["case"]: record["seconds"] for record in run.ranks[0].records}
                for case in here:
                    yield Row(case.id, seconds[case.inputs["case"]] * 1e3, case.observed)


def language_rows(role: str, ids: tuple[str, ...] = ()) -> Iterator[Row]:
    """Training of language models: ms a step of GPT-2, tokens a second and GPU of the others."""
    with tempfile.TemporaryDirectory() as folder:
        cards = Path(folder) / "cards.toml"
        cards.write_text(CARDS)
        for case in of_class("language_model"):
            if case.role != role or (ids and case.id not in ids):
                continue
            name, what = case.inputs["cluster"], case.inputs["case"]
            name = f"{cards}:{name}" if name.endswith(("-96GB", "-160GB")) else name
            if case.unit == "ms":
                batch = int(what.split(":")[2])
                yield Row(case.id, batch / train(name, [what])[what]["samples_per_s"] * 1e3, case.observed)
            else:
                yield Row(case.id, language(what, name)["tokens_per_s"], case.observed, "/s")


def real_rows(role: str, here: str = "") -> Iterator[Row]:
    """Steps, and memory at its fullest, of the course's programs: emulated, and as measured on the GPU that the case
    names; or, with the name of an emulated GPU as `here`, as this machine's GPU takes them now."""
    runs: dict[tuple[str, ...], list[Any]] = {}
    for case in (case for case in of_class("real") if case.role == role):
        program, args = case.inputs["program"], tuple(case.inputs["args"])
        if (program, *args) not in runs:
            places: list[dict[str, Any]] = [{"cluster": f"1x{here}" if here else case.inputs["cluster"]}]
            places += [{"device": "cuda"}] if here else []
            runs[program, *args] = [
                launch(COURSE / "notebooks" / "programs" / program, 1, args, quiet=True, timeout=900, **place)
                for place in places
            ]
        found = [_of_case(run, case) for run in runs[program, *args]]
        yield Row(case.id, found[0], found[1] if here else case.observed, case.unit)


def _of_case(run: Any, case: published.Case) -> float:
    (record,) = (r for r in run.ranks[0].records if case.inputs["case"] in (r.get("case"), r.get("way")))
    return float(record[case.inputs["key"]]) * (1e3 if case.unit == "ms" else 1e-9)


def schedule_rows() -> Iterator[Row]:
    """How many times as fast a language model trains under another schedule of its pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        cards = Path(folder) / "cards.toml"
        cards.write_text(CARDS)
        for case in of_class("schedule"):
            before, after = (
                language(case.inputs[key], f"{cards}:{case.inputs['cluster']}")["tokens_per_s"]
                for key in ("before", "after")
            )
            yield Row(case.id, after / before, case.observed, "x")


def language(case: str, name: str, **more: Any) -> dict[str, float]:
    """What a case of the language models' program reaches and holds at its fullest: one rank of so many, or one for
    each stage of a pipeline."""
    (stages,) = re.findall(r"pp(\d+)", case.split(":")[4]) or ["1"]
    alike = {"one_of": cluster(name).count, "quiet": True, "timeout": 900, **more}
    run = launch(LANGUAGE, int(stages), [case], cluster=name, **alike)
    found = [rank.records[-1] for rank in run.ranks]
    return {
        "tokens_per_s": min(record["tokens_per_s"] for record in found),
        "peak_bytes": max(record["peak_bytes"] for record in found),
        "reserved_bytes": max(record["reserved_bytes"] for record in found),
    }


# Ways to train, each as one of so many, or as one for each stage of a pipeline.
PLAN = {
    "8xH100": (
        "llama3-8b:2:8192:none:1:compiled:1", "llama3-8b:2:8192:selective:1:compiled:1",
        "llama3-8b:2:8192:full:1:compiled:1", "llama3-8b:16:8192:full:tp8:compiled:1",
        "llama3-8b:1:8192:full:pp4:compiled:8", "llama3-8b:4:32768:full:cp8:compiled:1",
    ),
    "64xH100": (
        "mixtral-8x7b:2:8192:full:1:compiled:1", "mixtral-8x7b:2:8192:full:ep8:compiled:1",
        "llama3-70b:2:8192:full:1:compiled:1", "llama3-70b:16:8192:full:tp8:compiled:1",
        "llama3-70b:2:8192:full:tp8pp4:compiled:32", "llama3-70b:2:8192:full:tp8pp4x2:compiled:32",
    ),
    "512xH100": (
        "llama3-405b:1:8192:full:1:compiled:1", "llama3-405b:4:8192:full:tp8:compiled:1",
        "llama3-405b:1:8192:full:tp8pp8:compiled:32", "llama3-405b:1:8192:full:tp8pp8x2:compiled:32",
    ),
    "1024xH100": (
        "llama3-8b:2:8192:selective:1:compiled:1", "llama3-70b:2:8192:full:1:compiled:1",
        "llama3-70b:16:8192:full:tp8:compiled:1",
    ),
}  # fmt: skip
KEPT_PLAN = COURSE / "data" / "emulated_plan.json"


def plan() -> None:
    """Print what each way of `PLAN` reaches, and holds at its fullest; all of it is kept for lesson 10."""
    rows = []
    for name, ways in PLAN.items():
        for case in ways:
            began = time.monotonic()
            model, _, length, *_ = case.split(":")
            row: dict[str, Any] = {
                "cluster": name,
                "case": case,
                "flops_per_token": flops_per_token(model, int(length)),
            }
            row |= {"predicted_tokens_per_s": predicted_rate(case, name)}
            try:
                row |= language(case, name)
            except RankError as error:
                if "OutOfMemoryError" not in str(error):
                    raise
            rows.append(row)
            predicted = row["predicted_tokens_per_s"]
            found = "doesn't fit"
            if "tokens_per_s" in row:
                found = f"{row['tokens_per_s']:>8,.0f} tokens/s a GPU, {row['reserved_bytes'] / 2**30:>5.1f} GiB"
            told = "" if predicted is None else f", predicted {predicted:,.0f}"
            print(f"{name:<11}{case:<46}{found}{told}; {time.monotonic() - began:.0f} s", flush=True)
            KEPT_PLAN.write_text("[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]\n")


def flops_per_token(model: str, length: int) -> float:
    """What training needs for a token: six for each weight that it passes, and attention below the diagonal. PaLM,
    arXiv 2204.02311, appendix B, counts attention above it, too."""
    words, width, layers, heads, groups, inner = sizes_of(model)
    attention = 2 * width * width + 2 * width * (width // heads) * (groups or heads)
    products = (2 if model.startswith("mixtral") else 1) * (3 if groups else 2) * width * inner
    return 6.0 * (layers * (attention + products) + words * width) + 6.0 * layers * width * length


def sizes_of(model: str) -> tuple[int, ...]:
    """Words, width, layers, heads, groups of keys and inner width."""
    sys.path.insert(0, str(LANGUAGE.parent))
    return tuple(importlib.import_module("10_language").SIZES[model])  # which needs torch


def predicted_rate(case: str, name: str) -> float | None:
    """Tokens a second and GPU by `predict`, which knows FSDP alone, and tensor and pipeline parallelism of GPT's
    layers; None for others."""
    model, batch, length, checkpoints, split, _, accumulate = case.split(":")
    if split == "1":
        return fsdp_rate(case, name)
    if "cp" in split or "ep" in split:
        return None
    words, width, layers, heads, groups, inner = sizes_of(model)
    found = cluster(name)
    size = {kind: int(n) for kind, n in re.findall(r"(tp|pp|x)(\d+)", split)}
    tensor, pipeline = size.get("tp", 1), size.get("pp", 1)
    data = found.count // tensor // pipeline
    # A Llama's layer counts as a GPT's that's slower by as much as it has more weights.
    own = 2 * width * width + 2 * width * (width // heads) * (groups or heads) + (3 if groups else 2) * width * inner
    rate = found.device.flops["bfloat16"] * found.device.reached["bfloat16"] * 12 * width * width / own
    if layers % (pipeline * size.get("x", 1)):  # the ends count as a layer each, as in the program
        layers, words = layers + 2, 1
    gpus = predict.Cluster(
        found.count, found.device.flops["bfloat16"], rate, found.device.memory_bytes,
        found.inside.busbw_Bps, found.between.busbw_Bps, found.per_node,
    )  # fmt: skip
    step = predict.parallel_3d(
        predict.Transformer(layers, width, words, int(length), heads), gpus, tensor=tensor, pipeline=pipeline,
        global_batch=int(batch) * int(accumulate) * data, micro_batch=int(batch),
        schedule="interleaved" if "x" in size else "1f1b", chunks=size.get("x", 1),
        recompute={"core": "selective"}.get(checkpoints, checkpoints),
    )  # fmt: skip
    return step.tokens_per_s / found.count


def fsdp_rate(case: str, name: str) -> float:
    """Tokens a second and GPU under FSDP by `predict`: products at the rate that they reach, traffic that hides where
    it can, and all else for nothing."""
    model, batch, length, checkpoints, *_ = case.split(":")
    words, width, layers, heads, groups, inner = sizes_of(model)
    keys = width // heads * (groups or heads)
    attention, products = 2 * width * width + 2 * width * keys, (3 if groups else 2) * width * inner
    copies, used = (8, 2) if model.startswith("mixtral") else (1, 1)  # of the products: held, and passed by a token
    found = cluster(name)
    tokens, device = int(batch) * int(length), found.device
    rate = device.flops["bfloat16"] * device.reached["bfloat16"]
    forward_s = 2 * tokens * (attention + used * products + int(length) * width) / rate
    again = {"none": 0.0, "selective": 0.5, "full": 1.0}[checkpoints]
    head_s = 2 * tokens * words * width / rate
    each = predict.Layer(forward_s, (2 + again) * forward_s, 2 * (attention + copies * products))
    route = links.Route.of(found, range(found.count))

    def gather_s(nbytes: float) -> float:
        return links.seconds("all_gather", nbytes, route)

    def scatter_s(nbytes: float) -> float:
        return links.seconds("reduce_scatter", 2 * nbytes, route)  # in float32

    ends = predict.Layer(head_s, 2 * head_s, 2 * 2 * words * width)
    return tokens / predict.fsdp_step([each] * layers + [ends], gather_s, scatter_s).total_s


def predicted_rows() -> Iterator[Row]:
    """FSDP's published rows, by `predict` alone."""
    with tempfile.TemporaryDirectory() as folder:
        cards = Path(folder) / "cards.toml"
        cards.write_text(CARDS)
        for case in of_class("language_model"):
            name, what = case.inputs["cluster"], case.inputs["case"]
            if case.unit != "ms" and case.role == "validation" and what.split(":")[4] == "1":
                name = f"{cards}:{name}" if name.endswith("-96GB") else name
                yield Row(case.id, fsdp_rate(what, name), case.observed, "/s")


def speed_up_rows() -> Iterator[tuple[Row, Row]]:
    """8 GPUs over one: emulated against published, and predicted against published."""
    ones = {case.inputs["case"] + case.inputs["cluster"][2:]: case for case in cases(1)}
    wanted: dict[str, list[published.Case]] = {}
    for case in cases(8):
        wanted.setdefault(case.inputs["cluster"], []).append(case)
    for name, here in wanted.items():
        kind, names = name[2:], [case.inputs["case"] for case in here]
        alone, together = train(f"1x{kind}", names), train(name, names)
        for case in (case for case in here if case.inputs["case"] in together):
            one = ones[case.inputs["case"] + kind]
            real = case.observed / one.observed
            emulated = together[case.inputs["case"]]["samples_per_s"] / alone[case.inputs["case"]]["samples_per_s"]
            yield Row(case.id, emulated, real, "x"), Row(case.id, predicted_speed_up(case, one.observed), real, "x")


def predicted_speed_up(case: published.Case, one: float) -> float:
    """As lesson 04 predicts published rows: from the rate on one GPU, the bytes of the gradients and the bus."""
    model, precision, batch, _, accumulate = case.inputs["case"].split(":")
    parameters = {"resnet50": 25.557e6, "resnext101": 44.2e6, "bert_large": 336e6, "bert_base": 110e6}[model]
    layers = predict.equal_layers(int(batch) / one, 4 * parameters)
    busbw_Bps = cluster(case.inputs["cluster"]).inside.busbw_Bps
    step = predict.ddp_step(
        layers, lambda nbytes: predict.from_bus_bandwidth(nbytes, busbw_Bps, 8), accumulate=int(accumulate)
    )
    return 8 * int(batch) * int(accumulate) / step.total_s / one


# What the rates of a generation are fitted by. The rest stays as the makers say.
MOST = {"float16": 0.85}  # no product of matrices reaches more: stas00/ml-engineering compute/accelerator, MAMF
GENERATIONS = {
    "V100": ("float32", "float16"),
    "A100": ("tf32", "tf32_conv", "float16"),
    "H100": ("tf32", "tf32_conv", "float16"),
}


def fit(kernels: dict[str, dict[str, Any]]) -> None:
    """Print, for each generation, the part of its peaks that makes the modelled times of its calibration rows come
    closest to the published ones: each rate of arithmetic, and the memory's."""
    for kind, types in GENERATIONS.items():
        device = cluster(f"1x{kind}").device
        rows = [case for case in cases(1, "calibration") if case.inputs["cluster"][2:].startswith(kind)]

        def error(reached: dict[str, float], rows: Any = rows, device: Any = device) -> float:
            times = [modelled_s(kernels[case.inputs["case"]], device, reached) for case in rows]
            per_s = [kernels[case.inputs["case"]]["samples"] / s for case, s in zip(rows, times, strict=True)]
            return sum(math.log(rate / case.observed) ** 2 for rate, case in zip(per_s, rows, strict=True))

        reached = {**dict.fromkeys(types, 0.6), "memory": 0.8}
        step = 0.2
        while step > 1e-3:  # downhill, one rate at a time
            before = error(reached)
            for name in reached:
                tried = [{**reached, name: reached[name] + d} for d in (-step, step)]
                reached = min([reached, *(t for t in tried if 0 < t[name] <= MOST.get(name, 1.0))], key=error)
            if error(reached) == before:
                step /= 2
        print(
            kind,
            {name: round(value, 3) for name, value in reached.items()},
            f"off by {math.sqrt(error(reached) / len(rows)):.1%}",
        )
        for case in rows:
            rate = kernels[case.inputs["case"]]["samples"] / modelled_s(kernels[case.inputs["case"]], device, reached)
            print(
                f"    {case.id:<40}{rate:>10.1f}/s fitted to {case.observed:>8.1f}/s {rate / case.observed - 1:>+7.1%}"
            )


def modelled_s(record: dict[str, Any], device: Device, reached: dict[str, float]) -> float:
    """The time of a step by its kernels: accumulated micro-batches, then the optimizer."""

    def seconds(work: list[Any]) -> float:
        total = 0.0
        for flops, nbytes, what, launches, reordered, count in work:
            dtype, _, conv = what.partition("_")
            kind = "tf32" if dtype == "float32" and "tf32" in reached else dtype
            kind = kind if kind in device.flops else "float32"
            rate = reached.get(kind, 1.0)
            compute_s = flops / (device.flops[kind] * (reached.get(f"{kind}_conv", rate) if conv else rate))
            reached_Bps = device.memory_Bps * reached["memory"]
            longest = max(compute_s, nbytes / reached_Bps, device.launch_s * launches)
            total += count * (longest + reordered / reached_Bps)
        return total

    return float(record["accumulate"] * seconds(record["work"]) + seconds(record["once"]))


def show(rows: Iterator[Row], other: str) -> None:
    found = []
    for row in rows:
        found.append(row)
        print(
            f"{row.what:<58}{row.emulated:>10.2f} {row.unit} emulated {row.other:>10.2f} {row.unit} {other}"
            f" {row.off:>+7.1%}",
            flush=True,
        )
    print(f"median of the sizes {statistics.median(abs(row.off) for row in found):.2%}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        choices=[
            "predict", "published", "changes", "links", "parallel", "language", "plan", "memory", "real", "here", "fit",
        ],
    )  # fmt: skip
    parser.add_argument("--as", dest="kind", default="H100", help="which emulated GPU this machine's is (H100)")
    args = parser.parse_args()
    what = args.what
    if what == "predict":
        show(ddp_rows(), "predicted")
        show(pipeline_rows(), "predicted")
        show(pipeline_rows("lab"), "predicted")
    elif what == "links":
        show(link_rows(), "published")
        print("NVLink 4, fitted, then held out")
        show(collective_rows("calibration"), "published")
        show(collective_rows("validation"), "published")
    elif what == "changes":
        print("fitted, then held out")
        show(change_rows("calibration"), "published")
        show(change_rows("validation"), "published")
    elif what == "language":
        print("fitted, then held out")
        show(language_rows("calibration"), "published")
        show(language_rows("validation"), "published")
        print("schedules, held out")
        show(schedule_rows(), "published")
    elif what == "plan":
        plan()
        print("FSDP's rows by predict, which no GPU's rates between products went into")
        show(predicted_rows(), "published, by predict")
    elif what == "parallel":
        print("fitted, then held out")
        show(parallel_rows("calibration"), "published")
        show(parallel_rows("validation"), "published")
    elif what == "memory":
        rows = list(memory_rows())
        for by in dict.fromkeys(by for _, by in rows):
            show((row for row, other in rows if other == by), by)
        show(reserved_rows(), "published, reserved")
    elif what in ("real", "here"):
        print("fitted, then held out, then memory")
        show(real_rows("calibration", args.kind if what == "here" else ""), "on a real GPU")
        steps = list(real_rows("validation", args.kind if what == "here" else ""))
        for unit in ("ms", "GB"):
            show((row for row in steps if row.unit == unit), "on a real GPU")
    elif what == "fit":
        wanted = list(dict.fromkeys(case.inputs["case"] for case in cases(1, "calibration")))
        fit(train("1xH200", wanted, "--kernels"))
    else:
        for role, words in (
            ("calibration", "fitted"), ("validation", "held out"), ("counterexample", "can't be what they say"),
        ):  # fmt: skip
            print(words)
            show(published_rows(1, role), "published")
        pairs = list(speed_up_rows())
        print("speed-up on 8 GPUs, emulated, then predicted")
        show(iter([emulated for emulated, _ in pairs]), "published")
        show(iter([other for _, other in pairs]), "published, by predict")


if __name__ == "__main__":
    main()
