# symptom: name
# says: The answer is
def step_times(compute_s: float, devices: int, gradient_bytes: float, activation_bytes: float, micro_batches: int, bandwidth_Bps: float) -> tuple[float, float]:
    """Seconds of one step of the same batch on `devices` devices: (data parallel, pipeline).

    compute_s         forward and backward of the whole batch on one device; cutting the batch or the model costs nothing extra
    gradient_bytes    of the whole model
    activation_bytes  what one micro-batch sends from a stage to the next; its gradient is as large
    bandwidth_Bps     bytes a second, from one device to another
    """
    n, m = devices, micro_batches
    data_parallel_s = compute_s / n + 2 * (n - 1) / n * gradient_bytes / bandwidth_Bps
    box_s = compute_s / (n * m) + 2 * activation_bytes / bandwidth_Bps
    return data_parallel_s, (m + n - 1) * box_s


def plan(
    compute_s: float,
    devices: int,
    gradient_bytes: float,
    activation_bytes: float,
    micro_batches: int,
    bandwidth_Bps: float,
    state_bytes: float,
    memory_bytes: float,
) -> str:
    """ "data parallel" or "pipeline", whichever fits and is faster (data parallel where both take the same time); "neither" where none fits.

    state_bytes   weights, gradients and optimizer state of the whole model. Activations are left out
    memory_bytes  what one device has; a plan fits when no device holds more than that
    """
    data_parallel_s, pipeline_s = step_times(compute_s, devices, gradient_bytes, activation_bytes, micro_batches, bandwidth_Bps)
    if state_bytes / devices > memory_bytes:
        return "neither"
    if state_bytes > memory_bytes or pipeline_s < data_parallel_s:
        return "pipeline"
    return "DDP"
