"""Two nodes of a real Slurm on this machine, or of a cluster: a step over their link, predicted from one short job,
and a node that dies. Where there's no Slurm, what somebody recorded."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Provenance, Run, Verdict, claim, figures, launch, predict, recorded
from course_utils.for_lessons import Figure, as_number, bet, figure_first, guard, local_cluster, say

LINK = Path(__file__).resolve().parents[1] / "programs" / "11_link.py"
RATE = "200mbit"  # of the link between two nodes here: slow enough to see
SAMPLES, USUAL = 32, 256  # of each rank: few, so that the link decides, and a usual batch
GOING_ON = ("waiting", "running")
STEPS, EVERY = 40, 5  # of survivor.py, in the notebook: its steps, and after how many it saves

Guess = float | int | str | EllipsisType | None


class Nodes:
    """Two nodes to run jobs on. `use` is "local" for a Slurm on this machine, "cluster" for the one that it belongs to,
    or None to see only what was recorded."""

    def __init__(self, use: str | None = "local"):
        self.use = use
        self.cluster: local_cluster.SlurmCluster | None = None
        if use == "local":
            self._start()

    def _start(self) -> None:
        folder = Path(tempfile.gettempdir(), f"course-slurm-{os.getpid()}")  # this notebook's; others are left alone
        try:
            self.cluster = local_cluster.up(nodes=2, rate=RATE, folder=folder)
        except local_cluster.LocalSlurmError as error:
            say(f"No Slurm here ({error}). What follows was recorded elsewhere.")
            return
        guard.watch(self.cluster)  # ends it with this notebook, whatever happens
        os.environ["COURSE_SLURM"] = os.devnull  # your slurm.toml is for another cluster
        names, addresses = (", ".join(each) for each in (self.cluster.nodes, self.cluster.addresses))
        say(f"Nodes {names} with addresses {addresses}; rate {self.cluster.rate or 'as it is'}.")
        for note in self.cluster.notes:
            say(note)

    @property
    def joined(self) -> bool:
        """Whether there's a link between two nodes whose rate decides."""
        return self.use == "cluster" or bool(self.cluster and self.cluster.rate)

    def run(self, name: str, *args: object) -> Run:
        """Run `11_link.py` on both nodes; without a link between them take the recorded run of this name."""
        if self.joined:
            return launch(LINK, engine="slurm", nodes=2, timeout=120, args=args, quiet=True)
        run = recorded.runs(f"11_{name}")[0]
        say(f"No link that could be slow. This was recorded on {run.provenance.machine}.")
        run.provenance = Provenance("recorded", "two nodes")  # short, for the figures
        return run

    def claim(self, sentence: str, holds: bool | Verdict) -> None:
        """A claim that needs two nodes and a link; a busy machine proves nothing, in either direction."""
        if isinstance(holds, Verdict) and holds.status == "contradicted":
            holds = Verdict("not shown", holds.detail)
        claim(sentence, holds if self.joined else None, why="" if self.joined else "needs two nodes and a link")

    def down(self) -> None:
        """End the Slurm that this notebook has started."""
        if self.cluster is None:
            claim("nothing of the local Slurm is left", None, why="none was started")
            return
        folder = self.cluster.folder
        self.cluster.down()
        self.cluster = None
        os.environ.pop("COURSE_SLURM", None)
        claim("nothing of the local Slurm is left", local_cluster.find(folder) is None)


# --- a step over the link ---------------------------------------------------------------------------------------------


def sums(link: Run) -> predict.SizeSweep:
    """The measured time of a sum, by its size."""
    sizes = sorted({record["nbytes"] for record in link.records if "sum_s" in record})
    return predict.SizeSweep([(size, link.samples("sum_s", nbytes=size).median) for size in sizes])


def rate_Bps(link: Run) -> float:
    """What the link carries in a second, by its largest sum."""
    nbytes, seconds = sums(link).points[-1]
    return predict.bus_bandwidth(nbytes, seconds, link.world_size)


def predicted(link: Run, samples: int = SAMPLES) -> predict.DDPStep:
    """A DDP step from the first job alone: each layer computes in proportion to its parameters, backward twice as long
    as forward, and sums take what was measured."""
    compute_s, layer_bytes = link.samples("compute_s", batch_size=samples).median, link.value("layer_bytes")
    nbytes = sum(layer_bytes)
    layers = [predict.Layer(compute_s / 3 * b / nbytes, compute_s * 2 / 3 * b / nbytes, b) for b in layer_bytes]
    return predict.ddp_step(layers, sums(link))


@figure_first
def show_link(nodes: Nodes, link: Run) -> Figure:
    """The time of a sum over the link, by its size."""
    names = sorted(set(link.values("on_node")))
    layer_bytes = sum(link.value("layer_bytes"))
    compute_s = link.samples("compute_s", batch_size=SAMPLES).median
    say(
        f"Ranks ran on {' and '.join(names)}, and the link carries {rate_Bps(link) * 8 / 1e6:.0f} Mbit/s. A step of"
        f" {SAMPLES} samples computes for {compute_s * 1e3:.0f} ms, and its gradients are {layer_bytes / 1e6:.1f} MB."
    )
    nodes.claim("the job's ranks ran on two nodes", len(names) == 2)
    points = [(size, link.samples("sum_s", nbytes=round(size))) for size, _ in sums(link).points]
    line = sums(link).alpha_beta().send_s
    return figures.sizes({"over the link": points}, predicted={"latency and bandwidth alone": line})


