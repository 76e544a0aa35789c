"""The doctor: each check on made-up machines, and all of them on this one."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from course_utils.machine import doctor as package
from course_utils.machine.doctor import Report, Row, diagnoses, probes
from course_utils.machine.doctor.diagnoses import Gloo, Torch
from course_utils.machine.gpu_builds import arch_fits
from course_utils.machine.here import Gpu, Machine

GIB = 2**30
CU132 = Torch("2.15.0+cu132", "13.2", ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))


def gpu(**changes):
    usual = {"index": 0, "name": "NVIDIA H100", "memory_bytes": 80 * GIB, "capability": (9, 0), "driver": "580.65.06"}
    return Gpu(**{**usual, **changes})


def machine(*gpus, **changes):
    usual = {"name": "a CPU", "cores": 8, "memory_bytes": 32 * GIB, "shm_bytes": 16 * GIB, "gpus": gpus}
    return Machine(**{**usual, **changes})


def only(rows):
    (row,) = rows
    assert bool(row.cure) == (row.status != "ok"), "what is not ok needs a cure, what is ok needs none"
    return row


def test_a_good_gpu():
    row = only(diagnoses.gpus(machine(gpu()), CU132))
    assert (row.name, row.status) == ("GPU 0", "ok")
    assert row.found.startswith("NVIDIA H100, 80 GiB, compute capability 9.0, driver 580.65.06;")


@pytest.mark.parametrize(
    "changes, torch, words, build",
    [
        ({"driver": "535.183.01"}, CU132, "needs driver 580 or newer", "auto"),
        ({"driver": "520.1"}, Torch("2.11.0+cu126", "12.6", ("sm_90",)), "needs driver 525 or newer", "auto"),
        ({"name": "Tesla P100", "capability": (6, 0)}, CU132, "no code for it (it has sm_75", "cu126"),
        # a new driver would not help
        ({"name": "Tesla V100", "capability": (7, 0), "driver": "535.1"}, CU132, "no code for it", "cu126"),
        ({"name": "of 2028", "capability": (13, 0)}, CU132, "no code for it", "auto"),
        ({"usable": False, "reason": "CUDA error: out of memory"}, CU132, "out of memory", "auto"),
        ({}, Torch("2.15.0+cpu"), "a build without CUDA", "auto"),
    ],
)
def test_a_gpu_that_cannot_be_used_names_the_reason_and_the_cure(changes, torch, words, build):
    row = only(diagnoses.gpus(machine(gpu(**changes)), torch))
    assert row.status == "problem" and words in row.found
    assert f"uv pip install --torch-backend={build} torch torchvision" in row.cure


def test_a_driver_is_judged_for_its_own_build():
    assert (
        only(diagnoses.gpus(machine(gpu(driver="535.183.01")), Torch("2.11.0+cu126", "12.6", ("sm_90",)))).status
        == "ok"
    )


def test_without_an_answer_of_torch_the_trial_decides():
    unknown = Torch("2.15.0", asked=False)
    assert only(diagnoses.gpus(machine(gpu()), unknown)).status == "ok"
    assert only(diagnoses.gpus(machine(gpu(usable=False, reason="busy")), unknown)).status == "problem"


def test_every_gpu_has_its_row():
    rows = diagnoses.gpus(machine(gpu(), gpu(index=1, usable=False, reason="ECC error")), CU132)
    assert [(row.name, row.status) for row in rows] == [("GPU 0", "ok"), ("GPU 1", "problem")]


def test_no_gpu_is_fine_unless_a_card_is_there():
    assert only(diagnoses.gpus(machine(), CU132)).status == "ok"
    card = only(diagnoses.gpus(machine(), CU132, cards=2))
    assert card.status == "warning" and "2 NVIDIA cards" in card.found and "--gpus all" in card.cure
    hidden = only(diagnoses.gpus(machine(), CU132, cards=2, visible=""))
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
    assert arch_fits(capability, archs) is fits


MIB = 2**20
TWO = {"jupyterlab": "4.6.6", "ipywidgets": "8.1.9"}
FOUND = [
    (diagnoses.python((3, 10, 4)), "problem", "3.10.4; the course needs 3.11 to 3.13"),
    (diagnoses.python((3, 11, 0)), "ok", "3.11.0"),
    (diagnoses.python((3, 13, 7)), "ok", "3.13.7"),
    (diagnoses.python((3, 14, 0)), "problem", "3.14.0"),
    (diagnoses.torch_build(Torch("")), "problem", "not installed"),
    (diagnoses.torch_build(Torch("2.9.1")), "problem", "2.9.1"),
    (diagnoses.torch_build(Torch("2.10.0")), "ok", "2.10.0"),
    (diagnoses.torch_build(Torch("2.16.0")), "warning", "made for 2.10 to 2.15"),
    (diagnoses.torch_build(Torch("3.0.0a0")), "warning", "3.0.0a0"),
    (diagnoses.torch_build(CU132), "ok", "2.15.0+cu132, built for CUDA 13.2"),
    (diagnoses.torch_build(Torch("2.15.0+cpu")), "ok", "2.15.0+cpu, built for the CPU only"),
    (diagnoses.torch_build(Torch("2.15.0", asked=False)), "ok", "2.15.0"),
    (diagnoses.cores(machine(cores=8), 8, 0.5), "ok", "8 usable"),
    (diagnoses.cores(machine(cores=2), 64, 0.5), "ok", "2 usable of 64"),
    (diagnoses.cores(machine(cores=1), 8, 0.1), "warning", "1 usable"),
    (diagnoses.cores(machine(cores=4), 4, 3.5), "warning", "3.5 busy"),
    (diagnoses.cores(machine(cores=4), 4, None), "ok", "4"),
    (diagnoses.memory(16 * GIB, 12 * GIB), "ok", "16.0 GiB, 12.0 GiB available"),
    (diagnoses.memory(16 * GIB, 5 * GIB // 2), "warning", "2.5 GiB available"),
    (diagnoses.memory(16 * GIB, GIB), "problem", "1.0 GiB available"),
    (diagnoses.memory(4 * GIB, None), "ok", "4.0 GiB"),
    (diagnoses.memory(GIB, None), "problem", "1.0 GiB"),
    (
        diagnoses.shared_memory(machine(shm_bytes=64 * MIB), 64 * MIB),
        "problem",
        "64 MiB: DataLoader workers die with a bus",
    ),
    (diagnoses.shared_memory(machine(gpu(), gpu(), shm_bytes=64 * MIB), 64 * MIB), "problem", "NCCL_SHM_DISABLE=1"),
    (diagnoses.shared_memory(machine(shm_bytes=256 * MIB), 256 * MIB), "warning", "256 MiB"),
    (diagnoses.shared_memory(machine(gpu(), gpu(), shm_bytes=256 * MIB), 256 * MIB), "warning", "too little for NCCL"),
    (diagnoses.shared_memory(machine(shm_bytes=GIB), GIB), "ok", "1 GiB"),
    (diagnoses.shared_memory(machine(shm_bytes=GIB), 3 * MIB), "problem", "1 GiB, of which 3 MiB are free"),
    (diagnoses.shared_memory(machine(shm_bytes=0), 0), "warning", "no /dev/shm"),
    (diagnoses.home_folder(Path("/home/ada"), True), "ok", "/home/ada"),
    (diagnoses.home_folder(Path("/home/ada"), False), "warning", "can't write to /home/ada: JupyterLab may not start"),
    (diagnoses.home_folder(None, False), "warning", "this user has none"),
    (diagnoses.temporary_files(Path("/tmp"), GIB), "ok", "1 GiB free in /tmp"),
    (diagnoses.temporary_files(Path("/tmp"), MIB), "problem", "1 MiB free in /tmp"),
    (diagnoses.temporary_files(None, 0), "problem", "neither /tmp nor another"),
    (diagnoses.ipv6(True, ["::1"]), "ok", "::1"),
    (diagnoses.ipv6(False, ["127.0.0.1", "::1"]), "ok", "none is needed"),
    (diagnoses.ipv6(False, ["::1", "127.0.0.1"]), "warning", "`localhost` means ::1 first"),
    (diagnoses.ipv6(False, None), "ok", "none is needed"),
    (diagnoses.debuggers(""), "ok", "py-spy"),
    (diagnoses.debuggers("Operation not permitted"), "warning", "Operation not permitted"),
    (diagnoses.kernel_cuda(3 * MIB), "warning", "started CUDA and holds 3 MiB"),
    (diagnoses.disk(Path("/course"), True, 50 * GIB), "ok", "50.0 GiB free"),
    (diagnoses.disk(Path("/course"), True, 2 * GIB), "warning", "2.0 GiB free"),
    (diagnoses.disk(Path("/course"), True, GIB // 10), "problem", "0.1 GiB free"),
    (diagnoses.disk(Path("/course"), False, 50 * GIB), "problem", "can't write to /course"),
    (diagnoses.open_files(1024), "ok", "1024"),
    (diagnoses.open_files(256), "warning", "256"),
    (diagnoses.open_files(100), "problem", "100"),
    (diagnoses.loopback("", "box", ["10.0.0.3"]), "ok", "box is 10.0.0.3"),
    (diagnoses.loopback("refused", "box", ["10.0.0.3"]), "problem", "127.0.0.1: refused"),
    (diagnoses.loopback("", "box", None), "warning", "takes too long"),
    (diagnoses.loopback("", "box", []), "warning", "has no address"),
    (diagnoses.compiler("g++", ""), "ok", "g++"),
    (diagnoses.compiler("", ""), "warning", "none found"),
    (diagnoses.compiler("g++", "no such file: vector"), "warning", "no such file: vector"),
    (diagnoses.packages(TWO), "ok", "jupyterlab 4.6.6, ipywidgets 8.1.9"),
    (diagnoses.packages({**TWO, "ipywidgets": None}), "problem", "ipywidgets is missing"),
    (diagnoses.packages({"ipython": "7.34.0", "ipykernel": "6.17.1", "ipywidgets": "7.7.1"}), "ok", "ipython 7.34.0"),
    (diagnoses.packages({"ipython": "7.33.0"}), "problem", "ipython 7.33.0 (needs 7.34) is too old"),
    (diagnoses.packages({**TWO, "jupyterlab": "3.6.1"}), "problem", "jupyterlab 3.6.1 (needs 4.4) is too old"),
    (diagnoses.gloo_ranks(Gloo("done", 4.0)), "ok", "4.0 s"),
    (diagnoses.gloo_ranks(Gloo("start", 0.0, "there's no folder")), "problem", "not tried: there's no folder"),
    (diagnoses.gloo_ranks(Gloo("connect", 3.0, "RuntimeError: no lo")), "problem", "at connect after 3.0 s: RuntimeE"),
    (diagnoses.gloo_ranks(Gloo("import", 1.0, "ImportError: libcudart")), "problem", "cannot be imported: ImportError"),
    (diagnoses.gloo_ranks(Gloo("import", 16.0)), "warning", "still importing"),
    (diagnoses.gloo_ranks(Gloo("sum", 16.0)), "problem", "stuck at sum"),
]


@pytest.mark.parametrize("rows, status, words", FOUND, ids=lambda value: value[0].name if type(value) is list else None)
def test_what_was_found_is_judged(rows, status, words):
    row = only(rows)
    assert row.status == status and words in row.found


def test_cures_that_need_the_name_or_the_option():
    assert "--shm-size" in only(diagnoses.shared_memory(machine(shm_bytes=64 * MIB), 64 * MIB)).cure
    for addresses in (None, []):
        assert "127.0.1.1 box" in only(diagnoses.loopback("", "box", addresses)).cure


def test_the_report_says_ready_or_not():
    fine, doubt, bad = Row("a", "ok", "x"), Row("b", "warning", "y <z>", "do `this`"), Row("c", "problem", "w", "that")
    assert Report([fine, doubt], 3).ok and not Report([fine, bad]).ok
    assert Report([fine, doubt], 3).headline == "This machine is ready for the course: 1 warning (3 s)."
    assert Report([bad, bad, doubt], 3).headline == "This machine is not ready yet: 2 problems and 1 warning (3 s)."
    assert repr(Report([fine, doubt])).splitlines()[1:] == [
        "✓ ok       a  x",
        "! warning  b  y <z>",
        "              → do `this`",
    ]
    page = Report([doubt])._repr_html_()
    assert "y &lt;z&gt;" in page and "<code>this</code>" in page


# Machines that are broken on purpose

LOOK = """
import json, os
from course_utils.machine.doctor import diagnoses, probes, surroundings
from course_utils.machine.doctor.diagnoses import Torch
from course_utils.machine.here import Machine
here = Machine.here()
cu132 = Torch("2.15.0+cu132", "13.2", ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))
rows = surroundings(here) + diagnoses.gpus(here, cu132, probes.nvidia_cards(), os.environ.get("CUDA_VISIBLE_DEVICES"))
print(json.dumps([[row.name, row.status, row.found, row.cure] for row in rows]))
"""
# The kernel answers EPERM to ptrace: a filter of four instructions, as in containers without CAP_SYS_PTRACE.
NO_PTRACE = """
import ctypes, platform, struct
number = {"x86_64": 101, "aarch64": 117}[platform.machine()]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
"""
CUDA_IN_KERNEL = """
import sys, types
cuda = types.SimpleNamespace(
    is_initialized=lambda: True, device_count=lambda: 1, memory_allocated=lambda i: 5 << 30)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
