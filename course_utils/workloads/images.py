"""Image sets with 100 classes: drawn here and now, CIFAR-100, or a folder of your own.

`image_folder` makes sure that the JPEG files are there, `image_set` is a torch Dataset over them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from .glyphs import GLYPHS, RECIPE, draw, noise
from .size import default_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MEAN", "STD", "ImageSet", "cache_root", "image_folder", "image_set", "normalize"]

MEAN, STD = 0.5, 0.25  # of pixel values between 0 and 1, for every source and channel: (value - MEAN) / STD is near -2 to 2
IN_MEMORY_BYTES = 2 * 2**30
MANIFEST = "manifest.json"


def cache_root() -> Path:
    """Where sets are kept: `data/cache` under COURSE_HOME, else under the course's checkout, else under the working folder."""
    home = os.environ.get("COURSE_HOME")
    if home:
        return Path(home).expanduser() / "data" / "cache"
    checkout = Path(__file__).resolve().parents[2]
    at = checkout if (checkout / "pyproject.toml").is_file() and os.access(checkout, os.W_OK) else Path.cwd()
    return at / "data" / "cache"


def image_folder(
    source: str | Path = "glyphs", pixels: int = 32, root: str | Path | None = None, train_per_class: int | None = None, test_per_class: int | None = None
) -> Path:
    """A folder with `train/<class>/*.jpg` and `test/<class>/*.jpg`, made on the first call and found again on the next.

    `source` is one of
    - `"glyphs"`: 100 characters and pictograms of the fonts that matplotlib ships, `pixels` square, drawn without a network,
      100 images a class to train and 20 to test (50 and 10 above 64 pixels, where each takes longer to draw);
    - `"cifar100"`: CIFAR-100 through torchvision, downloaded once (169 MB), scaled to `pixels`, all of it unless you ask for fewer a class;
    - a path: an ImageNet-style folder with `train/` and `val/` or `test/`, each with the same class folders. It is checked, used as it is,
      and never written to; the other arguments do not touch it.

    `root` is where folders are made (default: `cache_root()`). A folder is there whole or not at all, also when several processes ask at
    once or one is killed half-way. Raises ValueError or FileNotFoundError for what cannot be a source, ConnectionError when CIFAR-100 is
    neither there nor can be downloaded.
    """
    if not 16 <= pixels <= 1024:
        raise ValueError(f"pixels is the side of the images, 16 to 1024; got {pixels}")
    if source not in ("glyphs", "cifar100"):
        return _check_folder(Path(source).expanduser())
    for name, count in (("train_per_class", train_per_class), ("test_per_class", test_per_class)):
        if count is not None and count < 1:
            raise ValueError(f"{name} is at least 1; got {count}")
    root = Path(root) if root is not None else cache_root()
    if source == "cifar100":
        train, test = train_per_class or 500, test_per_class or 100
        return _whole(root / f"cifar100-{pixels}px-{train}+{test}", lambda folder: _unpack_cifar100(folder, root, pixels, train, test))
    train = train_per_class or (100 if pixels <= 64 else 50)
    test = test_per_class or (20 if pixels <= 64 else 10)
    return _whole(root / f"glyphs-v{RECIPE}-{pixels}px-{train}+{test}", lambda folder: _draw_glyphs(folder, pixels, train, test))


def image_set(
    source: str | Path = "glyphs",
    split: str = "train",
    pixels: int | None = None,
    in_memory: bool | None = None,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    root: str | Path | None = None,
    train_per_class: int | None = None,
    test_per_class: int | None = None,
) -> ImageSet:
    """The images of `image_folder` as a torch Dataset of (float32 [3, pixels, pixels], int label).

    `split` is `"train"` or `"test"` (`val/`, where a folder of yours has that). `pixels` is 32 for the cpu size and 224 for the gpu
    size unless you say otherwise. With `in_memory=True` every image is decoded once, and later calls in any process share those
    bytes, so that a training loop measures training; with `False` each item reads and decodes its JPEG, which is real loading work.
    The default is in memory up to 2 GiB a split. `transform` gets the uint8 tensor [3, pixels, pixels] before it is normalised,
    for augmentation. Raises what `image_folder` raises, and ValueError for an unknown split.
    """
    if split not in ("train", "test"):
        raise ValueError(f'split is "train" or "test"; got {split!r}')
    if pixels is None:
        pixels = 32 if default_size() == "cpu" else 224
    folder = image_folder(source, pixels, root, train_per_class, test_per_class)
    return ImageSet(folder, split, pixels, in_memory, transform, Path(root) if root is not None else None)


