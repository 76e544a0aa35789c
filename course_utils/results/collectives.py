"""Where ranks disagree about their collectives, from the records that they left (`on_rank/flight_record.py`).

Collective number k of a group has to be the same call on all its ranks: the same kind, and for most kinds the same
shape. The first k where it isn't is what went wrong, whatever gloo or NCCL said of it later.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT = "0"  # the group of all ranks
# What has to have one shape and type on all ranks. Others (scatter, all_to_all) may differ by rank.
_SAME_SHAPE = ("all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "allgather")
_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64", "Int": "int32", "Byte": "uint8"}


@dataclass(frozen=True)
class Call:
    """One collective of one rank. `file` and `line` are the student's own; `line` is 0 where there is none."""

    group: str
    number: int  # in its group, from 1 on
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtype: str
    file: str = ""
    line: int = 0
    function: str = ""  # what was called at that line
    root: int | None = None  # the rank that it names as source or destination, where we know

    @property
    def shape(self) -> str:
        """`10 numbers`, `3 x 4 numbers`, in words."""
        one = [" x ".join(map(str, size)) or "1" for size in self.sizes]
        return f"{' and '.join(one)} number{'' if one == ['1'] else 's'}"

    @property
    def where(self) -> str:
        linecache.checkcache(self.file)  # a cell that ran before may have been edited since
        source = linecache.getline(self.file, self.line).strip() if self.line else ""
        return f" (`{source}`, line {self.line})" if source else f" (line {self.line})" if self.line else ""


def unnoticed(calls: Mapping[int, list[Call]]) -> str:
    """Where the ranks of a launch that ended well disagree all the same; empty where they don't. Only the group of all
    ranks: different groups may share a name."""
    return disagreement({rank: [c for c in own if c.group == DEFAULT] for rank, own in calls.items()})


@dataclass(frozen=True)
class Standing:
    """Where a rank waits for others: the function that it called, at which line, and with what."""

    call: Call
    members: tuple[int, ...] = ()  # global ranks of the group that it waits in
    peer: int | None = None
    tag: int = 0
    rank: int = -1  # as given to `init_process_group`, or read from the environment
    world_size: int = -1
    messages: tuple[tuple[str, int], ...] = ()  # of a batch: send or recv, and the other rank

    @property
    def op(self) -> str:
        return self.call.op

    @property
    def where(self) -> str:
        return self.call.where


@dataclass(frozen=True)
class Records:
    """What the ranks of a launch left: rank -> its last collectives, oldest first; rank -> where it waits for others;
    and the ranks whose script came to its end, perhaps by an exception."""

    calls: dict[int, list[Call]] = field(default_factory=dict)
    standing: dict[int, Standing] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


