from collections.abc import Iterator


def owner(row: int, rows: int, ranks: int) -> tuple[int, int]:
    """The rank that has a row, and the row's place there."""
    each = (rows + ranks - 1) // ranks
    return row // each, row % each


def mine(rows: int, ranks: int, rank: int) -> Iterator[int]:
    return (row for row in range(rows) if owner(row, rows, ranks)[0] == rank)


def reads(rows: int, saved_on: int, loaded_on: int, rank: int) -> list[tuple[int, int, int]]:
    pieces: dict[int, list[int]] = {}
    for row in mine(rows, loaded_on, rank):
        file, place = owner(row, rows, saved_on)
        pieces.setdefault(file, []).append(place)
    return [(file, min(places), max(places) + 1) for file, places in pieces.items()]
