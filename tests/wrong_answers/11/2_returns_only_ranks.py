# symptom: type
# says: a word and a list of ranks
def read_hang(entered: dict[int, list[str] | None]) -> tuple[str, list[int]]:
    return [rank for rank in entered if entered[rank] is None]
