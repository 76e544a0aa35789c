from collections import Counter


def find_fault(dumps):
    by_group = {}
    for rank, dump in enumerate(dumps):
        for call in dump:
            by_group.setdefault(call["group"], {}).setdefault(rank, {})[call["number"]] = call
    for ranks in by_group.values():
        begin = max(min(calls) for calls in ranks.values())
        end = max(max(calls) for calls in ranks.values())
        for number in range(begin, end + 1):
            said = {}
            for rank, calls in ranks.items():
                call = calls.get(number)
                said[rank] = str((call["op"], call["sizes"])) if call else None
            counts = Counter(said.values())
            if len(counts) > 1:
                (usual, _), *_ = counts.most_common()
                rank = next(r for r in said if said[r] != usual)
                return rank, number, ranks[rank][number]["line"] if said[rank] else 0
    return None
