"""Cages whose programs end well, with wrong data, numbers or weights that nobody notices."""

from __future__ import annotations

from .keeper import Mended, alike, cage, need


@cage(
    "shuffled_metrics",
    "wrong",
    "The accuracy in the log is above 100%",
    right="b",
    told={
        "a": "Then both numbers would be half of what they should be, on every run alike. Run it a few times.",
        "b": "That's it. A set of strings has another order in each process, and `all_reduce` knows no names: it adds "
        "up whatever comes first on each rank.",
        "c": "There's no randomness in the metrics themselves: each rank has the same two numbers on every run.",
    },
    found="",
)
def shuffled_metrics(program: Mended) -> list[str]:
    for ranks in (2, 3):
        for seed in range(4):
            run = program.on(ranks, env={"PYTHONHASHSEED": str(seed)}, engine="cold")
            accuracy, loss = (alike(run, key, f"the {key}", 1e-6) for key in ("accuracy", "loss"))
            need(abs(accuracy - 0.75) < 1e-6 and abs(loss - 2.0) < 1e-6, f"The log says accuracy {accuracy:.2f}.")
    return ["2 and 3 ranks"]
