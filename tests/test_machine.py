"""What a launch gets on made-up machines with 0, 1, 2, 4 and 8 GPUs, and how the real machine is examined."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from conftest import ROOT

from course_utils.emulation.clusters import cluster
from course_utils.launching.placement import place, place_on_cluster
from course_utils.machine import here as module
from course_utils.machine.here import Gpu, Machine

DRIVER = "580.65.06"
Trying = Callable[..., list[dict[str, str]]]


def gpus(n: int, broken: tuple[int, ...] = (), reason: str = "") -> tuple[Gpu, ...]:
    good = (Gpu(i, "NVIDIA A100", 80 << 30, (8, 0), DRIVER, f"GPU-{i:08x}-aa") for i in range(n))
    return tuple(replace(g, usable=False, reason=reason) if g.index in broken else g for g in good)


def a_machine(n_gpus: int = 0, cores: int = 8, **kind: object) -> Machine:
    return Machine("some processor", cores, 64 << 30, 1 << 30, gpus(n_gpus, **kind))  # type: ignore[arg-type]


# --- placing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "world", "device"), [(0, 2, "cpu"), (1, 2, "cpu"), (2, 2, "cuda"), (4, 4, "cuda"), (8, 8, "cuda")]
)
def test_auto_takes_all_gpus_from_two_on(there: int, world: int, device: str) -> None:
    got = place(a_machine(there))
    assert (got.ranks, got.device, got.backend) == (world, device, "nccl" if device == "cuda" else "gloo")
    told = (got.env.get("COURSE_SIZE"), got.env.get("COURSE_GPU_BYTES"))
    assert told == (("cpu", None) if device == "cpu" else (None, str(80 << 30)))


def test_the_smallest_gpu_and_how_many_share_it_decide_what_a_rank_has() -> None:
    here = replace(a_machine(2), gpus=(gpus(2)[0], replace(gpus(2)[1], memory_bytes=8 << 30)))
    assert place(here, 2).env["COURSE_GPU_BYTES"] == str(8 << 30)
    assert place(here, 1).env["COURSE_GPU_BYTES"] == str(8 << 30), "one rank is compared with two"
    assert place(a_machine(2), 4, device="shared").env["COURSE_GPU_BYTES"] == str(20 << 30)


@pytest.mark.parametrize(("there", "ranks"), list(itertools.product((0, 1, 2, 4, 8), (1, 2, 3, 4, 8, 16))))
def test_any_number_of_ranks_starts_on_any_machine(there: int, ranks: int) -> None:
    """nccl if each rank has its own GPU, otherwise the CPU, with a sentence that says so."""
    got = place(a_machine(there), ranks)
    assert got.ranks == ranks
    if ranks <= there:
        assert (got.device, got.backend, got.env["COURSE_DEVICE"]) == ("cuda", "nccl", "cuda")
        assert got.env["CUDA_VISIBLE_DEVICES"] == ",".join(g.uuid for g in gpus(ranks))
        assert "nccl" in got.sentence and "NVIDIA A100" in got.sentence and "CPU" not in got.sentence
    else:
        assert (got.device, got.backend) == ("cpu", "gloo")
        assert (got.env["COURSE_DEVICE"], got.env["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
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
        assert got.env["CUDA_VISIBLE_DEVICES"] == gpus(1)[0].uuid and "share GPU 0" in got.sentence
        assert "the times say nothing" in got.sentence
    else:
        assert (got.device, got.backend) == ("cpu", "gloo")
    assert place(a_machine(there), device="shared").ranks == 2


@pytest.mark.parametrize("there", [0, 1, 8])
def test_the_cpu_can_be_asked_for(there: int) -> None:
    got = place(a_machine(there), device="cpu")
    assert (got.ranks, got.device, got.env["CUDA_VISIBLE_DEVICES"]) == (2, "cpu", "")
    assert "GPU" not in got.sentence, "what was asked for needs no explanation"


@pytest.mark.parametrize("there", [0, 1, 2, 8])
@pytest.mark.parametrize("per_rank", [1, 2, "all"])
def test_comparable_launches_compute_on_the_same_kind_of_device(there: int, per_rank: int | str) -> None:
    """For any number of ranks, as long as there are enough GPUs. A launch that is too large for them says so."""
    enough = there >= (4 if per_rank == 2 else 2)
    got = {n: place(a_machine(there), n, per_rank, device="comparable") for n in (1, 2, "auto", 9)}
    for n in (1, 2, "auto"):
        assert got[n].device == ("cuda" if enough else "cpu")
        words = "run on GPUs." if enough else "run on the CPU: two ranks would need"
        assert f"All launches that you compare {words}" in got[n].sentence
    assert got["auto"].ranks == (1 if per_rank == "all" else place(a_machine(there), "auto", per_rank).ranks)
    large = got[9]
    assert large.device == "cpu"
    assert (
        "Don't compare it with launches of fewer ranks" if enough else "you compare run on the CPU"
    ) in large.sentence
    assert all("\n" not in p.sentence and p.sentence.endswith(".") for p in got.values())


def test_one_rank_on_the_only_gpu_is_not_compared_with_two_on_the_cpu() -> None:
    assert place(a_machine(1), 1).device == "cuda"
    got = place(a_machine(1), 1, device="comparable")
    assert (got.device, got.env["COURSE_SIZE"]) == ("cpu", "cpu")
    assert (got.env["COURSE_DEVICE"], got.env["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
    assert got.sentence.endswith("would need 2 GPUs, and there is 1 here.")
    assert place(a_machine(0), 1, device="comparable").sentence.endswith("would need 2 GPUs, and there are none here.")
    got = place(a_machine(2, broken=(1,), reason="the driver is too old"), 1, device="comparable")
    assert got.device == "cpu" and got.sentence.endswith("GPU 1 (NVIDIA A100) cannot be used: the driver is too old.")


def test_gpus_that_cannot_be_used_are_named_with_their_reason() -> None:
    reason = "the driver is too old"
    got = place(a_machine(2, broken=(0, 1), reason=reason))
    assert got.device == "cpu" and f"GPU 0 (NVIDIA A100) cannot be used: {reason}." in got.sentence
    got = place(a_machine(4, broken=(1,), reason=reason), 3)
    assert got.device == "cuda" and got.env["CUDA_VISIBLE_DEVICES"] == ",".join(gpus(4)[i].uuid for i in (0, 2, 3)), (
        "a broken GPU is passed over"
    )
    assert place(a_machine(4, broken=(1,), reason=reason)).ranks == 3
    got = place(a_machine(4, broken=(1,), reason=reason), 4)
    assert got.device == "cpu" and "GPU 1" in got.sentence


@pytest.mark.parametrize(
    ("shm_bytes", "ranks", "said"), [(64 << 20, 2, True), (64 << 20, 1, False), (1 << 30, 2, False), (0, 2, False)]
)
def test_a_small_shm_is_named_before_nccl_dies_of_it(shm_bytes: int, ranks: int, said: bool) -> None:
    got = place(replace(a_machine(2), shm_bytes=shm_bytes), ranks)
    assert got.device == "cuda" and ("/dev/shm has only 64 MiB" in got.sentence) is said
    on_cpu = place(replace(a_machine(0), shm_bytes=shm_bytes), ranks)
    assert "/dev/shm" not in on_cpu.sentence


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


@pytest.mark.parametrize(("cores", "most"), [(1, 32), (2, 32), (8, 32), (16, 64), (64, 256)])
def test_a_launch_that_would_exhaust_the_machine_is_refused(cores: int, most: int) -> None:
    assert place(a_machine(0, cores), most).ranks == most
    for ranks in (most + 1, 5000, 10**30):
        with pytest.raises(ValueError, match=f"^{ranks} ranks on {cores} cores .* take {most} at most"):
            place(a_machine(0, cores), ranks)


@pytest.mark.parametrize(
    ("there", "ranks", "per_rank", "most"),
    [(0, 2, 1, 0), (0, "auto", "all", 0), (1, "auto", 1, 1), (1, 2, 1, 1), (2, 3, 1, 2), (3, 2, 2, 1), (1, 1, 2, 0)],
)
def test_cuda_without_enough_gpus_is_an_error(there: int, ranks: int | str, per_rank: int | str, most: int) -> None:
    """It names what there is and the ways out, each of which works."""
    here = a_machine(there)
    with pytest.raises(ValueError, match="device 'cuda' needs .* auto instead of cuda.*--cluster") as error:
        place(here, ranks, per_rank, "cuda")
    said = str(error.value)
    assert f"this machine has {there or 'none'}. " in said and "1 GPUs" not in said and "1 ranks" not in said
    assert place(here, ranks, per_rank, "auto").device == "cpu"
    assert (f"take {most} rank" in said) is (most > 0)
    if most:
        assert place(here, most, per_rank, "cuda").device == "cuda"
    cluster(re.search(r"--cluster (\S+)", said)[1])  # type: ignore[index]


def test_cuda_says_why_a_gpu_cannot_be_used() -> None:
    with pytest.raises(ValueError, match=r"has 1 that torch can use: GPU 1 \(NVIDIA A100\) cannot be used, too old"):
        place(a_machine(2, broken=(1,), reason="too old"), 2, device="cuda")


@pytest.mark.parametrize(("GiB", "most"), [(4, 32), (16, 64), (64, 256), (1024, 256)])
def test_emulated_ranks_compute_nothing_large_so_more_of_them_fit(GiB: int, most: int) -> None:
    """The cluster has them; this machine needs memory for their processes."""
    here, large = replace(a_machine(0, cores=2), memory_bytes=GiB << 30), cluster("1024xA100")
    assert place_on_cluster(large, here, most, 1, None).ranks == most
    with pytest.raises(ValueError, match=f"take {most} at most. If all ranks do the same, .*one_of={most + 1}"):
        place_on_cluster(large, here, most + 1, 1, None)


def test_numbers_of_numpy_are_numbers() -> None:
    got = place(a_machine(0), numpy.int64(3), numpy.int32(1), threads=numpy.int64(2))  # type: ignore[arg-type]
    assert (got.ranks, got.threads) == (3, 2) and type(got.ranks) is int
    json.dumps(got.env)


# --- looking ----------------------------------------------------------------------------------------------------------


SLICES = ("MIG-11111111-aa", "MIG-22222222-aa", "MIG-33333333-aa")


def cuda_lists(there: tuple[Gpu, ...], env: dict[str, str], fastest: tuple[int, ...]) -> list[dict[str, Any]]:
    """How CUDA reads its variables, by its programming guide and torch's `_parse_visible_devices`. `fastest` are
    indices of nvidia-smi."""
    order = [there[i] for i in fastest]
    if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        order = sorted(order, key=lambda g: g.index)
    devices: list[tuple[str, Gpu]] = []  # UUID without its kind, and GPU
    for word in (
        env["CUDA_VISIBLE_DEVICES"].split(",") if "CUDA_VISIBLE_DEVICES" in env else [str(i) for i in range(len(order))]
    ):
        word = word.strip()
        if word.isdigit() and int(word) < len(order):
            gpu = order[int(word)]
            found = [(gpu.slices[0] if gpu.slices else gpu.uuid, gpu)]
        elif word.startswith("GPU-"):
            found = [(g.uuid, g) for g in there if g.uuid.startswith(word) and not g.slices]
        elif "/" in word:
            number = int(word.split("/")[1])
            found = [
                (name, g)
                for g in there
                for i, name in enumerate(g.slices)
                if word.startswith(f"MIG-{g.uuid}/") and i == number
            ]
        else:
            found = [(word, g) for g in there if word in g.slices]
        if len(found) != 1:
            break
        devices += found
    if any(uuid.startswith("MIG-") for uuid, _ in devices):
        devices = devices[:1]
    if len(set(devices)) < len(devices):
        devices = []
    names = [(uuid[4:], f"{g.name} MIG 1g.10gb" if uuid.startswith("MIG-") else g.name) for uuid, g in devices]
    return [
        {"uuid": uuid, "name": name, "memory_bytes": 80 << 30, "capability": [8, 0], "reason": ""}
        for uuid, name in names
    ]


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Trying]:
    """Make `_gpus` see made-up GPUs. Returns the list of environments in which it tried devices, one entry per try."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    module._try_gpus.cache_clear()

    def make(
        there: int | tuple[Gpu, ...],
        answer: Callable[..., tuple[int, str, str]] | None = None,
        fastest: tuple[int, ...] = (),
    ) -> list[dict[str, str]]:
        tries: list[dict[str, str]] = []
        all_gpus = gpus(there) if isinstance(there, int) else there

        def run(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
            tries.append(env)
            listed = cuda_lists(all_gpus, env, fastest or tuple(range(len(all_gpus))))
            found = {"listed": listed, "reason": "" if listed else "no GPU", "torch": "2.15.0"}
            code, out, err = answer(found) if answer else (0, json.dumps(found), "")
            return subprocess.CompletedProcess(command, code, out, err)

        monkeypatch.setattr(module, "_nvml", lambda: all_gpus)
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
        ("0,9,1", [0]),  # CUDA ignores what follows the first unknown entry
        ("GPU-00000002-aa", [2]),
        ("GPU-00000003", [3]),  # a beginning is enough
        ("GPU-00000003,GPU-00000001-aa", [3, 1]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_respected(with_gpus: Trying, visible: str | None, expected: list[int]) -> None:
    with_gpus(4)
    assert [g.index for g in module._gpus(visible)] == expected


@pytest.mark.parametrize(
    ("visible", "order", "expected"),
    [
        (None, None, [2, 0, 3, 1]),
        ("0", None, [2]),
        ("1,0", None, [0, 2]),
        ("0", "FASTEST_FIRST", [2]),
        ("0", "PCI_BUS_ID", [0]),
        ("3,1", "PCI_BUS_ID", [3, 1]),
        (None, "PCI_BUS_ID", [0, 1, 2, 3]),
        ("GPU-00000001", None, [1]),
    ],
)
def test_an_index_means_what_cuda_takes_it_for(
    with_gpus: Trying, visible: str | None, order: str | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA counts from the fastest GPU, nvidia-smi by the place on the bus. Ranks get the GPUs by UUID, in CUDA's
    order."""
    tried = with_gpus(4, fastest=(2, 0, 3, 1))
    if order:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    found = module._gpus(visible)
    assert [g.index for g in found] == expected and all(g.usable for g in found)
    got = place(Machine("m", 8, 1, 0, found), len(expected))
    assert got.env["CUDA_VISIBLE_DEVICES"] == ",".join(gpus(4)[i].uuid for i in expected)
    (env,) = tried
    assert (env.get("CUDA_VISIBLE_DEVICES"), env.get("CUDA_DEVICE_ORDER")) == (visible, order)
    # The names that ranks get give the same devices, whatever the order.
    again = cuda_lists(gpus(4), {**got.env, "CUDA_DEVICE_ORDER": order or "FASTEST_FIRST"}, (2, 0, 3, 1))
    assert [device["uuid"] for device in again] == [gpus(4)[i].uuid[4:] for i in expected]


def test_gpus_without_a_uuid_are_given_in_the_order_of_the_bus() -> None:
    nameless = tuple(replace(g, uuid="") for g in gpus(2))
    for device in ("auto", "shared"):
        got = place(Machine("m", 8, 1, 0, nameless), 2, device=device)
        assert got.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert got.env["CUDA_VISIBLE_DEVICES"] == ("0,1" if device == "auto" else "0")
    assert "CUDA_DEVICE_ORDER" not in place(a_machine(2), 2).env


DIVIDED = (replace(gpus(2)[0], slices=SLICES[:2]), replace(gpus(2)[1], slices=SLICES[2:]))


@pytest.mark.parametrize(
    ("visible", "name", "index"),
    [
        ("MIG-22222222-aa", "MIG-22222222-aa", 0),
        ("MIG-33333333-aa", "MIG-33333333-aa", 1),
        (" MIG-33333333-aa ", "MIG-33333333-aa", 1),
        ("MIG-GPU-00000000-aa/1/0", "MIG-GPU-00000000-aa/1/0", 0),
        ("MIG-GPU-00000001-aa/0/0", "MIG-GPU-00000001-aa/0/0", 1),
        ("0", "MIG-11111111-aa", 0),
        ("1", "MIG-33333333-aa", 1),
    ],
)
def test_a_mig_slice_is_a_gpu(with_gpus: Trying, visible: str, name: str, index: int) -> None:
    with_gpus(DIVIDED)
    found = module._gpus(visible)
    assert [(g.uuid, g.index, g.usable, g.name) for g in found] == [(name, index, True, "NVIDIA A100 MIG 1g.10gb")]
    here = Machine("m", 8, 1, 0, found)
    assert place(here, 1).env["CUDA_VISIBLE_DEVICES"] == name and place(here, 1).device == "cuda"
    assert place(here, 2, device="shared").env["CUDA_VISIBLE_DEVICES"] == name
    assert place(here, 2).device == "cpu" and "This machine has 1 GPU" in place(here, 2).sentence


def test_of_several_slices_cuda_takes_the_first(with_gpus: Trying) -> None:
    with_gpus(DIVIDED)
    found = module._gpus("MIG-22222222-aa,MIG-33333333-aa")
    assert [(g.uuid, g.usable) for g in found] == [("MIG-22222222-aa", True), ("MIG-33333333-aa", False)]
    assert found[1].reason == "CUDA lists MIG-22222222-aa, but not MIG-33333333-aa next to it; name one MIG slice"
    found = module._gpus(None)  # nothing is asked for: the first slice of the first GPU
    assert [(g.uuid, g.usable) for g in found] == [("MIG-11111111-aa", True), ("GPU-00000001-aa", False)]
    assert found[1].reason == "CUDA does not list it next to a MIG slice"


def test_a_slice_that_cuda_names_after_its_gpu(with_gpus: Trying) -> None:
    """Some versions give the GPU's UUID for a slice of it. With one slice that's clear; with several, ranks might get
    the wrong one."""

    def by_parent(found: dict[str, Any]) -> tuple[int, str, str]:
        for device in found["listed"]:
            device["uuid"] = next(g.uuid[4:] for g in DIVIDED if f"MIG-{device['uuid']}" in g.slices)
        return 0, json.dumps(found), ""

    with_gpus(DIVIDED, by_parent)
    assert [(g.uuid, g.usable) for g in module._gpus("1")] == [("MIG-33333333-aa", True)]
    assert [(g.uuid, g.usable) for g in module._gpus("MIG-22222222-aa")] == [("MIG-22222222-aa", True)]
    (doubtful,) = module._gpus("0")
    assert not doubtful.usable and "name one: export CUDA_VISIBLE_DEVICES=MIG-11111111-aa" in doubtful.reason


@pytest.mark.parametrize(
    "visible",
    ["MIG-99999999-aa", "9", "GPU-ffff", "MIG-GPU-00000000-aa/7/0", "GPU-0000000", "gpu0", "0,0", "all", ",", "MIG-"],
)
def test_a_name_that_cuda_does_not_know_is_told(with_gpus: Trying, visible: str) -> None:
    with_gpus(DIVIDED if "MIG" in visible else gpus(2))
    found = Machine("m", 8, 1, 0, module._gpus(visible))
    got = place(found)
    assert got.device == "cpu" and not found.usable_gpus
    words = f"CUDA_VISIBLE_DEVICES={visible} names no GPU that CUDA finds here; `nvidia-smi -L` lists the names"
    assert words in got.sentence


def test_nvml_is_asked_for_gpus_and_their_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU that's divided, one that could be, and one that's too old."""

    class NVMLError(Exception):
        pass

    def mig_mode(handle: int) -> list[int]:
        if handle == 2:
            raise NVMLError("not supported")
        return [1 - handle, 1]

    def mig_handle(handle: int, i: int) -> str:
        if i not in (0, 2):
            raise NVMLError("not found")
        return SLICES[i]

    shut: list[bool] = []
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: shut.append(True),
        nvmlSystemGetDriverVersion=lambda: DRIVER,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetCudaComputeCapability=lambda handle: [8, 0],
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 << 30),
        nvmlDeviceGetName=lambda handle: "NVIDIA A100",
        nvmlDeviceGetUUID=lambda handle: handle if isinstance(handle, str) else f"GPU-{handle:08x}-aa",
        nvmlDeviceGetMigMode=mig_mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=mig_handle,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    found = module._nvml.__wrapped__()
    assert [g.slices for g in found] == [(SLICES[0], SLICES[2]), (), ()] and shut
    assert [replace(g, slices=()) for g in found] == list(gpus(3))


def test_gpus_are_tried_once_and_remembered(with_gpus: Trying) -> None:
    tries = with_gpus(2)
    for _ in range(3):
        assert all(g.usable for g in module._gpus(None))
    module._try_gpus.cache_clear()  # another kernel finds the answer on disk
    assert all(g.usable for g in module._gpus(None)) and len(tries) == 1
    assert [g.usable for g in module._gpus("1")] == [True] and len(tries) == 2, "other devices are tried by themselves"


def test_another_division_is_tried_anew(with_gpus: Trying) -> None:
    first = with_gpus(DIVIDED)
    assert module._gpus("0")[0].uuid == "MIG-11111111-aa" and len(first) == 1
    module._try_gpus.cache_clear()
    second = with_gpus((replace(DIVIDED[0], slices=("MIG-44444444-aa",)), DIVIDED[1]))
    assert module._gpus("0")[0].uuid == "MIG-44444444-aa" and len(second) == 1


def test_a_gpu_that_fails_is_tried_again_by_the_next_kernel(with_gpus: Trying) -> None:
    def busy(found: dict[str, Any]) -> tuple[int, str, str]:
        found["listed"][1]["reason"] = "out of memory"
        return 0, json.dumps(found), ""

    tries = with_gpus(2, busy)
    found = module._gpus(None)
    assert [(g.usable, g.reason) for g in found] == [(True, ""), (False, "out of memory")]
    module._try_gpus.cache_clear()
    module._gpus(None)
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ([7, 0], "torch 2.15.0 has no code for compute capability 7.0; a build that has: `make lab TORCH=cu126`"),
        ([6, 0], "compute capability 6.0; a build that has: `make lab TORCH=cu126`"),
        ([13, 0], "compute capability 13.0; a build that has: `make lab TORCH=auto`"),
        ([8, 6], "CUDA error: no kernel image"),  # it has code: the driver's own words
    ],
    ids=str,
)
def test_a_gpu_that_this_torch_has_no_code_for_names_the_build_that_has(
    with_gpus: Trying, capability: list[int], words: str
) -> None:
    def no_kernel(found: dict[str, Any]) -> tuple[int, str, str]:
        found["listed"][0] |= {"capability": capability, "reason": "CUDA error: no kernel image"}
        return 0, json.dumps(found | {"archs": ["sm_75", "sm_80", "sm_90"]}), ""

    with_gpus(1, no_kernel)
    (gpu,) = module._gpus(None)
    assert not gpu.usable and words in gpu.reason and words in place(Machine("m", 8, 1, 0, (gpu,))).sentence


