def orders(stages, micro_batches, most):
    """Forwards on stage s start at s, s + 3, s + 6, ...: one in three units is a forward's, the other two a backward's."""
    room = most if most < stages else stages
    lists = []
    for s in range(stages):
        at = {}
        for i in range(micro_batches):
            lap, place = divmod(i, room)
            start = 3 * stages * lap + 3 * place
            at[start + s] = "F%d" % i
            at[start + stages + 2 * (stages - 1 - s)] = "B%d" % i
        lists.append([at[t] for t in sorted(at)])
    return lists


def zero_bubble(stages, micro_batches):
    def one(stage):
        f = w = 0
        ahead = stages - stage
        while f < min(ahead, micro_batches):
            yield f"F{f}"
            f += 1
        for i in range(micro_batches):
            yield f"I{i}"
            if i - w >= stage:
                yield f"W{w}"
                w += 1
            if f < micro_batches:
                yield f"F{f}"
                f += 1
        while w < micro_batches:
            yield f"W{w}"
            w += 1

    return [list(one(stage)) for stage in range(stages)]
