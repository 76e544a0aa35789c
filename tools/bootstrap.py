"""Set up the course's environment in `.venv`, from nothing but a Python: this fetches uv if it's missing.

This file runs before anything is installed, so it only uses the standard library, and syntax that Python 3.8 reads.

TORCH=cpu, TORCH=cu126, TORCH=auto, ... choose another build of PyTorch; TORCH=lock goes back to the usual one.
FRAMEWORKS=yes adds Lightning and TensorFlow, for lesson 12; FRAMEWORKS=no removes them. Both choices are remembered.
`bootstrap.py tools` adds what tests and checks need. It stays until the environment is made anew.
COURSE_PYTHON=/path/to/python chooses the interpreter.
"""

from __future__ import annotations

import configparser
import hashlib
import html.parser
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "course.json"
OWN_UV = ROOT / ".uv"
ORDINARY_INDEX = "https://pypi.org/simple"
UV = "0.13.9"  # the version that is fetched where there is no uv, and that wrote uv.lock
PYTHONS = ("3.12", "3.13", "3.11")  # what the course runs on, the first choice first

# GB that the environment needs, to download and on disk: with CUDA (the ordinary build on Linux), and without.
SIZES = {"cuda": (3.2, 5.8), "cpu": (0.5, 1.5)}
FRAMEWORKS = ("lightning", "tensorflow", "accelerate")  # extras of pyproject.toml
FRAMEWORKS_SIZE = (0.4, 1.5)


def say(text: str) -> None:
    print(f"[course] {text}", flush=True)


def stop(text: str) -> None:
    raise SystemExit(f"[course] {text}")


def works(*command: str) -> bool:
    """Whether a program is there and works; a shim or a stub on PATH may not."""
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def works_at_last(command: list[str], **how: object) -> bool:
    """Whether a command that downloads works; it gets a second try, since the network may have failed for a moment."""
    if subprocess.run(command, **how).returncode == 0:  # type: ignore[call-overload]
        return True
    say("that did not work; trying once more")
    return subprocess.run(command, **how).returncode == 0  # type: ignore[call-overload]


# ------------------------------------------------------------------------------------------------- uv


def find_uv() -> str | None:
    home = Path.home()
    places = [shutil.which("uv"), home / ".local/bin/uv", home / ".cargo/bin/uv", VENV / "bin/uv", OWN_UV / "bin/uv"]
    return next((str(place) for place in places if place and works(str(place), "--version")), None)


def install_uv() -> str:
    say("uv isn't installed: fetching it into .uv (about 20 MB)")
    if not (works(sys.executable, "-m", "pip", "--version") and _install_uv_by_pip()):
        _install_uv_by_hand()
    uv = OWN_UV / "bin" / "uv"
    if not works(str(uv), "--version"):
        stop(
            f"{uv} does not run here. Install uv yourself (https://docs.astral.sh/uv/), or use the pip or conda lines"
            " of docs/setup.md."
        )
    return str(uv)


def _install_uv_by_pip() -> bool:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(OWN_UV),
        f"uv=={UV}",
    ]
    return works_at_last(command, stdin=subprocess.DEVNULL)


def _install_uv_by_hand() -> None:
    """Do what pip would do, for a Python without pip: pick the wheel from the index, check its hash, unpack the
    program."""
    index = package_index()
    try:
        page = _get(index.rstrip("/") + "/uv/")
        wheel, digest = pick_wheel(page.decode(), index.rstrip("/") + "/uv/")
        content = _get(wheel)
    except (urllib.error.URLError, OSError) as error:
        stop(
            f"could not fetch uv from {index}: {error}. Behind a proxy set HTTPS_PROXY; with an index of your own set"
            " PIP_INDEX_URL."
        )
    if digest and hashlib.sha256(content).hexdigest() != digest:
        stop(f"{wheel} arrived damaged (its hash differs). Try again.")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".data/scripts/uv"))
        target = OWN_UV / "bin" / "uv"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(name))
        target.chmod(0o755)


def _get(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "text/html", "User-Agent": "course-bootstrap"})
    for last in (False, True):
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.read()
        except urllib.error.URLError:
            if last:
                raise
    raise AssertionError


