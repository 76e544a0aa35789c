"""Traces of ranks as spans: hand-made ones with a known answer, and real ones from two gloo ranks."""

from __future__ import annotations

import gzip
import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from course_utils import figures, predict, traces
from course_utils.launching.launcher import launch
from course_utils.results import spans
from course_utils.results.run import Run

MAIN, LINK = 100, 101  # threads


def event(cat: str, name: str, start_ms: float, end_ms: float, tid: Any = MAIN, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start_ms * 1e3,
        "dur": (end_ms - start_ms) * 1e3,
        "pid": 1,
        "tid": tid,
        "args": args,
    }


def op(name: str, start: float, end: float, tid: int = MAIN) -> dict[str, Any]:
    return event("cpu_op", name, start, end, tid)


def note(name: str, start: float, end: float, tid: int = MAIN) -> dict[str, Any]:
    return event("user_annotation", name, start, end, tid)


def write(
    folder: Path, rank: int, events: list[dict[str, Any]], host: str = "a", base_s: float = 1.79e9, name: str = "trace"
) -> Path:
    path = folder / f"rank{rank}.{name}.json.gz"
    raw = {
        "host_name": host,
        "baseTimeNanoseconds": round(base_s * 1e9),
        "traceEvents": [*events, {"ph": "M", "name": "process_name"}],
    }
    path.write_bytes(gzip.compress(json.dumps(raw).encode()))
    return path


def ms(found: list[spans.Span]) -> list[tuple[int, float, float, str, str]]:
    return [(rank, round(start * 1e3, 3), round(end * 1e3, 3), what, label) for rank, start, end, what, label in found]


def ddp_step(at: float) -> list[dict[str, Any]]:
    """A step of 20 ms on a CPU: load, forward, backward with a collective during and after it, the optimizer."""
    return [
        note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at - 2, at - 0.5),
        op("aten::stack", at - 1.5, at - 0.6),  # collating is loading
        note("step", at, at + 20),
        op("aten::linear", at + 0.1, at + 4),
        op("aten::addmm", at + 0.2, at + 3.9),  # inside the one above
        op("aten::relu", at + 4.05, at + 5),  # 50 µs later: the same stretch of work
        op("autograd::engine::evaluate_function: AddmmBackward0", at + 5.5, at + 10),
        op("aten::mm", at + 5.5, at + 10),
        op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 10, at + 16),
        op("c10d::allreduce_", at + 10.1, at + 16),  # a wait, in an operator's clothes
        note("gloo:all_reduce", at + 8, at + 12, LINK),
        op("aten::copy_", at + 9, at + 11, LINK),  # on the collective's own thread
        note("gloo:barrier", at + 16, at + 17),
        note("Optimizer.step#SGD.step", at + 18, at + 19.9),
        op("aten::add_", at + 18, at + 19),
    ]


def test_a_cpu_rank_computes_communicates_waits_and_loads(tmp_path: Path) -> None:
    write(tmp_path, 0, ddp_step(100))
    found = traces.load(tmp_path)
    assert ms(found) == [
        (0, 0.0, 1.5, "loading", "load"),
        (0, 2.1, 7.0, "compute", "forward"),
        (0, 7.5, 12.0, "compute", "backward"),
        (0, 10.0, 14.0, "communication", "all_reduce"),
        (0, 18.0, 19.0, "waiting", "barrier"),
        (0, 20.0, 21.0, "compute", "step"),
    ]
    assert traces.overlap(found) == {0: pytest.approx(0.5)}
    assert figures.rank_timeline(found).summary.startswith("50% of the communication is hidden behind compute.")
    assert len(traces.load(tmp_path, join_s=1e-6)) == len(found) + 1, "the two operators of the forward are apart again"


def test_phases_have_no_name_where_nothing_is_trained(tmp_path: Path) -> None:
    write(tmp_path, 0, [note("step", 0, 10), op("aten::add", 1, 2), note("gloo:send", 2, 3)])
    assert ms(traces.load(tmp_path)) == [(0, 1.0, 2.0, "compute", ""), (0, 2.0, 3.0, "communication", "send")]


def kernel(
    name: str, start: float, end: float, correlation: int, stream: int = 7, cat: str = "kernel"
) -> dict[str, Any]:
    return event(cat, name, start, end, stream, stream=stream, device=0, correlation=correlation)


def launched(at: float, correlation: int, tid: int = MAIN, cat: str = "cuda_runtime") -> dict[str, Any]:
    return event(cat, "cudaLaunchKernel", at, at + 0.005, tid, correlation=correlation)


