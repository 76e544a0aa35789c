"""What a launch gets on machines with 0, 1, 2, 4 and 8 GPUs, which are made up here, and how the real one is looked at."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from conftest import ROOT

from course_utils import machine as module
from course_utils.machine import Gpu, Machine, place

DRIVER = "580.65.06"


def gpus(n: int, broken: tuple[int, ...] = (), reason: str = "") -> tuple[Gpu, ...]:
    return tuple(Gpu(i, "NVIDIA A100", 80 << 30, (8, 0), DRIVER, f"GPU-{i:08x}-aa", i not in broken, reason if i in broken else "") for i in range(n))


def a_machine(n_gpus: int = 0, cores: int = 8, **kind: object) -> Machine:
    return Machine("some processor", cores, 64 << 30, 1 << 30, gpus(n_gpus, **kind))  # type: ignore[arg-type]


# --- placing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("there", "world", "device"), [(0, 2, "cpu"), (1, 2, "cpu"), (2, 2, "cuda"), (4, 4, "cuda"), (8, 8, "cuda")])
def test_auto_takes_all_gpus_from_two_on(there: int, world: int, device: str) -> None:
    got = place(a_machine(there))
    assert (got.ranks, got.device, got.backend) == (world, device, "nccl" if device == "cuda" else "gloo")
    assert got.size == ("gpu" if device == "cuda" else "cpu") == got.env["COURSE_SIZE"]


@pytest.mark.parametrize(("there", "ranks"), list(itertools.product((0, 1, 2, 4, 8), (1, 2, 3, 4, 8, 16))))
def test_any_number_of_ranks_starts_on_any_machine(there: int, ranks: int) -> None:
    """nccl where each rank has a GPU of its own, and otherwise the CPU, with a sentence that says so."""
    got = place(a_machine(there), ranks)
    assert got.ranks == ranks
    if ranks <= there:
        assert (got.device, got.backend, got.env["COURSE_DEVICE"]) == ("cuda", "nccl", "cuda")
        assert got.env["CUDA_VISIBLE_DEVICES"] == ",".join(g.uuid for g in gpus(ranks))
        assert "nccl" in got.sentence and "NVIDIA A100" in got.sentence and "CPU" not in got.sentence
    else:
        assert (got.device, got.backend, got.env["COURSE_DEVICE"], got.env["CUDA_VISIBLE_DEVICES"]) == ("cpu", "gloo", "cpu", "")
        assert f"{ranks} rank" in got.sentence and "on the CPU, backend gloo" in got.sentence
        assert (f"This machine has {there} GPU" if there else f"With {ranks} GPU") in got.sentence
    assert got.threads == max(1, 8 // ranks) == int(got.env["OMP_NUM_THREADS"])
    assert "\n" not in got.sentence and got.sentence.endswith(".")


@pytest.mark.parametrize(
    ("there", "ranks", "per_rank", "expected"),
    [
        (8, "auto", 2, (4, "cuda", 2)),
        (4, "auto", 2, (2, "cuda", 2)),
        (2, "auto", 2, (2, "cpu", 2)),  # one group of two is no data parallel: two ranks, on the CPU
        (8, 3, 2, (3, "cuda", 2)),
        (8, 5, 2, (5, "cpu", 2)),
        (8, "auto", "all", (1, "cuda", 8)),
        (1, "auto", "all", (1, "cuda", 1)),
        (0, "auto", "all", (1, "cpu", 1)),
        (8, 2, "all", (2, "cuda", 4)),
        (8, 3, "all", (3, "cuda", 2)),
        (2, 4, "all", (4, "cpu", 1)),
    ],
)
def test_several_gpus_a_rank(there: int, ranks: int | str, per_rank: int | str, expected: tuple[int, str, int]) -> None:
    got = place(a_machine(there), ranks, per_rank)
    assert (got.ranks, got.device, got.gpus_per_rank) == expected
    assert got.env["COURSE_GPUS_PER_RANK"] == str(expected[2])
    visible = got.env["CUDA_VISIBLE_DEVICES"]
    assert (len(visible.split(",")) if visible else 0) == (expected[0] * expected[2] if expected[1] == "cuda" else 0)


@pytest.mark.parametrize("there", [0, 1, 2, 8])
def test_sharing_one_gpu_is_for_correctness(there: int) -> None:
    got = place(a_machine(there), 4, device="shared")
    if there:
        assert (got.device, got.backend, got.env["COURSE_DEVICE"]) == ("shared", "gloo", "shared")
        assert got.env["CUDA_VISIBLE_DEVICES"] == gpus(1)[0].uuid and "share GPU 0" in got.sentence and "the times say nothing" in got.sentence
    else:
        assert (got.device, got.backend) == ("cpu", "gloo")
    assert place(a_machine(there), device="shared").ranks == 2


@pytest.mark.parametrize("there", [0, 1, 8])
def test_the_cpu_can_be_asked_for(there: int) -> None:
    got = place(a_machine(there), device="cpu")
    assert (got.ranks, got.device, got.env["CUDA_VISIBLE_DEVICES"]) == (2, "cpu", "")
    assert "GPU" not in got.sentence, "what was asked for needs no explanation"


def test_gpus_that_cannot_be_used_are_named_with_their_reason() -> None:
    reason = "the driver is too old"
    got = place(a_machine(2, broken=(0, 1), reason=reason))
    assert got.device == "cpu" and f"GPU 0 (NVIDIA A100) cannot be used: {reason}." in got.sentence
    got = place(a_machine(4, broken=(1,), reason=reason), 3)
    assert got.device == "cuda" and got.env["CUDA_VISIBLE_DEVICES"] == ",".join(gpus(4)[i].uuid for i in (0, 2, 3)), "a broken GPU is passed over"
    assert place(a_machine(4, broken=(1,), reason=reason)).ranks == 3
    got = place(a_machine(4, broken=(1,), reason=reason), 4)
    assert got.device == "cpu" and "GPU 1" in got.sentence


@pytest.mark.parametrize(
    ("cores", "ranks", "threads", "expected", "words"),
    [
        (1, 2, None, 1, "sharing 1 core:"),
        (2, 2, None, 1, "1 of 2 cores each"),
        (8, 3, None, 2, "2 of 8 cores each"),
        (8, 2, 8, 8, "sharing 8 cores"),
        (4, 1, None, 4, "4 of 4 cores."),
    ],
)
def test_cores_are_shared_out(cores: int, ranks: int, threads: int | None, expected: int, words: str) -> None:
    got = place(a_machine(0, cores), ranks, threads=threads)
    assert got.threads == expected and words in got.sentence


@pytest.mark.parametrize(("cores", "most"), [(2, 32), (16, 64)])
def test_ranks_that_would_fill_the_memory_are_refused(cores: int, most: int) -> None:
    assert place(a_machine(0, cores), most).ranks == most
    with pytest.raises(ValueError, match=f"{most + 1} ranks on {cores} cores .* {most} is the most"):
        place(a_machine(0, cores), most + 1)


@pytest.mark.parametrize(
    "wrong",
    [{"ranks": v} for v in (0, -1, 1.5, "two", "2", None, True, [2])]
    + [{"gpus_per_rank": v} for v in (0, -2, "some", 1.0, False)]
    + [{"threads": v} for v in (0, -1, "4", True)]
    + [{"device": v} for v in ("gpu", "", None)],
    ids=str,
)
def test_wrong_arguments_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be .*; got "):
        place(a_machine(2), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cores", "most"), [(1, 32), (2, 32), (8, 32), (64, 256)])
def test_a_launch_that_would_exhaust_the_machine_is_refused(cores: int, most: int) -> None:
    assert place(a_machine(0, cores), most).ranks == most
    for ranks in (most + 1, 5000, 10**30):
        with pytest.raises(ValueError, match=f"^{ranks} ranks on {cores} cores .* {most} is the most here"):
            place(a_machine(0, cores), ranks)


def test_numbers_of_numpy_are_numbers() -> None:
    got = place(a_machine(0), numpy.int64(3), numpy.int32(1), threads=numpy.int64(2))  # type: ignore[arg-type]
    assert (got.ranks, got.threads) == (3, 2) and type(got.ranks) is int
    json.dumps(got.env)


# --- looking -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Make `_gpus` see made-up GPUs; gives the list of the devices that were tried, one entry a try."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    module._try_gpus.cache_clear()

    def make(n: int, answer: Callable[[list[str]], tuple[int, str, str]] | None = None) -> list[str]:
        tries: list[str] = []

        def run(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
            tries.append(env["CUDA_VISIBLE_DEVICES"])
            uuids = [u.removeprefix("GPU-") for u in env["CUDA_VISIBLE_DEVICES"].split(",")]
            code, out, err = answer(uuids) if answer else (0, json.dumps({"tried": [[u, True, ""] for u in uuids], "reason": ""}), "")
            return subprocess.CompletedProcess(command, code, out, err)

        monkeypatch.setattr(module, "_nvml", lambda: gpus(n))
        monkeypatch.setattr(module.subprocess, "run", run)
        return tries

    yield make
    module._try_gpus.cache_clear()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("0", [0]),
        ("3,1", [3, 1]),
        ("1, 2", [1, 2]),
        ("-1", []),
        ("0,9,1", [0]),  # CUDA, too, ignores what follows the first unknown entry
        ("GPU-00000002-aa", [2]),
        ("GPU-00000003", [3]),  # a beginning is enough
        ("GPU-00000001-aa,0", [1, 0]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_respected(with_gpus: Callable[..., list[str]], visible: str | None, expected: list[int]) -> None:
    with_gpus(4)
    assert [g.index for g in module._gpus(visible)] == expected


def test_gpus_are_tried_once_and_remembered(with_gpus: Callable[..., list[str]]) -> None:
    tries = with_gpus(2)
    for _ in range(3):
        assert all(g.usable for g in module._gpus(None))
    module._try_gpus.cache_clear()  # another kernel finds the answer on disk
    assert all(g.usable for g in module._gpus(None)) and len(tries) == 1
    assert [g.usable for g in module._gpus("1")] == [True] and len(tries) == 2, "other devices are tried by themselves"


def test_a_gpu_that_fails_is_tried_again_by_the_next_kernel(with_gpus: Callable[..., list[str]]) -> None:
    tries = with_gpus(2, lambda uuids: (0, json.dumps({"tried": [[uuids[0], True, ""], [uuids[1], False, "out of memory"]], "reason": ""}), ""))
    found = module._gpus(None)
    assert [(g.usable, g.reason) for g in found] == [(True, ""), (False, "out of memory")]
    module._try_gpus.cache_clear()
    module._gpus(None)
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((0, json.dumps({"tried": [], "reason": "torch 2.15 sees no GPU (needs a newer driver)"}), ""), "needs a newer driver"),
        ((1, "", "Traceback\nImportError: no module named torch"), "ImportError: no module named torch"),
        ((-11, "", ""), "exit code -11"),
    ],
)
def test_a_machine_whose_gpus_torch_cannot_use(with_gpus: Callable[..., list[str]], answer: tuple[int, str, str], words: str) -> None:
    with_gpus(2, lambda uuids: answer)
    found = Machine("m", 8, 1, 0, module._gpus(None))
    assert len(found.gpus) == 2 and not found.usable_gpus and all(words in g.reason for g in found.gpus)
    got = place(found)
    assert got.device == "cpu" and words in got.sentence
    assert "not usable" in found._repr_html_()


def test_a_try_that_hangs(with_gpus: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", 180)

    with_gpus(1)
    monkeypatch.setattr(module.subprocess, "run", run)
    assert "took more than" in module._gpus(None)[0].reason


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000"}, []),
        ({"cpu.max": "200000 100000"}, [2]),
        ({"cpu.max": "150000 100000"}, [1]),
        ({"cpu.max": "50000 100000"}, [1]),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, [4]),
        ({}, []),
        ({"cpu.max": "what"}, []),
    ],
)
def test_cores_of_a_container(tmp_path: Path, files: dict[str, str], expected: list[int]) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert module._quota(tmp_path) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_cores_respect_affinity() -> None:
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); from course_utils.machine import Machine; print(Machine.here().cores)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "1\n"


def test_this_machine_and_its_words() -> None:
    here = Machine.here()
    assert here.cores >= 1 and here.memory_bytes > 1 << 28 and here.name
    assert f"{here.cores} cores" in str(here) and "cores you may use" in here._repr_html_()
    assert "2 x NVIDIA A100, 1 x T4" in str(replace(here, gpus=(*gpus(2), replace(gpus(1)[0], name="T4"))))


def test_looking_at_the_machine_leaves_torch_alone() -> None:
    code = "import sys; from course_utils.machine import Machine, place; place(Machine.here()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
