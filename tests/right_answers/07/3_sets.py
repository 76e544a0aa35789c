def lost(log):
    held, by = [set()], {}
    for trainer, read, wrote in sorted(log, key=lambda line: line[2]):
        held.append(held[read] | {wrote})
        by[wrote] = trainer
    answer = {}
    for update in range(1, len(held)):
        if update in held[-1]:
            continue
        version = len(held) - 1
        while update not in held[version]:
            version -= 1
        answer[update] = by[version + 1]
    return answer
