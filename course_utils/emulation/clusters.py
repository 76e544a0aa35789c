"""Clusters that can be emulated: devices and links with their rates, from `data/clusters.toml`, a file of your own, or
a dict."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..folders import COURSE, course_home
from ..show.units import is_number, is_whole

DTYPES = ("float32", "tf32", "float64", "float16", "bfloat16", "float8")
LINKS = ("nvlink", "pcie", "network", "plain")
HERE = "this-machine"  # the device that this machine's calibration describes


class UnknownCluster(ValueError):
    """No device of this name is known, or a description of one can't be used."""


@dataclass(frozen=True)
class Device:
    """One GPU. Rates in FLOP/s and B/s, dense; `reached` is the part of them that real programs get, by the type of the
    arithmetic, and under `tf32_conv` or `bfloat16_attention` for convolutions and fused attention, where they get
    another."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    memory_Bps: float
    flops: Mapping[str, float]
    source: str = ""
    reached: Mapping[str, float] = field(default_factory=dict)
    memory_reached: float = 1.0
    # The part of `reached` that's left for products of 16 bits whose rows start at multiples of 2 bytes: fitted to two
    # GPT-2s on an A100 whose vocabulary went from 50,257 to 50,304.
    unaligned_reached: float = 0.6
    launch_s: float = 4e-6  # between two kernels
    host_s: float = 6e-6  # of Python and torch, before a kernel is queued
    copy_Bps: float = 12e9  # from pinned memory
    per_node: int = 8  # how many of them one machine has
    sm_count: int = 0  # streaming multiprocessors; 0 where nobody says
    l2_bytes: int = 0  # of the cache that they share; 0 where nobody says

    def slowed(self, times: float) -> Device:
        """The same device, `times` as slow: a straggler."""
        changed = {
            "flops": {kind: rate / times for kind, rate in self.flops.items()},
            "memory_Bps": self.memory_Bps / times,
            "launch_s": self.launch_s * times,
            "host_s": self.host_s * times,
        }
        return Device(**{**vars(self), **changed})


@dataclass(frozen=True)
class EmulatedLink:
    """What carries collectives. Inside a node `busbw_Bps` is what nccl-tests call bus bandwidth, of an all-reduce on 8
    GPUs; between nodes it's what all network cards of one node send together. Where the switch adds up, `ring_Bps` is
    what every other collective gets, and `ll_Bps` the most that NCCL's protocol for small messages gets.

    `base_s` is added once to each call. Of kind nvlink, pcie or network, each step takes what NCCL's tables say
    (`emulation.links`); of kind plain, a step of a ring takes `hop_s`.
    """

    busbw_Bps: float
    kind: str = "plain"
    base_s: float = 0.0
    hop_s: float = 0.0
    ring_Bps: float = 0.0
    ll_Bps: float = 0.0
    cards: int = 1  # network cards of a node, each with its part of the rate
    source: str = ""


@dataclass(frozen=True)
class EmulatedCluster:
    """`count` GPUs of one kind in `nodes` machines.

    slow     rank -> how many times as long its GPU takes for everything
    one_of   above 0, a few of so many ranks run, by default rank 0 alone, and the others are taken to do what the last
             before them that runs does, at the same time
    host     "measured" if what the host computes between the GPU's operators counts, as measured on this machine
    """

    label: str
    device: Device
    count: int
    inside: EmulatedLink
    between: EmulatedLink
    nodes: int = 1
    slow: Mapping[int, float] = field(default_factory=dict)
    one_of: int = 0
    host: str = ""

    @property
    def title(self) -> str:
        """The label, and what sets this cluster apart from others of that label."""
        nodes = f" in {self.nodes} nodes" if self.nodes > 1 else ""
        host = ", host measured" if self.host else ""
        return f"{self.label}{nodes}{host}" + "".join(f", rank {r} {t:g} times as slow" for r, t in self.slow.items())

    @property
    def per_node(self) -> int:
        return self.count // self.nodes

    def node_of(self, rank: int) -> int:
        return rank // self.per_node

    def device_of(self, rank: int) -> Device:
        """The GPU of a rank: all are alike, but for stragglers."""
        times = self.slow.get(rank, 1.0)
        return self.device if times == 1 else self.device.slowed(times)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> EmulatedCluster:
        raw = json.loads(text)
        device = raw.pop("device")
        device["capability"] = tuple(device["capability"])
        inside, between = EmulatedLink(**raw.pop("inside")), EmulatedLink(**raw.pop("between"))
        slow = {int(rank): times for rank, times in raw.pop("slow").items()}
        return EmulatedCluster(device=Device(**device), inside=inside, between=between, slow=slow, **raw)


def default_path() -> Path:
    """`data/clusters.toml` of the course."""
    return COURSE / "data" / "clusters.toml"


def cluster(
    name: str | Mapping[str, Any], nodes: int = 1, slow: Mapping[int, float] | None = None, one_of: int = 0,
    host: str = "",
) -> EmulatedCluster:  # fmt: skip
    """The cluster that a name or a dict describes.

    name     "8xA100", "8xA100-40GB"; "2xthis-machine" once `calibrate()` has run; "mine.toml:4xbig" for a device of a
             file like `data/clusters.toml`; or a dict such as {"count": 4, "device": {"like": "A100", "memory_bytes":
             20e9}, "inside": "shm"}, in which everything but `count` and `device` can be left out
    nodes    machines; by default as many as the GPUs need (16 A100 are two)
    slow     rank -> how many times as long its GPU takes
    one_of   run rank 0 alone of so many, which all do the same, or a few, each for as many from it on
    host     "measured" counts what the host computes, as measured here

    Raises UnknownCluster, which says what is wrong and in which file, line or key.
    """
    if isinstance(name, Mapping):
        found = _from_dict(name, nodes)
    else:
        file, _, label = str(name).rpartition(":")
        tables = _Tables.of_the_course() if not file else _Tables.of_the_course().with_file(Path(file))
        found = _named(label.strip(), nodes, tables)
    if host not in ("", "measured"):
        raise UnknownCluster(f"host can be 'measured', which counts what the host computes; got {host!r}")
    part = _checked_part(one_of, found)
    if part and set(slow or {}) - {0}:
        raise UnknownCluster(
            f"with one_of={part} rank 0 runs alone, and all others are taken to be like it; so none can be slow."
            " Start all ranks to slow one down"
        )
    return EmulatedCluster(**{**vars(found), "slow": _checked_slow(slow or {}, found), "one_of": part, "host": host})


class _Tables:
    """Devices and links by name, each with where it was written, for errors."""

    def __init__(self, device: dict[str, Any], link: dict[str, Any], source: str = "", text: str = ""):
        self.device, self.link, self.source, self.text = device, link, source, text
        self.below: _Tables | None = None

    @staticmethod
    def of_the_course() -> _Tables:
        return _Tables._read(default_path())

    def with_file(self, path: Path) -> _Tables:
        """What a file of the learner's own says, and below it the course's."""
        own = _Tables._read(path)
        own.below = self
        return own

    @staticmethod
    def _read(path: Path) -> _Tables:
        try:
            text = path.read_text(encoding="utf-8")
            raw = tomllib.loads(text)
        except OSError as error:
            raise UnknownCluster(f"can't read the clusters of {path}: {error.strerror or error}") from None
        except ValueError as error:  # bad TOML, which names its line, or bad UTF-8
            raise UnknownCluster(f"{path.name} can't be read: {error}") from None
        if wrong := [key for key in raw if key not in ("device", "link")]:
            raise UnknownCluster(f"{path.name} has [device.NAME] and [link.NAME] only, and not {wrong[0]!r}")
        return _Tables(raw.get("device", {}), raw.get("link", {}), path.name, text)

    def names(self, what: str) -> list[str]:
        return [*getattr(self, what), *(self.below.names(what) if self.below else [])]

    def find(self, what: str, name: str) -> tuple[dict[str, Any], _Tables]:
        """The table of a device or link, `like` followed, and where it stands. Raises UnknownCluster."""
        own = getattr(self, what)
        if name not in own:
            if self.below is None:
                raise UnknownCluster(f"no {what} {name!r}; {_known(name, self.names(what))}")
            return self.below.find(what, name)
        return self.complete(what, name, own[name]), self

    def complete(self, what: str, name: str, raw: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[str, Any]:
        """A table with what it leaves to the one it's `like`. `above` are those that led here."""
        if not isinstance(raw, Mapping):
            raise self.error(what, name, "", "must be a table of numbers")
        raw = dict(raw)
        like = raw.pop("like", None)
        if like is None:
            return raw
        own = getattr(self, what)
        if like in own and like not in (*above, name):
            return {**self.complete(what, str(like), own[like], (*above, name)), **raw}
        if self.below is None or (like in own and like not in self.below.names(what)):
            problem = (
                "comes back to itself" if like in own else f"names {like!r}; {_known(str(like), self.names(what))}"
            )
            raise self.error(what, name, "like", problem)
        return {**self.below.find(what, str(like))[0], **raw}

    def error(self, what: str, name: str, key: str, problem: str) -> UnknownCluster:
        where = f"{self.source}, line {self._line(what, name, key)}: " if self.text else ""
        return UnknownCluster(f"{where}{what} {name}{': ' if key else ''}{key} {problem}")

    def _line(self, what: str, name: str, key: str) -> int:
        """The line of a key, or of its table."""
        lines = self.text.splitlines()
        head = re.compile(rf"\s*\[\s*{what}\s*\.\s*[\"']?{re.escape(name)}[\"']?\s*\]")
        at = next((i for i, line in enumerate(lines) if head.match(line)), 0)
        for i, line in enumerate(lines[at + 1 :], start=at + 1):
            if re.match(r"\s*\[", line):
                break
            if key and re.match(rf"\s*[\"']?{re.escape(key)}\b", line):
                return i + 1
        return at + 1


