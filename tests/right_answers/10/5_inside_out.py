def film(blocks, reshard):
    return ["gather 0", *inside(0, blocks, reshard), "update"]


def inside(i, blocks, reshard):
    """From a block's forward to the end of its backward, with everything between them. The film of the blocks after it
    lies in the middle, as a call lies in its caller."""
    done = [f"reduce-scatter {i}", f"free {i}"]
    again = [f"gather {i - 1}"] if reshard and i else []
    if i == blocks - 1:
        return [f"forward {i}", *again, f"backward {i}", *done]
    dropped = [f"free {i}"] if reshard else []
    return [
        f"gather {i + 1}",
        f"forward {i}",
        *dropped,
        *inside(i + 1, blocks, reshard),
        *again,
        f"backward {i}",
        *done,
    ]
