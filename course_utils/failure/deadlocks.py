"""Why ranks wait for ever: from where each of them stands (`on_rank/standing.py`) and what each has called.

Each rule below explains one kind of hang in a sentence or two; `why` asks them in turn. The first that has something to
say wins: those that look at one wrong argument come before those that only see who is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ..results.collectives import Records, Standing, ahead, different_roots, disagreement, each, ranks_in_words
from ..show.units import counted

_MAKES_A_GROUP = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group", "init_device_mesh")
_SENDS, _RECEIVES = ("send", "isend", "send_object_list"), ("recv", "irecv", "recv_object_list")
_Ranks = Mapping[int, Standing]


def why(left: Records, finished: Collection[int], world_size: int, certain: bool = False) -> str:
    """Why these ranks don't go on, as far as their records show; empty if they don't. `finished` are the ranks whose
    script has ended. With `certain`, only what no waiting can mend: their calls don't fit together."""
    stand: _Ranks = {rank: s for rank, s in sorted(left.standing.items()) if rank not in finished}
    rules: tuple[Callable[[], str], ...] = (
        lambda: _forming(stand, world_size),
        lambda: _group_made_by_some(stand, world_size),
        lambda: _roots(stand),
        lambda: disagreement(left.calls, finished),
        lambda: _other_calls(stand),
        lambda: _order_of_groups(stand),
        lambda: _batches(stand),
        lambda: _messages(stand, finished),
        lambda: ahead(left.calls, list(stand), {r: s.members for r, s in stand.items()}),
        lambda: "" if certain else _all_wait(stand, world_size, finished),
    )
    return next((said for rule in rules if (said := rule())), "")


def _forming(stand: _Ranks, world_size: int) -> str:
    """`init_process_group` that no set of these ranks can satisfy."""
    forming = {rank: s for rank, s in stand.items() if s.op == "init_process_group" and s.rank >= 0}
    same = {s.rank: [r for r, other in forming.items() if other.rank == s.rank] for s in forming.values()}
    cure = " Leave out rank and world_size: `%%ranks` and torchrun set them."
    for number, ranks in same.items():
        if len(ranks) > 1:
            return (
                f"{_capital(ranks)} {'both' if len(ranks) == 2 else 'all'} call init_process_group as rank {number}"
                f"{forming[ranks[0]].where}, and the group waits for the others for ever.{cure}"
            )
    sizes = {s.world_size for s in forming.values()}
    if len(sizes) > 1:
        return f"Different world sizes in init_process_group{_each(forming, lambda s: f'{s.world_size}')}.{cure}"
    if sizes and max(sizes) > world_size:
        first = next(iter(forming.values()))
        are = "rank runs" if world_size == 1 else "ranks run"
        return f"init_process_group waits for {max(sizes)} ranks{first.where}, and only {world_size} {are} here.{cure}"
    return ""


def _group_made_by_some(stand: _Ranks, world_size: int) -> str:
    """`new_group` on some ranks, while others are elsewhere."""
    making = [rank for rank, s in stand.items() if s.op in _MAKES_A_GROUP]
    others = [rank for rank in range(world_size) if rank not in making]
    if not making or not others:
        return ""
    first = stand[making[0]]
    return (
        f"{_waits(making, first)}, and {ranks_in_words(others)} {'hasn' if len(others) == 1 else 'haven'}'t called it."
        f" Every rank has to call {first.op}, also those that won't be members."
    )


def _roots(stand: _Ranks) -> str:
    """One collective whose ranks name different roots."""
    same = len({(_plain(s.op), s.call.group) for s in stand.values()}) == 1
    return different_roots({rank: s.call for rank, s in stand.items()}) if same else ""


def _other_calls(stand: _Ranks) -> str:
    """Different collectives of one group, where torch kept no record of one of them."""
    if len(stand) < 2 or any(s.peer is not None or s.op in ("wait", "init_process_group") for s in stand.values()):
        return ""
    if len({s.call.group for s in stand.values()}) > 1 or len({s.op for s in stand.values()}) < 2:
        return ""
    if any("backward" in s.op for s in stand.values()):
        return ""
    return f"Different collectives{_each(stand, lambda s: s.op, ('calls', 'call'))}."


