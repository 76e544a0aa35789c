"""Setting up with nothing but a Python: which uv, which Python, which PyTorch, and how JupyterLab is started."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, load_tool

from course_utils.lab import start as lab

bootstrap = load_tool("bootstrap")


PAGE = """<html><body>
<a href="../../packages/uv-0.9.10-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl#sha256=aaa">x</a>
<a href="../../packages/uv-0.13.8-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl#sha256=bbb"
 data-requires-python="&gt;=3.8">x</a>
<a href="../../packages/uv-0.13.8-py3-none-manylinux_2_28_aarch64.whl#sha256=ccc">x</a>
<a href="../../packages/uv-0.13.8-py3-none-musllinux_1_1_x86_64.whl#sha256=ddd">x</a>
<a href="../../packages/uv-0.13.8-py3-none-macosx_11_0_arm64.whl">x</a>
<a href="../../packages/uv-0.14.0rc1-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl#sha256=eee">x</a>
<a href="../../packages/uv-0.13.8.tar.gz#sha256=fff">x</a></body></html>"""


@pytest.mark.parametrize(
    ("system", "machine", "libc", "wheel", "digest"),
    [
        ("linux", "x86_64", "glibc", "uv-0.13.8-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "bbb"),
        ("linux", "aarch64", "glibc", "uv-0.13.8-py3-none-manylinux_2_28_aarch64.whl", "ccc"),
        ("linux", "x86_64", "", "uv-0.13.8-py3-none-musllinux_1_1_x86_64.whl", "ddd"),
        ("darwin", "arm64", "", "uv-0.13.8-py3-none-macosx_11_0_arm64.whl", ""),
    ],
)
def test_the_wheel_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str, wheel: str, digest: str
) -> None:
    """Of the version that we want, and otherwise the newest that was released."""
    monkeypatch.setattr(bootstrap, "UV", "0.12.0")
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, "2.36"))
    assert bootstrap.pick_wheel(PAGE, "https://host/simple/uv/") == (f"https://host/packages/{wheel}", digest)
    if (system, libc) == ("linux", "glibc") and machine == "x86_64":
        monkeypatch.setattr(bootstrap, "UV", "0.9.10")
        assert bootstrap.pick_wheel(PAGE, "https://host/simple/uv/")[1] == "aaa"


def test_a_home_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_CACHE_HOME", "UV_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert "UV_CACHE_DIR" not in bootstrap.uv_environment()
    monkeypatch.setattr(bootstrap.os, "access", lambda path, how: False)
    assert bootstrap.uv_environment()["UV_CACHE_DIR"].startswith(str(bootstrap.ROOT))
    monkeypatch.setenv("UV_CACHE_DIR", "/elsewhere")
    assert bootstrap.uv_environment()["UV_CACHE_DIR"] == "/elsewhere"


def test_what_downloads_is_tried_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tries = tmp_path / "tries"
    tries.touch()
    for needed, works in ((1, True), (2, True), (3, False)):
        tries.write_text("")
        command = ["sh", "-c", f'echo >> "{tries}"; [ "$(wc -l < "{tries}")" -ge {needed} ]']
        assert bootstrap.works_at_last(command) is works
    assert capsys.readouterr().out.count("trying once more") == 2


def test_no_wheel_for_this_machine_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(SystemExit, match="no uv for .* on vax"):
        bootstrap.pick_wheel(PAGE, "https://host/simple/uv/")


def test_index_of_the_user_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://mirror/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert bootstrap.package_index() == "https://mirror/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://other/simple")
    assert bootstrap.package_index() == "https://other/simple"


def test_a_python_is_judged_by_running_it(tmp_path: Path) -> None:
    assert bootstrap.probe(sys.executable)[0] == ".".join(map(str, sys.version_info[:2]))
    assert bootstrap.probe(str(tmp_path / "missing")) is None
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    assert bootstrap.probe(str(shim)) is None
    shim.write_text("#!/bin/sh\necho '3.9 1'\n")
    assert bootstrap.probe(str(shim)) is None, "too old"


def test_torch_choice_is_remembered_and_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "course.json")
    monkeypatch.delenv("TORCH", raising=False)
    assert bootstrap.wanted_state()["torch"] == "lock"
    bootstrap.STAMP.write_text('{"torch": "cu126"}')
    assert bootstrap.wanted_state()["torch"] == "cu126"
    monkeypatch.setenv("TORCH", "lock")
    assert bootstrap.wanted_state()["torch"] == "lock"
    monkeypatch.setenv("TORCH", "cpu; rm -rf /")
    with pytest.raises(SystemExit, match="not a build of PyTorch"):
        bootstrap.wanted_state()


def test_frameworks_are_asked_for_remembered_and_taken_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "course.json")
    monkeypatch.delenv("FRAMEWORKS", raising=False)
    monkeypatch.delenv("TORCH", raising=False)
    without = bootstrap.wanted_state()
    assert "frameworks" not in without, (
        "the stamp of an environment that was made before there was a choice stays valid"
    )
    monkeypatch.setenv("FRAMEWORKS", "yes")
    wanted = bootstrap.wanted_state()
    assert wanted == {**without, "frameworks": "yes"}
    bootstrap.STAMP.write_text(json.dumps(wanted))
    monkeypatch.delenv("FRAMEWORKS")
    assert bootstrap.wanted_state() == wanted, "remembered"
    monkeypatch.setenv("FRAMEWORKS", "no")
    assert bootstrap.wanted_state() == without
    monkeypatch.setenv("FRAMEWORKS", "tensorflow")
    with pytest.raises(SystemExit, match="neither yes .* nor no"):
        bootstrap.wanted_state()


@pytest.mark.parametrize(("torch", "cleared"), [("lock", False), ("cpu", True)])
def test_frameworks_are_installed_and_removed_by_uv(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, torch: str, cleared: bool
) -> None:
    """Without them uv removes whatever isn't in the lock. With another build of PyTorch it must not, so the environment
    is made from scratch."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "course.json")
    monkeypatch.setattr(bootstrap, "choose_python", lambda uv: "python3")
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    bootstrap.STAMP.write_text(json.dumps({"torch": torch}))
    bootstrap.sync("uv", {"lock": "x", "torch": torch, "frameworks": "yes"})
    assert "--extra lightning --extra tensorflow" in " ".join(commands[0]) and commands[0][:2] == ["uv", "sync"]
    commands.clear()
    bootstrap.sync("uv", {"lock": "x", "torch": torch})
    assert not any("--extra" in command for command in commands)
    assert (commands[0][:3] == ["uv", "venv", "--clear"]) == cleared


