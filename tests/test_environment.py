"""environment.yml, for conda and Binder, offers what pyproject.toml asks for."""

from __future__ import annotations

import tomllib

import yaml
from conftest import ROOT
from packaging.requirements import Requirement

CONDA_NAME = {"torch": "pytorch"}  # where conda-forge's name differs
ONLY_CONDA = {"python", "pip", "cxx-compiler"}


def test_conda_environment_is_in_step_with_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    requirements = {r.name: r for r in map(Requirement, (d for d in conda["dependencies"] if isinstance(d, str)))}
    wanted = {CONDA_NAME.get(r.name, r.name): r for r in map(Requirement, project["dependencies"])}
    assert set(requirements) == set(wanted) | ONLY_CONDA
    for name, requirement in wanted.items():
        assert requirements[name].specifier == requirement.specifier, name
    assert str(requirements["python"].specifier) == str(Requirement(f"python{project['requires-python']}").specifier)


def test_conda_environment_installs_the_package_and_asks_one_channel() -> None:
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert conda["channels"] == ["conda-forge"]
    assert {"pip": ["-e ."]} in conda["dependencies"]
