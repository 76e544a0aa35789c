from itertools import takewhile
from statistics import median


def scaling_table(step_s: dict[int, list[float]], kind: str) -> list[tuple[int, float, float]]:
    work = {n: n if kind == "weak" else 1 for n in step_s}
    rate = {n: work[n] / median(times) for n, times in step_s.items()}
    first = min(rate)
    return [(n, rate[n] / rate[first], rate[n] / n / (rate[first] / first)) for n in sorted(rate)]


def largest_worth(rows: list[tuple[int, float, float]], least: float) -> int:
    return [rows[0], *takewhile(lambda row: row[2] > least - 1e-9, rows)][-1][0]