def _named(label: str, nodes: int, tables: _Tables) -> EmulatedCluster:
    found = re.fullmatch(r"(\d+)\s*[xX×]\s*(.+)", label)
    devices = tables.names("device")
    if not found:
        example = f"8x{label}" if label in devices else "8xA100"
        raise UnknownCluster(
            f"{label!r} doesn't say how many GPUs of which kind; write {example}; {_known(label, devices)}"
        )
    count, kind = int(found[1]), found[2]
    if count < 1:
        raise UnknownCluster(f"{label!r} has no GPUs; write 1x{kind} or more")
    if kind == HERE:
        return _checked_nodes(label, count, nodes, *_this_machine())
    raw, where = tables.find("device", kind)
    return _assemble(label, count, nodes, kind, raw, where, tables)


def _from_dict(given: Mapping[str, Any], nodes: int) -> EmulatedCluster:
    known = ("count", "device", "inside", "between", "nodes", "label")
    if wrong := [key for key in given if key not in known]:
        raise UnknownCluster(f"a cluster has {', '.join(known)}, and not {wrong[0]!r}")
    if missing := [key for key in ("count", "device") if key not in given]:
        raise UnknownCluster(f"a cluster needs its {missing[0]!r}")
    count, nodes, device = given["count"], given.get("nodes", nodes), given["device"]
    if not is_whole(count) or count < 1:
        raise UnknownCluster(f"count must be a whole number of GPUs above 0, got {count!r}")
    tables, own = _Tables.of_the_course(), _Tables({}, {})
    own.below = tables
    if isinstance(device, str):
        kind = device
        raw, where = tables.find("device", kind)
    else:
        kind, where = "of your own", own
        raw = own.complete("device", kind, device)
    raw = {**raw, **{side: given[side] for side in ("inside", "between") if side in given}}
    label = str(given.get("label", f"{count}x{kind if isinstance(device, str) else raw.get('name', 'own')}"))
    return _assemble(label, count, nodes, kind, raw, where, own)