class ImageSet(Dataset[tuple[torch.Tensor, int]]):
    """What `image_set` returns. `classes` are the names of the labels, `labels` an int64 tensor [n], `pixels` the side of an
    image, and `images` a uint8 tensor [n, 3, pixels, pixels] when in memory, otherwise None."""

    def __init__(
        self,
        folder: Path,
        split: str,
        pixels: int,
        in_memory: bool | None = None,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        root: Path | None = None,
    ):
        root = root or cache_root()
        self.pixels = pixels
        self.transform = transform
        self._split = _split_folder(folder, split)
        made_here = folder.parent == root and (folder / MANIFEST).is_file()
        if made_here:  # nobody edits it, and listing 10,000 files takes longer than mapping their pixels
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            self.classes: list[str] = manifest["classes"]
            names = [[f"{i:04d}.jpg" for i in range(manifest[f"{split}_per_class"])] for _ in self.classes]
        else:
            self.classes = _classes(self._split)
            names = [_image_files(self._split / name) for name in self.classes]
        self._files = [f"{name}/{file}" for name, files in zip(self.classes, names, strict=True) for file in files]
        self.labels = torch.tensor([label for label, files in enumerate(names) for _ in files])
        if in_memory is None:
            in_memory = len(self) * 3 * pixels * pixels <= IN_MEMORY_BYTES
        self._decoded: Path | None = None
        if in_memory:
            key = folder.name if made_here else f"folder-{self._fingerprint()}"
            self._decoded = _whole(root / f"{key}-{split}-{pixels}px-decoded", self._decode_all)
        self.images = self._map()

    def _map(self) -> torch.Tensor | None:
        # Mapped copy-on-write: ranks on one machine share the pages, and writing into the tensor never reaches the file.
        return None if self._decoded is None else torch.from_numpy(np.load(self._decoded / "images.npy", mmap_mode="c"))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "images": None}  # a spawned worker maps the file itself; sending the tensor would copy it

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.images = self._map()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._pixels(index)
        if self.transform is not None:
            image = self.transform(image)
        return normalize(image), int(self.labels[index])

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """A whole batch at once, which a DataLoader asks for where it can: one conversion instead of one an image."""
        if self.images is None or self.transform is not None:
            return [self[i] for i in indices]
        at = torch.as_tensor(indices)
        return list(zip(normalize(self.images[at]).unbind(), self.labels[at].tolist(), strict=True))

    def picture(self, index: int) -> Image.Image:
        """Image `index` to look at: without transform and normalisation."""
        return Image.fromarray(self._pixels(index).permute(1, 2, 0).numpy())

    def _pixels(self, index: int) -> torch.Tensor:
        if self.images is not None:
            return self.images[index]
        return torch.from_numpy(_decode(self._split / self._files[index], self.pixels))

    def _decode_all(self, folder: Path) -> None:
        images: NDArray[np.uint8] = np.empty((len(self), 3, self.pixels, self.pixels), np.uint8)

        def decode(index: int) -> None:
            images[index] = _decode(self._split / self._files[index], self.pixels)

        _each(decode, range(len(self)), self.pixels)
        np.save(folder / "images.npy", images)

    def _fingerprint(self) -> str:
        """Changes when an image of the folder is added, removed or written to."""
        digest = hashlib.sha256(str(self._split.resolve()).encode())
        for file in self._files:
            stat = (self._split / file).stat()
            digest.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:12]


def _each(function: Callable[[int], None], items: Iterable[int], pixels: int) -> None:
    """Call `function` with every item, on several threads where images are so large that most of the work is done outside Python."""
    if pixels <= 64:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(function, items):
            pass


def normalize(images: torch.Tensor) -> torch.Tensor:
    """uint8 [..., 3, h, w] to float32 with mean and spread that a network likes; a float tensor (what a transform may return) only if it is 0 to 1."""
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


# Folders -----------------------------------------------------------------------------------------------------------------

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def _classes(split: Path) -> list[str]:
    return sorted(entry.name for entry in split.iterdir() if entry.is_dir() and not entry.name.startswith(".")) if split.is_dir() else []


def _image_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.lower().endswith(_SUFFIXES) and not name.startswith("."))


def _split_folder(folder: Path, split: str) -> Path:
    """`train` is train/. `test` is val/ or test/, whichever has class folders: ImageNet's own test/ comes without labels."""
    if split == "train":
        return folder / "train"
    return next((folder / name for name in ("test", "val") if _classes(folder / name)), folder / "test")


