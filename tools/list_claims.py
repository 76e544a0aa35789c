"""List the claims that notebooks made, from the files that COURSE_CLAIMS_FILE named."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this checkout's own package

from course_utils.cells.claims import SIGNS


def read(paths: Iterable[str | Path]) -> list[dict[str, Any]]:
    """All claims of the files, in their order."""
    return [
        json.loads(line)
        for path in paths
        for line in Path(path).read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]


def summary(entries: Sequence[dict[str, Any]]) -> str:
    """The claims, notebook by notebook. A claim of several runs appears once, with how often it was shown."""
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
    """Headline claims that ran and were never shown, as `notebook: sentence`. Claims that were only skipped don't
    count."""
    seen: dict[str, set[str]] = {}
    for e in entries:
        if e["headline"]:
            seen.setdefault(f"{e['notebook']}: {e['sentence']}", set()).add(e["status"])
    return [name for name, statuses in seen.items() if "shown" not in statuses and statuses != {"skipped"}]


def contradicted(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Claims that came out the wrong way round and never as they say, as `notebook: sentence`."""
    seen: dict[str, set[str]] = {}
    for e in entries:
        seen.setdefault(f"{e['notebook']}: {e['sentence']}", set()).add(e["status"])
    return [name for name, statuses in seen.items() if "contradicted" in statuses and "shown" not in statuses]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="List the claims that notebooks made.")
    parser.add_argument(
        "files", nargs="+", metavar="FILE.jsonl", help="what COURSE_CLAIMS_FILE named; several runs may be given"
    )
    parser.add_argument(
        "--headlines-must-show", action="store_true", help="fail when a headline claim was not shown in any run"
    )
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