def gpu_trace() -> list[dict[str, Any]]:
    """Two steps whose kernels run late, with an all-reduce on its own stream. CPU operators only launch."""
    autograd = 102
    return [
        note("ProfilerStep#3", 0, 10),
        note("ProfilerStep#4", 10, 20),
        event("gpu_user_annotation", "ProfilerStep#4", 12, 30, 7),
        op("aten::mm", 1, 2),
        launched(1.5, 1),
        kernel("sm90_gemm", 5, 9, 1),
        # The second step: copy, forward, backward on autograd's thread, the collective beside it, the optimizer after
        # the step's end.
        launched(10.1, 2, cat="cuda_driver"),
        kernel("Memcpy HtoD (Pinned -> Device)", 12, 13, 2, cat="gpu_memcpy"),
        op("aten::mm", 10.5, 10.6),
        launched(10.55, 3),
        kernel("sm90_gemm", 13, 17, 3),
        op("autograd::engine::evaluate_function: AddmmBackward0", 11, 12, autograd),
        launched(11.5, 4, autograd),
        kernel("sm90_gemm_tn", 17, 25, 4),
        event("user_annotation", "nccl:all_reduce", 12, 12.1, autograd),
        launched(12.05, 5, autograd, cat="cuda_driver"),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 21, 27, 5, stream=20),
        launched(12.2, 6, autograd),
        kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*, ncclWork*)", 27, 28, 6, stream=20),
        launched(12.3, 7, autograd),
        kernel("ncclSymkDevKernel_AllGather_ST(ncclSymkDevWorkArgs)", 28, 29, 7, stream=20),
        note("Optimizer.step#AdamW.step", 13, 14),
        launched(13.5, 8),
        kernel("multi_tensor_apply_kernel", 29, 30, 8),
    ]


def test_a_cuda_rank_is_its_kernels_counted_where_they_were_launched(tmp_path: Path) -> None:
    write(tmp_path, 0, gpu_trace())
    second = traces.load(tmp_path, steps=-1)
    assert ms(second) == [
        (0, 2.0, 3.0, "loading", "copy"),
        (0, 3.0, 7.0, "compute", "forward"),
        (0, 7.0, 15.0, "compute", "backward"),
        (0, 11.0, 17.0, "communication", "all_reduce"),
        (0, 17.0, 18.0, "communication", "reduce_scatter"),
        (0, 18.0, 19.0, "communication", "all_gather"),
        (0, 19.0, 20.0, "compute", "step"),
    ]
    assert traces.overlap(second) == {0: pytest.approx(0.5)}
    assert ms(traces.load(tmp_path, steps=0)) == [(0, 5.0, 9.0, "compute", "forward")]


def test_kernels_without_a_launch_count_where_they_run(tmp_path: Path) -> None:
    write(tmp_path, 0, [note("step", 0, 10), kernel("gemm", 8, 12, 1), kernel("gemm", 20, 30, 2)])
    assert ms(traces.load(tmp_path)) == [(0, 8.0, 12.0, "compute", "")]


def test_copies_that_gloo_makes_are_no_loading(tmp_path: Path) -> None:
    events = [
        note("step", 0, 10),
        op("aten::mm", 0, 1),
        note("gloo:all_reduce", 2, 6, LINK),
        op("aten::copy_", 3, 4, LINK),
    ]
    events += [launched(3.1, 1, LINK), kernel("Memcpy HtoD (Pinned -> Device)", 3.5, 4, 1, cat="gpu_memcpy")]
    events += [launched(0.5, 2), kernel("gemm", 1, 3, 2)]
    write(tmp_path, 0, events)
    assert ms(traces.load(tmp_path)) == [(0, 1.0, 3.0, "compute", ""), (0, 2.0, 6.0, "communication", "all_reduce")]


# Clocks


def ring(at: float, late: float) -> list[dict[str, Any]]:
    """Three steps of a rank that comes `late` into every collective, all of which end together."""
    steps = []
    for i in range(3):
        s = at + 10 * i
        steps += [
            note("step", s, s + 10),
            op("aten::mm", s, s + 1 + late),
            note("gloo:all_reduce", s + 1 + late, s + 6, LINK),
        ]
    return steps


def test_ranks_of_one_host_share_its_clock_whatever_the_trace_counts_from(tmp_path: Path) -> None:
    write(tmp_path, 0, ring(0, 0), base_s=1_790_000_000)
    write(tmp_path, 1, ring(-3997, 3), base_s=1_790_000_004.0)  # the same instants and 3 ms
    found = ms(traces.load(tmp_path, steps=0))
    assert (1, 3.0, 7.0, "compute", "") in found and (0, 0.0, 1.0, "compute", "") in found


