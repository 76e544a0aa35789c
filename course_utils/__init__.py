"""Launch real ranks from a notebook cell, see what they did, and compare it with what was predicted.

`%load_ext course_utils` gives a notebook the magics `%%ranks` and `%%exercise`, and lets it import the module of its
lesson, `import lesson_04`. Import everything else from here, as in `from course_utils import claim, launch, Machine`:

    launch       run a script on several ranks, and get its Run
    sweep        launch a script at every point of a grid, several times
    claim        show that a sentence holds here, or fail the cell
    more_checks  what a lesson relies on and doesn't celebrate: one line for all of it
    calibrate    measure what this machine can do: arithmetic, memory, all-reduce
    summary      which exercises of this notebook are solved

    figures      every plot of the course, as in figures.speedup(...)
    explore      figures that you can move, as in explore.memory()
    predict      the cost model: what a run should cost, as in predict.ring_all_reduce(...)
    traces       timelines of what each rank did: what a profiler saw, or an emulated GPU
    published    numbers that others have published, with their sources
    recorded     runs that were recorded on named machines

    Machine      what this computer has: cores, memory, GPUs
    Run          what a launch left: records, logs and exit of every rank
    Sweep        the runs of a sweep
    Samples      repeated measurements of one quantity, with median and quartiles
    Verdict      what comparing two Samples shows: shown, not shown, contradicted
    Provenance   where a number comes from: measured, recorded, published, predicted, emulated
    RankError    a launch failed: which rank was first, why, and where the others stood
    LaunchError  a launch can't be started, and why

Programs that run on ranks import from `course_utils.rank` and `course_utils.workloads` instead: you can copy those two
with a script to a machine that has nothing else of the course.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; at run time `__getattr__` imports what is asked for
    from . import explore, figures, predict
    from .benchmarks.calibration import calibrate
    from .cells.claims import claim, more_checks
    from .check import summary
    from .failure.errors import LaunchError, RankError
    from .launching.launcher import launch
    from .launching.sweeps import sweep
    from .machine.here import Machine
    from .results import published, recorded, traces
    from .results.provenance import Provenance
    from .results.run import Run
    from .results.samples import Samples, Verdict
    from .results.sweep import Sweep

__version__ = "0.1.0"
__all__ = [
    "LaunchError",
    "Machine",
    "Provenance",
    "RankError",
    "Run",
    "Samples",
    "Sweep",
    "Verdict",
    "calibrate",
    "claim",
    "explore",
    "figures",
    "launch",
    "more_checks",
    "predict",
    "published",
    "recorded",
    "summary",
    "sweep",
    "traces",
]
_HOME = {  # the module that a name is from; any other name of `__all__` is a module itself, or one of these below
    "LaunchError": "failure.errors",
    "Machine": "machine.here",
    "Provenance": "results.provenance",
    "RankError": "failure.errors",
    "Run": "results.run",
    "Samples": "results.samples",
    "Sweep": "results.sweep",
    "Verdict": "results.samples",
    "calibrate": "benchmarks.calibration",
    "claim": "cells.claims",
    "launch": "launching.launcher",
    "more_checks": "cells.claims",
    "summary": "check",
    "sweep": "launching.sweeps",
}
_MODULES = {"published": "results.published", "recorded": "results.recorded", "traces": "results.traces"}


if not TYPE_CHECKING:  # otherwise a type checker would believe that every name is here

    def __getattr__(name: str) -> Any:
        """Import a name the first time somebody asks for it (PEP 562)."""
        if name not in __all__:
            raise AttributeError(_no_such(name), obj=sys.modules[__name__])  # no name=: Python would suggest once more
        from importlib import import_module

        module = import_module(f".{_HOME.get(name) or _MODULES.get(name, name)}", __name__)
        return globals().setdefault(name, getattr(module, name) if name in _HOME else module)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


def _no_such(name: str) -> str:
    if name.startswith("_"):  # tools ask for these, and want a quick no
        return f"course_utils has no {name}"
    from difflib import get_close_matches

    by_lower = {known.lower(): known for known in __all__}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f"course_utils has no {name}; " + (
        f"did you mean {by_lower[near[0]]}?" if near else "help(course_utils) lists what it has"
    )


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext course_utils` does: the magics, the modules of the lessons, a record of what's done, and torch
    imported in the background for the first launch."""
    from .cells import lesson_modules
    from .cells.magic import register
    from .folders import keep_fonts
    from .lab import progress
    from .launching.launcher import warm_up

    keep_fonts()
    register(shell)
    lesson_modules.add()
    progress.watch(shell)
    warm_up()


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext course_utils` does: all of this goes, and the process that has imported torch ends."""
    from .cells import lesson_modules
    from .cells.magic import unregister
    from .lab import progress
    from .launching.launcher import cool_down

    unregister(shell)
    lesson_modules.remove()
    progress.unwatch(shell)
    cool_down()
