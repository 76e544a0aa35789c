from course_utils.predict import bubble_fraction, ring_factor


def step_times(compute_s, devices, gradient_bytes, activation_bytes, micro_batches, bandwidth_Bps):
    ring_s = ring_factor("all_reduce", devices) * gradient_bytes / bandwidth_Bps
    busy_s = compute_s / devices + micro_batches * 2 * activation_bytes / bandwidth_Bps
    return compute_s / devices + ring_s, busy_s / (1 - bubble_fraction(devices, micro_batches))


def plan(compute_s, devices, gradient_bytes, activation_bytes, micro_batches, bandwidth_Bps, state_bytes, memory_bytes):
    times = step_times(compute_s, devices, gradient_bytes, activation_bytes, micro_batches, bandwidth_Bps)
    held = (state_bytes, state_bytes / devices)
    fits = [(s, i) for i, (s, h) in enumerate(zip(times, held, strict=False)) if h <= memory_bytes]
    return ("data parallel", "pipeline")[min(fits)[1]] if fits else "neither"
