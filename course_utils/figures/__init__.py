"""Every plot of the course. Each function returns a `Figure`, which shows itself with a sentence that says what to see."""

from .compare import bars, lines, speedup
from .look import Figure
from .pictures import images
from .ranks import rank_timeline, who_has_what
from .script_diff import Diff, diff

__all__ = ["Diff", "Figure", "bars", "diff", "images", "lines", "rank_timeline", "speedup", "who_has_what"]
