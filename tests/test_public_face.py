"""What a learner imports: `from course_utils import launch, Machine, ...`."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

import course_utils

FACE = course_utils.__all__
SUBMODULES = (
    "launching.launcher", "cells.claims", "benchmarks.calibration", "check", "results.run", "machine.here",
    "failure.errors", "figures", "predict", "results.traces",
)  # fmt: skip


def fresh(code: str, *options: str) -> Any:
    """What `code` binds to `found`, in a new Python."""
    code = f"{textwrap.dedent(code)}\nimport json as _json; print(_json.dumps(found))"
    answer = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", FACE)
def test_each_name_is_what_its_module_calls_so(name: str) -> None:
    thing = getattr(course_utils, name)
    if isinstance(thing, ModuleType):
        assert re.fullmatch(rf"course_utils\.(results\.)?{name}", thing.__name__)
    else:
        assert thing.__name__ == name and thing is getattr(sys.modules[thing.__module__], name)
        assert thing.__module__.startswith("course_utils.")
    assert inspect.getdoc(thing)


def test_no_module_has_the_name_of_a_function() -> None:
    """Importing a module of that name would put it in the function's place, depending on which was imported first."""
    modules = {path.stem for path in (ROOT / "course_utils").iterdir() if path.suffix in ("", ".py")}
    for name in FACE:
        if name.lower() in {m.lower() for m in modules} - {"machine"}:  # of a class: other letters
            assert isinstance(getattr(course_utils, name), ModuleType), name


def test_submodules_that_were_imported_first_hide_nothing() -> None:
    orders = [*((name,) for name in SUBMODULES), SUBMODULES, SUBMODULES[::-1]]  # the test above is about all others
    code = f"""
        import sys, importlib
        found = []
        for order in {orders!r}:
            for name in [m for m in sys.modules if m.partition(".")[0] == "course_utils"]:
                del sys.modules[name]
            for name in order:
                importlib.import_module("course_utils." + name)
            from course_utils import *
            import course_utils
            kinds = [type(getattr(course_utils, name)).__name__ for name in course_utils.__all__]
            same = all(globals()[name] is getattr(course_utils, name) for name in course_utils.__all__)
            found.append([kinds, same])
    """
    for kinds, same in fresh(code):
        assert same
        for name, kind in zip(FACE, kinds, strict=True):
            modules = ("explore", "figures", "predict", "traces", "published", "recorded")
            expected = "module" if name in modules else "function"
            assert kind == ("type" if name[0].isupper() else expected), name


def test_asking_for_a_name_first_hides_no_submodule() -> None:
    code = """
        from course_utils import *
        import course_utils
        import course_utils.launching.launcher, course_utils.results.run, course_utils.machine.here
        from course_utils.cells import claims
        from course_utils.machine import here
        from course_utils.results import run
        from course_utils import check
        found = [course_utils.launching.launcher.launch is launch, run.Run is Run, here.Machine is Machine,
                 check.summary is summary, claims.claim is claim, callable(course_utils.launch)]
    """
    assert all(fresh(code))


def test_the_import_is_light() -> None:
    """No part of the package is imported before somebody asks, and a launch needs none of the large ones."""
    code = """
        import sys
        before = set(sys.modules)
        import course_utils
        {0}
        found = [m for m in sys.modules if m not in before]
    """
    alone = fresh(code.format(""))
    assert not [m for m in alone if m.startswith("course_utils.")]
    large = ("torch", "numpy", "IPython", "matplotlib", "traitlets")
    for use in ("", "dir(course_utils)", "from course_utils import launch, sweep, claim, Machine, Samples, RankError"):
        assert not {m.partition(".")[0] for m in fresh(code.format(use))} & set(large), use
    everything = fresh(code.format("exec('from course_utils import *')"))
    assert not {m.partition(".")[0] for m in everything} & {"torch", "IPython"}


def test_the_import_is_fast() -> None:
    """Measured in processor time, so that other work on this machine makes no difference."""
    code = "import time; t = time.process_time(); import course_utils; found = time.process_time() - t"
    assert (least := min(fresh(code) for _ in range(5))) < 0.05, f"import course_utils takes {least:.3f} s"


def test_dir_shows_the_face_and_nothing_of_its_machinery() -> None:
    assert [name for name in dir(course_utils) if not name.startswith("__")] == sorted(FACE)
    assert {"__doc__", "__version__", "__path__"} <= set(dir(course_utils))