def _check_folder(folder: Path) -> Path:
    wanted = f'source is "glyphs", "cifar100", or a folder with train/<class>/*.jpg and val/<class>/*.jpg (or test/); {str(folder)!r}'
    if not folder.is_dir():
        raise FileNotFoundError(f"{wanted} is not a folder")
    train, test = _split_folder(folder, "train"), _split_folder(folder, "test")
    classes = _classes(train)
    if not classes:
        raise ValueError(f"{wanted} has no class folders in train/")
    if not _classes(test):
        raise ValueError(f"{wanted} has no class folders in val/ or test/")
    if classes != _classes(test):
        odd = sorted(set(classes) ^ set(_classes(test)))
        raise ValueError(f"{wanted} has other classes in train/ than in {test.name}/: {', '.join(odd[:5])}{', ...' if len(odd) > 5 else ''}")
    for split in (train, test):
        for name in classes:
            if not _image_files(split / name):
                raise ValueError(f"{wanted} has no image in {split.name}/{name}/ (looked for {', '.join(_SUFFIXES)})")
    return folder


def _whole(target: Path, fill: Callable[[Path], None]) -> Path:
    """Make the folder `target` by `fill(temporary folder)`, so that it is there whole or not at all.

    Of several processes one works and the others wait for it. Where the file system has no locks all of them work, and the first wins.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mine = f".{target.name}.{socket.gethostname()}."
        with _locked(target.parent / f".{target.name}.lock") as alone:
            if target.is_dir():
                return target
            if alone:  # then nobody on this host is at work, and what lies here was left by a process that died
                for old in target.parent.glob(f"{mine}*"):
                    shutil.rmtree(old, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=mine, dir=target.parent))
            try:
                fill(work)
                work.chmod(0o755)  # mkdtemp made it private; a class may share one cache
                os.rename(work, target)
            except OSError:
                if not target.is_dir():  # it is there when another process was first, on a file system without locks
                    raise
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except PermissionError as error:
        raise PermissionError(f"cannot write images to {target.parent} ({error.strerror}); set COURSE_HOME to a folder of yours, or pass root=") from error
    return target


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock that the system lets go when the process dies; yields False where there are no locks."""
    with open(path, "a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):
            yield False
        else:
            yield True


# Sources --------------------------------------------------------------------------------------------------------------


def _draw_glyphs(folder: Path, pixels: int, train: int, test: int) -> None:
    print(f"drawing {len(GLYPHS) * (train + test)} images of {pixels}x{pixels} into {folder.parent}, this once", flush=True)
    windows = noise(pixels)

    def draw_class(label: int) -> None:
        name = list(GLYPHS)[label]
        for split, count in (("train", train), ("test", test)):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                # A seed of its own for every image: the first 20 of a class are the same, however many are drawn and in whatever order.
                rng = np.random.default_rng([RECIPE, split == "test", label, i])
                draw(name, pixels, rng, windows).save(folder / split / name / f"{i:04d}.jpg", quality=90)

    _each(draw_class, range(len(GLYPHS)), pixels)
    _write_manifest(folder, source="glyphs", recipe=RECIPE, pixels=pixels, classes=list(GLYPHS), train_per_class=train, test_per_class=test)


def _write_manifest(folder: Path, **values: Any) -> None:
    (folder / MANIFEST).write_text(json.dumps(values, indent=1), encoding="utf-8")


def _unpack_cifar100(folder: Path, root: Path, pixels: int, train: int, test: int) -> None:
    from torchvision.datasets import CIFAR100

    for split, count in (("train", train), ("test", test)):
        try:
            data = CIFAR100(str(root), train=split == "train", download=True)
        except (OSError, RuntimeError, HTTPException) as error:
            raise ConnectionError(
                f"CIFAR-100 is not in {root}, and could not be downloaded ({error}). With a network, try again; without one, put {CIFAR100.filename} "
                f'into {root} from a machine that has it ({CIFAR100.url}), or use source="glyphs", which needs no network'
            ) from None
        seen = [0] * len(data.classes)
        for name in data.classes:
            (folder / split / name).mkdir(parents=True)
        for array, label in zip(data.data, data.targets, strict=True):
            if seen[label] < count:
                image = Image.fromarray(array)
                if pixels != image.width:
                    image = image.resize((pixels, pixels), Image.Resampling.BICUBIC)
                image.save(folder / split / data.classes[label] / f"{seen[label]:04d}.jpg", quality=95)
                seen[label] += 1
        if min(seen) < count:
            raise ValueError(f"CIFAR-100 has {min(seen)} images a class in {split}; {split}_per_class asked for {count}")
    _write_manifest(folder, source="cifar100", pixels=pixels, classes=data.classes, train_per_class=train, test_per_class=test)
