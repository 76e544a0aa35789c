"""A deadlock in steps: the calls of two ranks, who waits for whom, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..failure import RankError
from ..figures.canvas import BLUE, INK, RUST, VERMILION
from ..launcher import launch
from .controls import Control
from .drawing import Drawing, View
from .explorer import Action, Explorer, Found, Question, Values
from .meeting_calls import CALLS, COLLECTIVES, SENDS, State, frames, sentence, stuck, title

BOTH_SEND = "both send, then receive"
PATTERNS = {
    BOTH_SEND: (("send", "recv"), ("send", "recv")),
    "one sends first, the other receives first": (("send", "recv"), ("recv", "send")),
    "both isend, receive, then wait": (("isend", "recv", "wait"),) * 2,
    "both receive, then send": (("recv", "send"), ("recv", "send")),
    "rank 0 sums once more, for its log": (("all_reduce", "all_reduce"), ("all_reduce",)),
    "a sum and a barrier, in another order": (("all_reduce", "barrier"), ("barrier", "all_reduce")),
    "nothing: write your own": ((), ()),
}
ROWS, STEPS, WAIT_S = 3, 8, 5
_MENU = {"as in the pattern": "", "nothing": "nothing", **{call: call for call in CALLS}}
CONTROLS = (
    Control("pattern", "calls", BOTH_SEND, "what each of the two ranks calls", choices={n: n for n in PATTERNS}),
    Control("step", "step", 1, "how often each rank may go on", 0, STEPS),
    *(Control(f"rank{rank}_{row + 1}", f"rank {rank}, call {row + 1}", "", "instead of what the pattern has there",
              choices=_MENU, more=True) for rank in (0, 1) for row in range(ROWS)),
)  # fmt: skip
LEAVES_OUT = (
    "time, tags, groups and more ranks. A send here waits for its receive, as in gloo. On GPUs NCCL's calls come back"
    " to Python at once and the GPU waits instead; a small message may fit into NCCL's buffers and pass, and a larger"
    " one then hangs. So don't count on a buffer: let one rank receive first, or use isend or batch_isend_irecv. Where"
    " the picture waits for a rank that has ended, gloo sees the closed connection and raises an error."
)


def lists(values: Values) -> list[list[str]]:
    """The calls of each rank: those of the pattern, but for what was put in their place."""
    found = []
    for rank, pattern in enumerate(PATTERNS[values["pattern"]]):
        calls = [values[f"rank{rank}_{row + 1}"] or (pattern[row:] or ("nothing",))[0] for row in range(ROWS)]
        found.append([call for call in calls if call != "nothing"])
    return found


def render(values: Values, found: Found, answered: bool = True) -> View:
    """The calls of both ranks from top to bottom: not made yet, inside, or returned; lines join those that met."""
    steps = frames(lists(values))
    last, now = len(steps) - 1, min(values["step"], len(steps) - 1) * answered
    state = steps[now]
    hangs = stuck(state) if now == last else []
    drawing = Drawing(74 + 46 * ROWS + 26)
    heading = title(state, now, last) if answered else "Both ranks are about to begin. What will happen?"
    drawing.text(12, 24, heading, 15, bold=True, color=RUST if hangs else INK)
    for number, (rank, x) in enumerate(zip(state, (60.0, 420.0), strict=True)):
        drawing.text(x + 100, 58, f"rank {number}" + ": ended" * rank.ended * bool(rank.calls), 13, "middle", True)
        for row, call in enumerate(rank.calls):
            y = 68.0 + 46 * row
            inside = rank.inside and row == rank.called - 1
            fill, hatch, words, color = "#FFFFFF", "", call, "#666666"
            if inside:
                fill, hatch, words, color = "#BDBDBD", "...", f"▶ {call} …", INK
            elif row < rank.called:
                fill, words, color = BLUE, f"{call}  ✓", "#FFFFFF"
            edge = VERMILION if inside and number in hangs else "#888888"
            drawing.bar(x, y, 200, 36, fill, hatch, edge=edge, edge_width=4 if edge == VERMILION else 1)
            if inside:
                drawing.bar(x + 34, y + 8, 132, 20, "#FFFFFF", edge="none")
            drawing.text(x + 100, y + 23, words, 13, "middle", inside, RUST if inside and number in hangs else color)
    for mine, theirs in state[0].matched.items():
        _join(drawing, state[0].calls[mine], 86.0 + 46 * mine, 86.0 + 46 * theirs)
    for x, words in (
        (60, "✓ it returned"),
        (180, "▶ inside, waiting"),
        (330, "white: not called yet"),
        (500, "line: two that met"),
    ):
        drawing.text(x, 80 + 46 * ROWS + 8, words, 12)
    if not answered:
        return View.of(drawing, "The calls of two ranks, none of which has been made. They begin after your guess.")
    said = sentence(state, now, last, values["step"])
    if "measured" in found:
        said += " " + _compared(found["measured"], steps[-1])
    return View.of(drawing, said)


def _join(drawing: Drawing, call: str, left: float, right: float) -> None:
    """A line for a collective, an arrow for a message."""
    drawing.line([(262, left), (418, right)], VERMILION, 2.5, "2 3" if call in COLLECTIVES else "")
    if call not in COLLECTIVES:
        x, y, back = (416.0, right, -9.0) if call in SENDS else (264.0, left, 9.0)
        drawing.line([(x + back, y - 5), (x, y), (x + back, y + 5)], VERMILION, 2.5)


def _nth(rank: int, number: int, state: State) -> str:
    return f"rank {rank} was still in call {number + 1}, {state[rank].calls[number]}"


def _compared(result: dict[str, Any], end: State) -> str:
    """Where the real ranks stood, next to where the model has them."""
    predicted = {number: end[number].called - 1 for number in stuck(end)}
    stood = {number: at for number, at in enumerate(result["stood"]) if at is not None}
    where = " and ".join(_nth(number, at, end) for number, at in stood.items())
    how = f"after {WAIT_S} s {where}" if stood else "both ranks came to their end"
    if result["error"] and stood:
        how = f"{where} when the other was gone, and got “{result['error']}”"
    agrees = "as the model says" if stood == predicted else "which is not what the model says"
    return f"Measured here, on two gloo ranks: {how}, {agrees}."


def _run_here(values: Values) -> dict[str, Any]:
    script, args = Path(__file__).with_name("two_ranks.py"), [",".join(calls) for calls in lists(values)]
    error = ""
    try:
        run = launch(script, 2, args=args, timeout=WAIT_S, device="cpu", threads=1, quiet=True, engine="local")
    except RankError as failed:  # what we came to see
        run = failed.run
        if failed.rank is not None:
            error = "Connection closed by peer" if "closed by peer" in failed.cause else failed.cause[:80]
    stood: list[int | None] = []
    for rank in run.ranks:
        called = [record["called"] for record in rank.records if "called" in record]
        returned = [record["returned"] for record in rank.records if "returned" in record]
        stood.append(called[-1] if len(called) > len(returned) else None)
    return {"stood": stood, "error": error}


def deadlock(**settings: Any) -> Explorer:
    """Two ranks, a list of calls each, and who waits for whom. `settings` are pattern, step, and rank0_1 to rank1_3."""
    why = f"these calls, on two gloo ranks of this machine; what hangs is stopped after {WAIT_S} s"
    action = Action("Run here", "measured", _run_here, lambda values: 2 + WAIT_S, why)
    hang, cross = "it hangs", "the two messages cross, and it ends"
    answer = (
        "It hangs. A send comes back once the other rank receives, and neither of them gets that far. Choose other"
        " calls, and move the step."
    )

    def judge(guess: str | None) -> str:
        return ("" if guess is None else "Yes. " if guess == hang else "Not this time. ") + answer

    text = "Two ranks swap a small tensor: each sends its own to the other, then receives. What happens?"
    question = None if settings else Question(text, (cross, hang, "torch raises an error at once"), judge)
    return Explorer(CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=[action])
