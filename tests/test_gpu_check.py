"""The page of `make gpu-check`: what the links should give, and what the page says of machines that we don't have."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import course_utils.benchmarks.gpu_check as module
from course_utils.benchmarks.gpu_check import gpu_check, links
from course_utils.benchmarks.gpu_check.links import GpuLink
from course_utils.failure.errors import LaunchError
from course_utils.machine.doctor import Report, Row
from course_utils.machine.here import Gpu, Machine
from course_utils.results.rank_result import RankResult
from course_utils.results.run import Run

NVLINK_MBPS = 25_000


def gpus(n: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, "Tesla T4", 15_636_037_632, (7, 5), "580.65", f"GPU-{i}") for i in range(n))


def nvml(p2p: bool = False, nvlinks: Mapping[int, str] = {}, generation: int = 3, lanes: int = 16) -> SimpleNamespace:
    """A driver; `nvlinks` are the links of each GPU that are up: "peer", "switch", or "other" for another GPU."""

    class NVMLError(Exception):
        pass

    def state(handle: int, i: int) -> bool:
        if i not in nvlinks:
            raise NVMLError("no such link")
        return True

    def leads_to(handle: int, i: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"bus-{1 - handle}" if nvlinks[i] == "peer" else "bus-9")

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_NVLINK_MAX_LINKS=36,
        NVML_NVLINK_DEVICE_TYPE_SWITCH=2,
        NVML_P2P_CAPS_INDEX_READ=0,
        NVML_P2P_STATUS_OK=0,
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON=90,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid.removeprefix("GPU-")),
        nvmlDeviceGetP2PStatus=lambda a, b, kind: 0 if p2p else 4,
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"bus-{handle}"),
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda handle, i: 2 if nvlinks[i] == "switch" else 0,
        nvmlDeviceGetNvLinkRemotePciInfo=leads_to,
        nvmlDeviceGetFieldValues=lambda handle, ids: [SimpleNamespace(value=SimpleNamespace(uiVal=NVLINK_MBPS))],
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: generation,
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: lanes if handle == 0 else 8,
    )


@pytest.mark.parametrize(
    ("driver", "link"),
    [
        (nvml(), GpuLink("PCIe 3 x8, by way of the host", 8 * 0.985e9, direct=False)),  # the slower end
        (nvml(p2p=True, generation=4), GpuLink("PCIe 4 x8, direct", 8 * 1.969e9)),
        (nvml(p2p=True, generation=9, lanes=8), GpuLink("PCIe 9 x8, direct", 8 * 7.563e9)),
        (nvml(p2p=True, nvlinks={0: "peer", 1: "peer", 3: "other"}), GpuLink("2 NVLinks", 50e9)),
        (nvml(p2p=True, nvlinks=dict.fromkeys(range(18), "switch")), GpuLink("18 NVLinks", 450e9)),
        (nvml(p2p=True, nvlinks={0: "other"}), GpuLink("PCIe 3 x8, direct", 8 * 0.985e9)),
        (None, None),
    ],
    ids=["host", "PCIe 4", "PCIe of 2030", "NVLink", "switch", "NVLink elsewhere", "no driver"],
)
def test_links_give_what_the_driver_says(driver: Any, link: GpuLink | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert links.between(gpus(2), 0, 1) == link
    assert [end and end.words for end in links.to_host(gpus(1))] == [driver and links._pcie(driver, gpus(1)[0]).words]


def test_a_mig_slice_has_no_link_that_the_driver_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    (slice_,) = (Gpu(0, "A100 MIG 1g.10gb", 10 << 30, (8, 0), "580.65", "MIG-1"),)
    assert links.to_host([slice_]) == [None] and links.between([slice_, slice_], 0, 1) is None


Answer = Callable[[str, int, Mapping[str, str]], None]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`check(n)` writes the page of a machine with n T4s. `each_way` and `right` are what pairs find, and `answer`
    raises what a launch should raise."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))

    def run(n: int, each_way: float, copy: float, right: bool, last_loss: float, answer: Answer) -> Callable[..., Run]:
        def launched(program: Path, env: Mapping[str, str], ranks: int, **options: Any) -> Run:
            answer(program.stem, ranks, env)
            pairs = [[a, b] for b in range(ranks) for a in range(b)]
            rates = [{"dtype": d, "matmul_flops": 4e12} for d in ("float32", "float16")]
            rates += [{"memory_Bps": 2e11}, *({"memory": m, "copy_Bps": copy} for m in ("pageable", "pinned"))]
            training = [{"step_s": 0.1, "loss": loss} for loss in (4.6, last_loss)]
            training += [{"size": "gpu", "dtype": "float16"}, {"peak_bytes": 6 << 30}]
            records: list[dict[str, Any]] = {
                "nothing": [],
                "rates": rates,
                "pairs": [{"pair": p, "each_way_Bps": each_way} for p in pairs]
                + [{"pair": p, "right": right} for p in pairs],
                "all_reduce": [{"nbytes": 4096, "sum_s": 3e-5}, {"nbytes": 1 << 26, "sum_s": 0.02}],
                "training": [{"memory_bytes": 15_636_037_632}, *({"model": "layers"} | record for record in training)],
            }[program.stem]
            results = [RankResult(rank, 0, records=records) for rank in range(ranks)]
            return Run(results, str(program), [], "", "warm", "", 0.1, str(tmp_path))

        return launched

    def check(
        n: int,
        each_way: float = 4e9,
        copy: float = 12e9,
        right: bool = True,
        last_loss: float = 4.5,
        answer: Answer = lambda *asked: None,
        **kind: Any,
    ) -> Any:
        machine = Machine("a CPU", 8, 32 << 30, 1 << 30, kind.get("gpus", gpus(n)))
        monkeypatch.setattr(module, "_run", run(n, each_way, copy, right, last_loss, answer))
        monkeypatch.setattr(module.Machine, "here", lambda: machine)
        monkeypatch.setattr(module, "doctor", lambda: Report(kind.get("rows", [Row("Python", "ok", "3.12")]), 3))
        return gpu_check()

    return check


@pytest.mark.parametrize(
    ("n", "words", "not_words"),
    [
        (0, ["torch found none. So everything below ran on the CPU", "rank 0 and rank 1", "on 2 ranks"], ["link"]),
        (1, ["1 x Tesla T4", "a rank on the GPU, over nccl", "PCIe 3 x16", "Training on 1 rank\n"], ["Between"]),
        (2, ["a rank on each of 2 GPUs", "GPU 1  PCIe 3 x8, by way of the host", "of 14.6 GiB"], ["CPU, over"]),
        (8, ["GPU 6 and GPU 7", "all 8, summing", "size gpu  float16  100 ms a step  at most 6 GiB"], []),
    ],
)  # fmt: skip
def test_the_page_of_no_gpu_one_and_many(check: Any, n: int, words: list[str], not_words: list[str]) -> None:
    page = check(n)
    text = str(page)
    assert page.ok and text.endswith("All that was tried works."), page.failed
    assert not [w for w in words if w not in text] and not [w for w in not_words if w in text], text
    assert max(map(len, text.splitlines())) < 130


def fails_unless(variable: str) -> Answer:
    def answer(program: str, ranks: int, env: Mapping[str, str]) -> None:
        if ranks > 1 and variable not in env:
            raise LaunchError("NCCL says no")

    return answer


def only_in(wanted: str) -> Answer:
    def answer(program: str, ranks: int, env: Mapping[str, str]) -> None:
        if program == wanted:
            raise LaunchError(f"{program} broke")

    return answer


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "P2P is broken": ({"answer": fails_unless("NCCL_P2P_DISABLE")}, "it does after `export NCCL_P2P_DISABLE=1`"),
    "shared memory is": ({"answer": fails_unless("NCCL_SHM_DISABLE")}, "it does after `export NCCL_SHM_DISABLE=1`"),
    "nothing helps": ({"answer": fails_unless("NEVER")}, "a rank on each of 2 GPUs, over nccl"),
    "a loss that stands still": ({"last_loss": 4.6}, "training: the loss of layers doesn't fall"),
    "wrong data": ({"right": False}, "data between GPU 0 and GPU 1 (try `export NCCL_P2P_DISABLE=1`)"),
    "rates": ({"answer": only_in("rates")}, "measuring each GPU"),
    "pairs": ({"answer": only_in("pairs")}, "sending between GPUs"),
    "training": ({"answer": only_in("training")}, "training"),
    "the doctor": ({"rows": [Row("disk", "problem", "full", "free some")]}, "the doctor's disk"),
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_page_names_what_does_not_work_and_goes_on(check: Any, problem: str) -> None:
    how, named = PROBLEMS[problem]
    page = check(2, **how)
    assert len(page.failed) == 1 and named in page.failed[0], page.failed
    assert f"Doesn't work: {page.failed[0]}." in str(page)
    assert ("Training" in str(page)) == (problem != "nothing helps")


def test_what_is_slower_than_its_link_is_named_and_is_no_failure(check: Any) -> None:
    page = check(2, each_way=1e9, copy=6e9)
    assert page.ok and page.slow == ["copies to GPU 0, 6 GB/s", "GPU 0 and GPU 1, 1 GB/s each way"]
    assert str(page).endswith("Slower than the link should be: " + "; ".join(page.slow) + ".")


def test_a_gpu_that_torch_cannot_use_is_named(check: Any) -> None:
    (old,) = (Gpu(0, "Tesla V100", 16 << 30, (7, 0), "580.65", "GPU-0", usable=False, reason="no code for it"),)
    assert "torch can use none of 1: GPU 0 (Tesla V100): no code for it. So everything below ran" in str(
        check(0, gpus=(old,))
    )


def test_the_page_names_no_place_and_no_host(check: Any, tmp_path: Path) -> None:
    where = f"{tmp_path}/runs of {socket.gethostname()}, {Path.home()}/x"
    text = str(check(0, rows=[Row("disk", "problem", where, "free some")]))
    assert "COURSE/runs of HOST, ~/x" in text and str(tmp_path) not in text
