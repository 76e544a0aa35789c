from itertools import product

from course_utils import predict


def memory_bytes(params, ranks, stage, activation_bytes, recompute):
    return predict.zero_memory(params, ranks, stage).total + activation_bytes * (0.1 if recompute else 1.0)


def step_s(params, ranks, stage, compute_s, recompute, bandwidth_Bps):
    return compute_s * predict.recompute_time("full" if recompute else "none", seq=1, hidden=1) + predict.zero_traffic(params, ranks, stage) / bandwidth_Bps


def plan(params, ranks, activation_bytes, compute_s, bandwidth_Bps, device_bytes):
    ways = [(s, r) for r, s in product((False, True), range(4)) if memory_bytes(params, ranks, s, activation_bytes, r) <= device_bytes]
    return min(ways, key=lambda w: step_s(params, ranks, w[0], compute_s, w[1], bandwidth_Bps), default=None)
