"""What the deeper sections of lesson 12 show."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_utils import Run, Sweep, claim, figures, more_checks, sweep
from course_utils.for_lessons import Figure, Table, bet, figure_first, missing, say

from .files import EMPTY
from .recordings import BATCH, EARLY, NEAR, apart, here, here_or_recorded, here_or_recorded_sweep

GIB = 2**30
WAYS: list[dict[str, object]] = [  # of the sixteen GPUs, as arguments of its program
    {"by": by, "parts": parts, "precision": precision}
    for parts, precision in ((1, "32-true"), (4, "32-true"), (1, "bf16-mixed"))
    for by in ("DDP", "Lightning")
]
_HELD: list[socket.socket] = []  # ports of the two workers


# --- Fabric and Accelerate --------------------------------------------------------------------------------------------


def show_other_two(fabric: Run | None, accelerated: Run | None, guess: object = ...) -> None:
    """What Fabric and Accelerate did with a loader in order; Accelerate's learning rate, and its count of pictures."""
    one = here_or_recorded("fabric", fabric, "lightning")
    two = here_or_recorded("accelerated", accelerated, "accelerate")
    if one is None or two is None:
        return
    for name, run in (("Fabric", one), ("Accelerate", two)):
        kinds = run.ranks[0].values("kinds")[0]
        say(f"*{name}:* rank 0's first {len(kinds)} pictures are of {len(set(kinds))} kinds, so they came in order.")
    left = two.ranks[0].values("rate_left")[-1]
    answer = bet(
        guess,
        left,
        close="you've read its documentation.",
        over="It steps once for each rank.",
        under="So few steps don't use it up.",
        within=0.05,
        traps={0.5: "So it would be with one rank. It steps once for each rank."},
        kind="a share from 0 to 1",
    )
    say(f"After half of the schedule's steps, {left:.2g} of the learning rate is left. {answer}")
    seen, counted = two.value("seen"), two.value("counted")
    say(f"In a test of {two.value('of')} pictures the ranks saw {seen}, and gather_for_metrics counts {counted}.")
    if here(one) and here(two):
        n = two.world_size
        more_checks(
            {
                "both kept the order": all(
                    list(k) == sorted(k) for k in (run.ranks[0].values("kinds")[0] for run in (one, two))
                ),
                "Accelerate's schedule went once for each rank": abs(left - max(0.0, 1 - n / 2)) < 1e-6,
                "every picture is counted once": counted == two.value("of"),
            }
        )


# --- MultiWorkerMirroredStrategy --------------------------------------------------------------------------------------


def free_addresses(workers: int = 2) -> list[str]:
    """Addresses on this machine. The ports stay bound here, so that no other program gets them meanwhile; TensorFlow's
    servers may share them."""
    while _HELD:
        _HELD.pop().close()
    for _ in range(workers):
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        _HELD.append(held)
    return [f"127.0.0.1:{held.getsockname()[1]}" for held in _HELD]


def show_two_workers(run: Run | None, mirrored: Run | None) -> None:
    """Whether two workers draw the curve of one process with two replicas, and what `fit` said."""
    found = here_or_recorded("two_workers", run, "tensorflow")
    other = here_or_recorded("mirrored", mirrored, "tensorflow") if found is not None else None
    if found is None or other is None:
        return
    gap = apart(found, other)
    part = found.value("part", rank=0)
    say(f"Of {BATCH} pictures, each worker's replica gets {part}.")
    say(f"In {EARLY} steps, its losses are at most {gap:.1g} from one process's.")
    say(f"And `fit`? It said: {found.value('fit', rank=0)}")
    words = "two workers draw the curve of one process with two replicas"
    if here(found):
        claim(words, gap < NEAR)
    else:
        claim(words, None, why="needs TensorFlow")
    if here(found):
        losses = {tuple(rank.values("loss")) for rank in found.ranks}
        more_checks({"both workers report the same losses": len(losses) == 1})


# --- what a framework takes -------------------------------------------------------------------------------------------


