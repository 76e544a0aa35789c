"""The line of `%%ranks`: its options, what their values mean, and the page that `%%ranks?` shows."""

from __future__ import annotations

import argparse
import difflib
import keyword
import math
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ..failure.errors import LaunchError
from ..launching.options import ENGINES
from ..launching.placement import DEVICES
from ..machine.optional_packages import EXTRAS

# For what the line doesn't say; `%config Ranks.timeout = 300` changes one for a notebook.
DEFAULTS: Mapping[str, Any] = {"timeout": None, "device": "auto", "engine": "auto", "threads": None}
WIDTH = 92  # of the page of help: JupyterLab's pager is narrower than a window

_ABOUT = """Run the cell, a complete torch.distributed program, on several ranks, as torchrun would.

  %%ranks auto -o run                     one rank per GPU, at least 2; `run` gets the Run
  %%ranks 4 --device cpu -- --lr 0.1      on the CPU, with arguments for the program
  %%ranks 1 --device comparable           to compare with a launch of more ranks
  %%ranks 8 --cluster 8xA100              on eight GPUs that you don't have, emulated
  %%ranks 2 --expect-error "NaN|finite"   it must fail, with one of these in its message
  %ranks 2 train.py -- --epochs 3         a script of yours instead of a cell
  %ranks 2 -m pkg.train                   or a module, as `python -m` runs it

The cell is saved as a file and runs in processes of its own, which don't see the notebook's
variables. What a rank passes to `course_utils.rank.report(...)` comes back in the Run: read
it with run.values("loss"). IPython replaces {name} and $name in this line by the notebook's
variables; write {{2}} if you want a plain {2}."""
_AFTER = """Defaults for a whole notebook; an option in the line overrides them:

  %config Ranks.timeout = 300             also Ranks.device, Ranks.engine, Ranks.threads
  %config Ranks                           shows them"""


