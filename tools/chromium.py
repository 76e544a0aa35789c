"""Find a Chromium for the browser test, or install one if possible. Prints a line if there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MACOS = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


def find() -> str | None:
    """The path of a browser that answers `--version`: one of the system, else one that Playwright has fetched."""
    for path in [shutil.which(name) for name in NAMES] + [MACOS, _playwrights_own()]:
        if (
            path and Path(path).exists() and _run([path, "--version"], quiet=True)
        ):  # Ubuntu's chromium-browser may be an empty stub
            return path
    return None


def install() -> str | None:
    """Install one: Debian's own as root, otherwise what Playwright fetches into the user's cache (about 180 MB)."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    if root and shutil.which("apt-get") and "ID=debian" in _os_release():
        print("[course] installing chromium for the browser test (apt-get)", flush=True)
        wanted = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        for _ in range(2):
            _run(["apt-get", "update", "-qq"])
            if _run(wanted):
                break
    if find() is None:
        print("[course] fetching a chromium for the browser test (about 180 MB)", flush=True)
        _run([sys.executable, "-m", "playwright", "install", *(["--with-deps"] if root else []), "chromium"])
    return find()


def _playwrights_own() -> str | None:
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            return playwright.chromium.executable_path
    except Exception:  # without playwright, or without its driver, there is none
        return None


def _os_release() -> str:
    try:
        return Path("/etc/os-release").read_text()
    except OSError:
        return ""


def _run(command: list[str], quiet: bool = False) -> bool:
    silent = subprocess.DEVNULL if quiet else None
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return (
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=silent, stderr=silent, env=env, timeout=900
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


if __name__ == "__main__":
    if not (find() or install()):
        print(
            "[course] no chromium here, and none could be installed: tests in a browser are skipped, and fail in CI."
            " Cure: `apt install chromium`, or any Chrome or Chromium on PATH",
            flush=True,
        )
