"""Lesson 07, exercise 1: how a training that meets now and then differs from the same one in one process."""

from __future__ import annotations

import random
from typing import Any

from ..judging import Answer, Difference, by_rank, gap
from .cases import SgdCase, sgd_cases

ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-5
KNOWN = {
    "forgotten": "A rank's momentum is forgotten after each round",
    "averaged": "The momentum is averaged, too",
    "no momentum": "The steps have no momentum",
}


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
    if steps % every == 0 and steps > every and sent[0][-1] > 1.5 * sent[0][every - 1]:
        raise Difference(
            "twice",
            f"After the last round, which is a whole one, there are two averages ({_words(case)}). The result is right,"
            " and one of them was for nothing.",
            "one average after each round",
            [f"rank 0: {sent[0][every - 1]} bytes after the first round, {sent[0][-1]} after the last"],
        )


def _counts(seen: list[dict[str, Any]], case: SgdCase) -> None:
    steps = case[1]
    counts = [(len(s["forward"]), len(s["step"])) for s in seen]
    if any(count != (steps, steps) for count in counts):
        raise Difference(
            "steps",
            f"A rank doesn't make one step of SGD for each of its batches ({_words(case)}).",
            f"{steps} forwards of the model that was given, each followed by a step",
            by_rank([f"{forwards} forwards, {made} steps" for forwards, made in counts]),
        )


def _start(seen: list[dict[str, Any]], case: SgdCase) -> None:
    off = [gap(s["forward"][0], seen[0]["start"]) for s in seen]
    if max(off) <= ROUNDING:
        return
    own = [gap(s["forward"][0], s["start"]) <= ROUNDING for s in seen]
    begin = ["rank 0's" if o <= ROUNDING else "its own" if mine else "others" for o, mine in zip(off, own, strict=True)]
    raise Difference(
        "different start" if all(own) else "start",
        f"Not all ranks begin with the weights of rank 0 ({_words(case)}).",
        "rank 0's on every rank, before the first step",
        by_rank(begin),
    )


def _alone(sent: list[list[int]], step: int, case: SgdCase) -> None:
    """Nothing may be sent in this step, or before the next one."""
    here = [own[step] for own in sent]
    if not any(here):
        return
    always = all(all(own) for own in sent)
    raise Difference(
        "every step" if always else "wrong moment",
        f"Something is sent {'in every step' if always else f'after step {step + 1}'} ({_words(case)}).",
        f"nothing before step {min(case[1], (step // case[2] + 1) * case[2])} is done, where a round ends",
        by_rank([f"{nbytes} bytes in step {step + 1}" for nbytes in here]),
    )


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
        what = {
            "last round": "The last round, a shorter one, is never averaged",
            "never": "A round is over and nothing is sent",
            "gradients": "What's averaged here is the gradients of one step",
            "not alike": "Something is sent",
        }
        raise Difference(
            symptom,
            f"{what[symptom]}, and the ranks hold different weights: they differ by {apart:.2g} ({words}).",
            "the mean of all ranks' weights, on every rank",
        )
    mean = [sum(values) / ranks for values in zip(*before, strict=True)]
    if gap(now[0], mean) <= ROUNDING:
        return
    known = [("sum", [ranks * value for value in mean]), *(("one rank's", own) for own in before)]
    symptom = next((name for name, weights in known if gap(now[0], weights) <= ROUNDING), "not the mean")
    whose = {"sum": "the sum of them", "one rank's": "the weights of one of them"}.get(symptom, "something else")
    raise Difference(
        symptom,
        f"All ranks agree, on {whose} ({words}).",
        "the mean of what the ranks had",
        [f"off by {gap(now[0], mean):.2g}"],
    )


def _twin(seen: list[dict[str, Any]], twin: dict[str, Any], case: SgdCase) -> None:
    weights = [s["forward"] + s["end"] for s in seen]
    if gap(weights, twin[""]) <= ROUNDING:
        return
    for how, what in KNOWN.items():
        if gap(weights, twin[how]) <= ROUNDING:
            raise Difference(
                "momentum", f"{what} ({_words(case)}).", "each rank's own, from its first step to its last"
            )
    raise Difference(
        "weights",
        f"The ranks average at the right moments, and their own steps aren't right ({_words(case)}).",
        "the steps of SGD that the script makes, each with its batch",
        [f"off by {gap(weights, twin['']):.2g}"],
    )
