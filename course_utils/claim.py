"""A sentence of the lesson, and whether it holds here.

`claim` prints the sentence with a tick or fails the cell. With COURSE_CLAIMS_FILE set, each claim is also written there as a
JSON line; `python -m course_utils.claim FILE.jsonl ...` lists them by notebook.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .folders import notebook_name
from .run import Verdict

SIGNS = {"shown": "✓", "not shown": "○", "skipped": "–", "contradicted": "✗"}
_COLORS = {"shown": "#007A5A", "not shown": "#8A6100", "skipped": "#666666", "contradicted": "#B34700"}


class ClaimError(AssertionError):
    """What the lesson claims does not hold here. Jupyter shows its message alone: the code of `claim` would explain nothing."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def claim(sentence: str, holds: bool | Verdict | None | Any, *, why: str = "", headline: bool = False) -> None:
    """Say that `sentence` holds here, or fail.

    `holds` is a bool (also numpy's, or a tensor with one), a `Verdict` from comparing samples, or None for what this hardware cannot
    run, with the reason in `why`. A Verdict of `not shown` is said aloud and does not fail: a busy machine proves nothing.
    `headline=True` marks the claim that the lesson is about. Raises ClaimError when it does not hold, TypeError for any other `holds`.
    """
    status, detail = _status(holds, why)
    _record(sentence, status, detail, headline)
    if status == "contradicted":
        raise ClaimError(_failure(sentence, detail))
    _show(_Line(status, sentence, detail))


def _status(holds: Any, why: str) -> tuple[str, str]:
    if isinstance(holds, Verdict):
        return holds.status, holds.detail
    if holds is None:
        if not why:
            raise TypeError("claim(sentence, None) is for what cannot be run here; say why=..., for example why='needs two GPUs'")
        return "skipped", why
    is_array_bool = str(getattr(holds, "dtype", "")) in ("bool", "torch.bool")  # numpy and torch, without importing them
    if isinstance(holds, bool) or (is_array_bool and getattr(holds, "ndim", 0) == 0):
        return ("shown" if bool(holds) else "contradicted"), why
    if is_array_bool:
        raise TypeError(f"claim() got {tuple(holds.shape)} booleans; say which must hold with .all() or .any()")
    raise TypeError(f"claim() needs True, False, a Verdict or None; got {type(holds).__name__} {holds!r:.80}. Write the comparison out, as in gap < 1e-6")


def _failure(sentence: str, detail: str) -> str:
    lines = [f"✗ This does not hold here: {sentence}"]
    if detail:
        lines.append(f"  {detail}")
    lines.append("  If you changed the cells above, that is the likely cause: restore them and run the notebook from the top.")
    lines.append("  If it is about speed, close what else is running and run the cell with the measurement again.")
    return "\n".join(lines)


class _Line:
    """One claim as text and as HTML."""

    def __init__(self, status: str, sentence: str, detail: str):
        self.status, self.sentence, self.detail = status, sentence, detail

    def _words(self) -> tuple[str, str, str]:
        lead = {"not shown": "not shown here: ", "skipped": "not run here: "}.get(self.status, "")
        return SIGNS[self.status], lead, f" ({self.detail})" if self.detail else ""

    def __repr__(self) -> str:
        sign, lead, detail = self._words()
        return f"{sign} {lead}{self.sentence}{detail}"

    def _repr_html_(self) -> str:
        sign, lead, detail = self._words()
        color = _COLORS[self.status]
        return (
            f"<div style='border-left:4px solid {color};padding:.15em .6em;margin:.2em 0'><b style='color:{color}'>{sign}</b> "
            f"{html.escape(lead + self.sentence)}<span style='opacity:.7'>{html.escape(detail)}</span></div>"
        )


def _show(line: _Line) -> None:
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from IPython.display import display

        display(line)
    else:
        print(line, flush=True)


def _record(sentence: str, status: str, detail: str, headline: bool) -> None:
    path = os.environ.get("COURSE_CLAIMS_FILE")
    if not path:
        return
    entry = {"sentence": sentence, "status": status, "detail": detail, "headline": headline, "notebook": notebook_name()}
    # One write to a file opened for appending: notebooks that run at the same time do not tear each other's lines.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, (json.dumps(entry, ensure_ascii=False) + "\n").encode())
    finally:
        os.close(fd)


def read(paths: Iterable[str | Path]) -> list[dict[str, Any]]:
    """All claims of the files, in their order."""
    return [json.loads(line) for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def summary(entries: Sequence[dict[str, Any]]) -> str:
    """The claims notebook by notebook; one that was made in several runs stands once, with how often it was shown."""
    lines = []
    for notebook in dict.fromkeys(e["notebook"] for e in entries):
        mine = [e for e in entries if e["notebook"] == notebook]
        sentences = list(dict.fromkeys(e["sentence"] for e in mine))
        rows = []
        totals = dict.fromkeys(SIGNS, 0)
        for sentence in sentences:
            made = [e for e in mine if e["sentence"] == sentence]
            statuses = [e["status"] for e in made]
            status = next(s for s in ("contradicted", "shown", "not shown", "skipped") if s in statuses)
            totals[status] += 1
            often = f" [shown in {statuses.count('shown')} of {len(made)} runs]" if len(made) > 1 else ""
            detail = next((e["detail"] for e in reversed(made) if e["status"] == status and e["detail"]), "")
            star = " (headline)" if any(e["headline"] for e in made) else ""
            rows.append(f"  {SIGNS[status]} {sentence}{star}{often}" + (f"\n      {detail}" if detail else ""))
        counts = ", ".join(f"{n} {status}" for status, n in totals.items() if n)
        lines += [f"{notebook}: {counts}", *rows]
    return "\n".join(lines) if lines else "no claims"


def unshown_headlines(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Headline claims that ran and were not shown once: `notebook: sentence`. A claim that was only skipped is not among them."""
    seen: dict[str, set[str]] = {}
    for e in entries:
        if e["headline"]:
            seen.setdefault(f"{e['notebook']}: {e['sentence']}", set()).add(e["status"])
    return [name for name, statuses in seen.items() if "shown" not in statuses and statuses != {"skipped"}]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course_utils.claim", description="List the claims that notebooks made.")
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl", help="what COURSE_CLAIMS_FILE named; several runs may be given")
    parser.add_argument("--headlines-must-show", action="store_true", help="fail when a headline claim was not shown in any run")
    args = parser.parse_args(argv)
    entries = read(args.files)
    print(summary(entries))
    failed = any(e["status"] == "contradicted" for e in entries)
    if args.headlines_must_show:
        for name in unshown_headlines(entries):
            print(f"headline not shown in any run: {name}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