def test_ranks_of_several_hosts_are_aligned_by_the_ends_of_collectives(tmp_path: Path) -> None:
    write(tmp_path, 0, ring(0, 0))
    write(tmp_path, 1, ring(70_123.4, 3), host="b")
    found = ms(traces.load(tmp_path, steps=1))
    assert [s for s in found if s[3] == "communication"] == [
        (0, 1.0, 6.0, "communication", "all_reduce"),
        (1, 4.0, 6.0, "communication", "all_reduce"),
    ]
    apart = traces.load(tmp_path, steps=1, align="clock")
    assert max(s[2] for s in apart) > 70
    write(tmp_path, 1, ring(0, 3)[:-1], host="b")
    with pytest.raises(ValueError, match="rank 1 has 2 collectives in its trace and rank 0 has 3"):
        traces.load(tmp_path)


# Which steps


def test_a_collective_counts_where_it_began(tmp_path: Path) -> None:
    """Gloo's thread may only note the end of a collective when the next step is already running."""
    write(tmp_path, 0, [*ddp_step(0)[2:], note("gloo:all_reduce", 18, 23, LINK), *ddp_step(20)[2:]])
    one, two = ([s for s in ms(traces.load(tmp_path, steps=i)) if s[3] == "communication"] for i in (0, 1))
    assert one == [(0, 8.0, 12.0, "communication", "all_reduce"), (0, 18.0, 20.0, "communication", "all_reduce")]
    assert two == [(0, 8.0, 12.0, "communication", "all_reduce")]
    both = ms(traces.load(tmp_path, steps=slice(0, 2)))
    assert (0, 18.0, 23.0, "communication", "all_reduce") in both


def lengths(*values: float) -> list[dict[str, Any]]:
    found, at = [], 0.0
    for value in values:
        found += [note("step", at, at + value), op("aten::mm", at, at + value)]
        at += value
    return found


def test_the_typical_step_is_the_median_after_the_first_two(tmp_path: Path) -> None:
    write(tmp_path, 0, lengths(50, 40, 12, 10, 30, 11, 13))

    def total(**how: Any) -> float:
        return sum(end - start for _, start, end, _, _ in traces.load(tmp_path, **how)) * 1e3

    assert total() == pytest.approx(12)
    assert total(steps=3) == pytest.approx(10)
    assert total(steps=-1) == pytest.approx(13)
    assert total(steps=slice(2, 4)) == pytest.approx(22)
    assert total(steps=None) == pytest.approx(166)
    with pytest.raises(ValueError, match="there are 7 steps"):
        traces.load(tmp_path, steps=7)
    with pytest.raises(ValueError, match="selects none of the 7"):
        traces.load(tmp_path, steps=slice(7, None))
    with pytest.raises(ValueError, match="an index, a slice"):
        traces.load(tmp_path, steps="last")  # type: ignore[arg-type]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="rank 0 left no trace 'trace'"):
        traces.load(tmp_path)
    write(tmp_path, 1, lengths(1))
    with pytest.raises(FileNotFoundError, match=r"rank 0 left no trace .*export_chrome_trace\(trace_path\(\)\)"):
        traces.load(tmp_path)
    write(tmp_path, 0, lengths(1, 1))
    with pytest.raises(ValueError, match=r"different numbers of steps \(1, 2\)"):
        traces.load(tmp_path)
    assert len(traces.load(tmp_path, steps=None)) == 2
    write(tmp_path, 0, [op("aten::mm", 0, 1)])
    write(tmp_path, 1, [op("aten::mm", 0, 1)])
    with pytest.raises(ValueError, match=r"no steps are marked .*record_function\('step'\)"):
        traces.load(tmp_path)
    path = write(tmp_path, 0, lengths(1))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="not a whole trace"):
        traces.load(tmp_path)


def test_several_traces_of_a_launch_have_names(tmp_path: Path) -> None:
    write(tmp_path, 0, lengths(1), name="trace")
    write(tmp_path, 0, lengths(5), name="small")
    assert ms(traces.load(tmp_path, name="small")) == [(0, 0.0, 5.0, "compute", "")]


# Overlap and intervals


def test_overlap_of_a_predicted_step_is_the_models_own() -> None:
    layers = predict.equal_layers(0.1, 40e6, 8)
    step = predict.ddp_step(layers, lambda nbytes: nbytes / 1e9, bucket_bytes=5e6)
    assert 0 < step.hidden < 1
    assert traces.overlap(step.spans) == {0: pytest.approx(step.hidden)}
    assert traces.overlap([(0, 0.0, 1.0, "compute", "")]) == {}


