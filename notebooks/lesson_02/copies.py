"""Section 5 of lesson 02: what a batch costs on its way to the GPU, from pageable and from pinned memory."""

from __future__ import annotations

from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Provenance, Run, Samples, claim, figures, launch, more_checks, published
from course_utils.for_lessons import Figure, bet, figure_first, say, say_disturbed

from .deeper import cluster_for_a_gpu

BATCH_MIB = 100  # what the program copies

Guess = float | int | str | EllipsisType | None


def run_copies(script: Path | str) -> Run:
    """Launch section 5's program on this machine's GPU, or else on an emulated A100."""
    return launch(script, 1, quiet=True, cluster=cluster_for_a_gpu())


@figure_first
def show_copies(run: Run, guess: Guess = ...) -> Figure:
    """How long a batch takes from pageable and from pinned memory, and when the call came back. Copies of an emulated
    GPU take modelled time, so without a GPU of your own the bet is judged by what was published."""
    kinds = ("pageable", "pinned", "pinned, non_blocking")
    took = {kind: run.samples("took_s", what=kind) for kind in kinds}
    back_s, whole_s = run.samples("returned_s", what=kinds[2]).median, took[kinds[2]].median
    emulated = run.provenance.kind == "emulated"
    real = published_copies()
    shown: dict[str, Any] = {} if emulated else dict(took)
    source = Provenance("published", "A100")
    for kind, seconds in real.items():
        shown[kind if emulated else f"{kind}, A100"] = Samples([seconds], "took_s", source)
    times = real["pageable"] / real["pinned"] if emulated else took["pageable"].median / took["pinned"].median
    where = "On an A100, as published," if emulated else "On your GPU"
    if why := run.disturbed:
        say_disturbed(why, "how long your GPU's copies take", guess)
    else:
        say(f"{where} a copy from pageable memory takes {times:.1f} times as long. {bet(guess, times, **_ON_COPY)}")
    say(
        f"That's {BATCH_MIB / 1e3 * 1.048576 / real['pinned']:.0f} GB/s from pinned memory, in a real loop, where the"
        " link could carry 31."
        if emulated
        else f"Published for an A100: {real['pageable'] / real['pinned']:.1f} times."
    )
    device = "Our program ran on an emulated A100, whose copies take modelled time: w" if emulated else "W"
    if not why:
        say(
            f"{device}ith non_blocking=True the call came back after {back_s * 1e3:.2f} ms, and the copy took"
            f" {whole_s * 1e3:.1f} ms{' in our model' * emulated}."
        )
    verdict = None if emulated else took["pinned"].faster_than(took["pageable"]).unless(why)
    claim("a copy from pinned memory takes less time", verdict, why="needs a GPU" if emulated else "")
    more_checks({"non_blocking comes back before the copy is done": bool(why) or back_s < 0.5 * whole_s})
    title = why or f"{where} pageable memory takes {times:.1f} times as long as pinned"
    return figures.bars(shown, ylabel=f"time to copy {BATCH_MIB} MiB (ms)", title=title)


_ON_COPY: dict[str, Any] = {
    "close": "that's it.",
    "over": "The detour is cheaper than that: it's one more copy, by a CPU that's good at it.",
    "under": "The CPU has to touch every byte before the GPU gets it.",
    "within": 0.25,
    "kind": "a number, such as 2",
}


def published_copies() -> dict[str, float]:
    """Seconds that a batch of 100 MiB takes to an A100, as published: what the epoch took beyond one whose copies
    hide, for each of its ten batches."""
    cases = {case.id.removeprefix("copy-a100-"): case for case in published.cases("copy_pass")}
    hidden = cases["non-blocking"].observed
    return {name: (cases[name].observed - hidden) / cases[name].inputs["copies"] for name in ("pageable", "pinned")}
