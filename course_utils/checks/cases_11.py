"""Lesson 11: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

# 11.1: nodes, gpus_per_node, cpus_per_gpu, minutes, warn_s, script and its arguments
JOB_CASES: list[tuple[int, int, int, int, int, list[str]]] = [
    (2, 4, 8, 90, 120, ["train.py", "--epochs", "3"]),
    (3, 1, 6, 45, 60, ["pretrain.py", "--name", "two words"]),
]
NODE_NAMES = ["gpu07", "gpu12", "gpu31"]  # of the jobs; not in a row, as on a real cluster
JOB_IDS = [41207, 41208]  # one job each, neighbours in the queue

# 11.2: what each rank has entered, and what is wrong on which ranks
HANG_CASES: list[tuple[dict[int, list[str] | None], tuple[str, list[int]]]] = [
    ({0: ["sum 4096", "sum 512"], 1: ["sum 4096"], 2: ["sum 4096", "sum 512"]}, ("behind", [1])),
    ({3: ["sum 1"], 0: ["sum 1", "gather 8"], 2: None, 1: ["sum 1", "gather 8"]}, ("no record", [2])),
    ({0: ["sum 1", "sum 2", "sum 9"], 1: ["sum 1", "sum 9"], 2: ["sum 1", "sum 2", "sum 9"]}, ("different", [1])),
    ({0: ["sum 1", "barrier"], 1: ["sum 1", "sum 7"], 2: ["sum 1", "sum 7"], 3: ["sum 1", "sum 7"]}, ("different", [0])),
    ({0: ["sum 64"] * 3, 1: ["sum 64"] * 3}, ("together", [])),
    ({0: ["sum 64"] * 5, 1: ["sum 64"] * 3, 2: ["sum 64"] * 4, 3: ["sum 64"] * 5}, ("behind", [1, 2])),
    ({0: ["a 1", "b 2"], 1: ["a 1", "c 2"], 2: ["a 1", "b 2"], 3: ["a 1", "c 2"]}, ("different", [1, 3])),
    ({0: ["sum 8", "sum 4"], 1: ["sum 8", "sum 16"], 2: ["sum 8"], 3: ["sum 8", "sum 4"]}, ("different", [1])),
    ({0: ["sum 1", "sum 2", "sum 5"], 1: ["sum 1", "sum 3", "sum 5"], 2: ["sum 1", "sum 3", "sum 5"], 3: ["sum 1", "sum 3", "sum 5"]}, ("different", [0])),
    ({0: None, 1: None, 5: ["sum 1"], 4: None}, ("no record", [0, 1, 4])),
    ({0: [], 1: ["barrier"]}, ("behind", [0])),
]

# 11.3: measured seconds a step on so many nodes, steps, deadline in hours, budget in node hours, and hours in the queue a node (plus a start)
NODES_CASES: list[tuple[dict[int, float], int, float, float, tuple[float, float]]] = [
    ({1: 4.0, 2: 2.1, 4: 1.15, 8: 0.7}, 36_000, 24.0, 60.0, (0.0, 0.0)),  # 2 nodes: 21 h, 42 node hours
    ({1: 4.0, 2: 2.1, 4: 1.15, 8: 0.7}, 36_000, 24.0, 60.0, (0.0, 2.0)),  # 2 wait too long: 4 nodes, 11.5 + 8 h
    ({1: 4.0, 2: 2.1, 4: 1.15, 8: 0.7}, 36_000, 10.0, 60.0, (0.0, 0.0)),  # 8 nodes: 7 h, 56 node hours
    ({1: 4.0, 2: 2.1, 4: 1.15, 8: 0.7}, 36_000, 10.0, 50.0, (0.0, 0.0)),  # too dear
    ({4: 2.0, 8: 0.9, 16: 0.5}, 18_000, 30.0, 100.0, (0.5, 0.1)),  # 4 nodes hardly fit: 8 cost less than 4
    ({1: 1.0, 2: 0.5, 4: 0.25}, 36_000, 10.0, 10.0, (0.0, 0.0)),  # just in time and just in budget, all cost the same: the soonest
    ({2: 3.0, 4: 1.6}, 12_000, 5.0, 100.0, (6.0, 0.0)),  # nothing starts in time
    ({16: 0.5, 2: 3.0}, 7_200, 6.0, 16.0, (0.0, 0.02)),
    ({1: 2.0, 2: 1.0, 4: 0.9}, 18_000, 12.0, 30.0, (3.0, -0.5)),  # 1 and 2 cost the same, and 2 is done sooner
]

# 11.4: seconds of some steps on so many nodes, strong or weak, and the least efficiency
TABLE_CASES: list[tuple[dict[int, list[float]], str, float]] = [
    ({1: [8.0, 8.0, 8.0], 2: [4.4, 4.4, 4.4], 4: [2.5, 2.5, 2.5], 8: [1.6, 1.6, 1.6]}, "strong", 0.75),
    ({8: [1.9, 1.5, 1.6], 4: [2.5, 2.5, 9.0], 16: [1.0, 1.1, 1.0]}, "strong", 0.7),
    ({1: [1.0, 1.1, 1.0], 4: [1.25, 1.25, 5.0], 16: [2.0, 2.0, 2.0]}, "weak", 0.8),
    ({2: [0.5, 0.5, 0.5], 4: [0.8, 0.8, 0.8], 8: [0.52, 0.5, 0.51]}, "weak", 0.9),  # a bad row in between
    ({2: [3.0, 3.0, 3.0]}, "strong", 0.5),
]
