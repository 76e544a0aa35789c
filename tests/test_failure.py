"""What a failed launch says, tested without real launches."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT

from course_utils.failure import frames
from course_utils.failure.frames import cell_of, died, fold, where
from course_utils.folders import CELL

LIBRARY = sysconfig.get_paths()["purelib"]
TRACEBACK = f'''Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    train()
  File "/home/me/train.py", line 2, in train
    dist.all_reduce(t)
  File "{LIBRARY}/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^
  File "{LIBRARY}/torch/distributed/distributed_c10d.py", line 4181, in all_reduce
    work.wait()
RuntimeError: connection closed
  by a peer'''


def test_frames_of_libraries_are_folded_and_everything_else_stays():
    shown = fold(TRACEBACK).splitlines()
    assert shown == [
        *TRACEBACK.splitlines()[:5],
        "  ... 2 library frames, down to all_reduce in torch/distributed/distributed_c10d.py, line 4181 ...",
        "RuntimeError: connection closed",
        "  by a peer",
    ]


def test_lines_of_the_cell_are_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of Jupyter, which VS Code makes a link of; a file of your own keeps its path."""
    cell, other = tmp_path / "model-0123abcd.py", tmp_path / "mine-0123abcd.py"
    cell.write_text(CELL + "train()\n")
    other.write_text("train()\n")
    traceback = TRACEBACK.replace("/home/me/train.py", str(cell))
    dump = f'Current thread 0x00 (most recent call first):\n  File "{cell}", line 2 in <module>\n'
    assert where(dump, 0) == "rank 0 is: `train()`, line 2 of the cell"
    for shell, name in (
        (None, "Cell"),
        (SimpleNamespace(history_manager=SimpleNamespace(input_hist_parsed=[""] * 6)), "Cell In[5]"),
    ):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert cell_of(str(cell)) == name and cell_of(str(other)) == cell_of("") == ""
        assert fold(traceback, str(cell)).splitlines()[1:4] == [
            f"  {name}, line 3", "    train()", f"  {name}, line 2, in train",
        ]  # fmt: skip
        assert fold(traceback, str(other)) == fold(traceback)


def test_what_is_left_of_the_dump_of_a_crash(tmp_path: Path) -> None:
    """The student's lines, of the thread that died."""
    script = tmp_path / "train.py"
    script.write_text("import ctypes\nctypes.string_at(0)\n")
    dump = f'''Fatal Python error: Segmentation fault

Thread 0x01 (most recent call first):
  File "{script}", line 1 in waits

Current thread 0x02 (most recent call first):
  File "{LIBRARY}/ctypes/__init__.py", line 519 in string_at
  File "{script}", line 2 in <module>
  File "/somewhere/site-packages/course_utils/launching/on_rank/rank_process.py", line 144 in _run_main

Extension modules: torch._C (total: 1)
'''
    assert died(dump, str(script)) == f"  {script}, line 2 in <module>: ctypes.string_at(0)"
    assert died("", "") == died("Fatal Python error: Aborted\n", "") == ""


def test_a_chained_exception_keeps_both_parts():
    both = TRACEBACK + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK
    shown = fold(both)
    assert shown.count("2 library frames") == 2 and "During handling" in shown and shown.count("train()") == 2


def test_a_traceback_without_own_lines_is_left_whole():
    only = "\n".join([TRACEBACK.splitlines()[0], *TRACEBACK.splitlines()[5:]])
    assert fold(only) == only


