"""Pipeline schedules: the rules that each one keeps (order, one thing at a time, memory), and how long the bubble
is."""

from __future__ import annotations

import time

import pytest

from course_utils.predict import bubble_fraction, pipeline_speedup, simulate_pipeline, spread_stages
from course_utils.predict.pipeline import PipelineRun

EVEN = [(1, 1), (1, 5), (2, 1), (2, 6), (4, 4), (4, 16), (8, 3), (5, 7)]
UNEVEN = [1.0, 2.5, 0.7, 1.3]
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")


def work(run: PipelineRun, stage: int) -> list[tuple[float, float, str, int]]:
    """What a stage computes, in order of time: (start, end, kind, micro-batch)."""
    spans = [(s[1], s[2], s[4][0], int(s[4][1:])) for s in run.spans if s[0] == stage and s[3] == "compute"]
    return sorted(spans)


@pytest.mark.parametrize("p, m", EVEN)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_even_stages_have_the_bubble_of_the_closed_form(schedule, p, m):
    run = simulate_pipeline(schedule, [1.0] * p, m)
    assert run.total_s == pytest.approx(3 * (m + p - 1))
    assert run.bubble == pytest.approx((p - 1) / (m + p - 1)) == pytest.approx(bubble_fraction(p, m))
    assert run.busy_s == pytest.approx([3.0 * m] * p)


@pytest.mark.parametrize("p, m, v", [(2, 4, 2), (4, 8, 2), (4, 16, 4), (8, 8, 3), (4, 4, 1)])
def test_interleaving_divides_the_bubble(p, m, v):
    run = simulate_pipeline("interleaved", [1.0 / v] * (p * v), m, chunks=v)
    assert run.bubble == pytest.approx(bubble_fraction(p, m, v))
    assert run.total_s == pytest.approx(3 * m + 3 * (p - 1) / v)


@pytest.mark.parametrize("p, m", [(2, 4), (4, 8), (4, 4), (8, 32), (6, 11)])
def test_zero_bubble_leaves_forward_and_input_less_weight(p, m):
    # ZB-H1, arXiv 2401.10241, table 1: (p-1)(F + I - W); here F = I = W = 1.
    run = simulate_pipeline("zero-bubble", [1.0] * p, m)
    assert run.total_s == pytest.approx(3 * m + (p - 1))


@pytest.mark.parametrize("stages", [[1.0] * 4, UNEVEN, UNEVEN[::-1], [1, 1, 1, 5], [5, 1, 1, 1], [0.0, 1.0, 0.0]])
@pytest.mark.parametrize("m", [1, 3, 4, 13])
@pytest.mark.parametrize("comm_s", [0.0, 0.3])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_zero_bubble_is_never_slower_than_1f1b(stages, m, comm_s, share):
    plain = simulate_pipeline("1f1b", stages, m, comm_s=comm_s)
    filled = simulate_pipeline("zero-bubble", stages, m, comm_s=comm_s, weight_share=share)
    assert filled.total_s <= plain.total_s + 1e-9
    assert filled.busy_s == pytest.approx(plain.busy_s)


CASES = [
    (schedule, stages, m, c)
    for schedule in SCHEDULES
    for stages in ([1.0] * 4, UNEVEN)
    for m in (1, 4, 9)
    for c in (0.0, 0.4)
]
CASES += [("interleaved", [0.5, 0.4, 0.6, 0.5, 0.7, 0.3, 0.5, 0.5], m, c) for m in (4, 8) for c in (0.0, 0.4)]


def simulated(schedule, stages, m, comm_s):
    return simulate_pipeline(schedule, stages, m, comm_s=comm_s, chunks=2 if schedule == "interleaved" else 1)


@pytest.mark.parametrize("schedule, stages, m, comm_s", CASES)
def test_a_stage_does_one_thing_at_a_time_and_everything_once(schedule, stages, m, comm_s):
    run = simulated(schedule, stages, m, comm_s)
    chunks = 2 if schedule == "interleaved" else 1
    kinds = "FIW" if schedule == "zero-bubble" else "FB"
    for stage in range(len(run.busy_s)):
        done = work(run, stage)
        assert all(b[0] >= a[1] - 1e-12 for a, b in zip(done, done[1:], strict=False))
        assert sorted((kind, i) for _, _, kind, i in done) == sorted(
            (kind, i) for kind in kinds for i in range(m) for _ in range(chunks)
        )
    assert sum(run.busy_s) == pytest.approx(3 * m * sum(stages))
    assert run.total_s == pytest.approx(max(s[2] for s in run.spans if s[3] == "compute"))


@pytest.mark.parametrize("schedule, stages, m, comm_s", [case for case in CASES if case[0] != "interleaved"])
def test_nothing_starts_before_what_it_needs(schedule, stages, m, comm_s):
    run = simulated(schedule, stages, m, comm_s)
    ends = {(stage, kind, i): (start, end) for stage in range(len(stages)) for start, end, kind, i in work(run, stage)}
    back = "I" if schedule == "zero-bubble" else "B"
    for (stage, kind, i), (start, _) in ends.items():
        needs = []
        if kind == "F" and stage:
            needs.append(ends[stage - 1, "F", i][1] + comm_s)
        if kind == back:
            needs.append(ends[stage, "F", i][1])
            if stage < len(stages) - 1:
                needs.append(ends[stage + 1, back, i][1] + comm_s)
        if kind == "W":
            needs.append(ends[stage, "I", i][1])
        assert all(start >= t - 1e-9 for t in needs), (stage, kind, i)


