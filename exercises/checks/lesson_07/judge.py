"""Lesson 07: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import random

from ..judging import Answer, Exercise, by_rank, differ, require, some
from . import overwritten
from .bounded_judge import judge_bounded
from .cases import ADDITIONS, logs
from .local_sgd_judge import judge_local_sgd

PROCESSES = 4
SHOWN = 8  # lines of a log, and updates


# --- 07.3 -------------------------------------------------------------------------------------------------------------


def judge_overwritten(answer: Answer) -> list[str]:
    draw = random.Random()
    in_order = logs(draw)
    mixed = [draw.sample(log, len(log)) for log in in_order]
    found = [dict(pairs) for pairs in answer.on_ranks("overwritten", ranks=1, given=in_order + mixed)[0]["found"]]
    for i, log in enumerate(in_order):
        decide_overwritten(log, found[i])
        again = found[i + len(in_order)]
        got = [_pairs(again), f"log: {some(mixed[i], SHOWN)}"]
        require(again == found[i], "order of lines", got, lines=len(log), first=_pairs(found[i]))
    return [
        f"{len(in_order)} logs of up to {max(map(len, in_order))} lines, each in two orders: all updates that are lost",
        "also those that stand on a lost one, and none that came back",
        "for each the trainer that took it out for good",
    ]


def _pairs(found: dict[int, int]) -> str:
    return some([f"update {version} by trainer {found[version]}" for version in sorted(found)], SHOWN)


def decide_overwritten(log: overwritten.Log, found: dict[int, int]) -> None:
    right = overwritten.lost(log)
    if found == right:
        return
    got, facts = [_pairs(found), f"log: {some(log, SHOWN)}"], {"lines": len(log), "right": _pairs(right)}
    if found.keys() == right.keys():
        version = min(v for v in right if found[v] != right[v])
        symptom = "first time" if found == overwritten.first_time(log) else "who"
        differ(symptom, got, version=version, trainer=found[version], **facts)
    known = {
        "came back": overwritten.overwritten_once,
        "built on": overwritten.unread,
        "who overwrote": overwritten.old,
    }
    symptom = next((name for name, way in known.items() if found.keys() == way(log)), "which")
    more, less = sorted(found.keys() - right.keys()), sorted(right.keys() - found.keys())
    differ(symptom, got, how="more" if more else "less", version=(more or less)[0], **facts)


# --- 07.4 -------------------------------------------------------------------------------------------------------------


def judge_racing(answer: Answer) -> list[str]:
    told = answer.on_ranks("counters.racing", ranks=PROCESSES)
    total, together = PROCESSES * ADDITIONS, told[0]["together"]
    alone = [t["alone"] for t in told]
    require(all(a == ADDITIONS for a in alone), "wrong alone", by_rank(alone), times=ADDITIONS, count=alone[0])
    kept, least = [t["interrupted"] for t in told], 1000 * (ADDITIONS - 1)
    again = all(k is None or k >= least for k in kept)
    require(again, "reads once", by_rank(kept), count=kept[0], least=least)
    lost = total - together
    require(together <= total / 2, "too few lost", processes=PROCESSES, total=total, lost=lost, half=total // 2)
    return [
        f"alone it counts to {ADDITIONS}; {PROCESSES} processes made {total} additions at once, and {total - together}"
        " of them were lost"
    ]


def judge_mended(answer: Answer) -> list[str]:
    told = answer.on_ranks("counters.mended", ranks=PROCESSES)
    total, together = PROCESSES * ADDITIONS, told[0]["together"]
    taken = [t["taken"] for t in told]
    alone = [t["alone"] for t in told]
    for times, count in ((0, alone[0][0]), (5, next((a[1] for a in alone if a[1] != 5), 5))):
        got = by_rank([f"{b} after 5 additions" for _, b in alone])
        require(count == times or not any(taken), "wrong alone", got, times=times, count=count)
    require(any(taken), "no lock", lost=total - together, total=total)
    got = by_rank([f"took the lock {t} times" for t in taken])
    require(together == total, "lost", got, processes=PROCESSES, total=total, count=together)
    most, facts = max(t["most"] for t in told), {"taken": min(taken), "additions": ADDITIONS}
    require(min(taken) >= ADDITIONS, "held", got, how="for all", **facts)
    require(most <= 1, "held", how="once", most=most, **facts)
    return [
        f"{PROCESSES} processes made {total} additions at once, and none was lost",
        "the lock is held for one addition at a time",
    ]


SCRIPT = "fc3bec5f4815"  # the script of 07.1 as the notebook hands it out; a test compares it

EXERCISES = {
    e.name: e
    for e in [
        Exercise("07.1", "meet less often", judge_local_sgd, handed_out=SCRIPT),
        Exercise("07.2", "a server that lets the fast ones wait", judge_bounded, how="call by call"),
        Exercise("07.3", "who overwrote whom?", judge_overwritten, how=""),
        Exercise("07.4a", "a counter that loses", judge_racing, how=f"with {PROCESSES} processes and shared memory"),
        Exercise("07.4b", "mend the counter", judge_mended, how=f"with {PROCESSES} processes and shared memory"),
    ]
}
