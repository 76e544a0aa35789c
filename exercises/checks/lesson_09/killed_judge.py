"""Lesson 09.1: whether a training that was killed, however often, ends like one that never was."""

from __future__ import annotations

import random
from typing import Any, NoReturn

from ..judging import Answer, Difference, differ, require, some
from .cases import EPOCH_STEPS, KILLED_AT, STEPS, random_kills

Run = dict[str, Any]
WEIGHTS, OPTIMIZER, LR, PYTHON, TORCH = range(5)  # what a row holds of the moment before a step
MOST_FILES = 3
WRITING, BETWEEN = "killed while it wrote a checkpoint", "killed between two things that it did to the folder"
FORGOTTEN = {OPTIMIZER: "optimizer", LR: "schedule", PYTHON: "Python's numbers", TORCH: "torch's numbers"}  # symptoms


def judge_killed(answer: Answer) -> list[str]:
    rng = random.Random()
    seeds = rng.sample(range(1, 10**6), 2)
    moment, restarts = random_kills(rng)
    given = {"program": str(answer.path), "seeds": seeds, "moment": moment, "restarts": restarts, "shares": KILLED_AT}
    told = answer.on_ranks("killed.kills", ranks=1, given=given)[0]
    twin, other = told["twins"]
    if told.get("endless"):
        differ("endless", steps=STEPS)
    first = told["first"]
    _ended(first, "when nobody kills it")
    require(first["result"], "no result", how="none")
    if not first["rows"]:
        _elsewhere()
    _equal([first], twin, "nobody killed it")
    require(len(first["rows"]) == STEPS, "another training", how="steps", made=len(first["rows"]), steps=STEPS)
    _follow(told["moment"], twin, f"killed after {moment} steps, and started again")
    _follow(told["restarts"], twin, f"killed {len(restarts)} times in one training")
    again = told["again"]
    _ended(again, "when it's started once more after it was done")
    rests = not again["rows"] and again["result"] == first["result"]
    require(rests, "trains again", made=len(again["rows"]))
    _ended(told["other"], "in another folder")
    require(told["other"]["result"] == other["result"], "another folder", how="seed")
    _follow(told["bytes"], twin, WRITING)
    _follow(told["events"], twin, BETWEEN)
    _full(told["full"], twin)
    for run in told["result"]:
        _readable(run)
    _ended(told["result"][-1], "after a kill while it wrote the result")
    require(told["result"][-1]["result"], "no result", how="killed", case="killed while it wrote the result")
    _equal(told["result"], twin, "killed while it wrote the result")
    _names(first)
    for what, run in (("a run that nobody killed", first), ("all the kills", told["bytes"][-1])):
        files = sorted(run["files"])
        require(len(files) <= MOST_FILES, "litter", what=what, n=len(files), files=some(files))
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
    require(runs[-1]["result"], "no result", how="killed", case=case)
    _equal(runs, twin, case)


def _elsewhere() -> NoReturn:
    differ("another folder", how="empty")


def _readable(run: Run) -> None:
    if "unreadable" in (run["result"] or {}):
        before = f"just before this: {run['at']}" if "at" in run else "in the middle of the result"
        differ("half a result", before=before)


def _went_on(run: Run, before: Run, place: int | None, done: int, case: str) -> None:
    """Whether a start after a kill goes on from a place that's at most an epoch back."""
    symptom = {"bytes": "torn", "event": "gap"}.get(before["kind"], "") if before["ended"] == "killed" else ""
    saved = f"just before this: {before['at']}" if "at" in before else case
    if run["ended"] == "raised":
        if symptom and not run["error"]["loading"]:
            symptom = "leftover"
        _ended(run, f"when it was started again ({saved})", symptom)
    if place is None:
        differ("weights", how="never", case=case)
    steps, last = len(run["rows"]), run["ended"] == "returned"
    again = done - place
    if last and place == 0 < again and steps < STEPS:
        differ("weights", how="beginning", case=case)
    if last and steps != STEPS - place:
        if symptom:
            _not_together(saved)
        _wrong_count(steps, place, case)
    if again > EPOCH_STEPS:
        if not symptom and case == WRITING:
            differ("leftover", again=again, case=saved)
        symptom = symptom or ("starts over" if place == 0 and done > 2 * EPOCH_STEPS else "too much again")
        differ(symptom, how="kill", again=again, case=saved, epoch=EPOCH_STEPS)
    require(again >= 0, "left out", how="place", steps=-again, case=saved)


