"""The image sets are the same everywhere, complete or absent, and learnable. The models have the shapes and sizes that
the lessons count on."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader

from course_utils import workloads
from course_utils.workloads import glyphs, image_folder, image_model, image_set, normalize
from course_utils.workloads import image_folders as folders_module
from course_utils.workloads import images as images_module

PACKAGE = Path(workloads.__file__).resolve().parent
FEW = {"train_per_class": 3, "test_per_class": 2}
DRAW = """
import sys
from workloads import image_folder

print(image_folder(pixels=int(sys.argv[2]), root=sys.argv[1], train_per_class=int(sys.argv[3]), test_per_class=1))
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a small drawn set."""
    root = tmp_path_factory.mktemp("images")
    image_folder(root=root, **FEW)
    return root


def contents(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def drawer(root: Path, pixels: int, train: int, path: Path = PACKAGE.parent) -> subprocess.Popen[str]:
    """A process that draws a set. It sees only the workloads package, as if copied next to a script."""
    command, env = (
        [sys.executable, "-c", DRAW, *map(str, (root, pixels, train))],
        os.environ | {"PYTHONPATH": str(path)},
    )
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, cwd=root, text=True, stdout=pipe, stderr=pipe)


# The drawn set --------------------------------------------------------------------------------------------------------


def test_layout_is_that_of_image_folder(small: Path) -> None:
    from torchvision.datasets import ImageFolder

    folder = image_folder(root=small, **FEW)
    train, test = ImageFolder(str(folder / "train")), ImageFolder(str(folder / "test"))
    assert len(train.classes) == 100 and train.classes == test.classes == list(workloads.GLYPHS)
    assert (len(train), len(test)) == (300, 200)
    for path, _ in train.samples[::37]:
        with Image.open(path) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (32, 32), "RGB")


def test_class_names_survive_file_systems_that_ignore_case() -> None:
    assert len({name.lower() for name in workloads.GLYPHS}) == len(set(workloads.GLYPHS.values())) == 100


def test_every_font_has_every_glyph_it_is_asked_for() -> None:
    import matplotlib
    from matplotlib.ft2font import FT2Font

    for font in glyphs.TEXT_FONTS:
        there = FT2Font(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf")).get_charmap()
        wanted = glyphs.CHARACTERS | (glyphs.PICTURES if font in glyphs.PICTURE_FONTS else {})
        assert [name for name, character in wanted.items() if ord(character) not in there] == []


def test_same_bytes_in_another_process_and_place(small: Path, tmp_path: Path) -> None:
    process = drawer(tmp_path, 32, FEW["train_per_class"])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    here, there = contents(image_folder(root=small, **FEW)), contents(Path(out.splitlines()[-1]))
    shared = [name for name in there if name.endswith(".jpg")]
    assert len(shared) == 400  # the other process drew one test image a class
    assert [name for name in shared if here[name] != there[name]] == []


def test_large_images_do_not_depend_on_the_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"train_per_class": 1, "test_per_class": 1}
    several = contents(image_folder(pixels=72, root=tmp_path / "several", **counts))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert contents(image_folder(pixels=72, root=tmp_path / "one", **counts)) == several


def test_no_image_twice(small: Path) -> None:
    found = contents(image_folder(root=small, **FEW))
    pictures = [digest for name, digest in found.items() if name.endswith(".jpg")]
    assert len(pictures) == len(set(pictures)) == 500


def test_test_images_are_not_near_copies_of_train_images(small: Path) -> None:
    train, test = (image_set(split=split, pixels=32, root=small, **FEW).images for split in ("train", "test"))
    assert train is not None and test is not None
    difference = torch.cdist(test.flatten(1).float(), train.flatten(1).float())
    assert difference.min() / (3 * 32 * 32) ** 0.5 > 8  # root mean square, in grey levels


def test_ink_stays_in_the_picture_and_can_be_seen() -> None:
    """Draw each class 20 times without noise: a glyph outside the frame, or in the colour of its paper, would have
    little contrast."""
    windows = np.zeros((64, 64, 3), np.float32)
    for label, name in enumerate(workloads.GLYPHS):
        for i in range(20):
            picture = np.asarray(glyphs.draw(name, 32, np.random.default_rng([label, i]), windows), np.float32)
            spread = picture.max(axis=(0, 1)) - picture.min(axis=(0, 1))
            assert spread.max() > 50, (name, i)


def test_a_new_recipe_is_drawn_anew(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"train_per_class": 1, "test_per_class": 1}
    old = image_folder(root=tmp_path, **counts)
    before = contents(old)
    monkeypatch.setattr(folders_module, "RECIPE", folders_module.RECIPE + 1)
    new = image_folder(root=tmp_path, **counts)
    assert new != old and contents(new) != before and contents(old) == before


@pytest.mark.slow
def test_default_counts_and_time(tmp_path: Path) -> None:
    start = time.process_time()
    folder = image_folder(root=tmp_path)
    seconds = time.process_time() - start
    assert (len(list(folder.glob("train/*/*.jpg"))), len(list(folder.glob("test/*/*.jpg")))) == (10_000, 2_000)
    assert seconds < 15, f"drawing took {seconds:.1f} s of processor time"


# Whole or not at all --------------------------------------------------------------------------------------------------


def test_killed_while_drawing_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    process = drawer(tmp_path, 32, 9)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob(".glyphs*/train/*/0008.jpg"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    assert list(tmp_path.glob("glyphs*")) == []
    assert any(p.is_dir() for p in tmp_path.glob(".glyphs*"))

    folder = image_folder(root=tmp_path, train_per_class=9, test_per_class=1)
    assert len(list(folder.glob("*/*/*.jpg"))) == 1000
    assert [p for p in tmp_path.glob(".glyphs*") if p.is_dir()] == []


NO_LOCKS = """
def no_locks(path):
    import time
    open(f"{path}.{os.getpid()}", "w").close()
    while len(list(path.parent.glob(f"{path.name}.*"))) < 2:    # so that both are at work at the same time
        time.sleep(0.01)
    raise OSError("no locks here")
