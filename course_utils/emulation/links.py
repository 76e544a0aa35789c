"""How long a collective takes over modelled links: NCCL's algorithms and protocols, by its own latencies, over a
hierarchy of nodes.

NCCL knows three algorithms for a sum, rings, trees and sums in the switch, and three protocols that trade rate for
latency. It takes the fastest by its own estimate, and so does this. What a node sends to others passes its network
cards, which the groups of ranks that cross at once divide evenly: statically, by which groups there are, not by who
really sends at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .clusters import EmulatedCluster, EmulatedLink

# Seconds that an algorithm needs before its first step, and for each step over a kind of link, by protocol: LL, LL128,
# Simple. NCCL 2.19, src/graph/tuning.cc, baseLat and hwLat.
_BASE_S = {"tree": (6.8e-6, 14e-6, 0.0), "ring": (6.6e-6, 14e-6, 8.4e-6)}
_STEP_S = {
    "nvlink": {"tree": (0.6e-6, 1.25e-6, 4e-6), "ring": (0.6e-6, 1.9e-6, 3.4e-6)},
    "pcie": {"tree": (1.0e-6, 1.9e-6, 4e-6), "ring": (1.0e-6, 2.5e-6, 5.7e-6)},
    "network": {"tree": (5.0e-6, 8.5e-6, 14e-6), "ring": (2.7e-6, 4.0e-6, 14e-6)},
}
_RATE = (0.25, 0.92, 1.0)  # of the link that a protocol gets; ibid., ncclTopoTuneModel
# Before its kernel starts, a call of a collective takes the host as long as so many operators: Python, torch's process
# group, NCCL. Fitted to every other all-reduce of 32 KiB to 2 MiB that a program waited for on 8 H200.
CALL = 3.2
_LL, _LL128, _SIMPLE = range(3)
# A sum in the switch (NVLink SHARP, NCCL's NVLS), from NVLink 4 on. Each GPU sends what it has once and one part of the
# sum, (n + 1) / n of the buffer where a ring takes 2 (n - 1) / n, so that 8 GPUs' bus bandwidth says what the wire
# carries. It starts after NCCL's own 25 us (2.27, hwLat). Filling its pipeline takes longer the larger the chunks
# are, which grow with the buffer (src/enqueue.cc, calcCollChunking): the two numbers of that are fitted to every other
# all-reduce of 2 to 128 MiB on 8 H100 (`tools/bench_emulation.py links`).
_SWITCH_S, _FILL_S, _HALF_FULL_BYTES = 25e-6, 77e-6, 16e6
_NODE = 8  # GPUs, whose bus bandwidth `Link.busbw_Bps` is
_TWICE = ("all_reduce", "barrier")  # go through the ring twice: once to add up, once to give the sums out
_WHOLE = ("broadcast", "reduce")  # every link passes all of the buffer, not all but one part


@dataclass(frozen=True)
class Route:
    """Where the ranks of a group lie: `ranks` in all, in `nodes` machines, with at most `per_node` in one."""

    ranks: int
    nodes: int
    per_node: int
    inside: EmulatedLink
    between: EmulatedLink
    node_Bps: float  # what this group gets of a node's network

    @staticmethod
    def of(cluster: EmulatedCluster, ranks: Collection[int], sharing: int = 1) -> Route:
        """The route of a group of these global ranks. `sharing` groups, this one included, cross the same nodes'
        networks."""
        nodes: dict[int, int] = {}
        for rank in ranks:
            nodes[cluster.node_of(rank)] = nodes.get(cluster.node_of(rank), 0) + 1
        most, link = max(nodes.values()), cluster.between
        # A GPU sends through the cards next to it; a node with fewer GPUs than usual has fewer cards.
        whole = max(cluster.per_node, cluster.device.per_node)
        cards = min(link.cards, math.ceil(most * link.cards / whole))
        rate = min(link.busbw_Bps * cards / link.cards, link.busbw_Bps / sharing)
        return Route(len(ranks), len(nodes), most, cluster.inside, link, rate)


def seconds(kind: str, nbytes: float, route: Route) -> float:
    """The time of a collective, from when its last rank is ready. `nbytes` is the size of the whole buffer: of all
    ranks' parts together for gather, scatter, all_gather and reduce_scatter. 0 for a group of one."""
    n, k, m = route.ranks, route.nodes, route.per_node
    if n == 1:
        return 0.0
    base_s = max(route.inside.base_s, route.between.base_s) if k > 1 else route.inside.base_s
    if kind == "all_to_all":
        inside = nbytes * (m - 1) / n / _wire_Bps(route.inside)
        between = nbytes * m * (n - m) / n / route.node_Bps if k > 1 else 0.0
        return base_s + _message_s(route, n - 1) + max(inside, between)
    if kind in ("gather", "scatter"):
        between = nbytes * (n - m) / n / (route.node_Bps / min(m, route.between.cards)) if k > 1 else 0.0
        return base_s + _message_s(route, n - 1) + max(nbytes * (m - 1) / n / _wire_Bps(route.inside), between)
    ring = min(_ring_s(kind, nbytes, route, protocol) for protocol in _protocols(route))
    if kind not in _TWICE or _plain(route):
        return base_s + ring
    tree = min(_tree_s(nbytes, route, protocol) for protocol in _protocols(route))
    return base_s + min(ring, tree, _switch_s(nbytes, route) if k == 1 else math.inf)


