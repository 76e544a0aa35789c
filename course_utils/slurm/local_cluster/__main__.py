"""The command line of the local Slurm: up, down, status, rate."""

from __future__ import annotations

import argparse
import sys

from . import LocalSlurmError, SlurmCluster, default_folder, find, node_states, up


def main() -> int:
    """Do what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.slurm.local_cluster", description="A real Slurm on one machine, to learn with."
    )
    parser.add_argument("what", choices=["up", "down", "status", "rate"])
    parser.add_argument(
        "value", nargs="?", help="for `rate`: how much each node may send, as in 1gbit or 100mbit; none lifts the limit"
    )
    parser.add_argument("--nodes", type=int, default=2, help="2 to 8")
    parser.add_argument("--rate", help="how much each node may send, as in 1gbit")
    parser.add_argument("--folder", help=f"where to keep its state; default {default_folder()}")
    parser.add_argument("--one-host", action="store_true", help="give the nodes no networks and names of their own")
    asked = parser.parse_args()
    try:
        if asked.what == "up":
            cluster: SlurmCluster | None = up(asked.nodes, asked.rate, asked.folder, asked.one_host)
        else:
            cluster = find(asked.folder)
        if cluster is None:
            print("no local Slurm is running here")
            return 0 if asked.what == "down" else 1
        if asked.what == "down":
            cluster.down()
            print("the local Slurm has ended, and nothing of it is left")
            return 0
        if asked.what == "rate":
            cluster.shape(None if asked.value in (None, "none") else asked.value)
    except LocalSlurmError as error:
        print(error, file=sys.stderr)
        return 1
    if not cluster.running():
        print(f"the local Slurm in {cluster.folder} is broken; `down` ends it")
        return 1
    where = dict(zip(cluster.nodes, cluster.addresses, strict=True))
    print("\n".join(f"{name}  {where[name]}  {state}" for name, state in node_states(cluster).items()))
    print(f"each node sends at most {cluster.rate}" if cluster.rate else "no limit on the links")
    print("\n".join([*cluster.notes, "", "use it with:", f"export SLURM_CONF={cluster.conf}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