def read_records(folder: Path, world_size: int, is_students: Callable[[str], bool]) -> Records:
    """What each rank wrote (`on_rank/flight_record.py`); ranks without a record, or with half of one, are left out."""
    left = Records()
    for rank in range(world_size):
        try:
            raw = json.loads((folder / f"rank{rank}.collectives.json").read_text())
            left.calls[rank] = [_call(entry, is_students) for entry in raw["calls"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if raw["ended"]:
            left.ended.add(rank)
        if raw.get("standing"):
            left.standing[rank] = _standing(raw["standing"], is_students)
    return left


def _standing(raw: Mapping[str, Any], is_students: Callable[[str], bool]) -> Standing:
    entry = {
        "group": raw.get("group", ""),
        "number": 0,
        "op": raw["call"],
        "inputs": (),
        "dtypes": (),
        "root": raw.get("root"),
    }
    return Standing(
        call=_call(entry | {"frames": raw["frames"]}, is_students),
        members=tuple(raw.get("members", ())),
        peer=raw.get("peer"),
        tag=raw.get("tag", 0),
        rank=raw.get("rank", -1),
        world_size=raw.get("world_size", -1),
        messages=tuple((kind, int(other)) for kind, other in raw.get("messages", ())),
    )


def forget(folder: Path, world_size: int) -> None:
    """Remove the records of a launch that ended well."""
    for rank in range(world_size):
        for what in ("collectives.json", "ended"):
            (folder / f"rank{rank}.{what}").unlink(missing_ok=True)


def _call(entry: Mapping[str, Any], is_students: Callable[[str], bool]) -> Call:
    frames = entry["frames"]
    at = next((i for i, (file, _, _) in enumerate(frames) if is_students(file)), None)
    inner = [name for _, _, name in frames[:at]] if at is not None else []
    return Call(
        group=str(entry["group"]),
        number=int(entry["number"]),
        op=str(entry["op"]),
        sizes=tuple(tuple(size) for size in entry["inputs"]),
        dtype=_DTYPES.get((entry["dtypes"] or [""])[0], (entry["dtypes"] or [""])[0].lower()),
        file=frames[at][0] if at is not None else "",
        line=int(frames[at][1]) if at is not None else 0,
        function=inner[-1] if inner else "",
        root=entry.get("root"),
    )


def disagreement(calls: Mapping[int, list[Call]], finished: Collection[int] = ()) -> str:
    """The first collective that isn't the same on all ranks, in a sentence or two; empty where there is none.

    `finished` are the ranks whose script ended without an error. Other ranks that stopped before a collective aren't
    blamed for it: something else stopped them.
    """
    for group in dict.fromkeys(call.group for own in calls.values() for call in own):
        by_rank = {rank: {c.number: c for c in own if c.group == group} for rank, own in calls.items()}
        by_rank = {rank: own for rank, own in by_rank.items() if own or (group == DEFAULT and rank in finished)}
        if len(by_rank) < 2:
            continue
        first = max((min(own) for own in by_rank.values() if own), default=1)
        last = max(max(own) for own in by_rank.values() if own)
        for number in range(first, last + 1):
            here = {rank: own[number] for rank, own in sorted(by_rank.items()) if number in own}
            if said := _differ(here) or _missing(here, by_rank, finished):
                return said
            if len(here) < len(by_rank):
                break  # a rank stopped here; what the others did after that says nothing
    return ""


def _differ(here: Mapping[int, Call]) -> str:
    """How the same collective differs between ranks."""
    one = next(iter(here.values()), None)
    if one is None:
        return ""
    if len({call.op for call in here.values()}) > 1:
        return f"Different collectives{each(here, lambda call: call.op, ('calls', 'call'))}."
    if said := different_roots(here):
        return said
    if one.op in _SAME_SHAPE and len({call.sizes for call in here.values()}) > 1:
        return f"Different shapes in {one.op}{each(here, lambda call: call.shape)}."
    if one.op in _SAME_SHAPE and len({call.dtype for call in here.values()}) > 1:
        return f"Different types in {one.op}{each(here, lambda call: call.dtype)}."
    return ""


def different_roots(here: Mapping[int, Call]) -> str:
    """One collective whose ranks name different roots, in two sentences; empty where they name the same."""
    roots = {call.root for call in here.values()}
    if len(roots) < 2 or None in roots:
        return ""
    op = next(iter(here.values())).op
    name = "dst" if op.startswith(("reduce", "gather")) else "src"  # as torch names the argument
    return (
        f"Different roots in {op}{each(here, lambda call: f'{name}={call.root}')}."
        f" {'One rank gets it' if name == 'dst' else 'One rank has it, the others get it'}: all have to name that one."
    )


def each(here: Mapping[int, Call], words: Callable[[Call], str], verbs: tuple[str, str] = ("has", "have")) -> str:
    """`: rank 0 has 10 numbers (line 8), ranks 1 to 3 have 12 (line 9)`; the line goes first where it's the same."""
    kinds: dict[str, list[int]] = {}
    for rank, call in here.items():
        kinds.setdefault(words(call), []).append(rank)
    places = {here[ranks[0]].where for ranks in kinds.values()}
    each = [
        f"{ranks_in_words(ranks)} {verbs[len(ranks) > 1]} {what}" + (here[ranks[0]].where if len(places) > 1 else "")
        for what, ranks in kinds.items()
    ]
    return f"{places.pop() if len(places) == 1 else ''}: {', '.join(each)}"


def _missing(here: Mapping[int, Call], by_rank: Mapping[int, Mapping[int, Call]], finished: Collection[int]) -> str:
    """Who finished without a collective in which others waited."""
    absent = [rank for rank in by_rank if rank not in here and rank in finished]
    waiting = [rank for rank, call in here.items() if rank not in finished and call.number == max(by_rank[rank])]
    if not absent or not waiting:
        return ""
    return f"{_waits(waiting, here[waiting[0]])}, and {ranks_in_words(absent)} finished without joining in."


def _waits(ranks: Collection[int], call: Call) -> str:
    verb = "waits" if len(ranks) == 1 else "wait"
    return f"{ranks_in_words(ranks).capitalize()} {verb} in {call.function or call.op}{call.where}"


def ahead(
    calls: Mapping[int, list[Call]], stuck: Collection[int], members: Mapping[int, Collection[int]] | None = None
) -> str:
    """Which ranks wait in a collective that others of its group haven't called; empty when none is ahead.

    `stuck` are the ranks that wait, as far as we know. A rank may have gone on from its last collective, for example
    with `async_op`. `members` are the ranks of the group in which each of them waits; where that isn't known, a group
    has all ranks that ever called something in it.
    """
    last = {rank: own[-1] if own else None for rank, own in calls.items()}
    groups = {call.group for call in last.values() if call}
    for group in sorted(groups):
        in_it = {rank: call for rank, call in last.items() if call and call.group == group}
        top = max(call.number for call in in_it.values())
        waiting = [rank for rank, call in in_it.items() if call.number == top and rank in stuck]
        if not waiting:
            continue
        known = (members or {}).get(waiting[0]) or (calls if len(groups) == 1 else in_it)
        behind = [rank for rank in known if _number(calls.get(rank, ()), group) < top and rank in calls]
        if behind:
            has = "hasn't" if len(behind) == 1 else "haven't"
            return f"{_waits(waiting, in_it[waiting[0]])}, and {ranks_in_words(behind)} {has} joined in."
    return ""


def _number(own: Collection[Call], group: str) -> int:
    """Of a rank's last collective in a group; 0 if it has called none."""
    return max((call.number for call in own if call.group == group), default=0)


def left_alone(calls: Mapping[int, list[Call]], rank: int, gone: Collection[int]) -> str:
    """For a rank that was cut off in its last collective, when others ended and left no record."""
    if not gone or not calls.get(rank):
        return ""
    have, their = ("has", "its script") if len(gone) == 1 else ("have", "their scripts")
    return (
        f"{_waits([rank], calls[rank][-1])}, and {ranks_in_words(gone)} {have} ended before {their} did, without an"
        " error: os._exit leaves like that."
    )


def ranks_in_words(ranks: Collection[int]) -> str:
    """`rank 2`, `ranks 0 and 3`, `ranks 1 to 7`."""
    known = sorted(ranks)
    if len(known) == 1:
        return f"rank {known[0]}"
    if len(known) > 2 and known == list(range(known[0], known[-1] + 1)):
        return f"ranks {known[0]} to {known[-1]}"
    return f"ranks {', '.join(map(str, known[:-1]))} and {known[-1]}"
