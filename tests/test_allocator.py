"""The caching allocator of an emulated GPU: what it takes from the device, splits, keeps, joins and gives back."""

from __future__ import annotations

import json
import random
import textwrap
from pathlib import Path
from typing import Any

import pytest

from course_utils.emulation.allocator import Allocator, Block
from course_utils.emulation.memory import Memory, settings
from course_utils.launching.launcher import launch

MIB = 1 << 20


def taken(allocator: Any, nbytes: int, stream: int = 0) -> Any:
    """A block of an allocator, or a chunk of a memory."""
    kind = ("weights",) if isinstance(allocator, Memory) else ()
    block = allocator.take(nbytes, *kind, stream)
    assert block is not None
    return block


@pytest.mark.parametrize(
    ("asked", "reserved"),
    [  # kSmallBuffer, kLargeBuffer, kMinLargeAlloc and kRoundLarge of c10/cuda/CUDACachingAllocator
        ([1], 2 * MIB), ([MIB], 2 * MIB), ([MIB, MIB], 2 * MIB), ([MIB, MIB, 1], 4 * MIB), ([MIB + 1], 20 * MIB),
        ([10 * MIB - 512], 20 * MIB),
        ([10 * MIB - 511], 10 * MIB), ([9 * MIB, 9 * MIB, 2 * MIB], 20 * MIB), ([10 * MIB], 10 * MIB),
        ([10 * MIB + 1], 12 * MIB), ([99 * MIB + 1], 100 * MIB), ([1, 2 * MIB], 22 * MIB),
    ],
)  # fmt: skip
def test_what_it_takes_from_the_device(asked: list[int], reserved: int) -> None:
    allocator = Allocator(1 << 40)
    for nbytes in asked:
        taken(allocator, nbytes)
    assert allocator.reserved == allocator.peak == reserved


def test_a_free_block_serves_its_own_stream_and_the_smallest_that_fits_is_cut() -> None:
    allocator = Allocator(1 << 40)
    small, large = taken(allocator, 30 * MIB), taken(allocator, 50 * MIB)
    allocator.give_back(small)
    allocator.give_back(large)
    assert allocator.reserved == 80 * MIB
    again = taken(allocator, 20 * MIB)
    assert again is small and again.size == 20 * MIB, "cut from the smaller one"
    other = taken(allocator, 20 * MIB, stream=7)
    assert allocator.reserved == 100 * MIB, "nothing of another stream's"
    allocator.give_back(other)
    assert taken(allocator, 15 * MIB, stream=7) is other and allocator.reserved == 100 * MIB, "its own comes back"
    whole = taken(allocator, 49 * MIB + 1)
    assert whole is large and whole.size == 50 * MIB, "less than a MiB isn't worth to be cut off"
    allocator.give_back(again)
    assert again.size == 30 * MIB, "joined with what was cut off"


def test_pieces_that_nothing_fits_into() -> None:
    """Sixteen blocks from one segment, every other one free: half of it is there, and 20 MiB don't fit."""
    for expandable, megabytes in ((False, 10), (True, 20)):
        allocator = Allocator(16 * megabytes * MIB, expandable)
        whole = taken(allocator, 16 * megabytes * MIB)
        allocator.give_back(whole)
        blocks = [taken(allocator, megabytes * MIB) for _ in range(16)]
        for block in blocks[::2]:
            allocator.give_back(block)
        found = allocator.take(2 * megabytes * MIB)
        assert (found is not None) == expandable, "an expandable segment gives the pages back, and grows by them"
        if found is not None:
            allocator.give_back(found)
        for block in blocks[1::2]:
            allocator.give_back(block)
        assert taken(allocator, allocator.limit).size == allocator.limit == allocator.reserved


def test_an_expandable_segment_grows_where_it_ends() -> None:
    usual, expandable = Allocator(1 << 40), Allocator(1 << 40, True)
    for nbytes in (40, 60, 80, 100):  # a batch that grows: each time the old one is too small
        for allocator in (usual, expandable):
            allocator.give_back(taken(allocator, nbytes * MIB))
    assert (usual.reserved, expandable.reserved) == (280 * MIB, 100 * MIB)
    keep = taken(expandable, 15 * MIB)
    assert expandable.give_back_what_is_free() == 80 * MIB and expandable.reserved == 20 * MIB
    expandable.give_back(keep)
    assert expandable.give_back_what_is_free() == 20 * MIB and not expandable.segments