def _assemble(
    label: str, count: int, nodes: int, kind: str, raw: Mapping[str, Any], where: _Tables, tables: _Tables
) -> EmulatedCluster:
    raw = dict(raw)
    links = []
    for side in ("inside", "between"):
        if side not in raw:
            raise where.error("device", kind, "", f"needs {side!r}, the link that its collectives take")
        name = raw.pop(side)
        if isinstance(name, str):
            links.append(_checked_link(name, *tables.find("link", name)))
        else:
            own = _Tables({}, {})
            own.below = tables
            links.append(_checked_link(side, own.complete("link", side, name), own))
    return _checked_nodes(label, count, nodes, _checked_device(kind, raw, where), *links)


def _checked_nodes(
    label: str, count: int, nodes: int, device: Device, inside: EmulatedLink, between: EmulatedLink
) -> EmulatedCluster:
    if not is_whole(nodes) or nodes < 1:
        raise UnknownCluster(f"nodes must be a whole number above 0, got {nodes!r}")
    if nodes == 1:
        nodes = math.ceil(count / device.per_node)
    if count % nodes:
        raise UnknownCluster(f"{count} GPUs can't be shared out evenly to {nodes} nodes")
    return EmulatedCluster(label, device, count, inside, between, nodes)


def _checked_device(name: str, raw: dict[str, Any], tables: _Tables) -> Device:
    def wrong(key: str, problem: str) -> UnknownCluster:
        return tables.error("device", name, key, problem)

    _check_keys(Device, "device", name, raw, tables)
    for key in ("memory_bytes", "memory_Bps", "copy_Bps", "memory_reached", "unaligned_reached"):
        _check_number(raw, key, wrong, above_zero=True)
    for key in ("launch_s", "host_s"):
        _check_number(raw, key, wrong, above_zero=False)
    for key in ("flops", "reached"):
        table = raw.get(key, {})
        if not isinstance(table, Mapping):
            raise wrong(key, "must be a table by dtype, as { float32 = 19.5e12 }")
        for dtype in table:
            if dtype not in DTYPES and not (key == "reached" and re.sub("_(conv|attention)$", "", dtype) in DTYPES):
                raise wrong(key, f"has the dtype {dtype!r}; known are {', '.join(DTYPES)}")
            _check_number(table, dtype, lambda which, problem, key=key: wrong(key, f"of {which} {problem}"), True)
    if "float32" not in raw["flops"]:
        raise wrong("flops", "needs float32, which everything else falls back on")
    capability = raw["capability"]
    if not (isinstance(capability, (list, tuple)) and len(capability) == 2 and all(type(c) is int for c in capability)):
        raise wrong("capability", f"must be two whole numbers such as [8, 0], got {capability!r}")
    for key in ("per_node", "sm_count", "l2_bytes"):
        if type(raw.get(key, 1)) is not int or raw.get(key, 1) < 1:
            raise wrong(key, f"must be a whole number above 0, got {raw[key]!r}")
    return Device(**{**raw, "capability": tuple(capability), "memory_bytes": int(raw["memory_bytes"])})


