def length(lists, takes):
    done, at, clock = {}, [0] * len(lists), [0] * len(lists)
    back = "I" if "I" in takes else "B"
    progress = True
    while progress:
        progress = False
        for s, boxes in enumerate(lists):
            while at[s] < len(boxes):
                kind, i = boxes[at[s]][0], int(boxes[at[s]][1:])
                wait = {"F": [("F", s - 1)] * (s > 0), "W": [(back, s)]}.get(kind)
                if wait is None:
                    wait = [("F", s)] + [(back, s + 1)] * (s + 1 < len(lists))
                if any((k, q, i) not in done for k, q in wait):
                    break
                clock[s] = max([clock[s]] + [done[k, q, i] for k, q in wait]) + takes[kind]
                done[kind, s, i] = clock[s]
                at[s] += 1
                progress = True
    return max(clock) if all(a == len(b) for a, b in zip(at, lists)) else float("inf")


def orders(stages, micro_batches, most):
    room = min(most, stages)
    tried = [one_try(stages, micro_batches, room, after) for after in (0, 1, 2)]
    return min(tried, key=lambda lists: length(lists, {"F": 1, "B": 2}))


def one_try(stages, micro_batches, room, after):
    """Stage s lets `after * s` more backwards pass than stage 0 before its next forward, unless it's the lap's last."""
    lists = []
    for s in range(stages):
        f, boxes = 0, []
        for b in range(micro_batches):
            while f < micro_batches and needed(f, after * s, room, stages) <= b:
                boxes.append(f"F{f}")
                f += 1
            if f == b:
                boxes.append(f"F{f}")
                f += 1
            boxes.append(f"B{b}")
        lists.append(boxes)
    return lists


def needed(f, more, room, stages):
    """How many backwards come before forward f."""
    lap, place = divmod(f, room)
    before = (lap - 1) * room + min(place + more + 1, room)
    return before + max(0, place + more + 1 - stages)


def zero_bubble(stages, micro_batches):
    best = None
    for slope in (0, 1, 2):
        lists = []
        for s in range(stages):
            put_off, f = slope * s, min(stages - s, micro_batches)
            boxes = [f"F{i}" for i in range(f)]
            for i in range(micro_batches):
                boxes += [f"I{i}"] + [f"W{i - put_off}"] * (i >= put_off)
                if f < micro_batches:
                    boxes.append(f"F{f}")
                    f += 1
            boxes += [f"W{i}" for i in range(max(0, micro_batches - put_off), micro_batches)]
            room = max(sum(x[0] == "F" for x in boxes[:n]) - sum(x[0] == "W" for x in boxes[:n]) for n in range(len(boxes)))
            lists.append(boxes if room <= stages else [])
        if all(lists):
            took = length(lists, {"F": 1, "I": 1, "W": 1})
            if best is None or took < best[0]:
                best = took, lists
    return best[1]
