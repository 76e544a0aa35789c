"""Cages whose programs are slow. Their times are an emulated GPU's, so that they're the same on every machine."""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from course_utils import Run, figures, traces

from .keeper import Mended, alike, cage, gap, need, reported

A100: dict[str, Any] = {"cluster": "8xA100", "one_of": 8}  # one rank really runs; the other seven do the same


class Work(NamedTuple):
    """What one rank's GPU did, in milliseconds: its typical step, its computing in all, and how many steps."""

    step_ms: float
    compute_ms: float
    steps: int


def _work(run: Run, rank: int = 0) -> Work:
    """A rank's work on the virtual clock, by the steps of its optimizer. Raises StillIll if there are none."""
    steps = run.emulated.steps(rank)
    need(len(steps) > 2, "The program should still train, with the same optimizer and the same number of steps.")
    compute = sum(end - start for _, start, end, what, _ in run.emulated.spans(rank) if what == "compute")
    between = [after[1] - before[1] for before, after in zip(steps, steps[1:], strict=False)]
    return Work(1000 * median(between[1:]), 1000 * compute, len(steps))


def _timeline(run: Run) -> Any:
    return figures.rank_timeline(traces.load(run), kind="emulated")


def _whole_timeline(run: Run) -> Any:
    return figures.rank_timeline(traces.load(run, steps=None), kind="emulated")


def _same_training(program: Mended, wanted: dict[int, dict[str, float]]) -> None:
    """Raise StillIll unless it still ends with these numbers on CPU ranks: number of ranks -> what's reported."""
    for ranks, values in wanted.items():
        run = program.on(ranks)
        for key, value in values.items():
            found = alike(run, key, f"the {key}", 1e-5) if key == "weight_norm" else run.ranks[0].records[-1].get(key)
            need(
                gap(found, value) < 2e-4,
                f"On {ranks} CPU ranks, it ends with {key} {found}, and as caught with {value}. It should learn the "
                "same, only faster.",
            )


@cage(
    "one_by_one",
    "slow",
    "A step takes twice as long on eight GPUs as on one",
    right="c",
    told={
        "a": "The 240 MB of gradients would take less than 2 ms in one piece, at what these links can do. Look at how "
        "long the smallest pieces take.",
        "b": "All eight have the same model, and a batch of the same size. Look at what lies between backward and the "
        "optimizer's step.",
        "c": "That's it. Each call has a fixed cost, which a small tensor pays too, and the GPU computes nothing "
        "meanwhile. DDP fills buckets of many gradients, and sends each while backward goes on.",
        "d": "The clock is read after `synchronize()`, when all is done. The timeline shows the same time for a step.",
    },
    found="1db2af7def91",
    ranks=1,
    options=A100,
    shows=_timeline,
)
def _one_by_one(program: Mended) -> list[str]:
    alone_ms = 13.04  # what a step computes where nothing is sent
    work = _work(program.on(1, **A100))
    need(
        work.steps == 10 and work.compute_ms > 9.5 * alone_ms,
        f"On the A100, {work.steps} steps compute for {work.compute_ms:.0f} ms. Ten steps with the same batch and "
        f"precision need {10 * alone_ms:.0f} ms: part of the work is missing.",
    )
    need(
        work.step_ms < 17.5,
        f"A step takes {work.step_ms:.1f} ms on eight A100. It computes for {alone_ms:.0f} ms, and what it sends "
        "needs at most 4 ms more, or less, if it's sent in other pieces.",
    )
    _same_training(
        program, {2: {"weight_norm": 5.689836, "loss": 0.024957}, 3: {"weight_norm": 5.689001, "loss": 0.028633}}
    )
    return [
        f"a step takes {work.step_ms:.1f} ms on eight A100 (28.1 as caught)",
        "2 and 3 CPU ranks end with the same weights as before",
    ]


