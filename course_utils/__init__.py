"""The helper package of the course: launch real ranks from a notebook cell, and see what they did.

`%load_ext course_utils` gives the cell magics `%%ranks` and `%%exercise`, and starts importing torch in the background for
the first launch. Everything else is imported from its module, as in `from course_utils.launch import sweep`.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext course_utils` does."""
    from .launch import warm_up
    from .magic import register

    register(shell)
    warm_up()
