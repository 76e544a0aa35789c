"""Lesson 11: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

JOB: Hints = {
    "no shell": (
        "What are the first two characters of your text? A triple-quoted string begins with a new line.",
        'Begin with """#!/bin/bash and go on below.',
    ),
    "too late": ("Slurm reads #SBATCH lines only up to the first command.", "Move all #SBATCH lines to the top, below #!/bin/bash."),
    "nodes": ("How many machines does the head ask for?", "#SBATCH --nodes={nodes}"),
    "tasks": ("How many torchruns shall srun start on a node? Each of them starts the ranks of all its GPUs.", "#SBATCH --ntasks-per-node=1"),
    "gpus": ("GPUs are given only to those who ask.", "#SBATCH --gpus-per-node={gpus_per_node}"),
    "cores": ("All ranks of a node live in its one task. How many cores do they need together?", "--cpus-per-task={gpus_per_node * cpus_per_gpu}"),
    "time": ("A plain number is minutes, 90:00 is minutes and seconds, and 1:30:00 is hours.", "#SBATCH --time={minutes}"),
    "signal": (
        "Two things: how long before the end, and who gets it. With B: only the shell of the batch file gets it, and a shell that waits for srun does nothing.",
        "#SBATCH --signal=USR1@{warn_s}",
    ),
    "no torchrun": ("Who sets RANK and LOCAL_RANK for the program?", "Start torchrun by srun, and the program by torchrun."),
    "no srun": ("The batch file runs on the first node alone. What carries a command to all nodes?", "Put srun before torchrun."),
    "not each node": ("On which nodes was torchrun started, and how often?", "One srun, with one task a node: srun torchrun ..."),
    "nnodes": ("torchrun waits until so many agents have come.", "--nnodes=$SLURM_NNODES"),
    "ranks": ("Each GPU gets a rank.", "--nproc-per-node={gpus_per_node}"),
    "standalone": ("--standalone means: on this machine alone.", "Give --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT instead."),
    "own meeting": (
        "Where is the name of the host computed? In quotes that srun hands on, it is computed again on each node.",
        "first=$(hostname) in the batch file, before srun, and --rdzv-endpoint=$first:$port.",
    ),
    "host": (
        "The meeting point is a node of this job, and the batch file runs on the first of them.",
        "first=$(hostname), or first=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)",
    ),
    "port": ("Job numbers grow beyond 65535.", "port=$((10000 + SLURM_JOB_ID % 20000))"),
    "one port": ("Two jobs may share a node.", "port=$((10000 + SLURM_JOB_ID % 20000)); in an f-string, braces are doubled and $ is not."),
    "backend": (
        "How does an agent know which node it is?",
        "--rdzv-backend=c10d lets them agree. Or give each --node-rank=$SLURM_NODEID, inside bash -c '...'.",
    ),
    "rdzv id": ("Agents that meet under one name belong together.", "--rdzv-id=$SLURM_JOB_ID"),
    "command": ("An argument with a space must reach the program in one piece.", "shlex.join(command) writes a list as a shell reads it."),
    "cores of srun": (
        "Since Slurm 22.05, srun does not take --cpus-per-task from sbatch by itself.",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK before srun, or srun --cpus-per-task=...",
    ),
    "not ended": ("One torchrun has failed. What does srun do about the others?", "srun --kill-on-bad-exit=1"),
    "exit code": (
        "The exit code of a script is that of its last command. What comes after srun?",
        "Let srun be the last command, or keep code=$? and end with exit $code.",
    ),
}

HANG: Hints = {
    "not no record": (
        "A rank that left nothing did not come far enough to write.",
        'Before all else: the ranks whose record is None; if there are any, ("no record", these).',
    ),
    "not different": (
        "Lengths are not enough. Go through the lists in step, and look at one place after the other.",
        "At place i, collect what the ranks that have come so far entered. At the first place with two different things, the fewer are the odd ones.",
    ),
    "not behind": ("Nobody differs where both have come. Who has not come as far as the furthest?", "All ranks whose list is shorter than the longest."),
    "not together": ("All lists are equal.", '("together", [])'),
    "those who wait": (
        "The ranks that wait in a collective do what they should. The cause is on those that are not there.",
        "Name the ranks that lack the entry, or the fewer ones that entered something else.",
    ),
    "ranks behind": (
        "Not only the last one: all that have entered fewer collectives than the furthest rank.",
        "[r for r in sorted(entered) if len(entered[r]) < most]",
    ),
    "ranks different": (
        "Only ranks that have come to that place count, and the odd ones are those that differ from most of them there.",
        "Count with collections.Counter at the first place that differs. When two kinds are equally many, the kind of the lowest rank is the right one.",
    ),
    "ranks no record": ("All ranks without a record, in order.", "sorted(r for r in entered if entered[r] is None)"),
    "ranks together": ("Nobody stands out.", "An empty list."),
    "order": ("Dictionaries keep the order in which they were filled.", "sorted(...)"),
}

NODES: Hints = {
    "not measured": ("Which numbers of nodes are keys of step_s?", "Choose one of them. What lies between was not measured, and is not an answer."),
    "none": ("Done *at* the deadline is in time, and the whole budget may be spent.", "Compare with <=, and mind hours against seconds."),
    "too late": ("When is it done? The job first waits in the queue.", "queue_h(n) + steps * step_s[n] / 3600 <= deadline_h"),
    "too dear": ("What is charged are the hours of all nodes.", "n * steps * step_s[n] / 3600 <= budget_node_h"),
    "not the cheapest": (
        "Of those that are in time, which takes the fewest node hours? That need not be the one with the fewest nodes, nor the fastest.",
        "min(candidates, key=lambda n: (node_hours(n), done_h(n))). Time in the queue is not charged.",
    ),
    "not the soonest": (
        "Several cost the same.",
        "Of equal node hours take the one that is done first, with the queue. Round before you compare: 10.000000000000002 is 10.",
    ),
}

TABLE: Hints = {
    "mean": ("One of the steps was disturbed.", "statistics.median"),
    "other kind": (
        "In weak scaling each node keeps its part, so n nodes do n times the work of one in a step.",
        "weak: speed-up = (n / n0) * (t0 / t); strong: t0 / t",
    ),
    "reference": ("The smallest run may have 4 nodes. What would be ideal on 8, then?", "ideal = n / n0, where n0 is the smallest number of nodes"),
    "percent": ("A share from 0 to 1.", "Leave the 100 out."),
    "order": ("Rows go from few nodes to many.", "for n in sorted(step_s)"),
    "rows": ("One row for each number of nodes.", "(n, speedup, efficiency) for every key, the smallest included."),
    "speed-up": ("How much more is done in a second than in the smallest run?", "strong: t0 / t; weak: (n / n0) * (t0 / t)"),
    "efficiency": ("The speed-up over the ideal one.", "speedup / (n / n0)"),
    "largest": (
        "Up to which row are all efficiencies high enough? The smallest run is always worth it: it is the reference.",
        "Go through the rows in order, and stop at the first that is below.",
    ),
    "after a bad one": (
        "A run that is good again after a bad one was luck, or the bad one was disturbed: nobody grants you that.",
        "Go through the rows in order, and stop at the first that is below.",
    ),
}
