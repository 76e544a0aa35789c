"""Open JupyterLab on the course: on this machine's loopback only, with a token.

    python -m course_utils.lab [FOLDER] [arguments of `jupyter lab`, which win over ours]

You work on copies of the notebooks, in FOLDER. If you name none, that's pytorch-on-many-devices: in the clone, or where
you are if the course was installed. A file that you've changed stays as you left it; the others follow a newer course.
To change the course itself, name its clone: `python -m course_utils.lab .` opens its own notebooks. PORT=8890 asks for
a port (if it's busy, you get the next free one); BROWSER=no opens no browser.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import uuid
from pathlib import Path

from ..folders import CARRIED, CHECKOUT, COURSE
from . import FOLDER

BROUGHT = (  # what learners open, and what that links to
    "notebooks/*.ipynb", "notebooks/*.md", "notebooks/take_home/*.*", "notebooks/programs/*.py",
    "exercises/*.ipynb", "solutions/*.ipynb", "data/clusters.toml", "docs/emulated_gpus.md",
)  # fmt: skip
AS_BROUGHT = ".brought.json"  # the hash of each file as it was copied, which tells whether somebody has changed it
SETTINGS = Path(__file__).resolve().parent / "jupyter"
# The table of contents is open at the left; what else a workspace holds, JupyterLab adds.
WORKSPACE = {
    "data": {
        "layout-restorer:data": {"left": {"collapsed": False, "visible": True, "current": "@jupyterlab/toc:plugin"}}
    },
    "metadata": {"id": "default"},
}


def course_folder(named: str | None, shown: str | None = None) -> Path:
    """The folder to open, with the notebooks in it. Runs and progress are kept there too, or in the clone that it lies
    in. Whoever tells JupyterLab which folder it's `shown` has notebooks there, and gets no copies."""
    clone = None if CARRIED.is_dir() else CHECKOUT
    if shown and named is None and Path(shown).expanduser().is_dir():
        folder = Path(shown).expanduser().resolve()
        if clone is None:
            os.environ.setdefault("COURSE_HOME", str(folder))
        return folder
    here = Path.cwd()
    if here != clone and any(here.glob("notebooks/[0-9][0-9]_*.ipynb")):
        usual = here
    else:
        usual = Path(os.environ.get("COURSE_HOME") or (clone if clone and os.access(clone, os.W_OK) else here) / FOLDER)
    folder = Path(named or usual).expanduser().resolve()
    if folder != clone:
        bring_notebooks(folder)
    if clone is None or folder != clone / FOLDER:  # there, runs and progress are the clone's
        os.environ["COURSE_HOME"] = str(folder)
    print(f"Your notebooks are in {folder}")
    return folder


def bring_notebooks(folder: Path) -> None:
    """Copy lessons with the files they show, exercises and solutions to `folder`, apart from what somebody has changed
    there."""
    kept = folder / AS_BROUGHT
    try:
        brought = dict(json.loads(kept.read_text()))
    except (OSError, ValueError, TypeError):
        brought = {}
    try:
        for file in (path for pattern in BROUGHT for path in COURSE.glob(pattern)):
            name = str(file.relative_to(COURSE))
            copy = folder / name
            if not copy.exists() or _hash(copy) == brought.get(name):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
                brought[name] = _hash(copy)
        kept.write_text(json.dumps(brought, indent=1))
    except OSError as error:
        raise SystemExit(
            f"couldn't put the notebooks into {folder} ({error.strerror}); name another folder:"
            " `python -m course_utils.lab FOLDER`"
        ) from None


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def open_outline() -> None:
    """See to it that the table of contents is open in a JupyterLab that has never been arranged."""
    from jupyterlab.commands import get_workspaces_dir
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    place = get_workspaces_dir()
    try:
        if not os.path.isdir(place) or not os.listdir(place):
            WorkspacesManager(place).save("default", json.dumps(WORKSPACE))
    except OSError:  # then it's closed
        pass