def test_intervals_agree_with_counting_instants() -> None:
    rng = random.Random(0)

    def instants(intervals: list[tuple[float, float]]) -> set[int]:
        return {t for start, end in intervals for t in range(round(start), round(end))}

    for _ in range(500):
        a, b = (
            [(float(s), float(s + rng.randrange(6))) for s in (rng.randrange(40) for _ in range(rng.randrange(8)))]
            for _ in range(2)
        )
        assert instants(spans.intersection(a, b)) == instants(a) & instants(b)
        assert instants(spans.difference(a, b)) == instants(a) - instants(b)
        assert spans.covered(a) == len(instants(a))


# Real ranks

SCRIPT = """
import argparse
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import profile, record_function
from course_utils.rank import trace_path

if __name__ == "__main__":
    dist.init_process_group()
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(768, 768), torch.nn.ReLU())]
    data = torch.utils.data.TensorDataset(torch.randn(2048, 768), torch.randint(0, 10, (2048,)))
    for name, mb in (("one", 1000), ("many", 2)):
        model = DDP(torch.nn.Sequential(*layers, torch.nn.Linear(768, 10)), bucket_cap_mb=mb)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with profile() as prof:
            for x, y in torch.utils.data.DataLoader(data, batch_size=256):
                with record_function("step"):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
        prof.export_chrome_trace(trace_path(name))
    dist.destroy_process_group()
"""


def _backward_left(run: Run, name: str) -> float:
    """How much of backward is still to come when the first collective of a step begins: the median of six steps."""
    parts = []
    for i in range(2, 8):
        mine = [s for s in traces.load(run, i, name=name) if s[0] == 0]
        first = min(s[1] for s in mine if s[3] == "communication")
        backward = [s for s in mine if s[4] == "backward"]
        total = sum(s[2] - s[1] for s in backward)
        parts.append(sum(max(0.0, s[2] - max(s[1], first)) for s in backward) / total)
    return statistics.median(parts)


def test_two_real_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "profiled.py"
    script.write_text(SCRIPT)
    run = launch(script, 2, device="cpu")
    shown = capsys.readouterr().out
    assert "profiler_start" not in shown and "gpuGetDeviceCount" not in shown
    many, one = (traces.load(run, slice(2, None), name=name) for name in ("many", "one"))
    for rank in (0, 1):
        mine = [s for s in many if s[0] == rank]
        assert {s[4] for s in mine if s[3] == "compute"} == {"forward", "backward", "step"}
        assert {s[4] for s in mine if s[3] == "loading"} == {"load"}
        assert {s[4] for s in mine if s[3] == "communication"} == {"all_reduce"}
    reduced = [len([s for s in found if s[0] == 0 and s[3] == "communication"]) for found in (one, many)]
    assert reduced[0] == 6, "one bucket a step"
    assert reduced[1] >= 3 * 6
    # The collectives of both ranks are the same ones, so each has a time at which both take part.
    both = spans.intersection(spans.intervals(one, 0, "communication"), spans.intervals(one, 1, "communication"))
    assert len(both) == 6
    step = traces.load(run, name="many")
    assert min(s[1] for s in step) == 0 and {s[0] for s in step} == {0, 1}
    for rank in (0, 1):
        mine = [s for s in step if s[0] == rank]
        backward = min(s[1] for s in mine if s[4] == "backward")
        assert min(s[1] for s in mine if s[3] == "communication") > backward
        assert min(s[1] for s in mine if s[3] == "loading") < min(s[1] for s in mine if s[4] == "forward")
    assert "rank 1 compute" in figures.rank_timeline(step, kind="measured").summary


@pytest.mark.slow
@pytest.mark.alone
def test_small_buckets_travel_beside_backward(tmp_path: Path) -> None:
    """As measured: on busy cores gloo's thread may begin late, so only `make test-all` looks."""
    script = tmp_path / "profiled.py"
    script.write_text(SCRIPT)
    run = launch(script, 2, device="cpu", quiet=True)
    assert _backward_left(run, "one") < 0.25, "nothing can be sent before the last gradient exists"
    assert _backward_left(run, "many") > 0.4, "the first bucket travels beside most of backward"
    many, one = (traces.load(run, slice(2, None), name=name) for name in ("many", "one"))
    assert max(traces.overlap(many).values()) > max(traces.overlap(one).values())
