"""How often to save, what recomputing in segments holds, and what a checkpoint in parts keeps of each rank."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from conftest import ROOT

from course_utils import predict
from course_utils.launching.launcher import launch


def test_the_interval_loses_less_than_its_neighbours_and_saving_and_repeating_cost_the_same_there():
    best = predict.save_interval(60, 11_135)
    lost = predict.lost_share(best, 60, 11_135)
    assert lost < predict.lost_share(0.9 * best, 60, 11_135) and lost < predict.lost_share(1.1 * best, 60, 11_135)
    assert 60 / best == pytest.approx(best / 2 / 11_135)
    assert predict.lost_share(2 * best, 60, 11_135) == pytest.approx(1.25 * lost)


def test_a_restart_adds_to_every_interval_and_nothing_loses_more_than_all():
    assert predict.lost_share(100, 1, 10_000, restart_s=50) == pytest.approx(
        predict.lost_share(100, 1, 10_000) + 50 / 10_000
    )
    assert predict.lost_share(1, 60, 600) == 1


@pytest.mark.parametrize("bad", [{"save_s": 0.0}, {"failure_s": -1.0}, {"save_s": float("nan")}])
def test_a_bad_number_is_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        predict.save_interval(**({"save_s": 1.0, "failure_s": 1.0} | bad))


def test_a_chain_of_layers_that_keep_more_than_their_input_wants_more_segments():
    as_published = [predict.checkpoint_chain(64, k).held for k in range(1, 65)]
    assert as_published == [predict.checkpoint_chain(64, k, input_share=1.0).held for k in range(1, 65)]
    assert 1 + as_published.index(min(as_published)) == 8  # the square root
    held = [predict.checkpoint_chain(64, k, input_share=1 / 16).held for k in range(1, 65)]
    assert 1 + held.index(min(held)) == 32
    with pytest.raises(ValueError, match="input_share"):
        predict.checkpoint_chain(8, 8, input_share=0)


def with_a_file_by_rank() -> tuple[str, str]:
    """The lines of lesson 10 that save what differs from rank to rank, and those that load it."""
    cells = json.loads((ROOT / "notebooks" / "10_sharded_training.ipynb").read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    (found,) = [
        block
        for text in texts
        for block in re.findall(r"<pre>(.*?)</pre>", text, re.S)
        if "random_{dist.get_rank()}" in block
    ]
    save, load = re.split(r"(?m)^# in the next job.*\n", found)
    return save, load + "\n"


RANDOM_STATES = """import sys
from pathlib import Path
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from course_utils.rank import report

dist.init_process_group("gloo")
FOLDER, rank = sys.argv[1], dist.get_rank()
folder = Path(FOLDER)

def lesson(weights, optimizer_state, epoch):
    torch.manual_seed(rank)
    dcp.save({"model": weights, "optimizer": optimizer_state, "epoch": epoch}, checkpoint_id=folder)
SAVE
    wanted = torch.rand(1).item()
    torch.manual_seed(99)
LOAD
    return wanted, torch.rand(1).item()

wanted, got = lesson({"w": torch.ones(3)}, {"v": torch.zeros(3)}, 4)
report(by_rank=got == wanted)

state = {"random": torch.full((8,), float(rank)), "python": f"of rank {rank}"}      # one name on both ranks
dcp.save(state, checkpoint_id=FOLDER + "2")
dcp.load(state, checkpoint_id=FOLDER + "2")
report(tensor=state["random"][0].item(), python=state["python"])

try:
    dcp.load({f"random_of_rank_{rank + 2}": torch.get_rng_state()}, checkpoint_id=FOLDER)
except CheckpointException as error:      # a BaseException
    report(said=str(error))
dist.destroy_process_group()
"""


def test_a_checkpoint_in_parts_keeps_one_rank_of_a_name_and_files_keep_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lesson 10's own lines on two ranks; beside it what one name for all loses, and what a rank without a name
    reads."""
    save, load = (textwrap.indent(part, "    ") for part in with_a_file_by_rank())
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    path = tmp_path / "states.py"
    path.write_text(RANDOM_STATES.replace("SAVE\n", save).replace("LOAD\n", load))
    run = launch(path, 2, [tmp_path / "parts"], device="cpu", quiet=True)
    assert run.values("by_rank") == [True, True], "each rank draws on from where it saved"
    assert len(set(run.values("tensor"))) == 1 and len(set(run.values("python"))) == 1, (
        "DCP keeps every rank's now: lesson 10 can say so"
    )
    assert all("Missing key in checkpoint state_dict: random_of_rank_" in said for said in run.values("said"))