def test_a_full_device_gets_back_what_was_kept() -> None:
    allocator = Allocator(100 * MIB)
    allocator.give_back(taken(allocator, 60 * MIB))
    assert taken(allocator, 80 * MIB).size == 80 * MIB
    assert (allocator.reserved, allocator.peak, allocator.retries) == (80 * MIB, 80 * MIB, 1)
    assert allocator.take(40 * MIB) is None and allocator.take(1 * MIB, most=80 * MIB) is None


def test_what_is_too_large_to_be_cut_goes_back_first() -> None:
    """`max_split_size_mb`: the smallest block that suffices, or the largest ones, and what's small stays."""
    allocator = Allocator(100 * MIB, oversize=40 * MIB)
    small = taken(allocator, MIB)
    for asked in ([45, 48], [90]):
        blocks = [taken(allocator, n * MIB) for n in asked]
        allocator.give_back(small)
        for block in blocks:
            allocator.give_back(block)
        small = taken(allocator, MIB)
        assert taken(allocator, 30 * MIB).size == 30 * MIB and allocator.retries == 0
        assert allocator.reserved == (2 + 30 + sum(asked[1:])) * MIB
        allocator = Allocator(100 * MIB, oversize=40 * MIB)
        small = taken(allocator, MIB)
    for block in [taken(allocator, 45 * MIB), taken(allocator, 48 * MIB)]:
        allocator.give_back(block)
    assert taken(allocator, 80 * MIB).size == 80 * MIB == allocator.reserved - 2 * MIB
    assert allocator.retries == 0


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_overlaps_and_all_is_counted(expandable: bool, seed: int) -> None:
    draw, allocator = random.Random(seed), Allocator(4 << 30, expandable)
    live: dict[Block, int] = {}
    for _ in range(1500):
        if live and draw.random() < 0.48:
            block = draw.choice(list(live))
            assert block.size >= live.pop(block)
            allocator.give_back(block)
        else:
            nbytes = int(2 ** draw.uniform(5, 28))
            if (found := allocator.take(nbytes, draw.randrange(3))) is not None:
                live[found] = nbytes
        if draw.random() < 0.02:
            allocator.give_back_what_is_free()
    cut = []
    for address, segment in allocator.segments.items():
        blocks = list(segment)
        assert segment.first is blocks[0] and segment.last is blocks[-1]
        for block in blocks:
            assert block.address == address and block.free + block.hole == (block not in live)
            address += block.size
        assert not any(a.free and b.free for a, b in zip(blocks, blocks[1:], strict=False)), "neighbours are joined"
        cut += [block.size for block in blocks if block.free and block.split]
    reserved, segments, pieces, piece_bytes = (count.current for count in allocator.counts["all"])
    mapped = [block for segment in allocator.segments.values() for part in segment.ranges for block in part]
    assert reserved == sum(block.size for block in mapped) <= 4 << 30
    of_torch = (0, 0, 0) if expandable else (len(allocator.segments), len(cut), sum(cut))
    assert (segments, pieces, piece_bytes) == of_torch, "of expandable segments torch counts the bytes only"
    for block in live:
        allocator.give_back(block)
    allocator.give_back_what_is_free()
    assert allocator.reserved == 0 and not allocator.segments
    assert all(count.current == 0 for counts in allocator.counts.values() for count in counts)


REAL: dict[str, Any] = json.loads((Path(__file__).parent / "recorded_allocator.json").read_text())


