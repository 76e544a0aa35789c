"""Every plot of the course. Each function returns a `Figure`, which shows itself with a sentence that says what to see."""

from .brackets import brackets
from .break_even import break_even
from .compare import bars, lines, speedup
from .formats import formats
from .histogram import histogram
from .look import Figure
from .memory import memory
from .outcomes import outcomes
from .pages import pages
from .parts import parts
from .pictures import images
from .ranks import rank_timeline, who_has_what
from .ratios import ratios
from .residuals import Residuals, residuals
from .ring import collectives, ring
from .scale import loss_scale
from .schedule import schedule
from .script_diff import Diff, diff
from .sizes import sizes
from .ways import ways

__all__ = [
    "Diff",
    "Figure",
    "Residuals",
    "bars",
    "brackets",
    "break_even",
    "collectives",
    "diff",
    "formats",
    "histogram",
    "images",
    "lines",
    "loss_scale",
    "memory",
    "outcomes",
    "pages",
    "parts",
    "rank_timeline",
    "ratios",
    "residuals",
    "ring",
    "schedule",
    "sizes",
    "speedup",
    "ways",
    "who_has_what",
]
