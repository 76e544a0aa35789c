"""While a launch or a sweep lasts, one display under the cell says how far it is. At its end one line is left.

What it shows is a function of what is known (`lines`, `page`); `LiveView` decides when to show it. A plain terminal or
a script, which can't change what it has shown, gets the last line only.
"""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

from ...show.notebook import notebook_kernel
from ...show.table import GOOD, PROBLEM

APPEARS_S = 0.3  # whatever ends before that shows its last line only
INTERVAL_S = 0.2  # between two updates, at least
SILENT_S = 5.0  # so long without news, and we say so
STALE_S = 20  # so long without an update of the display, and the page itself says so: a kernel that has ended can't
MOST_ROWS = 8  # with more ranks than this, we count them, and show a few
FEW_ROWS = 4
BAR = 12  # characters
WIDTH = 110  # of a line of text
_TEXT = (
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:1.5;word-break:normal;"
    "font-variant-numeric:tabular-nums;padding:1px 8px"
)
_WORST_FIRST = ("failed", "starting", "running", "finished")
# The headline gives way to a sentence in the same place, unless an update comes first, which begins to wait anew.
_STALE = (
    "<style>@keyframes course-was{to{visibility:hidden}} @keyframes course-is{to{visibility:visible}} "
    f".course-was{{animation:course-was 0s {STALE_S}s forwards}} "
    f".course-is{{animation:course-is 0s {STALE_S}s forwards}}</style>"
)
_GONE = "no news since. If the kernel was restarted or stopped, "
_ENDED, _GOES_ON = "this launch ended with it: run the cell again.", "the job goes on: squeue shows it."
_LINE = "white-space:nowrap;overflow:hidden;text-overflow:ellipsis"  # one line, whatever the width: the height stays


@dataclass(frozen=True)
class RankState:
    """What is known of a rank: `state` is one of starting, running, finished, failed."""

    rank: int
    state: str
    progress: tuple[float, float] | None = None  # done, total
    numbers: str = ""  # what it reported last
    place: str = ""  # where it stands, if we had to ask

    @property
    def part(self) -> float | None:
        return None if self.progress is None else _part(*self.progress)


@dataclass(frozen=True)
class Known:
    """What is known of a launch: what we wait for, which part is done (None if nobody says), how long nothing has
    come, and whether it goes on without this kernel, as a Slurm job does."""

    doing: str
    ranks: Sequence[RankState] = ()
    part: float | None = None
    silent_s: float = 0.0
    outlives_kernel: bool = False


Row = tuple[str, str, float | None, str]  # who, its state, the part that is done, more words


def lines(known: Known, seconds: float, sweep: str = "") -> list[str]:
    """The view as text. `sweep` says at which point a sweep is."""
    rows = _rows(known.ranks)
    widths = [max((len(row[0]) for row in rows), default=0), max((len(row[1]) for row in rows), default=0)]
    bars = any(row[2] is not None for row in rows)
    shown = _headlines(known, seconds, sweep)
    for who, state, part, words in rows:
        bar = "" if not bars else " " * BAR if part is None else _bar(part)
        cells = [who.ljust(widths[0]), state.ljust(widths[1]), *([bar] if bars else []), words]
        shown.append("  ".join(cells).rstrip())
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in shown]


