"""Lesson 07: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

from typing import Any

from ..judging import Answer, Difference, Exercise, by_rank, some
from .cases import ADDITIONS, CALLS, LR, THREADS, UPDATES, staleness_cases

WORKERS = 3
PROCESSES = 4


# --- 07.1 -------------------------------------------------------------------------------------------------------------


def judge_overlap(answer: Answer) -> list[str]:
    # An exception that a call raises on a worker comes back with the same words.
    told = answer.on_ranks("overlap", ranks=1 + WORKERS)[0]
    for case, (n, found) in enumerate(zip(CALLS, told["found"], strict=False)):
        _answers(n, found, [1, 2, 3] if case < len(CALLS) - 1 else [3, 2])
    if told["equal"] != [1, 2, 3, 1]:
        raise Difference(
            "wrong worker",
            "Of four jobs that are equal, not each ran on the worker of its own number.",
            "worker1, worker2, worker3, worker1",
            [some([f"worker{w}" for w in told["equal"]])],
        )
    if "job 1 has no answer" not in told["raised"]:
        raise Difference(
            "swallowed",
            "A job raised an exception, but `ask_all` returned as if nothing had happened.",
            "the exception of the call reaches the caller",
            [told["raised"] or "no exception"],
        )
    return [
        f"{max(CALLS)} jobs on {WORKERS} workers: all calls were under way before the first had answered",
        (
            "job i ran on worker i modulo their number, and the answers are in the order of the jobs, though the last"
            " was done first"
        ),
        "no jobs and one job; an exception reaches the caller",
    ]


def _answers(n: int, found: list[dict[str, Any]], workers: list[int]) -> None:
    if len(found) != n:
        raise Difference("length", f"For {n} jobs there are {len(found)} answers.", f"{n} answers")
    order = [answer["job"] for answer in found]
    if sorted(order) != list(range(n)):
        raise Difference("length", f"Some jobs were done twice and others never: {some(order)}.", "every job once")
    seen = max((answer["seen"] for answer in found), default=0)
    if seen < n:
        got = [f"job {answer['job']} on worker{answer['on']} saw {answer['seen']} under way" for answer in found]
        if seen == 1:
            raise Difference(
                "one by one", "Each call was awaited before the next began.", f"all {n} calls under way at once", got
            )
        raise Difference(
            "some at once",
            f"At most {seen} of {n} calls were under way at once.",
            f"all {n}: a worker runs several calls at a time",
            got,
        )
    if order != list(range(n)):
        raise Difference("order", "The answers are not in the order of the jobs.", some(list(range(n))), [some(order)])
    on = [answer["on"] for answer in found]
    wanted = [workers[i % len(workers)] for i in range(n)]
    if on != wanted:
        raise Difference(
            "wrong worker",
            "The jobs are not dealt to the workers in turn.",
            some([f"worker{w}" for w in wanted]),
            [some([f"worker{w}" for w in on])],
        )


# --- 07.2 -------------------------------------------------------------------------------------------------------------


def judge_server(answer: Answer) -> list[str]:
    told = answer.on_ranks("server", ranks=1)[0]
    alone, total = told["alone"], THREADS * UPDATES
    if not all(abs(w + LR) < 1e-6 for w in alone["weights"]):
        raise Difference(
            "wrong value",
            f"After one update with a gradient of ones and lr={LR}, the weights are"
            f" {some([f'{w:g}' for w in alone['weights']])}.",
            f"{-LR:g} everywhere: weights - lr * gradient",
        )
    if alone["start"] != 0 or alone["version"] != 1:
        raise Difference(
            "version",
            f"The version is {alone['start']} at first, and {alone['version']} after one update.",
            "0 at first, then the number of updates",
        )
    if alone["stale"] != 0:
        raise Difference(
            "staleness",
            f"One trainer reads and updates, nobody else does, and `update` returns {alone['stale']}.",
            "0: no other update came between its read and its update",
        )
    if alone["late"] != 1:
        raise Difference(
            "staleness",
            f"A trainer sends a gradient that it computed from version 0, the server is at version 1, and `update`"
            f" returns {alone['late']}.",
            "1: one update came in between",
        )
    if alone["gradient"]:
        raise Difference(
            "argument changed", "`update` changed the gradient that it was given.", "the caller's tensor as it was"
        )
    if not alone["copy"]:
        raise Difference(
            "live tensor",
            "What `read` had returned changed with the next update.",
            "a copy: RPC sends what was returned later, on another thread",
        )
    if alone["given"]:
        raise Difference(
            "shared weights",
            f"{alone['given']}.",
            "the server has a copy of the weights it was given, and whoever reads gets a copy too",
        )
    applied = [round(a, 3) for a in told["applied"]]
    if any(abs(a - total) > 1e-3 for a in applied):
        low = min(applied)
        raise Difference(
            "lost",
            f"{THREADS} threads sent {total} gradients, and {low:g} of them are in the weights: the others were lost.",
            f"all {total}",
            [f"gradients in each weight: {some([f'{a:g}' for a in applied])}"],
        )
    torn = [(version, counts) for version, counts in told["reads"] if len(counts) > 1]
    if torn:
        counts = f"some had {torn[0][1][0]} updates and some {torn[0][1][-1]}"
        raise Difference(
            "torn read",
            f"A read got weights of which {counts}: it came in the middle of an update.",
            "weights of one version, whole",
        )
    if told["version"] != total or sorted(told["before"]) != list(range(total)):
        twice = len(told["before"]) - len(set(told["before"]))
        said = (
            f"After {total} updates the version is {told['version']}, and {twice} updates found a version that another"
            " one had found too."
        )
        raise Difference("version", said, "each update finds a different version, and counts it up by one")
    other = [(version, counts[0]) for version, counts in told["reads"] if counts[0] != version]
    if other:
        raise Difference(
            "torn read",
            f"A read said version {other[0][0]}, and its weights had {other[0][1]} updates.",
            "version and weights that belong together",
        )
    if told["alone"]["far"] != total:
        raise Difference(
            "staleness",
            f"A trainer sends a gradient that it computed from version 0, the server is at version {total}, and"
            f" `update` returns {told['alone']['far']}.",
            f"{total}: as many updates came in between",
        )
    return [
        f"{total} gradients from {THREADS} threads at once: none was lost, each found a version of its own",
        "meanwhile every read got whole weights of the right version, as a copy",
        "an update that raises changes nothing and gives the lock back",
    ]


# --- 07.3 -------------------------------------------------------------------------------------------------------------


def judge_staleness(answer: Answer) -> list[str]:
    told = answer.on_ranks("staleness", ranks=2)[1]
    for case, found in zip(staleness_cases(told["seed"]), told["found"], strict=True):
        said, used = found["said"], found["used"]
        steps = f"{len(case)} step{'s' * (len(case) > 1)}"
        if len(used) != len(case):
            raise Difference("updates", f"In {steps} the server got {len(used)} updates.", "one update a step")
        if [found_ - read for read, found_ in used] != case:
            got = [f"versions that the updates found: {some([f for _, f in used])}"]
            said_so = f"In {steps} gradients were computed from weights of versions {some([r for r, _ in used])}."
            raise Difference("old weights", said_so, "each step reads the weights anew, before it computes", got)
        if found["reads"] != len(case):
            raise Difference(
                "reads",
                f"In {steps} the server was read {found['reads']} times.",
                "one read a step: it has the weights and their version",
            )
        if said == case:
            continue
        expected, got = f"{some(case)}: how often others updated between the read and the update", [some(said)]
        if len(said) != len(case):
            raise Difference("length", f"In {steps} `train` returned {len(said)} numbers.", "one for each step", got)
        if [s - 1 for s in said] == case:
            raise Difference("off by one", "Each staleness is one too many.", expected, got)
        if not any(said):
            raise Difference("always zero", "Every gradient is said to be fresh.", expected, got)
        raise Difference("wrong", "The staleness of a step is not what the server saw.", expected, got)
    return [
        "the staleness of each step, as the server saw it, from 0 to 30 updates by others",
        "one read and one update a step",
    ]


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


EXERCISES = {
    e.name: e
    for e in [
        Exercise("07.1", "ask several workers at once", judge_overlap, how="with real remote calls"),
        Exercise(
            "07.2",
            "a server's update that loses nothing",
            judge_server,
            how=f"with {THREADS + 2} threads, as calls come",
        ),
        Exercise("07.3", "how old is a gradient?", judge_staleness, how="with a real server"),
        Exercise("07.4a", "a counter that loses", judge_racing, how=f"with {PROCESSES} processes and shared memory"),
        Exercise("07.4b", "mend the counter", judge_mended, how=f"with {PROCESSES} processes and shared memory"),
    ]
}
