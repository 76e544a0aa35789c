"""What the programs of this page share, and what a reader without Lightning and TensorFlow sees: the same programs,
recorded where both were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from course_utils import Run, Sweep, recorded
from course_utils.for_lessons import EXTRAS, beside_programs, missing, say
from course_utils.workloads import image_model, image_set

from .files import PROGRAMS

STEPS, BATCH = 30, 128  # of all programs of the page; pictures on all ranks together
EACH = 60  # pictures of a kind
EARLY, NEAR = 4, 0.003  # so many steps of a right port, its losses differ by rounding alone: by less than this


def frameworks() -> None:
    """Say which frameworks are here, and put the files that the programs of this page import next to them."""
    lacking = [package for package in EXTRAS if missing(package)]
    if there := [EXTRAS[package][0] for package in EXTRAS if package not in lacking]:
        say(f"Installed here: {', '.join(there)}.")
    if lacking:
        names = ", ".join(EXTRAS[package][0] for package in lacking)
        pip = " ".join(EXTRAS[package][1] for package in lacking)
        say(
            f"Not installed here: {names}. Their cells are saved and not run, and you see what was recorded. To run"
            f" them, `make lab FRAMEWORKS=yes` in the course's folder, or `pip install {pip}`."
        )
    for helper in ("quiet", "keras_task"):
        placed = beside_programs(PROGRAMS / f"12_{helper}.py", f"{helper}.py")
    if not missing("tensorflow"):
        leave_start(placed.with_name("start.npz"))


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """The pictures of all steps in the order in which DDP draws them, uint8 [3840, 3, 32, 32], and their kinds."""
    data = image_set(split="train", pixels=32, in_memory=True, train_per_class=EACH)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: STEPS * BATCH]  # DistributedSampler
    assert data.images is not None
    return data.images[order], data.labels[order]


def leave_start(path: Path) -> None:
    """The first weights and the pictures, for a program without torch."""
    torch.manual_seed(0)
    weights = [p.detach().numpy() for p in image_model("cpu").parameters()]
    images, labels = pictures()
    np.savez(path, *weights, images=images.numpy(), labels=labels.numpy())


def here_or_recorded(name: str, run: Run | None, package: str) -> Run | None:
    """The reader's own run, or one that was recorded, with a sentence that says so."""
    if run is not None:
        return run
    if found := recorded.runs(f"12_{name}"):
        return _said(found[-1], package)
    _nobody(name)
    return None


def here_or_recorded_sweep(name: str, sweep: Sweep, package: str) -> Sweep:
    """The reader's own launches, or those that were recorded, with a sentence that says so: if the package isn't here,
    they are more."""
    if not missing(package):
        return sweep
    found = recorded.sweeps(f"12_{name}")
    if not found:
        _nobody(name)
        return sweep
    _said(found[-1].runs[0][0], package)
    return found[-1]


def _said(run: Run, package: str) -> Run:
    where, title = run.provenance, EXTRAS[package][0]
    its = f" with version {where.versions[package]}" if package in where.versions else ""
    say(f"{title} isn't installed here, so this was recorded{its}, on {where.machine}, {where.date}.")
    return run


def _nobody(name: str) -> None:
    say(f"This needs a framework that isn't installed here, and nobody has recorded it yet (12_{name}).")


def here(run: Run) -> bool:
    """Whether it ran here, so that a tick is the reader's."""
    return run.provenance.kind != "recorded"


def apart(run: Run, other: Run) -> float:
    """By how much the losses of two runs differ in the first steps, at most."""
    return float(abs(by_steps(run) - by_steps(other))[:EARLY].max())


def by_steps(run: Run, name: str = "loss") -> np.ndarray:
    """What each step reported, as the mean over ranks: of losses, that of the whole batch."""
    return np.mean([rank.values(name) for rank in run.ranks], axis=0)
