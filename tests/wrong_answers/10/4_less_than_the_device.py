# symptom: exactly
# says: The plan is stage 1
def memory_bytes(params: float, ranks: int, stage: int, activation_bytes: float, recompute: bool) -> float:
    """What one rank holds: model states at ZeRO `stage` 0 to 3, and activations."""
    optimizer, gradients, weights = 12 * params, 2 * params, 2 * params
    if stage >= 1:
        optimizer /= ranks
    if stage >= 2:
        gradients /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + optimizer + activation_bytes * (0.1 if recompute else 1)


def step_s(params: float, ranks: int, stage: int, compute_s: float, recompute: bool, bandwidth_Bps: float) -> float:
    """Seconds of a step: computing, and then sending. `compute_s` is without recomputing."""
    sent = (3 if stage == 3 else 2) * (ranks - 1) / ranks * 2 * params
    return compute_s * (4 / 3 if recompute else 1) + sent / bandwidth_Bps


def plan(
    params: float, ranks: int, activation_bytes: float, compute_s: float, bandwidth_Bps: float, device_bytes: float
) -> tuple[int, bool] | None:
    """(stage, recompute) of the fastest way that holds at most `device_bytes`, None where none does.

    Where several take the same time: the lowest stage, and rather without recomputing.
    """
    best = None
    for recompute in (False, True):
        for stage in range(4):
            if memory_bytes(params, ranks, stage, activation_bytes, recompute) < device_bytes:
                seconds = step_s(params, ranks, stage, compute_s, recompute, bandwidth_Bps)
                if best is None or seconds < best[0]:
                    best = (seconds, stage, recompute)
    return None if best is None else best[1:]
