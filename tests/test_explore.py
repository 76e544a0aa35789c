"""Explorers: each answers from the cost model, at every corner of its settings, and says so in a sentence."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from conftest import ROOT

from course_utils import explore, predict
from course_utils.explore import (
    deadlock_steps,
    fsdp_frames,
    gpu_memory,
    gradient_buckets,
    link_traffic,
    loader_workers,
    pipeline_schedules,
    ring_frames,
    sampler_rule,
    scaling_laws,
)
from course_utils.explore.controls import Control
from course_utils.explore.explorer import Action, Explorer
from course_utils.launching.under_the_cell.live import Known

EXPLORERS = (
    "bits", "buckets", "checkpoints", "deadlock", "fsdp", "links", "loader", "loss_scale", "memory",
    "nodes", "recompute", "ring", "samples", "scaling", "schedules", "staleness", "time_to_accuracy",
)  # fmt: skip


def make(name: str, **settings: Any) -> Explorer:
    return getattr(explore, name)(**settings)  # type: ignore[no-any-return]


def corners(explorer: Explorer) -> list[dict[str, Any]]:
    """Both ends of every setting in many combinations (of menus the first and the last), and a hundred in between."""
    dice = random.Random(0)
    controls = list(explorer.controls.values())

    def known(control: Control) -> list[Any]:
        return list(control.choices.values()) or ([False, True] if isinstance(control.default, bool) else [])

    def some(control: Control) -> Any:
        between = dice.uniform(control.low, control.high)
        return dice.choice(known(control)) if known(control) else round(between) if control.whole else between

    ends = [known(control)[:: len(known(control)) - 1] if known(control) else [control.low, control.high]
            for control in controls]  # fmt: skip
    grid = list(itertools.product(*ends))
    rows = dice.sample(grid, min(64, len(grid))) + [tuple(map(some, controls)) for _ in range(100)]
    return [dict(zip(explorer.controls, row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_setting_gives_a_picture_with_its_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    explorer, took = make(name), []
    for settings in corners(explorer):
        explorer.set(**settings)
        for answered in (True, False):
            start = time.process_time()
            view = explorer.view(answered)
            took.append(time.process_time() - start)
            picture = ElementTree.fromstring(view.svg)  # well formed
            assert picture.attrib["role"] == "img" and picture.attrib["aria-label"] == view.summary, settings
            assert not re.search(r"nan|inf\b|None", view.svg + view.summary), settings
            assert len(view.svg) < 100_000, settings
            named = set(re.findall(r"url\(#([^)]+)\)", view.svg))
            assert named == set(re.findall(r"<pattern id='([^']+)'", view.svg)), "a hatch that isn't there"
    with capsys.disabled():  # it should be under 100
        print(
            f"\n  explore.{name}: a redraw takes {1e3 * statistics.median(took):.1f} ms, at most {1e3 * max(took):.0f}"
        )


# What the explorers say, kept so that a change of model or words is seen.
STORED = [
    ("bits", {}, "bf16 stores 1.003 as 1, 0.3% off. The next number is 0.0078125 away"),
    ("bits", {"format": "fp16", "number": "70,000"}, "fp16 makes 70000 infinite."),
    ("bits", {"format": "fp16", "number": 1e-8}, "fp16 makes 1e-08 zero."),
    ("bits", {"format": "fp8 e4m3", "number": "inf"}, "fp8 e4m3 makes infinity its largest number, 448."),
    ("bits", {"format": "fp8 e5m2", "number": "-2^-16"}, "fp8 e5m2 stores −1.52587891e-05 exactly."),
    ("bits", {"format": "fp16", "number": "0b0111110000000001"}, "These bits of fp16 are NaN, not a number."),
    ("buckets", {}, "passes 25 MiB: 68% of the communication is hidden, a step takes 50.1 ms; 16 MiB"),
    ("buckets", {"bucket_mb": 500, "link": "Ethernet 25 Gb/s: 2.5 GB/s"}, "1 bucket of 192 MiB: 0% of the"),
    ("buckets", {"bucket_mb": 1, "layers": 1}, "1 bucket of 4 MiB: 0% of the communication is hidden"),
    ("checkpoints", {}, "A failure every 3.1 h, and 60 s for a save: every 60 min loses 21% of the time. Young's"),
    ("checkpoints", {"minutes": 1440, "failures": 200}, "every 24 h loses 100% of the time. Young's interval is"),
    ("deadlock", {}, "Rank 0 waits in send for a recv of rank 1; rank 1 waits in send for a recv of rank 0."),
    ("deadlock", {"step": 5}, "Nothing has moved since step 1, and nothing ever will."),
    ("deadlock", {"step": 0}, "Move on to see how it ends, at step 1."),
    ("deadlock", {"step": 8, "rank0_1": "isend"}, "Every call met its partner."),
    ("deadlock", {"step": 8, "rank0_1": "wait"}, "Nothing has moved since step 3, and"),
    ("fsdp", {}, "Every rank holds its part of each block, and nothing else. A rank holds 0.25 times"),
    ("fsdp", {"moment": 2}, "while block 1 is gathered. A rank holds 0.75 times the weights; at most 0.75 in forward"),
    ("fsdp", {"blocks": 1, "ranks": 2, "moment": 19}, "1 times the weights; at most 2.5 in forward, 2.5 in"),
    ("links", {}, "Through GPU 0 pass 24.0 MiB in DataParallel, 17.5 in DDP: 1.4 times as much."),
    ("links", {"by": "copies"}, "84.1 MiB in DataParallel, 17.5 in DDP: 4.8 times as much. As copies the weights"),
    ("links", {"batch": 1}, "10.9 MiB in DataParallel, 17.5 in DDP: 0.6 times as much. So few outputs make it less"),
    ("loader", {}, "3 workers would hide the loading: after the first batch the GPU would never wait."),
    ("loader", {"workers": 3}, "300 ms for the first batch. 3 workers are just enough"),
    ("loader", {"workers": 8, "load_ms": 10}, "1 worker would do: more of them only fill the queue."),
    ("loader", {"workers": 8, "cores": 1}, "On 1 core no number of workers loads as fast as the GPU computes."),
    ("loss_scale", {}, "Times 2^0, 34% become zero, 66% lose digits, 0% become infinite. From 2^15 to 2^25 nothing"),
    ("loss_scale", {"scale": 40}, "0% become zero, 0% lose digits, 59% become infinite, and one is enough to skip"),
    ("memory", {}, "Each GPU holds 154 GB (weights 15 GB, gradients 15 GB, optimizer 90 GB, activations 33.5 GB),"),
    ("memory", {"stage": 1}, "(weights 15 GB, gradients 15 GB, optimizer 11.2 GB, activations 33.5 GB), which is too"),
    ("memory", {"stage": 3, "gpus": 64, "recompute": "full"}, "which fits, and leaves"),
    ("memory", {"gpus": 12, "tensor": 8}, "12 GPUs don't divide into groups of 8 x 1: take a multiple of 8"),
    ("nodes", {}, "On 8 nodes the sum takes 15.5 ms and is longer than backward's 12 ms: 64 GPUs are 53.7 times"),
    ("nodes", {"nodes": 64, "link": "efa400"}, "hides behind backward's 12 ms: 512 GPUs are 512 times as fast as one"),
    ("recompute", {}, "48 layers in 7 segments: 15% of the memory, at most 1.33 times the time. Least is held with 24"),
    ("recompute", {"layers": 4, "segments": 5}, "4 layers divide into at most 4 segments"),
    ("ring", {}, "In all 6 steps a rank sends 2(n-1)/n = 1.5 times its tensor: less than 2"),
    ("ring", {"ranks": 8, "step": 14}, "8 of 8 chunks complete. In all 14 steps a rank sends 2(n-1)/n = 1.75"),
    ("samples", {}, "Each epoch has 2 extra copies, and every epoch has a new order."),
    ("samples", {"drop_last": True}, "Each epoch skips 2 of 10 images"),
    ("samples", {"images": 9, "drop_last": True}, "Close: one is skipped, but in each epoch it's another one."),
    ("samples", {"images": 9, "drop_last": True, "set_epoch": False}, "✓ Solved. Nobody ever sees image 6:"),
    ("samples", {"images": 9, "drop_last": True, "shuffle": False}, "✓ Solved. Nobody ever sees image 8:"),
    ("samples", {"images": 1, "ranks": 8, "drop_last": True}, "With `drop_last` and fewer images than ranks"),
    ("scaling", {}, "the same job is done 15.4 times as fast, and one that grows with the GPUs does 60.8 times"),
    ("scaling", {"serial": 5}, "However many there are, the serial share allows no more than 20.0 times."),
    ("scaling", {"talk": 5, "latency": 0.05}, "Beyond about 32 GPUs each further one makes it slower"),
    ("scaling", {"money": True}, "128 GPUs have the result first, after 30.3 h, at a price of 7,"),
    ("scaling", {"money": True, "hours": 1e5}, "no number of GPUs meets the deadline. 64 GPUs miss it by"),
    ("schedules", {}, "1F1B: a step takes 33 times one micro-batch's forward, 27% of it bubble. The first stage"),
    ("schedules", {"schedule": "gpipe"}, "27% of it bubble. The first stage holds the activations of 8 micro-batches"),
    ("schedules", {"slow": 1.5}, "Stage 1 sets the pace: 27% longer than with equal stages."),
    ("schedules", {"schedule": "interleaved", "micro_batches": 7}, "in multiples of the 4 stages"),
    ("staleness", {}, "4 trainers, learning rate 0.02: 20.5% right in the end. Its gradients were 2.4 updates old."),
    ("staleness", {"trainers": 8, "lr": 0.1}, "the loss diverged."),
    ("time_to_accuracy", {"batch": 512, "gpus": 64}, "On 64 GPUs batch 512 is predicted to be there first"),
    ("time_to_accuracy", {"batch": 512, "lr": 0.03}, "60% not within 10,000 images."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "said"), STORED)
def test_what_an_explorer_says(name: str, settings: dict[str, Any], said: str) -> None:
    assert said in make(name, **settings).view().summary.replace("It ", "it ")


def test_the_buckets_are_those_of_the_cost_model() -> None:
    explorer = make("buckets")
    for settings in corners(explorer):
        step = gradient_buckets.predicted(settings)
        layers = [gradient_buckets.LAYER_BYTES] * settings["layers"]
        assert len(step.bucket_bytes) == len(predict.buckets(layers, settings["bucket_mb"] * 2**20))
        ring = 2 * 7 / 8 * sum(layers) / gradient_buckets.LINKS[settings["link"]][1].bandwidth_Bps
        assert step.communication_s >= ring
        best = min(gradient_buckets.predicted(settings, mb).total_s for mb in gradient_buckets.sizes(settings))
        assert best <= step.total_s * 1.000001, "every number of layers is among the sizes, so nothing beats their best"


def test_the_memory_is_that_of_the_papers() -> None:
    explorer = make("memory")
    seen = 0
    for settings in corners(explorer):
        try:
            held = gpu_memory.held(settings)
        except ValueError:
            continue
        seen += 1
        t, p = settings["tensor"], settings["pipeline"]
        s, b, h, a = settings["seq"], settings["batch"], held.hidden, held.hidden / 128
        # Korthikanti et al., table 2: s b h (34 + 5 a s / h) / t, and its rows below; twice as much in fp32
        each = {"none": (34 + 5 * a * s / h) / t, "selective": 34 / t, "full": 2.0}[settings["recompute"]]
        wide = 2 if settings["precision"] == gpu_memory.FP32 else 1
        again = (34 + 5 * a * s / h) / t if settings["recompute"] == "full" else 0  # of the layer that's recomputed
        assert held.stages[0]["activations"] == pytest.approx(wide * s * b * h * (each * held.layers + again))
        # Tensor and pipeline parallelism divide weights, gradients and optimizer; ZeRO what its stage says.
        replicas, params = settings["gpus"] // (t * p), 1e9 * settings["params_B"] / (t * p)
        of_each = gpu_memory.PRECISIONS[settings["precision"]]
        for kind, nbytes, stage in zip(("weights", "gradients", "optimizer"), of_each, (3, 2, 1), strict=True):
            share = params / replicas if settings["stage"] >= stage else params
            assert held.stages[0][kind] == pytest.approx(nbytes * share), kind
        if settings["precision"].startswith("mixed: 2 + 2"):
            traffic = predict.zero_traffic(params, replicas, settings["stage"])
            assert [*held.sent.values()][0] == pytest.approx(traffic)
    assert seen > 20


@pytest.mark.parametrize("stage", [3, *(pytest.param(s, marks=pytest.mark.slow) for s in (0, 1, 2))])
def test_an_emulated_training_holds_what_the_formulas_say(stage: int) -> None:
    """Of each kind; the activations' formula forgets a few small tensors, whatever the stage."""
    settings = {**make("memory", params_B=0.3, gpus=16, stage=stage, batch=4).values}
    predicted, emulated = gpu_memory.held(settings), gpu_memory.run_memory(settings)
    for kind, one in predicted.stages[0].items():
        # Stage 1 deals out whole tensors, stage 2 keeps more than the whole weights: its shard, and a buffer. And small
        # shards get blocks that are up to a MiB larger.
        allowed = {("optimizer", 1): 0.5, ("weights", 2): 0.25}.get((kind, stage), 0.08)
        assert emulated.get(kind, 0) == pytest.approx(one, rel=allowed), kind
    view = gpu_memory.render(settings, {"emulated": emulated})
    assert "Emulated: " in view.summary and "○ emulated" in view.svg and "difference" in view.svg


