"""Cages whose programs hang: some rank waits for a call that another never makes."""

from __future__ import annotations

from course_utils import Run

from .keeper import Mended, alike, cage, gap, need, reported


def _calls(program: Mended, ranks: int, *watch: str) -> tuple[Run, dict[str, int]]:
    """A watched run on some ranks, and how often rank 0 called each collective."""
    run = program.on(ranks, watch=list(watch))
    names, times = reported(run, "calls")[0], reported(run, "times")[0]
    return run, dict(zip(names, times, strict=True))


def _sgd(batch: int, epochs: int = 3) -> list[float]:
    """The weights that the training of `lonely_barrier` ends with, on one device with this many samples to a step."""
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 4, generator=generator)
    layer = torch.nn.Linear(4, 1)
    bound = 0.5  # of nn.Linear(4, 1): 1 / sqrt(4), weight first
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(epochs):
        for x in inputs.split(batch):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(layer(x), x.sum(dim=1, keepdim=True)).backward()
            optimizer.step()
    return layer.weight.flatten().tolist()


@cage(
    "lonely_barrier",
    "hangs",
    "It saves the model, and stops there",
    right="c",
    told={
        "a": "The log says `model saved`, and rank 0 is a line further on already. The disk has done its work.",
        "b": "Rank 1 is alive: the report shows it in the `loss.backward()` of its next batch.",
        "c": "That's it. A barrier ends when every rank has called it, and only rank 0 comes to this one. The others "
        "are in the next epoch, where their all-reduce waits for rank 0. Every rank has to come to a collective.",
        "d": "A whole epoch of all-reduces went through the same connections before. What's new after it?",
    },
    found="2415fdc61f1f",
)
def _lonely_barrier(program: Mended) -> list[str]:
    for ranks in (2, 3):
        run, calls = _calls(program, ranks, "slow_save")
        where = f"On {ranks} ranks"
        trained = alike(run, "trained", "the trained weights", 1e-5)
        need(gap(trained, _sgd(2 * ranks)) < 1e-4, f"{where}, the training ends with other weights than it should.")
        for rank, saved in enumerate(reported(run, "saved")):
            fresh = gap(saved, trained) < 1e-5
            need(fresh, f"{where} with a slow disk, rank {rank} read an old file: its weights aren't the last ones.")
        saves = reported(run, "saves")
        writers = sum(n > 0 for n in saves)
        need(writers == 1, f"{where}, {writers} of them write the file; one should.")
        need(max(saves) >= 3, f"{where}, the model is saved after {max(saves)} of 3 epochs.")
        need(calls.get("barrier", 0) <= 6, f"{where}, they meet at a barrier {calls.get('barrier')} times in 3 epochs.")
    return [
        "2 and 3 ranks come to their end",
        "one rank writes the file after each epoch",
        "all ranks read what it saved last, also from a slow disk",
    ]


@cage(
    "both_send_first",
    "hangs",
    "It hangs in the very first exchange",
    right="a",
    told={
        "a": "That's it. `send` returns once the other side receives, and all of them are still in `send`: nobody gets "
        "as far as `recv`. Start the sends with `isend` and wait for them afterwards, or hand all of them to "
        "`batch_isend_irecv`.",
        "b": "It's one number, 8 bytes. Try a million: it stops at the same place.",
        "c": "The report shows all ranks in the same line, inside the group. Nobody is late.",
        "d": "Read the report again: on 2 ranks, 0 waits for 1 and 1 waits for 0. Those are the right neighbours.",
    },
    found="c8eabacc3de6",
)
def _both_send_first(program: Mended) -> list[str]:
    rod = [0.0] * 24
    rod[0] = 100.0
    for _ in range(20):
        rod = [t + 0.2 * (rod[i - 1] - 2 * t + rod[(i + 1) % 24]) for i, t in enumerate(rod)]
    for ranks in (2, 3, 4):
        cells = [t for part in reported(program.on(ranks), "cells") for t in part]
        need(len(cells) == 24, f"On {ranks} ranks, the parts have {len(cells)} cells in all; the ring has 24.")
        wrong = [i for i in range(24) if not gap(cells[i], rod[i]) < 1e-6]
        first = f"cell {wrong[0]} ends at {cells[wrong[0]]:.3f}; on one rank it's {rod[wrong[0]]:.3f}" if wrong else ""
        need(not wrong, f"On {ranks} ranks it comes to its end, but {first}.")
    return ["2, 3 and 4 ranks come to their end", "every cell has the temperature that it has on one rank"]


