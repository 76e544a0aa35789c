"""The card that answers a try at an exercise: solved, not solved, or not done yet. As text and as HTML."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .table import ASIDE, GOOD, PROBLEM, Cell, Table, fold, ink, marked

WIDTH = 110
Outcome = Literal["solved", "not solved", "not done"]
_LOOKS = {"solved": ("✓ ", GOOD), "not solved": ("✗ ", PROBLEM), "not done": ("", ASIDE)}
_HINTS = ("Where to look", "Nearly there")


@dataclass(frozen=True)
class Card:
    """What a check found, as the reader sees it.

    Hints help most when somebody stuck decides to ask. So each one waits behind a click, the second inside the first,
    and nothing but asking opens one: not a run of the same code, nor a changed one with the same symptom, which only
    brings the reminder that there is a hint. The first is there from the first failure on, since somebody who must fail
    once more to get it learns nothing by that. Where nobody can click, `--hint` opens the next one.

    title    name and title of the exercise, and how the try ended
    differs  a sentence: what was seen
    got      what came back, a (who, what) each; "" for who where there are no ranks
    hints    where to look, and nearly the answer; the first `opened` of them are shown
    checked  what was checked, a sentence each; `how` on what
    note     what comes next; `link` is an address for its last words, `link_words`
    """

    outcome: Outcome
    title: str
    differs: str = ""
    expected: str = ""
    got: Sequence[tuple[str, str]] = ()
    hints: Sequence[str] = ()
    opened: int = 0
    ask: str = ""  # the line that opens the next hint
    checked: Sequence[str] = ()
    how: str = ""
    note: str = ""
    link: str = ""
    link_words: str = ""

    def __str__(self) -> str:
        head = _LOOKS[self.outcome][0] + self.title
        if self.checked:
            head += f" {self._checked}:"
        rows = [("What differs:", self.differs), ("Expected:", self.expected)]
        got = (f"{who}: {what}" if who else what for who, what in self.got)
        rows += [("Got:" if i == 0 else "", line) for i, line in enumerate(got)]
        rows += [(f"{label}:", hint) for label, hint in self._open()]
        lines = [_filled(text, f"  {label:<15}", 17) for label, text in rows if text]
        lines = [head, *([""] if lines else []), *lines, *(_filled(line, "  - ", 4) for line in self.checked)]
        if self.opened < len(self.hints):
            lines += ["", f"  {'One more hint' if self.opened else 'A hint'} is there: {self.ask}"]
        return "\n".join([*lines, *([f"{self.note}{self.link_words}"] if self.note else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        sign, color = _LOOKS[self.outcome]
        parts = [f"<div style='font-weight:bold;{ink(color)}'>{sign}{marked(self.title)}</div>"]
        if self.differs:
            parts.append(f"<div style='margin:.4em 0'>{marked(self.differs)}</div>")
        rows = [(Cell("expected", GOOD, bold=True), self.expected)] if self.expected else []
        for i, (who, what) in enumerate(self.got):
            label = f"{who} got".replace(" ", "\N{NO-BREAK SPACE}") if who else "got" if i == 0 else ""
            rows.append((Cell(label, PROBLEM, bold=True), what))
        if rows:
            parts.append(Table((), rows, "ll")._repr_html_())
        hints = ""
        for i, hint in reversed(list(enumerate(self.hints))):  # the next one lies in the one before
            label = f"Hint {i + 1} of {len(self.hints)}: {_HINTS[i].lower()}"
            hints = fold(label, f"<div style='margin:.3em 0'>{marked(hint)}</div>{hints}", i < self.opened)
        if hints:
            parts.append(f"<div style='margin-top:.5em'>{hints}</div>")
        if self.checked:
            items = "".join(f"<li>{marked(line)}</li>" for line in self.checked)
            parts.append(fold(f"What was checked{f', {self.how}' * bool(self.how)}", f"<ul>{items}</ul>"))
        if self.note:
            words = html.escape(self.link_words)
            words = f"<a href='{html.escape(self.link, quote=True)}'>{words}</a>" if self.link else words
            parts.append(f"<div style='margin-top:.4em'>{marked(self.note)}{words}</div>")
        edge = f"border:1px solid {color}66;border-left:5px solid {color};border-radius:6px;background:{color}14"
        style = f"{edge};padding:.6em .9em;margin:.3em 0;max-width:900px;overflow-wrap:break-word"
        return f"<div style='{style}'>{''.join(parts)}</div>"

    @property
    def _checked(self) -> str:
        return f"Checked {self.how}".strip()

    def _open(self) -> list[tuple[str, str]]:
        return list(zip(_HINTS, self.hints, strict=False))[: self.opened]


def _filled(text: str, first: str, indent: int) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * indent)
