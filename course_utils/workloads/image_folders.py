"""The folders with image sets: drawn, downloaded or your own. A folder is complete, or it doesn't exist."""

from __future__ import annotations

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
from typing import Any

import numpy as np
from PIL import Image

from .glyphs import GLYPHS, RECIPE, draw, noise

MANIFEST = "manifest.json"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def cache_root() -> Path:
    """Where sets are kept: `data/cache` in COURSE_HOME, or else in the course's checkout, or else in the working
    folder."""
    home = os.environ.get("COURSE_HOME")
    if home:
        return Path(home).expanduser() / "data" / "cache"
    checkout = Path(__file__).resolve().parents[2]
    at = checkout if (checkout / "pyproject.toml").is_file() and os.access(checkout, os.W_OK) else Path.cwd()
    return at / "data" / "cache"


def image_folder(
    source: str | Path = "glyphs",
    pixels: int = 32,
    root: str | Path | None = None,
    train_per_class: int | None = None,
    test_per_class: int | None = None,
) -> Path:
    """A folder with `train/<class>/*.jpg` and `test/<class>/*.jpg`, made on the first call and reused after that.

    `source` is one of
    - `"glyphs"`: 100 characters and pictograms of the fonts that matplotlib ships, `pixels` square, drawn without a
      network, 100 images a class to train and 20 to test (50 and 10 above 64 pixels, where each takes longer to draw);
    - `"cifar100"`: CIFAR-100 through torchvision, downloaded once (169 MB), scaled to `pixels`, all of it unless you
      ask for fewer a class;
    - a path: an ImageNet-style folder with `train/` and `val/` or `test/`, each with the same class folders. It is
      checked, used as it is, and never written to; the other arguments don't apply to it.

    `root` is where folders are made (default: `cache_root()`). A folder is complete or doesn't exist, even when several
    processes ask at once or one is killed half-way. Raises ValueError or FileNotFoundError for what can't be a source,
    and ConnectionError when CIFAR-100 is missing and can't be downloaded.
    """
    if not 16 <= pixels <= 1024:
        raise ValueError(f"pixels, the side of the images, must be 16 to 1024; got {pixels}")
    if source not in ("glyphs", "cifar100"):
        return _check_folder(Path(source).expanduser())
    for name, count in (("train_per_class", train_per_class), ("test_per_class", test_per_class)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1; got {count}")
    root = Path(root) if root is not None else cache_root()
    if source == "cifar100":
        train, test = train_per_class or 500, test_per_class or 100
        name = f"cifar100-{pixels}px-{train}+{test}"
        return whole(root / name, lambda folder: _unpack_cifar100(folder, root, pixels, train, test))
    train = train_per_class or (100 if pixels <= 64 else 50)
    test = test_per_class or (20 if pixels <= 64 else 10)
    name = f"glyphs-v{RECIPE}-{pixels}px-{train}+{test}"
    return whole(root / name, lambda folder: _draw_glyphs(folder, pixels, train, test))


def class_names(split: Path) -> list[str]:
    if not split.is_dir():
        return []
    return sorted(entry.name for entry in split.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def image_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.lower().endswith(_SUFFIXES) and not name.startswith("."))


def split_folder(folder: Path, split: str) -> Path:
    """`train` is train/. `test` is test/ or val/, whichever has class folders: ImageNet's own test/ has no labels."""
    if split == "train":
        return folder / "train"
    return next((folder / name for name in ("test", "val") if class_names(folder / name)), folder / "test")


def _check_folder(folder: Path) -> Path:
    wanted = (
        'source must be "glyphs", "cifar100", or a folder with train/<class>/*.jpg and val/<class>/*.jpg (or test/);'
        f" {str(folder)!r}"
    )
    if not folder.is_dir():
        raise FileNotFoundError(f"{wanted} is not a folder")
    train, test = split_folder(folder, "train"), split_folder(folder, "test")
    classes = class_names(train)
    if not classes:
        raise ValueError(f"{wanted} has no class folders in train/")
    if not class_names(test):
        raise ValueError(f"{wanted} has no class folders in val/ or test/")
    if classes != class_names(test):
        odd = sorted(set(classes) ^ set(class_names(test)))
        raise ValueError(
            f"{wanted} has other classes in train/ than in {test.name}/:"
            f" {', '.join(odd[:5])}{', ...' if len(odd) > 5 else ''}"
        )
    for split in (train, test):
        for name in classes:
            if not image_files(split / name):
                raise ValueError(f"{wanted} has no image in {split.name}/{name}/ (looked for {', '.join(_SUFFIXES)})")
    return folder


def whole(target: Path, fill: Callable[[Path], None]) -> Path:
    """Make the folder `target` with `fill(temporary folder)`, so that it's complete or doesn't exist.

    If several processes ask, one works and the others wait. On a file system without locks all of them work, and the
    first one wins.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mine = f".{target.name}.{socket.gethostname()}."
        with _locked(target.parent / f".{target.name}.lock") as alone:
            if target.is_dir():
                return target
            if alone:  # then no process on this host is working, and these are leftovers of one that died
                for old in target.parent.glob(f"{mine}*"):
                    shutil.rmtree(old, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=mine, dir=target.parent))
            try:
                fill(work)
                work.chmod(0o755)  # mkdtemp made it private; a class may share one cache
                os.rename(work, target)
            except OSError:
                if not target.is_dir():  # it exists if another process was first, on a file system without locks
                    raise
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except PermissionError as error:
        raise PermissionError(
            f"cannot write images to {target.parent} ({error.strerror}); set COURSE_HOME to a folder of your own, or"
            " pass root="
        ) from error
    return target


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock that the system releases when the process dies. Yields False where there are no locks."""
    with open(path, "a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):
            yield False
        else:
            yield True


def for_each(function: Callable[[int], None], items: Iterable[int], pixels: int) -> None:
    """Call `function` with every item. Large images use several threads, since most of their work is done outside
    Python."""
    if pixels <= 64:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(function, items):
            pass


def _draw_glyphs(folder: Path, pixels: int, train: int, test: int) -> None:
    count = len(GLYPHS) * (train + test)
    print(f"drawing {count} images of {pixels}x{pixels} into {folder.parent}, just this once", flush=True)
    windows = noise(pixels)

    def draw_class(label: int) -> None:
        name = list(GLYPHS)[label]
        for split, count in (("train", train), ("test", test)):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                # Every image has its own seed, so the first 20 of a class are the same however many you draw, in any
                # order.
                rng = np.random.default_rng([RECIPE, split == "test", label, i])
                draw(name, pixels, rng, windows).save(folder / split / name / f"{i:04d}.jpg", quality=90)

    for_each(draw_class, range(len(GLYPHS)), pixels)
    _write_manifest(folder, pixels, list(GLYPHS), train, test, source="glyphs", recipe=RECIPE)


def _write_manifest(folder: Path, pixels: int, classes: list[str], train: int, test: int, **more: Any) -> None:
    values = {**more, "pixels": pixels, "classes": classes, "train_per_class": train, "test_per_class": test}
    (folder / MANIFEST).write_text(json.dumps(values, indent=1), encoding="utf-8")


def _unpack_cifar100(folder: Path, root: Path, pixels: int, train: int, test: int) -> None:
    from torchvision.datasets import CIFAR100

    for split, count in (("train", train), ("test", test)):
        try:
            data = CIFAR100(str(root), train=split == "train", download=True)
        except (OSError, RuntimeError, HTTPException) as error:
            raise ConnectionError(
                f"CIFAR-100 is not in {root}, and could not be downloaded ({error}). With a network, try again; without"
                f" one, put {CIFAR100.filename} "
                f'into {root} from a machine that has it ({CIFAR100.url}), or use source="glyphs", which needs no'
                " network"
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
            raise ValueError(
                f"CIFAR-100 has {min(seen)} images a class in {split}; {split}_per_class asked for {count}"
            )
    _write_manifest(folder, pixels, data.classes, train, test, source="cifar100")