def test_the_sentence_names_the_wrapper_when_ddp_waits(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("import torch\nmodel(x)\n")
    dump = f'''Current thread 0x00007f (most recent call first):
  File "{LIBRARY}/torch/distributed/distributed_c10d.py", line 1 in _broadcast_coalesced
  File "{LIBRARY}/torch/nn/parallel/distributed.py", line 5 in forward
  File "{LIBRARY}/torch/nn/modules/module.py", line 5 in _call_impl
  File "{script}", line 2 in <module>
  File "/somewhere/course_utils/launching/on_rank/rank_process.py", line 9 in _run_main
'''
    assert where(dump, 1) == "rank 1 waits in DDP's forward: `model(x)`, line 2 of train.py"


@pytest.mark.parametrize(
    "torch",
    [
        "/home/me/.local/lib/python3.11/site-packages/torch",
        "/usr/lib/python3/dist-packages/torch",
        "/opt/conda/lib/python3.12/site-packages/torch",
        "/usr/local/lib64/python3.13/site-packages/torch",
    ],
)
def test_a_library_is_one_wherever_it_is_installed(tmp_path: Path, torch: str) -> None:
    """The ranks may have used another Python than this one, or the user's or the system's packages."""
    script = tmp_path / "train.py"
    script.write_text("import torch\ndist.barrier()\n")
    dump = f'''Current thread 0x00007f (most recent call first):
  File "{torch}/distributed/distributed_c10d.py", line 3 in barrier
  File "{torch}/distributed/c10d_logger.py", line 83 in wrapper
  File "/usr/lib/python3.12/contextlib.py", line 81 in inner
  File "{script}", line 2 in <module>
'''
    assert where(dump, 0) == "rank 0 waits in barrier: `dist.barrier()`, line 2 of train.py"
    assert fold(TRACEBACK.replace(LIBRARY, torch.removesuffix("/torch"))).count("2 library frames") == 1


def test_a_torch_that_a_pth_file_adds_is_a_library_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A student's own package, installed in the same way, is not."""
    for package in ("src/pytorch/torch", "src/mine/my_models"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
        monkeypatch.syspath_prepend(str((tmp_path / package).parent))
    monkeypatch.setattr("course_utils.failure.frames._library_roots", frames._library_roots.__wrapped__)
    assert not frames.is_students(str(tmp_path / "src/pytorch/torch/nn/functional.py"))
    assert frames.is_students(str(tmp_path / "src/mine/my_models/blocks.py"))


def test_a_library_that_is_the_program_is_read_like_the_students_own(tmp_path: Path) -> None:
    """As in `%ranks 2 -m pkg.train`, where somebody else's package hangs: its innermost line, and not that of another
    package."""
    folder = tmp_path / "lib/python3.11/site-packages"
    for package in ("pkg", "other"):
        (folder / package).mkdir(parents=True)
    (folder / "pkg/train.py").write_text("import loop\nloop.run()\n")
    (folder / "pkg/loop.py").write_text("dist.barrier()\n")
    dump = f'''Current thread 0x00007f (most recent call first):
  File "{LIBRARY}/torch/distributed/distributed_c10d.py", line 3 in barrier
  File "{folder}/pkg/loop.py", line 1 in run
  File "{folder}/pkg/train.py", line 2 in <module>
  File "{ROOT}/course_utils/launching/on_rank/rank_process.py", line 9 in _run_main
'''
    assert where(dump, 0) == "rank 0 waits in barrier: `dist.barrier()`, line 1 of loop.py"
    assert where(dump.replace("pkg/loop", "other/loop"), 0).endswith(": `loop.run()`, line 2 of train.py")
    assert where(dump.replace("<module>", "renew_process"), 0).endswith("it was not running your script")
    students = frames.of_program(str(folder / "pkg/train.py"))
    assert students(f"{folder}/pkg/deeper/a.py") and not students(f"{folder}/pkg2/a.py") and students("/home/me/a.py")


def test_a_wait_for_own_processes_is_told_from_a_collective(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nmp.spawn(main)\n")
    dump = f'''Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.12/multiprocessing/connection.py", line 1 in wait
  File "{LIBRARY}/torch/multiprocessing/spawn.py", line 5 in join
  File "{script}", line 2 in <module>
'''
    assert where(dump, 0) == "rank 0 waits for processes that it has started: `mp.spawn(main)`, line 2 of train.py"
