"""Every plot of the course. Each function returns a `Figure`, which shows itself with a sentence that says what to see.

A module is imported when you first ask for one of its figures, here or as `from course_utils.figures import bars`.
What only one lesson draws is in the module next to its notebook, `notebooks/lesson_NN.py`.
"""

from __future__ import annotations

from ..show.on_demand import on_demand

_MODULES = {
    "canvas": ("Figure",),
    "collective_sizes": ("sizes",),
    "curves": ("lines",),
    "image_grid": ("images",),
    "labelled_bars": ("bars",),
    "residual_table": ("Residuals", "residuals"),
    "samples_seen": ("who_has_what",),
    "scaling": ("speedup",),
    "stacked_memory": ("memory",),
    "stacked_times": ("parts",),
    "timeline": ("rank_timeline",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)

__getattr__, __dir__ = on_demand(__name__, _HOME, "figure")
