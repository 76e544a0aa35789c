"""The doctor: each check on machines that are not here, and the whole on this one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_utils import doctor as package
from course_utils.doctor import Report, Row, checks, looking
from course_utils.doctor.checks import Gloo, Torch
from course_utils.machine import Gpu, Machine

GIB = 2**30
CU132 = Torch("2.15.0+cu132", "13.2", ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))


def gpu(**changes):
    return Gpu(**{"index": 0, "name": "NVIDIA H100", "memory_bytes": 80 * GIB, "capability": (9, 0), "driver": "580.65.06", **changes})


def machine(*gpus, **changes):
    return Machine(**{"name": "a CPU", "cores": 8, "memory_bytes": 32 * GIB, "shm_bytes": 16 * GIB, "gpus": gpus, **changes})


def only(rows):
    (row,) = rows
    assert bool(row.cure) == (row.status != "ok"), "what is not ok needs a cure, what is ok needs none"
    return row


@pytest.mark.parametrize("found, status", [((3, 10, 4), "problem"), ((3, 11, 0), "ok"), ((3, 13, 7), "ok"), ((3, 14, 0), "problem")])
def test_python(found, status):
    assert only(checks.python(found)).status == status


@pytest.mark.parametrize(
    "version, status", [("", "problem"), ("2.10.1", "problem"), ("2.11.0", "ok"), ("2.15.0+cu132", "ok"), ("2.16.0", "warning"), ("3.0.0a0", "warning")]
)
def test_torch(version, status):
    assert only(checks.torch_build(Torch(version))).status == status


def test_torch_says_its_build():
    assert only(checks.torch_build(CU132)).found == "2.15.0+cu132, built for CUDA 13.2"
    assert only(checks.torch_build(Torch("2.15.0+cpu"))).found == "2.15.0+cpu, built for the CPU only"
    assert only(checks.torch_build(Torch("2.15.0", asked=False))).found == "2.15.0"


def test_a_good_gpu():
    row = only(checks.gpus(machine(gpu()), CU132))
    assert (row.name, row.status) == ("GPU 0", "ok")
    assert row.found.startswith("NVIDIA H100, 80 GiB, compute capability 9.0, driver 580.65.06;")


@pytest.mark.parametrize(
    "changes, torch, words",
    [
        ({"driver": "535.183.01"}, CU132, "needs driver 580 or newer"),
        ({"driver": "520.1"}, Torch("2.11.0+cu126", "12.6", ("sm_90",)), "needs driver 525 or newer"),
        ({"name": "Tesla P100", "capability": (6, 0)}, CU132, "no code for it (it has sm_75"),
        ({"name": "Tesla P100", "capability": (6, 0), "driver": "535.1"}, CU132, "no code for it"),  # a new driver would not help
        ({"usable": False, "reason": "CUDA error: out of memory"}, CU132, "out of memory"),
        ({}, Torch("2.15.0+cpu"), "a build without CUDA"),
    ],
)
def test_a_gpu_that_cannot_be_used_names_the_reason_and_the_cure(changes, torch, words):
    row = only(checks.gpus(machine(gpu(**changes)), torch))
    assert row.status == "problem" and words in row.found
    assert "uv pip install --torch-backend=auto torch torchvision" in row.cure


def test_a_driver_is_judged_for_its_own_build():
    assert only(checks.gpus(machine(gpu(driver="535.183.01")), Torch("2.11.0+cu126", "12.6", ("sm_90",)))).status == "ok"


def test_without_an_answer_of_torch_the_trial_decides():
    unknown = Torch("2.15.0", asked=False)
    assert only(checks.gpus(machine(gpu()), unknown)).status == "ok"
    assert only(checks.gpus(machine(gpu(usable=False, reason="busy")), unknown)).status == "problem"


def test_every_gpu_has_its_row():
    rows = checks.gpus(machine(gpu(), gpu(index=1, usable=False, reason="ECC error")), CU132)
    assert [(row.name, row.status) for row in rows] == [("GPU 0", "ok"), ("GPU 1", "problem")]


def test_no_gpu_is_fine_unless_a_card_is_there():
    assert only(checks.gpus(machine(), CU132)).status == "ok"
    card = only(checks.gpus(machine(), CU132, cards=2))
    assert card.status == "warning" and "2 NVIDIA cards" in card.found and "--gpus all" in card.cure
    hidden = only(checks.gpus(machine(), CU132, cards=2, visible=""))
    assert hidden.status == "ok" and "CUDA_VISIBLE_DEVICES" in hidden.found


@pytest.mark.parametrize(
    "capability, archs, fits",
    [
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100f"], True),
        ((10, 3), ["sm_100a"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((7, 0), ["compute_75"], False),
        ((12, 1), ["sm_120"], True),
        ((9, 0), [], False),
    ],
)
def test_architectures(capability, archs, fits):
    assert checks.arch_fits(capability, archs) is fits


@pytest.mark.parametrize(
    "cores, total, load, status, words",
    [
        (8, 8, 0.5, "ok", "8 to use"),
        (2, 64, 0.5, "ok", "2 to use of 64"),
        (1, 8, 0.1, "warning", "1 to use"),
        (4, 4, 3.5, "warning", "3.5 busy"),
        (4, 4, None, "ok", "4"),
    ],
)
def test_cores(cores, total, load, status, words):
    row = only(checks.cores(machine(cores=cores), total, load))
    assert row.status == status and words in row.found


@pytest.mark.parametrize("total, available, status", [(16, 12, "ok"), (16, 2.5, "warning"), (16, 1, "problem"), (4, None, "ok"), (1, None, "problem")])
def test_memory(total, available, status):
    assert only(checks.memory(total * GIB, None if available is None else int(available * GIB))).status == status


@pytest.mark.parametrize("mib, status", [(64, "problem"), (256, "warning"), (1024, "ok"), (0, "warning")])
def test_shared_memory(mib, status):
    row = only(checks.shared_memory(machine(shm_bytes=mib * 2**20)))
    assert row.status == status
    if mib == 64:
        assert "64 MiB" in row.found and "bus error" in row.found and "--shm-size" in row.cure


@pytest.mark.parametrize("gib, writable, status", [(50, True, "ok"), (2, True, "warning"), (0.1, True, "problem"), (50, False, "problem")])
def test_disk(gib, writable, status):
    assert only(checks.disk(Path("/course"), writable, int(gib * GIB))).status == status


@pytest.mark.parametrize("limit, status", [(1024, "ok"), (256, "warning"), (100, "problem")])
def test_open_files(limit, status):
    assert only(checks.open_files(limit)).status == status


def test_network():
    assert only(checks.loopback("", "box", ["10.0.0.3"])).found.endswith("box is 10.0.0.3")
    assert only(checks.loopback("refused", "box", ["10.0.0.3"])).status == "problem"
    for addresses in (None, []):
        row = only(checks.loopback("", "box", addresses))
        assert row.status == "warning" and "127.0.1.1 box" in row.cure


def test_compiler():
    assert only(checks.compiler("g++", "")).status == "ok"
    assert only(checks.compiler("", "")).status == "warning"
    assert "no such file: vector" in only(checks.compiler("g++", "no such file: vector")).found


def test_packages():
    good = {"jupyterlab": "4.6.6", "ipywidgets": "8.1.9"}
    assert only(checks.packages(good)).status == "ok"
    assert "ipywidgets is missing" in only(checks.packages({**good, "ipywidgets": None})).found
    assert "jupyterlab 3.6.1 (needs 4.4) is too old" in only(checks.packages({**good, "jupyterlab": "3.6.1"})).found


@pytest.mark.parametrize(
    "gloo, status, words",
    [
        (Gloo("done", 4.0), "ok", "4.0 s"),
        (Gloo("connect", 3.0, "RuntimeError: Unable to find interface"), "problem", "failed at connect after 3.0 s: RuntimeError"),
        (Gloo("import", 1.0, "ImportError: libcudart"), "problem", "cannot be imported: ImportError"),
        (Gloo("import", 16.0), "warning", "still importing"),
        (Gloo("sum", 16.0), "problem", "stuck at sum"),
    ],
)
def test_two_ranks(gloo, status, words):
    row = only(checks.gloo_ranks(gloo))
    assert row.status == status and words in row.found


def test_the_report_says_ready_or_not():
    fine, doubt, bad = Row("a", "ok", "x"), Row("b", "warning", "y <z>", "do `this`"), Row("c", "problem", "w", "that")
    assert Report([fine, doubt], 3).ok and not Report([fine, bad]).ok
    assert Report([fine, doubt], 3).headline == "This machine is ready for the course: 1 warning (3 s)."
    assert Report([bad, bad, doubt], 3).headline == "This machine is not ready yet: 2 problems and 1 warning (3 s)."
    assert repr(Report([fine, doubt])).splitlines()[1:] == ["✓ a  x", "! b  y <z>", "     → do `this`"]
    page = Report([doubt])._repr_html_()
    assert "y &lt;z&gt;" in page and "<code>this</code>" in page


# On this machine


def run_trial(monkeypatch, script, seconds):
    monkeypatch.setattr(looking, "_RANK", script)
    with looking.Trial() as trial:
        found = trial.finish(time.monotonic() + seconds)
    return *found, trial


def test_a_hanging_rank_is_told_and_killed(monkeypatch):
    facts = '{"version": "2.15.0", "cuda": "13.2", "arch": ["sm_90"]}'
    script = f"import sys, time\nprint({facts!r}, flush=True)\nif sys.argv[2] == '0': print('connected', flush=True)\ntime.sleep(600)"
    torch, gloo, trial = run_trial(monkeypatch, script, 1.0)
    assert torch == Torch("2.15.0", "13.2", ("sm_90",))
    assert (gloo.reached, gloo.error) == ("connect", "")
    assert all(rank.returncode == -9 for rank in trial.ranks)
    assert not trial.folder.exists()


def test_a_failing_rank_ends_the_trial_at_once(monkeypatch):
    start = time.monotonic()
    torch, gloo, trial = run_trial(monkeypatch, "import sys, time\nif sys.argv[2] == '1': raise ImportError('libcudart.so')\ntime.sleep(600)", 60)
    assert time.monotonic() - start < 5
    assert torch is None
    assert (gloo.reached, gloo.error) == ("import", "ImportError: libcudart.so")
    assert trial.ranks[0].returncode == -9


def test_a_wrong_sum_is_an_error(monkeypatch):
    script = """print('{"version": "2.15.0", "cuda": null, "arch": []}\\nconnected\\nsum 2.0')"""
    torch, gloo, _ = run_trial(monkeypatch, script, 10)
    assert torch == Torch("2.15.0") and gloo.reached == "sum" and gloo.error == "1 + 2 gave 2.0 and 2.0"


def test_looking_finds_what_is_there(tmp_path):
    assert looking.loopback_error() == ""
    assert looking.host_addresses("127.0.0.1") == ["127.0.0.1"]
    assert looking.host_addresses("no-such-host.invalid") in ([], None)
    assert looking.writable(tmp_path) and looking.writable(tmp_path / "not" / "there" / "yet")
    assert looking.installed("pytest") and looking.installed("no-such-package") is None
    available = looking.available_memory()
    assert available is None or 0 < available <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_compiler_that_fails_is_told(tmp_path, monkeypatch):
    broken = tmp_path / "broken++"
    broken.write_text("#!/bin/sh\necho 'fatal error: vector: No such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert looking.compiler() == (str(broken), "fatal error: vector: No such file")
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert looking.compiler() == ("", "")


def test_a_machine_that_cannot_be_read_is_a_problem_not_a_crash(monkeypatch):
    def broken():
        raise RuntimeError("NVML says no")

    monkeypatch.setattr(package.Machine, "here", broken)
    monkeypatch.setattr(looking, "_RANK", "raise SystemExit(1)")
    report = package.doctor()
    assert not report.ok
    assert "RuntimeError: NVML says no" in report.rows[0].found


def test_the_whole_doctor_in_under_20_seconds():
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "course_utils.doctor"], capture_output=True, text=True)
    assert time.monotonic() - start < 20
    assert done.stderr == ""
    problems = [line for line in done.stdout.splitlines() if line.startswith("✗")]
    assert done.returncode == (1 if problems else 0)
    for name in ("Python", "torch", "GPU", "two ranks", "cores", "memory", "disk", "network", "C++ compiler", "notebooks"):
        assert f" {name}" in done.stdout, name
