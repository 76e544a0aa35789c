from collections.abc import Callable


def choose_nodes(step_s: dict[int, float], steps: int, deadline_h: float, budget_node_h: float, queue_h: Callable[[int], float]) -> int | None:
    best = None
    for nodes in step_s:
        hours = step_s[nodes] * steps / 3600
        cost, done = nodes * hours, hours + queue_h(nodes)
        if done > deadline_h + 1e-9 or cost > budget_node_h + 1e-9:
            continue
        if best is None or cost < best[0] - 1e-9 or (cost <= best[0] + 1e-9 and done < best[1]):
            best = (cost, done, nodes)
    return best[2] if best else None
