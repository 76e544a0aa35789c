"""How long a collective takes over modelled links: NCCL's algorithms and protocols, by its own latencies, over a
hierarchy of nodes.

NCCL knows two algorithms for a sum, rings and trees, and three protocols that trade rate for latency. It takes the
fastest by its own estimate, and so does this. What a node sends to others passes its network cards, which the groups of
ranks that cross at once divide evenly: statically, by which groups there are, not by who really sends at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..clusters import Cluster, Link

# Seconds that an algorithm needs before its first step, and for each step over a kind of link, by protocol: LL, LL128,
# Simple. NCCL 2.19, src/graph/tuning.cc, baseLat and hwLat.
_BASE_S = {"tree": (6.8e-6, 14e-6, 0.0), "ring": (6.6e-6, 14e-6, 8.4e-6)}
_STEP_S = {
    "nvlink": {"tree": (0.6e-6, 1.25e-6, 4e-6), "ring": (0.6e-6, 1.9e-6, 3.4e-6)},
    "pcie": {"tree": (1.0e-6, 1.9e-6, 4e-6), "ring": (1.0e-6, 2.5e-6, 5.7e-6)},
    "network": {"tree": (5.0e-6, 8.5e-6, 14e-6), "ring": (2.7e-6, 4.0e-6, 14e-6)},
}
_RATE = (0.25, 0.92, 1.0)  # of the link that a protocol gets; ibid., ncclTopoTuneModel
_LL, _LL128, _SIMPLE = range(3)
_TWICE = ("all_reduce", "barrier")  # go through the ring twice: once to add up, once to give the sums out
_WHOLE = ("broadcast", "reduce")  # every link passes all of the buffer, not all but one part


@dataclass(frozen=True)
class Route:
    """Where the ranks of a group lie: `ranks` in all, in `nodes` machines, with at most `per_node` in one."""

    ranks: int
    nodes: int
    per_node: int
    inside: Link
    between: Link
    node_Bps: float  # what this group gets of a node's network

    @staticmethod
    def of(cluster: Cluster, ranks: Collection[int], sharing: int = 1) -> Route:
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
        inside = nbytes * (m - 1) / n / route.inside.busbw_Bps
        between = nbytes * m * (n - m) / n / route.node_Bps if k > 1 else 0.0
        return base_s + _message_s(route, n - 1) + max(inside, between)
    if kind in ("gather", "scatter"):
        between = nbytes * (n - m) / n / (route.node_Bps / min(m, route.between.cards)) if k > 1 else 0.0
        return base_s + _message_s(route, n - 1) + max(nbytes * (m - 1) / n / route.inside.busbw_Bps, between)
    ring = min(_ring_s(kind, nbytes, route, protocol) for protocol in _protocols(route))
    if kind not in _TWICE or "plain" in (route.inside.kind, route.between.kind if k > 1 else ""):
        return base_s + ring
    return base_s + min(ring, *(_tree_s(nbytes, route, protocol) for protocol in _protocols(route)))


def message_s(cluster: Cluster, source: int, target: int, nbytes: float) -> float:
    """The time of one message between two ranks, over the link of their node or one network card."""
    route = Route.of(cluster, (source, target))
    link = route.inside if route.nodes == 1 else route.between
    return link.base_s + _message_s(route, 1) + nbytes / (link.busbw_Bps if route.nodes == 1 else route.node_Bps)


def sharing(cluster: Cluster, ranks: Sequence[int], groups: Iterable[Sequence[int]]) -> int:
    """How many groups cross the networks of this group's nodes at once: itself, and those of the same size that have no
    rank in common with it, as the rows of a device mesh have."""
    own, nodes = set(ranks), {cluster.node_of(rank) for rank in ranks}
    if len(nodes) == 1:
        return 1
    rows: list[set[int]] = [own]
    for group in groups:
        row = set(group)
        its_nodes = {cluster.node_of(rank) for rank in row}
        if len(row) == len(own) and len(its_nodes) > 1 and its_nodes & nodes and all(row.isdisjoint(r) for r in rows):
            rows.append(row)
    return len(rows)


def _protocols(route: Route) -> tuple[int, ...]:
    """LL128 needs NVLink in the node."""
    if "plain" in (route.inside.kind, route.between.kind if route.nodes > 1 else ""):
        return (_SIMPLE,)
    return (_LL, _LL128, _SIMPLE) if route.inside.kind == "nvlink" else (_LL, _SIMPLE)


def _ring_s(kind: str, nbytes: float, route: Route, protocol: int) -> float:
    n, k = route.ranks, route.nodes
    rounds = 2 if kind in _TWICE else 1
    factor = 1.0 if kind in _WHOLE else rounds * (n - 1) / n
    between = rounds * (k - 1) if k > 1 else 0
    steps_s = (rounds * (n - 1) - between) * _step_s(route.inside, "ring", protocol)
    rate = route.inside.busbw_Bps if k == 1 else min(route.node_Bps, route.inside.busbw_Bps)
    if k > 1:
        steps_s += between * _step_s(route.between, "ring", protocol)
        if route.per_node == 1:
            rate = route.node_Bps
    plain = "plain" in (route.inside.kind, route.between.kind if k > 1 else "")
    base_s = 0.0 if plain else _BASE_S["ring"][protocol]
    return base_s + steps_s + factor * nbytes / (rate * _RATE[protocol])


def _tree_s(nbytes: float, route: Route, protocol: int) -> float:
    """A chain in each node and a double binary tree between them: up to add, down to give out. Li et al., NCCL 2.4."""
    k, m = route.nodes, route.per_node
    steps_s = 2 * (m - 1) * _step_s(route.inside, "tree", protocol)
    wire_s = 2 * nbytes / route.inside.busbw_Bps if m > 1 else 0.0
    if k > 1:
        steps_s += 2 * math.ceil(math.log2(k)) * _step_s(route.between, "tree", protocol)
        wire_s = max(2 * (m - 1) / m * nbytes / route.inside.busbw_Bps, 2 * (k - 1) / k * nbytes / route.node_Bps)
    return _BASE_S["tree"][protocol] + steps_s + wire_s / _RATE[protocol]


def _step_s(link: Link, algorithm: str, protocol: int) -> float:
    return link.hop_s if link.kind == "plain" else _STEP_S[link.kind][algorithm][protocol]


def _message_s(route: Route, messages: int) -> float:
    """The latency of messages that one rank sends one after the other without waiting: they start a step apart."""
    link = route.inside if route.nodes == 1 else route.between
    if link.kind == "plain":
        return messages * link.hop_s
    return _BASE_S["ring"][_SIMPLE] + messages * _step_s(link, "ring", _LL)
