def read_hang(entered: dict[int, list[str] | None]) -> tuple[str, list[int]]:
    ranks = sorted(entered)
    gone = [r for r in ranks if entered[r] is None]
    if gone:
        return ("no record", gone)
    lengths = {r: len(entered[r]) for r in ranks}
    for i in range(max(lengths.values())):
        kinds: dict[str, list[int]] = {}
        for r in ranks:
            if lengths[r] > i:
                kinds.setdefault(entered[r][i], []).append(r)
        if len(kinds) > 1:
            return ("different", min(reversed(list(kinds.values())), key=len))
    slow = [r for r in ranks if lengths[r] < max(lengths.values())]
    return ("behind" if slow else "together", slow)