def _checked_link(name: str, raw: dict[str, Any], tables: _Tables) -> EmulatedLink:
    def wrong(key: str, problem: str) -> UnknownCluster:
        return tables.error("link", name, key, problem)

    _check_keys(EmulatedLink, "link", name, raw, tables)
    _check_number(raw, "busbw_Bps", wrong, above_zero=True)
    for key in ("base_s", "hop_s"):
        _check_number(raw, key, wrong, above_zero=False)
    for key in ("ring_Bps", "ll_Bps"):
        _check_number(raw, key, wrong, above_zero=True)
    if raw.get("kind", "plain") not in LINKS:
        raise wrong("kind", f"must be one of {', '.join(LINKS)}, got {raw['kind']!r}")
    if type(raw.get("cards", 1)) is not int or raw.get("cards", 1) < 1:
        raise wrong("cards", f"must be a whole number above 0, got {raw['cards']!r}")
    return EmulatedLink(**raw)


def _check_keys(kind: Any, what: str, name: str, raw: Mapping[str, Any], tables: _Tables) -> None:
    known = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind)}
    for key in raw:
        if key not in known:
            raise tables.error(what, name, key, f"isn't known; {_known(key, list(known))}")
    for key, needed in known.items():
        if needed and key not in raw:
            raise tables.error(what, name, "", f"needs {key!r}")


