"""JupyterLab, at home in this course: `python -m course_utils.lab` starts it, and its first page shows the lessons and
what you've done of each.

The page is an extension of Jupyter Server. A JupyterHub gets it by `jupyter server extension enable course_utils.lab`;
it's at `course`, below the server's address. `jupyter/labextensions` puts a way back there
into JupyterLab.
"""

from __future__ import annotations

FOLDER = "pytorch-on-many-devices"  # the learner's copies of the notebooks


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Where Jupyter Server finds the extension."""
    return [{"module": "course_utils.lab.server"}]
