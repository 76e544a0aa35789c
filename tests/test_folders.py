"""Where a kernel's files lie: apart from those of any other kernel, also of the same notebook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from kernels import Kernel, limit

from course_utils import folders

SAVE = "from course_utils.folders import *; print(save_script('x = {0}', 'model.py').parent); print(new_run_folder())"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_NOTEBOOK", "lesson.ipynb")
    return tmp_path / "runs" / "lesson"


def python(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def test_two_processes_of_one_notebook_keep_their_files_apart(home: Path) -> None:
    (one, launch_one), (two, launch_two) = python(SAVE.format(1)), python(SAVE.format(2))
    assert one != two and Path(one, "model.py").read_text() == "x = 1" and Path(two, "model.py").read_text() == "x = 2"
    assert Path(launch_one).parents[1] == Path(one) and Path(launch_two).parents[1] == Path(two)
    assert (home / "latest").resolve() == Path(two)


def test_a_kernel_that_is_restarted_keeps_its_folder_and_another_kernel_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = "__import__('course_utils.folders').folders.kernel_folder().name"
    one, two = Kernel(tmp_path / "one"), Kernel(tmp_path / "two")
    try:
        first = one.ask(ask)
        assert two.ask(ask) != first
        one.restart(now=True)
        assert one.ask(ask) == first
    finally:
        one.close()
        two.close()


def test_only_the_newest_launches_of_all_kernels_are_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Path(python(SAVE.format(1))[1])
    (old / "run.json").write_text("{}")
    os.utime(old, (1, 1))
    monkeypatch.setattr(folders, "KEEP", 1)
    mine = folders.new_run_folder()
    assert mine.exists() and not old.exists()


def test_the_folder_of_a_kernel_that_has_ended_goes_after_a_day_and_that_of_a_living_one_stays(home: Path) -> None:
    ended, empty = (Path(python(SAVE.format(n))[0]) for n in (1, 2))
    (next((empty / "launches").iterdir())).rmdir()
    mine = folders.kernel_folder()
    for folder in (ended, empty, mine):
        os.utime(folder, (time.time() - 2 * 86400,) * 2)
    living = subprocess.Popen(
        [sys.executable, "-c", "from course_utils.folders import *; print(kernel_folder(), flush=True); input()"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert living.stdout and living.stdin
    other = Path(living.stdout.readline().strip())
    os.utime(other, (time.time() - 2 * 86400,) * 2)
    folders._remove_kernels(home)
    assert ended.exists(), "its launch may still be looked at"
    assert not empty.exists() and mine.exists() and other.exists()
    living.communicate("\n")
    folders._remove_kernels(home)
    assert not other.exists()


def test_a_kernel_goes_on_when_all_of_runs_was_removed(home: Path) -> None:
    folders.save_script("x = 1", "model.py")
    shutil.rmtree(home.parent)
    assert folders.save_script("x = 2", "model.py").exists() and folders.new_run_folder().exists()


def test_a_folder_in_the_place_of_the_link_stays(home: Path) -> None:
    (home / "latest" / "mine").mkdir(parents=True)
    assert folders.kernel_folder().exists() and (home / "latest" / "mine").exists()
    assert not [path for path in home.iterdir() if path.name.startswith(".latest")]


def test_text_that_is_changed_within_a_second_gets_a_later_time(home: Path) -> None:
    """Otherwise Python would take bytecode of the text before for fresh: it compares whole seconds, and sizes."""
    times = []
    for value in range(3):
        path = folders.save_script(f"x = {value}", "model.py").with_name("model.py")
        times.append(int(path.stat().st_mtime))
    assert times[0] < times[1] < times[2]


LAUNCHES = "import os, time; from course_utils import folders; print(folders.temporary_folder(''), flush=True)"


@pytest.mark.parametrize("supervised", [False, True])
def test_temporary_files_go_when_the_process_has_ended_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supervised: bool
) -> None:
    """With SIGKILL here, while a process lives that it has forked; a supervisor that still ends its ranks comes
    first."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    forks = f"{LAUNCHES}\nif os.fork() == 0:\n    print(os.getpid(), flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", forks], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        folder, forked = Path(process.stdout.readline().strip()), int(process.stdout.readline())
        try:
            assert folder.parent == tmp_path and (folder / "tmp").is_dir() and not list((folder / "tmp").iterdir())
            supervisor = os.open(folder / "alive", os.O_WRONLY | os.O_NONBLOCK) if supervised else -1
            process.kill()
            process.wait()
            if supervised:
                time.sleep(0.2)  # longer than the removal below needs
                assert folder.exists()
                os.close(supervisor)
            until = time.monotonic() + limit(1)
            while folder.exists():
                assert time.monotonic() < until, "the temporary files are still there"
                time.sleep(0.01)
        finally:
            os.kill(forked, 9)


def test_a_temporary_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """By a program that cleans /tmp, as some systems have. A place that can't be written to isn't asked again."""
    first = folders.temporary_folder(str(tmp_path))
    assert folders.temporary_folder(str(tmp_path)) == first
    shutil.rmtree(first)
    again = folders.temporary_folder(str(tmp_path))
    assert again != first and again.parent == tmp_path and (again / "tmp").is_dir()
    elsewhere = folders.temporary_folder(str(tmp_path / "missing"))
    assert elsewhere.is_dir() and elsewhere.parent != tmp_path == again.parent
    folders._forget_temporary_folders()
    assert not folders._temporary
