"""The small models and image sets that the lessons' scripts share.

This package imports nothing else of the course, so you can copy it next to a script and use it on any machine.
Everything comes in three sizes: `cpu`, whose training steps take about 50 to 200 ms on one core, `gpu`, whose steps are
long enough on a modern GPU to show an effect, and `small-gpu`, which fits into 8 GB. `default_size` picks one for your
hardware; COURSE_SIZE overrides it.
"""

from .glyphs import GLYPHS
from .image_folders import image_folder
from .images import ImageSet, image_set, normalize
from .models import batch, deep_mlp, image_model, resnet, tokens, transformer
from .size import PIXELS, default_size

__all__ = [
    "GLYPHS",
    "PIXELS",
    "ImageSet",
    "batch",
    "deep_mlp",
    "default_size",
    "image_folder",
    "image_model",
    "image_set",
    "normalize",
    "resnet",
    "tokens",
    "transformer",
]
