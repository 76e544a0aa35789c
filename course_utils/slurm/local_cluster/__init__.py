"""A real Slurm on this one machine, to learn and to test with: `python -m course_utils.slurm.local_cluster up
--nodes 2`, and `down`.

It runs Debian's own programs from a folder that holds all of their state, without systemd and without cgroups. If you
have the rights, each node gets a network and a name of its own (namespaces, with a bridge between them), and you can
slow down its link; otherwise the nodes share this host, each on a port of its own. It's for one user on one machine:
don't run a real cluster this way.
"""

from __future__ import annotations

from .cluster import LocalSlurmError, SlurmCluster, default_folder, find, node_states
from .starting import up

__all__ = ["LocalSlurmError", "SlurmCluster", "default_folder", "find", "node_states", "up"]
