from collections import defaultdict


def lost(log):
    children = defaultdict(list)
    trainer = {}
    for who, read, wrote in log:
        children[read].append(wrote)
        trainer[wrote] = who

    def last(version):
        return max([version] + [last(child) for child in children[version]])

    n = len(log)
    return {v: trainer[last(v) + 1] for v in trainer if last(v) != n}
