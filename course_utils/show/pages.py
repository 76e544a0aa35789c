"""What the pages of lessons show besides figures: sentences, what a bet was worth, a program as code, changed lines."""

from __future__ import annotations

import difflib
import functools
import html
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from ..folders import kernel_folder, write_whole
from .table import fold, held, marked, show

AT_ONCE = 3  # sentences below a figure; the rest waits behind a click
SENTENCE_ENDS = re.compile(r"(?:(?<=[.!?])|(?<=[.!?]\))) +(?=[A-Z(\d])")  # 1.5 has no end, "(Run it.) Then" has one

KEEP_AROUND = 1  # unchanged lines that stay visible next to a change

_STYLES = {  # tints: the words keep the colour of the page, light or dark
    "+": "background:#009E7344",
    "-": "background:#D55E0044",
    " ": "opacity:.8",
}

P = ParamSpec("P")
F = TypeVar("F", bound="_HasRoom")


class _Sentence:
    """A sentence or two, as text and as HTML."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<div style='margin:.2em 0;max-width:60em'>{marked(self.text)}</div>"


class _More(_Sentence):
    """Sentences behind a click."""

    def _repr_html_(self) -> str:
        return fold("more", super()._repr_html_())


def say(text: str) -> None:
    """Show a sentence or two of a lesson. What `print` writes, JupyterLab breaks wherever a line is full, in the middle
    of a word, too; this wraps between words."""
    if words := re.sub(" +", " ", text).strip():  # where nothing was guessed, nothing is said of it
        show(_Sentence(words))


def disturbed(*measured: Any) -> str:
    """What other programs did while the first of these runs and sweeps was measured that they disturbed, as the
    beginning of a sentence. Empty if there's none: only then does a page conclude something from their speed."""
    return next((each.disturbed for each in measured if each.disturbed), "")


def say_disturbed(why: str, about: str, guess: Any = None, again: str = "run this cell again") -> None:
    """Say that a measurement tells nothing about something, since it was disturbed. `why` comes from `disturbed`,
    `again` says which cells to run once more."""
    bet = " Your bet stays open." * guessed(guess)
    say(f"{why}, so this says nothing about {about}.{bet} Close them, then {again}.")


class Program:
    """A file that shows itself as code, behind a click: it's there to be kept, and longer than a page."""

    def __init__(self, path: Path):
        self.path, self.text = path, path.read_text(encoding="utf-8")

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        # JupyterLab breaks long lines of an output anywhere, in the middle of a word, too.
        style = "<style>.course-program pre {word-break: normal !important; overflow-wrap: anywhere}</style>"
        label = f"<summary><b>{self.path.name}</b>, {len(self.text.splitlines())} lines</summary>"
        language = "python" if self.path.suffix == ".py" else "bash"
        return f"<details class='course-program'>{label}{style}\n\n```{language}\n{self.text}```\n\n</details>"


class Words:
    """Sentences that show themselves as a list."""

    def __init__(self, lines: Sequence[str]):
        self.lines = lines

    def __repr__(self) -> str:
        return "\n".join(f"- {line}" for line in self.lines)

    _repr_markdown_ = __repr__


def guessed(guess: Any) -> bool:
    """Whether the reader replaced the three dots."""
    return guess is not ... and guess is not None


