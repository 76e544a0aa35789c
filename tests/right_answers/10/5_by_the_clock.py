"""A time for each frame: computation k is at 10 k, and what belongs to it a little before or after."""


def film(blocks, reshard):
    times = [(20 * blocks, "update")]
    for i in range(blocks):
        forward, backward = 10 * i, 10 * (2 * blocks - 1 - i)
        stays = not reshard or i == blocks - 1
        # A gather is one computation ahead, the reduce-scatter after the gather that comes next.
        times += [(forward - 10 - 2 if i else -100, f"gather {i}"), (forward, f"forward {i}")]
        times += [(backward, f"backward {i}"), (backward + 1, f"free {i}"), (backward + 9, f"reduce-scatter {i}")]
        if not stays:
            times += [(forward + 1, f"free {i}"), (backward - 10 - 2, f"gather {i}")]
    return [frame for _, frame in sorted(times)]
