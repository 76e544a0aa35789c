# symptom: not the soonest
# says: done sooner
from collections.abc import Callable


def choose_nodes(step_s: dict[int, float], steps: int, deadline_h: float, budget_node_h: float, queue_h: Callable[[int], float]) -> int | None:
    fitting = []
    for nodes, seconds in step_s.items():
        run_h = steps * seconds / 3600
        done_h, charged = queue_h(nodes) + run_h, nodes * run_h
        if done_h <= deadline_h + 1e-9 and charged <= budget_node_h + 1e-9:
            fitting.append((round(charged, 9), nodes, nodes))
    return min(fitting)[2] if fitting else None
