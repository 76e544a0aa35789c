"""A sentence of the lesson, and whether it holds here.

`claim` prints the sentence with a tick or fails the cell. With COURSE_CLAIMS_FILE set, each claim is also written there
as a JSON line; `tools/list_claims.py` lists them by notebook.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..folders import notebook_name
from ..lab import progress
from ..machine import busy
from ..machine.here import usable_cores
from ..results.samples import Verdict
from ..show.table import ASIDE, GOOD, PROBLEM, WARNING, ink, show

SIGNS = {"shown": "✓", "not shown": "○", "skipped": "–", "contradicted": "✗"}
_COLORS = {"shown": GOOD, "not shown": WARNING, "skipped": ASIDE, "contradicted": PROBLEM}


class ClaimError(AssertionError):
    """A claim of the lesson doesn't hold here. Jupyter shows only its message, since the code of `claim` explains
    nothing."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def claim(sentence: str, holds: bool | Verdict | None | Any, *, why: str = "", headline: bool = False) -> bool:
    """Print that `sentence` holds here, or fail the cell. Returns whether it was shown, so that a lesson draws its
    conclusions only from what was.

    `holds` is a bool (also numpy's, or a tensor with one), a `Verdict` from comparing samples, or None for what this
    hardware can't run, with the reason in `why`. A Verdict of `not shown` is printed and doesn't fail: a busy machine
    proves nothing. `contradicted` doesn't fail either: another program that uses a core can turn a speed-up round, and
    the rest of the lesson doesn't depend on it. `headline=True` marks the claim that the lesson is about. Raises
    ClaimError for False, TypeError for any other `holds`.
    """
    status, detail = _status(holds, why)
    _record(sentence, status, detail, headline)
    progress.claimed(sentence, status)
    if status == "contradicted" and not isinstance(holds, Verdict):
        raise ClaimError(_failure(sentence, detail))
    if status == "contradicted" and (meanwhile := busy.meanwhile(usable_cores())):
        detail = f"{detail}. {meanwhile}" if detail else meanwhile
    show(_Line(status, sentence, detail))
    return status == "shown"


def more_checks(checks: Mapping[str, bool]) -> None:
    """Check what a lesson relies on and doesn't celebrate: one line says how many sentences hold.

    The first that doesn't hold fails the cell, as in `claim`. Raises TypeError for anything but True or False, since
    a Verdict has a third answer that a reader should see, and ValueError without a check.
    """
    if not checks:
        raise ValueError("more_checks() got nothing to check")
    for sentence, holds in checks.items():
        status, _ = _status(holds, "")
        if isinstance(holds, Verdict):
            raise TypeError(f"more_checks() takes True or False; give {sentence!r} to claim()")
        _record(sentence, status, "", headline=False)
        if status == "contradicted":
            raise ClaimError(_failure(sentence, ""))
    words = f"{len(checks)} more {'check' if len(checks) == 1 else 'checks'} passed"
    show(_Line("shown", words, "", more=list(checks)))


def _status(holds: Any, why: str) -> tuple[str, str]:
    if isinstance(holds, Verdict):
        return holds.status, holds.detail
    if holds is None:
        if not why:
            raise TypeError(
                "claim(sentence, None) is for what cannot run here; say why, for example why='needs two GPUs'"
            )
        return "skipped", why
    is_array_bool = str(getattr(holds, "dtype", "")) in (
        "bool",
        "torch.bool",
    )  # numpy and torch, without importing them
    if isinstance(holds, bool) or (is_array_bool and getattr(holds, "ndim", 0) == 0):
        return ("shown" if bool(holds) else "contradicted"), why
    if is_array_bool:
        raise TypeError(f"claim() got {tuple(holds.shape)} booleans; say which must hold with .all() or .any()")
    raise TypeError(
        f"claim() needs True, False, a Verdict or None; got {type(holds).__name__} {holds!r:.80}. Write the comparison"
        " out, as in gap < 1e-6"
    )


def _failure(sentence: str, detail: str) -> str:
    lines = [f"✗ This does not hold here: {sentence}"]
    if detail:
        lines.append(f"  {detail}")
    lines.append(
        "  If you changed the cells above, that is the likely cause: restore them and run the notebook from the top."
    )
    lines.append("  If it is about speed, close other programs and run the measurement again.")
    return "\n".join(lines)


class _Line:
    """One claim as text and as HTML; `more` are sentences that wait behind a click on it."""

    def __init__(self, status: str, sentence: str, detail: str, more: Sequence[str] = ()):
        self.status, self.sentence, self.detail, self.more = status, sentence, detail, more

    def _words(self) -> tuple[str, str, str]:
        lead = {
            "not shown": "not shown here: ", "skipped": "not run here: ", "contradicted": "the wrong way round here: ",
        }.get(self.status, "")  # fmt: skip
        return SIGNS[self.status], lead, f" ({self.detail})" if self.detail else ""

    def __repr__(self) -> str:
        sign, lead, detail = self._words()
        return f"{sign} {lead}{self.sentence}{detail}"

    def _repr_html_(self) -> str:
        sign, lead, detail = self._words()
        color = _COLORS[self.status]
        line = (
            f"<b style='{ink(color)}'>{sign}</b> {html.escape(lead + self.sentence)}<span"
            f" style='opacity:.8'>{html.escape(detail)}</span>"
        )
        if self.more:
            listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.more)
            line = f"<details><summary style='cursor:pointer'>{line}</summary><ul>{listed}</ul></details>"
        return f"<div style='border-left:4px solid {color};padding:.15em .6em;margin:.2em 0'>{line}</div>"


def _record(sentence: str, status: str, detail: str, headline: bool) -> None:
    path = os.environ.get("COURSE_CLAIMS_FILE")
    if not path:
        return
    entry = {
        "sentence": sentence,
        "status": status,
        "detail": detail,
        "headline": headline,
        "notebook": notebook_name(),
    }
    # A single write to a file opened for appending, so that notebooks running at once don't tear each other's lines.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, (json.dumps(entry, ensure_ascii=False) + "\n").encode())
    finally:
        os.close(fd)
