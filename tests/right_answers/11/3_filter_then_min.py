from collections.abc import Callable


def choose_nodes(step_s: dict[int, float], steps: int, deadline_h: float, budget_node_h: float, queue_h: Callable[[int], float]) -> int | None:
    def charged(n: int) -> float:
        return round(n * step_s[n] * steps / 3600, 9)

    def done(n: int) -> float:
        return round(queue_h(n) + step_s[n] * steps / 3600, 9)

    possible = [n for n in sorted(step_s) if done(n) <= deadline_h and charged(n) <= budget_node_h]
    return min(possible, key=lambda n: (charged(n), done(n)), default=None)
