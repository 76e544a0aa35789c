"""Lesson 05: what it says of its experiments, for every guess; its figures; and the file to take home."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, concludes_nothing, disturb, made_run

import lesson_05
from course_utils import Run, Samples, launch, predict
from course_utils.cells.claims import ClaimError
from course_utils.figures import Figure

SIX = [0, 1, 2, 3, 4, 5]


def run(*ranks: list[dict[str, object]], **more: Any) -> Run:
    return made_run(*ranks, script=lesson_05.BY_HAND, **more)


def sent(ranks: int, off: float = 0.0) -> Run:
    """What the cell of hooks reports, with the right gradients; `off` is added to one norm of rank 0."""
    norms = list(lesson_05._one_process(ranks, 4))
    wrong = [norms[0] + off, *norms[1:]]
    order = [f"{layer}.{what}" for layer in (3, 2, 1, 0) for what in ("bias", "weight")]
    return run(
        *([*({"sent": name} for name in order), {"norms": wrong if rank == 0 else norms}] for rank in range(ranks))
    )


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "8 sums, those of layer 4 first and those of layer 1 last."),
        (8, "You said 8: one for each weight and each bias."),
        ("8", "You said 8: one for each weight and each bias."),
        (4, "You said 4. That's one for each layer. But a layer has two"),
        (1, "You said 1. There's one for each weight"),
        (99, "You said 99. There's one for each weight"),
        ("the last", "Your bet should be a number."),
    ],
)
def test_the_hooks(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_05.show_hooks(sent(2), guess)
    out = capsys.readouterr().out
    assert said in out and "✓ your hooks give every rank the mean gradient" in out
    with pytest.raises(ClaimError, match="the mean gradient"):
        lesson_05.show_hooks(sent(8, off=0.01), guess)


def test_the_buckets_by_hand_send_the_same_in_fewer_sums(capsys: pytest.CaptureFixture[str]) -> None:
    hooks = sent(2)
    diff = lesson_05.show_buckets(hooks)
    out = capsys.readouterr().out
    assert "8 sums became 2, and the gradients are the same." in out and "✓ with buckets every rank holds" in out
    assert (diff.added, diff.removed) == (0, 0), "the made-up run has the program itself as its script"


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "1.14 times: 1.75 tensors with 8 GPUs, 1.998 with 1,024."),
        (1.15, "You said 1.15 times: you know your rings."),
        (1, "You said 1 times. Nearly."),
        (128, "You said 128 times. That's how many more ranks there are."),
        (2, "You said 2 times. Twice the ranks"),
        (0.5, "You said 0.5 times. It's a little more"),
        ("many", "Your bet should be a number."),
    ],
)
def test_the_ring(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_05.show_ring(guess)
    out = capsys.readouterr().out
    assert said in out and "14 one after the other with 8 GPUs, 2,046 with 1,024" in out


def parts(step_s: float) -> tuple[Run, dict[str, Samples], str]:
    seconds = {"2": step_s, "computing": 0.050, "filling": 0.055, "sums alone": 0.020}
    return run([{}]), {name: Samples([s] * 5, "step_s") for name, s in seconds.items()}, "2"


@pytest.mark.parametrize(
    ("step_s", "guess", "said"),
    [
        (
            0.075,
            ...,
            "In the picture 50% of that was hidden. Overlap saved 0% (the middle half of the steps: 0% to 0%).",
        ),
        (
            0.065,
            50,
            "Overlap saved 50% (the middle half of the steps: 50% to 50%). You said 50%: you don't trust pictures",
        ),
        (0.075, 50, "You said 50%. In the picture both run at once. But they share something"),
        (0.055, 50, "the steps: 100% to 100%). You said 50%. Your machine has a core to spare"),
        (0.050, 100, "Overlap saved 100%"),
        (0.090, "all", "Overlap saved 0% (the middle half of the steps: 0% to 0%). Your bet should be a percentage"),
    ],
)
def test_what_overlap_saved(
    step_s: float, guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lesson_05, "_parts", lambda: parts(step_s))
    spans = [(0, 0.0, 1.0, "compute", ""), (0, 0.5, 1.5, "communication", ""), (1, 0.5, 1.5, "compute", ""),
             (1, 0.0, 1.0, "communication", "")]  # fmt: skip
    monkeypatch.setattr(lesson_05.traces, "load", lambda run: spans)
    figure = lesson_05.show_saved(run([{}]), guess)
    assert said in capsys.readouterr().out.replace("\n", " ")
    assert "showed 50% of it" in str(figure.mpl.get_suptitle())


def test_a_noisy_step_says_nothing_of_what_it_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_, seconds, name = parts(0.065)
    seconds["2"] = Samples([0.055, 0.090, 0.050, 0.080, 0.065], "step_s")  # medians alone would say 50%
    monkeypatch.setattr(lesson_05, "_parts", lambda: (run_, seconds, name))
    spans = [(0, 0.0, 1.0, "compute", ""), (0, 0.5, 1.5, "communication", "")]
    monkeypatch.setattr(lesson_05.traces, "load", lambda run: spans)
    figure = lesson_05.show_saved(run([{}]), 50)
    out = capsys.readouterr().out.replace("\n", " ")
    assert "too close to call here" in out and "You said" not in out and "Overlap saved" not in out
    assert "Too noisy" in str(figure.mpl.get_suptitle())


def test_a_disturbed_step_saves_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = parts(0.06)
    disturb(found[0])
    monkeypatch.setattr(lesson_05, "_parts", lambda: found)
    lesson_05.show_saved(run([{}]), 30)
    concludes_nothing(capsys.readouterr().out.replace("\n", " "), "what overlap saves", 30)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Over Ethernet a step takes 64 ms with 25 MiB and 92 with one bucket for all, 44% more."),
        (50, "You said 50%: you could have bought the right network."),
        (5, "You said 5%. One bucket is full when backward ends"),
        (300, "You said 300%. Half of the step is computing"),
        ("a lot", "Your bet should be a percentage, such as 10."),
    ],
)
def test_the_links(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    slow = dict(zip(lesson_05.BUCKET_MB, (0.072, 0.063, 0.064, 0.072, 0.092), strict=True))
    fast = dict(zip(lesson_05.BUCKET_MB, (0.052, 0.052, 0.052, 0.053, 0.054), strict=True))
    monkeypatch.setattr(lesson_05, "emulated", lambda: {"NVLink": fast, "100 Gbit/s Ethernet": slow})
    figure = lesson_05.show_links(guess)
    out = capsys.readouterr().out.replace("\n", " ")
    assert said in out and "Over NVLink it's 4% more." in out and "✓ over Ethernet one bucket for all" in out
    assert "44% or 4%" in str(figure.mpl.get_suptitle())
    slow[1000] = 0.070
    with pytest.raises(ClaimError, match="more than 20%"):
        lesson_05.show_links(guess)


def test_the_page_begins_with_what_the_emulated_gpus_say() -> None:
    """When their model gets better, the first paragraph has to follow."""
    found = lesson_05.emulated()["100 Gbit/s Ethernet"]
    ms = [f"{found[mb] * 1e3:.0f}" for mb in (lesson_05.DEFAULT_MB, lesson_05.ALL_MB)]
    text = (ROOT / "notebooks" / "05_inside_ddp.ipynb").read_text()
    assert f"makes a step {ms[0]} ms, or {ms[1]}." in text, ms
    assert f"a step takes {ms[0]} ms. With `bucket_cap_mb=1000` it takes {ms[1]}," in text, ms


def skipped(folder: Path, left_out: int | None = 2) -> Run:
    """Two ranks of which rank 1 left out a step, as the lesson's program reports it, and rank 0 waits in the last."""
    ranks: list[list[dict[str, object]]] = []
    for rank in range(2):
        steps = [i for i in SIX if not (rank == 1 and i == left_out)]
        records: list[dict[str, object]] = []
        for i in steps:
            records.append({"backward": i})
            if not (rank == 0 and i == 5 and left_out is not None):
                records.append({"step": i})
        ranks.append(records)
        calls = [{"group": "0", "number": k + 1, "op": "allreduce", "inputs": [[72]], "dtypes": ["Float"], "frames": []}
                 for k in range(len(steps))]  # fmt: skip
        left = {"ended": False, "calls": calls, "standing": None}
        (folder / f"rank{rank}.collectives.json").write_text(json.dumps(left))
    return run(*ranks, folder=folder, stack="in _engine_run_backward\n in backward", outcome="deadlock")


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Rank 0 waits in step 5, the last one."),
        (5, "You said 5: you've met one before."),
        (2, "You said 2. That's where the fault is, and nothing stood still there"),
        (3, "You said 3. Rank 1 was one sum behind"),
        (7, "You said 7. There's no such step."),
        ([2], "Your bet should be a number from 0 to 5."),
    ],
)
def test_the_skipped_step(guess: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = lesson_05.show_skipped(skipped(tmp_path), guess)
    out = capsys.readouterr().out.replace("\n", " ")
    assert said in out and "✓ the ranks summed gradients of different steps" in out
    rows = [re.split(r"  +", line.strip()) for line in str(table).splitlines()[1:]]
    assert rows == [
        ["1", "step 0", "step 0"], ["2", "step 1", "step 1"], ["3", "step 2", "step 3", "mixed"],
        ["4", "step 3", "step 4", "mixed"], ["5", "step 4", "step 5", "mixed"],
        ["6", "step 5", "waits", "nobody joins in"],
    ]  # fmt: skip


def test_ranks_that_skip_nothing_mix_nothing(tmp_path: Path) -> None:
    with pytest.raises(ClaimError, match="different steps"):
        lesson_05.show_skipped(skipped(tmp_path, left_out=None))


# --- the file to take home --------------------------------------------------------------------------------------------


def losses(stdout: str) -> list[tuple[str, str]]:
    return re.findall(r"epoch \d: loss ([\d.]+), windows left out: (\d+)", stdout)


@pytest.mark.timeout(120)
def test_the_file_to_take_home_trains_alike_on_one_rank_and_on_two(tmp_path: Path) -> None:
    """Under torchrun: two ranks with half of each micro-batch are one rank with all of it."""
    found = []
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        answer = torchrun(lesson_05.TAKE_HOME, "--epochs", "2", ranks=ranks, cwd=tmp_path / str(ranks))
        assert answer.returncode == 0, answer.stderr
        assert re.search(r"a micro-batch takes [\d.]+ ms, and [\d.]+ ms with sending", answer.stdout)
        found.append((losses(answer.stdout), torch.load(tmp_path / str(ranks) / "05_accumulate.pt")))
    (one, weights), (two, others) = found
    assert len(one) == 2 and [left_out for _, left_out in one] == ["0", "0"]
    assert all(abs(float(a) - float(b)) < 2e-4 for (a, _), (b, _) in zip(one, two, strict=True)), (one, two)
    assert all(torch.allclose(weights[name], others[name], atol=1e-4) for name in weights)


SPOILED = """
import importlib.util, os, sys
import torch
os.chdir({folder!r})
spec = importlib.util.spec_from_file_location("take_home", {path!r})
take_home = importlib.util.module_from_spec(spec)
spec.loader.exec_module(take_home)
whole = take_home.data

def data(n):
    samples = whole(n)
    samples.tensors[0][100, 0] = float("nan")
    return samples

take_home.data = data
sys.argv[1:] = {args!r}
take_home.main()
total = sum(p.double().sum() for p in torch.load("05_accumulate.pt").values()).item() if int({rank}) == 0 else 0
print("weights", total == total)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("extra", [[], ["--bf16"]])
def test_the_file_to_take_home_leaves_out_a_broken_window_on_all_ranks(extra: list[str], tmp_path: Path) -> None:
    program = tmp_path / "spoiled.py"
    rank = "__import__('os').environ['RANK']"
    args = ["--epochs", "2", *extra]
    program.write_text(SPOILED.format(path=str(lesson_05.TAKE_HOME), args=args, rank=rank, folder=str(tmp_path)))
    left = launch(program, 2, device="cpu", threads=1, quiet=True, timeout=100)
    assert [left_out for _, left_out in losses(left.log(0))] == ["1", "1"], left.log(0)
    assert "weights True" in left.log(0)


# --- figures ----------------------------------------------------------------------------------------------------------


def texts(figure: Figure) -> list[list[str]]:
    """What is written in the cells of each panel."""
    return [[text.get_text() for text in ax.texts] for ax in figure.mpl.axes]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_figure_has_a_panel_for_each_step_and_frames_what_came(n: int) -> None:
    figure = lesson_05.ring(predict.ring_held(n))
    drawn = [ax for ax in figure.mpl.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in drawn] == [
        "before",
        *(f"step {i}: {'add' if i < n else 'copy'}" for i in range(1, 2 * n - 1)),
    ]
    frames = [sum(patch.get_facecolor()[3] == 0 for patch in ax.patches) for ax in drawn]
    assert frames == [0, *[n] * (2 * (n - 1))]
    assert f"{n - 1} step" in figure.summary and "every rank holds the whole sum" in figure.summary
    assert len(figure.png(dpi=50)) > 1000


def test_cells_name_the_ranks_where_there_is_room_and_count_them_otherwise() -> None:
    assert set(sum(texts(lesson_05.ring(predict.ring_held(2))), [])) == {"0", "1", "0+1"}
    assert "all" in texts(lesson_05.ring(predict.ring_held(4)))[-2] and "0+1\n+2" in sum(
        texts(lesson_05.ring(predict.ring_held(4))), []
    )
    assert set(sum(texts(lesson_05.ring(predict.ring_held(8))), [])) == {str(k) for k in range(1, 9)}


def test_a_ring_that_stops_early_is_said_to_be_incomplete() -> None:
    assert "not every rank holds the whole sum" in lesson_05.ring(predict.ring_held(4)[:4]).summary


def test_ranks_that_differ_from_step_to_step_are_refused() -> None:
    held = predict.ring_held(3)
    with pytest.raises(ValueError, match="same ranks and chunks"):
        lesson_05.ring([*held, predict.ring_held(2)[0]])
    with pytest.raises(ValueError, match="same ranks and chunks"):
        lesson_05.ring([])


def test_collectives_show_both_sides_and_frame_what_changed() -> None:
    figure = lesson_05.collectives(
        {"broadcast": ([[1], [2]], [[1], [1]]), "all_gather": ([[1], [2]], [[1, 2], [1, 2]])}
    )
    first, second = figure.mpl.axes[:2]
    assert [t.get_text() for t in first.texts if t.get_text()] == ["1", "1", "2", "1"]
    assert sum(patch.get_facecolor()[3] == 0 for patch in first.patches) == 1, (
        "only rank 1 holds something else than before"
    )
    assert sum(patch.get_facecolor()[3] == 0 for patch in second.patches) == 4
    assert "rank 1 [2] becomes [1, 2]" in figure.summary


def test_collectives_without_an_exchange_or_with_missing_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        lesson_05.collectives({})
    with pytest.raises(ValueError, match="2 ranks before and 1 after"):
        lesson_05.collectives({"reduce": ([[1], [2]], [[3]])})
