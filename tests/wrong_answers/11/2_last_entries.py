# symptom: not behind
# says: The answer is
from collections import Counter


def read_hang(entered: dict[int, list[str] | None]) -> tuple[str, list[int]]:
    silent = sorted(rank for rank, record in entered.items() if record is None)
    if silent:
        return "no record", silent
    records = {rank: entered[rank] for rank in sorted(entered)}
    furthest = max(len(record) for record in records.values())
    last = {rank: record[-1] if record else "" for rank, record in records.items()}
    usual = Counter(last.values()).most_common(1)[0][0]
    odd = [rank for rank, name in last.items() if name != usual]
    if odd:
        return "different", odd
    behind = [rank for rank, record in records.items() if len(record) < furthest]
    return ("behind", behind) if behind else ("together", [])
