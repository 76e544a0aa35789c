def film(blocks, reshard):
    """Watches which blocks are whole, and looks one computation ahead."""
    order = list(range(blocks)) + list(range(blocks))[::-1]
    whole = set()
    frames = []

    def gather(block):
        if block not in whole:
            whole.add(block)
            frames.append("gather %d" % block)

    for at, block in enumerate(order):
        forward = at < blocks
        gather(block)  # only the first one isn't there yet
        coming = order[at + 1 : at + 2]
        for ahead in coming:
            gather(ahead)
        frames.append(("forward %d" if forward else "backward %d") % block)
        if not forward or reshard and block not in coming:
            whole.discard(block)
            frames.append("free %d" % block)
        if not forward:
            frames.append("reduce-scatter %d" % block)
    frames.append("update")
    return tuple(frames)
