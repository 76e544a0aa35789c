"""Ranks on the nodes of a cluster: what we tell Slurm, what we ask it, and the engine that does both."""
