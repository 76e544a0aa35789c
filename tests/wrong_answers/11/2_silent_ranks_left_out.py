# symptom: not no record
# says: The answer is
from collections import Counter


def read_hang(entered: dict[int, list[str] | None]) -> tuple[str, list[int]]:
    silent = sorted(rank for rank, record in entered.items() if record is None)
    records = {rank: entered[rank] for rank in sorted(entered) if rank not in silent}
    furthest = max(len(record) for record in records.values())
    for place in range(furthest):
        there = {rank: record[place] for rank, record in records.items() if len(record) > place}
        usual = Counter(there.values()).most_common(1)[0][0]
        odd = [rank for rank, name in there.items() if name != usual]
        if odd:
            return "different", odd
    behind = [rank for rank, record in records.items() if len(record) < furthest]
    return ("behind", behind) if behind else ("together", [])
