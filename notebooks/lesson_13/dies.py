"""Cages whose programs die: an error that doesn't say what's wrong, or names the wrong thing."""

from __future__ import annotations

import torch
from torch import nn

from .keeper import Mended, StillIll, alike, cage, gap, need, reported

# In front of a mended program: saving takes a second longer, waiting a fixed time no longer helps, and in the folder
# lies a file of the same name from an earlier run.
OLD_FILE = """
import os, time, torch
def _later(save, wait):
    def saved(state, file, *args, **kwargs):
        wait(1)
        save(state, file, *args, **kwargs)
    return saved
def _shorter(wait):
    return lambda seconds: wait(min(seconds, 0.05))
if os.environ["RANK"] == "0":
    _old = {"weight": torch.zeros(1, 8), "bias": torch.zeros(1)}
    torch.save(_old, os.path.join(os.environ["COURSE_RUN_DIR"], "model.pt"))
torch.save, time.sleep = _later(torch.save, time.sleep), _shorter(time.sleep)
"""
SLOW_DISK = OLD_FILE.replace('if os.environ["RANK"] == "0":', "if False:")


@cage(
    "not_there_yet",
    "dies",
    "No such file, and there it is",
    right="d",
    told={
        "a": "Both ranks have the same path: rank 0 prints it, and the error names it. Look at when each of them "
        "comes to it.",
        "b": "Then `torch.save` had failed on rank 0, with an error of its own. Look at what rank 0 was doing when "
        "rank 1 failed.",
        "c": "`state_dict` was taken from `model.module`, so it fits a plain `nn.Linear`, and rank 1 never gets as far "
        "as comparing names.",
        "d": "That's it. Rank 0 still validates when rank 1 has come to `torch.load`. All ranks have to meet between "
        "saving and loading, for example in `dist.barrier()`.",
    },
    found="0295981f7a29",
)
def not_there_yet(program: Mended) -> list[str]:
    alone = program.on(1)
    for ranks in (2, 3):
        run = program.on(ranks, watch=["slow_save"])
        writers = sum(saves > 0 for saves in reported(run, "saves"))
        need(writers == 1, f"On {ranks} ranks, {writers} of them write the file; one should.")
        for key, what in (("weights", "the tested weights"), ("test_error", "the test error")):
            alike(run, key, what)
            differs = gap(reported(run, key)[0], reported(alone, key)[0])
            need(differs < 1e-4, f"On {ranks} ranks, {what} differ from those of one rank.")
    for before, where in (
        (SLOW_DISK, "On a disk that takes longer"),
        (OLD_FILE, "With an older model.pt in the folder"),
    ):
        harder = Mended.of(before + program.source, "not_there_yet_harder")
        try:
            run = harder.on(2)
        except StillIll as ill:
            raise StillIll(f"{where}: {str(ill)[:1].lower()}{str(ill)[1:]}") from None
        finally:
            program.seconds += harder.seconds
        late = [r for r, w in enumerate(reported(run, "weights")) if gap(w, reported(alone, "weights")[0]) > 1e-4]
        need(not late, f"{where}, rank {late[0] if late else ''} tests the old weights.")
    return [
        "2 and 3 ranks test the weights that one rank saves",
        "they still do on a slower disk, and with an older file in the folder",
    ]


@cage(
    "unused_parameters",
    "dies",
    "Step 0 works, step 1 dies before it begins",
    right="b",
    told={
        "a": "Each step draws the same 12 images on every rank and takes its share. Nothing comes from a loader, and "
        "all ranks make six steps.",
        "b": "That's it. Step 0 has no boxes, so `box` gets no gradient, and DDP still waits for it when the next "
        "forward begins. Tell DDP with `find_unused_parameters=True`, or let every parameter take part in every loss.",
        "c": "`zero_grad` comes before forward in every step, as it should. The error names two parameters only, and "
        "it resets all six.",
        "d": "The boxes of step 1 are never looked at: the error comes as its forward begins. Which step is it about?",
    },
    found="45568f1f3e43",
)
def unused_parameters(program: Mended) -> list[str]:
    wanted = _boxes_learned()
    for ranks in (2, 3):
        weights = alike(program.on(ranks), "weights", "the weights", 1e-6)
        need(
            gap(weights, wanted) < 1e-4,
            f"On {ranks} ranks, the weights differ from those of one process without DDP that learns from every batch.",
        )
    return ["the replicas are equal on 2 and 3 ranks", "their weights are those of one process without DDP"]


def _boxes_learned() -> list[float]:
    """The weights that one process has after the six batches, without DDP."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body, sort, box = layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 4)])
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        for step in range(6):
            images = torch.randn(12, 8)
            features = body(images).relu()
            loss = nn.functional.cross_entropy(sort(features), images[:, :3].argmax(1))
            if step % 3:
                loss = loss + nn.functional.mse_loss(box(features), images[:, :4])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in layers.parameters()]).tolist()
