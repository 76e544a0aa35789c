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
def _not_there_yet(program: Mended) -> list[str]:
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
def _unused_parameters(program: Mended) -> list[str]:
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


# In front of a mended program: reports how often this rank has computed a GELU.
COUNT_GELU = """
import itertools
from torch import nn
from course_utils.rank import report as _report
_times, _gelu = itertools.count(1), nn.GELU.forward
def _counted(self, x):
    _report(computed=next(_times))
    return _gelu(self, x)
nn.GELU.forward = _counted
"""


@cage(
    "marked_twice",
    "dies",
    "It runs without DDP, and without checkpointing, but not with both",
    right="a",
    told={
        "a": "That's it. A reentrant checkpoint runs a backward of its own, so `block` has three of them in one step, "
        "and each tells DDP that its gradients are ready. Take `use_reentrant=False`, or promise with "
        "`static_graph=True` that all steps are alike.",
        "b": "Then the error would be about gradients that never came. This one is about one that came twice.",
        "c": "Both ranks fail with the same error at the same place, and in the very first step. Numbers that differ "
        "would give different losses, not this.",
        "d": "`zero_grad` sees to that between two steps. But this happens within step 0, before the first loss is "
        "printed.",
    },
    found="5775022c45eb",
)
def _marked_twice(program: Mended) -> list[str]:
    wanted = _block_learned()
    for ranks in (2, 3):
        counting = Mended.of(COUNT_GELU + program.source, "marked_twice_counted")
        try:
            run = counting.on(ranks)
        finally:
            program.seconds += counting.seconds
        weights = alike(run, "weights", "the weights", 1e-6)
        need(
            gap(weights, wanted) < 1e-4,
            f"On {ranks} ranks, the weights differ from those that one process learns with this block three times.",
        )
        computed = min(reported(run, "computed"))
        need(
            computed >= 30,
            f"On {ranks} ranks, the block was computed {computed} times in 5 steps. With 3 uses and a checkpoint on "
            "each it's 30: once in forward, and again in backward. Without that, no memory is saved.",
        )
    return [
        "the replicas are equal on 2 and 3 ranks",
        "their weights are those of one process without DDP",
        "all three uses of the block are computed again in backward",
    ]


def _block_learned() -> list[float]:
    """The weights that one process has after the five steps, without DDP and without checkpointing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = nn.Linear(8, 16)
        block = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        last = nn.Linear(16, 1)
        layers = nn.ModuleList([first, block, last])
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
        for _ in range(5):
            inputs = torch.randn(12, 8)
            hidden = first(inputs)
            for _ in range(3):
                hidden = hidden + block(hidden)
            loss = nn.functional.mse_loss(last(hidden), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in layers.parameters()]).tolist()


# In front of a mended program: reports with each batch how many files this rank has open, and how many workers load.
COUNT_FILES = """
import os
from torch.utils.data import DataLoader
from course_utils.rank import report as _report
_iter = DataLoader.__iter__
def _counted(self):
    for batch in _iter(self):
        _report(files=len(os.listdir("/dev/fd")), workers=self.num_workers)
        yield batch
DataLoader.__iter__ = _counted
"""


@cage(
    "too_many_files",
    "dies",
    "Too many open files, and the program opens none",
    right="d",
    told={
        "a": "A `TensorDataset` has everything in memory and opens nothing. Look at what the open files are.",
        "b": "Those sockets are opened once, at the start. The number of open files grows with every batch.",
        "c": "One worker is one process with a few pipes. That number is the same from the first batch to the last.",
        "d": "That's it. A worker hands over a batch in shared memory, and each tensor from there keeps a file open as "
        "long as it lives. Keep a copy (`targets.clone()`), or keep only what you count.",
    },
    found="a521b7cb6abd",
)
def _too_many_files(program: Mended) -> list[str]:
    wanted = _accuracy()
    for ranks in (2, 3):
        counting = Mended.of(COUNT_FILES + program.source, "too_many_files_counted")
        try:
            run = counting.on(ranks)
        finally:
            program.seconds += counting.seconds
        where = f"On {ranks} ranks"
        need(
            all(workers > 0 for workers in reported(run, "workers")),
            f"{where}, the batches are loaded without workers now, so nothing is loaded while the model computes.",
        )
        for rank in run.ranks:
            files = [record["files"] for record in rank.records if "files" in record]
            need(
                files[-1] - files[0] <= max(3, len(files) // 4),
                f"{where}, {files[0]} files are open on rank {rank.rank} after its first batch, and {files[-1]} after "
                f"{len(files)}. With more data, any limit is reached.",
            )
        accuracy = alike(run, "accuracy", "the accuracy", 1e-9)
        need(abs(accuracy - wanted) < 1e-6, f"{where}, the accuracy is {accuracy:.4f}, and should be {wanted:.4f}.")
    return ["the number of open files stays the same from batch to batch", "2 and 3 ranks get the right accuracy"]


def _accuracy() -> float:
    """The share of right answers among all samples, without a loader."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        images = torch.randn(2400, 8)
        right = nn.Linear(8, 3)(images).argmax(1) == images[:, :3].argmax(1)
    return right.sum().item() / len(images)


