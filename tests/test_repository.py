"""Rules of the repository that a reviewer would otherwise have to remember."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import ROOT, load_tool

import course_utils

PACKAGE = ROOT / "course_utils"

# Each module of the package and its layer. A module imports only from layers below its own; a folder is one module.
LAYERS = {
    "magic": 10,
    "magic_line": 8,
    "recorded": 9,
    "calibration": 8,
    "check": 8,
    "doctor": 8,
    "explore": 10,
    "sweeps": 8,
    "launcher": 7,
    "arguments": 6,
    "cell_help": 9,
    "gpu_check": 9,
    "watch": 6,
    "bundle": 6,
    "failure": 5,
    "traces": 5,
    "run": 4,
    "engines": 3,
    "stream": 2,
    "figures": 2,
    "claims": 4,
    "live": 1,
    "machine": 1,
    "lab": 4,
    "progress": 2,
    "lessons": 1,
    "lesson_modules": 1,
    "samples": 1,
    "provenance": 0,
    "extras": 0,
    "folders": 0,
    "frames": 1,
    "sources": 0,
    "spans": 0,
    "table": 0,
    "pages": 1,
    "card": 1,
    "units": 0,
    "gpu_builds": 0,
    "emulated": 1,
    "sharing_out": 2,
    "results": 0,
    "collectives": 0,
    "deadlocks": 1,
    "completion": 0,
    "magic_names": 0,
    "mistakes": 2,
    "not_emulated": 0,
    "plt_show": 0,
    "local_slurm": 0,
    "clusters": 1,
    "emulation": 2,
    "published": 1,
    "predict": 1,
    "rank": 1,
    "workloads": 1,
}
PART_OF = {"checks": "check"}  # the exercises that `check` knows
ALONE = {
    "rank",
    "workloads",
}  # these import nothing of ours, so that a script that uses them runs elsewhere with just that file
CHAIN = (
    "rank",
    "results",
    "run",
    "machine",
    "sources",
    "engines",
    "arguments",
    "launcher",
    "magic_line",
    "magic",
)  # what a launch passes through
# Of code: blank lines, comments and docstrings are not counted. About 560 are for jobs of a cluster alone
# (`engines/slurm`), which a reader who has one machine never meets, and about 65 ask for emulated GPUs.
CHAIN_LINES = 4400
MODULE_LINES = 430
FILE_BYTES = 500_000

# What only one lesson needs: `notebooks/lesson_NN.py`, or a folder of that name.
LESSON_MODULES = sorted(path for path in (ROOT / "notebooks").rglob("lesson_*/**/*.py")) + sorted(
    (ROOT / "notebooks").glob("lesson_*.py")
)
# Programs that a lesson launches and doesn't show, and the files that it gives to take home.
PROGRAMS = sorted((ROOT / "notebooks" / "programs").glob("*.py"))
TAKE_HOME = sorted((ROOT / "notebooks" / "take_home").glob("*.py"))
FACE = {"course_utils", *(f"course_utils.{name}" for name in course_utils.__all__ if name.islower())}
PARTS = ("controls", "drawing", "explorer", "parts")
FOR_LESSONS = FACE | {  # of explore: what a small explorer of one lesson is made of
    f"course_utils.{name}"
    for name in (
        "clusters",
        "extras",
        "figures.canvas",
        "local_slurm",
        "local_slurm.guard",
        "pages",
        "predict.experiments",
        "spans",
        "table",
        "units",
        "workloads",
        *(f"explore.{part}" for part in PARTS),
    )
}
FOR_RANKS = {f"course_utils.{name}" for name in ("rank", "workloads", "workloads.models")}


def tracked(*patterns: str) -> list[str]:
    """Files that git tracks or would add; all files if this isn't a git checkout."""
    answer = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns], cwd=ROOT, capture_output=True, text=True
    )
    if answer.returncode:
        pytest.skip("not a git checkout")
    return [name for name in answer.stdout.splitlines() if (ROOT / name).exists()]