@figure_first
def show_step(nodes: Nodes, link: Run, slow: Run, guess: Guess = ...) -> Figure:
    """The step of the second job, next to what the first one predicts."""
    step, took = predicted(link), slow.samples("step_s")
    alone = slow.samples("compute_s").map(lambda s: s, "step_s")
    answer = bet(
        guess,
        took.median * 1e3,
        close="you could plan a cluster.",
        over="Part of the sum does hide behind backward.",
        under="Backward can hide no more than its own length.",
        unit=" ms",
    )
    say(f"{took.median * 1e3:.0f} ms, and {step.total_s * 1e3:.0f} were predicted. {answer}")
    say(f"Overlap hides {step.hidden:.0%} of the sum: it can hide no more than backward, and the link takes longer.")
    nodes.claim("a DDP step over a slow link is predicted within 10% from one short job", took.near(step.total_s, 0.1))
    nodes.claim("over the slow link a step takes at least twice its computing", alone.faster_than(took, factor=2.0))
    number = as_number(guess, " ms")
    return figures.bars(
        {"without the sum": alone, "DDP over the link": took},
        predicted={"DDP over the link": step.total_s},
        guess={"DDP over the link": ... if number is None else number / 1e3},
        title=f"Over the link a step takes {took.median / alone.median:.1f} times its computing",
    )


def show_here(nodes: Nodes, here: Run, slow: Run) -> None:
    """What the same program keeps of its speed inside this machine, and over the link."""
    kept = {}
    for name, run in (("inside this machine", here), ("over the link", slow)):
        kept[name] = run.samples("compute_s").median / run.samples("step_s").median
    said = ", and ".join(f"{share:.0%} {name}" for name, share in kept.items())
    say(f"Of its speed without a sum, a rank keeps {said}.")
    inside, between = (run.samples("step_s").map(lambda s: s, "step_s") for run in (here, slow))
    nodes.claim("the same step is faster inside a machine than over the slow link", inside.faster_than(between))


# --- a node that dies -------------------------------------------------------------------------------------------------


def steps_of(run: Run) -> list[dict[str, Any]]:
    """What rank 0 reported of each step."""
    return [record for record in run.ranks[0].records if "step" in record]


def take_node_away(nodes: Nodes, script: str | Path) -> tuple[Run, float] | None:
    """Start a job on both nodes, call one of them dead in the middle, and wait until the job has ended. Returns its run
    and when the node died, or None without a local Slurm, or on a machine that's too busy."""
    if nodes.cluster is None or not nodes.cluster.running():
        say("There's no local Slurm here, so no node dies.")
        return None
    run = launch(script, 2, engine="slurm", nodes=2, timeout=60, detach=True, quiet=True)
    until = time.monotonic() + 60
    while len(steps_of(run.refresh())) < 12 and run.outcome in GOING_ON and time.monotonic() < until:
        time.sleep(0.2)
    died_s = time.time()
    words = ["scontrol", "update", "nodename=n2", "state=down", "reason=no_power"]
    subprocess.run(words, check=True, timeout=20)
    run.refresh(wait_s=120)
    if run.outcome in GOING_ON:
        subprocess.run(["scancel", (run.job or {})["id"]], check=False, timeout=20)
        say("This machine is so busy that the job didn't come back in time. Run this cell again later.")
        return None
    return run, died_s


SURVIVED = (
    "the job was queued again by Slurm, and came to its end",
    f"it went on at the last checkpoint, and did at most {EVERY} steps twice",
    "it ended with the weights of a run in which nothing had died",
)


def show_survived(found: tuple[Run, float] | None, guess: Guess = ...) -> Figure | None:
    """The steps of a job that lost a node, over time; None where none was lost."""
    if found is None:
        for sentence in SURVIVED:
            claim(sentence, None, why="needs a local Slurm, and some time")
        return None
    return _survived(*found, guess)


@figure_first
def _survived(run: Run, died_s: float, guess: Guess) -> Figure:
    done = steps_of(run)
    attempts = {a: [r for r in done if r["attempt"] == a] for a in sorted({r["attempt"] for r in done})}
    first, again = attempts[0], attempts[max(attempts)]
    twice, lost_s = first[-1]["step"] + 1 - again[0]["step"], again[0]["at_s"] - died_s
    answer = bet(
        guess,
        lost_s,
        close="you've waited for such a job before.",
        over="Slurm is quick if it's told.",
        under="Two Pythons have to import torch again.",
        unit=" s",
        within=0.4,
    )
    say(f"{lost_s:.0f} s from the node's death to the first new step, and {twice} steps were done twice. {answer}")
    claim(SURVIVED[0], run.outcome == "finished" and len(attempts) == 2)
    claim(SURVIVED[1], again[0]["step"] % EVERY == 0 and 0 <= twice <= EVERY)
    claim(SURVIVED[2], done[-1]["weights"] == sum(range(1, STEPS + 1)))
    curves = {
        f"attempt {a + 1}": ([r["at_s"] - first[0]["at_s"] for r in rows], [r["step"] for r in rows])
        for a, rows in attempts.items()
    }
    title = f"A node died after step {first[-1]['step']}: {lost_s:.0f} s lost"
    return figures.lines(curves, xlabel="seconds", ylabel="step", title=title)
