"""Draw the images of the glyph set: characters from the fonts that matplotlib ships, no two alike."""

from __future__ import annotations

import colorsys
import math
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GLYPHS", "RECIPE", "draw", "noise"]

# raise it when a drawn image changes: it is part of the folder's name, so old drawings are never mistaken for new ones
RECIPE = 1

MORE_CHARACTERS = """
greek_gamma Γ, greek_delta Δ, greek_lambda Λ, greek_xi Ξ, greek_pi Π, greek_sigma Σ, greek_phi Φ, greek_psi Ψ,
greek_omega Ω, greek_small_lambda λ, greek_small_pi π, greek_small_omega ω, cyrillic_be Б, cyrillic_de Д,
cyrillic_zhe Ж, cyrillic_tse Ц, cyrillic_sha Ш, cyrillic_yu Ю, cyrillic_ya Я, ampersand &, at @, hash #,
percent %, question ?, euro €, section §, infinity ∞, root √
"""
PICTURE_CHARACTERS = """
spade ♠, heart ♥, diamond ♦, club ♣, star ★, sun ☀, cloud ☁, umbrella ☂, snowman ☃, telephone ☎, yin_yang ☯,
radioactive ☢, peace ☮, skull ☠, chess_knight ♞, chess_rook ♜, chess_queen ♛, notes ♫, airplane ✈, envelope ✉,
scissors ✂, smile ☺, anchor ⚓, lightning ⚡, snowflake ❄, flower ✿, recycling ♻, pencil ✏
"""


def _named(table: str) -> dict[str, str]:
    return dict(entry.split() for entry in table.split(","))


# One hundred characters that you can tell apart even turned and blurred: no O and 0, no small letter that is just a
# smaller capital. The names are those of the class folders. They differ in more than upper and lower case, because some
# file systems can't tell these apart.
CHARACTERS = {
    **{f"capital_{c.lower()}": c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"},
    **{f"small_{c}": c for c in "abdeghmqrt"},
    **{f"digit_{c}": c for c in "23456789"},
    **_named(MORE_CHARACTERS),
}
PICTURES = _named(PICTURE_CHARACTERS)
GLYPHS: dict[str, str] = dict(sorted((CHARACTERS | PICTURES).items()))

PICTURE_FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold")
TEXT_FONTS = (
    *PICTURE_FONTS,
    *("DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol"),
)


def noise(pixels: int) -> NDArray[np.float32]:
    """Normal noise [2 pixels, 2 pixels, 3]. Every image gets a window of it, since fresh noise would take most of the
    time."""
    return np.random.default_rng([RECIPE, pixels]).standard_normal((2 * pixels, 2 * pixels, 3), dtype=np.float32)


def draw(name: str, pixels: int, rng: np.random.Generator, noise: NDArray[np.float32]) -> Image.Image:
    """One RGB image of the class `name`: scaled, turned, slanted and shifted, in one colour on a background that runs
    between two others.

    `rng` decides everything that varies. `noise` comes from `noise(pixels)`.
    """
    fonts = TEXT_FONTS if name in CHARACTERS else PICTURE_FONTS
    # Plain floats: a numpy double would turn all the arrays below into doubles.
    u: list[float] = rng.random(16).tolist()
    mask = _mask(GLYPHS[name], fonts[int(u[0] * len(fonts))], 2 * pixels)

    # Which point of the mask each pixel of the image comes from (both have a side of 2 in these units).
    angle, slant = math.radians(40 * (u[1] - 0.5)), 0.5 * (u[2] - 0.5)
    scale_x, scale_y = 1.0 + 0.7 * u[3], 1.0 + 0.7 * u[3] + 0.3 * (u[4] - 0.5)
    cos, sin = math.cos(angle), math.sin(angle)
    a, b = scale_x * (cos + slant * sin), scale_x * (sin - slant * cos)
    d, e = -scale_y * sin, scale_y * cos
    dx, dy = 0.4 * (u[5] - 0.5), 0.4 * (u[6] - 0.5)
    half = pixels / 2
    c, f = half * (1 - a * (1 + dx) - b * (1 + dy)), half * (1 - d * (1 + dx) - e * (1 + dy))
    at = (2 * a, 2 * b, 2 * c, 2 * d, 2 * e, 2 * f)
    turned = mask.transform((pixels, pixels), Image.Transform.AFFINE, at, Image.Resampling.BICUBIC)
    shape = np.asarray(turned, dtype=np.float32)[..., None] / 255

    # Ink and paper differ in lightness by at least 0.3, so that every image can be read.
    paper_light = 0.1 + 0.8 * u[7]
    room_below, room_above = max(paper_light - 0.3, 0.0), max(0.7 - paper_light, 0.0)
    spot = u[8] * (room_below + room_above)
    ink_light = spot if spot < room_below else spot - room_below + paper_light + 0.3
    paper = _rgb(u[9], paper_light - 0.08, 0.55), _rgb(u[9] + 0.25 * (u[10] - 0.5), paper_light + 0.08, 0.55)
    ink = _rgb(u[11], ink_light, 0.75)
    run = 2 * math.pi * u[12]
    ramp = 0.5 + (math.cos(run) * _axis(pixels)[None, :, None] + math.sin(run) * _axis(pixels)[:, None, None]) / 2.83
    picture = paper[0] + (paper[1] - paper[0]) * ramp
    picture += (ink - picture) * shape

    top, left = int(u[13] * pixels), int(u[14] * pixels)
    picture += (0.02 + 0.06 * u[15]) * noise[top : top + pixels, left : left + pixels]
    return Image.fromarray((picture * 255).clip(0, 255).astype(np.uint8))


def _rgb(hue: float, lightness: float, saturation: float) -> NDArray[np.float32]:
    return np.array(colorsys.hls_to_rgb(hue % 1, lightness, saturation), dtype=np.float32)


@lru_cache
def _axis(pixels: int) -> NDArray[np.float32]:
    return np.linspace(-1, 1, pixels, dtype=np.float32)


@lru_cache(64)
def _font(font: str, points: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    return ImageFont.truetype(str(path), points, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(128)  # only the masks of the classes in work; all of them would take hundreds of MB
def _mask(character: str, font: str, side: int) -> Image.Image:
    """The character in white on black: its ink is centred and fills the square, apart from a margin."""
    trial = _font(font, side).getbbox(character)
    points = int(side * 0.95 * side / max(trial[2] - trial[0], trial[3] - trial[1]))
    box = _font(font, points).getbbox(character)
    image = Image.new("L", (side, side))
    origin = ((side - box[2] - box[0]) / 2, (side - box[3] - box[1]) / 2)
    ImageDraw.Draw(image).text(origin, character, fill=255, font=_font(font, points))
    return image