def unit(path: Path) -> str:
    """The module of the layer table that a file belongs to."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return PART_OF.get(name, name)


def own_imports(source: str, path: Path) -> set[str]:
    """Modules of the layer table that a file imports, at its top or inside a function."""
    package = ["course_utils", *path.relative_to(PACKAGE).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            # `from course_utils import run` names a module, `from course_utils.run import Run` a thing in one.
            names = [f"{stem}.{alias.name}" for alias in node.names] if stem == "course_utils" else [stem]
        else:
            continue
        found |= {
            PART_OF.get(part, part)
            for part in (name.split(".")[1] for name in names if name.startswith("course_utils."))
        }
    return found


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_imports_only_from_layers_below(path: Path) -> None:
    me = unit(path)
    assert me in LAYERS, f"give course_utils/{me} a layer in the table of this test"
    for other in own_imports(path.read_text(), path) - {me}:
        assert me not in ALONE, f"{me} must stand alone, and imports {other}"
        assert other in LAYERS, f"{me} imports {other}, which is not a module of the package"
        assert LAYERS[other] < LAYERS[me], f"{me} (layer {LAYERS[me]}) imports {other} (layer {LAYERS[other]})"


def test_the_layer_rule_sees_every_form_of_import() -> None:
    path = PACKAGE / "engines" / "made_up.py"
    source = (
        "from ..run import Run\nfrom .. import claim\nfrom . import local\nimport course_utils.check\ndef f():\n"
        "    from course_utils import figures, rank\n"
    )
    assert own_imports(source, path) == {"run", "claim", "engines", "check", "figures", "rank"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_stays_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MODULE_LINES, f"{path.name} has {lines} lines: it does two jobs"


def imported(source: str) -> set[str]:
    """The modules that a program imports; of `from a import b` it is a."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def lesson_of(path: Path) -> str:
    """The number of the lesson that a file of `notebooks/`, `solutions/` or `exercises/` belongs to."""
    found = re.match(r"(?:lesson_)?(\d\d)", path.relative_to(ROOT).parts[1])
    assert found, f"{path.name} does not say which lesson it is for: lesson_NN.py"
    return found[1]


def code_of(notebook: Path) -> tuple[str, list[str]]:
    """What a notebook runs in its kernel, as one program, and the programs that it runs on ranks."""
    here, on_ranks = [], []
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code" and cell.source.startswith("%%ranks"):
            on_ranks.append(cell.source.partition("\n")[2])
        elif cell.cell_type == "code" and not cell.source.startswith("%%"):
            here.append(re.sub(r"(?m)^(\s*)(\w+ = )?[%!].*$", r"\1pass", cell.source))
    return "\n".join(here), on_ranks


@pytest.mark.parametrize("path", LESSON_MODULES, ids=lambda p: str(p.relative_to(ROOT / "notebooks")))
def test_a_lesson_module_uses_what_learners_see_and_stays_small(path: Path) -> None:
    """The public face, what all figures are drawn with, and itself; it never looks into the package."""
    ours = {name for name in imported(path.read_text()) if re.match(r"course_utils\b|lesson_|\.", name)}
    own = {name for name in ours if name.startswith((f"lesson_{lesson_of(path)}", "."))}
    assert ours - own <= FOR_LESSONS, f"{path.name} imports {sorted(ours - own - FOR_LESSONS)}"
    lines = len(path.read_text().splitlines())
    assert lines <= MODULE_LINES, f"{path.name} has {lines} lines: make it a folder, lesson_{lesson_of(path)}/"


def test_each_lesson_imports_its_own_module_and_only_that() -> None:
    there = {f"lesson_{lesson_of(path)}" for path in LESSON_MODULES}
    for folder in ("notebooks", "solutions", "exercises"):
        for notebook in sorted((ROOT / folder).glob("*.ipynb")):
            mine = {f"lesson_{lesson_of(notebook)}"} & there
            used = {name for name in imported(code_of(notebook)[0]) if name.startswith("lesson_")}
            assert used <= mine, f"{folder}/{notebook.name} imports {used - mine}"
            assert used == mine or folder != "notebooks", f"{notebook.name} does not import {mine}"