def message_s(cluster: EmulatedCluster, source: int, target: int, nbytes: float) -> float:
    """The time of one message between two ranks, over the link of their node or one network card."""
    route = Route.of(cluster, (source, target))
    link = route.inside if route.nodes == 1 else route.between
    return link.base_s + _message_s(route, 1) + nbytes / (_wire_Bps(link) if route.nodes == 1 else route.node_Bps)


def sharing(cluster: EmulatedCluster, ranks: Sequence[int], groups: Iterable[Sequence[int]]) -> int:
    """How many groups cross the networks of this group's nodes at once: itself, and those that have no rank in common
    with it, and their ranks as far apart: the rows of a device mesh along one of its dimensions."""
    own, nodes = set(ranks), {cluster.node_of(rank) for rank in ranks}
    if len(nodes) == 1:
        return 1
    rows: list[set[int]] = [own]
    apart = _apart(own)
    for group in groups:
        row = set(group)
        its_nodes = {cluster.node_of(rank) for rank in row}
        alike = len(row) == len(own) and _apart(row) == apart
        if alike and len(its_nodes) > 1 and its_nodes & nodes and all(row.isdisjoint(r) for r in rows):
            rows.append(row)
    return len(rows)


def _apart(ranks: set[int]) -> list[int]:
    first = min(ranks)
    return sorted(rank - first for rank in ranks)


def _protocols(route: Route) -> tuple[int, ...]:
    """LL128 needs NVLink in the node."""
    if _plain(route):
        return (_SIMPLE,)
    return (_LL, _LL128, _SIMPLE) if route.inside.kind == "nvlink" else (_LL, _SIMPLE)


def _ring_s(kind: str, nbytes: float, route: Route, protocol: int) -> float:
    n, k = route.ranks, route.nodes
    rounds = 2 if kind in _TWICE else 1
    factor = 1.0 if kind in _WHOLE else rounds * (n - 1) / n
    between = rounds * (k - 1) if k > 1 else 0
    steps_s = (rounds * (n - 1) - between) * _step_s(route.inside, "ring", protocol)
    rate = math.inf if k > 1 and route.per_node == 1 else _protocol_Bps(route.inside, protocol)
    if k > 1:
        steps_s += between * _step_s(route.between, "ring", protocol)
        rate = min(rate, route.node_Bps * _RATE[protocol])
    base_s = 0.0 if _plain(route) else _BASE_S["ring"][protocol]
    return base_s + steps_s + factor * nbytes / rate


def _tree_s(nbytes: float, route: Route, protocol: int) -> float:
    """A chain in each node and a double binary tree between them: up to add, down to give out. Li et al., NCCL 2.4."""
    k, m = route.nodes, route.per_node
    steps_s = 2 * (m - 1) * _step_s(route.inside, "tree", protocol)
    wire_s = 2 * nbytes / _wire_Bps(route.inside) if m > 1 else 0.0
    if k > 1:
        steps_s += 2 * math.ceil(math.log2(k)) * _step_s(route.between, "tree", protocol)
        inside_s = min(2 * (m - 1) / m * nbytes / _wire_Bps(route.inside), _switch_wire_s(nbytes, m, route.inside))
        wire_s = max(inside_s, 2 * (k - 1) / k * nbytes / route.node_Bps)
    return _BASE_S["tree"][protocol] + steps_s + wire_s / _RATE[protocol]


def _switch_s(nbytes: float, route: Route) -> float:
    fill_s = _FILL_S * nbytes / (nbytes + _HALF_FULL_BYTES)
    return _SWITCH_S + fill_s + _switch_wire_s(nbytes, route.ranks, route.inside)


def _switch_wire_s(nbytes: float, ranks: int, link: EmulatedLink) -> float:
    """What the wire of a GPU takes for a sum in the switch; infinite for links without."""
    if not link.ring_Bps:
        return math.inf
    return (ranks + 1) / ranks * nbytes / (link.busbw_Bps * (_NODE + 1) / (2 * (_NODE - 1)))


def _wire_Bps(link: EmulatedLink) -> float:
    """What all get but sums in the switch."""
    return min(link.ring_Bps or link.busbw_Bps, link.busbw_Bps)


def _protocol_Bps(link: EmulatedLink, protocol: int) -> float:
    if protocol == _LL and link.ll_Bps:
        return min(link.ll_Bps, _wire_Bps(link) / 2)
    return _wire_Bps(link) * _RATE[protocol]


def _plain(route: Route) -> bool:
    """Whether one of its links isn't NCCL's."""
    return "plain" in (route.inside.kind, route.between.kind if route.nodes > 1 else "")


def _step_s(link: EmulatedLink, algorithm: str, protocol: int) -> float:
    return link.hop_s if link.kind == "plain" else _STEP_S[link.kind][algorithm][protocol]


def _message_s(route: Route, messages: int) -> float:
    """The latency of messages that one rank sends one after the other without waiting: they start a step apart."""
    link = route.inside if route.nodes == 1 else route.between
    if link.kind == "plain":
        return messages * link.hop_s
    return _BASE_S["ring"][_SIMPLE] + messages * _step_s(link, "ring", _LL)
