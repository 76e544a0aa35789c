"""Lesson 09.1: whether a training that was killed, however often, ends like one that never was."""

from __future__ import annotations

import random
from typing import Any, NoReturn

from ..judging import Answer, Difference, some
from .cases import EPOCH_STEPS, KILLED_AT, STEPS, random_kills

Run = dict[str, Any]
WEIGHTS, OPTIMIZER, LR, PYTHON, TORCH = range(5)  # what a row holds of the moment before a step
MOST_FILES = 3
WRITING, BETWEEN = "killed while it wrote a checkpoint", "killed between two things that it did to the folder"
FORGOTTEN = {
    OPTIMIZER: ("optimizer", "the optimizer's averages aren't those of that moment"),
    LR: ("schedule", "the learning rate isn't that of the same step"),
    PYTHON: ("Python's numbers", "Python's `random` doesn't go on where it was"),
    TORCH: ("torch's numbers", "torch doesn't go on with the random numbers that it was at"),
}


def judge_killed(answer: Answer) -> list[str]:
    rng = random.Random()
    seeds = rng.sample(range(1, 10**6), 2)
    moment, restarts = random_kills(rng)
    given = {"program": str(answer.path), "seeds": seeds, "moment": moment, "restarts": restarts, "shares": KILLED_AT}
    told = answer.on_ranks("killed.kills", ranks=1, given=given)[0]
    twin, other = told["twins"]
    if told.get("endless"):
        raise Difference("endless", "A start of the program doesn't come to its end.", f"{STEPS} steps in all")
    first = told["first"]
    _ended(first, "when nobody kills it")
    if not first["result"]:
        raise Difference("no result", "The program ends, and there's no `result.pt` in FOLDER.", "the result")
    if not first["rows"]:
        _elsewhere()
    _equal([first], twin, "nobody killed it")
    if len(first["rows"]) != STEPS:
        raise Difference("another training", f"It makes {len(first['rows'])} steps.", f"{STEPS}, as before")
    _follow(told["moment"], twin, f"killed after {moment} steps, and started again")
    _follow(told["restarts"], twin, f"killed {len(restarts)} times in one training")
    again = told["again"]
    _ended(again, "when it's started once more after it was done")
    if again["rows"] or again["result"] != first["result"]:
        raise Difference(
            "trains again",
            f"Started once more after it was done, it makes {len(again['rows'])} steps.",
            "no step, and the same result",
        )
    _ended(told["other"], "in another folder")
    if told["other"]["result"] != other["result"]:
        raise Difference("another folder", "In another folder, with another seed, the result isn't that seed's.", "it")
    _follow(told["bytes"], twin, WRITING)
    _follow(told["events"], twin, BETWEEN)
    _full(told["full"], twin)
    for run in told["result"]:
        _readable(run)
    _ended(told["result"][-1], "after a kill while it wrote the result")
    _equal(told["result"], twin, "killed while it wrote the result")
    _names(first)
    for what, run in (("a run that nobody killed", first), ("all the kills", told["bytes"][-1])):
        if len(run["files"]) > MOST_FILES:
            raise Difference(
                "litter",
                f"After {what} there are {len(run['files'])} files in the folder: {some(sorted(run['files']))}.",
                "result.pt, and at most two checkpoints",
            )
    _synced(first)
    for run in (again, *told["moment"], *told["restarts"], *told["bytes"], *told["events"]):
        _out_of_sight(run)
    kills = [run for run in told["bytes"] + told["events"] + told["result"] if run["kind"] in ("bytes", "event")]
    kills = [run for run in kills if run["ended"] == "killed"]
    return [
        f"killed after {moment} steps, and {len(restarts)} times in one training: the same result, bit for bit",
        f"killed {len(kills)} more times while it saved: each next start goes on, and does at most an epoch again",
        "a full disk: the exception comes through, the old checkpoint is there, nothing half-written is left",
        "each file is on the disk before it gets its name, and then the name is on the disk too",
        "started once more after it was done: nothing to do",
    ]


def _ended(run: Run, when: str, symptom: str = "") -> None:
    """Raise unless the program got to its end, `when` in words."""
    if run["ended"] == "raised":
        error = run["error"]
        what = f"{error['type']}: {error['message']}"
        raise Difference(
            symptom or f"raised {error['type']}", f"The program stopped {when}: {what}", "no exception", error["lines"]
        )
    if run["ended"] != "returned":
        raise Difference("ended early", f"The program ended itself {when}.", "a program that runs to its last line")