def test_what_can_not_be_emulated_says_why() -> None:
    emulate = make("memory").actions[0]
    for settings, said in (({"tensor": 2}, "neither tensor"), ({"pipeline": 2}, "nor a pipeline"),
                           ({"precision": gpu_memory.FP32_GRADIENTS}, "are Megatron's own"), ({}, "")):  # fmt: skip
        refused = emulate.refusal(make("memory", **settings).values)
        assert said in refused and bool(refused) == bool(settings)
    assert all(emulate.seconds(settings) < 45 for settings in corners(make("memory")))


def test_the_moments_of_fsdp_are_those_of_the_cost_model() -> None:
    """What runs while a block computes, in the order of `predict.fsdp_step`; it gathers the last block again while it
    still computes, and torch when it has been dropped."""
    for blocks, keep in itertools.product((1, 2, 5), (False, True)):
        layers = [predict.Layer(1.0, 2.0, 1.0)] * blocks
        step = predict.fsdp_step(layers, lambda _: 0.5, reshard_after_forward=not keep)
        computing = {label: (start, end) for _, start, end, what, label in step.spans if what == "compute"}
        frames = fsdp_frames.order(blocks, keep)
        assert [f.name for f in frames if f.computing is not None] == list(computing)
        for f in (f for f in frames if f.computing is not None):
            low, high = computing[f.name]
            beside = {label for _, start, end, what, label in step.spans
                      if what == "communication" and low <= start < high}  # fmt: skip
            if f.name == f"F{blocks - 1}":
                beside = set()
            mine = {f"gather {f.arriving}"} if f.arriving is not None else set()
            mine |= {f"scatter {f.leaving}"} if f.leaving is not None else set()
            assert mine == beside, (blocks, keep, f.name)