def _check_number(raw: Mapping[str, Any], key: str, wrong: Any, above_zero: bool) -> None:
    value = raw.get(key, 1)
    number = type(value) in (int, float) and math.isfinite(value)
    if not number or value < 0 or (above_zero and value == 0):
        raise wrong(key, f"must be a number {'above 0' if above_zero else 'of seconds, 0 or more'}, got {value!r}")


def _checked_slow(slow: Mapping[int, float], found: EmulatedCluster) -> dict[int, float]:
    if not isinstance(slow, Mapping):
        raise UnknownCluster(f"slow must be a dict of ranks and times, as in {{3: 1.3}}; got {slow!r}")
    for rank, times in slow.items():
        if type(rank) is not int or not 0 <= rank < found.count:
            raise UnknownCluster(f"slow names rank {rank!r}, and {found.label} has ranks 0 to {found.count - 1}")
        if not is_number(times) or not 0 < times < math.inf:
            raise UnknownCluster(f"slow says how many times as long rank {rank} takes, such as 1.3; got {times!r}")
    return dict(slow)


def _checked_part(one_of: int, found: EmulatedCluster) -> int:
    if not is_whole(one_of) or not 0 <= one_of <= found.count:
        raise UnknownCluster(f"one_of must be a number of ranks up to {found.count}, got {one_of!r}")
    return one_of


def _known(name: str, names: list[str]) -> str:
    lower = {n.lower(): n for n in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return f"known are {', '.join(names)}" + (f". Did you mean {lower[near[0]]}?" if near else "")


def _this_machine() -> tuple[Device, EmulatedLink, EmulatedLink]:
    """This machine's ranks as devices, by its newest calibration. Raises UnknownCluster where there is none."""
    kept = sorted((course_home() / "runs").glob(".calibration-*.json"), key=lambda path: path.stat().st_mtime)
    if not kept:
        raise UnknownCluster(
            "this machine hasn't been measured yet; run `from course_utils import calibrate; calibrate()` once"
        )
    raw = json.loads(kept[-1].read_text(encoding="utf-8"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device = Device(
        name=f"{HERE} ({raw['device']})", capability=(8, 0), memory_bytes=memory, memory_Bps=raw["memory_Bps"],
        flops={kind: rate for kind, rate in raw["matmul_flops"].items() if kind in DTYPES}, source="calibrate()",
        copy_Bps=raw["copy_Bps"].get("pinned", raw["memory_Bps"]), per_node=1 << 20,
    )  # fmt: skip
    if not raw["all_reduce"]:
        return device, EmulatedLink(raw["memory_Bps"]), EmulatedLink(raw["memory_Bps"])
    ranks = max(raw["all_reduce"], key=int)
    points = sorted(map(tuple, raw["all_reduce"][ranks]))
    n, (_, small_s), (nbytes, large_s) = int(ranks), points[0], points[-1]
    bandwidth = 2 * (n - 1) / n * nbytes / large_s
    link = EmulatedLink(busbw_Bps=bandwidth, hop_s=small_s / (2 * (n - 1)), source=f"calibrate(), {n} ranks")
    return device, link, link
