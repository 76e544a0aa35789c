"""The cell magics `%%ranks` and `%%exercise`: parsing and calling, nothing else."""

from __future__ import annotations

import argparse
import keyword
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .bundle import save_bundle
from .extras import EXTRAS, missing
from .failure import CourseError, LaunchError, RankError
from .folders import save_script
from .launch import ENGINES, checked_script, launch
from .run import Run

_FIRST_LINE = "# Written by %%ranks, whose line this is: so the lines below have the numbers that they have in the cell.\n"


class NothingFailed(CourseError, AssertionError):
    """`--expect-error` was given, and the launch succeeded."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{message}\n{self.format_usage().strip()}; %%ranks? lists the options")


def _number_or(word: str) -> Callable[[str], int | str]:
    def parse(text: str) -> int | str:
        try:
            return text if text == word else int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, or {word!r}; got {text!r}") from None

    return parse


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise LaunchError(f"the line of the magic cannot be read ({error}): {line}") from None


def _ranks_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%ranks", add_help=False, usage="%%%%ranks N|auto [options] [-- arguments of the script]")
    parser.add_argument("ranks", nargs="?", default="auto", type=_number_or("auto"), help="how many; auto: one for each GPU from two on, otherwise 2")
    parser.add_argument("-o", "--output", metavar="NAME", help="bind the Run to this name, on failure too (with --no-launch: the path of the file)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds from the start of the ranks")
    parser.add_argument("--file", default="cell.py", metavar="NAME.py", help="keep the cell as this file, which later cells' scripts can import")
    parser.add_argument("--no-launch", action="store_true", help="only keep the file")
    parser.add_argument("--save", metavar="DIR", help="leave a folder that runs elsewhere: the script and what it imports")
    parser.add_argument("--needs", choices=sorted(EXTRAS), help="an optional package; where it is missing the cell is only kept, and NAME is None")
    parser.add_argument("--expect-error", action="store_true", help="the launch must fail; show the error, and do not stop the notebook")
    parser.add_argument("--engine", default="auto", choices=ENGINES, help="local (warm where possible), cold, torchrun, or slurm")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines that Slurm is asked for; the ranks are those of all together")
    parser.add_argument("--dry", action="store_true", help="start nothing: show the file for Slurm, or with --engine torchrun the command for each node")
    parser.add_argument("--detach", action="store_true", help="leave the job to Slurm; later, Run.load(PATH).refresh() looks at it")
    parser.add_argument("--gpus-per-rank", default=1, type=_number_or("all"), metavar="N|all")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each rank; otherwise the cores are shared out")
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "cpu", "shared"], help="shared: all ranks on one GPU, over gloo")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="N", help="how often torchrun restarts all ranks after a failure")
    parser.add_argument("--quiet", action="store_true", help="show nothing while the ranks run")
    return parser


def ranks(line: str, cell: str, namespace: dict[str, Any]) -> Run | None:
    """Run the cell, a complete program, on several ranks: `%%ranks auto -o run --timeout 60 -- --batch-size 64`."""
    words = _words(line)
    at = words.index("--") if "--" in words else len(words)
    options, args = _ranks_parser().parse_args(words[:at]), words[at + 1 :]
    if options.output and (not options.output.isidentifier() or keyword.iskeyword(options.output)):
        raise LaunchError(f"-o {options.output!r} is not a name that Python can bind")
    try:
        script = checked_script(save_script(_FIRST_LINE + cell, options.file))
    except LaunchError:
        raise
    except ValueError as error:
        raise LaunchError(str(error)) from None
    if options.save:
        print(save_bundle(script, Path(options.save)))
    if options.no_launch:
        print(f"kept as {options.file}")
        if options.output:
            namespace[options.output] = script
        return None
    if options.needs and (lacking := missing(options.needs)):
        print(f"kept as {script.name}, and not run: it {lacking}")
        if options.output:
            namespace[options.output] = None
        return None
    run: Run | None = None
    try:
        run = launch(
            script, options.ranks, args, timeout=options.timeout, engine=options.engine, gpus_per_rank=options.gpus_per_rank, threads=options.threads,
            device=options.device, max_restarts=options.max_restarts, quiet=options.quiet, nodes=options.nodes, dry=options.dry, detach=options.detach,
        )  # fmt: skip
    except RankError as error:
        run = error.run
        if not options.expect_error:
            raise
        print(f"As expected, the launch failed.\n\n{error}")
    except KeyboardInterrupt as stopped:
        run = getattr(stopped, "run", None)
        raise
    else:
        if options.expect_error:
            raise NothingFailed("this launch was expected to fail, and it succeeded")
    finally:
        if options.output and run is not None:
            namespace[options.output] = run
    return None if options.output or options.expect_error else run


def exercise(line: str, cell: str, namespace: dict[str, Any]) -> None:
    """Keep the cell as the answer to an exercise and check it: `%%exercise 04.1`."""
    from .check import check_exercise

    words = _words(line)
    if len(words) != 1:
        raise LaunchError("name one exercise, as in %%exercise 04.1")
    check_exercise(words[0], cell, namespace)


def register(shell: Any) -> None:
    """Give the magics to an IPython shell."""
    for function, words in ((ranks, _ranks_parser().format_help()), (exercise, exercise.__doc__ or "")):

        def magic(line: str, cell: str, function: Callable[..., Any] = function) -> Any:
            return function(line, cell, shell.user_ns)

        magic.__doc__ = words  # what `%%ranks?` shows
        shell.register_magic_function(magic, "cell", function.__name__)
