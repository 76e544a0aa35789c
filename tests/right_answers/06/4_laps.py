from course_utils.predict.pipeline import zb_h1


def orders(stages, micro_batches, most):
    k = min(most, stages)
    begun = [0]
    for i in range(1, micro_batches):
        begun.append(begun[i - k] + 3 * stages if i % k == 0 else begun[i - 1] + 3)
    lists = []
    for s in range(stages):
        events = [(b + s, "F", i) for i, b in enumerate(begun)]
        events += [(b + 3 * stages - 2 * s - 2, "B", i) for i, b in enumerate(begun)]
        events.sort()
        lists.append([kind + str(i) for _, kind, i in events])
    return lists


def zero_bubble(stages, micro_batches):
    return [[kind + str(i) for kind, _, i in boxes] for boxes in zb_h1(stages, micro_batches)]