def test_a_gpu_that_cuda_leaves_out_is_named(with_gpus: Trying) -> None:
    with_gpus(2, lambda found: (0, json.dumps(found | {"listed": found["listed"][1:]}), ""))
    found = module._gpus(None)
    assert [(g.index, g.usable, g.reason) for g in found] == [(1, True, ""), (0, False, "CUDA does not list it")]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            (0, json.dumps({"listed": [], "reason": "needs a newer driver", "torch": "2.15"}), ""),
            "torch 2.15 cannot use it: needs a newer driver",
        ),
        ((0, json.dumps({"listed": [], "reason": "no GPU", "torch": "2.15"}), ""), "CUDA lists no GPU"),
        ((1, "", "Traceback\nImportError: no module named torch"), "ImportError: no module named torch"),
        ((-11, "", ""), "exit code -11"),
    ],
)
def test_a_machine_whose_gpus_torch_cannot_use(with_gpus: Trying, answer: tuple[int, str, str], words: str) -> None:
    with_gpus(2, lambda found: answer)
    found = Machine("m", 8, 1, 0, module._gpus(None))
    assert len(found.gpus) == 2 and not found.usable_gpus and all(words in g.reason for g in found.gpus)
    got = place(found)
    assert got.device == "cpu" and words in got.sentence
    assert "not usable" in found._repr_html_()


def test_a_try_that_hangs(with_gpus: Trying, monkeypatch: pytest.MonkeyPatch) -> None:
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
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        " from course_utils.machine.here import Machine;"
        " print(Machine.here().cores)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "1\n"


def test_this_machine_and_its_words() -> None:
    here = Machine.here()
    assert here.cores >= 1 and here.memory_bytes > 1 << 28 and here.name
    assert f"{here.cores} cores" in str(here) and "cores you may use" in here._repr_html_()
    assert "2 x NVIDIA A100, 1 x T4" in str(replace(here, gpus=(*gpus(2), replace(gpus(1)[0], name="T4"))))


def test_looking_at_the_machine_leaves_torch_alone() -> None:
    code = (
        "import sys; from course_utils.launching.placement import place; from course_utils.machine.here import Machine;"
        " place(Machine.here()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
