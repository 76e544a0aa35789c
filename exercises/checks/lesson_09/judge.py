"""Lesson 09: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

from ..judging import Answer, Exercise, apart_all, differ, require, some
from .cases import AGAIN_CASES, CHOOSE_CASES, EVERY_CASES, random_blocks, random_jobs
from .curves_judge import judge_curves
from .killed_judge import judge_killed
from .resume_judge import judge_resume

# --- 09.3 -------------------------------------------------------------------------------------------------------------


def held(kept: Sequence[int], inputs: Sequence[int], chosen: Sequence[int]) -> int:
    """The most bytes that are held at once if `chosen` are recomputed."""
    return sum(inputs[i] if i in chosen else kept[i] for i in range(len(kept))) + max(
        (kept[i] for i in chosen), default=0
    )


def least(
    kept: Sequence[int], inputs: Sequence[int], seconds: Sequence[float], limit: int, block: bool = True
) -> float | None:
    """The least extra time of any choice that fits, or None if none does. `block=False` forgets the block that backward
    is at, which is a known mistake."""
    n = len(kept)
    choices = [c for k in range(n + 1) for c in combinations(range(n), k)]
    times = [
        sum(seconds[i] for i in c)
        for c in choices
        if held(kept, inputs, c) - (0 if block else max((kept[i] for i in c), default=0)) <= limit
    ]
    return min(times) if times else None


def _why_too_much(
    kept: Sequence[int], inputs: Sequence[int], seconds: Sequence[float], limit: int, chosen: Sequence[int], best: float
) -> str:
    """The symptom of a choice that does not fit."""
    others = [i for i in range(len(kept)) if i not in chosen]
    cost = sum(seconds[i] for i in chosen)
    if held(kept, inputs, others) <= limit and abs(sum(seconds[i] for i in others) - best) < 1e-9:
        return "the others"
    if cost == least(kept, inputs, seconds, limit, block=False):
        return "the block itself"
    return "inputs" if cost == least(kept, [0] * len(kept), seconds, limit) else "does not fit"


def judge_choose(answer: Answer) -> list[str]:
    cases = [*CHOOSE_CASES, *random_blocks(random.Random())]
    told = answer.on_ranks("choose", ranks=1, given=cases)[0]
    for (kept, inputs, seconds, limit), chosen in zip(cases, told["chosen"], strict=True):
        best = least(kept, inputs, seconds, limit)
        case = f"blocks keep {some(kept, 12)}, inputs {some(inputs, 12)}, at most {limit} bytes"
        if kept in [c[0] for c in cases[len(CHOOSE_CASES) :]]:
            case += f"; forward takes {some(seconds, 12)} s"
        if chosen is None:
            require(best is None, "too careful", case=case)
            continue
        got, blocks = [f"recomputed: {some(chosen, 12)}"], len(kept)
        ok = len(set(chosen)) == len(chosen) and all(0 <= i < blocks for i in chosen)
        require(ok, "indices", got, blocks=blocks, last=blocks - 1, case=case)
        total = held(kept, inputs, chosen)
        facts = {"total": total, "limit": limit, "case": case}
        if best is None:
            differ("does not fit", got, how="nothing", **facts)
        if total > limit:
            differ(_why_too_much(kept, inputs, seconds, limit, chosen, best), got, how="limit", **facts)
        cost = sum(seconds[i] for i in chosen)
        if cost > best + 1e-9:
            [least_s], [cost_s] = apart_all([best], [cost])
            differ("all" if len(chosen) == blocks else "not the best", got, cost=cost_s, least=least_s, case=case)
    return [
        (
            f"{len(cases)} models of 1 to {max(len(c[0]) for c in cases)} blocks: everything fits,"
            " including the block that backward is at"
        ),
        "no other choice costs less time, and None if nothing fits",
    ]


# --- 09.4 -------------------------------------------------------------------------------------------------------------


def lost(steps: int, step_s: float, save_s: float, failure_s: float) -> float:
    t = steps * step_s
    return save_s / t + t / (2 * failure_s)


def judge_often(answer: Answer) -> list[str]:
    kills, jobs = random_jobs(random.Random())
    kills, jobs = [*AGAIN_CASES, *kills], [*EVERY_CASES, *jobs]
    told = answer.on_ranks("often", ranks=1, given={"again": kills, "every": jobs})[0]
    for (step, every), value in zip(kills, told["repeated"], strict=True):
        if value != step % every:
            words = f"killed in step {step}, saved after each {every} steps"
            known = {
                step % every + 1: "one more",
                every - step % every: "to the next",
                step - step % every: "the safe ones",
                every: "always all",
            }
            differ(known.get(value, "again"), [str(value)], value=value, case=words, right=step % every)
    for case, value in zip(jobs, told["numbers"], strict=True):
        step_s, save_s, failure_s = case
        about = (2 * save_s * failure_s) ** 0.5
        best = min(range(max(1, int(about / step_s) - 2), int(about / step_s) + 4), key=lambda n: lost(n, *case))
        words = f"a step of {step_s:g} s, a save of {save_s:g} s, a failure every {failure_s:g} s"
        shares = apart_all([100 * lost(best, *case)], [100 * lost(value, *case)] if value > 0 else [0.0])
        got = [f"{value} steps" + (f" ({shares[1][0]}% lost)" if value > 0 else "")]
        facts = {"value": value, "best": best, "share": shares[0][0], "case": words}
        require(value >= 1, "none", got, **facts)
        if lost(value, *case) > lost(best, *case) * (1 + 1e-9):
            wrong = [
                (about, "seconds"),
                (about / 2**0.5 / step_s, "without the 2"),
                ((save_s * failure_s) ** 0.5 / step_s, "without the 2"),
            ]
            beside = abs(value - about / step_s) < 1 or abs(value - best) <= 1
            symptom = "rounded" if beside else next((name for n, name in wrong if abs(value - n) <= 1), "interval")
            differ(symptom, got, **facts)
    return [
        f"{len(kills)} kills: the steps since the last save",
        f"{len(jobs)} jobs: no other number of steps loses less",
    ]


SCRIPT = "c385ffd7f6dc"  # trainer.py, which the notebook hands out; a test compares them

EXERCISES = {
    e.name: e
    for e in [
        Exercise("09.1", "a trainer that comes back", judge_killed, handed_out=SCRIPT, how="in child processes"),
        Exercise("09.2", "resume in the middle of an epoch", judge_resume),
        Exercise("09.3", "which blocks to recompute?", judge_choose, how=""),
        Exercise("09.4", "how often to save?", judge_often, how=""),
        Exercise("09.5", "whose curve is this?", judge_curves, how="on curves of real steps"),
    ]
}
