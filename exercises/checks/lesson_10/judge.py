"""Lesson 10: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
import random
from typing import Any

from ..judging import Answer, Exercise, by_rank, differ, gap, require, some
from .cases import OPTIMIZER_RANKS, SHAPES, SPLIT_RANKS, STEPS, optimizer_cases, split_cases
from .convert_judge import judge_convert
from .film_judge import judge_film
from .reshard_judge import judge_reshard

ROUNDING = 1e-9
KNOWN = ("sum", "alone", "owners", "forgets", "start")  # mistakes that have twins


# --- 10.1 -------------------------------------------------------------------------------------------------------------


def judge_optimizer(answer: Answer) -> list[str]:
    said = {
        r"can't optimize": "not a leaf",
        r"size|shape|divisible|numel|expand|length": "sizes",
        r"leaf|in-place|inplace": "in place",
    }
    cases = optimizer_cases(random.Random())
    told = answer.on_ranks("optimizer", ranks=max(OPTIMIZER_RANKS), said=said, given=cases)
    for i, case in enumerate(cases):
        for j, model in enumerate(case["models"]):
            model["seeds"] = [t["cases"][i][j]["seed"] for t in told[: case["ranks"]]]
    twins = answer.on_ranks("twins.optimizer", ranks=1, given=cases)[0]["cases"]
    for i, case in enumerate(cases):
        for j, model in enumerate(case["models"]):
            _optimizer([t["cases"][i][j] for t in told[: case["ranks"]]], twins[i][j], case["ranks"], model)
    return [
        f"{STEPS} steps of AdamW on "
        + " and on ".join(f"{n} ranks" for n in OPTIMIZER_RANKS)
        + ", and of two optimizers that take turns: the parameters of one process, on every rank",
        "a step calls one reduce-scatter and one all-gather, of one slice a rank, and nothing else",
        "each rank holds the optimizer's state of its own slice only",
    ]


def _optimizer(seen: list[dict[str, Any]], twin: dict[str, Any], ranks: int, model: dict[str, Any]) -> None:
    elements = sum(math.prod(shape) for shape in model["shapes"])
    case = f"{ranks} ranks, {elements} elements"
    if model["kind"] != "AdamW" or model["shapes"] != [list(shape) for shape in SHAPES]:
        case += f" in shapes {', '.join(str(list(shape)) for shape in model['shapes'])}, {model['kind']}"
    part = -(-elements // ranks)
    for step in range(STEPS):
        now = [s["steps"][step] for s in seen]
        gaps = [gap(values, twin["right"][step]) for values in now]
        if max(gaps) < ROUNDING:
            continue
        got = by_rank([f"off by {off:.2g}" for off in gaps])
        where = f"after step {step + 1} ({case})"
        for how in KNOWN:
            of = [twin[how][r][step] if how == "alone" else twin[how][step] for r in range(ranks)]
            known = max(map(gap, now, of)) < ROUNDING
            require(not known, "alone" if how == "owners" else how, got, how=how, where=where)
        slices = [slice(part * r, part * (r + 1)) for r in range(ranks)]
        mine = all(gap(values[at], twin["right"][step][at]) < ROUNDING for values, at in zip(now, slices, strict=True))
        differ("not gathered" if mine else "parameters", got, where=where)
    begun = seen[0]["before"]
    require(not any(s["before"] for s in seen), "collectives in init", calls=some(begun), case=case)
    for step in range(STEPS):
        kinds = [[_kind(name) for name, _ in s["calls"][step]] for s in seen]
        right = all(sorted(k) == ["all_gather", "reduce_scatter"] for k in kinds)
        require(right, "collectives", by_rank([some(k) for k in kinds]), step=step + 1, case=case)
    each = 2 if model["kind"] == "AdamW" else 1  # averages of an element
    got = by_rank([f"averages of {max(s['state'] // each, s['largest'])} elements" for s in seen])
    own = all(s["state"] <= each * part and s["largest"] <= part for s in seen)
    require(own, "whole state", got, part=part, case=case)
    sizes = [max(nbytes for calls in s["calls"] for _, nbytes in calls) for s in seen]
    require(max(sizes) <= 8 * (part * ranks + part), "sizes of collectives", by_rank(sizes), part=part, case=case)


def _kind(name: str) -> str:
    return (
        "reduce_scatter"
        if "reduce_scatter" in name
        else "all_gather"
        if "allgather" in name or "all_gather" in name
        else name
    )


# --- 10.3 -------------------------------------------------------------------------------------------------------------


def judge_split(answer: Answer) -> list[str]:
    said = {
        r"super\(\).__init__|before Module.__init__": "no super",
        r"modified by an inplace|leaf Variable": "in place",
        r"shapes cannot be multiplied": "cut",
    }
    cases = split_cases(random.Random())
    told = answer.on_ranks("split", ranks=max(SPLIT_RANKS), said=said, given=cases)
    found = [[t["cases"][i] for t in told[: case["ranks"]]] for i, case in enumerate(cases)]
    given = [case | {"seeds": [s["seed"] for s in seen]} for seen, case in zip(found, cases, strict=True)]
    twins = answer.on_ranks("twins.split", ranks=1, given=given)[0]["cases"]
    for seen, twin, case in zip(found, twins, cases, strict=True):
        _split(seen, twin, case)
    return [
        "on " + " and on ".join(str(n) for n in SPLIT_RANKS) + " ranks: the output and all gradients of one device",
        "one all-reduce forward and one backward, and nothing else",
        "each rank holds its hidden units only",
    ]


def _split(seen: list[dict[str, Any]], twin: dict[str, Any], case_: dict[str, Any]) -> None:
    ranks, within = case_["ranks"], ROUNDING if case_["dtype"] == "float64" else 2e-5
    case = f"{ranks} ranks"
    if case_["dtype"] != "float64":
        case += f", {case_['dtype']}, width {case_['width']}, {case_['hidden']} hidden units"
    wrong = [
        max(gap(s["slices"][n], v) for n, v in own.items()) > within
        for s, own in zip(seen, twin["slices"], strict=True)
    ]
    require(not any(wrong), "slices", by_rank(["other weights" if w else "right" for w in wrong]), case=case)
    for i in range(2):
        _split_values(i, seen, twin, ranks, case, within)
    require(not any(s["given"] for s in seen), "not copied", how="gradients", case=case)
    shared = " and ".join(f"`{name}`" for name in seen[0]["shared"])
    require(not seen[0]["shared"], "not copied", how="memory", shared=shared, case=case)
    begun = seen[0]["before"]
    require(not any(s["before"] for s in seen), "collectives", how="init", calls=some(begun), case=case)
    whole = 2 * case_["width"] * case_["hidden"] * (8 if case_["dtype"] == "float64" else 4)
    got = by_rank([f"{s['kept_bytes']} bytes" for s in seen])
    require(all(s["kept_bytes"] < whole for s in seen), "whole copy", got, whole=whole, case=case)
    _split_values(2, seen, twin, ranks, f"{case}, after an optimizer step", within)
    for way in ("forward", "backward"):
        for i in range(3):
            kinds = [s[way][i] for s in seen]
            one = all(len(k) == 1 and "reduce" in k[0] and "scatter" not in k[0] for k in kinds)
            got = by_rank([some(k) for k in kinds])
            require(one, "collectives", got, how="step", way=way.capitalize(), case=case)


def _times(value: Any, factor: float) -> Any:
    return [_times(v, factor) for v in value] if isinstance(value, list) else factor * value


def _split_values(
    i: int, seen: list[dict[str, Any]], twin: dict[str, Any], ranks: int, case: str, within: float
) -> None:
    """Compare the output and the gradients of input `i` with those of one device."""
    for name in twin["found"][0][i]:
        values, rights = [s["found"][i][name] for s in seen], [own[i][name] for own in twin["found"]]
        facts = {"name": name.capitalize(), "ranks": ranks, "case": case}
        got = by_rank(["none" if v is None else "there" for v in values])
        require(all(v is not None for v in values), "no gradient", got, **facts)
        gaps = list(map(gap, values, rights))
        if max(gaps) < within:
            continue
        got = by_rank([f"off by {off:.2g}" for off in gaps])
        other = [own[1 if i == 0 else 0][name] for own in twin["found"]]
        require(name != "the output" or max(map(gap, values, other)) >= within, "one buffer", got, **facts)
        if name == "the output":
            often = [
                [[v + (ranks - 1) * b for v, b in zip(row, twin["bias"], strict=True)] for row in r] for r in rights
            ]
        else:
            often = [_times(right, ranks) for right in rights]
        output = name == "the output"
        require(max(map(gap, values, often)) >= within, "bias" if output else "times the ranks", got, **facts)
        symptom = "output" if output else "input gradient" if name == "the gradient of x" else "gradients"
        called = seen[0]["forward" if symptom == "output" else "backward"][i]
        differ(symptom, got, how="summed" if called else "no sum", **facts)


SCRIPT = "81bde1964473"  # the program of 10.4 as the notebook hands it out; a test compares it

EXERCISES = {
    e.name: e
    for e in [
        Exercise("10.1", "shard an optimizer", judge_optimizer),
        Exercise("10.2", "reshard", judge_reshard, how=""),
        Exercise("10.3", "split an MLP", judge_split),
        Exercise("10.4", "from DDP to FSDP", judge_convert, handed_out=SCRIPT),
        Exercise("10.5", "put the frames in order", judge_film, how=""),
    ]
}
