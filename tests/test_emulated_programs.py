"""Programs of the kinds that people bring run on modelled GPUs: those of `outside_programs.py`, in one launch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from course_utils.launching.launcher import launch

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all

PROGRAMS = Path(__file__).with_name("outside_programs.py")
KINDS = re.findall(r"^def (\w+)\(\) -> None:$", PROGRAMS.read_text(), re.M)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What each kind left: an empty word, or a rank's traceback."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "tokens.bin").write_bytes(bytes(range(256)) * 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_HOME", str(folder))
        run = launch(PROGRAMS, 4, [folder], cluster="4xA100", check=False, quiet=True, timeout=300)
    records = [record for rank in run.ranks for record in rank.records]
    yield {record["kind"]: record for record in sorted(records, key=lambda record: record["failed"])}


@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_this_kind_run(kind: str, found: dict[str, Any]) -> None:
    left = found.get(kind, {"failed": f"not reached, after {[*found][-1:]}"})
    assert left["failed"] == "", left["failed"]
    assert left["peak_bytes"] > 0
