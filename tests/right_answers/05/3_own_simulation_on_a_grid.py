# No help of the cost model: a simulation of its own, over a fine grid of sizes.
def best_bucket_bytes(layers, all_reduce_s):
    def step(size):
        now = free = filled = 0.0
        for layer in reversed(layers):
            now += layer.backward_s
            filled += layer.nbytes
            if filled >= size:
                free, filled = max(now, free) + all_reduce_s(filled), 0.0
        if filled:
            free = max(now, free) + all_reduce_s(filled)
        return max(now, free)

    low, high = min(layer.nbytes for layer in layers), sum(layer.nbytes for layer in layers)
    grid = [low * (high / low) ** (k / 300) for k in range(301)]
    return min(grid, key=step)
