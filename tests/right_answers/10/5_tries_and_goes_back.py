"""Puts down one frame after another that the rules allow, until all are there. A frame that's forced comes at once, so
that it never has to go back far."""


def film(blocks, reshard):
    computed = [("forward", i) for i in range(blocks)] + [("backward", i) for i in reversed(range(blocks))]

    def allowed(frames, whole, now, sent):
        """The frames that may come next, when `now` computations have begun and `sent` gradients were sent."""
        kind, block = computed[now - 1] if now else ("", -1)
        to_free = now and block in whole and (kind == "backward" or reshard and block < blocks - 1)
        to_send = now - blocks if now > blocks else 0
        if sent < to_send:
            yield f"reduce-scatter {block}"
        if to_free:
            yield f"free {block}"
        if not frames:
            yield "gather 0"
            return
        if now + 1 < len(computed):
            ahead = computed[now + 1][1]
            if ahead not in whole and (len(whole) < 2 or not reshard):
                yield f"gather {ahead}"
                return
        if sent == to_send and not to_free:
            if now < len(computed) and computed[now][1] in whole:
                yield "%s %d" % computed[now]
            elif now == len(computed):
                yield "update"

    def rest(frames, whole, now, sent):
        if frames and frames[-1] == "update":
            return frames
        for frame in allowed(frames, whole, now, sent):
            kind, _, number = frame.partition(" ")
            then = set(whole)
            if kind == "gather":
                then.add(int(number))
            elif kind == "free":
                then.remove(int(number))
            begun, gone = now + (kind in ("forward", "backward")), sent + (kind == "reduce-scatter")
            if found := rest([*frames, frame], then, begun, gone):
                return found
        return None

    return rest([], set(), 0, 0)