@cage(
    "other_shapes",
    "dies",
    "One rank is killed, and the others blame the network",
    right="c",
    ranks=3,
    told={
        "a": "It's the other way around: the connection closed because a rank had died. What did that rank write last?",
        "b": "Nothing here needs more than a few kilobytes, and for want of memory a rank gets SIGKILL. Look at the "
        "signal.",
        "c": "That's it. Each rank made room by the size of its own part, and the others send more or less. Gather the "
        "sizes first, pad to the longest and cut again, or use `all_gather_object`, which takes any size.",
        "d": "All ranks call `all_gather` once, and nothing else before it. The message does speak of a mismatch: look "
        "at its two numbers, and at how many images each rank scored.",
    },
    found="7aafa674ede1",
)
def _other_shapes(program: Mended) -> list[str]:
    wanted = _average_precision()
    for ranks in (2, 3, 4):
        run = program.on(ranks)
        precision = alike(run, "precision", "the average precision", 1e-6)
        together = alike(run, "together", "the number of scores")
        need(together == 25, f"On {ranks} ranks, {together} of 25 scores count in the average precision.")
        scored = sum(reported(run, "mine"))
        need(scored == 25, f"On {ranks} ranks, {scored} images were scored in all. There are 25: share them out.")
        need(
            abs(precision - wanted) < 1e-5,
            f"On {ranks} ranks, the average precision is {precision:.4f}. On one it's {wanted:.4f}.",
        )
    return ["2, 3 and 4 ranks get the average precision of all 25 images", "each image is scored once"]


def _average_precision() -> float:
    """That of all images, scored in one process."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        images = torch.randn(25, 8)
        scores = nn.Linear(8, 1)(images).flatten()
    right = (images[:, 0] > 0)[scores.argsort(descending=True)].float()
    precision = right.cumsum(0) / torch.arange(1, len(right) + 1)
    return ((precision * right).sum() / right.sum()).item()


@cage(
    "two_forwards",
    "dies",
    "An inplace operation, and no layer has one",
    right="b",
    told={
        "a": "ReLU writes in place only if it's asked to with `inplace=True`. And it gets a table of samples, "
        "while the error names a tensor of 8 numbers.",
        "b": "That's it. Backward through the first BatchNorm wants its running mean and variance as they were. The "
        "second forward has written other numbers there by then. Average once in a step, after backward, or run "
        "both forwards before anything is written.",
        "c": "The optimizer does write in place, but after backward. The error comes in the first backward of all.",
        "d": "That gives another message, about a second backward through the graph. Here it's the first one.",
    },
    found="6dd6cf55be45",
)
def _two_forwards(program: Mended) -> list[str]:
    for ranks in (2, 3):
        run = program.on(ranks)
        where = f"On {ranks} ranks"
        weights = alike(run, "weights", "the weights", 1e-6)
        wanted, averages = _discriminator(ranks)
        need(
            gap(weights, _discriminator(ranks, together=True)[0]) > 1e-4,
            f"{where}, real and fake samples are normalised together. That's another training: keep the two batches "
            "apart.",
        )
        need(
            gap(weights, wanted) < 1e-4,
            f"{where}, the weights differ from those that learn from real and fake samples in each step.",
        )
        statistics = alike(run, "statistics", "BatchNorm's running mean and variance", 1e-5)
        need(
            gap(statistics, averages) < 1e-4,
            f"{where}, BatchNorm's running mean and variance aren't the average of what the ranks saw.",
        )
    return [
        "the replicas are equal on 2 and 3 ranks, and so are BatchNorm's running mean and variance",
        "each step learns from real and fake samples, kept apart",
    ]


def _discriminator(ranks: int, together: bool = False) -> tuple[list[float], list[float]]:
    """Its weights after five steps on so many ranks, and the running mean and variance, averaged over the ranks.
    `together`: with real and fake samples in one batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        norms = [nn.BatchNorm1d(8) for _ in range(ranks)]
        for norm in norms:
            norm.weight, norm.bias = layers[1].weight, layers[1].bias
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        for _ in range(5):
            batches = torch.randn(24, 2) + 2, torch.randn(24, 2)
            optimizer.zero_grad()
            for rank in range(ranks):
                layers[1] = norms[rank]
                real, fake = (batch[rank::ranks] for batch in batches)
                on = layers(torch.cat([real, fake])).chunk(2) if together else (layers(real), layers(fake))
                loss = nn.functional.softplus(-on[0]).mean() + nn.functional.softplus(on[1]).mean()
                (loss / ranks).backward()
            optimizer.step()
    statistics = torch.stack([torch.cat([norm.running_mean, norm.running_var]) for norm in norms]).mean(0)
    return torch.cat([p.detach().flatten() for p in layers.parameters()]).tolist(), statistics.tolist()
