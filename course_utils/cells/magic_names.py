"""`%%rank`, `%%rnaks`, `%%excercise`, `%%ranks` before the extension is loaded or below a comment: IPython only says
that it doesn't know them. We look at a cell before IPython does, and say which line was meant."""

from __future__ import annotations

import difflib
import re
from typing import Any

_OURS = ("ranks", "exercise")
_FIRST = re.compile(r"(?P<percents>%{1,2}) ?(?P<name>[A-Za-z]\w*)")


def watch(shell: Any) -> None:
    """Look at every cell of an IPython shell from now on."""
    forget(shell)

    def look(lines: list[str]) -> list[str]:
        if said := mistake("".join(lines), shell):
            from IPython.core.error import UsageError

            raise UsageError(said)
        return lines

    look.has_side_effects = look.of_course_utils = True  # type: ignore[attr-defined]  # not for half a cell
    shell.input_transformers_cleanup.append(look)


def forget(shell: Any) -> None:
    """Don't look any more."""
    kept = [f for f in shell.input_transformers_cleanup if not hasattr(f, "of_course_utils")]
    shell.input_transformers_cleanup[:] = kept


def mistake(cell: str, shell: Any) -> str:
    """What is wrong with the magic at the top of a cell; an empty string if nothing is, or if it isn't ours."""
    code = [line for line in cell.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = _FIRST.match(code[0]) if code else None
    if found is None:
        return ""
    percents, name = found["percents"], found["name"]
    kind = "cell" if percents == "%%" else "line"
    near = difflib.get_close_matches(name.lower(), _OURS, n=1, cutoff=0.6)
    known = shell.magics_manager.magics[kind]
    right = name in known and not found[0].endswith(f" {name}")
    if not near or right and (name not in _OURS or kind == "line"):
        return ""
    if "ranks" not in shell.magics_manager.magics["cell"]:
        return (
            f"%%{near[0]} isn't loaded yet. Run the first code cell of this notebook, or %load_ext course_utils, and"
            " then this cell again."
        )
    if right:
        above = cell[: cell.index(found[0])].strip()
        return f"{found[0]} has to be the first line of its cell: move the comment below it." if above else ""
    rest = code[0][found.end() :].rstrip()
    percents = percents if near[0] in known else "%%"
    return f"There is no {found[0]}. You probably mean\n\n    {percents}{near[0]}{rest}"
