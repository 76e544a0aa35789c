"""Simulate a pipeline-parallel step, with uneven stages, communication and memory, and draw up every stage's
timeline."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..results.spans import Interval, Span
from .validation import at_most, count, fraction, not_negative, one_of, positive

# The order in which each stage of a pipeline works: GPipe, 1F1B, interleaved 1F1B and zero-bubble.

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


RECOMPUTE = ("none", "always", "except_last")


@dataclass(frozen=True)
class PipelineRun:
    """A simulated step. `busy_s` and both peaks have one entry per stage (a device)."""

    schedule: str
    total_s: float
    busy_s: tuple[float, ...]
    peak_micro_batches: tuple[int, ...]  # activations held at once, in micro-batches of one chunk
    peak_bytes: tuple[float, ...]  # the same in bytes; zeros if no activation size was given
    spans: tuple[Span, ...]  # (stage, start_s, end_s, what, label), for figures.rank_timeline

    @property
    def bubble(self) -> float:
        """The fraction of the stages' time spent waiting: (p-1)/(m+p-1) for even stages under GPipe and 1F1B."""
        return 1 - sum(self.busy_s) / (len(self.busy_s) * self.total_s) if self.total_s else 0.0


def bubble_fraction(p: int, m: int, v: int = 1) -> float:
    """The closed form for `p` even stages, `m` micro-batches and `v` chunks a stage: (p-1) / (v m + p - 1). arXiv
    2104.04473, section 2."""
    count(p=p, m=m, v=v)
    return (p - 1) / (v * m + p - 1)


def simulate_pipeline(
    schedule: str,
    forward_s: Sequence[float],
    micro_batches: int,
    *,
    backward_s: Sequence[float] | None = None,
    weight_share: float = 0.5,
    chunks: int = 1,
    comm_s: float = 0.0,
    recompute: str = "none",
    recompute_s: Sequence[float] | None = None,
    activation_bytes: Sequence[float] | float = 0.0,
    checkpoint_bytes: Sequence[float] | float = 0.0,
) -> PipelineRun:
    """One step of `micro_batches` through the stages, as `schedule` orders it: gpipe, 1f1b, interleaved or zero-bubble.

    `forward_s` has one time per stage, for one micro-batch. For `interleaved` it has one per chunk, `chunks` times as
    many as devices, and chunk c is on device c mod p. `backward_s` defaults to twice that; zero-bubble splits it, and
    `weight_share` of it goes to weight gradients. A message to the next stage takes `comm_s` and overlaps with compute.

    With `recompute`, backward first repeats the forward, which takes `recompute_s` (default: `forward_s`). `always`
    does so for every micro-batch; `except_last` spares the last one, as torchgpipe does. A stage then holds
    `checkpoint_bytes` per micro-batch, and `activation_bytes` only for the one it works on. All in seconds and bytes.
    Raises ValueError for arguments that don't fit together.
    """
    one_of(SCHEDULES, schedule=schedule)
    one_of(RECOMPUTE, recompute=recompute)
    count(micro_batches=micro_batches, chunks=chunks)
    fraction(weight_share=weight_share)
    not_negative(comm_s=comm_s)
    total_chunks = len(forward_s)
    if not total_chunks:
        raise ValueError("a pipeline needs at least one stage in forward_s")
    if chunks > 1 and schedule != "interleaved":
        raise ValueError(f"only an interleaved schedule has several chunks per device; {schedule} got chunks={chunks}")
    if total_chunks % chunks:
        raise ValueError(
            f"forward_s needs one time per chunk, and each device has {chunks}; {total_chunks} times do not divide by"
            f" {chunks}"
        )
    p, m = total_chunks // chunks, micro_batches
    at_most(1e6, "forward passes of stages", total_chunks * m)
    back = [2 * t for t in forward_s] if backward_s is None else list(backward_s)
    again = [0.0] * total_chunks if recompute == "none" else list(forward_s if recompute_s is None else recompute_s)
    held, kept = (
        [float(nbytes)] * total_chunks if isinstance(nbytes, (int, float)) else list(nbytes)
        for nbytes in (activation_bytes, checkpoint_bytes)
    )
    given = {"forward_s": forward_s, "backward_s": back, "recompute_s": again}
    for name, values in {**given, "activation_bytes": held, "checkpoint_bytes": kept}.items():
        if len(values) != total_chunks:
            raise ValueError(f"{name} needs one value for each of the {total_chunks} stages; got {len(values)}")
        not_negative(**{f"{name}[{i}]": value for i, value in enumerate(values)})

    costs: dict[str, list[float]] = {"F": list(forward_s), "B": back}
    if schedule == "zero-bubble":
        # Recomputation has to precede the first half of backward.
        costs["I"], costs["W"] = [t * (1 - weight_share) for t in back], [t * weight_share for t in back]
        first_half = [t + r for t, r in zip(costs["I"], again, strict=True)]
        filled = zero_bubble(p, m, costs["F"], first_half, costs["W"], comm_s)
        plain = split_backward(one_f_one_b(p, m))
        # Which is best depends on how uneven the stages are; the last is never slower than 1F1B itself.
        candidates = [zb_h1(p, m), filled, plain]
    elif schedule == "interleaved":
        candidates = [interleaved(p, m, chunks)]
    else:
        candidates = [gpipe(p, m) if schedule == "gpipe" else one_f_one_b(p, m)]
    spare = m - 1 if recompute == "except_last" else -1
    runs = [_run(orders, p, total_chunks, m, costs, again, spare, comm_s) for orders in candidates]
    total_s, orders, times = min(runs, key=lambda run: run[0])
    peak, peak_bytes = _memory(orders, recompute, spare, held, kept)
    spans = _spans(orders, times, total_chunks, comm_s)
    busy = [0.0] * p
    for stage, start, end, what, _ in spans:
        busy[stage] += (end - start) if what == "compute" else 0.0
    return PipelineRun(schedule, total_s, tuple(busy), tuple(peak), tuple(peak_bytes), tuple(spans))


