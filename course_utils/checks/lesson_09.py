"""Lesson 09: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from . import hints_09
from .base import Difference, Exercise, by_rank, on_ranks, some
from .cases_09 import AGAIN_CASES, CHOOSE_CASES, EVERY_CASES, INTERRUPTED, KILLED_AT

ADAPTER = Path(__file__).resolve().parent / "ranks_09.py"


# --- 09.1 -------------------------------------------------------------------------------------------------------------------


def _left(version: int | None) -> str:
    return {None: "nothing that loads", 0: "the old checkpoint"}.get(version, "a newer checkpoint")


def judge_save(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "save", answer, ranks=1)[0]
    if told["saved"] != 1:
        raise Difference("not saved", f"After a save, {_left(told['saved'])} lies at `path`.", "the state that was given")
    events, path = told["events"], told["at_path"]
    for kill in told["kills"]:
        if kill["left"] not in (0, 2) and kill["ended"] == "killed":
            share = f"{kill['share']:.0%}" if kill["share"] < 0.99 else "nearly all"
            raise Difference("torn", f"Killed after {share} of the bytes, the process left {_left(kill['left'])}.", "the old checkpoint", [_left(kill["left"])])
    if any(e["what"] == "remove" and e["path"] == path for e in events):
        raise Difference(
            "gap", "The old file is removed before the new one has its name: a kill in between leaves neither.", "one rename, which replaces the old file"
        )
    if any(e["what"] == "open" and e["path"] == path for e in events):
        raise Difference("in place", "Your code opens `path` itself to write. From then until the last byte neither file is there.", "a rename onto `path`")
    if not told["renamed"]:
        raise Difference("in place", "Nothing was renamed to `path`.", "the new file is written under another name, and gets this one by a rename")
    at = told["renamed"][-1]
    source = events[at]["path"]
    if Path(source).parent != Path(told["folder"]):
        raise Difference("other folder", f"The new file is written in {Path(source).parent}, and moved to `path`.", "a file in the folder of `path`")
    if told["again"] != 5:
        raise Difference("leftover", "After a kill, the next save did not work.", "a save that works whatever an earlier one left", [_left(told["again"])])
    _full(told["full"])
    if told["beside"]:
        raise Difference("litter", f"After a save, {some(told['beside'])} lies beside the checkpoint.", "the checkpoint, and nothing else")
    synced = [e for e in events[:at] if e["what"] == "sync" and e["path"] == source]
    if not synced:
        raise Difference("not on disk", "The new file gets its name before its bytes are on the disk.", "`os.fsync` of the file before the rename")
    if synced[-1]["size"] < told["final"]:
        raise Difference("before flush", f"At the time of `os.fsync` the file had {synced[-1]['size']} of {told['final']} bytes.", "all of them",)  # fmt: skip
    if not any(e["what"] == "sync" and e["path"] == told["folder"] for e in events[at:]):
        raise Difference("name not on disk", "After the rename, the folder is not synced: the new name may be lost.", "`os.fsync` of the folder")
    if told["first"] != 6:
        raise Difference("not saved", "Where no older checkpoint lies, nothing is saved.", "the state that was given", [_left(told["first"])])
    return [
        f"killed after {len(KILLED_AT)} different numbers of bytes: the old checkpoint is there, and the next save works",
        "a full disk: the exception comes through, the old checkpoint is there, nothing is left beside it",
        "written in the same folder, on the disk before it gets its name, and the name on the disk as well",
    ]


def _full(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        if case["left"] != 0:
            raise Difference("torn", f"When the disk was full, the save left {_left(case['left'])}.", "the old checkpoint", [_left(case["left"])])
        if case["ended"] != "raised":
            raise Difference("swallowed", "The disk was full, and `save` returned as if it had worked.", "the exception goes to the caller")
        if case["beside"]:
            raise Difference("left half", f"After a full disk {some(case['beside'])} stays in the folder.", "nothing beside the old checkpoint")


# --- 09.2 -------------------------------------------------------------------------------------------------------------------


def judge_resume(answer: Path) -> list[str]:
    seen = on_ranks(ADAPTER, "resume", answer, ranks=2)
    if refused := next((s["refused"] for s in seen if "refused" in s), None):
        raise Difference("refused", f"torch.load does not take what you saved: {refused}", "tensors, numbers, strings, and lists, tuples and dicts of them")
    for rank, s in enumerate(seen):
        if s["changed"]:
            raise Difference("changed", f"`save_run` changes {some(s['changed'])} on rank {rank}.", "a run that goes on as if nothing had been saved")
    positions = [tuple(s["position"]) for s in seen]
    if any(p != INTERRUPTED for p in positions):
        got = by_rank([str(p) for p in positions])
        raise Difference("position", "`load_run` returns another place than the one that was saved.", str(INTERRUPTED), got)
    for rank, s in enumerate(seen):
        parts = [name for name in s["after_load"] if not name.startswith("random")]
        if parts:
            raise Difference("part", f"After `load_run`, the state of {some(parts)} is not what was saved (rank {rank}).", "every part, equal to the last bit")
    if seen[1]["as_rank_0"] and seen[1]["after_load"]:
        raise Difference("one rank's", "After `load_run`, rank 1 draws the numbers of rank 0.", "its own")
    for rank, s in enumerate(seen):
        if s["after_load"]:
            raise Difference("random", f"After `load_run`, rank {rank} would not draw on where it was: {some(s['after_load'])}.", "the states at the save")
    for s in seen:
        _batches(s["done"], s["wanted"], by_rank([some(t["done"][0], 3) for t in seen]))
    if any(s["touched"] for s in seen):
        raise Difference("draws", "`rest_of_epoch` changes the random states.", "the sampler has a generator of its own")
    for rank, s in enumerate(seen):
        if s["differs"]:
            raise Difference("another run", f"At the end, {some(s['differs'])} differ on rank {rank}.", "every state as without the interruption")
    return [
        "interrupted in the middle of the second epoch: the same batches as without, in the same order, on both ranks",
        "every part and every random state equal to the last bit at the end",
        "what is saved loads with weights_only=True",
    ]


def _batches(done: list[list[list[int]]], wanted: list[list[list[int]]], got: list[str]) -> None:
    if done == wanted:
        return
    expected = f"on rank 0 {some(wanted[0], 3)}"
    flat = [[i for batch in epoch for i in batch] for epoch in done]
    want = [[i for batch in epoch for i in batch] for epoch in wanted]
    if flat == want:
        raise Difference("batch size", "The indices are right, and cut into other batches.", expected, got)
    again, missing = flat[0][-len(want[0]) :] == want[0], flat[0] == want[0][: len(flat[0])] or (flat[0] and flat[0] == want[0][-len(flat[0]) :])
    if again or missing:
        raise Difference("done twice" if again else "left out", "The batches that are left of the epoch are others.", expected, got)
    raise Difference("order", "The order is not that of the epoch.", expected, got)


# --- 09.3 -------------------------------------------------------------------------------------------------------------------


def held(kept: Sequence[int], inputs: Sequence[int], chosen: Sequence[int]) -> int:
    """Bytes that are held at most when `chosen` are recomputed."""
    return sum(inputs[i] if i in chosen else kept[i] for i in range(len(kept))) + max((kept[i] for i in chosen), default=0)


def least(kept: Sequence[int], inputs: Sequence[int], seconds: Sequence[float], limit: int, block: bool = True) -> float | None:
    """The least time more that any choice which fits costs; without `block` for those who forget the block that stands in backward."""
    n = len(kept)
    choices = [c for k in range(n + 1) for c in combinations(range(n), k)]
    times = [sum(seconds[i] for i in c) for c in choices if held(kept, inputs, c) - (0 if block else max((kept[i] for i in c), default=0)) <= limit]
    return min(times) if times else None


def _why_too_much(kept: Sequence[int], inputs: Sequence[int], seconds: Sequence[float], limit: int, chosen: Sequence[int], best: float) -> str:
    """The symptom of a choice that does not fit."""
    others = [i for i in range(len(kept)) if i not in chosen]
    cost = sum(seconds[i] for i in chosen)
    if held(kept, inputs, others) <= limit and abs(sum(seconds[i] for i in others) - best) < 1e-9:
        return "the others"
    if cost == least(kept, inputs, seconds, limit, block=False):
        return "the block itself"
    return "inputs" if cost == least(kept, [0] * len(kept), seconds, limit) else "does not fit"


def judge_choose(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "choose", answer, ranks=1)[0]
    for (kept, inputs, seconds, limit), chosen in zip(CHOOSE_CASES, told["chosen"], strict=True):
        best = least(kept, inputs, seconds, limit)
        case = f"blocks keep {some(kept, 12)}, inputs {some(inputs, 12)}, at most {limit} bytes"
        if chosen is None:
            if best is not None:
                raise Difference("too careful", f"The answer is None ({case}).", "a choice that fits: there is one")
            continue
        got = [f"recomputed: {some(chosen, 12)}"]
        if len(set(chosen)) < len(chosen) or any(not 0 <= i < len(kept) for i in chosen):
            raise Difference("indices", f"These are no indices of {len(kept)} blocks ({case}).", f"each at most once, from 0 to {len(kept) - 1}", got)
        total = held(kept, inputs, chosen)
        if best is None:
            raise Difference("does not fit", f"{total} bytes are held ({case}).", "None: nothing fits", got)
        if total > limit:
            symptom = _why_too_much(kept, inputs, seconds, limit, chosen, best)
            raise Difference(symptom, f"{total} bytes are held ({case}).", f"at most {limit}", got)
        cost = sum(seconds[i] for i in chosen)
        if cost > best + 1e-9:
            symptom = "all" if len(chosen) == len(kept) else "not the best"
            raise Difference(symptom, f"The step takes {cost:g} s more ({case}).", f"{best:g} s, with another choice", got)
    return [
        f"{len(CHOOSE_CASES)} models of 1 to {max(len(c[0]) for c in CHOOSE_CASES)} blocks: everything fits, the block that stands in backward included",
        "no other choice costs less time, and None where nothing fits",
    ]


# --- 09.4 -------------------------------------------------------------------------------------------------------------------


def lost(steps: int, step_s: float, save_s: float, failure_s: float) -> float:
    t = steps * step_s
    return save_s / t + t / (2 * failure_s)


def judge_often(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "often", answer, ranks=1)[0]
    for (step, every), value in zip(AGAIN_CASES, told["repeated"], strict=True):
        if value != step % every:
            words = f"killed in step {step}, saved after each {every} steps"
            known = {step % every + 1: "one more", every - step % every: "to the next", step - step % every: "the safe ones", every: "always all"}
            raise Difference(known.get(value, "again"), f"{value} steps are done again ({words}).", str(step % every), [str(value)])
    for case, value in zip(EVERY_CASES, told["numbers"], strict=True):
        step_s, save_s, failure_s = case
        about = (2 * save_s * failure_s) ** 0.5
        best = min(range(max(1, int(about / step_s) - 2), int(about / step_s) + 4), key=lambda n: lost(n, *case))
        words = f"a step of {step_s:g} s, a save of {save_s:g} s, a failure every {failure_s:g} s"
        expected, got = f"{best} steps ({lost(best, *case):.2%} lost)", [f"{value} steps" + (f" ({lost(value, *case):.2%} lost)" if value > 0 else "")]
        if value < 1:
            raise Difference("none", f"The answer is {value} ({words}).", expected, got)
        if lost(value, *case) > lost(best, *case) * (1 + 1e-9):
            wrong = [(about, "seconds"), (about / 2**0.5 / step_s, "without the 2"), ((save_s * failure_s) ** 0.5 / step_s, "without the 2")]
            beside = abs(value - about / step_s) < 1 or abs(value - best) <= 1
            symptom = "rounded" if beside else next((name for n, name in wrong if abs(value - n) <= 1), "interval")
            raise Difference(symptom, f"Another number of steps loses less ({words}).", expected, got)
    return [f"{len(AGAIN_CASES)} kills: the steps since the last save", f"{len(EVERY_CASES)} jobs: no other number of steps loses less"]


EXERCISES = {
    e.name: e
    for e in [
        Exercise("09.1", "an atomic save", judge_save, hints_09.SAVE, how="in child processes"),
        Exercise("09.2", "resume in the middle of an epoch", judge_resume, hints_09.RESUME),
        Exercise("09.3", "which blocks to recompute?", judge_choose, hints_09.CHOOSE, how=""),
        Exercise("09.4", "how often to save?", judge_often, hints_09.OFTEN, how=""),
    ]
}
