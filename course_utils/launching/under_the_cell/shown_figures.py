"""`plt.show()` on a rank: `backend` saves the figure there and says so in the rank's log; here we show it under the
cell, where the rank printed it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...show.notebook import notebook_kernel

MOST = 16  # figures of one launch under its cell
MOST_BYTES = 4 << 20  # of one of them
_SAVED = re.compile(
    r"^(?P<rank>rank \d+ \| )(?P<before>.*)figure: (?P<path>/.*/rank\d+\.figure(?P<number>\d+)\.png)\n", re.M
)


class Figures:
    """The figures of one launch."""

    def __init__(self) -> None:
        self.shown = 0

    def write(self, text: str, out: Any) -> None:
        """Write lines of ranks to `out`, with each figure in place of the line that names its file. In a terminal the
        line stays."""
        at = 0
        for saved in _SAVED.finditer(text) if notebook_kernel() is not None else ():
            begin = f"{text[at : saved.start()]}{saved['rank']}{saved['before']}figure {saved['number']}"
            at = saved.end()
            self.shown += 1
            try:
                image = Path(saved["path"]).read_bytes() if self.shown <= MOST else b""
            except OSError:  # the folder of an old launch has been removed
                image = b""
            if 0 < len(image) <= MOST_BYTES:
                _print(out, begin + "\n")
                _display(image, f"{saved['rank'].removesuffix(' | ')}, figure {saved['number']}")
            else:
                why = f" (a cell shows {MOST} figures)" if self.shown > MOST else ""
                _print(out, f"{begin}: {saved['path']}{why}\n")
        _print(out, text[at:])


def _print(out: Any, text: str) -> None:
    if text:
        out.write(text)
        out.flush()


def _display(png: bytes, name: str) -> None:
    from IPython.display import display

    display({"image/png": png, "text/plain": name}, raw=True)