def _run(
    orders: list[list[Op]],
    p: int,
    chunks: int,
    m: int,
    costs: dict[str, list[float]],
    again: list[float],
    spare: int,
    comm_s: float,
) -> tuple[float, list[list[Op]], list[list[Interval]]]:
    """Start every operation as early as its device and its input allow. Returns the time of the step, the orders, and
    when each operation begins and ends."""
    forward_done = [[-1.0] * m for _ in range(chunks)]
    grad_done = [[-1.0] * m for _ in range(chunks)]
    times: list[list[Interval]] = [[] for _ in range(p)]
    free, at = [0.0] * p, [0] * p
    waiting, last = deque(range(p)), chunks - 1
    hop = comm_s if p > 1 else 0.0
    forward_s, weight_s = costs["F"], costs.get("W", costs["F"])
    grad_s = {
        spare_one: [t if spare_one else t + r for t, r in zip(costs.get("I", costs["B"]), again, strict=True)]
        for spare_one in (False, True)
    }
    while waiting:  # each device goes on until an input is missing; whoever brings that input wakes it
        d = waiting.popleft()
        order, took, k, now = orders[d], times[d].append, at[d], free[d]
        wake, end = set(), len(order)
        while k < end:
            kind, c, i = order[k]
            if kind == "F":
                needs = forward_done[c - 1][i] if c else 0.0
                if needs < 0:
                    break
                start = max(now, needs + hop if c else 0.0)
                forward_done[c][i] = now = start + forward_s[c]
                wake.add((c + 1) % p)
            elif kind == "W":
                start = now
                now += weight_s[c]
            else:
                needs = forward_done[c][i] if c == last else grad_done[c + 1][i]
                if needs < 0:
                    break
                start = max(now, needs if c == last else needs + hop)
                grad_done[c][i] = now = start + grad_s[i == spare][c]
                wake.add((c - 1) % p)
            took((start, now))
            k += 1
        at[d], free[d] = k, now
        waiting.extend(n for n in wake if n != d and n not in waiting)
    if any(at[d] < len(orders[d]) for d in range(p)):
        raise RuntimeError("deadlock: the operations wait for each other in this order")
    return max(free), orders, times


def _memory(
    orders: list[list[Op]], recompute: str, spare: int, held: list[float], kept: list[float]
) -> tuple[list[int], list[float]]:
    """The most micro-batches that each device holds at once, from a forward to the end of its backward (its W), and the
    most bytes."""
    peaks, peaks_bytes = [], []
    for order in orders:
        now = peak = 0
        now_bytes = peak_bytes = 0.0
        for kind, c, i in order:
            stored = held[c] if recompute == "none" or i == spare else kept[c]
            if kind == "F":
                now += 1
                now_bytes += stored
                peak = max(peak, now)
                peak_bytes = max(peak_bytes, now_bytes)
            elif kind in "BI" and stored != held[c]:
                peak_bytes = max(peak_bytes, now_bytes + held[c])  # the recomputed activations are back in memory
            if kind in "BW":
                now -= 1
                now_bytes -= stored
        peaks.append(peak)
        peaks_bytes.append(peak_bytes)
    return peaks, peaks_bytes


def _spans(orders: list[list[Op]], times: list[list[Interval]], chunks: int, comm_s: float) -> list[Span]:
    spans: list[Span] = []
    for d, order in enumerate(orders):
        for (kind, c, i), (start, end) in zip(order, times[d], strict=True):
            spans.append((d, start, end, "compute", f"{kind}{i}"))
            leaves = c < chunks - 1 if kind == "F" else c > 0 and kind != "W"
            if comm_s and leaves and len(orders) > 1:
                spans.append((d, end, end + comm_s, "communication", ""))
    return spans


def spread_stages(p: int, spread: float) -> list[float]:
    """Uneven stages, as whole layers tend to give: `p` times with mean 1 that rise evenly to 1 + spread * (p - 1),
    clipped to stay above zero."""
    count(p=p)
    not_negative(spread=spread)
    if p == 1:
        return [1.0]
    worst = min(spread * (p - 1), 0.95)
    return [1 - worst + 2 * worst * s / (p - 1) for s in range(p)]


def pipeline_speedup(
    p: int,
    m: int,
    *,
    schedule: str = "gpipe",
    spread: float = 0.0,
    micro_batch_cost: float = 0.0,
    recompute: str = "none",
    recompute_share: float = 1 / 3,
) -> float:
    """Speed-up of a pipeline over one device that runs the whole batch at once without recomputation: p m / (m + p - 1)
    in the ideal case.

    `spread` makes stages uneven (`spread_stages`). Splitting the batch makes it 1 + `micro_batch_cost` (1 - 1/m) times
    as slow. A repeated forward takes `recompute_share` of a forward and backward (1/3, since backward costs two
    forwards).
    """
    not_negative(micro_batch_cost=micro_batch_cost, recompute_share=recompute_share)
    count(p=p, m=m)
    scale = (1 + micro_batch_cost * (1 - 1 / m)) / (p * m)
    forward = [t * scale / 3 for t in spread_stages(p, spread)]
    again = [3 * t * recompute_share for t in forward]
    run = simulate_pipeline(schedule, forward, m, recompute=recompute, recompute_s=again)
    positive(total_s=run.total_s)
    return 1 / run.total_s