def _not_together(case: str) -> NoReturn:
    differ("not together", case=case)


def _wrong_count(steps: int, place: int, case: str) -> None:
    """The weights say at which place it goes on, and the number of steps says another one."""
    facts: dict[str, Any] = {"steps": steps, "case": case, "right": STEPS - place, "all": STEPS, "had": place}
    twice = steps == STEPS - place + EPOCH_STEPS
    symptom = "left out" if steps < STEPS - place else "epoch twice" if twice else "from epoch 0"
    differ(symptom, how="count", **facts)


def _equal(runs: list[Run], twin: Run, case: str) -> None:
    """Raise unless the result is the twin's, with what was forgotten, as far as the steps tell."""
    found, right = runs[-1]["result"], twin["result"]
    if found == right:
        return
    if "unreadable" in found:
        differ("no result", how="other", why=found["unreadable"])
    require(len(runs) > 1, "another training", how="result", case=case)
    if case in (WRITING, BETWEEN):
        _not_together(case)
    for run in runs[1:]:
        _compare(run, twin, case)
    if found["weights"] == right["weights"]:
        got, wanted = found["losses"], right["losses"]
        differ("losses", case=case, n=len(got), right=len(wanted))
    differ("another run", case=case)


def _compare(run: Run, twin: Run, case: str) -> None:
    """The first thing in which the steps of a start differ from the twin's."""
    place = _place(run, twin) or 0
    for number, (row, right) in enumerate(zip(run["rows"], twin["rows"][place:], strict=False)):
        differs = [i for i, (a, b) in enumerate(zip(row, right, strict=True)) if a != b]
        if not differs:
            continue
        known = next((FORGOTTEN[i] for i in FORGOTTEN if i in differs), None)
        if known and WEIGHTS not in differs and (number == 0 or known == "schedule"):
            differ(known, step=place + number, case=case)
        return


def _out_of_sight(run: Run) -> None:
    """Raise if a start trains on more batches than it makes steps of the optimizer: one, where it's killed between."""
    batches, steps = run.get("batches", 0), len(run["rows"])
    if batches > steps + 1:
        differ("too much again", how="out of sight", batches=batches, steps=steps)


def _full(cases: list[list[Run]], twin: Run) -> None:
    for begun, failed, more in cases:
        broken = failed.get("refused")
        if failed["kind"] != "bytes" and not broken:
            continue  # it syncs in another way
        what = "`os.fsync` said that the disk can't write the file" if broken else "The disk was full"
        if failed["ended"] != "raised":
            differ("swallowed", what=what)
        beside = sorted(failed["files"].keys() - begun["files"].keys())
        require(not beside, "left half", what=what, files=some(beside))
        _follow([begun, {**failed, "ended": "killed", "kind": "bytes"}, more], twin, what)


def _names(first: Run) -> None:
    """Each file that's there at the end has got its name by a rename, in its own folder."""
    renames = [e for e in first["events"] if e["what"] in ("rename", "link")]
    for name in sorted(first["files"]):
        require(name in [e["to"] for e in renames], "in place", name=name)
    if away := next((e for e in renames if not e["path"]), None):
        differ("other folder", name=away["to"])


def _synced(first: Run) -> None:
    """Follow what's on the disk: the bytes of a file by its `fsync`, a new name by that of the folder."""
    whole: dict[str, int] = {}  # names of files that are on the disk, and their size then
    fresh = ""  # a name that only the operating system knows so far
    for event in [*first["events"], {"what": "end", "path": "", "to": ""}]:
        what, path, to = event["what"], event["path"], event["to"]
        if what == "sync" and path == ".":
            fresh = ""
        elif fresh and what in ("open", "sync", "end"):
            differ("name not on disk", name=fresh)
        elif what == "sync":
            whole[path] = event["size"]
        elif what == "open":
            whole.pop(path, None)
        elif what in ("rename", "link"):  # a link gives a name to a file that has none
            require(path in whole, "not on disk", name=to)
            whole[to], fresh = whole.pop(path), to
    for name, size in first["files"].items():
        synced = whole.get(name, size)
        require(synced >= size, "before flush", name=name, synced=synced, size=size)
