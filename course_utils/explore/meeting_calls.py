"""Which call of a rank waits for which of the other: sends, receives and collectives of two ranks, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SENDS, RECEIVES, COLLECTIVES = ("send", "isend"), ("recv", "irecv"), ("all_reduce", "barrier")
CALLS = ("send", "recv", "isend", "irecv", "wait", "all_reduce", "barrier")


@dataclass
class Rank:
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

    def copy(self) -> Rank:
        return Rank(self.calls, self.called, self.inside, dict(self.matched))


State = tuple[Rank, Rank]


def frames(lists: Sequence[Sequence[str]]) -> list[State]:
    """Where two ranks stand after each step, until nothing moves. In a step each rank whose call has met its partner
    comes back from it, and makes its next one.

    The n-th send of a rank meets the n-th receive of the other, and the n-th collective its n-th, if it's of the same
    kind. A send returns once its receive has been called, however small the message: so it is in gloo
    (gloo/transport/tcp/pair.cc, `Pair::send`: it only announces a send until the other side has a pending receive).
    """
    state = (Rank(lists[0]), Rank(lists[1]))
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


def _meet(one: Rank, two: Rank) -> None:
    for a, b in ((SENDS, RECEIVES), (RECEIVES, SENDS), (COLLECTIVES, COLLECTIVES)):
        for i, j in zip(one.made(a), two.made(b), strict=False):
            if a != COLLECTIVES or one.calls[i] == two.calls[j]:
                one.matched[i], two.matched[j] = j, i


def open_calls(rank: Rank) -> list[int]:
    """Its isend and irecv that have met nothing yet."""
    return [i for i in rank.made(("isend", "irecv")) if i not in rank.matched]


def _waits(rank: Rank) -> bool:
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