def test_every_public_function_of_a_lesson_module_is_called_in_its_lesson() -> None:
    for path in LESSON_MODULES:
        (notebook,) = (ROOT / "notebooks").glob(f"{lesson_of(path)}_*.ipynb")
        own = path.read_text()
        together = "".join(p.read_text() for p in LESSON_MODULES if lesson_of(p) == lesson_of(path))
        for node in ast.parse(own).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                called = f"lesson_{lesson_of(path)}.{node.name}(" in code_of(notebook)[0]
                assert called or len(re.findall(rf"\b{node.name}\(", together)) > 1, (
                    f"nobody calls {path.name} {node.name}"
                )


@pytest.mark.parametrize("folder", ["notebooks", "solutions", "exercises"])
def test_what_a_notebook_takes_from_its_module_is_there(folder: str) -> None:
    """Also in the deeper sections, which only the slow tests run."""
    for notebook in sorted((ROOT / folder).glob("*.ipynb")):
        for module, name in set(re.findall(r"\b(lesson_\d\d)\.(\w+)", code_of(notebook)[0])):
            assert hasattr(importlib.import_module(module), name), f"{notebook.name} asks for {module}.{name}"


def test_neither_the_package_nor_a_program_on_ranks_imports_a_lesson_module() -> None:
    """Ranks may run on another machine, with no more of the course than what `FOR_RANKS` says."""
    for path in MODULES:
        assert not [name for name in imported(path.read_text()) if name.startswith("lesson_")], path.name
    programs = [
        (notebook.name, program)
        for folder in ("notebooks", "solutions", "exercises")
        for notebook in sorted((ROOT / folder).glob("*.ipynb"))
        for program in code_of(notebook)[1]
    ]
    assert len(programs) > 100
    for name, program in programs:
        ours = {module for module in imported(program) if module.startswith(("course_utils", "lesson_"))}
        assert ours <= FOR_RANKS, f"a program in {name} imports {sorted(ours - FOR_RANKS)}"


def test_a_program_that_a_lesson_launches_travels_as_one_from_a_cell_does() -> None:
    for path in PROGRAMS:
        ours = {name for name in imported(path.read_text()) if name.startswith(("course_utils", "lesson_"))}
        assert ours <= FOR_RANKS, f"{path.name} imports {sorted(ours - FOR_RANKS)}"


def test_what_a_lesson_gives_to_take_home_is_plain_pytorch() -> None:
    for path in TAKE_HOME:
        others = {name.partition(".")[0] for name in imported(path.read_text())} - set(sys.stdlib_module_names)
        framework = {"12_lightning": {"torch", "lightning"}, "12_tf_worker": {"tensorflow", "numpy"}}
        assert others == framework.get(path.stem, {"torch"}), f"{path.name} imports {sorted(others)}"


def test_every_python_file_of_the_notebooks_is_of_a_known_kind() -> None:
    there = {path for path in (ROOT / "notebooks").rglob("*.py") if ".ipynb_checkpoints" not in path.parts}
    assert there == {*LESSON_MODULES, *PROGRAMS, *TAKE_HOME}