_NAME_IT = (
    'name the failure that you expect: --expect-error "division by zero" looks for that in the message, as'
    " pytest.raises(match=) does"
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("argument --expect-error: expected"):
            raise LaunchError(_NAME_IT)
        raise LaunchError(f"{message}\n{self.format_usage().strip()}; %%ranks? lists the options")


class _Page(argparse.RawDescriptionHelpFormatter):
    """The same text, however wide the terminal is that the kernel was started from."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=26, width=WIDTH)


def words_of(line: str) -> list[str]:
    """The words of a magic's line, as a shell would split it."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise LaunchError(f"can't split this line into words ({error}); check its quotes: {line}") from None


def ranks_options(words: list[str], defaults: Mapping[str, Any] = DEFAULTS) -> argparse.Namespace:
    """The options in the words of a `%%ranks` line. Raises LaunchError for options that make no sense."""
    options, rest = _parser().parse_known_args(words)
    if rest:
        quotes = "; a pattern with spaces needs quotes" if options.expect_error else ""
        _parser().error(f"unrecognized arguments: {' '.join(rest)}{quotes or _meant(rest, options.ranks)}")
    if options.output and (not options.output.isidentifier() or keyword.iskeyword(options.output)):
        raise LaunchError(f"-o {options.output!r} is not a valid name for a variable")
    if options.expect_error is not None:
        _check_pattern(options.expect_error)
        if options.dry or options.detach or options.no_launch:
            raise LaunchError(
                "--expect-error looks at how a launch ends, and --dry, --detach and --no-launch don't wait for an end"
            )
    options.slow = dict(options.slow or ())
    if options.cluster:  # whatever the notebook's defaults say of real devices
        defaults = {**defaults, "device": "auto", "engine": "cold" if defaults["engine"] == "cold" else "auto"}
    for name in ("timeout", "device", "threads"):
        if getattr(options, name) is None:
            setattr(options, name, defaults[name])
    if options.threads == "auto":
        options.threads = None
    if options.engine is None:  # a notebook's default that can't restart ranks mustn't break a line that asks for it
        options.engine = "auto" if options.max_restarts and defaults["engine"] != "slurm" else defaults["engine"]
    return options


def _meant(rest: list[str], ranks: int | str) -> str:
    """What was probably meant by the first word that is no option of ours; an empty string if nobody can tell."""
    name, _, value = rest[0].partition("=")
    if not name.startswith("-"):
        return ""
    if re.fullmatch("-+(n|np|nproc.?per.?node|ranks|world.?size)", name):
        return f". The number of ranks stands by itself: %%ranks {value or ranks}"
    ours = [option for action in _parser()._actions for option in action.option_strings]
    name = name.lower() if len(name) < 4 else re.sub("^-*", "--", name.lower().replace("_", "-"))
    if near := difflib.get_close_matches(name, ours, n=1, cutoff=0.7):
        return f". Did you mean {near[0]}?"
    return f". What your program gets stands after --, as in %%ranks {ranks} -- {' '.join(rest)}"


def _check_pattern(pattern: str) -> None:
    try:
        fits_any = re.search(pattern, "") is not None
    except re.error as error:
        raise LaunchError(
            f"--expect-error {pattern!r} is not a regular expression ({error}); re.escape makes one from plain text"
        ) from None
    if not pattern:
        raise LaunchError(_NAME_IT)
    if fits_any:
        raise LaunchError(f"--expect-error {pattern!r} matches any failure; name the one that you expect")


def complete(line: str, word: str) -> list[str]:
    """Completions for the last word of a line that begins with `%%ranks`; none after --."""
    before = line[: len(line) - len(word)].split()
    if "--" in before:
        return []
    actions = {option: action for action in _parser()._actions for option in action.option_strings}
    last = actions.get(before[-1]) if before else None
    if last is not None and last.choices:
        found = [str(choice) for choice in last.choices]
    else:
        found = [option for option in actions if option.startswith("--")] if word.startswith("-") else []
    return [option for option in found if option.startswith(word)]


def page() -> str:
    """What `%%ranks?` shows."""
    return _parser().format_help().rstrip()


def _number_or(word: str) -> Callable[[str], int | str]:
    def parse(text: str) -> int | str:
        try:
            return text if text == word else int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number above 0, or {word!r}; got {text!r}") from None

    return parse


def _seconds(text: str) -> float:
    """`90`, `90s`, `5m` or `1.5h` as seconds."""
    number, unit = re.fullmatch(r"(.*?)\s*([smh]?)", text.strip(), re.S).groups()  # type: ignore[union-attr]
    try:
        seconds = float(number) * {"": 1, "s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"must be a time above 0: 90 or 90s, 5m or 1h; got {text!r}")
    return seconds


def _straggler(text: str) -> tuple[int, float]:
    try:
        rank, times = text.split("=")
        return int(rank), float(times)
    except ValueError:
        raise argparse.ArgumentTypeError(f"write RANK=X, as in 3=1.3; got {text!r}") from None


def _parser() -> argparse.ArgumentParser:
    usage = "%%%%ranks N|auto [options] [-- arguments of the program]"
    parser = _Parser(
        prog="%%ranks", add_help=False, usage=usage, description=_ABOUT, epilog=_AFTER, formatter_class=_Page
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "ranks",
        nargs="?",
        default="auto",
        type=_number_or("auto"),
        help="how many, N or auto; auto: one for each GPU if there are two or more, otherwise 2",
    )
    where.add_argument(
        "--device",
        choices=DEVICES,
        metavar="NAME",
        help="auto: GPUs if there are enough, otherwise the CPU. cuda: GPUs or an error. cpu. comparable, for launches"
        " that you'll compare: GPUs if there are two or more, otherwise the CPU, however many ranks. shared: all ranks"
        " on one GPU",
    )
    where.add_argument(
        "--threads", type=_number_or("auto"), metavar="N|auto", help="threads for each rank; auto shares out the cores"
    )
    where.add_argument("--gpus-per-rank", default=1, type=_number_or("all"), metavar="N|all", help="default 1")
    where.add_argument(
        "--engine", choices=ENGINES, metavar="NAME", help="auto, local (warm where possible), cold, torchrun, or slurm"
    )
    where.add_argument(
        "--max-restarts", type=int, default=0, metavar="N", help="how often torchrun restarts all ranks after a failure"
    )
    modelled = parser.add_argument_group("on emulated GPUs")
    modelled.add_argument(
        "--cluster",
        default="",
        metavar="NAME",
        help="GPUs that you don't have, such as 8xA100, or mine.toml:4xbig for a device in your own file: the program"
        " runs unchanged, times and memory are modelled, and nothing large is computed. --nodes shares them out",
    )
    modelled.add_argument(
        "--slow",
        action="append",
        type=_straggler,
        metavar="RANK=X",
        help="the GPU of this rank takes X times as long for everything, as in 3=1.3",
    )
    modelled.add_argument(
        "--one-of",
        type=int,
        default=0,
        metavar="N",
        help="emulate one rank of N, and take the others to do the same: for more ranks than fit here",
    )
    modelled.add_argument(
        "--host",
        default="",
        choices=["measured"],
        help="count what the host computes between operators, as long as it took here: not the same each time",
    )
    result = parser.add_argument_group("what you get")
    result.add_argument(
        "-o",
        "--output",
        metavar="NAME",
        help="the variable that gets the Run, even of a failed launch (with --no-launch, the path of the file)",
    )
    result.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="stop the ranks after S seconds, or as in 5m, 1h; default: when all only wait for 120 s, or after 10"
        " minutes",
    )
    result.add_argument("--quiet", action="store_true", help="show nothing while the ranks run")
    result.add_argument(
        "--expect-error",
        metavar="PATTERN",
        help="the launch must fail, and re.search must find PATTERN in what failed first: the type and message of an"
        " exception, 'killed by SIGKILL', 'exit code 3', or 'did not end within its timeout'. The error is shown, and"
        " the notebook goes on",
    )
    file = parser.add_argument_group("the file")
    file.add_argument(
        "--file",
        default="cell.py",
        metavar="NAME.py",
        help="save the cell as this file, which programs in later cells can import",
    )
    file.add_argument("--no-launch", action="store_true", help="only save the file")
    file.add_argument(
        "--save", metavar="DIR", help="make a folder that runs elsewhere too: the program and what it imports"
    )
    file.add_argument(
        "--needs",
        choices=sorted(EXTRAS),
        metavar="PACKAGE",
        help=f"{' or '.join(sorted(EXTRAS))}; if it is missing, the cell is only saved, and the variable is None",
    )
    file.add_argument(
        "-m",
        "--module",
        default="",
        metavar="NAME",
        help="only in %%ranks: run this module, as `python -m` does, instead of a cell",
    )
    cluster = parser.add_argument_group("on a cluster")
    cluster.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="how many machines to ask Slurm for, or to emulate; the ranks are spread over them",
    )
    cluster.add_argument(
        "--dry",
        action="store_true",
        help="start nothing; show the batch file for Slurm, or with --engine torchrun the command for each node",
    )
    cluster.add_argument(
        "--detach", action="store_true", help="don't wait for the job; Run.load(PATH).refresh() looks at it later"
    )
    return parser
