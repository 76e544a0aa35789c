"""The gate before any score: at toy size, on real CPU ranks, the program goes where the reference goes.

The reference is the lesson's first program on one rank, in a launch of its own, with weights and sequences that are new
each time. The program that's asked runs on 2 and on 4 ranks; then it stops half-way, saves, and goes on from its file.
"""

from __future__ import annotations

import importlib.util
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from course_utils import RankError, Run, launch
from course_utils.for_lessons import Patience

from .rules import Refused

NAIVE = Path(__file__).resolve().parents[1] / "programs" / "14_naive.py"
TOY = {"words": 96, "width": 32, "layers": 2, "heads": 2, "length": 16}
BATCH, STEPS, CHECK_EVERY, CHECKED = 16, 6, 3, 12
REPEATING = 5  # of the check's sequences, each one word, whose losses are lower
# What a right program may be off by. Measured: 0.05 of the way in bfloat16, and 0.005 of the loss; 0.3 of the way where
# one of 16 sequences is another.
WEIGHTS_OFF, LOSS_OFF = 0.12, 0.02
SPREAD = 12  # of the words' vectors, times the program's own: so much that losses differ before anything is learned
PATIENCE = Patience(idle_s=60, work_s=120, total_s=600, deadlock_s=5)


@dataclass(frozen=True)
class Left:
    """What one training left: its weights by name, and the loss and the check's loss by step."""

    weights: Mapping[str, torch.Tensor]
    losses: Mapping[int, float]
    checks: Mapping[int, float]


def gate(program: Path) -> list[str]:
    """What holds of a program, a sentence each. Raises `Refused` with the first thing that doesn't."""
    with tempfile.TemporaryDirectory(prefix="course-reference-") as hidden, _folder() as folder:
        _deal(Path(folder), Path(hidden))
        right = _trained(NAIVE, 1, Path(hidden), "data.pt", "start.pt", "reference.pt", extra=["--micro-batch", BATCH])
        start = torch.load(Path(hidden) / "start.pt")["model"]
        for ranks in (2, 4):
            whole = _trained(program, ranks, Path(folder), "data.pt", "start.pt", f"on{ranks}.pt")
            _goes_where(whole, right, start, f"On {ranks} CPU ranks at toy size")
        _trained(program, 2, Path(folder), "data.pt", "start.pt", "half.pt", steps=STEPS // 2)
        rest = _trained(program, 2, Path(folder), "data.pt", "half.pt", "rest.pt")
        _goes_where(rest, right, start, "Stopped half-way, and resumed from its own file", all_steps=False)
    return [
        f"{STEPS} steps on 2 and on 4 CPU ranks at toy size go where one process goes, losses and weights",
        "every sequence is trained on once, and the check sees all of its own",
        "stopped half-way and resumed from its file, it ends at the same weights",
    ]


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="course-attempt-")


def _deal(folder: Path, hidden: Path) -> None:
    """New weights and sequences, of which each follows a rule of its own, so that their losses differ."""
    torch_state = torch.get_rng_state()
    torch.manual_seed(secrets.randbits(48))
    try:
        reference = _reference()
        model = reference.GPT(*TOY.values())
        with torch.no_grad():
            model.words.weight.mul_(SPREAD)
            check = _sequences(CHECKED, REPEATING)
            while _a_part_would_do([float(reference.loss_of(model, part)) for part in check.split(1)]):
                check = _sequences(CHECKED, REPEATING)
        files = {"start.pt": {"model": model.state_dict(), "step": 0}, "data.pt": (_sequences(BATCH * STEPS), check)}
    finally:
        torch.set_rng_state(torch_state)
    for name, content in files.items():
        torch.save(content, folder / name)
        torch.save(content, hidden / name)


def _sequences(n: int, repeating: int = 0) -> torch.Tensor:
    strides = torch.randint(1, TOY["words"], (n, 1))
    strides[torch.randperm(n)[:repeating]] = 0
    places = torch.arange(TOY["length"] + 1)
    return (strides * places + torch.randint(0, TOY["words"], (n, 1))) % TOY["words"]


