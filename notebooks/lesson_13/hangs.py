"""Cages whose programs hang: some rank waits for a call that another never makes."""

from __future__ import annotations

from .keeper import Mended, alike, cage, gap, need, reported


def _calls(program: Mended, ranks: int, *watch: str) -> tuple:
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
        "c": "That's it. A barrier ends when every rank has called it, and only rank 0 comes to this one. The others are "
        "in the next epoch, where their all-reduce waits for rank 0. Every rank has to come to a collective.",
        "d": "A whole epoch of all-reduces went through the same connections before. What's new after it?",
    },
    found="2415fdc61f1f",
)
def lonely_barrier(program: Mended) -> list[str]:
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
def both_send_first(program: Mended) -> list[str]:
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
    "One rank is done, the other trains for ever",
    right="d",
    told={
        "a": "Then it would hang on one rank, too. Look at the line that's printed, and who prints it.",
        "b": "A barrier waits for as long as it takes; the others only have to come. Do they?",
        "c": "All ranks have the same number of samples, and one step in each epoch. Count the epochs instead.",
        "d": "That's it. Each rank looks at the loss of its own validation samples, so one stops before the others, whose "
        "next backward waits for it. Let all decide by the same number: all-reduce the loss, or the wish to stop.",
    },
    found="",
)
def own_early_stop(program: Mended) -> list[str]:
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