def code_lines(source: str) -> int:
    """Lines of a file that aren't blank, comments or docstrings."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        first = (
            node.body[0]
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body
            else None
        )
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            prose |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(
        1
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in prose
    )


def test_launch_chain_can_be_read_in_an_evening() -> None:
    lines = {str(p.relative_to(PACKAGE)): code_lines(p.read_text()) for p in MODULES if unit(p) in CHAIN}
    assert sum(lines.values()) <= CHAIN_LINES, f"{sum(lines.values())} lines: {lines}"


@pytest.mark.parametrize("module", ["course_utils", "course_utils.rank", "course_utils.launcher", "course_utils.magic"])
def test_the_kernel_does_not_import_torch(module: str) -> None:
    code = (
        f"import sys, {module}; print([m for m in ('torch', 'torchvision', 'matplotlib.pyplot') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert answer.stdout.strip() == "[]", answer.stdout + answer.stderr


def test_style_types_and_notebooks() -> None:
    answer = subprocess.run([sys.executable, "tools/lint.py"], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, (
        f"`make lint` fails; `make format` mends some of it\n{answer.stdout}\n{answer.stderr}"
    )


def test_no_large_files() -> None:
    sizes = {
        name: (ROOT / name).stat().st_size for name in tracked() if name != "uv.lock"
    }  # that one is machine-made, and has every package's hashes
    large = {name: nbytes for name, nbytes in sizes.items() if nbytes > FILE_BYTES}
    assert not large, f"larger than {FILE_BYTES} bytes: {large}; data is drawn or fetched, not committed"


def test_every_make_command_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    documents = [
        "README.md",
        "CONTRIBUTING.md",
        "tools/ci",
        *tracked("*.yml", "data/*.md", "notebooks/*.ipynb", "solutions/*.ipynb"),
    ]
    for name in documents:
        # Commands are in code: `make lab`, or a line that begins with it, perhaps after variables or a prompt.
        text = (ROOT / name).read_text()
        commands = re.findall(r"(?:^|[`\"]|run: )(?:\$ )?(?:[A-Z]+=\S+ )*make ([a-z-]+)", text, re.M)
        missing = set(commands) - targets
        assert not missing, f"{name} names make targets that do not exist: {missing}"


def test_lock_file_is_in_step() -> None:
    bootstrap = load_tool("bootstrap")
    if (uv := bootstrap.find_uv()) is None:
        pytest.skip("uv is not here")
    answer = subprocess.run(
        [uv, "lock", "--check", "--offline"], cwd=ROOT, env=bootstrap.uv_environment(), capture_output=True, text=True
    )
    assert answer.returncode == 0, f"run `uv lock`: {answer.stderr}"


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.name)
def test_workflow_has_limits_and_known_steps(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 90, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step


def test_ci_runs_the_versions_that_pyproject_allows() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    allowed = re.search(r'requires-python = ">=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert allowed
    first, behind = (tuple(map(int, v.split("."))) for v in allowed.groups())
    tested = sorted(tuple(map(int, v.split("."))) for v in workflow["jobs"]["test"]["strategy"]["matrix"]["python"])
    assert (tested[0], tested[-1]) == (first, (behind[0], behind[1] - 1))
    fit = sorted(tuple(map(int, v.split("."))) for v in load_tool("bootstrap").PYTHONS)
    assert (fit[0], fit[-1]) == (tested[0], tested[-1]), "bootstrap.py chooses among other Pythons"


def test_ci_script_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK) and os.access(ROOT / "tools" / "ci", os.X_OK)


def test_ci_runs_the_test_command_with_nothing_that_it_does_not_need() -> None:
    """The script itself, with programs that record how they were called: no Slurm, and no PYTHON* of the caller's."""
    answer = _ci_script('echo "PYTHON: ${!PYTHON@}"')
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-2:] == ["make test", "PYTHON: "]
    assert not re.search("slurm|munge|iproute2", answer.stdout)


def test_ci_stops_where_the_tests_fail() -> None:
    answer = _ci_script('[ "$1" != test ]')
    assert answer.returncode != 0 and answer.stdout.splitlines()[-1] == "make test"


def _ci_script(make: str) -> subprocess.CompletedProcess[str]:
    """Run .ci/run on a made-up machine with a few programs: it has what `make test` needs."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bash", "dirname", "env"):
            Path(folder, name).symlink_to(shutil.which(name) or f"/bin/{name}")
        for name, text in {
            "make": make,
            "apt-get": "exit 0",
            "id": "echo 0",
            "git": "",
            "g++": "",
            "python3": "exit 0",
        }.items():
            said = "" if name == "id" else f'echo "{name} $*"\n'
            Path(folder, name).write_text(f"#!{folder}/bash\n{said}{text}\n")
            Path(folder, name).chmod(0o755)
        return subprocess.run(
            [f"{folder}/bash", ROOT / ".ci" / "run"],
            env={"PATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
