# ruff: noqa: F811 - fixtures are imported by their names
"""Where learners run the course: what VS Code does otherwise than JupyterLab, and containers that give little."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from kernels import Kernel, close_shared_kernel, kernel  # noqa: F401

from course_utils import LaunchError, folders
from course_utils.cells.magic import ranks

POOR = [sys.executable, str(ROOT / "tests" / "poor_machine.py")]
LESSON = "04_distributed_data_parallel"


@pytest.mark.parametrize("where", [ROOT, ROOT / "notebooks", Path("/")], ids=str)
def test_vs_code_may_start_the_kernel_anywhere(tmp_path: Path, where: Path) -> None:
    """In the folder of the workspace or in the notebook's, by a setting of its own. It names the notebook in a
    variable."""
    kernel = Kernel(tmp_path, where, COURSE_NOTEBOOK="")
    try:
        kernel.run(f"__vsc_ipynb_file__ = {str(ROOT / 'notebooks' / f'{LESSON}.ipynb')!r}")
        assert kernel.run("%load_ext course_utils\nimport lesson_04").error is None
        cell = kernel.run("%%ranks 2 --engine cold\nprint('hello from', __name__)")
        assert cell.error is None and "rank 1 | hello from __main__" in cell.text, cell
    finally:
        kernel.close()
    assert list((tmp_path / "runs" / LESSON / "latest" / "launches").iterdir())
    records = [json.loads(line) for line in (tmp_path / "runs" / "progress.jsonl").read_text().splitlines()]
    assert [record["notebook"] for record in records] == [LESSON] * 2


def test_a_kernel_that_has_started_cuda_never_forks(kernel: Kernel) -> None:
    """CUDA doesn't survive a fork, so whatever forks is another process, started afresh. torch sets this variable when
    it starts CUDA."""
    watch = "forks = []\nos.register_at_fork(before=lambda: forks.append(1))\n"
    assert kernel.run("import os\nos.environ['CUDA_MODULE_LOADING'] = 'LAZY'\n" + watch).error is None
    for engine, start in (("auto", "warm"), ("cold", "cold"), ("torchrun", "torchrun")):
        cell = kernel.run(f"%%ranks 2 --engine {engine} -o run\nprint('hello')")
        assert cell.error is None and kernel.ask("run.engine") == start, (cell.error, kernel.ask("run.engine"))
    assert kernel.ask("forks") == []


LACKS = """
import ctypes, os, socket
shm = os.statvfs("/dev/shm")
try:
    ipv6 = socket.socket(socket.AF_INET6)
except OSError:
    ipv6 = None
lacks = [ipv6 is None, ctypes.CDLL(None).ptrace(16, 1, 0, 0) == -1, shm.f_frsize * shm.f_blocks == 64 << 20,
         not os.access(os.path.expanduser("~"), os.W_OK)]
"""
TRAINS = """%%ranks 2 -o run
import matplotlib.pyplot as plt, torch, torch.distributed as dist
from torch.utils.data import DataLoader
from course_utils.rank import report
if __name__ == "__main__":
    dist.init_process_group()
    total = sum(batch.sum() for batch in DataLoader(torch.ones(64), batch_size=8, num_workers=1))
    dist.all_reduce(total)
    plt.plot([1, 2])
    plt.show()
    report(total=total.item())
"""
HANGS = """%%ranks 2 --timeout 8 --expect-error timeout
import os, time, torch.distributed as dist
dist.init_process_group()
dist.barrier() if os.environ["RANK"] == "0" else time.sleep(60)
"""


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="needs Linux on x86-64")
def test_a_container_that_gives_little_is_enough(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No IPv6, no ptrace, 64 MB of /dev/shm, a home that can't be written to; and nothing is said about them."""
    tried = subprocess.run([*POOR, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(tried.stderr.strip())
    folder = tmp_path_factory.mktemp("poor")  # a short path, for the sockets of DataLoader's workers
    kernel = Kernel(folder, through=POOR, IPYTHONDIR=str(folder / "ipython"))
    try:
        assert kernel.run(LACKS).error is None and kernel.ask("lacks") == [True] * 4
        assert kernel.run("%load_ext course_utils").error is None
        cell = kernel.run(TRAINS)
        assert cell.error is None and kernel.ask("run.values('total')") == [128.0] * 2, cell
        said = [line for line in cell.text.splitlines() if line.startswith("rank ")]
        assert sorted(said) == ["rank 0 | figure 1", "rank 1 | figure 1"], "no warnings"
        cell = kernel.run(HANGS)
        assert cell.error is None and "rank 0 waits in barrier: " in cell.text and "time.sleep(60)" in cell.text, cell
    finally:
        kernel.close()


def test_matplotlib_keeps_its_fonts_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "course"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    folders.keep_fonts()
    assert "MPLCONFIGDIR" not in folders.os.environ, "in the usual place"
    monkeypatch.setattr(folders.os, "access", lambda path, how: not str(path).startswith(str(tmp_path)))
    folders.keep_fonts()
    own = tmp_path / "course" / "runs" / ".matplotlib"
    assert folders.os.environ["MPLCONFIGDIR"] == str(own) and own.is_dir()
    monkeypatch.setenv("MPLCONFIGDIR", "theirs")
    folders.keep_fonts()
    assert folders.os.environ["MPLCONFIGDIR"] == "theirs"


def test_a_folder_that_cannot_be_written_to_is_named_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", "/proc/nothing")
    with pytest.raises(LaunchError, match="couldn't save the cell .*/proc/nothing.*set COURSE_HOME to another folder"):
        ranks("2", "print(1)", {})
