"""Lesson 11: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import random
from collections.abc import Sequence

from course_utils.show.units import counted

from ..judging import Answer, Exercise, differ, require, some
from .cases import HANG_CASES, NODES_CASES, TABLE_CASES, hours, random_hangs, random_nodes, random_tables
from .cases import table as _table
from .job_judge import judge_job

# --- 11.2 -------------------------------------------------------------------------------------------------------------


def judge_hang(answer: Answer) -> list[str]:
    cases = [*HANG_CASES, *random_hangs(random.Random())]
    found = answer.on_ranks("hang", ranks=1, given=[list(entered.items()) for entered, _ in cases])[0]["found"]
    for (word, ranks), (entered, (right, wanted)) in zip(found, cases, strict=True):
        case = "; ".join(
            f"rank {r}: {some(list(e), 14) if e is not None else 'no record'}" for r, e in sorted(entered.items())
        )
        got, facts = [f"({word!r}, {ranks})"], {"case": case, "word": repr(word), "right": (right, wanted)}
        require(word == right, f"not {right}", got, **facts)
        require(sorted(ranks) != wanted or ranks == wanted, "order", got, **facts)
        others = sorted(set(entered) - set(wanted))
        symptom = "those who wait" if ranks == others and word == "behind" else f"ranks {right}"
        require(ranks == wanted, symptom, got, **facts)
    return [f"{len(cases)} hangs of 1 to 6 ranks: what went wrong, and on which ranks to look"]


# --- 11.3 -------------------------------------------------------------------------------------------------------------


def judge_nodes(answer: Answer) -> list[str]:
    cases = [*NODES_CASES, *random_nodes(random.Random())]
    given = [
        (list(s.items()), steps, deadline_h, budget, list(queue.items()) if isinstance(queue, dict) else queue)
        for s, steps, deadline_h, budget, queue in cases
    ]
    chosen = answer.on_ranks("nodes", ranks=1, given=given)[0]["chosen"]
    for n, (step_s, steps, deadline_h, budget, queue) in zip(chosen, cases, strict=True):
        rows = {k: (hours(queue, k) + steps * s / 3600, k * steps * s / 3600) for k, s in step_s.items()}
        fits = [k for k, (done, cost) in rows.items() if done <= deadline_h + 1e-9 and cost <= budget + 1e-9]
        best = {k: (round(rows[k][1], 9), round(rows[k][0], 9)) for k in fits}
        right = min(fits, key=best.__getitem__) if fits else None
        # Two may be equally good, except for rounding.
        if n == right or (right is not None and n in best and best[n] == best[right]):
            continue
        told = [
            f"{counted(k, 'node')}: done after {done:.6g} h, {cost:.6g} node hours"
            for k, (done, cost) in sorted(rows.items())
        ]
        case = f"within {deadline_h:g} h and {budget:g} node hours"
        facts = {"n": n, "case": case, "right": right, "measured": sorted(rows)}
        require(n is None or n in rows, "not measured", told, **facts)
        if n is None:
            differ("none", told, **facts)
        done, cost = rows[n]
        facts |= {"done": done, "cost": cost}
        require(done <= deadline_h + 1e-9, "too late", told, **facts)
        require(cost <= budget + 1e-9, "too dear", told, **facts)
        assert right is not None  # n fits, so something does
        dear = round(cost, 9) > round(rows[right][1], 9)
        differ("not the cheapest" if dear else "not the soonest", told, **facts)
    return [
        f"{len(cases)} deadlines, budgets and queues: the cheapest of the measured runs that is in time",
        "and None if there is none",
    ]


# --- 11.4 -------------------------------------------------------------------------------------------------------------


def _largest(rows: Sequence[tuple[float, float, float]], least: float) -> int:
    best = int(rows[0][0])
    for n, _, efficiency in rows:
        if efficiency < least - 1e-9:
            break
        best = int(n)
    return best


def judge_table(answer: Answer) -> list[str]:
    cases = [*TABLE_CASES, *random_tables(random.Random())]
    given = [(list(step_s.items()), kind, least, _table(step_s, kind)) for step_s, kind, least in cases]
    told = answer.on_ranks("table", ranks=1, given=given)[0]
    for rows, (step_s, kind, _) in zip(told["tables"], cases, strict=True):
        right = _table(step_s, kind)
        case = f"{kind} scaling on {some(sorted(step_s))} nodes"
        got = [f"{n:g} nodes: {s:.3f}, {e:.3f}" for n, s, e in rows]
        facts = {"case": case, "right": "; ".join(f"{counted(n, 'node')}: {s:.3f}, {e:.3f}" for n, s, e in right)}
        if [n for n, _, _ in rows] != [n for n, _, _ in right]:
            same = sorted(n for n, _, _ in rows) == [n for n, _, _ in right]
            differ("order" if same else "rows", got, nodes=some([f"{n:g}" for n, _, _ in rows]), **facts)
        if _near(rows, right):
            continue
        other = "strong" if kind == "weak" else "weak"
        known = {
            "mean": _table(step_s, kind, middle=False),
            "other kind": _table(step_s, other),
            "reference": _table(step_s, kind, one=True),
            "percent": [(n, s, 100 * e) for n, s, e in right],
            "cut at 1": [(n, s, min(1.0, e)) for n, s, e in right],
        }
        for symptom, wrong in known.items():
            require(not _near(rows, wrong), symptom, got, other=other, **facts)
        i = next(i for i, (a, b) in enumerate(zip(rows, right, strict=True)) if not _near([a], [b]))
        column = "speed-up" if abs(rows[i][1] - right[i][1]) > 1e-6 else "efficiency"
        differ(column, got, nodes=right[i][0], **facts)
    for count, (step_s, kind, least) in zip(told["counts"], cases, strict=True):
        rows = _table(step_s, kind)
        if count != _largest(rows, least):
            case = "; ".join(f"{counted(n, 'node')} {e:.3f}" for n, _, e in rows) + f"; at least {least}"
            after = [n for n, _, e in rows if e >= least]
            symptom = "after a bad one" if after and count == max(after) else "largest"
            differ(symptom, [counted(count, "node")], count=count, case=case, largest=_largest(rows, least))
    return [
        f"{len(cases)} tables of strong and weak scaling, against the smallest run: speed-up and efficiency",
        "the largest run that is worth its nodes",
    ]


def _near(rows: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> bool:
    return all(
        abs(a - b) <= 1e-6 * max(1.0, abs(b))
        for row, want in zip(rows, right, strict=True)
        for a, b in zip(row, want, strict=True)
    )


EXERCISES = {
    e.name: e
    for e in [
        Exercise("11.1", "write the batch file", judge_job, how="with stand-ins for Slurm's programs"),
        Exercise("11.2", "read a hang", judge_hang, how=""),
        Exercise("11.3", "choose nodes", judge_nodes, how=""),
        Exercise("11.4", "make a scaling table", judge_table, how=""),
    ]
}
