"""The score: tokens a second on eight emulated A100, by a clock outside of the program, and what it did for them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from course_utils import RankError, Run, launch
from course_utils.for_lessons import cluster, covered, intersection, union

from .rules import Refused
from .toy import options_of, what_failed

STEPPED = Path(__file__).resolve().parents[1] / "programs" / "14_stepped.py"
CLUSTER = "8xA100"
GPUS = 8
GPT = {"words": 50257, "width": 2048, "layers": 24, "heads": 16, "length": 2048}
BATCH, STEPS, CHECK_EVERY, CHECKED = 32, 3, 2, 16
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear")
LEAST_BYTES = 2  # of a gradient, sent in 16 bits


def weights_of(size: Mapping[str, int]) -> int:
    """How many weights the lesson's GPT has; its words' table is also the last layer."""
    width, layers = size["width"], size["layers"]
    return layers * (12 * width**2 + 13 * width) + (size["words"] + size["length"] + 2) * width


def flops_of(size: Mapping[str, int], tokens: float, checked: float = 0.0) -> float:
    """The least arithmetic for training on so many tokens and checking others: 2 for each weight and token forward,
    twice that backward (Kaplan et al., 2020, section 2.1), and attention's below its diagonal. Places are only looked
    up."""
    attention = size["layers"] * size["width"] * size["length"]
    return 2.0 * (weights_of(size) - size["length"] * size["width"] + attention) * (3 * tokens + checked)


def flops_per_token(size: Mapping[str, int]) -> float:
    """The arithmetic that training on a token needs: 6 for each weight, and attention's, as MFU counts it (PaLM,
    arXiv 2204.02311, appendix B)."""
    return 6.0 * weights_of(size) + 12.0 * size["layers"] * size["width"] * size["length"]


def peak_flops() -> float:
    """What the eight GPUs can do a second, in 16 bits."""
    return GPUS * cluster(CLUSTER).device.flops["bfloat16"]


@dataclass(frozen=True)
class Score:
    """One attempt on the virtual clock. `part` is what it uses of eight A100: the arithmetic that a token needs, times
    tokens a second, over their peak (MFU)."""

    name: str
    tokens_per_s: float
    step_s: float
    part: float
    peak_bytes: int
    seconds: Mapping[str, float] = field(default_factory=dict)  # of rank 0's GPU in that time, by what it did
    path: str = ""  # of its run
    time: str = ""
    expected: float | None = None  # how many times as fast as the attempt before, by the reader's bet

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def light_tokens_per_s() -> float:
    """Tokens a second at which the eight GPUs would do nothing but the model's products, at their peak."""
    return peak_flops() / flops_per_token(GPT)


def score(program: Path, name: str) -> tuple[Score, Run]:
    """Run a program on eight emulated A100, and time it from the end of its first step to the end of all it does.

    One rank is emulated, and stands for all: rank 0, which has the most to do. Raises `Refused` if the program fails,
    or does less than it has to.
    """
    with tempfile.TemporaryDirectory(prefix="course-score-") as folder:
        data = Path(folder) / "data.pt"
        torch.save((sequences(BATCH * STEPS), sequences(CHECKED)), data)
        options = options_of(GPT, batch=BATCH, steps=STEPS, check_every=CHECK_EVERY, data=data)
        try:
            run = launch(STEPPED, 1, [program, *options], cluster=CLUSTER, one_of=GPUS, quiet=True, timeout=600)
        except RankError as error:
            raise Refused(f"On {CLUSTER} it fails. {what_failed(error, program)}") from None
    _did_it_all(run)
    begin, end = window(run)
    tokens = BATCH * GPT["length"] * (STEPS - 1)
    rate = tokens / (end - begin)
    part = rate / light_tokens_per_s()
    ((_, peak),) = run.emulated.peaks()
    return Score(name, rate, (end - begin) / (STEPS - 1), part, peak, spent(run, begin, end), run.path), run


def sequences(n: int, size: Mapping[str, int] = GPT) -> torch.Tensor:
    """Which words they are makes no difference to a time."""
    return (torch.arange(n * (size["length"] + 1)) % size["words"]).view(n, -1)