"""
ONE_CORE = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"


def with_card(name: str, capability: str, driver: str, reason: str = "") -> str:
    """NVML and the trial computation answer as on a machine with this card."""
    return f"""
import sys, types
class NVMLError(Exception): pass
def no_slices(handle): raise NVMLError
sys.modules["pynvml"] = types.SimpleNamespace(
    NVMLError=NVMLError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 1,
    nvmlSystemGetDriverVersion=lambda: {driver!r}, nvmlDeviceGetHandleByIndex=lambda i: i,
    nvmlDeviceGetCudaComputeCapability=lambda handle: {capability}, nvmlDeviceGetName=lambda handle: {name!r},
    nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=16 << 30),
    nvmlDeviceGetUUID=lambda handle: "GPU-1", nvmlDeviceGetMigMode=no_slices)
import course_utils.machine.here
card = dict(uuid="1", name={name!r}, memory_bytes=16 << 30, capability=list({capability}), reason={reason!r})
course_utils.machine.here._try_gpus = lambda *asked: dict(listed=[card], reason="", torch="2.15.0")
"""


OLD_IPYTHON = (
    "mkdir -p ipython-7.10.0.dist-info; printf 'Name: ipython\\nVersion: 7.10.0\\n' > ipython-7.10.0.dist-info/METADATA"
)
CARD_ON_THE_BUS = (
    "mkdir -p cards/0; echo 0x10de > cards/0/vendor; echo 0x030200 > cards/0/class;"
    " mount --bind cards /sys/bus/pci/devices"
)
NO_DRIVER = "import sys; sys.modules['pynvml'] = None"  # an import of it fails
LOCALHOST_IS_IPV6 = (
    "ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1;"
    " echo '::1 localhost' > hosts; mount --bind hosts /etc/hosts"
)
# what is broken: (namespaces of its own, which need root; shell before Python; Python before the doctor; what it finds)
BROKEN = {
    "64 MB of shared memory": ("-m", "mount -t tmpfs -o size=64m none /dev/shm", "", "shared memory: problem: 64 MiB"),
    "full shared memory": (
        "-m",
        "mount -t tmpfs -o size=200m none /dev/shm; fallocate -l 180m /dev/shm/left",
        "",
        "shared memory: problem: of which 20 MiB are free",
    ),
    "no loopback": ("-n", "", "", "network: problem: no TCP connection over 127.0.0.1"),
    "no IPv6, but localhost is ::1": ("-mn", LOCALHOST_IS_IPV6, "", "IPv6: warning: `localhost` means ::1 first"),
    "a host name without address": (
        "-u",
        "hostname nobody-knows.invalid",
        "",
        "network: warning: nobody-knows.invalid",
    ),
    "no ptrace": ("", "", NO_PTRACE, "debuggers: warning: Operation not permitted"),
    "CUDA in the kernel": ("", "", CUDA_IN_KERNEL, "this kernel: warning: started CUDA and holds 5 GiB"),
    "HOME read-only": ("", "export HOME=/proc", "", "home folder: warning: can't write to /proc"),
    "the course's folder read-only": ("", "export COURSE_HOME=/proc", "", "disk: problem: can't write to /proc"),
    "a small disk": ("-m", "mount -t tmpfs -o size=100m none $COURSE_HOME", "", "disk: problem: 0.1 GiB free"),
    "no temporary files": (
        "-m",
        "mount -t tmpfs -o ro none /tmp; mount -t tmpfs -o ro none /var/tmp; unset TMPDIR; cd /proc",
        "",
        "temporary files: problem: neither /tmp",
    ),
    "few open files": ("", "ulimit -n 200", "", "open files: problem: at most 200"),
    "one core": ("", "", ONE_CORE, "cores: warning: 1 usable"),
    "no compiler": ("", "unset CXX; PATH=/nowhere", "", "C++ compiler: warning: none found"),
    "an old IPython": ("", OLD_IPYTHON, "", "notebooks: problem: ipython 7.10.0 (needs 7.34) is too old"),
    "a card without a driver": ("-m", CARD_ON_THE_BUS, NO_DRIVER, "GPU: warning: 1 NVIDIA card on the bus"),
    "a driver too old": ("", "", with_card("T4", "(7, 5)", "535.1"), "GPU 0: problem: needs driver 580 or newer"),
    "a V100": ("", "", with_card("V100", "(7, 0)", "580.1", "no kernel"), "GPU 0: problem: no code for it"),
    "a GPU that somebody holds": ("", "", with_card("T4", "(7, 5)", "580.1", "busy"), "GPU 0: problem: failed: busy"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_machine_that_is_broken_on_purpose(broken, tmp_path):
    namespaces, shell, python, expected = BROKEN[broken]
    if sys.platform != "linux":
        pytest.skip("these machines are Linux")
    if namespaces and subprocess.run(["unshare", namespaces, "true"], capture_output=True).returncode:
        pytest.skip(f"{broken}: needs root, to unshare {namespaces}")
    if broken == "no temporary files" and any(
        f.startswith(("/tmp/", "/var/tmp/")) for f in (sys.executable, str(ROOT))
    ):
        pytest.skip(f"{broken}: the course itself lies where they would be")
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    env |= {"COURSE_HOME": str(tmp_path / "home"), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    (tmp_path / "home").mkdir()
    program = [sys.executable, "-c", python + LOOK]
    command = ["sh", "-ec", f'{shell or ":"}\nexec "$@"', "sh", *program]
    done = subprocess.run(
        ["unshare", namespaces, *command] if namespaces else command,
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = {name: (status, found, cure) for name, status, found, cure in json.loads(done.stdout)}
    name, status, words = expected.split(": ", 2)
    assert rows[name][0] == status and words in rows[name][1] and rows[name][2], rows[name]


# On this machine


def run_trial(monkeypatch, script, seconds):
    monkeypatch.setattr(probes, "_RANK", script)
    with probes.Trial() as trial:
        found = trial.finish(time.monotonic() + seconds)
    return *found, trial


def test_a_hanging_rank_is_told_and_killed(monkeypatch):
    facts = '{"version": "2.15.0", "cuda": "13.2", "arch": ["sm_90"]}'
    script = (
        f"import sys, time\nprint({facts!r}, flush=True)\nif sys.argv[2] == '0': print('connected', flush=True)\n"
        "time.sleep(600)"
    )
    torch, gloo, trial = run_trial(monkeypatch, script, 4.0)
    assert torch == Torch("2.15.0", "13.2", ("sm_90",))
    assert (gloo.reached, gloo.error) == ("connect", "")
    assert all(rank.returncode == -9 for rank in trial.ranks)
    assert not trial.folder.exists()


def test_a_failing_rank_ends_the_trial_at_once(monkeypatch):
    start = time.monotonic()
    torch, gloo, trial = run_trial(
        monkeypatch, "import sys, time\nif sys.argv[2] == '1': raise ImportError('libcudart.so')\ntime.sleep(600)", 60
    )
    assert time.monotonic() - start < 60
    assert torch is None
    assert (gloo.reached, gloo.error) == ("import", "ImportError: libcudart.so")
    assert trial.ranks[0].returncode == -9


def test_a_wrong_sum_is_an_error(monkeypatch):
    script = """print('{"version": "2.15.0", "cuda": null, "arch": []}\\nconnected\\nsum 2.0')"""
    torch, gloo, _ = run_trial(monkeypatch, script, 10)
    assert torch == Torch("2.15.0") and gloo.reached == "sum" and gloo.error == "1 + 2 gave 2.0 and 2.0"


def test_probes_find_what_is_there(tmp_path):
    assert probes.loopback_error() == ""
    assert probes.host_addresses("127.0.0.1") == ["127.0.0.1"]
    assert probes.host_addresses("no-such-host.invalid") in ([], None)
    assert probes.writable(tmp_path) and probes.writable(tmp_path / "not" / "there" / "yet")
    assert probes.installed("pytest") and probes.installed("no-such-package") is None
    available = probes.available_memory()
    assert available is None or 0 < available <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_compiler_that_fails_is_told(tmp_path, monkeypatch):
    broken = tmp_path / "broken++"
    broken.write_text("#!/bin/sh\necho 'fatal error: vector: No such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert probes.compiler() == (str(broken), "fatal error: vector: No such file")
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.compiler() == ("", "")


def test_a_machine_that_cannot_be_read_is_a_problem_not_a_crash(monkeypatch):
    def broken():
        raise RuntimeError("NVML says no")

    monkeypatch.setattr(package.Machine, "here", broken)
    monkeypatch.setattr(probes, "_RANK", "raise SystemExit(1)")
    report = package.doctor()
    assert not report.ok
    assert "RuntimeError: NVML says no" in report.rows[0].found


def test_the_whole_doctor():
    done = subprocess.run([sys.executable, "-m", "course_utils.machine.doctor"], capture_output=True, text=True)
    assert done.stderr == ""
    problems = [line for line in done.stdout.splitlines() if line.startswith("✗")]
    assert done.returncode == (1 if problems else 0)
    for name in (
        "Python",
        "torch",
        "GPU",
        "two ranks",
        "cores",
        "memory",
        "disk",
        "home folder",
        "temporary files",
        "network",
        "IPv6",
        "debuggers",
        "C++ compiler",
        "notebooks",
    ):
        assert f" {name}" in done.stdout, name
