"""Lesson 12: what its checks ask, shared by the adapter on the ranks and by the judges."""

from __future__ import annotations

# 12.1: batches of each rank, images in one of them, learning rates of the optimizer steps.
PORT_RANKS, PORT_BATCHES, PORT_IMAGES = 2, 8, 4
PORT_ACCUMULATE, PORT_CLIP, PORT_LR, PORT_START, PORT_ITERS = 2, 0.5, 1e-2, 0.1, 4

# 12.2: (images, ranks)
SAMPLER_CASES = [(10, 4), (8, 2), (7, 2), (1, 4), (3, 8), (1000, 8), (5, 1)]

# 12.3: (global batch, nodes, devices, fits)
LIGHTNING_CASES = [(256, 1, 2, 256), (256, 2, 4, 32), (256, 2, 4, 20), (96, 1, 2, 20), (12, 1, 1, 5), (7, 1, 1, 3), (64, 8, 8, 64)]
LIGHTNING_ERRORS = [(100, 1, 8, 64), (4, 2, 4, 64)]
# (global batch, workers, replicas of each)
TENSORFLOW_CASES = [(128, 1, 2), (128, 2, 4), (60, 3, 1), (32, 1, 1)]
TENSORFLOW_ERRORS = [(100, 2, 4)]

# 12.4: (images of each replica, global batch)
LOSS_CASES = [((8, 8), 16), ((8, 4), 16), ((3, 3), 6), ((8,), 8)]
PENALTY = 0.01
