"""Cages whose programs hang: some rank waits for a call that another never makes."""

from __future__ import annotations

from .keeper import Mended, alike, cage, need, reported


@cage(
    "lonely_barrier",
    "hangs",
    "It saves the model, and stops there",
    right="c",
    told={
        "a": "The file is fine, and written within milliseconds. Look at which ranks come to which line.",
        "b": "Both ranks are in the group, or `all_reduce` in the loop had failed. Which of them calls `barrier`?",
        "c": "That's it. A barrier ends when every rank has called it, and only rank 0 comes to this one.",
    },
    found="",
)
def lonely_barrier(program: Mended) -> list[str]:
    for ranks in (2, 3):
        run = program.on(ranks, watch=["slow_save"])
        saved = alike(run, "saved", "what they read back")
        need(saved == 10.0, f"On {ranks} ranks, {saved:g} was read from the file where 10 was saved.")
        writers = sum(n > 0 for n in reported(run, "saves"))
        need(writers == 1, f"On {ranks} ranks, {writers} of them write the file; one should.")
    return ["2 and 3 ranks come to their end", "one rank writes the file, and all read what it saved"]
