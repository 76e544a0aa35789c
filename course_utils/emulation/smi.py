"""`nvidia-smi` on an emulated cluster: the GPUs of this rank's node, and the memory that its ranks hold there.

A program of its own, which imports nothing of ours, and starts in a few milliseconds.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

NUMBER = "q"  # of bytes that a rank holds of a GPU, in its file


def file_of(folder: str | Path, rank: int) -> Path:
    """Where a rank says how much it holds of each GPU of its node."""
    return Path(folder, f"rank{rank}.gpus")


def used(folder: str | Path, ranks: range, count: int, all_alike: bool = False) -> list[int]:
    """Bytes that ranks hold of each of their node's `count` GPUs. `all_alike` says that one rank runs for all."""
    total = [0] * count
    for rank in ranks:
        try:
            held = struct.unpack(f"{count}{NUMBER}", file_of(folder, rank).read_bytes())
        except (OSError, struct.error):  # it hasn't begun, or it has ended
            continue
        total = [a + b for a, b in zip(total, held)]  # noqa: B905
    return [max(total)] * count if all_alike else total


def ranks_here() -> range:
    """The ranks that run on this rank's node; of a launch whose rank spawned others, all that may be there."""
    if "COURSE_SPAWNED" in os.environ:
        return range(json.loads(os.environ["COURSE_CLUSTER"])["count"])
    if alone := os.environ.get("COURSE_RANK"):  # it stands for the others
        return range(int(alone), int(alone) + 1)
    first = int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"])
    return range(first, first + int(os.environ["LOCAL_WORLD_SIZE"]))


def _listed(cluster: dict[str, Any]) -> list[dict[str, str]]:
    """What's known of each GPU, by the names that --query-gpu takes. Memory in MiB."""
    device, count = cluster["device"], max(1, cluster["count"] // cluster["nodes"])
    taken = used(os.environ.get("COURSE_RUN_DIR", ""), ranks_here(), count, bool(cluster["one_of"]))
    total = device["memory_bytes"] >> 20
    return [
        {
            "index": str(i), "name": device["name"], "gpu_name": device["name"], "uuid": f"GPU-emulated-{i}",
            "gpu_uuid": f"GPU-emulated-{i}", "count": str(count),
            "compute_cap": ".".join(map(str, device["capability"])),
            "memory.total": f"{total} MiB", "memory.used": f"{nbytes >> 20} MiB",
            "memory.free": f"{total - (nbytes >> 20)} MiB",
        }
        for i, nbytes in enumerate(taken)
    ]  # fmt: skip


def _query(gpus: list[dict[str, str]], fields: list[str], form: list[str]) -> str:
    """What --query-gpu prints. What isn't modelled is [N/A], as where a real GPU doesn't know."""
    units = {"memory.total", "memory.used", "memory.free"}
    lines = [] if "noheader" in form else [[f"{f} [MiB]" if f in units else f for f in fields]]
    for gpu in gpus:
        values = [gpu.get(field, "[N/A]") for field in fields]
        lines.append([v.removesuffix(" MiB") for v in values] if "nounits" in form else values)
    return "\n".join(", ".join(line) for line in lines)


def _table(cluster: dict[str, Any], gpus: list[dict[str, str]]) -> str:
    rule = f"+-----+{'-' * 34}+{'-' * 25}+"
    rows = [
        f"| {gpu['index']:>3} | {gpu['name'][:32]:<32} | {gpu['memory.used']:>10} / {gpu['memory.total']:>10} |"
        for gpu in gpus
    ]
    said = f"Emulated GPUs of {cluster['label']}. Memory is what the ranks on this node hold, as modelled."
    return "\n".join([said, rule, f"| GPU | {'Name':<32} | {'Memory used':>10} / {'total':>9} |", rule, *rows, rule])


def main(args: list[str]) -> int:
    """Answer as nvidia-smi does to -L, -i, --query-gpu and --format, or with a table. Returns the exit status."""
    if "COURSE_CLUSTER" not in os.environ:
        print("nvidia-smi: this one speaks for an emulated cluster, and COURSE_CLUSTER names none")
        return 9
    cluster = json.loads(os.environ["COURSE_CLUSTER"])
    gpus, fields, form, listed, words = _listed(cluster), [], ["csv"], False, list(args)
    while words:
        name, _, value = words.pop(0).partition("=")
        if name in ("-i", "--id", "--query-gpu", "--format") and not value and words:
            value = words.pop(0)
        if name in ("-i", "--id"):
            gpus = [gpu for gpu in gpus if gpu["index"] in value.split(",")]
        elif name == "--query-gpu":
            fields = [field.strip() for field in value.split(",")]
        elif name == "--format":
            form = value.split(",")
        elif name in ("-L", "--list-gpus"):
            listed = True
        else:
            print(f"an emulated nvidia-smi doesn't know {name}; it has -L, -i, --query-gpu with --format, and a table")
            return 2
    if listed:
        print("\n".join(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']}), emulated" for gpu in gpus))
    else:
        print(_query(gpus, fields, form) if fields else _table(cluster, gpus))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