@pytest.mark.parametrize("real", REAL["runs"], ids=lambda run: f"{run['settings'] or 'usual'}-{run['seed']}")
def test_it_holds_what_a_real_gpu_held(real: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """600 blocks of up to 380 MiB, taken and given back at random on three streams: after every third, all that torch
    counted on an H200, to the last byte."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", real["settings"])
    draw, memory, live, found = random.Random(real["seed"]), Memory(150 << 30), [], []
    memory.give_back(taken(memory, 1))
    memory.empty_cache()
    memory.start_over()
    for _ in range(600):
        if live and draw.random() < 0.46:
            memory.give_back(live.pop(draw.randrange(len(live))))
        else:
            nbytes = int(2 ** draw.uniform(5, 28.5))
            live.append(taken(memory, nbytes, draw.randrange(3)))
        if draw.random() < 0.02:
            memory.empty_cache()
        stats = memory.stats()
        split_bytes = stats["inactive_split_bytes"]["all"]["current"]
        calls = stats["num_device_alloc"]
        counts = [stats[key]["all"]["current"] for key in ("segment", "active")]
        found.append([memory.live >> 9, memory.reserved >> 9, *counts, split_bytes >> 9, calls])
    rows = [[*row[:5], row[5] - real["rows"][0][5]] for row in real["rows"]]
    assert [[*row[:5], row[5] - found[0][5]] for row in found[::3]] == rows
    assert memory.stats()["reserved_bytes"]["all"]["peak"] == real["peak"]


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        ("expandable_segments:true", "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'"),
        ("max_split_size_mb:64, expandable_segments:1", "Expected 'True' or 'False' at index 6 .* but got '1'"),
        ("max_split_size_mb:4", "max_split_size_mb too small, must be >= 20"),
        ("max_split_size_mb:-1", "a whole number of MiB, and not '-1'"),
    ],
)
def test_settings_that_torch_refuses(asked: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", asked)
    with pytest.raises(ValueError, match=wrong):
        Memory(1 << 40).take(1, "weights")


def test_what_is_equally_much_is_told_in_one_order() -> None:
    """Of weights and DDP's buckets, say, whose chunks lie in a set."""
    told = set()
    for _ in range(50):
        memory = Memory(80 << 30)
        kept = [memory.take(28 << 30, kind) for kind in random.sample(["buckets", "weights"], 2)]
        told.add(memory.breakdown().partition(". ")[0])
        del kept
    assert told == {"weights 28.00 GiB, buckets 28.00 GiB"}


def test_settings_that_are_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In any order, with spaces, and beside lists of settings that aren't modelled, which are named."""
    for asked, found in (
        ("", (False, None)), (" max_split_size_mb: 64 , expandable_segments:True,", (True, 64 << 20)),
        ("roundup_power2_divisions:[256:1,512:2],expandable_segments:True", (True, None)),
    ):  # fmt: skip
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", asked)
        assert settings() == found
    said = "".join(capsys.readouterr())
    assert "not roundup_power2_divisions" in said and "512" not in said


PROGRAM = """
import os, sys, torch
from course_utils.rank import device, report
d = device()
torch.cuda.memory._record_memory_history()
for mib in (300, 400, 500):
    x = torch.empty(mib << 18, device=d)
    del x
keep = torch.empty(3 << 18, device=d)
with torch.cuda.stream(torch.cuda.Stream()):
    other = torch.empty(100 << 18, device=d)
stats, snapshot = torch.cuda.memory_stats(), torch.cuda.memory._snapshot()
free, total = torch.cuda.mem_get_info()
held = torch.cuda.memory_reserved()
report(
    reserved=held >> 20, live=torch.cuda.memory_allocated() >> 20, most=torch.cuda.max_memory_reserved() >> 20,
    left=(total - free) >> 20, told=stats["reserved_bytes.all.current"] >> 20,
    segments=sum(s["total_size"] for s in snapshot["segments"]) >> 20,
    streams=len({s["stream"] for s in snapshot["segments"]}),
    blocks=sum(b["size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] != "inactive") >> 20,
    actions=sorted({e["action"] for e in snapshot["device_traces"][0]}), expandable=snapshot["segments"][0]["is_expandable"],
)
del other
torch.cuda.empty_cache()
report(after=torch.cuda.memory_reserved() >> 20)
full = torch.empty(14 << 28, device=d)
try:
    torch.empty(14 << 28, device=d)
except torch.OutOfMemoryError as error:
    report(error=str(error))
del full, keep
torch.empty(145 * 100 << 18, device=d)
parts = [torch.empty(100 << 18, device=d) for _ in range(145)]
del parts[::2]
try:
    torch.empty(500 << 18, device=d)
except torch.OutOfMemoryError as error:
    report(pieces=str(error))
"""  # noqa: E501


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_a_program_sees_what_the_allocator_holds(
    settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    run = launch(script, 1, cluster="1xT4", env={"PYTORCH_ALLOC_CONF": settings}, quiet=True)
    held: dict[str, Any] = {k: v for record in run.ranks[0].records for k, v in record.items()}
    assert held["reserved"] == held["most"] == held["left"] == held["told"] == held["segments"]
    assert held["live"] == held["blocks"] == 103 and held["streams"] == 2
    assert held["expandable"] == bool(settings)
    assert held["reserved"] == (600 if settings else 1300)
    assert held["after"] == (20 if settings else 300), "of the segment that the small one lies in"
    assert {"alloc", "free_completed"} <= set(held["actions"])
    assert ("segment_map" in held["actions"]) == ("segment_alloc" not in held["actions"]) == bool(settings)
    assert "Tried to allocate 14336 MiB" in held["error"] and "GiB more are reserved" not in held["error"]
    assert ("GiB more are reserved, in pieces" in held.get("pieces", "")) == (not settings)
