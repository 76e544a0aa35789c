"""A deadlock in steps: the calls of two ranks, who waits for whom, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..failure.errors import RankError
from ..figures.canvas import BLUE, INK, RUST, VERMILION
from ..launching.launcher import launch
from .controls import Control
from .drawing import Drawing, View
from .explorer import PROGRAMS, Action, Explorer, Found, Question, Values, opening

# Which call of a rank waits for which of the other: sends, receives and collectives of two ranks, step by step.

SENDS, RECEIVES, COLLECTIVES = ("send", "isend"), ("recv", "irecv"), ("all_reduce", "barrier")
CALLS = ("send", "recv", "isend", "irecv", "wait", "all_reduce", "barrier")


@dataclass
class CallingRank:
    """How far a rank is: it has made the first `called` of its calls, and is `inside` the last of them or not."""

    calls: Sequence[str]
    called: int = 0
    inside: bool = False
    matched: dict[int, int] = field(default_factory=dict)  # a call that met another: which one of the other rank's

    @property
    def ended(self) -> bool:
        return self.called == len(self.calls) and not self.inside

    def made(self, kinds: Sequence[str]) -> list[int]:
        """Which of the calls made so far are of these kinds."""
        return [i for i, call in enumerate(self.calls[: self.called]) if call in kinds]

    def copy(self) -> CallingRank:
        return CallingRank(self.calls, self.called, self.inside, dict(self.matched))


State = tuple[CallingRank, CallingRank]


def frames(lists: Sequence[Sequence[str]]) -> list[State]:
    """Where two ranks stand after each step, until nothing moves. In a step each rank whose call has met its partner
    comes back from it, and makes its next one.

    The n-th send of a rank meets the n-th receive of the other, and the n-th collective its n-th, if it's of the same
    kind. A send returns once its receive has been called, however small the message: so it is in gloo
    (gloo/transport/tcp/pair.cc, `Pair::send`: it only announces a send until the other side has a pending receive).
    """
    state = (CallingRank(lists[0]), CallingRank(lists[1]))
    found = [state]
    while True:
        state = (state[0].copy(), state[1].copy())
        for rank in state:
            if rank.inside and not _waits(rank):
                rank.inside = False
            if not rank.inside and rank.called < len(rank.calls):
                rank.called += 1
                rank.inside = rank.calls[rank.called - 1] not in ("isend", "irecv")
        _meet(*state)
        if state == found[-1]:
            return found
        found.append(state)


def _meet(one: CallingRank, two: CallingRank) -> None:
    for a, b in ((SENDS, RECEIVES), (RECEIVES, SENDS), (COLLECTIVES, COLLECTIVES)):
        for i, j in zip(one.made(a), two.made(b), strict=False):
            if a != COLLECTIVES or one.calls[i] == two.calls[j]:
                one.matched[i], two.matched[j] = j, i


def open_calls(rank: CallingRank) -> list[int]:
    """Its isend and irecv that have met nothing yet."""
    return [i for i in rank.made(("isend", "irecv")) if i not in rank.matched]


def _waits(rank: CallingRank) -> bool:
    last = rank.called - 1
    return bool(open_calls(rank)) if rank.calls[last] == "wait" else last not in rank.matched


def stuck(state: State) -> list[int]:
    """The ranks that wait in a call which meets nothing in this state."""
    return [number for number, rank in enumerate(state) if rank.inside and _waits(rank)]


def reason(state: State, number: int) -> str:
    """What a rank that is stuck waits for, in words."""
    rank, other = state[number], state[1 - number]
    call, them = rank.calls[rank.called - 1], f"rank {1 - number}"
    if call in COLLECTIVES:
        at = rank.made(COLLECTIVES).index(rank.called - 1)
        theirs = other.made(COLLECTIVES)
        if at < len(theirs):
            return f"rank {number} waits in {call} while {them} is in {other.calls[theirs[at]]}"
        return f"rank {number} waits in {call} for {them} to join in"
    if call == "wait":
        return f"rank {number} waits for its {rank.calls[open_calls(rank)[0]]}, which {them} hasn't answered"
    return f"rank {number} waits in {call} for a {'recv' if call == 'send' else 'send'} of {them}"


def title(state: State, now: int, last: int) -> str:
    """What a step shows, or how it all ends."""
    hangs = stuck(state)
    if now < last:
        return f"Step {now} of {last}: {' and '.join(_at(state, number) for number in (0, 1))}"
    if len(hangs) == 2:
        return f"A deadlock: after step {last} each rank waits for the other, for ever"
    if hangs:
        return f"Rank {hangs[0]} waits for ever: rank {1 - hangs[0]} has ended"
    return f"It ends well: after step {last} both ranks are at their end"


def _at(state: State, number: int) -> str:
    rank = state[number]
    if rank.ended and rank.calls:
        return f"rank {number} has ended"
    return f"rank {number} is in {rank.calls[rank.called - 1]}" if rank.inside else f"rank {number} goes on"


def sentence(state: State, now: int, last: int, step: int) -> str:
    """Who waits for whom at `step`, and what to try next."""
    if now < last:
        waits = [f"{reason(state, number)}" for number in stuck(state)]
        so_far = "; ".join(waits) if waits else "Nobody waits in vain in this step"
        return f"{so_far[:1].upper()}{so_far[1:]}. Move on to see how it ends, at step {last}."
    if hangs := stuck(state):
        why = "; ".join(reason(state, number) for number in hangs)
        cure = ""
        if all(rank.called == 1 and sorted(rank.calls) == ["recv", "send"] for rank in state):
            cure = " Let one of them begin with the other half of the exchange, and it ends."
        for_ever = "Nothing here will ever move again."
        if step > last:
            for_ever = f"Nothing has moved since step {last}, and nothing ever will."
        return f"{why[:1].upper()}{why[1:]}. {for_ever}{cure}"
    lost = [f"rank {number}'s {rank.calls[i]}" for number, rank in enumerate(state) for i in open_calls(rank)]
    if lost:
        return f"Both ranks end, but {' and '.join(lost)} met nobody. Without wait() nobody notices."
    if not any(rank.calls for rank in state):
        return (
            "Choose calls for both ranks under *more settings*: whatever ends well can be made to hang by one of them."
        )
    return "Every call met its partner. Now find a change of one call that makes it hang."


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
    script, args = PROGRAMS / "two_ranks.py", [",".join(calls) for calls in lists(values)]
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
        return (opening(guess, hang)) + answer

    text = "Two ranks swap a small tensor: each sends its own to the other, then receives. What happens?"
    question = Question(text, (cross, hang, "torch raises an error at once"), judge)
    return Explorer(
        "deadlock", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question, actions=[action]
    )