def _stops(ranks: int, patience: int = 3) -> dict[str, int]:
    """After how many epochs `own_early_stop` should end, by who decides. The shards are of one size, so the training is
    that of one device."""
    import torch
    from torch.nn.functional import mse_loss

    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(48, 4, generator=generator)
    targets = inputs.sum(dim=1, keepdim=True) + 0.5 * torch.randn(48, 1, generator=generator)
    layer = torch.nn.Linear(4, 1)
    with torch.no_grad():
        layer.weight.uniform_(-0.5, 0.5, generator=generator)
        layer.bias.uniform_(-0.5, 0.5, generator=generator)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    curves: list[list[float]] = [[] for _ in range(ranks + 1)]  # of each rank's shard, and of all samples
    for _ in range(40):
        optimizer.zero_grad()
        mse_loss(layer(inputs[:24]), targets[:24]).backward()
        optimizer.step()
        with torch.no_grad():
            errors = (layer(inputs[24:]) - targets[24:]).square().flatten()
        for rank in range(ranks):
            curves[rank].append(errors[rank::ranks].mean().item())
        curves[ranks].append(errors.mean().item())
    ends = []
    for curve in curves:
        best, waited, end = float("inf"), 0, len(curve)
        for epoch, loss in enumerate(curve):
            best, waited = (loss, 0) if loss < best else (best, waited + 1)
            if waited == patience:
                end = epoch + 1
                break
        ends.append(end)
    return {"first": min(ends[:ranks]), "last": max(ends[:ranks]), "rank 0": ends[0], "mean": ends[ranks]}


@cage(
    "own_early_stop",
    "hangs",
    "One rank is done, and the job never ends",
    right="d",
    told={
        "a": "Rank 1 says that it stopped after epoch 14, so its loss did what it should. Who doesn't say so?",
        "b": "It hasn't given up: the report shows rank 1 still in it. For whom does it wait?",
        "c": "Each rank has 12 samples, and takes one step in an epoch, whatever their number.",
        "d": "That's it. Each rank looks at the loss of its own validation samples, so one stops before the others, "
        "whose next backward waits for it. Let all decide by one number: all-reduce the loss, or the wish to stop.",
    },
    found="7f7dcf5dd74e",
)
def _own_early_stop(program: Mended) -> list[str]:
    by = []
    for ranks in (2, 3):
        run, calls = _calls(program, ranks)
        where = f"On {ranks} ranks"
        epochs = alike(run, "epochs", "the epochs")
        alike(run, "weights", "the weights", 1e-6)
        stops = _stops(ranks)
        need(epochs < 40, f"{where}, nobody stops early any more: all {epochs} epochs are trained.")
        words = f"it stops after {epochs} epochs; by the loss over all validation samples it's {stops['mean']}"
        need(epochs in stops.values(), f"{where}, {words}.")
        by.append({who for who, end in stops.items() if end == epochs})
        sent = sum(calls.values())
        need(sent <= 6 * epochs + 20, f"{where}, {sent} collectives for {epochs} epochs are more than this needs.")
    need(by[0] & by[1], "On 2 and 3 ranks, it stops for different reasons.")
    return ["2 and 3 ranks come to their end", "all ranks stop after the same epoch, with the same weights"]


