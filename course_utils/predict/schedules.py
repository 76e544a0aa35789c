"""The order in which each stage of a pipeline works: GPipe, 1F1B, interleaved 1F1B and zero-bubble.

An operation is (kind, chunk, micro_batch). Kinds: F forward, B backward; a zero-bubble schedule splits B into I
(gradient of the input, which the stage before waits for) and W (gradient of the weights, which nobody waits for). A
device holds one chunk of the model, or `v` of them when interleaved: chunk c lives on device c mod p.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from .validation import count

Op = tuple[str, int, int]
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def gpipe(p: int, m: int) -> list[list[Op]]:
    """All forwards, then all backwards, the last micro-batch first. Huang et al., arXiv 1811.06965. Holds m
    micro-batches."""
    count(p=p, m=m)
    return [[("F", s, i) for i in range(m)] + [("B", s, i) for i in reversed(range(m))] for s in range(p)]


def one_f_one_b(p: int, m: int) -> list[list[Op]]:
    """Stage s runs p-1-s forwards ahead, then one forward and one backward in turn. PipeDream-Flush, arXiv 2006.09503.
    Holds at most p-s."""
    count(p=p, m=m)
    return [_in_turn([("F", s, i) for i in range(m)], [("B", s, i) for i in range(m)], p - 1 - s) for s in range(p)]


def interleaved(p: int, m: int, v: int) -> list[list[Op]]:
    """1F1B with `v` chunks a device: the bubble is v times smaller, the traffic v times larger. Narayanan et al., arXiv
    2104.04473, section 2.2.

    Micro-batches go in groups of p through chunk after chunk, so `m` must be a multiple of `p`.
    """
    count(p=p, m=m, v=v)
    if m % p:
        raise ValueError(f"an interleaved schedule needs micro-batches in multiples of the {p} stages; got {m}")
    orders = []
    for d in range(p):
        steps = [(k // p % v, k // (p * v) * p + k % p) for k in range(m * v)]
        forwards = [("F", chunk * p + d, i) for chunk, i in steps]
        backwards = [("B", (v - 1 - chunk) * p + d, i) for chunk, i in steps]
        ahead = (p - 1 - d) * 2 + (v - 1) * p if v > 1 else p - 1 - d
        orders.append(_in_turn(forwards, backwards, ahead))
    return orders


def split_backward(orders: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """The same orders with every B split into I and then W, so that the stage before can go on after I."""
    return [
        [part for kind, c, i in order for part in ((("I", c, i), ("W", c, i)) if kind == "B" else ((kind, c, i),))]
        for order in orders
    ]


def zb_h1(p: int, m: int) -> list[list[Op]]:
    """1F1B that delays the weight gradients of stage s by s micro-batches, to fill the bubbles of even stages: ZB-H1,
    arXiv 2401.10241.

    Bubble (p-1) (F + I - W) instead of (p-1) (F + I + W). Holds at most p micro-batches on every stage, each until its
    W is done.
    """
    count(p=p, m=m)
    orders = []
    for s in range(p):
        ahead = min(p - 1 - s, m)
        order: list[Op] = [("F", s, i) for i in range(ahead)]
        for i in range(m):
            order += [("F", s, ahead + i)] if ahead + i < m else []
            order += [("I", s, i)] + ([("W", s, i - s)] if i >= s else [])
        orders.append(order + [("W", s, i) for i in range(max(0, m - s), m)])
    return orders


def zero_bubble(
    p: int, m: int, forward_s: Sequence[float], input_s: Sequence[float], weight_s: Sequence[float], comm_s: float = 0.0
) -> list[list[Op]]:
    """The idea of `zb_h1` for uneven stages, by list scheduling: a free stage takes the most urgent operation that can
    run.

    That's I if its gradient has arrived; else F if its input has arrived and the stage holds fewer than p
    micro-batches; else a pending W.
    """
    count(p=p, m=m)
    orders: list[list[Op]] = [[] for _ in range(p)]
    inputs: list[deque[int]] = [deque() for _ in range(p)]
    grads: list[deque[int]] = [deque() for _ in range(p)]
    weights: list[deque[int]] = [deque() for _ in range(p)]
    inputs[0].extend(range(m))
    held, busy_until = [0] * p, [0.0] * p
    # (time, what, stage, micro-batch). At equal times, arrivals (0: input, 1: gradient) sort before choices (2).
    events: list[tuple[float, int, int, int]] = [(0.0, 2, 0, 0)]
    push, pop = heapq.heappush, heapq.heappop
    while events:
        now, what, s, i = pop(events)
        if what < 2:
            (grads if what else inputs)[s].append(i)
            if busy_until[s] <= now:
                push(events, (now, 2, s, 0))
            continue
        if busy_until[s] > now:
            continue
        if grads[s]:
            i, kind, end = grads[s].popleft(), "I", now + input_s[s]
            weights[s].append(i)
            if s > 0:
                push(events, (end + comm_s, 1, s - 1, i))
        elif inputs[s] and held[s] < p:
            i, kind, end = inputs[s].popleft(), "F", now + forward_s[s]
            held[s] += 1
            push(events, (end + comm_s, 0, s + 1, i) if s < p - 1 else (end, 1, s, i))
        elif weights[s]:
            i, kind, end = weights[s].popleft(), "W", now + weight_s[s]
            held[s] -= 1
        else:
            continue
        orders[s].append((kind, s, i))
        busy_until[s] = end
        push(events, (end, 2, s, 0))
    return orders


def _in_turn(forwards: list[Op], backwards: list[Op], ahead: int) -> list[Op]:
    """`ahead` forwards, then one forward and one backward in turn, then the backwards that are left."""
    ahead = min(ahead, len(forwards))
    order = list(forwards[:ahead])
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]
