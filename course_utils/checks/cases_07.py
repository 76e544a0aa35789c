"""Lesson 07: what is asked of an answer, known to both sides of a check."""

# 07.1: jobs in each case; there are three workers
CALLS = [5, 0, 1]

# 07.2
WIDTH, LR = 6, 0.5
THREADS, UPDATES = 4, 6  # trainers, and updates of each

# 07.3: in each case how often others update between a step's read and its update
STALENESS = [[0, 3, 1, 0, 5], [2]]

# 07.4: additions of each of four processes
ADDITIONS = 25
