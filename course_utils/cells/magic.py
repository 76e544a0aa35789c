"""The magics `%%ranks`, `%ranks` and `%%exercise`, and a notebook's defaults, which `%config Ranks` changes."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class
from traitlets import Enum, Float, Int, TraitError

from ..failure.errors import CourseError, LaunchError, RankError, stops_in_a_line
from ..folders import CELL, save_script
from ..launching.bundle import save_bundle
from ..launching.launcher import launch
from ..launching.options import ENGINES
from ..launching.placement import DEVICES
from ..launching.program import checked_program, checked_script
from ..machine.optional_packages import missing
from ..results.run import Run
from ..show.units import is_number, is_whole
from . import cell_help
from .magic_line import DEFAULTS, launch_arguments, page, ranks_options, words_of


class NothingFailed(CourseError, AssertionError):
    """`--expect-error` was given, and the launch succeeded."""


class OtherFailure(CourseError, AssertionError):
    """`--expect-error` was given, and the launch failed in another way."""


def ranks(line: str, cell: str | None, namespace: dict[str, Any], defaults: Mapping[str, Any] = DEFAULTS) -> Run | None:
    """Run the cell, a complete program, on several ranks: `%%ranks auto -o run --timeout 60 -- --batch-size 64`.

    Without a cell, run a module or a script of yours: `%ranks 2 -m pkg.train -o run -- --batch-size 64`, `%ranks 2
    train.py`. `defaults` fills in what the line leaves out.
    """
    words = words_of(line)
    at = words.index("--") if "--" in words else len(words)
    words, args = words[:at], words[at + 1 :]
    file = None
    if cell is None:
        words, file = _script_among(words)
    options = ranks_options(words, defaults)
    if cell is not None and options.module:
        raise LaunchError(
            "a cell and -m are two programs: write %ranks, with one %, in a line of its own to run a module"
        )
    if cell is None and not options.module and file is None:
        raise LaunchError("name what to run, as in `%ranks 2 train.py`, or write %%ranks to run a cell")
    if cell is None and options.no_launch:
        raise LaunchError("--no-launch saves a cell as a file, and %ranks has no cell")
    script = _kept(cell, options) if cell is not None else file and checked_script(file)
    if options.save:
        print(save_bundle(script or checked_program(None, options.module, str(Path.cwd())), Path(options.save)))
    if options.no_launch:
        print(f"saved as {options.file}")
        if options.output:
            namespace[options.output] = script
        return None
    if options.needs and (lacking := missing(options.needs)):
        print(f"{f'saved as {script.name}, but ' if script else ''}not run: it {lacking}")
        if options.output:
            namespace[options.output] = None
        return None
    expected = options.expect_error
    run: Run | None = None
    try:
        run = launch(script, args=args, **launch_arguments(options))
    except RankError as error:
        run = error.run
        if expected is None:
            raise
        if not re.search(expected, error.headline):
            raise OtherFailure(
                f"this launch was expected to fail with {expected!r}, but it failed in another way:\n\n{error}"
            ) from error
        print(f"As expected, the launch failed.\n\n{error}")
    except KeyboardInterrupt as stopped:
        run = getattr(stopped, "run", None)
        raise
    else:
        if expected is not None:
            raise NothingFailed(f"this launch was expected to fail with {expected!r}, but it succeeded")
    finally:
        if options.output and run is not None:
            namespace[options.output] = run
    return None if options.output or expected is not None else run


def _kept(cell: str, options: Namespace) -> Path:
    """Save the cell; returns its file."""
    try:
        return checked_script(save_script(CELL + cell, options.file))
    except LaunchError:
        raise
    except OSError as error:
        raise LaunchError(
            f"couldn't save the cell ({error}); free some space there, or set COURSE_HOME to another folder, as in"
            " `%env COURSE_HOME=/tmp/course`"
        ) from None
    except ValueError as error:
        raise LaunchError(str(error)) from None


def _script_among(words: list[str]) -> tuple[list[str], str | None]:
    """Take the path of a script out of the words of `%ranks`: it's the first word, or the second after the number of
    ranks. Returns the other words and the path."""
    for i, word in enumerate(words[:2]):
        if word.endswith(".py"):
            return words[:i] + words[i + 1 :], word
    return words, None


def exercise(line: str, cell: str, namespace: dict[str, Any]) -> None:
    """Save the cell as the answer to an exercise, and check it."""
    from ..check import check_exercise

    words = words_of(line)
    names = [word for word in words if word != "--hint"]
    if len(names) != 1:
        raise LaunchError("name one exercise, as in %%exercise 04.1, or for a hint %%exercise 04.1 --hint")
    check_exercise(names[0], cell, hint=len(words) > 1)


class _Seconds(Float):
    info_text = "a number of seconds above 0"

    def validate(self, obj: Any, value: Any) -> Any:
        if not is_number(value) or not value > 0:
            self.error(obj, value)
        return float(value)


class _Count(Int):
    info_text = "a whole number above 0"

    def validate(self, obj: Any, value: Any) -> Any:
        if not is_whole(value) or value < 1:
            self.error(obj, value)
        return value


@magics_class
class Ranks(Magics):
    """Defaults for every `%%ranks` of this notebook; an option in the line overrides them. Checks of exercises have
    limits of their own."""

    timeout = _Seconds(
        DEFAULTS["timeout"],
        allow_none=True,
        help="seconds that the ranks may run, as --timeout; None until they only wait for each other",
    ).tag(config=True)
    device = Enum(DEVICES, DEFAULTS["device"], help="what ranks compute on, as --device").tag(config=True)
    engine = Enum(ENGINES, DEFAULTS["engine"], help="what starts the ranks, as --engine").tag(config=True)
    threads = _Count(
        DEFAULTS["threads"], allow_none=True, help="threads for each rank, as --threads; None shares out the cores"
    ).tag(config=True)

    @line_cell_magic("ranks")
    def run_on_ranks(self, line: str, cell: str | None = None) -> Run | None:
        with stops_in_a_line():
            return ranks(line, cell, self.shell.user_ns, {name: getattr(self, name) for name in DEFAULTS})

    @cell_magic("exercise")
    def check_answer(self, line: str, cell: str) -> None:
        """Save the cell as your answer to an exercise, and check it on real ranks: `%%exercise 04.1`.

        A card says what was expected and what each rank got. Hints wait behind a click; `%%exercise 04.1 --hint` opens
        the next one. A blank that you haven't filled in is "not done yet". `from course_utils import summary;
        summary()` shows which exercises you've solved.
        """
        with stops_in_a_line():
            exercise(line, cell, self.shell.user_ns)


Ranks.run_on_ranks.__doc__ = page()  # what `%%ranks?` shows


def register(shell: Any) -> None:
    """Give the magics to an IPython shell."""
    unregister(shell)
    try:
        magics = Ranks(shell)
    except TraitError as error:  # IPython keeps what `%config Ranks...` set, even what was refused
        print(f"Your settings of Ranks are dropped, because one of them can't be used: {error}")
        unregister(shell)
        shell.config.pop(Ranks.__name__, None)
        magics = Ranks(shell)
    shell.register_magics(magics)
    cell_help.register(shell)


def unregister(shell: Any) -> None:
    """Remove the magics again. What `%config` has set stays in IPython's configuration, for the next time."""
    cell_help.unregister(shell)
    ours = [c for c in shell.configurables if isinstance(c, Magics) and type(c).__name__ == Ranks.__name__]
    shell.configurables[:] = [c for c in shell.configurables if c not in ours]
    shell.magics_manager.registry.pop(Ranks.__name__, None)
    for magics in shell.magics_manager.magics.values():
        for name in [name for name, function in magics.items() if getattr(function, "__self__", None) in ours]:
            del magics[name]
