# symptom: last
# says: last row of each piece is missing
def reads(rows: int, saved_on: int, loaded_on: int, rank: int) -> list[tuple[int, int, int]]:
    """What `rank` of `loaded_on` ranks reads of a tensor of `rows` rows that `saved_on` ranks have saved.

    Returns pieces (file, first, last): rows first to last - 1 of that file, counted from the file's own first row. File f is what rank f saved.
    In the order of the tensor's rows; each file comes at most once, and no piece is empty.
    """
    there, here = -(-rows // saved_on), -(-rows // loaded_on)  # rounded up
    begin, end = min(rank * here, rows), min((rank + 1) * here, rows)
    pieces = []
    for file in range(saved_on):
        base = file * there
        first, last = max(begin, base), min(end, base + there)
        if first < last:
            pieces.append((file, first - base, last - base - 1))
    return pieces
