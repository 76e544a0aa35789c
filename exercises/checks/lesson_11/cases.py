"""Lesson 11: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

import statistics
from collections import Counter
from random import Random

# 11.1: nodes, gpus_per_node, cpus_per_gpu, minutes, warn_s, script and its arguments
JOB_CASES: list[tuple[int, int, int, int, int, list[str]]] = [
    (2, 4, 8, 90, 120, ["train.py", "--epochs", "3"]),
    (1, 8, 4, 200, 60, ["train.py"]),
    (3, 1, 6, 45, 30, ["pretrain.py", "--name", "two words", "--note", '$HOME "quoted" * `x` #1']),
]
NODE_NAMES = ["gpu07", "gpu12", "gpu31"]  # of the jobs; not in a row, as on a real cluster
SAVE = "save_now"  # the file that the ranks look for
JOB_IDS = [41207, 41208]  # one job each, neighbours in the queue
PORT_JOB_IDS = [
    7,
    49_999,
    59_999,
    65_541,
    999_999,
    12_345_678,
]  # of any size: some show that a remainder can make too large a port
PORT_NEIGHBOURS = [1, 2, 10, 16, 64, 100, 256, 500, 512, 999]  # so many jobs later, another one must not meet here

# 11.2: what each rank has entered, and what is wrong on which ranks
HANG_CASES: list[tuple[dict[int, list[str] | None], tuple[str, list[int]]]] = [
    ({0: ["sum 4096", "sum 512"], 1: ["sum 4096"], 2: ["sum 4096", "sum 512"]}, ("behind", [1])),
    ({3: ["sum 1"], 0: ["sum 1", "gather 8"], 2: None, 1: ["sum 1", "gather 8"]}, ("no record", [2])),
    ({0: ["sum 1", "sum 2", "sum 9"], 1: ["sum 1", "sum 9"], 2: ["sum 1", "sum 2", "sum 9"]}, ("different", [1])),
    (
        {0: ["sum 1", "barrier"], 1: ["sum 1", "sum 7"], 2: ["sum 1", "sum 7"], 3: ["sum 1", "sum 7"]},
        ("different", [0]),
    ),
    ({0: ["sum 64"] * 3, 1: ["sum 64"] * 3}, ("together", [])),
    ({0: ["sum 64"] * 5, 1: ["sum 64"] * 3, 2: ["sum 64"] * 4, 3: ["sum 64"] * 5}, ("behind", [1, 2])),
    ({0: ["a 1", "b 2"], 1: ["a 1", "c 2"], 2: ["a 1", "b 2"], 3: ["a 1", "c 2"]}, ("different", [1, 3])),
    ({0: ["sum 8", "sum 4"], 1: ["sum 8", "sum 16"], 2: ["sum 8"], 3: ["sum 8", "sum 4"]}, ("different", [1])),
    (
        {
            0: ["sum 1", "sum 2", "sum 5"],
            1: ["sum 1", "sum 3", "sum 5"],
            2: ["sum 1", "sum 3", "sum 5"],
            3: ["sum 1", "sum 3", "sum 5"],
        },
        ("different", [0]),
    ),
    ({0: None, 1: None, 5: ["sum 1"], 4: None}, ("no record", [0, 1, 4])),
    ({0: [], 1: ["barrier"]}, ("behind", [0])),
    ({3: ["a 1"], 1: ["b 2"], 2: ["a 1"], 0: ["b 2"]}, ("different", [2, 3])),
    ({0: [], 1: []}, ("together", [])),
    ({7: [], 2: None}, ("no record", [2])),
    ({0: ["a 1"], 1: ["a 1"], 2: ["a 1"], 3: []}, ("behind", [3])),
    ({0: ["a 1"], 2: ["a 1", "c 8"], 1: ["a 1", "b 8"]}, ("different", [2])),  # a tie, and rank 0 hasn't come so far
    ({0: [], 5: ["b 2"], 3: ["a 1"], 4: ["b 2"], 9: ["a 1"]}, ("different", [4, 5])),
    ({6: ["a 1"]}, ("together", [])),
    ({4: ["sum 1"] * 12 + ["sum 2"], 9: ["sum 1"] * 12 + ["sum 3"], 6: ["sum 1"] * 12}, ("different", [9])),
]

# 11.3: measured seconds of a step by number of nodes, steps, deadline in hours, budget in node hours, and hours in the
# queue: either (for any job, more for each node), or by number of nodes
Queue = tuple[float, float] | dict[int, float]
NODES_CASES: list[tuple[dict[int, float], int, float, float, Queue]] = [
    ({1: 4.0, 2: 2.1, 4: 1.15, 8: 0.7}, 36_000, 24.0, 60.0, (0.0, 0.0)),  # 2 nodes: 21 h, 42 node hours
    ({1: 4.0, 2: 2.1, 4: 1.15, 8: 0.7}, 36_000, 24.0, 60.0, (0.0, 2.0)),  # 2 wait too long: 4 nodes, 11.5 + 8 h
    ({1: 4.0, 2: 2.1, 4: 1.15, 8: 0.7}, 36_000, 10.0, 60.0, (0.0, 0.0)),  # 8 nodes: 7 h, 56 node hours
    ({1: 4.0, 2: 2.1, 4: 1.15, 8: 0.7}, 36_000, 10.0, 50.0, (0.0, 0.0)),  # too dear
    ({4: 2.0, 8: 0.9, 16: 0.5}, 18_000, 30.0, 100.0, (0.5, 0.1)),  # 4 nodes hardly fit: 8 cost less than 4
    (
        {1: 1.0, 2: 0.5, 4: 0.25},
        36_000,
        10.0,
        10.0,
        (0.0, 0.0),
    ),  # just in time and just in budget, all cost the same: the soonest
    ({2: 3.0, 4: 1.6}, 12_000, 5.0, 100.0, (6.0, 0.0)),  # nothing starts in time
    ({16: 0.5, 2: 3.0}, 7_200, 6.0, 16.0, (0.0, 0.02)),
    ({1: 2.0, 2: 1.0, 4: 0.9}, 18_000, 12.0, 30.0, (3.0, -0.5)),  # 1 and 2 cost the same, and 2 is done sooner
    ({1: 1.0, 2: 0.5, 4: 0.25}, 36_000, 20.0, 20.0, {1: 0.0, 2: 8.0, 4: 9.0}),  # all cost the same, and 1 need not wait
    ({1: 1.0, 2: 0.5002}, 36_000, 20.0, 20.0, (0.0, 0.0)),  # 2 cost a little more
    ({1: 1.0}, 36_000, 9.995, 20.0, (0.0, 0.0)),  # too late by seconds
    ({1: 1.0, 2: 0.6}, 36_000, 12.0, 20.0, {1: 3.0, 2: 0.5}),
    ({1: 1.0}, 36_000, 10.0, 20.0, (0.0, 0.0)),  # done exactly at the deadline
    ({2: 1.0}, 36_000, 20.0, 20.0, (0.0, 0.0)),  # all of the budget
    ({2: 2.8, 5: 1.12}, 36_000, 60.0, 60.0, (0.0, 0.0)),  # cost the same, but for the last bit of a float
    ({1: 1.0, 2: 0.5 + 1e-8}, 36_000, 20.0, 20.0, {1: 8.0, 2: 0.0}),  # 2 cost more, by 2e-7 of 10 node hours
    ({1: 1.0}, 36_000, 10.0 - 1e-7, 20.0, (0.0, 0.0)),  # too late, by less than a millisecond
    ({1: 1.0}, 36_000, 20.0, 10.0 - 1e-7, (0.0, 0.0)),
]

# 11.4: seconds of some steps by number of nodes, strong or weak, and the least efficiency
TABLE_CASES: list[tuple[dict[int, list[float]], str, float]] = [
    ({1: [8.0, 8.0, 8.0], 2: [4.4, 4.4, 4.4], 4: [2.5, 2.5, 2.5], 8: [1.6, 1.6, 1.6]}, "strong", 0.75),
    ({8: [1.9, 1.5, 1.6], 4: [2.5, 2.5, 9.0], 16: [1.0, 1.1, 1.0]}, "strong", 0.7),
    ({1: [1.0, 1.1, 1.0], 4: [1.25, 1.25, 5.0], 16: [2.0, 2.0, 2.0]}, "weak", 0.8),
    ({2: [0.5, 0.5, 0.5], 4: [0.8, 0.8, 0.8], 8: [0.52, 0.5, 0.51]}, "weak", 0.9),  # a bad row in between
    ({2: [3.0, 3.0, 3.0]}, "strong", 0.5),
    ({2: [4.0, 4.2], 4: [2.0, 1.0, 3.0, 1.2], 6: [2.2, 1.1]}, "strong", 0.9),  # two in the middle: take their mean
    ({3: [1.0, 1.0], 6: [1.4, 1.0]}, "weak", 1.1),  # no efficiency is that large, but the first row counts
    (
        {2: [1.0, 1.0], 4: [0.4, 0.4], 8: [0.2, 0.2]},
        "strong",
        1.1,
    ),  # the first row is below, so nothing after it counts
]


def hours(queue: Queue, nodes: int) -> float:
    """Hours in the queue for a job on so many nodes."""
    return queue.get(nodes, 1000.0) if isinstance(queue, dict) else queue[0] + queue[1] * nodes


def read_hang(entered: dict[int, list[str] | None]) -> tuple[str, list[int]]:
    """What is wrong, by the definition of 11.2."""
    if silent := sorted(rank for rank, record in entered.items() if record is None):
        return "no record", silent
    records = {rank: record or [] for rank, record in sorted(entered.items())}
    furthest = max(map(len, records.values()))
    for place in range(furthest):
        there = {rank: record[place] for rank, record in records.items() if place < len(record)}
        usual, _ = Counter(there.values()).most_common(1)[0]
        if odd := [rank for rank, name in there.items() if name != usual]:
            return "different", odd
    behind = [rank for rank, record in records.items() if len(record) < furthest]
    return ("behind", behind) if behind else ("together", [])


def random_hangs(rng: Random, n: int = 16) -> list[tuple[dict[int, list[str] | None], tuple[str, list[int]]]]:
    """More cases for 11.2: every rank has done a part of a program, and with some of them at most one thing is
    wrong."""
    cases = []
    for _ in range(n):
        program = [f"{rng.choice(['sum', 'gather'])} {rng.choice([1, 8, 64])}" for _ in range(rng.randint(2, 14))]
        ranks = rng.sample(range(20), rng.randint(2, 6))
        entered: dict[int, list[str] | None] = {
            rank: program[: len(program) - rng.choice([0, 0, 0, 1, 2])] for rank in ranks
        }
        wrong, at = rng.choice(["", "nothing", "other", "other", "left out"]), rng.randrange(len(program))
        for rank in rng.sample(ranks, rng.randint(1, max(1, len(ranks) // 2))):
            record = entered[rank] or []
            if wrong == "nothing":
                entered[rank] = None
            elif wrong and at < len(record):
                entered[rank] = [*record[:at], *["barrier"] * (wrong == "other"), *record[at + 1 :]]
        cases.append((entered, read_hang(entered)))
    return cases


def random_nodes(rng: Random, n: int = 24) -> list[tuple[dict[int, float], int, float, float, Queue]]:
    """More cases for 11.3: those above with more and shorter steps, which take as long to the last bit; then others, in
    some of which several numbers of nodes cost the same."""
    cases: list[tuple[dict[int, float], int, float, float, Queue]] = []
    for step_s, steps, *rest in NODES_CASES:
        times = 2 ** rng.randint(8, 12)
        cases.append(({k: s / times for k, s in step_s.items()}, steps * times, *rest))
    for _ in range(n):
        nodes = rng.sample([1, 2, 3, 4, 6, 8, 16, 32], rng.randint(2, 5))
        one = rng.randint(2, 40) / 4
        step_s = {k: one / k * rng.choice([1.0, 1.0, rng.randint(80, 250) / 100]) for k in nodes}
        queue: Queue = {k: rng.randint(0, 40) / 4 for k in nodes}
        cases.append((step_s, 7200, rng.randint(2, 24) + 0.1, rng.randint(4, 40) + 0.1, queue))
    return cases


def random_tables(rng: Random, n: int = 8) -> list[tuple[dict[int, list[float]], str, float]]:
    """More cases for 11.4, with even and odd numbers of steps, and runs that scale better than they should."""
    cases = []
    for _ in range(n):
        nodes = rng.sample([1, 2, 3, 4, 6, 8, 12, 16], rng.randint(2, 5))
        kind, first = rng.choice(["strong", "weak"]), rng.randint(10, 90) / 10
        step_s = {}
        for k in nodes:
            middle = first / (k if kind == "strong" else 1) * rng.randint(90, 160) / 100
            step_s[k] = [middle * rng.randint(95, 130) / 100 for _ in range(rng.randint(2, 6))]
        cases.append((step_s, kind, rng.choice([0.6, 0.75, 0.9, 1.05])))
    return cases


def table(
    step_s: dict[int, list[float]], kind: str, middle: bool = True, one: bool = False
) -> list[tuple[int, float, float]]:
    """The right table of 11.4. Other options give what known mistakes would make of it."""
    seconds = {n: statistics.median(s) if middle else statistics.mean(s) for n, s in sorted(step_s.items())}
    first = min(seconds)
    rows = []
    for n, s in seconds.items():
        ideal = n if one else n / first
        speedup = seconds[first] / s * (ideal if kind == "weak" else 1)
        rows.append((n, speedup, speedup / ideal))
    return rows