def _a_part_would_do(losses: Sequence[float]) -> bool:
    """Whether the first few, or every second or third, have nearly the mean loss of all, so a check of them passes."""
    parts = [losses[first::every] for every in (2, 3, 4, 6, 12) for first in range(every)]
    parts += [losses[:n] for n in range(1, len(losses))]
    return min(abs(fmean(part) - fmean(losses)) for part in parts) < 3 * LOSS_OFF


def _reference() -> Any:
    spec = importlib.util.spec_from_file_location("course_capstone_naive", NAIVE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options_of(sizes: Mapping[str, int], **more: Any) -> list[str]:
    """A program's command line."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in {**sizes, **more}.items()]


def what_failed(error: RankError, program: Path) -> str:
    """The headline of a failed launch, and the program's own line that it failed in, if there's one."""
    lines = error.traceback.splitlines()
    own = [after.strip() for line, after in zip(lines, lines[1:], strict=False) if f'{program.name}"' in line]
    at = f" That's in `{own[-1]}`." if own else ""
    return " ".join(error.headline.split())[:500] + at


def _trained(
    program: Path, ranks: int, folder: Path, data: str, resume: str, save: str, steps: int = STEPS, extra: Any = ()
) -> Left:
    """Train at toy size. Raises `Refused` if the program fails, or leaves something out."""
    files = {"data": folder / data, "resume": folder / resume, "save": folder / save}
    options = options_of(TOY, batch=BATCH, steps=steps, check_every=CHECK_EVERY, **files)
    where = f"On {ranks} CPU ranks at toy size"
    try:
        run = launch(
            program, ranks, [*options, *extra], timeout=PATIENCE, device="cpu", threads=1, engine="local", quiet=True,
            env={"TORCH_COMPILE_DISABLE": "1"},
        )  # fmt: skip
    except RankError as error:
        raise Refused(f"{where} it fails. {what_failed(error, program)}") from None
    if not files["save"].exists():
        raise Refused(f"{where} it saves no checkpoint where --save says.")
    try:
        weights = torch.load(files["save"], map_location="cpu", weights_only=True)["model"]
        weights = {name: value.double() for name, value in weights.items()}
    except Exception as error:
        raise Refused(f"Its checkpoint can't be read as tensors: {error}") from None
    return Left(weights, _by_step(run, "loss"), _by_step(run, "check_loss"))


def _by_step(run: Run, key: str) -> dict[int, float]:
    return {record["step"]: record[key] for record in run.records if key in record and "step" in record}


def _goes_where(got: Left, right: Left, start: Mapping[str, torch.Tensor], where: str, all_steps: bool = True) -> None:
    for name, mine, reference in (("loss", got.losses, right.losses), ("check_loss", got.checks, right.checks)):
        wanted = {step: value for step, value in reference.items() if all_steps or step >= STEPS // 2}
        if missing := sorted(set(wanted) - set(mine)):
            raise Refused(f"{where} it reports no {name} for step {missing[0]}. Leave `report(step=..., {name}=...)`.")
        for step, value in wanted.items():
            if not abs(mine[step] - value) <= LOSS_OFF:
                raise Refused(f"{where} the {name} of step {step} is {mine[step]:.4g}; one process has {value:.4g}.")
    if set(got.weights) != set(right.weights):
        odd = sorted(set(got.weights) ^ set(right.weights))
        raise Refused(f"{where} the checkpoint has other names than a plain model: {odd[0]}.")
    if bad := next((name for name, value in right.weights.items() if got.weights[name].shape != value.shape), ""):
        raise Refused(f"{where} the checkpoint has another shape for {bad}: {tuple(got.weights[bad].shape)}.")
    way = _norm({name: value - start[name] for name, value in right.weights.items()})
    off = _norm({name: value - got.weights[name] for name, value in right.weights.items()}) / way
    if not off <= WEIGHTS_OFF:
        raise Refused(
            f"{where} the weights end {off:.0%} of the way from where one process ends. Rounding to 16 bits makes"
            f" about 4%: some sequence was left out or seen twice, or some gradient not summed."
        )


def _norm(tensors: Mapping[str, torch.Tensor]) -> float:
    return float(sum(float(value.double().pow(2).sum()) for value in tensors.values()) ** 0.5)