def package_index() -> str:
    """The package index that pip or uv would ask: from the environment, else from pip's files, else the ordinary
    one."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    home = Path.home()
    files = [
        os.environ.get("PIP_CONFIG_FILE"),
        home / ".config/pip/pip.conf",
        home / ".pip/pip.conf",
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
    ]
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read([str(file)] if file else [])
        except configparser.Error:
            continue
        for section in ("install", "global"):
            if parser.has_option(section, "index-url"):
                return parser.get(section, "index-url").split()[0]
    return ORDINARY_INDEX


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.found.append(href)


def pick_wheel(page: str, base: str) -> tuple[str, str]:
    """The address and sha256 of uv's wheel for this machine, from an index page (PEP 503): of the version that we want,
    or of the newest where the index doesn't have that."""
    links = _Links()
    links.feed(page)
    machine = {"amd64": "x86_64", "arm64": "arm64" if sys.platform == "darwin" else "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    system = "macosx" if sys.platform == "darwin" else "manylinux" if platform.libc_ver()[0] else "musllinux"
    best: tuple[tuple[bool, tuple[int, ...]], str, str] | None = None
    for link in links.found:
        address, _, fragment = urllib.parse.urljoin(base, link).partition("#")
        match = re.fullmatch(r"uv-(\d+(?:\.\d+)*)-py3-none-(\S+)\.whl", urllib.parse.unquote(address.rsplit("/", 1)[1]))
        if not match or system not in match.group(2) or not match.group(2).endswith(machine):
            continue
        version = match.group(1) == UV, tuple(int(part) for part in match.group(1).split("."))
        if best is None or version > best[0]:
            best = version, address, fragment.partition("sha256=")[2]
    if best is None:
        stop(f"{base} has no uv for {system} on {machine}. Use the pip or conda lines of docs/setup.md.")
        raise AssertionError
    return best[1], best[2]


def uv_environment() -> dict[str, str]:
    """What uv runs with. Where the home can't be written to, it keeps its downloads next to the course."""
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")}
    env["UV_COMPILE_BYTECODE"] = "1"  # now, and not in the first cell
    usual = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
    nearest = next(folder for folder in (usual, *usual.parents) if folder.exists())
    if not os.access(str(nearest), os.W_OK):
        env.setdefault("UV_CACHE_DIR", str(OWN_UV / "cache"))
        env.setdefault("UV_PYTHON_INSTALL_DIR", str(OWN_UV / "python"))
    return env


# ------------------------------------------------------------------------------------------------- python

# Printed by a candidate: its version, and whether C headers are there (torch.compile needs them).
PROBE = (
    "import bz2, ctypes, lzma, os, sqlite3, ssl, sys, sysconfig, zlib;print('%d.%d' % sys.version_info[:2],"
    " int(os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h'))))"
)


def probe(python: str) -> tuple[str, bool] | None:
    """Version and whether headers are there; None for a Python that is missing, unfit or incomplete."""
    try:
        answer = subprocess.run(
            [python, "-c", PROBE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
            universal_newlines=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version, _, headers = answer.stdout.strip().partition(" ")
    return (version, headers == "1") if answer.returncode == 0 and version in PYTHONS else None


def choose_python(uv: str) -> str:
    """An interpreter for the environment: the one it has, one of this system, or one that uv fetches."""
    wanted = os.environ.get("COURSE_PYTHON")
    if wanted:
        if probe(shutil.which(wanted) or wanted) is None:
            stop(f"COURSE_PYTHON={wanted} is not a complete Python {', '.join(sorted(PYTHONS))}.")
        return shutil.which(wanted) or wanted
    if VENV_PYTHON.exists() and probe(str(VENV_PYTHON)):
        return str(VENV_PYTHON)
    candidates = [sys.executable] + [shutil.which(f"python{version}") or "" for version in PYTHONS]
    fit = {python: found for python in candidates if python for found in [probe(python)] if found}
    for python, (_, headers) in fit.items():
        if headers:
            return python
    say(f"no Python {', '.join(sorted(PYTHONS))} with its C headers found: uv fetches one (about 35 MB)")
    if works_at_last([uv, "python", "install", PYTHONS[0]], env=uv_environment()):
        return PYTHONS[0]
    if fit:
        python = next(iter(fit))
        say(
            f"that did not work; using {python}. Its C headers are missing, so torch.compile will not run on the CPU"
            " (Debian: apt install python3-dev)."
        )
        return python
    stop(
        "no Python 3.11 to 3.13 found, and uv couldn't fetch one. Install one (Debian, Ubuntu: apt install"
        " python3-dev; macOS: brew install python@3.12)."
    )
    raise AssertionError


# ------------------------------------------------------------------------------------------------- packages


def read_stamp() -> dict[str, str]:
    try:
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError):
        return {}


def wanted_state(tools: bool = False) -> dict[str, str]:
    """What the environment should hold: the lock file, pyproject (both by hash), the build of PyTorch, and the
    frameworks and the tools of maintainers if they are wanted or there."""
    torch = os.environ.get("TORCH") or read_stamp().get("torch", "lock")
    if not re.fullmatch(r"lock|auto|cpu|xpu|cu\d{3}|rocm[\d.]+", torch):
        stop(
            f"TORCH={torch} is not a build of PyTorch. Use cpu, cu126, cu130 and the like, auto, or lock (the default)."
        )
    frameworks = os.environ.get("FRAMEWORKS") or read_stamp().get("frameworks", "no")
    if frameworks not in ("yes", "no"):
        stop(f"FRAMEWORKS={frameworks} is neither yes (Lightning and TensorFlow, for lesson 12) nor no.")
    digest = hashlib.sha256((ROOT / "uv.lock").read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    state = {"lock": digest, "torch": torch}
    if frameworks == "yes":
        state["frameworks"] = "yes"
    if tools or read_stamp().get("tools") == "yes":
        state["tools"] = "yes"
    return state


def torch_packages() -> list[str]:
    """The packages of the lock file that come with PyTorch, which another build replaces."""
    names = set(
        re.findall(
            r'^name = "(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)"$',
            (ROOT / "uv.lock").read_text(),
            re.M,
        )
    )
    return sorted(names - {"nvidia-ml-py"})


def announce(torch: str, frameworks: bool = False) -> None:
    """Say what will be downloaded, and warn if it may not fit."""
    if frameworks and not list(VENV.glob("lib/python3*/site-packages/tensorflow")):
        say(f"Lightning and TensorFlow: about {FRAMEWORKS_SIZE[0]} GB to download and {FRAMEWORKS_SIZE[1]} GB of disk")
    if list(VENV.glob("lib/python3*/site-packages/torch")):
        return
    cuda = sys.platform == "linux" and torch not in ("cpu", "xpu")
    download, disk = SIZES["cuda" if cuda else "cpu"]
    other = (
        f"; without an NVIDIA GPU, TORCH=cpu makes it about {SIZES['cpu'][0]} and {SIZES['cpu'][1]} GB"
        if cuda and torch == "lock"
        else ""
    )
    say(
        f"first set-up: PyTorch{' with CUDA' if cuda else ''} and JupyterLab, up to {download} GB to download and"
        f" {disk} GB of disk{other}. Ctrl-C stops."
    )
    free = shutil.disk_usage(str(ROOT)).free / 1e9
    if free < disk:
        say(f"only {free:.1f} GB are free here; it fits only if uv has most of it in its cache already.")


def sync(uv: str, state: dict[str, str]) -> None:
    torch = state["torch"]
    python = choose_python(uv)
    before = read_stamp()
    other_build = before.get("torch", "lock") != torch  # packages of two builds must not mix
    dropped = (
        torch != "lock" and "frameworks" in before and "frameworks" not in state
    )  # --inexact below would keep them
    if VENV.exists() and (other_build or dropped):
        command = [uv, "venv", "--clear", "--quiet", "--python", python, str(VENV)]
        subprocess.run(command, check=True, cwd=str(ROOT), env=uv_environment())
        python = str(VENV_PYTHON)
    command = [uv, "sync", "--locked", "--python", python]
    if "tools" not in state:
        command.append("--no-dev")
    for extra in FRAMEWORKS if "frameworks" in state else ():
        command += ["--extra", extra]
    if torch != "lock":
        command.append("--inexact")  # leaves the other build of PyTorch alone
        for name in torch_packages():
            command += ["--no-install-package", name]
    env = uv_environment()
    if not works_at_last(command, cwd=str(ROOT), env=env):
        stop(
            "uv could not install the packages (its message is above). Check the network and the free disk space, then"
            " run the same command again."
        )
    if torch != "lock":
        project = (ROOT / "pyproject.toml").read_text()
        requirements = re.findall(r'"((?:torch|torchvision)[<>=!~][^"]*)"', project)
        command = [uv, "pip", "install", "--python", str(VENV_PYTHON), f"--torch-backend={torch}"] + requirements
        if not works_at_last(command, cwd=str(ROOT), env=env):
            stop(f"uv could not install PyTorch for TORCH={torch} (its message is above).")
    STAMP.write_text(json.dumps(state))


def main() -> None:
    if sys.platform == "win32":
        stop("the course runs on Linux, macOS, and on Windows inside WSL2 (in PowerShell: wsl --install).")
    state = wanted_state("tools" in sys.argv[1:])
    if read_stamp() == state and works(str(VENV_PYTHON), "-c", "pass"):
        return
    announce(state["torch"], "frameworks" in state)
    sync(find_uv() or install_uv(), state)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("stopped; run the same command again to go on from there.")