def bet(
    guess: Any,
    truth: float | str,
    close: str,
    over: str = "",
    under: str = "",
    unit: str = "",
    *,
    within: float | tuple[float, float] = 0.2,
    traps: Mapping[float | tuple[float, float] | str, str] | None = None,
    none: str = "",
    kind: str = "",
    positive: bool = False,
    most: float = math.inf,
    also: Mapping[str, float | str] | None = None,
) -> str:
    """What a page says to a reader's bet, a sentence or two: `none` if there's no bet, `close` if it's right, otherwise
    `over` or `under`, or `over` for both. A sentence that begins with a small letter goes on after a colon, `You said
    3: good eye.`, and one that begins with a comma goes on at once.

    A number is right if it's less than the part `within` of the truth away from it, or equal to it for 0; `within` can
    also be a range, such as `(0.5 * truth, 2 * truth)`. It may come as text, with its unit. `traps` have answers to
    certain bets, or to those in a range; only the truth itself comes before them. Where the truth is a word, they are
    the other words that one can say. A range begins with its first number and ends before its second. `kind` says what
    to bet if it was something else, such as a number below zero or above `most`, or 0 if it has to be `positive`.
    `also` are other words for an answer, and what they stand for. Where the truth is a number, a trap can be a word.
    """
    if not guessed(guess):
        return none
    text = guess.strip().lower() if isinstance(guess, str) else ""
    if isinstance(truth, str):
        answers = {str(word).lower(): (str(word), answer) for word, answer in {**(traps or {}), truth: close}.items()}
        known_as = {word: word for word in answers} | {
            word: str(stands).lower() for word, stands in (also or {}).items()
        }
        words = {known_as[word] for word in ([text] if text in known_as else _words_in(text, known_as))}
        if len(words) != 1:
            known = ", ".join(sorted(word for word, _ in answers.values()))
            return f"Your bet should be {kind or f'one of these: {known}'}."
        return _you_said(*answers[words.pop()])
    if text and text in (traps or {}):
        return _you_said(text, (traps or {})[text])
    number = as_number((also or {}).get(text, guess), unit)
    if number is None or (positive and number == 0) or number > most:
        return f"Your bet should be {kind or 'a number'}."
    if unit == "%" and 0 < number < 1 <= truth:
        return f"You said {number:g}%, so less than one of a hundred. Did you mean {number:.0%}?"
    trap = next((answer for value, answer in (traps or {}).items() if _lies(number, value)), "")
    near = _lies(number, within) if isinstance(within, tuple) else abs(number - truth) < within * abs(truth)
    answer = close if near else over if number > truth else under or over
    shown = f"{number:,.0f}" if 1e3 <= number < 1e15 and number.is_integer() else f"{number:g}"
    return _you_said(shown + unit, close if number == truth else trap or answer)


def beside_programs(file: Path, name: str) -> Path:
    """Copy a file of a lesson to where the programs of its cells lie, so that they can import it. Returns the copy."""
    path = kernel_folder() / name
    write_whole(path, file.read_text(encoding="utf-8"))
    return path


def as_number(guess: Any, unit: str = "") -> float | None:
    """A bet as a number that isn't below zero, and None if it's none: for a figure, where a bet left open is None."""
    if isinstance(guess, str):
        text = re.sub(r",(?=\d{3}\b)", "", guess.strip().lower().removesuffix(unit.strip().lower()).strip())
        guess = float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text) else None
    if isinstance(guess, bool) or not isinstance(guess, numbers.Real):
        return None
    try:
        number = float(guess)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _lies(number: float, where: float | tuple[float, float] | str) -> bool:
    """Whether a number is another, or lies in a range."""
    return where[0] <= number < where[1] if isinstance(where, tuple) else number == where


def _words_in(text: str, answers: Iterable[str]) -> list[str]:
    """Those of the answers that stand in a text, as whole words: none where it says that somebody doesn't know."""
    if re.search(r"\bnot\b|n't\b|\b(idea|sure|know)\b|\?", text):
        return []
    return [word for word in answers if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)]


def _you_said(what: str, answer: str) -> str:
    after = "" if answer.startswith(",") else ": " if answer[:1].islower() else ". "
    return f"You said {what}{after}{answer}" if answer else f"You said {what}."


class _HasRoom(Protocol):
    below: Sequence[Any]


