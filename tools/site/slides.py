"""Eight slides for a workshop, made of the lessons' own pictures as they ran: one page, with the arrow keys."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

# Each slide: what it says, whose picture it shows (a lesson, and what its cell contains), and what to ask the room.
SLIDES = (
    ("24 hours on one GPU. Will eight do it in three?", None, "Hands up: three hours, four, six?"),
    ("One program, started twice", ("00", "Two processes say hello"), "Who hands out the work? Nobody."),
    ("Where does a step's time go?", ("00", "show_step("), "Which part would a second GPU help?"),
    ("Two ranks, one job", ("00", "show_speedup("), "Dashed is Amdahl. Why is it below two?"),
    ("Each on its own images, in step", ("04", "One program, started twice"), "What travels, and what stays?"),
    ("Eight GPUs: what will the day bring?", ("04", "show_eight("), "How fast is your link? How large your gradients?"),
    ("Break it: forget one line", ("04", "show_order("), "The loss looks well. How would you have noticed?"),
    ("On Monday", None, "torchrun --standalone --nproc-per-node=8 04_ddp.py --epochs 5"),
)  # fmt: skip

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Train PyTorch models on many devices: slides</title><style>
body {{ margin: 0; font: 1.5rem/1.4 system-ui, sans-serif; color: #1A1A1A; background: #fff; }}
section {{ box-sizing: border-box; height: 100vh; padding: 5vh 6vw; display: flex; flex-direction: column; gap: 3vh; }}
h1, h2 {{ margin: 0; font-size: 2.6rem; }}
section > div {{ flex: 1; min-height: 0; }}
img {{ max-width: 100%; max-height: 100%; object-fit: contain; }}
p {{ margin: 0; color: #005A8C; }}
</style><main>{sections}</main><script>
const slides = [...document.querySelectorAll("section")];
addEventListener("keydown", (event) => {{
  const keys = {{ ArrowRight: 1, PageDown: 1, " ": 1, ArrowLeft: -1, PageUp: -1 }};
  const step = keys[event.key];
  if (!step) return;
  event.preventDefault();
  const now = slides.findIndex((slide) => slide.getBoundingClientRect().bottom > 10);
  slides[Math.min(Math.max(now + step, 0), slides.length - 1)].scrollIntoView();
}});
</script></html>
"""


def slides(notebooks: Mapping[str, Any]) -> str:
    """The page, of executed notebooks by the numbers of their lessons. Raises LookupError for a picture that isn't
    there."""
    sections: list[str] = []
    for title, place, asked in SLIDES:
        shown = "" if place is None else picture(notebooks[place[0]], place[1])
        head = f"h{1 + bool(sections)}"
        words = f"<{head}>{html.escape(title)}</{head}><div>{shown}</div><p>{html.escape(asked)}</p>"
        sections.append(f"<section>{words}</section>")
    return PAGE.format(sections="".join(sections))


def picture(notebook: Any, words: str) -> str:
    """The first picture of the cell that contains these words: drawn in its text, or by its code."""
    for cell in notebook.cells:
        if words in cell.source:
            shown = [cell.source, *("".join(o.get("data", {}).get("text/html", "")) for o in cell.get("outputs", ()))]
            found = re.search(r"<img [^>]*>", "".join(shown))
            if found:
                return re.sub(r" (width|height|style|loading)=('[^']*'|\"[^\"]*\")", "", found[0])
    raise LookupError(f"slides: no picture where a cell says {words!r}")
