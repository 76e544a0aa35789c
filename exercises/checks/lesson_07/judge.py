"""Lesson 07: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import random

from ..judging import Answer, Difference, Exercise, by_rank, some
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
        if found[i + len(in_order)] != found[i]:
            raise Difference(
                "order of lines",
                f"The same {len(log)} lines in another order give another answer.",
                _pairs(found[i]),
                [_pairs(found[i + len(in_order)]), f"log: {some(mixed[i], SHOWN)}"],
            )
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
    got = [_pairs(found), f"log: {some(log, SHOWN)}"]
    if found.keys() == right.keys():
        version = min(v for v in right if found[v] != right[v])
        raise Difference(
            "first time" if found == overwritten.first_time(log) else "who",
            f"Update {version} wasn't taken out for good by trainer {found[version]} ({len(log)} lines).",
            _pairs(right),
            got,
        )
    known = {
        "came back": overwritten.overwritten_once,
        "built on": overwritten.unread,
        "who overwrote": overwritten.old,
    }
    symptom = next((name for name, way in known.items() if found.keys() == way(log)), "which")
    more, less = sorted(found.keys() - right.keys()), sorted(right.keys() - found.keys())
    what = (
        f"update {more[0]} is lost, and the last version has it"
        if more
        else f"nothing of update {less[0]}, which the last version lacks"
    )
    raise Difference(symptom, f"The answer says {what} ({len(log)} lines).", _pairs(right), got)


# --- 07.4 -------------------------------------------------------------------------------------------------------------


def judge_racing(answer: Answer) -> list[str]:
    told = answer.on_ranks("counters.racing", ranks=PROCESSES)
    total, together = PROCESSES * ADDITIONS, told[0]["together"]
    alone = [t["alone"] for t in told]
    if any(a != ADDITIONS for a in alone):
        raise Difference(
            "wrong alone",
            f"One process alone adds {ADDITIONS} times, and the counter says {alone[0]}.",
            f"{ADDITIONS}: alone nothing is lost",
            by_rank(alone),
        )
    kept = [t["interrupted"] for t in told]
    if any(k is not None and k < 1000 * (ADDITIONS - 1) for k in kept):
        raise Difference(
            "reads once",
            f"Another process added 1000 after each of the writes, and the counter says {kept[0]} at the end: it was"
            " not read again before each write.",
            f"at least {1000 * (ADDITIONS - 1)}: each addition reads what is there, and writes that plus 1",
            by_rank(kept),
        )
    if together > total / 2:
        raise Difference(
            "too few lost",
            f"{PROCESSES} processes made {total} additions, and {total - together} were lost.",
            f"at least {total // 2} lost",
        )
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
        if count != times and any(taken):
            raise Difference(
                "wrong alone",
                f"One process alone adds {times} times, and the counter says {count}.",
                str(times),
                by_rank([f"{b} after 5 additions" for _, b in alone]),
            )
    if not any(taken):
        raise Difference(
            "no lock",
            f"The lock that you were given was never taken, and {total - together} of {total} additions were lost.",
            "all processes take the same lock",
        )
    if together != total:
        raise Difference(
            "lost",
            f"{PROCESSES} processes made {total} additions, and the counter says {together}.",
            str(total),
            by_rank([f"took the lock {t} times" for t in taken]),
        )
    if min(taken) < ADDITIONS:
        raise Difference(
            "held",
            f"A process took the lock {min(taken)} times for {ADDITIONS} additions: the others had to wait for all of"
            " them.",
            "the lock is held for one addition at a time",
            by_rank([f"took the lock {t} times" for t in taken]),
        )
    if (most := max(t["most"] for t in told)) > 1:
        raise Difference(
            "held",
            f"A process took the lock {min(taken)} times, and added {most} while it had it once.",
            "the lock is held for one addition at a time",
        )
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
