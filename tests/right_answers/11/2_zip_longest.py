from collections import Counter
from itertools import zip_longest


def read_hang(entered: dict[int, list[str] | None]) -> tuple[str, list[int]]:
    ranks = sorted(entered)
    if None in entered.values():
        return "no record", [r for r in ranks if entered[r] is None]
    for place in zip_longest(*(entered[r] for r in ranks)):
        seen = Counter(name for name in place if name is not None)
        if len(seen) == 2:
            (usual, _), (odd, _) = seen.most_common()
            return "different", [r for r, name in zip(ranks, place, strict=True) if name == odd]
    most = max(len(entered[r]) for r in ranks)
    behind = [r for r in ranks if len(entered[r]) != most]
    return ("behind", behind) if behind else ("together", [])
