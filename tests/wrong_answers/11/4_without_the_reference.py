# symptom: rows
# says: The rows are those of
from statistics import median


def scaling_table(step_s: dict[int, list[float]], kind: str) -> list[tuple[int, float, float]]:
    fewest = min(step_s)
    reference_s = median(step_s[fewest])
    rows = []
    for nodes in sorted(step_s):
        ideal = nodes / fewest
        faster = reference_s / median(step_s[nodes])
        speedup = faster * ideal if kind == "weak" else faster
        rows.append((nodes, speedup, speedup / ideal))
    return rows[1:] or rows


def largest_worth(rows: list[tuple[int, float, float]], least: float) -> int:
    largest = rows[0][0]
    for nodes, _, efficiency in rows:
        if efficiency < least - 1e-9:
            break
        largest = nodes
    return largest
