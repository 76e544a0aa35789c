"""Rules of the repository that a reviewer would otherwise have to remember."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, load_tool

PACKAGE = ROOT / "course_utils"

# Each module of the package and its layer. A module imports only from layers below its own; a folder is one module.
LAYERS = {
    "magic": 5,
    "calibrate": 4,
    "check": 4,
    "doctor": 4,
    "launch": 3,
    "bundle": 3,
    "engines": 2,
    "stream": 2,
    "failure": 2,
    "figures": 2,
    "claim": 2,
    "traces": 2,
    "run": 1,
    "machine": 1,
    "extras": 0,
    "folders": 0,
    "spans": 0,
    "units": 0,
    "results": 0,
    "local_slurm": 0,
    "jobs": 0,
    "published": 1,
    "recorded": 2,
    "predict": 1,
    "rank": 1,
    "workloads": 1,
}
PART_OF = {"checks": "check"}  # the exercises that `check` knows
ALONE = {"rank", "workloads"}  # these import nothing of ours, so that a script that uses them runs elsewhere with just that file
CHAIN = ("rank", "results", "run", "machine", "jobs", "engines", "launch", "magic")  # what a launch passes through
# Of code: blank lines, comments and docstrings are not counted. About 450 are for jobs of a cluster alone (`jobs`, `engines/sbatch`, `engines/slurm` and
# their parts of `run` and `launch`), which a reader who has one machine never meets.
CHAIN_LINES = 2250
MODULE_LINES = 400
FILE_BYTES = 500_000


def tracked(*patterns: str) -> list[str]:
    """Files that git knows or would add; all files where this is not a git checkout."""
    answer = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *patterns], cwd=ROOT, capture_output=True, text=True)
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
        found |= {PART_OF.get(part, part) for part in (name.split(".")[1] for name in names if name.startswith("course_utils."))}
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
        "from ..run import Run\nfrom .. import claim\nfrom . import local\nimport course_utils.check\ndef f():\n    from course_utils import figures, rank\n"
    )
    assert own_imports(source, path) == {"run", "claim", "engines", "check", "figures", "rank"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_stays_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MODULE_LINES, f"{path.name} has {lines} lines: it does two jobs"


def code_lines(source: str) -> int:
    """Lines of a file that are neither blank, nor comment, nor docstring."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        first = node.body[0] if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            prose |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(1 for number, line in enumerate(source.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#") and number not in prose)


def test_launch_chain_can_be_read_in_an_evening() -> None:
    lines = {str(p.relative_to(PACKAGE)): code_lines(p.read_text()) for p in MODULES if unit(p) in CHAIN}
    assert sum(lines.values()) <= CHAIN_LINES, f"{sum(lines.values())} lines: {lines}"


def test_import_is_light() -> None:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        return time.perf_counter() - start

    pairs = [(seconds("import course_utils"), seconds("pass")) for _ in range(5)]
    extra = min(own for own, _ in pairs) - min(bare for _, bare in pairs)
    assert extra < 0.3, f"import course_utils takes {extra:.2f} s beyond the start of the interpreter"


@pytest.mark.parametrize("module", ["course_utils", "course_utils.rank", "course_utils.launch", "course_utils.magic"])
def test_the_kernel_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'torchvision', 'matplotlib.pyplot') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert answer.stdout.strip() == "[]", answer.stdout + answer.stderr


def test_style_types_and_notebooks() -> None:
    answer = subprocess.run([sys.executable, ".ci/lint.py"], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, f"`make lint` fails; `make format` mends some of it\n{answer.stdout}\n{answer.stderr}"


def test_no_large_files() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in tracked() if name != "uv.lock"}  # that one is machine-made, and has every package's hashes
    large = {name: nbytes for name, nbytes in sizes.items() if nbytes > FILE_BYTES}
    assert not large, f"larger than {FILE_BYTES} bytes: {large}; data is drawn or fetched, not committed"


def test_every_make_command_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    documents = ["README.md", "CONTRIBUTING.md", ".ci/run", *tracked("*.yml", "data/*.md", "notebooks/*.ipynb", "solutions/*.ipynb")]
    for name in documents:
        # Commands stand in code: `make lab`, or a line that begins with it, perhaps after variables or a prompt.
        text = (ROOT / name).read_text()
        commands = re.findall(r"(?:^|[`\"]|run: )(?:\$ )?(?:[A-Z]+=\S+ )*make ([a-z-]+)", text, re.M)
        missing = set(commands) - targets
        assert not missing, f"{name} names make targets that do not exist: {missing}"


def test_lock_file_is_in_step() -> None:
    uv = load_tool("bootstrap").find_uv()
    if uv is None:
        pytest.skip("uv is not here")
    answer = subprocess.run([uv, "lock", "--check", "--offline"], cwd=ROOT, capture_output=True, text=True)
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
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