def empty_steps() -> Sweep:
    """Steps with nothing to compute, by each of the frameworks that are here."""
    by = ["DDP"] + ["Fabric", "Lightning"] * (not missing("lightning")) + ["Accelerate"] * (not missing("accelerate"))
    return sweep(EMPTY, over={"by": by}, repeats=1, threads=1, quiet=True)


def show_empty(empty: Sweep, guess: object = ...) -> Figure:
    """What each framework adds to a step."""
    return _show_empty(here_or_recorded_sweep("empty", empty, "lightning"), guess)


@figure_first
def _show_empty(empty: Sweep, guess: object) -> Figure:
    bars = {by: empty.samples("step_s", by=by) for by in (point["by"] for point in empty.points)}
    own = bars["DDP"].median
    if "Lightning" in bars:
        added_s = bars["Lightning"].median - own
        answer = bet(
            guess,
            added_s * 1e3,
            close="you've profiled one.",
            over="It's less.",
            under="It's more: hooks, counters, a message to all ranks.",
            within=(added_s * 500, added_s * 2000),
            unit=" ms",
        )
        say(f"The trainer adds {added_s * 1e3:.2g} ms to a step. {answer}")
        say(f"That's {added_s / 0.1:.1%} of a step of 100 ms, and {added_s / 0.01:.0%} of one of 10 ms.")
    title = "A step with nothing to compute: the framework alone"
    return figures.bars(bars, title=title if len(bars) > 1 else "A step with nothing to compute, with DDP")


# --- sixteen GPUs  ---------------------------------------------------------------------------------------------


def ways() -> list[dict[str, object]]:
    """What to launch on sixteen GPUs: Lightning's half needs Lightning."""
    return [way for way in WAYS if way["by"] == "DDP" or not missing("lightning")]


def show_sixteen(sixteen: Sweep) -> Table:
    """What each argument does to sums, to time and to memory, by hand and with Lightning."""
    sweep = here_or_recorded_sweep("sixteen", sixteen, "lightning")
    found = {tuple(point.values()): sweep.at(**point)[0] for point in sweep.points}
    rows = []
    for parts, precision in dict.fromkeys(way[1:] for way in found):
        runs = [found.get((by, parts, precision)) for by in ("DDP", "Lightning")]
        each = [None if run is None else run.ranks[0].records[-1] for run in runs]
        name = {(1, "32-true"): "as it is", (4, "32-true"): "accumulate_grad_batches=4"}.get((parts, precision))
        rows.append(
            (
                name or 'precision="bf16-mixed"',
                _both(each, lambda r: f"{r['sums']:.0f}"),
                _both(each, lambda r: f"{r['took_s'] * 1e3:.0f} ms"),
                _both(each, lambda r: f"{r['peak_bytes'] / GIB:.1f} GiB"),
            )
        )
    plain, parts, bits = (
        found["DDP", *way].ranks[0].records[-1] for way in ((1, "32-true"), (4, "32-true"), (1, "bf16-mixed"))
    )
    say(
        f"Emulated, four batches take {plain['took_s'] / parts['took_s']:.1f} times as long without accumulation. With"
        f" bf16 they need {bits['peak_bytes'] / plain['peak_bytes']:.0%} of the memory, and"
        f" {bits['took_s'] / plain['took_s']:.0%} of the time."
    )
    more_checks(
        {
            "accumulation sums once in four batches": (round(plain["sums"]), round(parts["sums"])) == (4, 1),
            "accumulation is faster over a slow link": parts["took_s"] < plain["took_s"],
            "16 bits need less memory": bits["peak_bytes"] < plain["peak_bytes"],
        }
    )
    return Table(
        ("", "sums in 4 batches", "4 batches", "memory of a GPU"),
        rows,
        "lrrr",
        note="Emulated: 16 H100 on two nodes, 25 Gbit/s. Where there are two numbers, they're DDP's and Lightning's.",
    )


def _both(each: Sequence[Mapping[str, Any] | None], words: Callable[[Mapping[str, Any]], str]) -> str:
    """The words of both programs, or of one if they're the same."""
    return " · ".join(dict.fromkeys(words(record) for record in each if record is not None))