def test_help_says_what_each_name_is_for() -> None:
    listed = dict(re.findall(r"^    (\w+) {2,}(\S.+)$", course_utils.__doc__ or "", re.M))
    assert sorted(listed) == sorted(FACE), "the list in the docstring of course_utils"
    answer = subprocess.run(
        [sys.executable, "-c", "import course_utils; help(course_utils)"], capture_output=True, text=True, cwd=ROOT
    )
    for name, what in listed.items():
        assert re.search(rf"^ +{name} +{re.escape(what)}$", answer.stdout, re.M), name
    assert not answer.stderr


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("lunch", "launch"),
        ("Launch", "launch"),
        ("machine_", "Machine"),
        ("sample", "Samples"),
        ("RankErorr", "RankError"),
        ("calibration_", "calibrate"),
        ("CLAIM", "claim"),
    ],
)
def test_a_wrong_name_suggests_the_near_one(wrong: str, right: str) -> None:
    with pytest.raises(AttributeError, match=rf"^course_utils has no {wrong}; did you mean {right}\?$"):
        getattr(course_utils, wrong)


def test_a_name_that_is_near_to_nothing() -> None:
    with pytest.raises(AttributeError, match=r"^course_utils has no xyzzy; help\(course_utils\) lists what it has$"):
        _ = course_utils.xyzzy  # type: ignore[attr-defined]
    assert not hasattr(course_utils, "_repr_html_") and getattr(course_utils, "torch", None) is None
    with pytest.raises(ImportError, match="cannot import name 'lunch' from 'course_utils'"):
        exec("from course_utils import lunch")


def test_python_suggests_it_once() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", "import course_utils\ncourse_utils.lunch"], capture_output=True, text=True, cwd=ROOT
    )
    assert answer.stderr.count("launch") == 1 and "did you mean launch?" in answer.stderr.splitlines()[-1]


@pytest.mark.parametrize("jedi", [True, False])
def test_tab_completion(jedi: bool) -> None:
    """In IPython, whose completer JupyterLab uses: with jedi it reads the source, without jedi it calls `dir()`."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.Completer.use_jedi = jedi
    shell.run_cell("import course_utils")

    def offered(line: str) -> set[str]:
        from IPython.core.completer import provisionalcompleter

        with provisionalcompleter():
            return {c.text.rpartition(".")[2] for c in shell.Completer.completions(line, len(line))}

    assert set(FACE) <= offered("course_utils.")
    assert set(FACE) <= offered("from course_utils import ")
    assert offered("course_utils.Ma") >= {"Machine"} and offered("from course_utils import swe") >= {"sweep"}
    assert "speedup" in offered("course_utils.figures.sp")


def test_type_checkers_see_it() -> None:
    """`if TYPE_CHECKING` imports the names in `__all__`, each from where `__getattr__` takes it."""

    (block,) = [
        node
        for node in ast.parse((ROOT / "course_utils" / "__init__.py").read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    homes = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    rooms = {name: module.rpartition(".")[0] for name, module in course_utils._MODULES.items()}
    assert homes == {name: course_utils._HOME.get(name) or rooms.get(name) for name in FACE}
    assert sorted(FACE) == FACE


def test_mypy_knows_the_names_and_refuses_others(tmp_path: Path) -> None:
    (tmp_path / "learner.py").write_text(
        "import course_utils\nfrom course_utils import Machine, claim\ncores: str = Machine.here().cores\n"
        "claim('a sentence', True, wise=True)\ncourse_utils.lunch\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        str(tmp_path / "learner.py"),
    ]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
    for line, words in ((3, 'has type "int"'), (4, '"wise" for "claim"'), (5, 'has no attribute "lunch"')):
        assert re.search(rf"learner.py:{line}: error: .*{words}", said), said


def test_reloading_the_package_keeps_the_face() -> None:
    code = """
        import importlib, course_utils
        from course_utils import launch, Run
        importlib.reload(course_utils)
        found = course_utils.launch is launch and course_utils.Run is Run and course_utils.sweep is not None
    """
    assert fresh(code)


def test_threads_that_ask_at_once_get_the_same(tmp_path: object) -> None:
    code = """
        import threading, course_utils
        got, start = [], threading.Barrier(8)
        def ask():
            start.wait()
            got.append([id(getattr(course_utils, name)) for name in course_utils.__all__])
        threads = [threading.Thread(target=ask) for _ in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
        found = len(got) == 8 and all(ids == got[0] for ids in got)
    """
    assert fresh(code)


def test_loading_the_extension_is_quick_and_leaves_torch_to_its_own_process() -> None:
    """`%load_ext` returns at once; the kernel never imports torch."""
    code = """
        import sys, time
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell()
        shell.run_line_magic("load_ext", "course_utils")
        found = "torch" in sys.modules
        shell.run_line_magic("unload_ext", "course_utils")
    """
    started = time.perf_counter()
    assert fresh(code) is False
    assert time.perf_counter() - started < 30
