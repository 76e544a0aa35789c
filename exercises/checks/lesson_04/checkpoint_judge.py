"""Lesson 04, exercise 4: what shows that a checkpoint doesn't keep to its contract."""

from __future__ import annotations

import tempfile
from typing import Any

from ..judging import Answer, by_rank, require, some


def judge_checkpoint(answer: Answer) -> list[str]:
    said = {
        r"key\(s\).*\bmodule\.": "keys",
        r"(Missing|Unexpected) key\(s\)": "model state",
        r"deserialize object on|Attempting to deserialize|device 'cuda|cuda:7": "location",
        r"has no attribute 'module'": "needs a wrapper",
        r"cross-device link": "other disk",
        r"process group has not been initialized|init_process_group": "no group",
    }
    with tempfile.TemporaryDirectory(prefix="course-checkpoint-") as folder:
        saved = answer.on_ranks("checkpoint.save_wrapped", ranks=2, said=said, given=folder)
        _saved(saved)
        loaded = answer.on_ranks("checkpoint.load_wrapped", ranks=2, said=said, given=folder)
        _full(loaded[0], next((rank["lost"] for rank in saved if rank["lost"]), None))
        resumed = answer.on_ranks("checkpoint.load_plain", ranks=2, said=said, given=folder)
        _loaded(answer, loaded, resumed)
        _heard(answer.on_ranks("checkpoint.save_in_vain", ranks=2, said=said, given=folder))
    return [
        (
            "loaded in new processes, from DDP into DDP and a plain model, and from a plain model into both; the next"
            " training step is equal to the last bit"
        ),
        "one rank writes, the others wait for it; a write that fails leaves the last good file, and every rank raises",
        "a file from cuda:7 loads on the CPU",
    ]


def _loaded(answer: Answer, loaded: list[dict[str, Any]], resumed: list[dict[str, Any]]) -> None:
    """Compare what was loaded, in all directions, with trainings that were never interrupted."""
    rounds = [first["rounds"] | then["rounds"] for first, then in zip(loaded, resumed, strict=True)]
    last, epoch = ("after", 7) if loaded[0]["saved_anyway"] else ("plain", 5)
    twins = [rank["twins"] for rank in answer.on_ranks("twins.checkpoint", ranks=2, given=["first", last])]
    for doing, state, wanted in (
        ("loading a DDP checkpoint into DDP", "first", 3),
        ("loading a newer DDP checkpoint into a plain model", "newer", 4),
        ("loading a plain checkpoint into a plain model", "plain", 5),
        ("loading a file that was saved from cuda:7", "plain", 6),
        ("loading the last good checkpoint after the disk was full", last, epoch),
        ("loading a plain checkpoint into DDP", last, epoch),
    ):
        kind = "wrapped" if doing.endswith("into DDP") else "plain"
        seen = [
            compare(rank[doing], twin[state], kind) for rank, twin in zip(rounds, twins, strict=True) if doing in rank
        ]
        decide(doing, seen, wanted)


def compare(seen: dict[str, Any], twin: dict[str, Any], kind: str) -> dict[str, Any]:
    """What differs from the twin after a load, and after one more step: names of tensors."""
    return {
        "epoch": seen["epoch"],
        "untouched": seen["loaded"]["model"] == seen["before"],
        "model": _differing(seen["loaded"]["model"], twin["saved"]["model"]),
        "optimizer": _differing(seen["loaded"]["optimizer"], twin["saved"]["optimizer"]),
        "next": _differing(seen["next"], twin[kind]),
    }


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names whose shape or numbers are not equal, to the last bit, or that one side lacks."""
    return sorted(k for k in one.keys() | other.keys() if one.get(k) != other.get(k))


def _saved(told: list[dict[str, Any]]) -> None:
    writers = sum(bool(t["writes"]) for t in told)
    require(writers <= 1, "all write", by_rank([f"{t['writes']} files written" for t in told]))
    got = by_rank(["there" if t["there"] else "not there, or not whole" for t in told])
    require(any(t["there"] for t in told), "no file", got)
    require(all(t["there"] for t in told), "no wait", got)


def _full(told: dict[str, Any], lost: str | None) -> None:
    require(told["survived"], "not atomic", how="full")
    require(told["told_full"], "keeps quiet")
    require(not lost, "not atomic", how="newer", lost=lost)


def _heard(told: list[dict[str, Any]]) -> None:
    got = by_rank(["raised an exception" if t["raised"] else "returned as if it had saved" for t in told])
    require(all(t["raised"] for t in told) or not any(t["tried"] for t in told), "one rank knows", got)


def decide(doing: str, results: list[dict[str, Any]], epoch: int) -> None:
    """Raise the first `Difference` of one load; a result for each rank, from `compare`."""
    untouched = [r["untouched"] for r in results]
    got = by_rank(["nothing was loaded" if u else "loaded" for u in untouched])
    require(all(untouched) or not any(untouched), "one rank loads", got, doing=doing)
    epochs = [r["epoch"] for r in results]
    older = "newer" in doing and all(r["model"] and r["epoch"] == epoch - 1 for r in results)
    require(not older, "old file", by_rank([f"epoch {e}" for e in epochs]), epoch=epoch)
    for part in ("model", "optimizer"):
        wrong = [r[part] for r in results]
        got = by_rank([f"{len(n)} entries differ or are missing: {some(n, 3)}" if n else "equal" for n in wrong])
        symptom = "nothing loaded" if part == "model" and all(untouched) else f"{part} state"
        require(not any(wrong), symptom, got, doing=doing)
    require(all(e == epoch for e in epochs), "epoch", by_rank(epochs), doing=doing, epoch=epoch)
    got = by_rank([some(r["next"], 3) if r["next"] else "equal" for r in results])
    require(not any(r["next"] for r in results), "next step", got, doing=doing)
