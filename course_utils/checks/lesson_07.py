"""Lesson 07: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import hints_07
from .base import Difference, Exercise, by_rank, on_ranks, some
from .cases_07 import ADDITIONS, CALLS, LR, STALENESS, THREADS, UPDATES

ADAPTER = Path(__file__).resolve().parent / "ranks_07.py"
WORKERS = 3
PROCESSES = 4


# --- 07.1 -------------------------------------------------------------------------------------------------------------------


def judge_overlap(answer: Path) -> list[str]:
    # What a call raises over there comes back as an exception of the same words.
    told = on_ranks(ADAPTER, "overlap", answer, ranks=1 + WORKERS)[0]
    for n, found in zip(CALLS, told["found"], strict=True):
        _answers(n, found)
    if "job 1 has no answer" not in told["raised"]:
        raise Difference("swallowed", "A job raised an exception, and `ask_all` returned as if nothing had happened.",
                         "the exception of the call reaches the caller", [told["raised"] or "no exception"])  # fmt: skip
    return [
        f"{CALLS[0]} jobs on {WORKERS} workers: all calls were under way before the first had answered",
        "job i ran on worker i modulo their number, and the answers are in the order of the jobs, though the last was done first",
        "no jobs and one job; an exception reaches the caller",
    ]


def _answers(n: int, found: list[dict[str, Any]]) -> None:
    if len(found) != n:
        raise Difference("length", f"For {n} jobs there are {len(found)} answers.", f"{n} answers")
    order = [answer["job"] for answer in found]
    if sorted(order) != list(range(n)):
        raise Difference("length", f"Some jobs were done twice and others never: {some(order)}.", "every job once")
    seen = max((answer["seen"] for answer in found), default=0)
    if seen < n:
        got = [f"job {answer['job']} on worker{answer['on']} saw {answer['seen']} under way" for answer in found]
        if seen == 1:
            raise Difference("one by one", "Each call was awaited before the next began.", f"all {n} calls under way at once", got)
        raise Difference("some at once", f"At most {seen} of {n} calls were under way at once.", f"all {n}: a worker runs several calls at a time", got)
    if order != list(range(n)):
        raise Difference("order", "The answers are not in the order of the jobs.", some(list(range(n))), [some(order)])
    on = [answer["on"] for answer in found]
    wanted = [1 + i % WORKERS for i in range(n)]
    if on != wanted:
        raise Difference(
            "wrong worker", "The jobs are not dealt to the workers in turn.", some([f"worker{w}" for w in wanted]), [some([f"worker{w}" for w in on])]
        )


# --- 07.2 -------------------------------------------------------------------------------------------------------------------


def judge_server(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "server", answer, ranks=1)[0]
    alone, total = told["alone"], THREADS * UPDATES
    if not all(abs(w + LR) < 1e-6 for w in alone["weights"]):
        raise Difference("wrong value", f"After one update with a gradient of ones and lr={LR}, the weights are {some([f'{w:g}' for w in alone['weights']])}.",
                         f"{-LR:g} everywhere: weights - lr * gradient")  # fmt: skip
    if alone["start"] != 0 or alone["version"] != 1:
        raise Difference(
            "version", f"The version is {alone['start']} at first, and {alone['version']} after one update.", "0 at first, then the number of updates"
        )
    if alone["stale"] != 0:
        raise Difference("staleness", f"One trainer reads and updates, nobody else does, and `update` returns {alone['stale']}.",
                         "0: no other update came between its read and its update")  # fmt: skip
    if not alone["copy"]:
        raise Difference(
            "live tensor", "What `read` had returned changed with the next update.", "a copy: RPC sends what was returned later, on another thread"
        )
    applied = [round(a, 3) for a in told["applied"]]
    if any(abs(a - total) > 1e-3 for a in applied):
        low = min(applied)
        raise Difference("lost", f"{THREADS} threads sent {total} gradients, and {low:g} of them are in the weights: the others were lost.", f"all {total}",
                         [f"gradients in each weight: {some([f'{a:g}' for a in applied])}"])  # fmt: skip
    torn = [(version, counts) for version, counts in told["reads"] if len(counts) > 1]
    if torn:
        counts = f"some had {torn[0][1][0]} updates and some {torn[0][1][-1]}"
        raise Difference("torn read", f"A read got weights of which {counts}: it came in the middle of an update.", "weights of one version, whole")
    if told["version"] != total or sorted(told["before"]) != list(range(total)):
        twice = len(told["before"]) - len(set(told["before"]))
        said = f"After {total} updates the version is {told['version']}, and {twice} updates found a version that another one had found too."
        raise Difference("version", said, "each update finds another version, and counts one up")
    other = [(version, counts[0]) for version, counts in told["reads"] if counts[0] != version]
    if other:
        raise Difference(
            "version", f"A read said version {other[0][0]}, and its weights had {other[0][1]} updates.", "version and weights that belong together"
        )
    return [
        f"{total} gradients from {THREADS} threads at once: none was lost, each found a version of its own",
        "all reads meanwhile got whole weights, of the version that was told, and copies",
        "an update that raises changes nothing and gives the lock back",
    ]


# --- 07.3 -------------------------------------------------------------------------------------------------------------------


def judge_staleness(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "staleness", answer, ranks=2)[1]
    for case, found in zip(STALENESS, told["found"], strict=True):
        said, used = found["said"], found["used"]
        steps = f"{len(case)} step{'s' * (len(case) > 1)}"
        if len(used) != len(case):
            raise Difference("updates", f"In {steps} the server got {len(used)} updates.", "one update a step")
        if [found_ - read for read, found_ in used] != case:
            got = [f"versions that the updates found: {some([f for _, f in used])}"]
            said_so = f"In {steps} gradients were computed from weights of versions {some([r for r, _ in used])}."
            raise Difference("old weights", said_so, "each step reads the weights anew, before it computes", got)
        if found["reads"] != len(case):
            raise Difference("reads", f"In {steps} the server was read {found['reads']} times.", "one read a step: it has the weights and their version")
        if said == case:
            continue
        expected, got = f"{some(case)}: so often others updated between the read and the update", [some(said)]
        if len(said) != len(case):
            raise Difference("length", f"In {steps} `train` returned {len(said)} numbers.", "one for each step", got)
        if [s - 1 for s in said] == case:
            raise Difference("off by one", "Each staleness is one too many.", expected, got)
        if not any(said):
            raise Difference("always zero", "Every gradient is said to be fresh.", expected, got)
        raise Difference("wrong", "The staleness of a step is not what the server saw.", expected, got)
    return ["the staleness of each step, as the server saw it, from 0 to 5 updates by others", "one read and one update a step"]


# --- 07.4 -------------------------------------------------------------------------------------------------------------------


def judge_racing(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "racing", answer, ranks=PROCESSES)
    total, together = PROCESSES * ADDITIONS, told[0]["together"]
    alone = [t["alone"] for t in told]
    if any(a != ADDITIONS for a in alone):
        raise Difference("wrong alone", f"One process alone adds {ADDITIONS} times, and the counter says {alone[0]}.", f"{ADDITIONS}: alone nothing is lost",
                         by_rank(alone))  # fmt: skip
    if together > total / 2:
        raise Difference("too few lost", f"{PROCESSES} processes made {total} additions, and {total - together} were lost.", f"at least {total // 2} lost")
    return [f"alone it counts to {ADDITIONS}; {PROCESSES} processes made {total} additions at once, and {total - together} of them were lost"]


def judge_mended(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "mended", answer, ranks=PROCESSES)
    total, together = PROCESSES * ADDITIONS, told[0]["together"]
    taken = [t["taken"] for t in told]
    if not any(taken):
        raise Difference(
            "no lock", f"The lock that was given was not taken once, and {total - together} of {total} additions were lost.", "all processes take the same lock"
        )
    if together != total:
        raise Difference("lost", f"{PROCESSES} processes made {total} additions, and the counter says {together}.", str(total),
                         by_rank([f"took the lock {t} times" for t in taken]))  # fmt: skip
    if min(taken) < ADDITIONS:
        raise Difference("held", f"A process took the lock {min(taken)} times for {ADDITIONS} additions: the others had to wait for all of them.",
                         "the lock is held for one addition at a time", by_rank([f"took the lock {t} times" for t in taken]))  # fmt: skip
    return [f"{PROCESSES} processes made {total} additions at once, and none was lost", "the lock is held for one addition at a time"]


EXERCISES = {
    e.name: e
    for e in [
        Exercise("07.1", "ask several workers at once", judge_overlap, hints_07.OVERLAP, how="with real remote calls"),
        Exercise("07.2", "a server's update that loses nothing", judge_server, hints_07.SERVER, how=f"with {THREADS + 2} threads, as calls come"),
        Exercise("07.3", "how old is a gradient?", judge_staleness, hints_07.STALENESS, how="with a real server"),
        Exercise("07.4a", "a counter that loses", judge_racing, hints_07.RACING, how=f"with {PROCESSES} processes and shared memory"),
        Exercise("07.4b", "mend the counter", judge_mended, hints_07.MENDED, how=f"with {PROCESSES} processes and shared memory"),
    ]
}
