"""A ring all-reduce, step by step: who holds which part of the sum, and how much each rank has sent."""

from __future__ import annotations

from typing import Any

from .. import predict
from ..figures.canvas import BLUE, INK, ORANGE, RUST, SKY, VERMILION
from ..launching.launcher import launch
from .controls import Control
from .drawing import Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening
from .parts import AXIS, frames, ruler

MOST = 8  # ranks
CONTROLS = (
    Control("step", "step", 1, "how many messages each rank has sent", 0, 2 * (MOST - 1)),
    Control("ranks", "ranks", 4, "on the ring; the tensor is cut into as many chunks", 2, MOST),
)
LEAVES_OUT = (
    "time: the messages of a step are drawn as if equally fast, and each step waits for the slowest. NCCL cuts"
    " chunks into smaller ones and lets several rings run at once; for short messages it takes a tree instead."
)
HERE = "the same ring on as many ranks here, written with `isend` and `irecv`; each says after each step what it holds"
_SHADES = ("#F2F7FB", "#CFE3F2", "#8FBFE0", "#4A97CB", BLUE)  # from one rank's numbers to all, as in lesson 05
_CHOICES = ("a quarter of its tensor, one chunk", "1.5 times its tensor", "3 times its tensor", "6 times its tensor")


def last(ranks: int) -> int:
    return 2 * (ranks - 1)


def _grid(drawing: Drawing, x: float, y: float, ranks: int, step: int, wide: float, high: float, gap: float) -> None:
    """A row for each rank, a column for each chunk, after `step`. What came in it has a frame, and an arrow from the
    row above: from the last row to the first, since it's a ring."""
    held = predict.ring_held(ranks)[step]
    came = {((r + 1) % ranks, predict.ring_chunk(ranks, r, step)) for r in range(ranks)} if step else set()
    for rank in range(ranks):
        for chunk in range(ranks):
            left, up = x + chunk * wide, y + rank * (high + gap)
            inside = sorted(held[rank][chunk])
            shade = round((len(inside) - 1) / (ranks - 1) * (len(_SHADES) - 1))
            words = "all" if len(inside) == ranks else "+".join(map(str, inside)) if ranks < 5 else f"{len(inside)}"
            tip = f"rank {rank}, chunk {chunk}: the numbers of ranks {', '.join(map(str, inside))}"
            drawing.bar(left, up, wide - 3, high, _SHADES[shade], tip=tip)
            if (rank, chunk) in came:
                drawing.bar(left, up, wide - 3, high, "none", edge=VERMILION, edge_width=3)
                drawing.text(left + wide / 2 - 1.5, up - 1.5, "▼", 11, "middle", color=RUST)
            color = "#FFFFFF" if shade > 2 else INK
            drawing.text(left + wide / 2 - 1.5, up + high / 2 + 4, words, 12, "middle", len(inside) == ranks, color)


def render(values: Values, found: Found, answered: bool = True) -> View:
    """The chunks of every rank after a step, what each has sent, and all steps in a row below."""
    n = values["ranks"]
    end = last(n)
    step = min(values["step"], end)
    high, gap, wide = (30.0, 14.0, 74.0) if n < 6 else (22.0, 12.0, 62.0)
    low = 66 + n * (high + gap)
    drawing = Drawing(low + 122)
    adding = step < n
    what = "adding what comes" if adding else "copying what comes"
    title = f"Step {step} of {end}: {what}" if step else f"Before the first of {end} steps: everybody has their own"
    drawing.text(12, 24, "Every rank holds the whole sum" if step == end else title, 15, bold=True)
    for chunk in range(n):
        drawing.text(84 + (chunk + 0.5) * wide, 50, f"chunk {chunk}", 11, "middle")
    for rank in range(n):
        drawing.text(76, 66 + rank * (high + gap) + high / 2 + 4, f"rank {rank}", 12, "end")
    _grid(drawing, 84, 66, n, step, wide, high, gap)
    ran = found.get("measured")
    if ran is not None:
        same = ran == _bits(n)
        words = f"✓ {n} real ranks held just this" if same else "✗ real ranks held something else"
        drawing.text(664, 50, words, 12, "end", True, BLUE)
    _sent(drawing, low + 4, n, step, answered)
    looks = [("#BDBDBD", "...")] + [(SKY, "")] * (n - 1) + [(ORANGE, "///")] * (n - 1)
    ruler(
        drawing,
        low + 76,
        looks,
        step,
        f"before; {n - 1} of adding: reduce-scatter (blue); {n - 1} of copying: all-gather",
    )
    return View.of(drawing, _said(n, step, answered) + (f" Measured on {n} ranks here: {words[2:]}." if ran else ""))


