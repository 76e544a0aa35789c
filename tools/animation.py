"""Draw the README's animation, data/figures/ring.gif: an explorer's own pictures, one for each step, in chromium."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from chromium import find  # type: ignore[import-not-found]  # noqa: E402

from course_utils import explore  # noqa: E402

OUT = Path(__file__).resolve().parent.parent / "data" / "figures" / "ring.gif"
RANKS, FRAME_MS, LAST_MS = 8, 900, 3500
COLORS = 40


def frames() -> list[Image.Image]:
    """The ring all-reduce after each of its steps, as large as the largest."""
    from playwright.sync_api import sync_playwright

    shown = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 720, "height": 600}, device_scale_factor=1.5)
        for step in range(2 * RANKS - 1):
            page.set_content(f"<body style='margin:8px'>{explore.ring(ranks=RANKS, step=step).view().svg}</body>")
            picture = page.locator("svg").screenshot()
            shown.append(Image.open(BytesIO(picture)).convert("RGB"))
        browser.close()
    width, height = max(f.width for f in shown), max(f.height for f in shown)
    padded = []
    for frame in shown:
        whole = Image.new("RGB", (width, height), "white")
        whole.paste(frame, (0, 0))
        padded.append(whole.quantize(COLORS))
    return padded


def main() -> None:
    first, *others = frames()
    durations = [FRAME_MS] * len(others) + [LAST_MS]
    first.save(OUT, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)
    print(f"{OUT.name}: {1 + len(others)} frames, {OUT.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