def _short(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _shortfall(seen: list[list[int]], samples: int) -> tuple[list[int], int]:
    """Which samples no rank has seen, and how often one was seen that had been seen before."""
    got = [number for part in seen for number in part]
    return sorted(set(range(samples)) - set(got)), len(got) - len(set(got))


@cage(
    "uneven_batches",
    "hangs",
    "It hangs with one batch to go",
    right="b",
    told={
        "a": "Rank 0 has read it and is past its forward: it stands in `loss.backward()`.",
        "b": "That's it. DDP's backward is an all-reduce, and rank 0 calls it once more than rank 1 does. Train inside "
        "`with model.join():`, or give all ranks the same number of batches.",
        "c": "Rank 1 is where it should be after its last batch, and rank 0 isn't there yet. Why?",
        "d": "A rank that computes slowly uses its processor. Here all of them wait: the report says for whom.",
    },
    found="1f9638d51018",
)
def _uneven_batches(program: Mended) -> list[str]:
    for ranks in (2, 3, 4):
        run, where = program.on(ranks), f"On {ranks} ranks"
        missed, again = _shortfall(reported(run, "seen"), 28)
        some = ", ".join(map(str, missed[:4]))
        need(not missed, f"{where}, {len(missed)} samples of 28 were seen by nobody: {some}.")
        need(again <= 4 * ranks, f"{where}, samples were seen again {again} times. Fill up the last batches, not more.")
        weights = alike(run, "weights", "the weights", 1e-6)
        need(gap(weights, [1.0] * 4) < 1.2, f"{where}, it has hardly learned: the weights are {_short(weights)}.")
    return ["2, 3 and 4 ranks come to their end", "every sample is seen", "all ranks end with the same weights"]


@cage(
    "skipped_batch",
    "hangs",
    "It skips a bad batch, and hangs much later",
    right="a",
    told={
        "a": "That's it. The rank that skips leaves out an all-reduce, and its next gradients meet those of the batch "
        "before on the others. At the end they have one all-reduce left that nobody answers. Skip on all ranks, or on "
        "none: all-reduce a flag first, or keep the bad sample out of the data.",
        "b": "Rank 1 skipped the batch before its backward. No NaN was sent, and one that's sent stops nobody.",
        "c": "The sampler gave each rank 24 samples, 12 batches. Rank 1 counted 12 steps. How many backwards are they?",
        "d": "The barrier does what it should: it waits for rank 0. What does rank 0 wait for?",
    },
    found="b58d3b6fbae0",
)
def _skipped_batch(program: Mended) -> list[str]:
    for ranks in (2, 3):
        run, where = program.on(ranks), f"On {ranks} ranks"
        weights = alike(run, "weights", "the weights", 1e-6) if _finite(run) else []
        need(weights, f"{where}, the weights are nan at the end.")
        missed, again = _shortfall(reported(run, "seen"), 48)
        words = f"{len(missed)} samples of 48 were trained on by nobody; one batch on each rank are {2 * ranks}"
        need(len(missed) <= 2 * ranks, f"{where}, {words}.")
        need(again < ranks, f"{where}, samples were trained on again {again} times.")
        need(gap(weights, [1.0] * 4) < 1.0, f"{where}, it has hardly learned: the weights are {_short(weights)}.")
    return ["2 and 3 ranks come to their end", "all ranks end with the same weights, and none is nan"]


def _finite(run: Run) -> bool:
    return all(value == value for weights in reported(run, "weights") for value in weights)


def _validation_loss(state: list[float]) -> float:
    """Of the network of `lonely_evaluation`, with these parameters and buffers, over all of its validation samples."""
    import torch

    inputs = torch.randn(72, 4, generator=torch.Generator().manual_seed(0))[48:]
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    parts = torch.tensor(state).split([value.numel() for value in net.state_dict().values()])
    for value, part in zip(net.state_dict().values(), parts, strict=True):
        value.copy_(part.reshape(value.shape))
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.eval()(inputs), inputs.sum(dim=1, keepdim=True)).item()


@cage(
    "lonely_evaluation",
    "hangs",
    "The last evaluation never ends",
    right="c",
    told={
        "a": "It took milliseconds three times, with the same samples. And a rank that computes isn't waiting.",
        "b": "Each epoch begins with `model.train()`, and three of them went well. Which line does rank 0 stand in?",
        "c": "That's it. DDP's forward begins with a broadcast of BatchNorm's buffers. Three times the others' next "
        "training step answered it; after the last epoch there's none. A rank alone calls `model.module`.",
        "d": "Take it out and see: rank 1 ends, and rank 0 dies in the same line, as its partner has gone.",
    },
    found="dddc02fe58d5",
)
def _lonely_evaluation(program: Mended) -> list[str]:
    for ranks in (2, 3):
        run, where = program.on(ranks), f"On {ranks} ranks"
        history, states = reported(run, "valid")[0], reported(run, "state")
        need(len(history) == 4, f"{where}, rank 0 reports {len(history)} validation losses for 4 epochs.")
        first = [state[:40] for state in states]  # of the first layer: 32 weights and 8 biases
        same = all(gap(first[0], other) < 1e-5 for other in first)
        need(same, f"{where}, the ranks end with other weights.")
        wanted = _validation_loss(states[0])
        words = f"the last validation loss is {history[-1]:.4f}; rank 0's model has {wanted:.4f} over all 24 samples"
        need(gap(history[-1], wanted) < 1e-4, f"{where}, {words}.")
        need(history[-1] < history[0], f"{where}, the validation loss doesn't fall: {_short(history)}.")
    return ["2 and 3 ranks come to their end", "each epoch has its validation loss, of rank 0's model in eval mode"]
