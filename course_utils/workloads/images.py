"""Image sets as a torch Dataset, read from the folders of `image_folders`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from .image_folders import MANIFEST, cache_root, class_names, for_each, image_files, image_folder, split_folder, whole
from .size import PIXELS, default_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

# For pixel values between 0 and 1, whatever the source and channel: (value - MEAN) / STD is about -2 to 2.
MEAN, STD = 0.5, 0.25
IN_MEMORY_BYTES = 2 * 2**30


def image_set(
    source: str | Path = "glyphs",
    split: str = "train",
    pixels: int | None = None,
    in_memory: bool | None = None,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    root: str | Path | None = None,
    train_per_class: int | None = None,
    test_per_class: int | None = None,
    normalized: bool = True,
) -> ImageSet:
    """The images of `image_folder` as a torch Dataset of (float32 [3, pixels, pixels], int label).

    `split` is `"train"` or `"test"` (`val/`, if your own folder has that). `pixels` defaults to 32 for the cpu size,
    128 for small GPUs and 224 for others. With `in_memory=True` every image is decoded once, and later calls in any
    process share those bytes, so that a training loop measures training. With `False` each item reads and decodes its
    JPEG, which is real loading work. By default up to 2 GiB per split are kept in memory. `transform`, for
    augmentation, gets the uint8 tensor [3, pixels, pixels] before it's normalised. With `normalized=False` items stay
    what they are before that, usually uint8: a quarter of the bytes to send, and `normalize` makes floats of a whole
    batch on the GPU. Raises what `image_folder` raises, and ValueError for an unknown split.
    """
    if split not in ("train", "test"):
        raise ValueError(f'split must be "train" or "test"; got {split!r}')
    if pixels is None:
        pixels = PIXELS[default_size()]
    folder = image_folder(source, pixels, root, train_per_class, test_per_class)
    return ImageSet(folder, split, pixels, in_memory, transform, Path(root) if root is not None else None, normalized)


class ImageSet(Dataset[tuple[torch.Tensor, int]]):
    """What `image_set` returns. `classes` are the names of the labels, `labels` is an int64 tensor [n], `pixels` the
    side of an image, and `images` a uint8 tensor [n, 3, pixels, pixels] if in memory, otherwise None."""

    def __init__(
        self,
        folder: Path,
        split: str,
        pixels: int,
        in_memory: bool | None = None,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        root: Path | None = None,
        normalized: bool = True,
    ):
        root = root or cache_root()
        self.pixels = pixels
        self.transform = transform
        self.normalized = normalized
        self._split = split_folder(folder, split)
        made_here = folder.parent == root and (folder / MANIFEST).is_file()
        if made_here:  # nobody edits these files, and listing 10,000 of them takes longer than mapping their pixels
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            self.classes: list[str] = manifest["classes"]
            names = [[f"{i:04d}.jpg" for i in range(manifest[f"{split}_per_class"])] for _ in self.classes]
        else:
            self.classes = class_names(self._split)
            names = [image_files(self._split / name) for name in self.classes]
        self._files = [f"{name}/{file}" for name, files in zip(self.classes, names, strict=True) for file in files]
        self.labels = torch.tensor([label for label, files in enumerate(names) for _ in files])
        if in_memory is None:
            in_memory = len(self) * 3 * pixels * pixels <= IN_MEMORY_BYTES
        self._decoded: Path | None = None
        if in_memory:
            key = folder.name if made_here else f"folder-{self._fingerprint()}"
            self._decoded = whole(root / f"{key}-{split}-{pixels}px-decoded", self._decode_all)
        self.images = self._map()

    def _map(self) -> torch.Tensor | None:
        # Mapped copy-on-write: ranks on one machine share the pages, and writing to the tensor never changes the file.
        return None if self._decoded is None else torch.from_numpy(np.load(self._decoded / "images.npy", mmap_mode="c"))

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker maps the file itself; sending the tensor would copy it.
        return {**self.__dict__, "images": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.images = self._map()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._pixels(index)
        if self.transform is not None:
            image = self.transform(image)
        return normalize(image) if self.normalized else image, int(self.labels[index])

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """A whole batch at once, for a DataLoader that asks for it: one conversion instead of one per image."""
        if self.images is None or self.transform is not None or not self.normalized:
            return [self[i] for i in indices]
        at = torch.as_tensor(indices)
        return list(zip(normalize(self.images[at]).unbind(), self.labels[at].tolist(), strict=True))

    def picture(self, index: int) -> Image.Image:
        """Image `index` to look at, without transform and normalisation."""
        return Image.fromarray(self._pixels(index).permute(1, 2, 0).numpy())

    def _pixels(self, index: int) -> torch.Tensor:
        if self.images is not None:
            return self.images[index]
        return torch.from_numpy(_decode(self._split / self._files[index], self.pixels))

    def _decode_all(self, folder: Path) -> None:
        images: NDArray[np.uint8] = np.empty((len(self), 3, self.pixels, self.pixels), np.uint8)

        def decode(index: int) -> None:
            images[index] = _decode(self._split / self._files[index], self.pixels)

        for_each(decode, range(len(self)), self.pixels)
        np.save(folder / "images.npy", images)

    def _fingerprint(self) -> str:
        """A hash that changes when an image in the folder is added, removed or written to."""
        digest = hashlib.sha256(str(self._split.resolve()).encode())
        for file in self._files:
            stat = (self._split / file).stat()
            digest.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:12]


def normalize(images: torch.Tensor) -> torch.Tensor:
    """Images [..., 3, h, w] as float32, with a mean and spread that a network likes. They come as uint8, or, after a
    transform, as floats from 0 to 1."""
    if images.dtype == torch.uint8:
        return images.float().mul_(1 / (255 * STD)).sub_(MEAN / STD)
    return images.sub(MEAN).div_(STD)


def _decode(path: Path, pixels: int) -> NDArray[np.uint8]:
    """A file as uint8 [3, pixels, pixels]: the shorter side scaled to `pixels`, the middle cut out."""
    with Image.open(path) as file:
        file.draft("RGB", (pixels, pixels))  # libjpeg can halve a photograph while it decodes
        image = file.convert("RGB")
    if image.size != (pixels, pixels):
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        image = image.resize((pixels, pixels), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
