"""The small models and image sets that the lessons' scripts share.

This package imports nothing else of the course, so it can be copied beside a script and used on any machine. Everything
comes in two sizes: `cpu`, whose training steps take about 50 to 200 ms on one core, and `gpu`, whose steps are long enough on
a modern GPU for an effect to show. `default_size` chooses by what is there, and COURSE_SIZE overrules it.
"""

from .glyphs import GLYPHS
from .images import ImageSet, image_folder, image_set
from .models import batch, deep_mlp, image_model, resnet, tokens, transformer
from .size import default_size

__all__ = ["GLYPHS", "ImageSet", "batch", "deep_mlp", "default_size", "image_folder", "image_model", "image_set", "resnet", "tokens", "transformer"]