def figure_first(result: Callable[P, F]) -> Callable[P, F]:
    """Put what a function says and claims below the figure that it returns, in a notebook: its first three sentences,
    the others behind a click, then the ticks. Elsewhere, as in tests, everything is printed as it comes."""

    @functools.wraps(result)
    def shown(*args: P.args, **kwargs: P.kwargs) -> F:
        with held() as things:
            figure = result(*args, **kwargs)
        said = [thing.text for thing in things if isinstance(thing, _Sentence)]
        sentences = [sentence for text in said for sentence in SENTENCE_ENDS.split(text)]
        first, rest = " ".join(sentences[:AT_ONCE]), " ".join(sentences[AT_ONCE:])
        figure.below = [
            *[_Sentence(first)] * bool(first),
            *[_More(rest)] * bool(rest),
            *(thing for thing in things if not isinstance(thing, _Sentence)),
        ]
        return figure

    return shown


class Diff:
    """The difference of two texts. `added`, `removed` and `kept` count lines; `lines` are pairs of `+`, `-` or a space
    and the text."""

    def __init__(self, before: str, after: str, names: tuple[str, str] = ("before", "after")):
        self.names = names
        self.lines: list[tuple[str, str]] = []
        old, new = ([line.rstrip() for line in text.splitlines()] for text in (before, after))
        for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag == "equal":
                self.lines += [(" ", line) for line in old[i:j]]
            else:
                self.lines += [("-", line) for line in old[i:j]] + [("+", line) for line in new[k:m]]
        self.added, self.removed, self.kept = (sum(sign == s for sign, _ in self.lines) for s in "+- ")

    @property
    def summary(self) -> str:
        return (
            f"From {self.names[0]} to {self.names[1]}: {_lines(self.added)} added, {_lines(self.removed)} removed,"
            f" {_lines(self.kept)} kept."
        )

    def _folded(self) -> list[tuple[str, str]]:
        """Long unchanged stretches become one line that counts them; its sign is `…`."""
        changed = [i for i, (sign, _) in enumerate(self.lines) if sign != " "]
        near = {k for i in changed for k in range(i - KEEP_AROUND, i + KEEP_AROUND + 1)}
        shown: list[tuple[str, str]] = []
        skipped: list[tuple[str, str]] = []
        for i, line in enumerate([*self.lines, ("end", "")]):
            if i not in near and line[0] == " ":
                skipped.append(line)
                continue
            # A fold of one or two lines would hide more than it saves.
            shown += skipped if len(skipped) <= 2 else [("…", f"{len(skipped)} lines unchanged")]
            skipped = []
            if line[0] != "end":
                shown.append(line)
        return shown

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"{sign} {line}".rstrip() for sign, line in self._folded())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = []
        for sign, line in self._folded():
            style = _STYLES.get(sign, "background:#88888822;font-style:italic")
            rows.append(f"<div style='{style};padding:0 .6em;white-space:pre'>{sign} {html.escape(line)}</div>")
        # One inline block as wide as the longest line: otherwise the colours end at the edge of the cell.
        block = f"<div style='display:inline-block;min-width:100%'>{''.join(rows)}</div>"
        return (
            f"<p>{html.escape(self.summary)}</p><div"
            " style='font-family:monospace;font-size:12px;line-height:1.45;overflow-x:auto;border:1px solid"
            f" #88888866'>{block}</div>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": str(self)}


def diff(before: str | Path, after: str | Path) -> Diff:
    """Compare two script files; the result shows itself and counts its lines. Spaces at the end of a line do not
    count."""
    paths = Path(before), Path(after)
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}; run the cell that saves it first")
    texts = [re.sub(r"\A# %%ranks [^\n]*\n", "", path.read_text(encoding="utf-8")) for path in paths]
    # A launch keeps its script as ddp-1a2b3c4d.py; the learner knows it as ddp.py.
    short = [re.sub(r"-[0-9a-f]{8}(?=\.py$)", "", path.name) for path in paths]
    names = short if short[0] != short[1] else [path.name for path in paths]
    return Diff(texts[0], texts[1], (names[0], names[1]))


def _lines(n: int) -> str:
    return "1 line" if n == 1 else f"{n} lines"
