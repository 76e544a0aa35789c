"""Where this code runs: in a notebook's kernel, in IPython on a terminal, or in neither."""

from __future__ import annotations

import sys
from typing import Any


def ipython_shell() -> Any:
    """The IPython shell, of a notebook or a terminal; None in plain Python. Not imported for this: where it runs,
    somebody has imported it."""
    ipython: Any = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def notebook_kernel() -> Any:
    """The kernel that this runs in; None in a script or a terminal, where nothing can be updated in place."""
    return getattr(ipython_shell(), "kernel", None)