def _sent(drawing: Drawing, y: float, n: int, step: int, answered: bool) -> None:
    """How many tensors each rank has sent, 64 pixels high; the end of the scale is 2, which no ring reaches."""
    scale = 190.0
    drawing.text(12, y + 13, f"each rank has sent {step}/{n} of its tensor: {step / n:.3g} times", 12, bold=True)
    drawing.bar(84, y + 22, scale * step / n, 14, VERMILION, "///")
    ends = [(0.0, "0"), (1.0, "1"), (2.0, "2")]
    for share, words in ends + [(last(n) / n, "▲")] * answered:
        x, mark = 84 + scale * share, words == "▲"
        drawing.line([(x, y + 20), (x, y + 40)], RUST if mark else AXIS, 1.2, "" if mark else "3 3")
        drawing.text(x, y + 53, words, 12 if mark else 11, "middle", color=RUST if mark else INK)
        if mark:
            drawing.text(84 + 2 * scale + 16, y + 34, f"▲ {share:.3g} times in the end", 12, color=RUST)


def _said(n: int, step: int, answered: bool) -> str:
    if step == 0:
        now = f"Rank 0 sends its chunk 0 to rank 1, rank 1 its chunk 1 to rank {2 % n}, and so on round the ring"
    elif step < n:
        now = f"Each rank has added what came from its left; the fullest chunk of each holds {step + 1} of {n} ranks"
        now += ", so it's complete" * (step == n - 1)
    else:
        now = f"Each rank has {step - n + 2} of {n} chunks complete"
    if not answered:
        return f"{now}."
    far = f"In all {last(n)} steps a rank sends 2(n-1)/n = {last(n) / n:.3g} times its tensor"
    return f"{now}. {far}: less than 2, however many ranks there are, but the number of steps grows with them."


def _bits(n: int) -> list[list[list[int]]]:
    """What ranks report that start with 2 to the power of their number: [step][rank][chunk]."""
    return [[[sum(2**r for r in chunk) for chunk in rank] for rank in step] for step in predict.ring_held(n)]


def _run(values: Values) -> Any:
    run = launch(
        PROGRAMS / "ring_steps.py", values["ranks"], device="cpu", threads=1, quiet=True, timeout=60,
        engine="local",
    )  # fmt: skip
    return [list(ranks) for ranks in zip(*(rank.values("held") for rank in run.ranks), strict=True)]


def _still(values: Values) -> View:
    """All steps of the ring side by side; with many ranks, a few of them."""
    n = min(values["ranks"], 4)
    steps = [(f"step {i}: {'add' if i < n else 'copy'}" if i else "before", i) for i in range(last(n) + 1)]
    drawn = [(words, lambda d, x, y, i=i: _grid(d, x, y + 10, n, i, 50.0, 22.0, 13.0)) for words, i in steps]
    return frames(drawn, 222.0, n * 35.0 + 14, f"{n} ranks, a row each, and {n} chunks: {_said(n, last(n), True)}")


def ring(**settings: Any) -> Explorer:
    """A ring all-reduce, step by step. `settings` are step and ranks."""

    def judge(guess: str | None) -> str:
        first = opening(guess, _CHOICES[1])
        return f"{first}6 messages of a quarter each: 1.5 times. Take 8 ranks: how much will it be then?"

    text = "Four ranks sum a tensor by passing chunks around a ring. How much does each rank send, in all?"
    question = Question(text, _CHOICES, judge)
    actions = [Action("Run here", "measured", _run, lambda values: 2 + values["ranks"] / 4, HERE)]
    return Explorer(
        "ring",
        CONTROLS,
        render,
        given=settings,
        leaves_out=LEAVES_OUT,
        question=question,
        actions=actions,
        still=_still,
    )