def free_port(first: int) -> int:
    """The first free port from `first` on."""
    for port in range(first, min(first + 100, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise SystemExit(f"no free port from {first} on; choose another with PORT=")


def wanted_port() -> int:
    text = os.environ.get("PORT") or "8888"
    if not text.isdigit() or not 1024 <= int(text) <= 65535:
        raise SystemExit(f"PORT={text} is not a port; use a number from 1024 to 65535")
    return int(text)


def can_open_browser() -> bool:
    if os.environ.get("BROWSER") in ("no", "none", "0"):
        del os.environ["BROWSER"]
        return False
    desktop = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME")
    )
    return desktop and not os.environ.get("SSH_CONNECTION")


def socket_fits(folder: str) -> bool:
    """Whether a kernel's Unix sockets can lie in `folder`: the address of a socket has room for 107 characters."""
    return len(os.fsencode(os.path.join(folder, f"kernel-{uuid.uuid4()}-ipc-5"))) <= 107


def arguments(root: Path, port: int, runtime: str) -> list[str]:
    """Our arguments for `jupyter lab`."""
    result = [
        f"--ServerApp.root_dir={root}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--LabApp.default_url=/course",
        f"--LabApp.extra_labextensions_path={SETTINGS / 'labextensions'}",
        "--ServerApp.answer_yes=True",  # Ctrl-C ends it, and asks nothing
        "--ServerApp.log_level=WARN",
        # Set here and not on a command line, where other users of the machine could read it.
        f"--IdentityProvider.token={secrets.token_hex(24)}",
    ]
    if os.geteuid() == 0:  # as on most cloud images
        result.append("--ServerApp.allow_root=True")
    if sys.platform == "linux" and socket_fits(runtime):  # no port that other users of this machine could reach
        result.append("--KernelManager.transport=ipc")
    return result


def announce(port: int, address: str) -> None:
    """Say where JupyterLab is. Its own message hides a token that was chosen for it, so nobody could use the address
    there."""
    print(f"\nJupyterLab is at\n\n    {address}\n", flush=True)
    if os.environ.get("SSH_CONNECTION"):
        host = os.environ["SSH_CONNECTION"].split()[2]
        print(
            "From your own computer, first forward the port:\n\n"
            f"    ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{host}\n",
            flush=True,
        )
    print("Ctrl-C here ends it.", flush=True)


def main() -> None:
    given = sys.argv[1:]
    if given[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return
    named = given.pop(0) if given and not given[0].startswith("-") else None
    theirs = dict(argument.partition("=")[::2] for argument in given)
    root = course_folder(named, theirs.get("--ServerApp.root_dir"))
    os.chdir(root)
    # Defaults of this course (its first page, line numbers, no news pop-up); the user's own settings stay, and override
    # them.
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        filter(None, [str(SETTINGS), os.environ.get("JUPYTER_CONFIG_PATH")])
    )
    os.environ.setdefault("JUPYTERLAB_WORKSPACES_DIR", str(root / ".lab" / "workspaces"))
    open_outline()
    os.environ.setdefault("PYTHONSTARTUP", str(SETTINGS / "startup.py"))
    # the kernel of this environment, even if the user has one of the same name
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    port = free_port(wanted_port())
    # Home directories may lie on a network, where sockets fail, and have long paths, so we use a local folder that is
    # private to this user.
    usual = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="course-lab-", dir=usual if socket_fits(os.path.join(usual, "course-lab-12345678")) else "/tmp"
    ) as own:
        runtime = os.environ.setdefault("JUPYTER_RUNTIME_DIR", own)
        args = arguments(root, port, runtime)
        if not can_open_browser():
            args.append("--no-browser")
        from jupyterlab.labapp import LabApp

        server = LabApp.initialize_server([a for a in args if a.partition("=")[0] not in theirs] + given)
        announce(
            server.port, f"http://127.0.0.1:{server.port}{server.default_url}?token={server.identity_provider.token}"
        )
        server.start()
