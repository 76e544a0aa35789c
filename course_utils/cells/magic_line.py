"""The line of `%%ranks`: its options, what their values mean, and the page that `%%ranks?` shows."""

from __future__ import annotations

import argparse
import difflib
import keyword
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from ..failure.errors import LaunchError
from ..launching.options import ENGINES, LaunchOptions
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


class _HelpPage(argparse.RawDescriptionHelpFormatter):
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


# Heading of the page of help: each option's flags, its help, and what argparse has to know besides. What a value may be
# when the line doesn't name it, and whether it's a number, says the field of LaunchOptions that has its name.
_OPTIONS: Mapping[str, Sequence[tuple[tuple[str, ...], str, dict[str, Any]]]] = {
    "where it runs": (
        (
            ("ranks",),
            "how many, N or auto; auto: one for each GPU if there are two or more, otherwise 2",
            {"nargs": "?", "type": _number_or("auto")},
        ),
        (
            ("--device",),
            "auto: GPUs if there are enough, otherwise the CPU. cuda: GPUs or an error. cpu. comparable, for launches"
            " that you'll compare: GPUs if there are two or more, otherwise the CPU, however many ranks. shared: all"
            " ranks on one GPU",
            {"choices": DEVICES, "metavar": "NAME"},
        ),
        (
            ("--threads",),
            "threads for each rank; auto shares out the cores",
            {"type": _number_or("auto"), "metavar": "N|auto"},
        ),
        (("--gpus-per-rank",), "default 1", {"type": _number_or("all"), "metavar": "N|all"}),
        (
            ("--engine",),
            "auto, local (warm where possible), cold, torchrun, or slurm",
            {"choices": ENGINES, "metavar": "NAME"},
        ),
        (("--max-restarts",), "how often torchrun restarts all ranks after a failure", {"metavar": "N"}),
    ),
    "on emulated GPUs": (
        (
            ("--cluster",),
            "GPUs that you don't have, such as 8xA100, or mine.toml:4xbig for a device in your own file: the program"
            " runs unchanged, times and memory are modelled, and nothing large is computed. --nodes shares them out",
            {"metavar": "NAME"},
        ),
        (
            ("--slow",),
            "the GPU of this rank takes X times as long for everything, as in 3=1.3",
            {"action": "append", "type": _straggler, "metavar": "RANK=X"},
        ),
        (
            ("--one-of",),
            "emulate these ranks of N, and take each to stand for as many that do the same: for more than fit here",
            {"metavar": "N"},
        ),
        (
            ("--host",),
            "count what the host computes between operators, as long as it took here: not the same each time",
            {"choices": ["measured"]},
        ),
    ),
    "what you get": (
        (
            ("-o", "--output"),
            "the variable that gets the Run, even of a failed launch (with --no-launch, the path of the file)",
            {"metavar": "NAME"},
        ),
        (
            ("--timeout",),
            "stop the ranks after S seconds, or as in 5m, 1h; default: when all only wait for 120 s, or after 10"
            " minutes",
            {"type": _seconds, "metavar": "S"},
        ),
        (("--quiet",), "show nothing while the ranks run", {}),
        (
            ("--expect-error",),
            "the launch must fail, and re.search must find PATTERN in what failed first: the type and message of an"
            " exception, 'killed by SIGKILL', 'exit code 3', or 'did not end within its timeout'. The error is shown,"
            " and the notebook goes on",
            {"metavar": "PATTERN"},
        ),
    ),
    "the file": (
        (
            ("--file",),
            "save the cell as this file, which programs in later cells can import",
            {"default": "cell.py", "metavar": "NAME.py"},
        ),
        (("--no-launch",), "only save the file", {"action": "store_true"}),
        (("--save",), "make a folder that runs elsewhere too: the program and what it imports", {"metavar": "DIR"}),
        (
            ("--needs",),
            f"{' or '.join(sorted(EXTRAS))}; if it is missing, the cell is only saved, and the variable is None",
            {"choices": sorted(EXTRAS), "metavar": "PACKAGE"},
        ),
        (
            ("-m", "--module"),
            "only in %%ranks: run this module, as `python -m` does, instead of a cell",
            {"metavar": "NAME"},
        ),
    ),
    "on a cluster": (
        (
            ("--nodes",),
            "how many machines to ask Slurm for, or to emulate; the ranks are spread over them",
            {"metavar": "N"},
        ),
        (
            ("--dry",),
            "start nothing; show the batch file for Slurm, or with --engine torchrun the command for each node",
            {},
        ),
        (("--detach",), "don't wait for the job; Run.load(PATH).refresh() looks at it later", {}),
    ),
}


def _parser() -> argparse.ArgumentParser:
    usage = "%%%%ranks N|auto [options] [-- arguments of the program]"
    parser = _Parser(
        prog="%%ranks", add_help=False, usage=usage, description=_ABOUT, epilog=_AFTER, formatter_class=_HelpPage
    )
    usual = {field.name: field.default for field in fields(LaunchOptions)}
    for heading, options in _OPTIONS.items():
        group = parser.add_argument_group(heading)
        for flags, words, more in options:
            name = flags[-1].lstrip("-").replace("-", "_")
            known: dict[str, Any] = {}
            if isinstance(usual.get(name), bool):
                known = {"action": "store_true"}
            elif name in usual and name not in DEFAULTS:
                known = {"default": usual[name]} | ({"type": int} if isinstance(usual[name], int) else {})
            group.add_argument(*flags, help=words, **known | more)
    return parser


def launch_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Those of a line's options that are arguments of `launch`, by name."""
    return {field.name: getattr(options, field.name) for field in fields(LaunchOptions) if hasattr(options, field.name)}
