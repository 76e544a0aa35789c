# symptom: not different
# says: The answer is
def read_hang(entered: dict[int, list[str] | None]) -> tuple[str, list[int]]:
    silent = sorted(rank for rank, record in entered.items() if record is None)
    if silent:
        return "no record", silent
    records = {rank: entered[rank] for rank in sorted(entered)}
    furthest = max(len(record) for record in records.values())
    behind = [rank for rank, record in records.items() if len(record) < furthest]
    return ("behind", behind) if behind else ("together", [])