def _place(run: Run, twin: Run) -> int | None:
    """How many steps the training had had when this start made its first one, by the weights; None if it never had
    such weights."""
    if not run["rows"]:
        return STEPS
    weights = run["rows"][0][WEIGHTS]
    return next((i for i, row in enumerate(twin["rows"]) if row[WEIGHTS] == weights), None)


def _follow(runs: list[Run], twin: Run, case: str) -> None:
    """Compare starts in one folder, all but the last of them killed, with the run that never was."""
    done = 0
    for number, run in enumerate(runs):
        # killed before its first step, it says nothing of where it would have gone on
        place = _place(run, twin) if run["rows"] or run["ended"] != "killed" else done
        if number == 0:
            if place != 0:
                _elsewhere()
        else:
            _went_on(run, runs[number - 1], place, done, case)
        _readable(run)
        done = (place or 0) + len(run["rows"])
    _ended(runs[-1], f"at the end ({case})")
    if not runs[-1]["result"]:
        raise Difference("no result", f"The program ends, and there's no `result.pt` ({case}).", "the result")
    _equal(runs, twin, case)


def _elsewhere() -> NoReturn:
    raise Difference(
        "another folder",
        "In an empty folder, the program doesn't begin at the beginning.",
        "nothing from other runs: all that it keeps lies in FOLDER",
    )


def _readable(run: Run) -> None:
    if "unreadable" in (run["result"] or {}):
        before = f"just before this: {run['at']}" if "at" in run else "in the middle of the result"
        raise Difference(
            "half a result", f"Killed {before}, it left a `result.pt` that can't be read.", "none, or a whole one"
        )


def _went_on(run: Run, before: Run, place: int | None, done: int, case: str) -> None:
    """Whether a start after a kill goes on from a place that's at most an epoch back."""
    symptom = {"bytes": "torn", "event": "gap"}.get(before["kind"], "") if before["ended"] == "killed" else ""
    saved = f"just before this: {before['at']}" if "at" in before else case
    if run["ended"] == "raised":
        if symptom and not run["error"]["loading"]:
            symptom = "leftover"
        _ended(run, f"when it was started again ({saved})", symptom)
    if place is None:
        raise Difference(
            "weights",
            f"The first step after a kill begins with weights that the training never had ({case}).",
            "those of the last checkpoint",
        )
    steps, last = len(run["rows"]), run["ended"] == "returned"
    again = done - place
    if last and place == 0 < again and steps < STEPS:
        raise Difference(
            "weights", f"It goes on later in the training, with the weights of its beginning ({case}).", "those it had"
        )
    if last and steps != STEPS - place:
        if symptom:
            _not_together(saved)
        _wrong_count(steps, place, case)
    if again > EPOCH_STEPS:
        what = f"{again} steps are done again ({saved})."
        if not symptom and case == WRITING:
            raise Difference("leftover", f"After kills in a save, a later one left no checkpoint: {what}", "at most 6")
        symptom = symptom or ("starts over" if place == 0 and done > 2 * EPOCH_STEPS else "too much again")
        raise Difference(symptom, what[0].upper() + what[1:], f"at most an epoch, {EPOCH_STEPS} steps")
    if again < 0:
        raise Difference("left out", f"{-again} steps are left out ({saved}).", "every step of the training")


def _not_together(case: str) -> NoReturn:
    raise Difference(
        "not together",
        f"After a kill in a save, it goes on with parts of two different moments ({case}).",
        "all parts of one moment, as after a kill at another time",
    )


def _wrong_count(steps: int, place: int, case: str) -> None:
    """The weights say at which place it goes on, and the number of steps says another one."""
    expected = f"{STEPS - place} steps: the training has {STEPS}, and these weights have had {place}"
    what = f"After the kill the program makes {steps} more steps ({case})."
    if steps < STEPS - place:
        raise Difference("left out", what, expected)
    raise Difference("epoch twice" if steps == STEPS - place + EPOCH_STEPS else "from epoch 0", what, expected)