def window(run: Run) -> tuple[float, float]:
    """From when the GPU has done the first optimizer step to when all is done, in seconds."""
    left = run.emulated.found[0]
    steps = [mark for mark in left["marks"] if mark[0].startswith("Optimizer.step")]
    # An optimizer that shares its work out, as ZeRO's does, steps another one inside.
    outer = [m for m in steps if not any(o is not m and o[1] <= m[1] and m[2] <= o[2] for o in steps)]
    ends = [mark[2] for mark in outer]
    if len(ends) != STEPS:
        raise Refused(f"It took {len(ends)} optimizer steps where {STEPS} were asked for.")
    begin = max(span[3] for span in left["spans"][: ends[0]])
    return begin, max([left["host_s"], *(span[3] for span in left["spans"])])


def spent(run: Run, begin: float, end: float) -> dict[str, float]:
    """What rank 0's GPU did in a stretch of time, in seconds: the products of matrices, attention in one kernel, the
    optimizer, all other operators, communication while it computed nothing, and nothing at all."""
    left = run.emulated.found[0]
    optimizer = [(mark[1], mark[2]) for mark in left["marks"] if mark[0].startswith("Optimizer.step")]
    found = dict.fromkeys(("products", "attention", "optimizer", "other operators"), 0.0)
    busy, sending = [], []
    for i, (kind, name, start, stop, *_) in enumerate(left["spans"]):
        stretch = (max(start, begin), min(stop, end))
        if stretch[1] <= stretch[0]:
            continue
        if kind == "communication":
            sending.append(stretch)
        elif kind == "compute":
            busy.append(stretch)
            product = "products" if name.removeprefix("aten::") in PRODUCTS else "other operators"
            what = "attention" if "attention" in name else product
            what = "optimizer" if any(first <= i < last for first, last in optimizer) else what
            found[what] += stretch[1] - stretch[0]
    compute = covered(busy)
    alone = covered(sending) - covered(intersection(union(busy), union(sending)))
    return found | {"communication": alone, "idle": max(0.0, (end - begin) - compute - alone)}


def _did_it_all(run: Run) -> None:
    """Raise `Refused` unless rank 0 did its share of the arithmetic, summed gradients of at least 16 bits, and stepped
    every weight in 32 bits."""
    left = run.emulated
    tokens, checked = BATCH * GPT["length"] * STEPS / GPUS, CHECKED * GPT["length"] / GPUS
    needed, done = flops_of(GPT, tokens, checked), left.flops()
    if done < 0.999 * needed:
        raise Refused(
            f"On {CLUSTER} rank 0 did {done / needed:.0%} of its share of the arithmetic: tokens are left out, or other"
            " ranks do more than it does."
        )
    sent = left.collective_bytes()
    gradients = sum(sent.get(kind, 0) for kind in ("all_reduce", "reduce_scatter", "reduce", "all_to_all"))
    least = LEAST_BYTES * weights_of(GPT) * STEPS
    if gradients < 0.999 * least:
        raise Refused(f"On {CLUSTER} {gradients / least:.0%} of the gradients are summed over the ranks.")
    stepped = [record["stepped"] for record in run.records if "stepped" in record]
    odd = sum(record.get("odd", 0) for record in run.records)
    each = max(1, len(stepped) // STEPS)  # an optimizer inside another one tells first
    stepped = [max(stepped[i : i + each]) for i in range(0, len(stepped), each)]
    share = min(stepped, default=0) / weights_of(GPT)
    gathered = sent.get("all_gather", 0) + sent.get("broadcast", 0) / GPUS
    shared_out = share > 0.999 / GPUS and gathered > 0.999 * LEAST_BYTES * weights_of(GPT) * (STEPS - 1)
    if len(stepped) != STEPS or not (share >= 1 or shared_out):
        raise Refused(
            f"On {CLUSTER} an optimizer of torch.optim has to step all weights {STEPS} times, or on each rank its"
            f" eighth of them, if the ranks gather them afterwards: {len(stepped)} steps, the smallest of {share:.0%}"
            " of them."
        )
    if odd:
        raise Refused(f"On {CLUSTER} weights are stepped that aren't in 32 bits, or aren't on a GPU.")
