"""What must hold in the cost model for any numbers: closed forms, limits, conservation, and one clear error for a bad
argument."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import pytest

from course_utils import predict
from course_utils.predict import constants
from course_utils.predict.memory import zero_memory
from course_utils.predict.scaling import AmdahlFit

GB = 1e9


# --- scaling


def test_amdahl_and_gustafson_at_their_limits():
    assert predict.amdahl(1, 0.3) == predict.gustafson(1, 0.3) == 1
    assert predict.amdahl(8, 0) == predict.gustafson(8, 0) == 8
    assert predict.amdahl(10**9, 0.1) == pytest.approx(10)
    assert predict.amdahl(4, 0.1) == pytest.approx(1 / (0.1 + 0.9 / 4))
    assert predict.gustafson(64, 0.05) == pytest.approx(64 - 0.05 * 63)
    assert predict.efficiency(6, 8) == 0.75


def test_the_serial_part_comes_back_from_runs_that_have_it():
    times = {n: 2.0 + 8.0 / n for n in (1, 2, 4, 8)}
    fit = predict.fit_amdahl(times)
    assert (fit.serial, fit.worst) == (pytest.approx(0.2), pytest.approx(0, abs=1e-9))
    assert fit.speedup(8) == pytest.approx(predict.amdahl(8, 0.2))
    assert predict.karp_flatt(times[1] / times[4], 4) == pytest.approx(0.2)
    noisy = predict.fit_amdahl({n: t * f for (n, t), f in zip(times.items(), (1.02, 0.98, 1.01, 0.99), strict=True)})
    assert noisy.serial == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("times, serial", [({1: 8.0, 2: 3.9, 4: 1.9}, 0.0), ({1: 1.0, 2: 1.1, 4: 1.2}, 1.0)])
def test_a_fit_never_has_a_part_below_zero(times, serial):
    fit = predict.fit_amdahl(times)
    assert isinstance(fit, AmdahlFit)
    assert fit.serial == pytest.approx(serial) and min(fit.serial_s, fit.split_s) >= 0


def test_the_slowest_of_many_is_later_than_the_slowest_of_few():
    factors = [predict.slowest_of(n, 0.01) for n in (1, 2, 8, 128, 16_384)]
    assert factors == sorted(factors) and factors[0] == 1
    assert factors[2] == pytest.approx(
        1 + 0.01 * 1.4236, abs=2e-4
    )  # the exact expectation for 8, from tables of normal order statistics
    assert predict.slowest_of(8, 0) == 1


# --- collectives

LINK = predict.Link(10e-6, 10 * GB)


def test_a_ring_all_reduce_is_its_two_halves_and_nothing_alone():
    n, size = 8, 64e6
    ring = predict.ring_all_reduce(n, size, LINK)
    assert ring == pytest.approx(2 * (n - 1) * (LINK.latency_s + size / n / LINK.bandwidth_Bps))
    assert ring == pytest.approx(predict.reduce_scatter(n, size, LINK) + predict.all_gather(n, size, LINK))
    for collective in (
        predict.ring_all_reduce,
        predict.tree_all_reduce,
        predict.all_gather,
        predict.reduce_scatter,
        predict.broadcast,
    ):
        assert collective(1, size, LINK) == 0


def test_a_tree_wins_with_many_ranks_and_few_bytes_only():
    assert predict.tree_all_reduce(256, 1e3, LINK) < 0.1 * predict.ring_all_reduce(256, 1e3, LINK)
    assert predict.all_reduce(256, 1e3, LINK) == predict.tree_all_reduce(256, 1e3, LINK)
    assert predict.tree_all_reduce(2, 1e9, LINK) == pytest.approx(predict.ring_all_reduce(2, 1e9, LINK))


def test_a_hierarchy_spares_the_slow_link():
    inside, between = predict.Link(1e-6, 200 * GB), predict.Link(5e-6, 10 * GB)
    flat = predict.ring_all_reduce(32, 1e9, between)
    assert predict.hierarchical_all_reduce(4, 8, 1e9, inside, between) < 0.2 * flat
    assert predict.hierarchical_all_reduce(1, 8, 1e9, inside, between) == pytest.approx(
        predict.ring_all_reduce(8, 1e9, inside)
    )
    assert predict.hierarchical_all_reduce(4, 1, 1e9, inside, between) == pytest.approx(
        predict.all_reduce(4, 1e9, between)
    )


def test_broadcast_pipelines_long_messages():
    wire = 1e9 / LINK.bandwidth_Bps
    assert wire < predict.broadcast(16, 1e9, LINK) < 1.1 * wire
    assert predict.broadcast(16, 1e9, LINK, "tree") == pytest.approx(4 * LINK.send_s(1e9))
    assert predict.broadcast(2, 1e6, LINK) == pytest.approx(LINK.send_s(1e6))


def test_bus_bandwidth_is_that_of_nccl_tests():
    # 8 x A100, 16 GiB in 127,997 us: the table prints 234.89 GB/s (stas00/ml-engineering network/README.md).
    assert predict.bus_bandwidth(17179869184, 127_997e-6, 8) / GB == pytest.approx(234.89, abs=0.01)
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        assert predict.bus_bandwidth(1e9, predict.from_bus_bandwidth(1e9, 50 * GB, 8, name), 8, name) == pytest.approx(
            50 * GB
        )


def test_a_sweep_gives_back_its_points_and_follows_power_laws_between_and_beyond_them():
    sweep = predict.SizeSweep([(1e6, 2e-3), (1e3, 1e-4), (1e8, 9e-2), (1e3, 3e-4), (1e3, 1e-4)])
    assert [sweep(size) for size in (1e3, 1e6, 1e8)] == pytest.approx([1e-4, 2e-3, 9e-2])  # 1e3: the median of three
    assert sweep(math.sqrt(1e6 * 1e8)) == pytest.approx(math.sqrt(2e-3 * 9e-2))
    assert (sweep(0), sweep(1)) == (0, 1e-4)
    assert sweep(3e8) == pytest.approx(0.27)
    sizes = [10 ** (k / 10) for k in range(20, 100)]
    assert [sweep(s) for s in sizes] == sorted(sweep(s) for s in sizes)


def test_a_line_through_the_ends_of_a_sweep_misses_its_middle():
    n, alpha, cal = 8, 43.83e-6, (2**34, 127_997e-6)
    curve = predict.SizeSweep(
        (2**k, predict.two_point_all_reduce(2**k, n=n, alpha_s=alpha, cal_bytes=cal[0], cal_s=cal[1]))
        for k in range(10, 35)
    )
    line = curve.alpha_beta()
    assert line.send_s(2**34) == pytest.approx(curve(2**34), rel=1e-3)
    assert line.send_s(2**24) < 0.8 * curve(2**24)


def test_a_sweep_of_messages_stands_for_a_link():
    messages = predict.SizeSweep((10.0**k, LINK.send_s(10.0**k)) for k in range(11))
    for size in (1e4, 1e6, 1e9):
        assert predict.ring_all_reduce(8, size, messages) == pytest.approx(
            predict.ring_all_reduce(8, size, LINK), rel=0.2
        )
        assert predict.tree_all_reduce(8, size, messages) == pytest.approx(
            predict.tree_all_reduce(8, size, LINK), rel=0.02
        )


def two_point(nbytes, n=8, alpha=40e-6, cal_bytes=2**34, cal_s=0.128, **more):
    return predict.two_point_all_reduce(nbytes, n=n, alpha_s=alpha, cal_bytes=cal_bytes, cal_s=cal_s, **more)


@pytest.mark.parametrize("n, alpha", [(2, 10e-6), (8, 40e-6), (8, 0.0), (16, 160e-6), (1024, 300e-6)])
def test_the_two_point_curve_passes_through_its_points_and_rises(n, alpha):
    assert two_point(0, n, alpha) == pytest.approx(alpha)
    assert two_point(2**34, n, alpha) == pytest.approx(0.128, rel=1e-9)
    assert two_point(2**35, n, alpha) == pytest.approx(0.256, rel=0.02)
    times = [two_point(2.0**k, n, alpha) for k in range(40)]
    assert times == sorted(times) and len(set(times)) == 40
    # Never below the straight line between the two points, never more than twice the sum of both parts.
    for k in range(10, 34):
        line = alpha + 2.0**k / 2**34 * (0.128 - alpha)
        assert 0.97 * line <= two_point(2.0**k, n, alpha) <= 2.1 * line


def test_the_middle_is_wider_when_the_ring_is_longer_or_leaves_the_machine():
    assert two_point(2**23, n=2) < two_point(2**23, n=4) < two_point(2**23, n=8) < two_point(2**23, n=16)
    assert two_point(2**23, n=16, per_node=16) < two_point(2**23, n=16)


# --- data parallel


def test_buckets_fill_from_the_last_layer_on():
    assert predict.buckets([10, 10, 10, 10], 20) == [[3, 2], [1, 0]]
    assert predict.buckets([10, 10, 10], 20) == [[2, 1], [0]]
    assert predict.buckets([30, 1, 0, 1], 20) == [[3, 1, 0]]
    mib = 2**20
    assert predict.buckets([mib] * 30) == [
        [29],
        list(range(28, 3, -1)),
        [3, 2, 1, 0],
    ]  # DDP's defaults: 1 MiB first, then 25


def test_a_bucket_size_that_is_named_holds_for_the_first_bucket_too():
    """Even 25 MiB: DDP(model, bucket_cap_mb=25) has no small first bucket."""
    mib = 2**20
    assert predict.buckets([mib] * 30, 25 * mib) == [list(range(29, 4, -1)), [4, 3, 2, 1, 0]]
    step = predict.ddp_step([predict.Layer(1e-3, 2e-3, mib)] * 30, lambda nbytes: 0.0, bucket_bytes=25 * mib)
    assert step.bucket_bytes == (25 * mib, 5 * mib)


def layers(count=10, nbytes=4e6, forward=1e-3, backward=2e-3):
    return [predict.Layer(forward, backward, nbytes)] * count


def test_one_bucket_is_the_sum_and_small_buckets_hide_all_but_the_last():
    cost = 5e-10  # seconds a byte
    one = predict.ddp_step(layers(), lambda b: b * cost, bucket_bytes=1e9)
    assert one.total_s == pytest.approx(30e-3 + 40e6 * cost) and one.hidden == pytest.approx(0)
    many = predict.ddp_step(layers(), lambda b: b * cost, bucket_bytes=1)
    assert many.total_s == pytest.approx(30e-3 + 4e6 * cost)  # each layer's 2 ms are as long as its message
    assert many.hidden == pytest.approx(0.9)
    assert predict.ddp_step(layers(), lambda b: 0.0).total_s == pytest.approx(30e-3)


def test_a_step_is_between_the_longer_part_and_the_sum():
    for bucket in (1, 5e6, 11e6, 1e9):
        for cost in (1e-11, 1e-10, 1e-9, 1e-8):
            step = predict.ddp_step(layers(), lambda b, cost=cost: 1e-5 + b * cost, bucket_bytes=bucket)
            assert (
                max(step.compute_s, step.communication_s)
                <= step.total_s
                <= step.compute_s + step.communication_s + 1e-12
            )
            assert step.total_s == pytest.approx(step.compute_s + step.exposed_s + step.slowed_s)
            assert sum(step.bucket_bytes) == pytest.approx(40e6)


def test_when_communication_is_longer_it_sets_the_pace_after_the_first_bucket():
    step = predict.ddp_step(layers(), lambda b: b * 1e-8, bucket_bytes=1)
    assert step.total_s == pytest.approx(
        10e-3 + 2e-3 + 0.4
    )  # forward, the backward of the first layer, then the link is never idle


def test_no_sync_sends_once_for_all_micro_batches():
    once = predict.ddp_step(layers(), lambda b: b * 1e-9, accumulate=8)
    each = predict.ddp_step(layers(), lambda b: b * 1e-9, accumulate=8, no_sync=False)
    assert once.communication_s * 8 == pytest.approx(each.communication_s)
    single = predict.ddp_step(layers(), lambda b: b * 1e-9)
    assert each.total_s == pytest.approx(8 * single.total_s)
    assert once.total_s == pytest.approx(7 * 30e-3 + single.total_s)


def test_interference_takes_back_what_overlap_gave():
    free, half, full = (
        predict.ddp_step(layers(), lambda b: b * 2e-10, bucket_bytes=1, interference=x) for x in (0.0, 0.5, 1.0)
    )
    assert free.total_s < half.total_s < full.total_s
    assert full.total_s == pytest.approx(full.compute_s + full.communication_s)
    apart = predict.ddp_step(layers(), lambda b: b * 2e-10, bucket_bytes=1, overlap=False)
    assert apart.total_s == pytest.approx(full.total_s) and apart.hidden == pytest.approx(0)


def test_the_spans_of_a_step_tell_the_same_story():
    step = predict.ddp_step(layers(), lambda b: b * 1e-9, bucket_bytes=9e6, accumulate=2, optimizer_s=1e-3, rank=3)
    assert {s[0] for s in step.spans} == {3} and {s[3] for s in step.spans} == {"compute", "communication"}
    assert max(s[2] for s in step.spans) == pytest.approx(step.total_s)
    sent = sorted(s[1:3] for s in step.spans if s[3] == "communication")
    assert sum(end - start for start, end in sent) == pytest.approx(step.communication_s)
    assert all(
        end <= start + 1e-12 for (_, end), (start, _) in zip(sent, sent[1:], strict=False)
    )  # one collective at a time


def test_a_size_sweep_is_a_cost_of_a_step():
    sweep = predict.SizeSweep([(1e4, 1e-4), (1e7, 1e-2)])
    step = predict.ddp_step(layers(), sweep, bucket_bytes=1e9)
    assert step.total_s == pytest.approx(30e-3 + sweep(40e6))


# --- loading


def test_without_workers_everything_is_added():
    run = predict.loader_run(10, 0.3, 0.2)
    assert (run.total_s, run.wait_s, run.loading_s) == (pytest.approx(5.0), pytest.approx(3.0), pytest.approx(3.0))


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_a_long_epoch_takes_the_slower_of_loading_and_computing(workers):
    run = predict.loader_run(4000, 0.3, 0.1, workers=workers, startup_s=0.2)
    assert run.total_s == pytest.approx(4000 * max(0.1, 0.3 / workers), rel=2e-3)
    assert run.first_batch_s == pytest.approx(0.5)
    assert predict.workers_needed(0.3, 0.1) == 3


def test_cores_bound_the_workers():
    free = predict.loader_run(1000, 0.3, 0.01, workers=4)
    two = predict.loader_run(1000, 0.3, 0.01, workers=4, cores=2)
    assert two.total_s == pytest.approx(2 * free.total_s, rel=0.01)


def test_one_slow_batch_waits_for_its_turn_and_prefetch_softens_it():
    times = [0.1] * 40
    times[20] = 1.0
    short, long = (predict.loader_run(40, times, 0.1, workers=2, prefetch=k) for k in (1, 8))
    assert long.total_s < short.total_s
    even = predict.loader_run(40, 0.1, 0.1, workers=2, prefetch=8)
    assert even.total_s <= long.total_s < even.total_s + 0.1 < short.total_s


def test_a_worker_never_runs_further_ahead_than_prefetch():
    run = predict.loader_run(30, 0.01, 0.2, workers=2, prefetch=2)
    taken = {int(s[4]): s[1] for s in run.spans if s[3] == "compute"}
    for _, start, _, what, label in run.spans:
        if what == "loading" and int(label) >= 4:
            assert start >= taken[int(label) - 4] - 1e-12


def test_each_row_of_the_loader_does_one_thing_at_a_time():
    run = predict.loader_run(25, 0.11, 0.07, workers=3, startup_s=0.1)
    for row in range(4):
        spans = sorted(s[1:3] for s in run.spans if s[0] == row)
        assert all(b[0] >= a[1] - 1e-12 for a, b in zip(spans, spans[1:], strict=False))
    assert run.total_s == pytest.approx(run.compute_s + run.wait_s)


def test_a_copy_over_pcie():
    assert 1 / predict.copy_s(1, 63e9) / GB == pytest.approx(55.43, rel=0.05)  # host to device, H200, nvbandwidth


# --- memory


def test_zero_is_the_figure_of_its_paper():
    totals = [zero_memory(7.5e9, 64, stage).total / GB for stage in range(4)]
    assert totals == pytest.approx([120, 31.4, 16.6, 1.9], rel=0.02)
    assert zero_memory(7.5e9, 1, 3).total == zero_memory(7.5e9, 1, 0).total


def test_stage_three_sends_half_as_much_again():
    two, three = (predict.zero_traffic(1e9, 64, stage) for stage in (2, 3))
    assert three == pytest.approx(1.5 * two) and predict.zero_traffic(1e9, 1, 3) == 0
    assert two == pytest.approx(predict.zero_traffic(1e9, 64, 0))


def test_activations_and_what_saves_them():
    shape = {"batch": 1, "seq": 2048, "hidden": 12288, "heads": 96, "tensor": 8}
    plain = predict.transformer_activation_bytes(**shape)
    saved = [
        predict.transformer_activation_bytes(**shape, sequence_parallel=split, recompute=how) / plain
        for split, how in ((True, "none"), (False, "selective"), (True, "selective"), (False, "full"))
    ]
    assert [100 * s for s in saved] == pytest.approx(
        [62.04, 56.53, 18.49, 8.71], rel=0.01
    )  # 175B, arXiv 2205.05198, figure 7
    # Figure 1 of the same paper: 96 layers in 8 stages of 3 interleaved chunks need 66.84 GiB.
    assert predict.pipeline_activation_bytes(plain, 96, stages=8, chunks=3) / 2**30 == pytest.approx(66.84, rel=0.001)


def test_recomputation_costs_a_third_or_the_attention_core():
    assert predict.recompute_time("full", seq=2048, hidden=6144) == pytest.approx(4 / 3)
    assert predict.recompute_time("none", seq=2048, hidden=6144) == 1
    short, long = (predict.recompute_time("selective", seq=s, hidden=4096) for s in (512, 65_536))
    assert 1 < short < 1.01 < long < 4 / 3


def test_the_square_root_holds_least():
    held = {k: predict.checkpoint_chain(100, k).held for k in (1, 5, 10, 20, 100)}
    assert predict.checkpoint_chain(100).held == min(held.values()) == 20


# --- transformers


def test_gpt3_is_gpt3():
    gpt3 = predict.Transformer(layers=96, hidden=12288, vocab=51200, seq=2048)
    assert gpt3.params == pytest.approx(175e9, rel=0.01)
    assert predict.iteration_s(gpt3, 1536, 1024, 138e12) == pytest.approx(32, rel=0.02)
    assert predict.training_days(300e9, 175e9, 1024, 140e12) == pytest.approx(34, rel=0.01)
    # 6 N FLOPs a token without recomputation, up to the attention core and the embedding.
    assert gpt3.step_flops(1, "none") / 2048 == pytest.approx(6 * gpt3.params, rel=0.03)
    assert gpt3.step_flops(1, "none") < gpt3.step_flops(1, "selective") < gpt3.step_flops(1, "full")


def test_tensor_parallel_on_one_rank_is_the_whole_model_and_more_ranks_never_scale_fully():
    model = predict.Transformer(layers=24, hidden=1920, vocab=51200, seq=1024)
    steps = {t: predict.tensor_parallel_step(model, 16, t, flops_per_gpu=150e12, busbw_Bps=230e9) for t in (1, 2, 4, 8)}
    assert steps[1].total_s == pytest.approx(predict.iteration_s(model, 16, 1, 150e12))
    assert steps[1].communication_s == 0
    for t in (2, 4, 8):
        assert steps[1].total_s / t < steps[t].total_s < steps[1].total_s
        assert steps[t].repeated_s == pytest.approx(steps[1].repeated_s)


def test_mfu():
    # MPT-70B on 512 H100: mosaicml/llm-foundry scripts/train/benchmarking/README.md.
    used = predict.mfu(515_636, params=64_862_437_376, layers=80, hidden=8192, seq=2048, gpus=512, peak_flops=989.5e12)
    assert 100 * used == pytest.approx(41.25, abs=0.01)


# --- FSDP


def test_fsdp_hides_all_but_the_first_gather_and_the_last_scatter():
    step = predict.fsdp_step(layers(10, 1e6, 5e-3, 10e-3), lambda b: b * 1e-9)
    assert step.cost_s == pytest.approx(2e-3) and step.communication_s == pytest.approx(30e-3)
    slow = predict.fsdp_step(layers(10, 1e6, 5e-3, 10e-3), lambda b: b * 1e-7)
    assert slow.total_s == pytest.approx(30 * 0.1, rel=0.02)  # three passes over the link, nothing else counts
    kept = predict.fsdp_step(layers(10, 1e6, 5e-3, 10e-3), lambda b: b * 1e-7, reshard_after_forward=False)
    assert kept.total_s == pytest.approx(20 * 0.1, rel=0.02)
    assert predict.fsdp_step(layers(), lambda b: 0.0).total_s == pytest.approx(30e-3)


def test_fsdp_computes_a_layer_only_when_its_weights_are_there():
    step = predict.fsdp_step(layers(6, 1e6), lambda b: b * 2e-9, interference=0.2)
    gathers = sorted((s[1], s[2], s[4]) for s in step.spans if s[4].startswith("gather"))
    for i in range(6):
        forward = next(s for s in step.spans if s[4] == f"F{i}")
        backward = next(s for s in step.spans if s[4] == f"B{i}")
        ends = [end for _, end, label in gathers if label == f"gather {i}"]
        assert len(ends) == 2 and forward[1] >= ends[0] - 1e-12 and backward[1] >= ends[1] - 1e-12
    sent = sorted(s[1:3] for s in step.spans if s[3] == "communication")
    assert all(b[0] >= a[1] - 1e-12 for a, b in zip(sent, sent[1:], strict=False))


# --- precision


def test_the_bracket_and_what_lies_outside_it():
    bracket = predict.amp_bracket(8.0, 2.0)
    assert (bracket.low, bracket.high, bracket.middle) == (2, 8, 4)
    assert bracket.outside(3.26) == 0 and bracket.outside(1) == pytest.approx(0.5)
    assert bracket.outside(16) == pytest.approx(1.0)
    assert predict.amp_bracket(1.0).low == 1  # a CPU without 16-bit units can still gain memory traffic
    assert predict.amp_bracket(8.0, untouched=0.5).high < 2


# --- whole runs

LLAMA = predict.Transformer(layers=128, hidden=16_384, vocab=128_256, seq=8192, heads=128)
CLUSTER = predict.Cluster(
    gpus=16_384, peak_flops=989e12, flops_per_gpu=600e12, memory_bytes=80e9, inside_Bps=360e9, between_Bps=40e9
)


def test_16384_gpus_take_no_minutes():
    began = time.process_time()
    run = predict.parallel_3d(
        LLAMA, CLUSTER, tensor=8, pipeline=16, global_batch=2048, schedule="interleaved", chunks=8
    )
    assert time.process_time() - began < 10.0  # a fraction of a second; one step for each GPU would take minutes
    assert run.data * 8 * 16 == 16_384 and run.micro_batches == 16
    # The Llama 3 paper (arXiv 2407.21783, table 4) reports 41% on 8,192 and 16,384 GPUs for about this shape.
    assert run.mfu == pytest.approx(0.41, abs=0.06)
    assert run.step_s == pytest.approx(run.pipeline_s + run.data_parallel_s)
    assert run.days(15.6e12) == pytest.approx(15.6e12 / run.tokens_per_s / 86_400)


def test_more_micro_batches_mean_less_bubble_and_more_stages_less_memory():
    runs = [predict.parallel_3d(LLAMA, CLUSTER, tensor=8, pipeline=16, global_batch=b) for b in (2048, 4096, 8192)]
    assert [r.bubble for r in runs] == sorted((r.bubble for r in runs), reverse=True)
    assert [r.mfu for r in runs] == sorted(r.mfu for r in runs)
    deep, flat = (predict.parallel_3d(LLAMA, CLUSTER, tensor=8, pipeline=p, global_batch=4096) for p in (32, 8))
    assert deep.states_bytes < flat.states_bytes
    sharded, whole = (
        predict.parallel_3d(LLAMA, CLUSTER, tensor=8, pipeline=16, global_batch=2048, zero_stage=z) for z in (1, 0)
    )
    assert sharded.states_bytes < whole.states_bytes
    repeated, kept = (
        predict.parallel_3d(LLAMA, CLUSTER, tensor=8, pipeline=16, global_batch=2048, recompute=r)
        for r in ("full", "none")
    )
    assert repeated.fits and not kept.fits and repeated.pipeline_s > 1.2 * kept.pipeline_s


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"pipeline": 15}, "16384 GPUs do not divide evenly"),
        ({"tensor": 16}, "a node has 8 GPUs; got 16"),
        ({"chunks": 3, "schedule": "interleaved"}, "128 layers do not divide evenly over 48"),
        ({"global_batch": 1000}, "a batch of 1000 does not divide evenly over 128"),
        ({"recompute": "some"}, "recompute must be none, selective or full"),
    ],
)
def test_a_split_that_does_not_work_out_says_which(wrong, message):
    with pytest.raises(ValueError, match=message):
        predict.parallel_3d(LLAMA, CLUSTER, **{"tensor": 8, "pipeline": 16, "global_batch": 2048, **wrong})


def test_gpus_for_a_deadline():
    perfect = predict.gpus_for_deadline(1000, 10, lambda n: 1.0)
    assert (perfect.gpus, perfect.gpu_hours) == (128, 1000)
    real = predict.gpus_for_deadline(
        1000, 10, lambda n: predict.efficiency(predict.amdahl(n, 0.001), n), queue_hours=1, price_per_gpu_hour=2
    )
    assert real.gpus >= perfect.gpus and real.gpu_hours > 1000 and real.price == pytest.approx(2 * real.gpu_hours)
    assert real.hours <= 10
    assert predict.gpus_for_deadline(1000, 10, lambda n: predict.amdahl(n, 0.05) / n) is None


# --- what holds for all


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: predict.amdahl(0, 0.1), "at least 1; got 0"),
        (lambda: predict.gustafson(2, 1.5), "0 to 1; got 1.5"),
        (lambda: predict.fit_amdahl({4: 1.0}), "two rank counts"),
        (lambda: predict.karp_flatt(1.5, 1), "n must be a whole number, at least 2"),
        (lambda: predict.Link(1e-6, 0), "bandwidth_Bps must be above zero; got 0"),
        (lambda: predict.ring_all_reduce(2.5, 1, LINK), "n must be a whole number, at least 1; got 2.5"),
        (lambda: predict.ring_all_reduce(2, float("nan"), LINK), "nbytes must be a finite number; got nan"),
        (lambda: predict.ring_factor("gossip", 2), "collective must be all_reduce, .*; got 'gossip'"),
        (lambda: predict.SizeSweep([]), "at least one measured"),
        (lambda: predict.SizeSweep([(1e3, 0)]), "seconds must be above zero"),
        (lambda: two_point(1, alpha=1.0), "the calibration must take longer than an empty"),
        (lambda: predict.Layer(1, -1, 0), "backward_s must be zero or above"),
        (lambda: predict.ddp_step([], lambda b: 0.0), "at least one layer"),
        (lambda: predict.ddp_step(layers(), lambda b: 0.0, interference=2), "interference must be a fraction"),
        (lambda: predict.buckets([1.0], 0), "bucket_bytes must be above zero"),
        (lambda: predict.loader_run(3, [0.1, 0.1], 1.0), "one time for each batch; got 2 for 3"),
        (lambda: predict.loader_run(3, 0.1, 1.0, workers=-1), "workers must be a whole number, at least 0; got -1"),
        (lambda: predict.loader_run(10**9, 0.1, 1.0), "too many to simulate"),
        (lambda: predict.zero_memory(1e9, 8, 4), "stage must be 0, 1, 2 or 3; got 4"),
        (lambda: predict.checkpoint_chain(4, 5), "at most 4 segments; got 5"),
        (lambda: predict.Transformer(0, 1, 1, 1), "layers must be a whole number, at least 1"),
        (lambda: predict.amp_bracket("8"), "compute_ratio must be a finite number; got '8'"),
        (lambda: predict.Cluster(8, True, 1, 1, 1, 1), "peak_flops must be a finite number; got True"),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_every_constant_says_what_it_belongs_to_and_where_it_comes_from():
    table = {name: c for name, c in vars(constants).items() if isinstance(c, constants.Constant)}
    assert len(table) >= 12
    for name, constant in table.items():
        assert name.isupper() and constant.value > 0 and len(constant.belongs_to) > 2 and len(constant.source) > 20, (
            name
        )


def test_the_model_needs_only_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import course_utils.predict.experiments; new = {m.split('.')[0] for m"
        " in set(sys.modules) - before};print(sorted(new - set(sys.stdlib_module_names) - {'course_utils'}))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_every_public_function_says_what_it_does():
    for name in predict.__all__:
        thing = getattr(predict, name)
        assert name == "Span" or (thing.__doc__ and len(thing.__doc__) > 30), name
