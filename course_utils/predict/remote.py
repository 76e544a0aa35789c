"""Predict calls to other processes, and a parameter server with several trainers: its speed, and how stale it gets."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .validation import at_most, count, not_negative, positive


def sync_calls(calls: int, call_s: float, latency_s: float = 0.0) -> float:
    """Seconds for `calls` calls of `call_s` each, when you wait for each one before you start the next. `latency_s` is
    an empty round trip."""
    count(calls=calls)
    not_negative(call_s=call_s, latency_s=latency_s)
    return calls * (call_s + latency_s)


def async_calls(calls: int, call_s: float, latency_s: float = 0.0, *, workers: int, threads: int = 16) -> float:
    """Seconds until the last of `calls` calls has answered, when you send all of them before you wait for any.

    They are dealt evenly to `workers`, and each worker runs `threads` at once (16 by default in torch.distributed.rpc).
    This is for calls that only wait: calls that compute share the worker's cores and its Python interpreter's lock.
    """
    count(calls=calls, workers=workers, threads=threads)
    not_negative(call_s=call_s, latency_s=latency_s)
    rounds = math.ceil(math.ceil(calls / workers) / threads)
    return rounds * call_s + latency_s


@dataclass(frozen=True)
class ServerRun:
    """A predicted run of a parameter server. `staleness` and `trainer` have an entry for each update, in the server's
    order."""

    updates_per_s: float
    busy: float  # the fraction of the time that the server spends on updates
    staleness: tuple[int, ...]
    trainer: tuple[int, ...]

    def of(self, trainer: int) -> tuple[int, ...]:
        """The staleness of the updates of one trainer."""
        return tuple(s for s, t in zip(self.staleness, self.trainer, strict=True) if t == trainer)


def parameter_server(
    gradient_s: Sequence[float], *, call_s: float, serve_s: float = 0.0, updates: int = 400
) -> ServerRun:
    """Simulate trainers that each compute a gradient, send it, and get new weights back, while the server makes one
    update at a time.

    gradient_s   seconds of a gradient, one number for each trainer
    call_s       seconds of a call whose update takes no time: a round trip with gradient and weights
    serve_s      seconds of an update, during which the server does nothing else
    updates      how many to simulate; rate and staleness leave out the first tenth

    A closed queue without randomness: n equal trainers make min(n / (gradient + call + serve), 1 / serve) updates a
    second (the asymptotic bound of Denning and Buzen, ACM Computing Surveys 10 (1978)), each with a gradient that is
    n - 1 updates old.
    """
    trainers = len(gradient_s)
    count(trainers=trainers)
    count(2 * trainers, updates=updates)
    at_most(1e6, "updates", updates)
    not_negative(serve_s=serve_s, **{f"gradient_s of trainer {i}": s for i, s in enumerate(gradient_s)})
    positive(call_s=call_s)
    arrivals = [(s + call_s / 2, i) for i, s in enumerate(gradient_s)]
    heapq.heapify(arrivals)
    read = [0] * trainers  # the version that each trainer computes with
    free_s, ends, staleness, who = 0.0, [], [], []
    for version in range(updates):
        arrived, i = heapq.heappop(arrivals)
        free_s = max(arrived, free_s) + serve_s
        ends.append(free_s)
        staleness.append(version - read[i])
        who.append(i)
        read[i] = version + 1
        heapq.heappush(arrivals, (free_s + call_s + gradient_s[i], i))
    first = max(updates // 10, trainers)
    rate = (updates - 1 - first) / (ends[-1] - ends[first]) if ends[-1] > ends[first] else math.inf
    return ServerRun(rate, min(1.0, rate * serve_s), tuple(staleness[first:]), tuple(who[first:]))


def delayed_sgd(rate: float, staleness: int, updates: int) -> list[float]:
    """SGD with gradients that are `staleness` updates old: the distance to the minimum before the first update (1.0)
    and after each of `updates`.

    `rate` is the learning rate times the curvature. e[t+1] = e[t] - rate * e[t - staleness]; the first gradients are
    all computed at the start.
    """
    positive(rate=rate)
    count(0, staleness=staleness, updates=updates)
    e = [1.0]
    for t in range(updates):
        e.append(e[t] - rate * e[max(0, t - staleness)])
    return e


def largest_rate(staleness: int) -> float:
    """The largest learning rate times curvature with which stale gradients still converge: 2 sin(pi / (2 (2 staleness
    + 1))).

    2 for fresh gradients, 1 for a staleness of 1, and about pi / (2 staleness) for very stale ones. Levin and May, A
    note on difference-delay equations, Theoretical Population Biology 9 (1976).
    """
    count(0, staleness=staleness)
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))