@pytest.mark.parametrize("p, m", [(4, 16), (8, 8), (4, 2)])
def test_memory_gpipe_holds_all_1f1b_and_zero_bubble_at_most_p(p, m):
    held = {name: simulate_pipeline(name, [1.0] * p, m, activation_bytes=2.0) for name in SCHEDULES}
    assert held["gpipe"].peak_micro_batches == (m,) * p
    assert held["1f1b"].peak_micro_batches == tuple(min(m, p - s) for s in range(p))
    assert max(held["zero-bubble"].peak_micro_batches) <= p
    for run in held.values():
        assert run.peak_bytes == pytest.approx([2.0 * k for k in run.peak_micro_batches])


def test_the_slowest_stage_sets_the_pace():
    for schedule in SCHEDULES:
        run = simulate_pipeline(schedule, [1, 1, 3, 1], 200)
        assert run.total_s == pytest.approx(3 * 3 * 200, rel=0.03)
    # Which the closed form, with the mean stage, gets wrong by half.
    assert simulate_pipeline("1f1b", [1, 1, 3, 1], 200).total_s > 1.9 * 3 * 1.5 * 203


def test_communication_lengthens_the_fill_and_not_the_steady_state():
    quiet, busy = (simulate_pipeline("gpipe", [1.0] * 4, 32, comm_s=c) for c in (0.0, 0.5))
    assert busy.total_s - quiet.total_s == pytest.approx(2 * 3 * 0.5)  # three hops forward and three back, once
    sent = [s for s in busy.spans if s[3] == "communication"]
    assert len(sent) == 2 * 3 * 32 and not any(s[3] == "communication" for s in quiet.spans)


def test_recomputation_adds_a_forward_and_frees_activations():
    plain = simulate_pipeline("gpipe", [1.0] * 4, 8, activation_bytes=10.0)
    again = simulate_pipeline("gpipe", [1.0] * 4, 8, activation_bytes=10.0, checkpoint_bytes=1.0, recompute="always")
    spared = simulate_pipeline(
        "gpipe", [1.0] * 4, 8, activation_bytes=10.0, checkpoint_bytes=1.0, recompute="except_last"
    )
    assert again.total_s == pytest.approx(4 / 3 * plain.total_s)
    assert plain.total_s < spared.total_s < again.total_s
    assert plain.peak_bytes[0] == 80 and again.peak_bytes[0] == pytest.approx(8 + 10)
    assert spared.peak_bytes[0] == pytest.approx(7 + 10)
    one = simulate_pipeline("gpipe", [1.0], 1, recompute="except_last")
    assert one.total_s == pytest.approx(3)  # the only micro-batch is the last


def test_the_speedup_over_one_device_is_the_textbooks_in_the_ideal_case():
    for p, m in EVEN:
        assert pipeline_speedup(p, m) == pytest.approx(p * m / (m + p - 1))
    assert pipeline_speedup(1, 2, recompute="except_last") == pytest.approx(6 / 7)
    worse = [pipeline_speedup(8, 32, spread=s) for s in (0, 0.02, 0.05, 0.1)]
    assert worse == sorted(worse, reverse=True)
    assert pipeline_speedup(4, 1, spread=0.1) == pytest.approx(
        1.0
    )  # one micro-batch visits every stage: how even they are does not matter
    assert pipeline_speedup(4, 100_000 // 4, spread=0.1) == pytest.approx(4 / 1.3, rel=1e-3)


def test_stages_spread_around_their_mean():
    assert spread_stages(1, 0.5) == [1.0]
    stages = spread_stages(4, 0.1)
    assert sum(stages) == pytest.approx(4) and max(stages) == pytest.approx(1.3)
    assert min(spread_stages(64, 0.1)) > 0


@pytest.mark.parametrize("schedule, chunks", [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)])
def test_64_stages_and_512_micro_batches_take_no_minutes(schedule, chunks):
    began = time.process_time()
    run = simulate_pipeline(schedule, [1.0 / chunks] * (64 * chunks), 512, chunks=chunks)
    assert (
        time.process_time() - began < 10.0
    )  # a fraction of a second; something that grows with the square would take minutes
    assert run.bubble <= bubble_fraction(64, 512, chunks) + 1e-9


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"schedule": "pipedream"}, "schedule must be gpipe, 1f1b, interleaved or zero-bubble; got 'pipedream'"),
        ({"forward_s": []}, "at least one stage"),
        ({"forward_s": [1.0, -1.0]}, r"forward_s\[1\] must be zero or above; got -1"),
        ({"micro_batches": 0}, "micro_batches must be a whole number, at least 1; got 0"),
        ({"backward_s": [1.0]}, "backward_s needs one value for each of the 2 stages; got 1"),
        ({"chunks": 2}, "only an interleaved schedule"),
        ({"schedule": "interleaved", "forward_s": [1.0] * 3, "chunks": 2}, "do not divide by 2"),
        (
            {"schedule": "interleaved", "forward_s": [1.0] * 4, "chunks": 2, "micro_batches": 3},
            "multiples of the 2 stages; got 3",
        ),
        ({"recompute": "sometimes"}, "recompute must be none, always or except_last"),
        ({"micro_batches": 10**9}, "too many to simulate"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, message):
    given = {"schedule": "1f1b", "forward_s": [1.0, 1.0], "micro_batches": 4, **arguments}
    with pytest.raises(ValueError, match=message):
        simulate_pipeline(given.pop("schedule"), given.pop("forward_s"), given.pop("micro_batches"), **given)


def test_the_timeline_can_be_drawn():
    figures = pytest.importorskip("course_utils.figures")
    run = simulate_pipeline("1f1b", UNEVEN, 4, comm_s=0.1)
    assert "rank" in figures.rank_timeline(run.spans).summary