def test_tools_are_asked_for_and_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A learner gets none; after `make test`, `make lab` changes nothing."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    for name in ("TORCH", "FRAMEWORKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "course.json")
    monkeypatch.setattr(bootstrap, "choose_python", lambda uv: "python3")
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    learner, maintainer = bootstrap.wanted_state(), bootstrap.wanted_state(tools=True)
    bootstrap.sync("uv", learner)
    assert bootstrap.wanted_state() == learner != maintainer
    bootstrap.sync("uv", maintainer)
    assert bootstrap.wanted_state() == maintainer
    assert ["--no-dev" in command for command in commands] == [True, False]
    assert not any("--clear" in command or "--reinstall" in command for command in commands), "torch stays"


def test_a_learner_gets_no_tools_of_maintainers() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {name for requirement in project["project"]["dependencies"] for name in [requirement.partition(">")[0]]}
    packages = {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    todo = set(needed)
    while todo:
        found = {each["name"] for each in packages.get(todo.pop(), {}).get("dependencies", [])} - needed
        needed |= found
        todo |= found
    assert {"torch", "jupyterlab", "nbformat", "psutil"} <= needed
    assert not needed & {"mypy", "ruff", "pre-commit", "playwright", "pytest", "nbval", "nbstripout"}


def test_extras_are_those_of_pyproject() -> None:
    import tomllib

    from course_utils.machine.optional_packages import EXTRAS

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(bootstrap.FRAMEWORKS) == set(extras) == set(EXTRAS)


def test_another_build_replaces_all_of_torch_and_nothing_else() -> None:
    names = set(bootstrap.torch_packages())
    assert {"torch", "torchvision", "triton"} <= names
    assert any(name.startswith("nvidia-cublas") for name in names)
    assert not names & {"nvidia-ml-py", "numpy", "jupyterlab", "course-utils"}


def test_set_up_is_done_once() -> None:
    """In an environment that's ready, the check takes a moment and changes nothing."""
    if bootstrap.read_stamp() != bootstrap.wanted_state():
        pytest.skip("this environment was not made by `make`")
    stamp = bootstrap.STAMP.stat().st_mtime_ns
    answer = subprocess.run(
        [sys.executable, "tools/bootstrap.py"], cwd=ROOT, capture_output=True, text=True, timeout=20
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert bootstrap.STAMP.stat().st_mtime_ns == stamp


def test_lab_listens_on_loopback_with_a_token() -> None:
    arguments = dict(argument.partition("=")[::2] for argument in lab.arguments(ROOT, 8888, "/tmp/short"))
    assert arguments["--ServerApp.ip"] == "127.0.0.1"
    assert len(arguments["--IdentityProvider.token"]) >= 32
    assert ("--ServerApp.allow_root" in arguments) == (os.geteuid() == 0)
    again = dict(argument.partition("=")[::2] for argument in lab.arguments(ROOT, 8888, "/tmp/short"))
    assert again["--IdentityProvider.token"] != arguments["--IdentityProvider.token"], "a new token each time"


def test_lab_uses_sockets_only_where_their_path_fits() -> None:
    assert lab.socket_fits("/tmp/course-lab-12345678")
    assert not lab.socket_fits("/home/" + "a" * 60)
    if sys.platform == "linux":
        assert "--KernelManager.transport=ipc" in lab.arguments(ROOT, 8888, "/tmp/course-lab-12345678")
        assert "--KernelManager.transport=ipc" not in lab.arguments(ROOT, 8888, "/home/" + "a" * 60)


def test_lab_takes_the_next_port_when_one_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert lab.free_port(port) > port
    monkeypatch.setenv("PORT", "http")
    with pytest.raises(SystemExit, match="not a port"):
        lab.wanted_port()


def test_lab_opens_no_browser_where_none_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "SSH_CONNECTION", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not lab.can_open_browser()
    monkeypatch.setenv("DISPLAY", ":0")
    assert lab.can_open_browser()
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 5000 10.0.0.2 22")
    assert not lab.can_open_browser()
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.setenv("BROWSER", "no")
    assert not lab.can_open_browser()
