"""Tab and Shift-Tab in a `%%ranks` or `%%exercise` cell: options in its first line, and below it names of the cell's
own program, and help for them. Names of magics that are nearly right are told, too.

IPython would look at the notebook's variables, which the ranks don't see, and read torch's source for ten seconds,
during which no cell runs. The process that has imported torch for all launches knows the answer in milliseconds. Where
there's none, the kernel answers from what it has imported itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..launching import completion, local
from . import magic_line, magic_names

PATIENCE_S = 0.5  # a cell that is run meanwhile waits no longer than this
_WITH_OPTIONS = ("%%ranks", "%ranks")
_OURS = ("%%ranks", "%%exercise")


def register(shell: Any) -> None:
    """Answer Tab and Shift-Tab in an IPython shell."""
    unregister(shell)
    magic_names.watch(shell)
    for name in _WITH_OPTIONS:
        shell.set_hook("complete_command", lambda _, event: magic_line.complete(event.line, event.symbol), str_key=name)
    complete, kernel = shell.Completer.completions, getattr(shell, "kernel", None)

    def completions(text: str, offset: int) -> Iterator[Any]:
        begun = text[:offset].lstrip()
        if not text.lstrip().startswith(_OURS) or "{" in begun and "\n" not in begun:
            yield from complete(text, offset)
            return
        from IPython.core.completer import Completion

        if "\n" in begun:
            found = _ask(text, offset, "names")
            start, names = found["start"], found["names"]
        else:
            word = re.search(r"\S*$", begun)[0]  # type: ignore[index]
            start, names = offset - len(word), [(name, "param") for name in magic_line.complete(begun, word)]
        for name, kind in names:
            yield Completion(start, offset, name, type=kind, _origin="course_utils")

    shell.Completer.completions = completions
    if kernel is None:
        return
    inspect = kernel.do_inspect

    def do_inspect(code: str, cursor_pos: int, *args: Any, **how: Any) -> Any:
        if not code.lstrip().startswith(_OURS) or "\n" not in code[:cursor_pos].lstrip():
            return inspect(code, cursor_pos, *args, **how)
        said = _ask(code, cursor_pos, "help")["help"]
        return {"status": "ok", "found": bool(said), "data": {"text/plain": said} if said else {}, "metadata": {}}

    kernel.do_inspect = do_inspect


def unregister(shell: Any) -> None:
    """Leave all of it to IPython again."""
    magic_names.forget(shell)
    completers = shell.strdispatchers.get("complete_command")
    for name in _WITH_OPTIONS if completers is not None else ():
        completers.strs.pop(name, None)
    vars(shell.Completer).pop("completions", None)
    if getattr(shell, "kernel", None) is not None:
        vars(shell.kernel).pop("do_inspect", None)


def _ask(text: str, at: int, what: str) -> dict[str, Any]:
    blank = " " * text.index("%%") + "#"  # the magic's line becomes a comment, and all else stays where it is
    question = {"source": blank + text[len(blank) :], "at": at, "what": what}
    found = local.server.ask(question, PATIENCE_S) or {}
    # a library that only the notebook has imported
    return found if found.get("names") or found.get("help") else completion.answer(question)