@cage(
    "sends_each_time",
    "slow",
    "Gradients should travel once for eight micro-batches, and a step is no faster",
    right="b",
    told={
        "a": "Everything can be sent in 5 ms, and hidden behind a backward pass. Count in the timeline how often it's "
        "sent between two steps of the optimizer.",
        "b": "That's it. DDP sums gradients in each backward pass, unless `no_sync()` holds around the forward and the "
        "backward pass, or `require_backward_grad_sync` is false. Only the last one of a step has to send.",
        "c": "Then the timeline would have gaps. The GPU has work nearly all the time, and some of it only prepares "
        "what is sent.",
        "d": "The optimizer steps once for eight micro-batches. In the timeline that's a sliver at the end.",
    },
    found="5a9f66eb1c00",
    ranks=1,
    options=A100,
    shows=_timeline,
)
def _sends_each_time(program: Mended) -> list[str]:
    compute_ms = 176.0  # of five steps in which nothing is sent
    work = _work(program.on(1, **A100))
    need(
        work.steps == 5 and work.compute_ms > 0.95 * compute_ms,
        f"On the A100, {work.steps} steps compute for {work.compute_ms:.0f} ms. Five steps of eight micro-batches of "
        f"64 need {compute_ms:.0f} ms: part of the work is missing.",
    )
    need(
        work.step_ms < 44,
        f"A step takes {work.step_ms:.1f} ms on eight A100. It can take less than 44 ms, if each gradient is sent "
        "once for each step.",
    )
    _same_training(
        program, {2: {"weight_norm": 2.477396, "loss": 0.098634}, 3: {"weight_norm": 2.491243, "loss": 0.099406}}
    )
    return [
        f"a step takes {work.step_ms:.1f} ms on eight A100 (58.9 as caught)",
        "2 and 3 CPU ranks end with the same weights as before",
    ]


@cage(
    "at_100_percent",
    "slow",
    "All GPUs are at 100%, and most of the time nothing is trained",
    right="d",
    told={
        "a": "The sums of gradients take 6 ms of 134 in all. Look at what ranks 1 to 3 do when rank 0 reports.",
        "b": "`.item()` is called three times in twelve steps, on rank 0, and its GPU has no gap there. Look at the "
        "other three.",
        "c": "All four batches are equally large, and so are all steps. Look at what rank 0 computes between them.",
        "d": "That's it. Ranks 1 to 3 have called the next all-reduce, and NCCL waits there in a kernel that runs all "
        "the while, so `nvidia-smi` says 100%. Share the evaluation, and sum up the counts.",
    },
    found="ee1e88578911",
    ranks=4,
    options={"cluster": "8xA100"},
    shows=_whole_timeline,
)
def _at_100_percent(program: Mended) -> list[str]:
    all_ms, caught_ms = 218.0, 134.0  # that four GPUs compute together, and until the last has ended
    run = program.on(4, cluster="8xA100")
    compute_ms = sum(_work(run, rank).compute_ms for rank in range(4))
    need(
        compute_ms > 0.95 * all_ms,
        f"The four A100 compute for {compute_ms:.0f} ms together. Twelve steps and three evaluations of all 16,384 "
        f"need {all_ms:.0f} ms: part of the work is missing.",
    )
    seconds = run.emulated.seconds
    need(
        seconds < 0.075,
        f"It takes {1000 * seconds:.0f} ms on four A100 ({caught_ms:.0f} as caught). The same work, shared well, takes "
        "less than 75 ms.",
    )
    for ranks, wanted in {2: [0.12, 0.24, 0.22], 3: [0.1, 0.2, 0.3]}.items():
        records = [record for record in program.on(ranks).ranks[0].records if "accuracy" in record]
        steps = [record.get("step") for record in records]
        need(steps == [4, 8, 12], f"On {ranks} CPU ranks, rank 0 evaluates after the steps {steps}, not [4, 8, 12].")
        found = [record["accuracy"] for record in records]
        need(
            gap(found, wanted) < 1e-5,
            f"On {ranks} CPU ranks, the accuracy is {', '.join(f'{value:.4f}' for value in found)}. Counted over all "
            f"50 held-out samples, each once, it's {', '.join(f'{value:.4f}' for value in wanted)}.",
        )
    _same_training(program, {2: {"weight_norm": 6.068312}, 3: {"weight_norm": 6.100770}})
    return [
        f"it takes {1000 * seconds:.0f} ms on four A100 ({caught_ms:.0f} as caught)",
        "2 and 3 CPU ranks find the same accuracy as before, and the same weights",
    ]