"""


@pytest.mark.parametrize("locks", [True, False])
def test_two_processes_at_once(tmp_path: Path, locks: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    if not locks:  # as on a network file system: both draw, and one of them is first
        shutil.copytree(PACKAGE, tmp_path / "workloads", ignore=shutil.ignore_patterns("__pycache__"))
        source = tmp_path / "workloads" / "image_folders.py"
        assert source.read_text().count("fcntl.flock(file, fcntl.LOCK_EX)") == 1
        source.write_text(source.read_text().replace("fcntl.flock(file, fcntl.LOCK_EX)", "no_locks(path)") + NO_LOCKS)
    both = [drawer(root, 32, 5, PACKAGE.parent if locks else tmp_path) for _ in range(2)]
    ends = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    folders = {out.splitlines()[-1] for out, _ in ends}
    assert len(folders) == 1 and len(list(Path(folders.pop()).glob("*/*/*.jpg"))) == 600
    assert sum("drawing" in out for out, _ in ends) == (1 if locks else 2)
    assert [p for p in root.glob(".*") if p.is_dir()] == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, *args: object) -> Image.Image:
        if name == "flower":
            raise OSError(28, "No space left on device")
        return glyphs.draw(name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(folders_module, "draw", full)
    with pytest.raises(OSError, match="No space left"):
        image_folder(root=tmp_path, train_per_class=1, test_per_class=1)
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**kwargs: object) -> str:  # tests may run as root, who may write everywhere
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders_module.tempfile, "mkdtemp", refuse)
    with pytest.raises(PermissionError, match="Permission denied.*COURSE_HOME"):
        image_folder(root=tmp_path)


# The dataset ----------------------------------------------------------------------------------------------------------


def test_memory_and_files_hold_the_same_images(small: Path) -> None:
    memory, files = (image_set(split="test", pixels=32, root=small, in_memory=m, **FEW) for m in (True, False))
    assert memory.images is not None and memory.images.shape == (200, 3, 32, 32) and memory.images.dtype == torch.uint8
    assert files.images is None and len(memory) == len(files) == 200
    assert memory.classes == files.classes == list(workloads.GLYPHS)
    for i in (0, 57, 199):
        (x, y), (x2, y2) = memory[i], files[i]
        assert x.shape == (3, 32, 32) and x.dtype == torch.float32 and type(y) is int
        assert torch.equal(x, x2) and y == y2 == i // 2
        path = image_folder(root=small, **FEW) / "test" / memory.classes[y] / f"{i % 2:04d}.jpg"
        with Image.open(path) as image:
            raw = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        torch.testing.assert_close(x, (raw / 255 - 0.5) / 0.25)
        assert (
            memory.picture(i).tobytes()
            == files.picture(i).tobytes()
            == np.ascontiguousarray(raw.permute(1, 2, 0)).tobytes()
        )


def test_values_are_normalised(small: Path) -> None:
    x = torch.stack([x for x, _ in image_set(pixels=32, root=small, **FEW)])
    assert abs(x.mean()) < 0.5 and 0.6 < x.std() < 1.4


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "spawn"}])
@pytest.mark.parametrize("in_memory", [True, False])
def test_through_a_data_loader(small: Path, workers: dict[str, object], in_memory: bool) -> None:
    images = image_set(pixels=32, root=small, in_memory=in_memory, **FEW)
    x, y = next(iter(DataLoader(images, batch_size=8, sampler=range(290, 300), **workers)))  # type: ignore[arg-type]
    assert y.tolist() == [i // 3 for i in range(290, 298)]
    assert torch.equal(x, torch.stack([images[i][0] for i in range(290, 298)]))


def test_a_worker_gets_the_name_of_the_file_and_not_the_images(small: Path) -> None:
    images = image_set(pixels=32, root=small, **FEW)
    sent = pickle.dumps(images)
    assert images.images is not None and len(sent) < images.images.nbytes / 10
    again = pickle.loads(sent).images
    assert torch.equal(again, images.images)
    again.zero_()  # a copy of its own
    assert pickle.loads(sent).images.any()


def test_second_call_does_not_decode(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = image_set(pixels=32, root=small, **FEW)
    monkeypatch.setattr(images_module, "_decode", lambda *a: pytest.fail("decoded again"))
    second = image_set(pixels=32, root=small, **FEW)
    assert first.images is not None and second.images is not None and torch.equal(first.images, second.images)


@pytest.mark.parametrize("in_memory", [True, False])
def test_transform_gets_bytes_and_comes_before_normalising(small: Path, in_memory: bool) -> None:
    from torchvision.transforms import v2

    def flip(image: torch.Tensor) -> torch.Tensor:
        assert image.dtype == torch.uint8 and image.shape == (3, 32, 32)
        return image.flip(-1)

    plain = image_set(pixels=32, root=small, in_memory=in_memory, **FEW)
    flipped = image_set(pixels=32, root=small, in_memory=in_memory, transform=flip, **FEW)
    assert torch.equal(flipped[5][0], plain[5][0].flip(-1))
    assert torch.equal(flipped.__getitems__([5, 7])[1][0], plain[7][0].flip(-1))
    cropped = image_set(pixels=32, root=small, in_memory=in_memory, transform=v2.RandomCrop(24), **FEW)
    assert next(iter(DataLoader(cropped, 4)))[0].shape == (4, 3, 24, 24)
    raw = image_set(pixels=32, root=small, in_memory=in_memory, transform=flip, normalized=False, **FEW)
    images, labels = next(iter(DataLoader(raw, 8)))
    assert images.dtype == torch.uint8 and labels[5] == flipped[5][1]
    assert torch.equal(normalize(images)[5], flipped[5][0])


def test_large_sets_stay_in_their_files(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "IN_MEMORY_BYTES", 300 * 3 * 32 * 32 - 1)
    assert image_set(pixels=32, root=small, **FEW).images is None
    assert image_set(pixels=32, split="test", root=small, **FEW).images is not None


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda root: image_set(split="val", root=root), '"train" or "test"'),
        (lambda root: image_folder(pixels=8, root=root), "16 to 1024"),
        (lambda root: image_folder(train_per_class=0, root=root), "train_per_class"),
    ],
)
def test_wrong_arguments(tmp_path: Path, call: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call(tmp_path)  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []


# A folder of one's own ------------------------------------------------------------------------------------------------


def make_folder(
    root: Path, splits: tuple[str, ...] = ("train", "val"), classes: tuple[str, ...] = ("cat", "dog")
) -> Path:
    for split in splits:
        for k, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (80, 60), (100 * k + i, 50, 200)).save(root / split / name / f"IMG_{i}.JPEG")
    return root


def test_own_folder(tmp_path: Path) -> None:
    own = make_folder(tmp_path / "own")
    before = contents(own)
    assert image_folder(own) == image_folder(str(own)) == own
    for in_memory in (True, False):
        test = image_set(own, "test", pixels=48, root=tmp_path / "cache", in_memory=in_memory)
        assert test.classes == ["cat", "dog"] and test.labels.tolist() == [0, 0, 1, 1]
        assert test[0][0].shape == (3, 48, 48)
        assert abs(test.picture(3).getpixel((24, 24))[0] - 101) <= 3
    assert contents(own) == before, "someone else's folder must stay as it is"


def test_own_folder_is_decoded_again_after_a_change(tmp_path: Path) -> None:
    own = make_folder(tmp_path / "own")
    first = image_set(own, pixels=32, root=tmp_path / "cache")
    Image.new("RGB", (40, 40), (0, 255, 0)).save(own / "train" / "dog" / "IMG_9.jpg")
    second = image_set(own, pixels=32, root=tmp_path / "cache")
    assert (len(first), len(second)) == (4, 5) and second.picture(4).getpixel((9, 9))[1] > 240


def test_unlabelled_test_folder_gives_way_to_val(tmp_path: Path) -> None:
    own = make_folder(tmp_path / "own")
    (own / "test").mkdir()
    Image.new("RGB", (40, 40)).save(own / "test" / "ILSVRC_1.JPEG")
    assert len(image_set(own, "test", pixels=32, root=tmp_path / "cache")) == 4


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda own: shutil.rmtree(own), "is not a folder"),
        (lambda own: shutil.rmtree(own / "train"), "no class folders in train/"),
        (lambda own: shutil.rmtree(own / "val"), "no class folders in val/ or test/"),
        (lambda own: shutil.rmtree(own / "val" / "dog"), "other classes in train/ than in val/: dog"),
        (lambda own: [p.unlink() for p in (own / "train" / "cat").iterdir()], "no image in train/cat/"),
    ],
)
def test_what_is_not_an_image_folder_is_said_in_one_sentence(tmp_path: Path, spoil: object, says: str) -> None:
    own = make_folder(tmp_path / "own")
    spoil(own)  # type: ignore[operator]
    with pytest.raises((ValueError, FileNotFoundError), match=says) as error:
        image_set(own, pixels=32, root=tmp_path / "cache")
    assert "glyphs" in str(error.value) and "cifar100" in str(error.value) and "\n" not in str(error.value)


# CIFAR-100 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cifar_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An archive in the format of CIFAR-100, 3 images per class to train and 2 to test, on a web server that
    torchvision takes for the real one."""
    from torchvision.datasets import CIFAR100

    names = [f"thing_{i:02d}" for i in range(100)]
    parts = {"meta": {"fine_label_names": names}}
    for split, count in (("train", 3), ("test", 2)):
        labels = [label for _ in range(count) for label in range(100)]
        parts[split] = {"data": np.array([[label] * 3072 for label in labels], np.uint8), "fine_labels": labels}
    archive = tmp_path / "server" / "cifar-100-python.tar.gz"
    archive.parent.mkdir()
    digests = {}
    with tarfile.open(archive, "w:gz") as tar:
        for name, part in parts.items():
            data = pickle.dumps(part)
            digests[name] = hashlib.md5(data).hexdigest()
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(CIFAR100, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(CIFAR100, "train_list", [["train", digests["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", digests["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": digests["meta"]})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(archive.parent)))
    monkeypatch.setattr(CIFAR100, "url", f"http://127.0.0.1:{server.server_port}/{archive.name}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield archive
    server.shutdown()
    server.server_close()


def test_cifar100(tmp_path: Path, cifar_archive: Path) -> None:
    root = tmp_path / "cache"
    train, test = (
        image_set("cifar100", split, pixels=32, root=root, train_per_class=3, test_per_class=2)
        for split in ("train", "test")
    )
    assert (len(train), len(test)) == (300, 200) and train.classes[7] == "thing_07"
    assert train.picture(3 * 42).getpixel((5, 5)) == (42, 42, 42) and train.labels[3 * 42] == 42
    with Image.open(image_folder("cifar100", 48, root, 1, 1) / "train" / "thing_99" / "0000.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (48, 48))
    with pytest.raises(ValueError, match="has 3 images a class in train"):
        image_folder("cifar100", root=root, train_per_class=4, test_per_class=2)


def test_cifar100_archive_brought_by_hand(tmp_path: Path, cifar_archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR100

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(CIFAR100, "url", "http://127.0.0.1:9/cifar-100-python.tar.gz")
    root = tmp_path / "cache"
    root.mkdir()
    shutil.copy(cifar_archive, root)
    assert len(image_set("cifar100", "test", pixels=32, root=root, train_per_class=1, test_per_class=1)) == 100


def test_cifar100_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR100

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(CIFAR100, "url", "http://127.0.0.1:9/cifar-100-python.tar.gz")
    with pytest.raises(ConnectionError, match="could not be downloaded") as error:
        image_folder("cifar100", root=tmp_path)
    assert str(tmp_path) in str(error.value) and "cifar-100-python.tar.gz" in str(error.value)
    assert 'source="glyphs"' in str(error.value)
    assert error.value.__suppress_context__
    assert list(tmp_path.glob("cifar100*")) == []


# Where, and which size ------------------------------------------------------------------------------------------------


def test_cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    assert folders_module.cache_root() == tmp_path / "home" / "data" / "cache"
    monkeypatch.delenv("COURSE_HOME")
    assert folders_module.cache_root() == PACKAGE.parent.parent / "data" / "cache"
    shutil.copytree(
        PACKAGE, tmp_path / "job" / "workloads", ignore=shutil.ignore_patterns("__pycache__")
    )  # beside a script, far from the course
    out = subprocess.run(
        [sys.executable, "-c", "from workloads import image_folders; print(image_folders.cache_root())"],
        cwd=tmp_path / "job",
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == str(tmp_path / "job" / "data" / "cache")


def test_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("COURSE_SIZE", "COURSE_GPU_BYTES"):
        monkeypatch.delenv(name, raising=False)
    assert workloads.default_size() == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for cards, size in [
        ([15_636_037_632], "gpu"),  # T4
        ([12_622_495_744], "small-gpu"),  # "12 GB"
        ([8_361_213_952], "small-gpu"),  # "8 GB"
        ([85 << 30, 8 << 30], "small-gpu"),  # all ranks take the same
    ]:
        about = [SimpleNamespace(total_memory=nbytes) for nbytes in cards]
        monkeypatch.setattr(torch.cuda, "device_count", about.__len__)
        monkeypatch.setattr(torch.cuda, "get_device_properties", about.__getitem__)
        assert workloads.default_size() == size, cards
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("a worker of a rank may not start CUDA"))
    for nbytes, size in ((8 << 30, "small-gpu"), (80 << 30, "gpu")):
        monkeypatch.setenv("COURSE_GPU_BYTES", str(nbytes))
        assert workloads.default_size() == size
    monkeypatch.setenv("COURSE_SIZE", "cpu")
    assert workloads.default_size() == "cpu"
    monkeypatch.setenv("COURSE_SIZE", "tpu")
    with pytest.raises(ValueError, match="COURSE_SIZE"):
        workloads.default_size()
    with pytest.raises(ValueError, match="huge"):
        image_model("huge")


def test_import_needs_nothing_else_of_the_course() -> None:
    code = (
        "import sys; import course_utils.workloads; print(sorted(m for m in sys.modules if"
        " m.startswith('course_utils')))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent.parent
    )
    found = set(eval(out.stdout))
    assert {m for m in found if not m.startswith("course_utils.workloads")} <= {"course_utils"}


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from course_utils.workloads.__main__ import main

    own = make_folder(tmp_path / "own")
    monkeypatch.setattr(sys, "argv", ["workloads", str(own), "--pixels", "32", "--root", str(tmp_path / "cache")])
    main()
    assert "train: 4 images in 2 classes" in capsys.readouterr().out


# Models ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [image_model, workloads.resnet])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_image_models(make: object, norm: str) -> None:
    from torch import nn

    model = make("cpu", classes=7, norm=norm)  # type: ignore[operator]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    kinds = {type(m) for m in model.modules()} & {nn.BatchNorm2d, nn.GroupNorm}
    assert kinds == {nn.BatchNorm2d if norm == "batch" else nn.GroupNorm}
    assert sum(p.numel() for p in model.parameters()) < 1e6
    with torch.device("meta"):
        for size in ("small-gpu", "gpu"):
            side = workloads.PIXELS[size]
            assert make(size, norm=norm)(torch.empty(2, 3, side, side)).shape == (2, 100)  # type: ignore[operator]


def test_unknown_norm() -> None:
    with pytest.raises(ValueError, match='"batch" or "group"'):
        image_model("cpu", norm="layer")


@pytest.mark.parametrize(("norm", "equal"), [(None, True), ("batch", False)])
def test_two_half_batches_equal_one_whole_batch_without_batch_norm(norm: str | None, equal: bool) -> None:
    """What the lessons say about replicas, and why "group" is the default of the cpu size."""
    torch.manual_seed(0)
    model = image_model("cpu", norm=norm).double()
    x, y = torch.randn(8, 3, 32, 32, dtype=torch.double), torch.arange(8)

    def gradient(parts: list[slice]) -> torch.Tensor:
        model.zero_grad()
        for part in parts:
            (F.cross_entropy(model(x[part]), y[part]) / len(parts)).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    gap = (gradient([slice(0, 8)]) - gradient([slice(0, 4), slice(4, 8)])).abs().max()
    assert (gap < 1e-12) if equal else (gap > 1e-4)


def test_deep_mlp_and_its_batch() -> None:
    x, y = workloads.batch(size="cpu")
    model = workloads.deep_mlp(size="cpu")
    assert model(x).shape == (256, 100) and y.dtype == torch.int64 and 0 <= y.min() and y.max() < 100
    sizes = {p.numel() for p in model.parameters() if p.dim() == 2 and p.shape[0] == p.shape[1]}
    assert sizes == {512 * 512}
    x, _ = workloads.batch(4, width=8, size="cpu")
    assert workloads.deep_mlp(8, 2, size="cpu")(x).shape == (4, 100)
    with torch.device("meta"):
        for size in ("small-gpu", "gpu"):
            assert workloads.deep_mlp(size=size)(workloads.batch(2, size)[0]).shape == (2, 100)


def test_transformer_looks_only_back() -> None:
    torch.manual_seed(0)
    model = workloads.transformer("cpu").eval()
    x, y = workloads.tokens(3, size="cpu")
    assert x.shape == y.shape == (3, 64) and torch.equal(x[:, 1:], y[:, :-1])
    out = model(x)
    assert out.shape == (3, 64, 256)
    changed = x.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    gap = (model(changed) - out).abs().amax(dim=(0, 2))
    assert gap[:40].max() < 1e-5 and gap[40:].min() > 1e-5
    with torch.device("meta"):
        for size, length in (("small-gpu", 512), ("gpu", 1024)):
            assert workloads.transformer(size)(workloads.tokens(1, size)[0]).shape == (1, length, 256)


# Learnable ------------------------------------------------------------------------------------------------------------


def train(source_root: Path, epochs: int, norm: str | None = None) -> float:
    """The recipe in the docstring of `image_model`, on two threads: test accuracy."""
    train_set, test_set = (image_set(split=split, pixels=32, root=source_root) for split in ("train", "test"))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(0)
        model = image_model("cpu", norm=norm)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(epochs):
            for x, y in DataLoader(train_set, batch_size=128, shuffle=True):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test_set, batch_size=500))
    finally:
        torch.set_num_threads(threads)
    return hits / len(test_set)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("training")  # all cores each, so one after the other
@pytest.mark.parametrize("norm", [None, "batch"])
def test_glyphs_can_be_learned(tmp_path: Path, norm: str | None) -> None:
    accuracy = train(tmp_path, epochs=3, norm=norm)
    assert accuracy > 0.6, f"test accuracy {accuracy:.1%}"
