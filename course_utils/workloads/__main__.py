"""Draw or download image sets before a lesson needs them: `python -m course_utils.workloads glyphs --pixels 32 224`."""

from __future__ import annotations

import argparse

from .images import image_set


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.workloads",
        description="Draw or download image sets now, so that a lesson needn't.",
    )
    parser.add_argument(
        "source", nargs="?", default="glyphs", help='"glyphs" (default), "cifar100", or an ImageNet-style folder'
    )
    parser.add_argument(
        "--pixels",
        type=int,
        nargs="+",
        default=[32],
        help="32 (default) for the cpu size, 128 for GPUs below 14 GB, 224 for others, 256 for loading experiments",
    )
    parser.add_argument("--root", help="where to put them (default: data/cache of the course)")
    args = parser.parse_args()
    for pixels in args.pixels:
        for split in ("train", "test"):
            images = image_set(args.source, split, pixels, root=args.root)
            print(f"{args.source}, {pixels}x{pixels}, {split}: {len(images)} images in {len(images.classes)} classes")


if __name__ == "__main__":
    main()
