"""Open JupyterLab on the course: on this machine's loopback only, with a token. Extra arguments go to `jupyter lab`,
and win over ours.

PORT=8890 asks for a port (the next free one is taken when it is busy); BROWSER=no opens no browser.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import sys
import tempfile
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST_PAGE = "README.md"


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
    desktop = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"))
    return desktop and not os.environ.get("SSH_CONNECTION")


def socket_fits(folder: str) -> bool:
    """Whether a kernel's Unix sockets can lie in `folder`: an address of one has room for 107 characters."""
    return len(os.fsencode(os.path.join(folder, f"kernel-{uuid.uuid4()}-ipc-5"))) <= 107


def arguments(port: int, runtime: str) -> list[str]:
    """What `jupyter lab` is told."""
    result = [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--LabApp.default_url=/lab/tree/{FIRST_PAGE}",
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
    """Say where JupyterLab is. It hides a token that was chosen for it, so its own message has no address that could be used."""
    print(f"\nJupyterLab is at\n\n    {address}\n", flush=True)
    if os.environ.get("SSH_CONNECTION"):
        host = os.environ["SSH_CONNECTION"].split()[2]
        print(f"From your own computer, first forward the port:\n\n    ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{host}\n", flush=True)
    print("Ctrl-C here ends it.", flush=True)


def main() -> None:
    os.chdir(ROOT)
    # Defaults of this course (no news pop-up, README shown as a page); the user's own settings stay where they are, and win.
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [str(ROOT / ".ci" / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH")]))
    os.environ.setdefault("JUPYTERLAB_WORKSPACES_DIR", str(ROOT / ".lab" / "workspaces"))
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # the kernel of this environment, also when the user has one of the same name
    port = free_port(wanted_port())
    # Home directories may lie on a network, where sockets fail, and have long paths: a local folder, private to this user.
    usual = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="course-lab-", dir=usual if socket_fits(os.path.join(usual, "course-lab-12345678")) else "/tmp") as own:
        runtime = os.environ.setdefault("JUPYTER_RUNTIME_DIR", own)
        args = arguments(port, runtime)
        if not can_open_browser():
            args.append("--no-browser")
        given = {argument.partition("=")[0] for argument in sys.argv[1:]}
        from jupyterlab.labapp import LabApp

        server = LabApp.initialize_server([argument for argument in args if argument.partition("=")[0] not in given] + sys.argv[1:])
        announce(server.port, f"http://127.0.0.1:{server.port}{server.base_url}lab/tree/{FIRST_PAGE}?token={server.identity_provider.token}")
        server.start()


if __name__ == "__main__":
    main()