@cage(
    "everybody_decodes",
    "slow",
    "An epoch takes as long on two ranks as on one",
    right="a",
    told={
        "a": "That's it. The loader fetches all of each batch, and only then a rank takes its part. Whoever splits "
        "the data has to split the indices, before anything is read: that's what `DistributedSampler` does.",
        "b": "Each rank computes on half of the photos, as it should. Leave the forward and backward pass out, and "
        "time it again.",
        "c": "The gradients are 37 kB, four times in an epoch. That's a few milliseconds.",
        "d": "More workers would help both, one rank and two, and it would still be equally long on both. Count how "
        "often a photo is read.",
    },
    found="6b000b85a579",
)
def _everybody_decodes(program: Mended) -> list[str]:
    for ranks in (2, 3, 4):
        run = program.on(ranks)
        where = f"On {ranks} ranks"
        reads = [[record["read"] for record in rank.records if "read" in record] for rank in run.ranks]
        total = sum(map(len, reads))
        need(total, f"{where}, no photo is reported as read. Leave that line in the dataset: it's what we look at.")
        need(
            total <= 96,
            f"{where}, photos are read {total} times in two epochs of 48. Nobody should read what another trains on.",
        )
        most = max(range(ranks), key=lambda rank: len(reads[rank]))
        need(
            len(reads[most]) <= 96 / ranks * 1.25,
            f"{where}, rank {most} reads {len(reads[most])} of the {total} photos, so it takes as long as before.",
        )
        epochs = [[record for record in rank.records if "seen" in record] for rank in run.ranks]
        need(all(len(mine) == 2 for mine in epochs), f"{where}, not every rank reports two epochs any more.")
        for epoch in range(2):
            seen = sorted(photo for mine in epochs for photo in mine[epoch]["seen"])
            missed = sorted(set(range(48)) - set(seen))
            nobody = ", ".join(map(str, missed[:5])) + (", ..." if len(missed) > 5 else "")
            need(not missed, f"{where}, {len(missed)} of 48 photos were seen by nobody in an epoch: {nobody}.")
            need(seen == list(range(48)), f"{where}, {len(seen)} photos were trained on in an epoch of 48.")
            steps = {len(mine[epoch]["losses"]) for mine in epochs}
            need(
                steps == {4},
                f"{where}, an epoch has {' or '.join(map(str, sorted(steps)))} steps where it had 4: a step should be "
                "over 12 photos of all ranks together, as before.",
            )
        orders = [[mine[epoch]["seen"] for mine in epochs] for epoch in range(2)]
        need(orders[0] != orders[1], f"{where}, both epochs come in the same order. Before, each was shuffled anew.")
    return [
        "2, 3 and 4 ranks read each photo once in an epoch, each rank its share",
        "each photo is trained on once, in four steps of 12, and each epoch in another order",
    ]


@cage(
    "looks_each_step",
    "slow",
    "Since it logs gradient norms, a step takes 1.5 times as long",
    right="c",
    told={
        "a": "The norms take 1.6 ms of a step, and it takes 4.8 ms longer. Look at the gaps of the GPU.",
        "b": "The virtual clock counts no Python between operators, so it's not that. Look at the gaps of the GPU.",
        "c": "That's it. `.item()` returns when the GPU has done all before it, and only then the host can call the "
        "next operator. 401 times in a step the GPU waits for the host. Keep the numbers on the GPU, and fetch them "
        "together.",
        "d": "Gradients are sent as before: the all-reduces take 1.2 ms of a step, with the log and without it.",
    },
    found="9ae94b827c28",
    ranks=1,
    options=A100,
    shows=_timeline,
)
def _looks_each_step(program: Mended) -> list[str]:
    compute_ms = 82.9  # of ten steps without a log
    work = _work(program.on(1, **A100))
    need(
        work.steps == 10 and work.compute_ms > 0.97 * compute_ms,
        f"On the A100, {work.steps} steps compute for {work.compute_ms:.0f} ms. Ten steps need {compute_ms:.0f} ms: "
        "part of the work is missing.",
    )
    logs = {
        2: {
            "losses": [0.26348, 0.12075, 0.07681, 0.05486, 0.04352, 0.03690, 0.03248, 0.02929, 0.02686, 0.02496],
            "largest": [1.20231, 0.38702, 0.27246, 0.20165, 0.15975, 0.13322, 0.11442, 0.10005, 0.08861, 0.07926],
        },
        3: {
            "losses": [0.26348, 0.13062, 0.08427, 0.06060, 0.04825, 0.04109, 0.03642, 0.03309, 0.03059, 0.02863],
            "largest": [0.88558, 0.41621, 0.29868, 0.22325, 0.17599, 0.14490, 0.12279, 0.10612, 0.09306, 0.08257],
        },
    }
    for ranks, wanted in logs.items():
        run = program.on(ranks)
        for key, values in wanted.items():
            found = reported(run, key)[0]
            right = [value for value in values if any(gap(value, other) < 1e-4 for other in found)]
            need(
                2 <= len(found) == len(right),
                f"On {ranks} CPU ranks, `{key}` has {len(found)} numbers, of which {len(right)} are those of a step. "
                "Log at least two steps of the ten, with the same meaning as before.",
            )
    need(
        work.step_ms < 13.2,
        f"A step takes {work.step_ms:.1f} ms on eight A100. Without any log it's 9.8 ms, and the same numbers can be "
        "had in less than 13.2 ms.",
    )
    _same_training(program, {2: {"weight_norm": 5.689836}, 3: {"weight_norm": 5.689001}})
    return [
        f"a step takes {work.step_ms:.1f} ms on eight A100 (14.6 as caught)",
        "2 and 3 CPU ranks log the same numbers, and end with the same weights as before",
    ]