def page(known: Known, seconds: float, sweep: str = "", height: int = 0) -> str:
    """The view as HTML, at least `height` lines high. Its colours are the page's own, so that it suits any theme."""
    rows, heads = _rows(known.ranks), [html.escape(line) for line in _headlines(known, seconds, sweep)]
    bars = any(row[2] is not None for row in rows)
    body = [_row_html(row, bars) for row in rows]
    body += ["<tr style='background:none'><td style='padding:0'>&nbsp;</td></tr>"] * (height - len(heads) - len(rows))
    above = "".join(f"<div style='{_LINE}' title='{line}'>{line}</div>" for line in heads[1:])
    ended = f"{int(seconds)} s, and {_GONE}{_GOES_ON if known.outlives_kernel else _ENDED}"
    first = (
        "<div style='display:grid;font-weight:600'>"
        f"<div class='course-was' style='grid-area:1/1;{_LINE}' title='{heads[0]}'>{heads[0]}</div>"
        f"<div class='course-is' style='grid-area:1/1;visibility:hidden;{_LINE}' title='{ended}'>{ended}</div></div>"
    )
    return (
        f"{_STALE}<div style='{_TEXT}'>{first}{above}"
        "<table style='table-layout:auto;width:100%;border-collapse:collapse;margin:0;color:inherit;font-size:inherit'>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _headlines(known: Known, seconds: float, sweep: str) -> list[str]:
    words = [f"{int(seconds)} s", *([sweep] if sweep else []), known.doing]
    if known.part is not None:
        words.append(f"{known.part:.0%}")
    if known.silent_s >= SILENT_S:
        words.append(f"no news for {int(known.silent_s)} s")
    if len(known.ranks) <= MOST_ROWS:
        return [" · ".join(words)]
    states = Counter(rank.state for rank in known.ranks)
    counted = ", ".join(f"{states[state]} {state}" for state in _WORST_FIRST if states[state])
    return [" · ".join(words), f"{len(known.ranks)} ranks: {counted}"]


def _rows(ranks: Sequence[RankState]) -> list[Row]:
    if len(ranks) <= MOST_ROWS:
        return [_row(rank) for rank in ranks]
    common = Counter((rank.state, rank.place) for rank in ranks).most_common(1)[0][0]
    # those that differ from most, and then the slowest; if nobody is slow, a few of the others
    order = sorted(
        ranks,
        key=lambda rank: (
            (rank.state, rank.place) == common,
            _WORST_FIRST.index(rank.state),
            1.0 if rank.part is None else rank.part,
        ),
    )
    return [_row(rank) for rank in sorted(order[:FEW_ROWS], key=lambda rank: rank.rank)]


def _row(rank: RankState) -> Row:
    done = (
        "" if rank.progress is None else " of ".join(f"{n:,.0f}" if n == int(n) else f"{n:.4g}" for n in rank.progress)
    )
    words = " · ".join(part for part in (done, rank.place, rank.numbers) if part)
    return f"rank {rank.rank}", rank.state, rank.part, words


def _row_html(row: Row, bars: bool) -> str:
    who, state, part, words = row
    cell = "padding:0 1.2em 0 0;text-align:left;white-space:nowrap;vertical-align:middle"
    color = f";color:{PROBLEM}" if state == "failed" else ";opacity:.7" if state in ("starting", "finished") else ""
    bar = ""
    if bars:
        full = "" if part is None else (
            "<span style='display:inline-block;width:7em;height:.55em;border:1px solid currentColor;border-radius:3px'>"
            f"<span style='display:block;width:{part:.0%};height:100%;background:currentColor'></span></span>"
        )  # fmt: skip
        bar = f"<td aria-hidden='true' style='{cell};opacity:.6'>{full}</td>"
    return (
        f"<tr style='background:none'><th scope='row' style='{cell};font-weight:normal'>{who}</th>"
        f"<td style='{cell}{color}'>{state}</td>{bar}"
        f"<td style='padding:0;text-align:left;width:100%;max-width:0;{_LINE}' title='{html.escape(words)}'>"
        f"{html.escape(words)}</td></tr>"
    )


def _part(done: float, total: float) -> float:
    return min(max(done / total, 0.0), 1.0) if total > 0 else 0.0


def _bar(part: float) -> str:
    filled = round(part * BAR)
    return "█" * filled + "░" * (BAR - filled)


class LiveView:
    """The display of a launch, or of a sweep with all its launches. Use it as a context, `tick` it often, and `end` it
    with its last line.

    With `quiet` it shows nothing itself: a sweep's launches are quiet, and say how far they are in the sweep's view,
    after its own words, `sweep`.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.since = time.monotonic()
        self.sweep = ""
        self._quiet = quiet
        self._outer = _current.get() if quiet else None
        self._can_show = not quiet and notebook_kernel() is not None
        self._handle: Any = None
        self._next = self.since + APPEARS_S
        self._shown: tuple[str, str] | None = None
        self._height = 0
        self._token: Token[LiveView | None] | None = None

    def __enter__(self) -> LiveView:
        self._token = None if self._quiet else _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
        if self._handle is not None:  # the error says the rest
            self.end("stopped" if kind is KeyboardInterrupt else "failed", well=False)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def to_come(self) -> bool:
        """Whether it may appear in a moment. What is printed before that stands above it."""
        return self._can_show and self._handle is None

    def tick(self, known: Callable[[], Known]) -> None:
        """Show what `known` returns, if it's time to."""
        if self._outer is not None:
            self._outer.tick(known)
        now = time.monotonic()
        if not self._can_show or now < self._next:
            return
        self._next = now + INTERVAL_S
        found, seconds = known(), now - self.since
        text = lines(found, seconds, self.sweep)
        self._height = max(self._height, len(text))
        text += [""] * (self._height - len(text))
        shown = "\n".join(text), page(found, seconds, self.sweep, self._height)
        if shown != self._shown:
            self._shown = shown
            self._display(*shown)

    def end(self, words: str, well: bool, below: bool = False) -> None:
        """Leave one line. Where nothing has been displayed, it's printed. With `below` something was printed since the
        display appeared: the line comes after that, and the display is emptied."""
        mark = "✓" if well else "✗"
        if self._handle is not None:
            if below:
                self._display("", "")
                self._handle = None
            color = GOOD if well else PROBLEM
            marked = f"<span style='color:{color};font-weight:bold'>{mark}</span> {html.escape(words)}"
            self._display(f"{mark} {words}", f"<div style='{_TEXT}'>{marked}</div>")
        elif not self._quiet:
            print(f"{mark} {words}", flush=True)
        self._can_show, self._handle = False, None

    def _display(self, text: str, on_page: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": text, "text/html": on_page}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


_current: ContextVar[LiveView | None] = ContextVar("the view of the sweep that runs", default=None)
