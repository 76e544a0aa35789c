"""Which of the optional packages are here, and how to get the others. They are the extras of pyproject.toml; lesson 12
uses them."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

EXTRAS = {  # the package that scripts import: its name in a sentence, what pip installs
    "lightning": ("Lightning", "lightning tensorboard"),
    "tensorflow": ("TensorFlow", "tensorflow-cpu"),
    "accelerate": ("Accelerate", "accelerate"),
}


def missing(package: str) -> str:
    """Why scripts that import `package` can't run here, and what to do about it, in one line; empty if it's installed.

    The package itself is not imported: TensorFlow takes seconds. Raises KeyError for a package that isn't one of the
    course's extras.
    """
    name, pip = EXTRAS[package]
    importlib.invalidate_caches()  # it may have been installed a moment ago
    try:
        found = find_spec(package) is not None
    except ImportError:
        found = False
    return (
        ""
        if found
        else (
            f"needs {name}, which is not installed: `make lab FRAMEWORKS=yes` in the course's folder, or `pip install"
            f" {pip}`"
        )
    )