def _order_of_groups(stand: _Ranks) -> str:
    """Two groups with the same members, called in different orders."""
    for one, s in stand.items():
        for other, t in stand.items():
            crossed = s.call.group != t.call.group and other in s.members and one in t.members
            if one < other and crossed and s.peer is None and t.peer is None:
                a, b = _of_group(s), _of_group(t)
                apart = ("on one group", "on another group") if a == b else (f"of {a}", f"of {b}")
                return (
                    f"{_waits([one], s, apart[0])}, and {_waits([other], t, apart[1], capital=False)}."
                    " Ranks that share several groups have to use them in the same order."
                )
    return ""


def _batches(stand: _Ranks) -> str:
    """Batches of messages of which one side has more than the other."""
    for rank, s in stand.items():
        for other, t in stand.items():
            asked = sum(message == ("recv", other) for message in s.messages)
            sent = sum(message == ("send", rank) for message in t.messages)
            if s.op == "wait" and t.messages and asked != sent:
                many = f"{counted(asked, 'message')}"
                return (
                    f"Rank {rank} receives {many} from rank {other}{s.where}, and rank {other} sends {sent}. What one"
                    " sends, the other has to receive."
                )
    return ""


def _messages(stand: _Ranks, finished: Collection[int]) -> str:
    """Sends and receives that don't meet."""
    alone = {rank: s for rank, s in stand.items() if s.peer is not None}
    if not alone:
        return ""
    for kinds, nobody in ((_SENDS, "nobody receives"), (_RECEIVES, "nobody sends")):
        if len(alone) == len(stand) > 1 and all(s.op in kinds for s in alone.values()):
            verb, cure = ("receive", ", or use isend") if kinds is _SENDS else ("send", "")
            return (
                f"All ranks wait in {next(iter(alone.values())).op}"
                f"{_each(alone, lambda s: f'for rank {s.peer}', ('waits', 'wait'))}, and {nobody}."
                f" Let one of them {verb} first{cure}."
            )
    for rank, s in alone.items():
        other = stand.get(s.peer if s.peer is not None else -1)
        verb = "to" if s.op in _SENDS else "from"
        said = f"Rank {rank} waits in {s.op} {verb} rank {s.peer}{s.where}"
        if other is not None and other.peer == rank and s.tag != other.tag:
            return f"{said} with tag {s.tag}, and rank {s.peer} in {other.op}{other.where} with tag {other.tag}."
        if other is not None and other.peer != rank:
            return f"{said}, and {_waits([s.peer or 0], other, capital=False)}."
        if s.peer in finished:
            return f"{said}, and rank {s.peer} has finished."
    return ""


def _all_wait(stand: _Ranks, world_size: int, finished: Collection[int]) -> str:
    """When no rule knows better: who waits where."""
    if not stand or len(stand) + len(set(finished)) < world_size:
        return ""
    each_one = ", ".join(f"rank {rank} in {s.op}{s.where}" for rank, s in list(stand.items())[:4])
    ended = f" {_capital(finished)} {'has' if len(finished) == 1 else 'have'} finished." if finished else ""
    return f"Every rank that still runs waits for another one: {each_one}.{ended}"


def _plain(op: str) -> str:
    """The collective that carries objects: `broadcast_object_list` is a broadcast."""
    return op.removesuffix("_list").removesuffix("_object").removesuffix("_single")


def _of_group(s: Standing) -> str:
    return f"the group of {ranks_in_words(s.members)}"


def _waits(ranks: Collection[int], s: Standing, more: str = "", capital: bool = True) -> str:
    who = _capital(ranks) if capital else ranks_in_words(ranks)
    return f"{who} {'waits' if len(ranks) == 1 else 'wait'} in {s.op}{f' {more}' if more else ''}{s.where}"


def _capital(ranks: Collection[int]) -> str:
    return ranks_in_words(ranks).capitalize()


def _each(stand: _Ranks, words: Callable[[Standing], str], verbs: tuple[str, str] = ("has", "have")) -> str:
    """As `collectives.each`, of where ranks stand."""
    by_call = {rank: s.call for rank, s in stand.items()}
    said = {id(s.call): words(s) for s in stand.values()}
    return each(by_call, lambda call: said[id(call)], verbs)
