def film(blocks, reshard):
    last = blocks - 1
    frames = ["gather 0"]
    for i in range(blocks):
        if i < last:
            frames.append(f"gather {i + 1}")
        frames.append(f"forward {i}")
        if i < last and reshard:
            frames.append(f"free {i}")
    for i in range(last, -1, -1):
        if i > 0 and reshard:
            frames.append(f"gather {i - 1}")
        frames.extend([f"backward {i}", f"reduce-scatter {i}", f"free {i}"])
    frames.append("update")
    return frames
