"""What changed between two script files, line by line, with the lines counted."""

from __future__ import annotations

import difflib
import html
import re
from pathlib import Path
from typing import Any

KEEP_AROUND = 1  # unchanged lines that stay visible next to a change

_STYLES = {  # tints: the words keep the colour of the page, light or dark
    "+": "background:#009E7344",
    "-": "background:#D55E0044",
    " ": "opacity:.8",
}


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
