import heapq


def orders(stages, micro_batches, most):
    return simulated(stages, micro_batches, [most] * stages)


def simulated(stages, micro_batches, room):
    """Events in the order of time: a box is done, or a stage looks for work. A backward goes first."""
    ready_f = [list(range(micro_batches))] + [[] for _ in range(stages - 1)]
    ready_b = [[] for _ in range(stages)]
    busy, held = [False] * stages, [0] * stages
    lists = [[] for _ in range(stages)]
    heap = []

    def look(now):
        for s in range(stages):
            if busy[s]:
                continue
            if ready_b[s]:
                kind, i, takes = "B", ready_b[s].pop(0), 2
            elif ready_f[s] and held[s] < room[s]:
                kind, i, takes = "F", ready_f[s].pop(0), 1
                held[s] += 1
            else:
                continue
            lists[s].append(f"{kind}{i}")
            busy[s] = True
            heapq.heappush(heap, (now + takes, s, kind, i))

    look(0)
    while heap:
        now = heap[0][0]
        while heap and heap[0][0] == now:
            _, s, kind, i = heapq.heappop(heap)
            busy[s] = False
            if kind == "F":
                (ready_f[s + 1] if s < stages - 1 else ready_b[s]).append(i)
            else:
                held[s] -= 1
                if s:
                    ready_b[s - 1].append(i)
        look(now)
    return lists


def zero_bubble(stages, micro_batches):
    result = []
    for s, boxes in enumerate(simulated(stages, micro_batches, list(range(stages, 0, -1)))):
        split = []
        for box in boxes:
            i = int(box[1:])
            split.append(box.replace("B", "I"))
            if box[0] == "B" and i >= s:
                split.append(f"W{i - s}")
        missing = [f"W{i}" for i in range(micro_batches) if f"W{i}" not in split]
        result.append(split + missing)
    return result