@pytest.mark.parametrize("keep", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_memory_of_fsdp_is_that_of_the_real_one(keep: bool) -> None:
    """The fullest moments of the real fully_shard on modelled GPUs."""
    for ranks, blocks in ((4, 4), (2, 1)):
        settings = {**make("fsdp").values, "ranks": ranks, "blocks": blocks, "keep": keep}
        emulated, moments = fsdp_frames._run(settings), fsdp_frames.order(blocks, keep)
        for phase, held in emulated.items():
            assert held == pytest.approx(fsdp_frames.peak(moments, phase, ranks, blocks), rel=0.01), (ranks, phase)
        assert "○" not in (said := fsdp_frames.render(settings, {"emulated": emulated})).summary
        assert "Emulated: " in said.summary


def test_real_ranks_hold_what_the_ring_says() -> None:
    settings = make("ring", ranks=3, step=2).values
    ran = ring_frames._run(settings)
    assert [[[{r for r in range(3) if bits >> r & 1} for bits in rank] for rank in step] for step in ran] == [
        [[set(chunk) for chunk in rank] for rank in step] for step in predict.ring_held(3)
    ]
    assert "✓ 3 real ranks held just this" in ring_frames.render(settings, {"measured": ran}).svg
    ran[2][1][0] += 1
    assert "✗ real ranks held something else" in ring_frames.render(settings, {"measured": ran}).svg


def test_the_schedules_are_those_of_the_papers() -> None:
    """Bubble over ideal time: (p - 1) / m of 1F1B and GPipe, (p - 1) / (v m) interleaved (Narayanan et al., arXiv
    2104.04473, sections 2.1 and 2.2; their figure 4 has p = 4, m = 8, v = 2: 3/8 and 3/16). Held: m, p, and p - 1 more
    chunks when interleaved: 1 + (p - 1) / (p v) times as much (arXiv 2205.05198, section 4.2.3)."""
    for p, m in ((4, 8), (8, 16), (2, 4)):
        runs = {
            name: pipeline_schedules.simulated(make("schedules", schedule=name, stages=p, micro_batches=m).values)
            for name in pipeline_schedules.SCHEDULES.values()
        }
        v, ideal = pipeline_schedules.CHUNKS, 3.0 * m
        for name, bubble in (("gpipe", (p - 1) / m), ("1f1b", (p - 1) / m), ("interleaved", (p - 1) / (v * m))):
            assert runs[name].total_s / ideal - 1 == pytest.approx(bubble), name
        # ZB-H1: (p - 1) (F + I - W) with F = I = W (arXiv 2401.10241, table 2)
        assert runs["zero-bubble"].total_s / ideal - 1 == pytest.approx((p - 1) / ideal)
        assert [runs[name].peak_bytes[0] for name in ("gpipe", "1f1b")] == [m, p]
        assert runs["interleaved"].peak_bytes[0] == pytest.approx(p * (1 + (p - 1) / (p * v)))


@pytest.mark.parametrize(
    "name", ["1f1b", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpipe", "interleaved", "zero-bubble"))]
)
def test_the_schedules_of_torch_take_what_is_predicted(name: str) -> None:
    values = make("schedules", schedule=name, stages=2, micro_batches=4, slow=1.5).values
    assert not pipeline_schedules.refusal(values)
    ran = pipeline_schedules.run_schedule(values)
    assert ran["step_s"] == pytest.approx(ran["predicted_s"], rel=0.06)
    assert ran["bubble"] == pytest.approx(ran["predicted_bubble"], abs=0.05)
    view = pipeline_schedules.render(values, {"emulated": ran})
    assert "Emulated: " in view.summary and "blue is busy" in view.svg


@pytest.mark.parametrize(
    ("params", "layers", "hidden"), [(175e9, 96, 12288), (7.5e9, 34, 4352), (1e8, 6, 1024), (1e12, 174, 22016)]
)
def test_layers_and_width_are_near_those_of_published_models(params: float, layers: int, hidden: int) -> None:
    found = gpu_memory.shape(params)
    assert abs(found[0] - layers) <= 2 and abs(found[1] - hidden) <= 256
    assert 12 * found[0] * found[1] ** 2 == pytest.approx(params, rel=0.1)


def test_images_are_dealt_as_torch_deals_them() -> None:
    from torch.utils.data import DistributedSampler

    for images, ranks, epoch in itertools.product((1, 2, 3, 9, 10, 23, 40), range(1, 9), (0, 1, 3)):
        for shuffle, drop_last in itertools.product((True, False), repeat=2):
            real = []
            for rank in range(ranks):
                data: Any = range(images)
                sampler = DistributedSampler(data, ranks, rank, shuffle=shuffle, drop_last=drop_last)
                sampler.set_epoch(epoch)
                real.append(list(sampler))
            assert sampler_rule.dealt(images, ranks, epoch, shuffle=shuffle, drop_last=drop_last) == real


def test_two_ranks_meet_as_the_rule_says() -> None:
    """How some lists end. The test below runs the patterns of the menu on real ranks."""
    ends = {
        ("send recv", "recv send"): {}, ("isend recv wait", "isend recv wait"): {}, ("isend", "recv"): {},
        ("isend recv", "send recv"): {}, ("send send", "irecv irecv wait"): {}, ("barrier", "barrier"): {},
        ("send recv", "send recv"): {0: 0, 1: 0}, ("recv", ""): {0: 0}, ("irecv wait", "recv"): {0: 1, 1: 0},
        ("all_reduce send", "recv all_reduce"): {0: 0, 1: 0}, ("barrier", "all_reduce"): {0: 0, 1: 0},
        ("isend all_reduce wait", "all_reduce recv"): {}, ("wait", "barrier"): {1: 0},
    }  # fmt: skip
    for (one, two), stands in ends.items():
        end = deadlock_steps.frames([one.split(), two.split()])[-1]
        assert {rank: end[rank].called - 1 for rank in deadlock_steps.stuck(end)} == stands, (one, two)
    dice = random.Random(0)
    for _ in range(3000):
        both = [[dice.choice(deadlock_steps.CALLS) for _ in range(deadlock_steps.ROWS)] for _ in range(2)]
        assert len(deadlock_steps.frames(both)) - 1 <= deadlock_steps.STEPS, both


@pytest.mark.slow
@pytest.mark.parametrize("pattern", deadlock_steps.PATTERNS)
def test_real_ranks_end_or_hang_as_the_steps_say(pattern: str) -> None:
    explorer = make("deadlock", pattern=pattern, step=deadlock_steps.STEPS)
    explorer.keep(explorer._key, "measured", explorer.actions[0].run(explorer.values))
    assert explorer.view().summary.endswith("as the model says.")


def test_scaling_is_that_of_the_laws() -> None:
    explorer = make("scaling")
    for settings in corners(explorer):
        n, serial = settings["gpus"], settings["serial"] / 100
        silent = {**settings, "talk": 0}
        assert scaling_laws.strong(silent, n) == pytest.approx(predict.amdahl(n, serial))
        assert scaling_laws.weak(silent, n) == pytest.approx(predict.gustafson(n, serial))
        ring = predict.ring_factor("all_reduce", n) * settings["talk"] + 2 * (n - 1) * settings["latency"]
        slower = 1 / predict.amdahl(n, serial) + ring / 100 * (settings["talk"] > 0)
        assert scaling_laws.strong(settings, n) == pytest.approx(1 / slower)
    explorer = make("scaling", money=True)
    for settings in corners(explorer):
        done = {n: scaling_laws.done_h(settings, n) for n in scaling_laws.COUNTS}
        met = scaling_laws.fewest(settings)
        assert (met.gpus if met else None) == next((n for n in done if done[n] <= settings["deadline"]), None)
        if met:
            assert met.price == pytest.approx(scaling_laws.price(settings, met.gpus))
            assert met.hours == pytest.approx(done[met.gpus])


def test_what_one_gpu_sends_another_receives() -> None:
    explorer = make("links")
    for settings in corners(explorer):
        ports, n = link_traffic.data_parallel(settings), settings["gpus"]
        for kind in link_traffic._LOOKS:
            sent, received = (sum(port[side].get(kind, 0.0) for port in ports) for side in (0, 1))
            assert sent == pytest.approx(received), (kind, settings)
        weights, inputs, outputs = link_traffic.sizes(settings)
        first = predict.data_parallel_traffic(n, weights, inputs, outputs, by=settings["by"])
        assert link_traffic.through(ports[0]) == pytest.approx(first.total_bytes)
        assert link_traffic.through(link_traffic.ddp(settings)[0]) == pytest.approx(4 * (n - 1) / n * weights)


def test_the_loader_is_that_of_the_cost_model() -> None:
    explorer = make("loader")
    for settings in corners(explorer):
        run, needed = loader_workers.epoch(settings), loader_workers.enough(settings)
        step_s = settings["step_ms"] / 1e3 + loader_workers.copy_s(settings)
        assert run.total_s == pytest.approx(run.wait_s + loader_workers.BATCHES * step_s)
        if settings["workers"]:
            ready = [number for _, number in loader_workers.waiting_batches(run.spans)]
            assert min(ready) == 0 == ready[-1] and max(ready) <= 2 * settings["workers"]
        if needed and needed <= settings["workers"] <= settings["cores"]:
            assert run.wait_s == pytest.approx(run.first_batch_s), "only the first batch can't be hidden"
    published = 10 * 100 * 2**20 / loader_workers.PAGEABLE_BPS
    assert published == pytest.approx(0.646 - 0.459), "data/published.json: copy-a100-pageable"


def test_a_setting_that_can_not_be_says_what_can() -> None:
    for name, settings, said in (
        ("samples", {"ranks": 9}, "ranks is a whole number from 1 to 8; got 9"),
        ("samples", {"ranks": 2.5}, "ranks is a whole number; got 2.5"),
        ("samples", {"ranks": True}, "ranks is a whole number from 1 to 8; got True"),
        ("samples", {"shuffle": 1}, "shuffle is True or False; got 1"),
        ("memory", {"stage": 4}, "stage can be 0, 1, 2, 3; got 4"),
        ("memory", {"params_B": float("nan")}, "params_B is a number from 0.1 to 1000 billion; got nan"),
        ("scaling", {"money": "yes"}, "money is True or False; got 'yes'"),
        ("buckets", {"bucket": 4}, "no setting 'bucket'; there are bucket_mb, link, layers"),
        ("buckets", {"link": "string"}, "link can be 'NVLink 3: 235 GB/s'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="^" + re.escape(said)):
            make(name, **settings)
    assert make("memory", stage="3: + weights (FSDP)").values["stage"] == 3


def test_every_guess_gets_an_answer() -> None:
    right: dict[str, str | None] = {}
    for name in EXPLORERS:
        question = make(name).question
        if question is None:
            continue
        answers = {guess: question.judge(guess) for guess in (*question.choices, None)}
        assert sum(said.startswith("Yes") for said in answers.values()) == 1
        assert sum(said.startswith("Not this time.") for said in answers.values()) == len(question.choices) - 1
        right[name] = next(guess for guess, said in answers.items() if said.startswith("Yes"))
    assert make("memory", stage=3).question is None, "whoever sets something has a question of their own"
    assert {"buckets", "deadlock", "fsdp", "links", "loader", "ring", "scaling", "schedules"} < set(right)
    assert right["memory"] == "stage 2: + gradients" and right["bits"] == "1, as before"
    assert right["loss_scale"] == "more of them late" and right["time_to_accuracy"].startswith("about five times")
    assert right["recompute"].startswith("24") and right["checkpoints"] == "every 20 minutes"
    assert right["staleness"] == "about twice as many"


class Widgets:
    """The page of an explorer, as a front end would drive it."""

    def __init__(self, explorer: Explorer):
        from course_utils.explore.explorer import _Page

        self.page = _Page(explorer)

    def of(self, label: str) -> Any:
        return next(box for box in self.page.inputs if box.description.startswith(label))


def test_nothing_shows_before_the_guess_and_controls_move_the_picture() -> None:
    explorer = make("buckets")
    widgets = Widgets(explorer)
    shown = widgets.page.picture
    assert "Your guess first" in shown.value and "hidden, a step takes" not in shown.value
    assert all(box.disabled for box in [*widgets.page.buttons, *widgets.page.inputs])
    guess = next(box for box in widgets.page.box.children if box.description == "Guess")
    guess.value = gradient_buckets.ONE
    assert "68% of the communication is hidden" in shown.value and guess.disabled
    widgets.of("bucket size").value = 500
    assert "1 bucket of 192 MiB" in shown.value
    assert widgets.page.inputs[1].value == pytest.approx(500), "the slider follows"
    widgets.of("bucket size").value = 1e9
    assert widgets.of("bucket size").value == 500 and "from 1 to 500 MiB; you typed 1e+09" in widgets.page.said.value
    widgets.of("layers").value = 2.5
    assert widgets.of("layers").value == 2 == explorer.values["layers"]
    assert "layers: a whole number from 1 to 100; you typed 2.5" in widgets.page.said.value
    widgets.of("layers").value = 48
    widgets.page.inputs[1].value = 10**1.4  # and the box follows the slider, in round numbers
    assert widgets.of("bucket size").value == 25 and "7 buckets" in shown.value
    widgets.of("bucket size").value = 24
    widgets.page.inputs[1].value = 10**1.4  # as near as its steps come: nobody moved it
    assert widgets.of("bucket size").value == 24
    widgets.of("bucket size").value = 25
    widgets.of("link").value = "Ethernet 25 Gb/s: 2.5 GB/s"
    assert "a step takes 160 ms" in shown.value


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_slider_that_cannot_stand_on_a_value_leaves_it_alone(name: str) -> None:
    """A front end moves a slider to the nearest place it has, and tells that as if somebody had moved it."""
    explorer = make(name)
    widgets = Widgets(explorer)
    dice = random.Random(0)
    sliders = [
        (box, slider) for box, slider in itertools.pairwise(widgets.page.inputs)
        if type(slider).__name__ in ("FloatSlider", "FloatLogSlider")
    ]  # fmt: skip
    for box, slider in sliders:
        control = next(c for c in explorer.controls.values() if box.description.startswith(c.label))
        between = dice.uniform(control.low, control.high)
        for value in (box.value, round(between) if control.whole else between):
            box.value = value
            place = (math.log(value, control.base) if control.base else value) - slider.min
            nearest = slider.min + round(place / slider.step) * slider.step
            slider.value = control.base**nearest if control.base else nearest
            assert box.value == explorer.values[control.name] == value, f"{control.name}: {slider.value}"


def test_a_setting_that_does_nothing_is_grey() -> None:
    widgets = Widgets(make("samples"))
    assert not widgets.of("set_epoch").disabled
    widgets.of("shuffle").value = False
    assert widgets.of("set_epoch").disabled and not widgets.of("drop_last").disabled
    widgets.of("shuffle").value = True
    assert not widgets.of("set_epoch").disabled


def wait(page: Any) -> None:
    page.thread.join(20)
    assert not page.thread.is_alive()


def test_a_button_draws_over_the_prediction_can_be_stopped_and_may_fail() -> None:
    outcomes: list[Any] = []

    def run(values: Any) -> Any:
        from course_utils.launching.under_the_cell.live import LiveView

        if outcomes:
            raise outcomes.pop()
        view = LiveView(quiet=True)  # as a launch has one
        while forever:
            view.tick(lambda: Known("2 ranks run"))
        return {
            "spans": [(0, 0.0, 1.0, "compute", "forward")],
            "step_s": 1.0,
            "buckets": 7,
            "nbytes": 1e6,
            "where": "here",
        }

    forever = False
    action = Action(
        "Run here", "measured", run, lambda values: 3, "why", lambda values: "no layers" * (values["layers"] < 2)
    )
    explorer = Explorer(
        "", gradient_buckets.CONTROLS, gradient_buckets.render, given={}, leaves_out="much", actions=[action]
    )
    widgets = Widgets(explorer)
    (button,) = widgets.page.buttons
    assert button.description == "Run here (about 3 s)" and not button.disabled
    button.click()
    wait(widgets.page)
    assert (
        "done, and drawn in the picture" in widgets.page.said.value
        and "Measured, on here" in widgets.page.picture.value
    )
    widgets.of("layers").value = 10
    assert "Measured" not in widgets.page.picture.value, "it belongs to other settings"
    assert "shows again when you go back" in widgets.page.said.value
    widgets.of("layers").value = 1
    assert button.disabled and button.tooltip == "no layers"
    assert "Not at these settings: no layers." in widgets.page.what.value
    widgets.of("layers").value = 48
    assert "Measured" in widgets.page.picture.value
    forever = True
    button.click()
    assert button.description == "Stop" and not button.disabled
    button.click()
    wait(widgets.page)
    assert "stopped." in widgets.page.said.value and button.description.startswith("Run here")
    outcomes.append(ValueError("no such <link>"))
    button.click()
    wait(widgets.page)
    assert "Run here failed: no such &lt;link&gt;" in widgets.page.said.value and not button.disabled


@pytest.mark.parametrize("name", EXPLORERS)
def test_without_a_kernel_it_is_a_sentence_and_a_static_picture(name: str) -> None:
    explorer = make(name)
    bundle = explorer._repr_mimebundle_()
    assert sorted(bundle) == ["text/html", "text/plain"], "a widget would be dead where nothing runs"
    assert explorer.view().summary in bundle["text/plain"] and "Settings: " in bundle["text/plain"]
    assert re.search(r'<img alt="[^"]{40,}" src="data:image/svg\+xml;base64,', bundle["text/html"])


def test_jupyterlab_gets_a_picture_for_when_the_controls_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/test_browser.py sees it. Where no Jupyter server keeps the notebook, as for the book, it's one picture."""
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("course_utils.explore.explorer.notebook_kernel", lambda: "a kernel")
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    explorer = make("ring")
    with pytest.raises(NotImplementedError):  # IPython takes the bundle
        explorer._ipython_display_()
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/notebooks/10_sharded_training.ipynb")
    explorer._ipython_display_()
    controls, after = shown
    assert "application/vnd.jupyter.widget-view+json" in controls and sorted(after) == ["text/html", "text/plain"]
    assert controls["text/html"] in after["text/html"] and "run the notebook's first cells" in after["text/html"]
    assert "<div class='course-still' style='display:none'>" in after["text/html"], "hidden wherever nothing shows it"


def test_the_import_is_light_and_needs_neither_torch_nor_widgets_nor_matplotlib() -> None:
    code = (
        "import sys\nfrom course_utils import explore\nfor name in explore.__all__: str(getattr(explore, name)())\n"
        "print([m for m in ('torch', 'ipywidgets', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert answer.stdout.strip() == "[]", answer.stdout + answer.stderr
    assert explore.__all__ == list(EXPLORERS)
    with pytest.raises(AttributeError, match=f"no explorer 'string'; there are {', '.join(EXPLORERS)}"):
        _ = explore.string


def test_notebooks_keep_no_widgets() -> None:
    """Their state would be dead weight, and shown in place of the picture."""
    for path in [
        path for folder in ("notebooks", "solutions", "exercises") for path in (ROOT / folder).glob("*.ipynb")
    ]:
        assert "widgets" not in json.loads(path.read_text())["metadata"], path.name
