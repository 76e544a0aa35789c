def orders(stages, micro_batches, most):
    f_end, b_end = {}, {}
    free, next_f, next_b = [0] * stages, [0] * stages, [0] * stages
    lists = [[] for _ in range(stages)]
    now = 0
    while min(next_b) < micro_batches:
        for s in range(stages):
            if free[s] > now:
                continue
            i, j = next_b[s], next_f[s]
            came = b_end.get((s + 1, i)) if s + 1 < stages else f_end.get((s, i))
            if i < micro_batches and came is not None and came <= now:
                lists[s].append(f"B{i}")
                b_end[s, i] = free[s] = now + 2
                next_b[s] += 1
            elif j < micro_batches and j - i < most and (s == 0 or f_end.get((s - 1, j), now + 1) <= now):
                lists[s].append(f"F{j}")
                f_end[s, j] = free[s] = now + 1
                next_f[s] += 1
        now += 1
    return lists


def zero_bubble(stages, micro_batches):
    """A forward first, and then a backward; each stage keeps back as many W boxes as its number says."""
    found = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, micro_batches)
        todo_f = list(range(warm, micro_batches))
        boxes = [f"F{i}" for i in range(warm)]
        pending = []
        for i in range(micro_batches):
            if todo_f:
                boxes.append(f"F{todo_f.pop(0)}")
            boxes.append(f"I{i}")
            pending.append(f"W{i}")
            if len(pending) > stage:
                boxes.append(pending.pop(0))
        found.append(boxes + pending)
    return found