def _equal(runs: list[Run], twin: Run, case: str) -> None:
    """Raise unless the result is the twin's, with what was forgotten, as far as the steps tell."""
    found, right = runs[-1]["result"], twin["result"]
    if found == right:
        return
    if "unreadable" in found:
        raise Difference(
            "no result", f"`result.pt` isn't what the program saved before: {found['unreadable']}", "weights and losses"
        )
    if len(runs) == 1:
        raise Difference("another training", f"The result is another one, though {case}.", "the program's own result")
    if case in (WRITING, BETWEEN):
        _not_together(case)
    for run in runs[1:]:
        _compare(run, twin, case)
    if found["weights"] == right["weights"]:
        got, wanted = found["losses"], right["losses"]
        raise Difference(
            "losses",
            f"The weights are right, and the list of losses isn't ({case}): it has {len(got)}.",
            f"{len(wanted)}, one for each epoch, as in a run that wasn't killed",
        )
    raise Difference("another run", f"The weights at the end are others ({case}).", "the same, to the last bit")


def _compare(run: Run, twin: Run, case: str) -> None:
    """The first thing in which the steps of a start differ from the twin's."""
    place = _place(run, twin) or 0
    for number, (row, right) in enumerate(zip(run["rows"], twin["rows"][place:], strict=False)):
        differs = [i for i, (a, b) in enumerate(zip(row, right, strict=True)) if a != b]
        if not differs:
            continue
        known = next((FORGOTTEN[i] for i in FORGOTTEN if i in differs), None)
        if known and WEIGHTS not in differs and (number == 0 or known[0] == "schedule"):
            symptom, what = known
            raise Difference(symptom, f"In step {place + number}, {what} ({case}).", "all as if nobody had killed it")
        return


def _out_of_sight(run: Run) -> None:
    """Raise if a start trains on more batches than it makes steps of the optimizer: one, where it's killed between."""
    batches, steps = run.get("batches", 0), len(run["rows"])
    if batches > steps + 1:
        raise Difference(
            "too much again",
            f"A start trains on {batches} batches, and the optimizer makes {steps} steps: the others are done again.",
            "after a kill, at most the 6 steps of an epoch",
        )


def _full(cases: list[list[Run]], twin: Run) -> None:
    for begun, failed, more in cases:
        broken = failed.get("refused")
        if failed["kind"] != "bytes" and not broken:
            continue  # it syncs in another way
        what = "`os.fsync` said that the disk can't write the file" if broken else "The disk was full"
        if failed["ended"] != "raised":
            raise Difference("swallowed", f"{what}, and the program ended as if all was well.", "the exception")
        if beside := sorted(failed["files"].keys() - begun["files"].keys()):
            raise Difference(
                "left half", f"{what}, and {some(beside)} stayed in the folder.", "only what was there before"
            )
        _follow([begun, {**failed, "ended": "killed", "kind": "bytes"}, more], twin, what)


def _names(first: Run) -> None:
    """Each file that's there at the end has got its name by a rename, in its own folder."""
    renames = [e for e in first["events"] if e["what"] in ("rename", "link")]
    for name in sorted(first["files"]):
        if name not in [e["to"] for e in renames]:
            raise Difference(
                "in place",
                f"`{name}` is written under its own name: until the last byte, there's half a file.",
                "another name first, then a rename",
            )
    if away := next((e for e in renames if not e["path"]), None):
        raise Difference(
            "other folder", f"`{away['to']}` is written in another folder, and moved from there.", "a file next to it"
        )


def _synced(first: Run) -> None:
    """Follow what's on the disk: the bytes of a file by its `fsync`, a new name by that of the folder."""
    whole: dict[str, int] = {}  # names of files that are on the disk, and their size then
    fresh = ""  # a name that only the operating system knows so far
    for event in [*first["events"], {"what": "end", "path": "", "to": ""}]:
        what, path, to = event["what"], event["path"], event["to"]
        if what == "sync" and path == ".":
            fresh = ""
        elif fresh and what in ("open", "sync", "end"):
            raise Difference(
                "name not on disk",
                f"After the rename to `{fresh}` the folder isn't synced: the name may be lost.",
                "`os.fsync` of the folder",
            )
        elif what == "sync":
            whole[path] = event["size"]
        elif what == "open":
            whole.pop(path, None)
        elif what in ("rename", "link"):  # a link gives a name to a file that has none
            if path not in whole:
                raise Difference(
                    "not on disk",
                    f"`{to}` gets its name before its bytes are on the disk.",
                    "`os.fsync` of the file before the rename",
                )
            whole[to], fresh = whole.pop(path), to
    for name, size in first["files"].items():
        if whole.get(name, size) < size:
            raise Difference(
                "before flush", f"At the time of `os.fsync`, `{name}` had {whole[name]} of {size} bytes.", "all of them"
            )
