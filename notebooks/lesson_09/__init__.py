"""What lesson 09 shows. Each function takes what a cell has run, says in words what came out, and checks it. Half A is
in `room`, half B in `saving`."""

from __future__ import annotations

from pathlib import Path

from course_utils import Run
from course_utils.for_lessons import Program, Words, disturbed

from .deeper import show_paused, show_published, show_selective  # noqa: F401
from .kill_marks import outcomes  # noqa: F401
from .room import GIB, needs, run_here, show_again, show_eight, show_here, show_needs, show_tokens, step_s, times_here
from .saving import WAYS, lost, run_kills, show_back, show_kills, show_left_out, show_restarts, show_resumed

__all__ = [
    "run_here",
    "run_kills",
    "show_again",
    "show_back",
    "show_eight",
    "show_here",
    "show_kills",
    "show_left_out",
    "show_needs",
    "show_restarts",
    "show_resumed",
    "show_tokens",
    "take_home",
    "what_you_saw",
]

TAKE_HOME = Path(__file__).resolve().parents[1] / "take_home" / "09_resume.py"


def take_home() -> Program:
    """Whole files, the last two of them, and a resume to the last bit, in one file of plain PyTorch."""
    return Program(TAKE_HOME)


def what_you_saw(plain: Run, again: Run, run: Run, kills: Run, whole: Run, back: Run) -> Words:
    """The lesson in the reader's own numbers."""
    before, after = (sum(needs(each).values()) / GIB for each in (plain, again))
    own = f"On your machine a step took {times_here(run):.2f} times as long, with the same gradients."
    if disturbed(run):
        own = "On your machine both ways had the same gradients."
    in_place, renamed = (lost(kills, way) for way in WAYS)
    first = back.ranks[0].values("first")[-1]
    return Words(
        [
            f"One line took an emulated A100 from {before:.0f} GiB to {after:.0f}, and made a step"
            f" {step_s(again) / step_s(plain):.2f} times as long. {own}",
            f"Of 50 kills, {in_place} left nothing to load with plain torch.save, and {renamed} with yours.",
            f"A run was killed and started again. All its {len(whole.value('weights')):,} weights were the same to the"
            " last bit.",
            f"A rank died in step 22, and the job went on by itself from step {first}.",
        ]
    )
