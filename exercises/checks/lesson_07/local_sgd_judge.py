"""Lesson 07, exercise 1: how a training that meets now and then differs from the same one in one process."""

from __future__ import annotations

import random
from typing import Any

from ..judging import Answer, by_rank, differ, gap, require
from .cases import SgdCase, sgd_cases

ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-5
KNOWN = ("forgotten", "averaged", "no momentum")  # mistakes that have twins


def judge_local_sgd(answer: Answer) -> list[str]:
    draw = random.Random()
    given: dict[str, Any] = {"cases": sgd_cases(draw), "seed": draw.randrange(2**40)}
    ranks = max(case[0] for case in given["cases"])
    told = answer.on_ranks("local_sgd.train", ranks=ranks, given=given)
    twins = answer.on_ranks("local_sgd.twins", ranks=1, given=given)[0]["cases"]
    worst = 0.0
    for i, (case, twin) in enumerate(zip(given["cases"], twins, strict=True)):
        seen = [t["cases"][i] for t in told[: case[0]]]
        decide(seen, twin, case)
        worst = max(worst, *(gap(s["forward"] + s["end"], right) for s, right in zip(seen, twin[""], strict=True)))
    return [
        (
            f"{len(twins)} trainings on 2 and 3 ranks: all begin with rank 0's weights, and after each round all have"
            f" the mean (largest gap {worst:.0e})"
        ),
        "between two averages nothing is sent, and each rank keeps its own momentum",
        "the last round is averaged too, whole or not, and once",
    ]


def _words(case: SgdCase) -> str:
    ranks, steps, every = case
    return f"{steps} steps on {ranks} ranks, every={every}"


def decide(seen: list[dict[str, Any]], twin: dict[str, Any], case: SgdCase) -> None:
    """`twin` has each rank's weights before each step and at the end as they should be, under "", and as each known
    mistake makes them."""
    _, steps, every = case
    _counts(seen, case)
    _start(seen, case)
    # of each rank what it sent between the beginning of each step and that of the next
    marks = [[*s["sent by forward"], *s["sent by end"]] for s in seen]
    sent = [[later - before for before, later in zip(own, own[1:], strict=False)] for own in marks]
    for step in range(steps):
        if (step + 1) % every and step + 1 < steps:
            _alone(sent, step, case)
        else:
            _together(seen, sent, step, case)
    _twin(seen, twin, case)
    if steps % every == 0 and steps > every:
        first, last = sent[0][every - 1], sent[0][-1]
        got = [f"rank 0: {first} bytes after the first round, {last} after the last"]
        require(last <= 1.5 * first, "twice", got, case=_words(case))


def _counts(seen: list[dict[str, Any]], case: SgdCase) -> None:
    steps = case[1]
    counts = [(len(s["forward"]), len(s["step"])) for s in seen]
    got = by_rank([f"{forwards} forwards, {made} steps" for forwards, made in counts])
    require(all(count == (steps, steps) for count in counts), "steps", got, steps=steps, case=_words(case))


def _start(seen: list[dict[str, Any]], case: SgdCase) -> None:
    off = [gap(s["forward"][0], seen[0]["start"]) for s in seen]
    if max(off) <= ROUNDING:
        return
    own = [gap(s["forward"][0], s["start"]) <= ROUNDING for s in seen]
    begin = ["rank 0's" if o <= ROUNDING else "its own" if mine else "others" for o, mine in zip(off, own, strict=True)]
    differ("different start" if all(own) else "start", by_rank(begin), case=_words(case))


def _alone(sent: list[list[int]], step: int, case: SgdCase) -> None:
    """Nothing may be sent in this step, or before the next one."""
    here = [own[step] for own in sent]
    if not any(here):
        return
    always = all(all(own) for own in sent)
    end, got = min(case[1], (step // case[2] + 1) * case[2]), by_rank([f"{n} bytes in step {step + 1}" for n in here])
    differ("every step" if always else "wrong moment", got, step=step + 1, end=end, case=_words(case))


def _together(seen: list[dict[str, Any]], sent: list[list[int]], step: int, case: SgdCase) -> None:
    """After this step all ranks hold the mean of what they had."""
    ranks, steps, every = case
    words = f"after step {step + 1}, {_words(case)}"
    before = [s["step"][step] for s in seen]
    now = [(s["forward"] + s["end"])[step + 1] for s in seen]
    apart = max(gap(now[0], other) for other in now[1:])
    if apart > ROUNDING:
        rest = step + 1 == steps and bool(steps % every)
        in_step = any(s["sent by step"][step] > s["sent by forward"][step] for s in seen)
        silent = not any(own[step] for own in sent)
        symptom = "last round" if silent and rest else "never" if silent else "gradients" if in_step else "not alike"
        differ(symptom, apart=apart, case=words)
    mean = [sum(values) / ranks for values in zip(*before, strict=True)]
    if gap(now[0], mean) <= ROUNDING:
        return
    known = [("sum", [ranks * value for value in mean]), *(("one rank's", own) for own in before)]
    symptom = next((name for name, weights in known if gap(now[0], weights) <= ROUNDING), "not the mean")
    differ(symptom, [f"off by {gap(now[0], mean):.2g}"], case=words)


def _twin(seen: list[dict[str, Any]], twin: dict[str, Any], case: SgdCase) -> None:
    weights = [s["forward"] + s["end"] for s in seen]
    if gap(weights, twin[""]) <= ROUNDING:
        return
    for how in KNOWN:
        require(gap(weights, twin[how]) > ROUNDING, "momentum", how=how, case=_words(case))
    differ("weights", [f"off by {gap(weights, twin['']):.2g}"], case=_words(case))
