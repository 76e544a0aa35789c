"""Lesson 14: a right program gets the same score everywhere, and one that cheats gets none, with the reason."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
from conftest import ROOT

from course_utils import LaunchError

sys.path.insert(0, str(ROOT / "notebooks"))
import lesson_14
from lesson_14 import rules, scoring, toy
from lesson_14.rules import Refused
from lesson_14.steps import way_up

NOTEBOOK = ROOT / "notebooks" / "14_capstone.ipynb"
CHEATS = tomllib.loads((ROOT / "tests" / "capstone.toml").read_text(encoding="utf-8"))
LIGHT = scoring.light_tokens_per_s()
WAY = {step.name: step.program for step in way_up()}


def cheating(row: dict[str, Any]) -> str:
    source = WAY[row["base"]]
    for was, now in row["replace"]:
        assert source.count(was) == 1, f"{was!r} occurs {source.count(was)} times"
        source = source.replace(was, now)
    return source


def refused(where: str, source: str, tmp_path: Path) -> str:
    """Why a program gets no score, by what looks at it there; empty if it passes."""
    (tmp_path / "program.py").write_text(source)
    try:
        rules.check(source)
        if where == "toy":
            toy.gate(tmp_path / "program.py")
        elif where == "clock":
            scoring.score(tmp_path / "program.py", "it")
    except Refused as why:
        return str(why)
    return ""


# --- Programs that are right ------------------------------------------------------------------------------------------


def test_the_notebook_has_the_program_that_the_reference_is() -> None:
    cells = [c.source for c in nbformat.read(NOTEBOOK, as_version=4).cells]
    (cell,) = (source for source in cells if source.startswith("%%attempt "))
    assert cell.partition("\n")[2].rstrip() == toy.NAIVE.read_text().rstrip()
    assert len(cell.splitlines()) <= 125


@pytest.mark.parametrize("name", WAY)
def test_a_way_up_keeps_the_rules(name: str) -> None:
    rules.check(WAY[name])


@pytest.mark.parametrize("name", [n if n == "fused-adamw" else pytest.param(n, marks=pytest.mark.slow) for n in WAY])
def test_a_way_up_passes_the_gate_at_toy_size(name: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WAY[name])
    assert len(toy.gate(tmp_path / "program.py")) == 3


@pytest.mark.slow
def test_each_step_is_faster_by_what_it_says(tmp_path: Path) -> None:
    parts = []
    for name, source in WAY.items():
        (tmp_path / f"{name}.py").write_text(source)
        parts.append(scoring.score(tmp_path / f"{name}.py", name)[0].part)
    assert parts == sorted(parts)
    assert 0.02 < parts[0] < 0.04 and parts[[*WAY].index("fused-adamw")] >= lesson_14.COURSE
    assert parts[-1] >= lesson_14.EXPERT


def test_a_score_is_the_same_to_the_last_digit(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WAY["fused-adamw"])
    first, second = (scoring.score(tmp_path / "program.py", "it")[0] for _ in range(2))
    assert first.tokens_per_s == second.tokens_per_s and first.seconds == second.seconds
    assert first.part >= lesson_14.COURSE and 20 << 30 < first.peak_bytes < 79 << 30
    assert sum(first.seconds.values()) == pytest.approx(2 * first.step_s, rel=0.02)


@pytest.mark.slow
def test_an_optimizer_that_is_shared_out_counts_as_one(tmp_path: Path) -> None:
    """ZeRO's steps another one inside, for this rank's part."""
    source = WAY["ddp"]
    for was, now in (
        ("torch.optim.AdamW(", "ZeroRedundancyOptimizer("),
        ("lr=3e-4, foreach=False", "optimizer_class=torch.optim.AdamW, lr=3e-4"),
        ("import argparse\n", "import argparse\nfrom torch.distributed.optim import ZeroRedundancyOptimizer\n"),
    ):
        assert source.count(was) == 1
        source = source.replace(was, now)
    (tmp_path / "program.py").write_text(source)
    rules.check(source)
    found, _ = scoring.score(tmp_path / "program.py", "zero")
    (tmp_path / "plain.py").write_text(WAY["ddp"])
    assert found.part > scoring.score(tmp_path / "plain.py", "plain")[0].part


def test_the_speed_of_light_is_what_the_page_says() -> None:
    weights = scoring.weights_of(scoring.GPT)
    reference = toy._reference().GPT(*toy.TOY.values())
    assert sum(p.numel() for p in reference.parameters()) == scoring.weights_of(toy.TOY)
    assert 1.3e9 < weights < 1.33e9 and scoring.peak_flops() == 8 * 312e12
    attention = 12 * 24 * 2048 * 2048
    assert scoring.light_tokens_per_s() == pytest.approx(8 * 312e12 / (6 * weights + attention), rel=1e-9)


# --- Programs that cheat ----------------------------------------------------------------------------------------------


def test_at_least_twenty_cheats_are_tried() -> None:
    assert len(CHEATS) >= 20 and {row["where"] for row in CHEATS.values()} == {"rules", "toy", "clock"}


def test_no_part_of_the_check_has_the_loss_of_all(tmp_path: Path) -> None:
    """Else a program that checks some of its sequences passes by chance."""
    assert toy._a_part_would_do([1.0, 5.0] * 6), "the first two would do"
    assert toy._a_part_would_do([float(i) for i in [0, 1, 2, 5, 3, 4, 6, 7, 12, 20, 0, 0]]), "every twelfth, the fourth"
    assert not toy._a_part_would_do([2.0**i for i in range(12)])
    toy._deal(tmp_path, tmp_path)
    reference = toy._reference()
    model = reference.GPT(*toy.TOY.values())
    model.load_state_dict(torch.load(tmp_path / "start.pt")["model"])
    _, check = torch.load(tmp_path / "data.pt")
    whole = reference.loss_of(model, check).item()
    for part in (check[:1], check[:6], check[6:], check[::2], check[1::2], check[::4]):
        assert abs(reference.loss_of(model, part).item() - whole) > 2 * toy.LOSS_OFF


IN_THE_GATE = ("half_of_the_batch", "rank_0_takes_fewer")


@pytest.mark.parametrize(
    "name",
    [
        n if row["where"] == "rules" or n in IN_THE_GATE else pytest.param(n, marks=pytest.mark.slow)
        for n, row in CHEATS.items()
    ],
)
def test_a_cheat_is_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    row = CHEATS[name]
    assert row["says"] in refused(row["where"], cheating(row), tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.set_float32_matmul_precision('high')",
        "if rank == 0: pass",
        "if step + 1 == options.steps: pass",
        "if (step + 1) % 10 == 0: pass",
        "if ranks > 1: pass",
        "if options.save: torch.save(x, options.save)",
        "saved = torch.load(options.resume, map_location=here)",
        "self.scale = 1.0",
        "model.head.weight = model.words.weight",
        "from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy",
        "from torch.utils.checkpoint import checkpoint",
        "from torch.distributed.optim import ZeroRedundancyOptimizer",
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
        "if saved is not None: pass",
        "ranks = torch.distributed.get_world_size()\nif i % ranks == rank: pass",
        "parts = mine.split(options.micro_batch)\nif i + 1 == len(parts): pass",
        "batch = train[step * options.batch :]\nif batch is None: pass",
        "for module in model.modules(): pass",
        "x = x.view(options.batch, -1)\nif x.isnan().any(): pass",
        "while begin < options.steps: pass",
    ],
)
def test_what_an_honest_program_writes_is_allowed(line: str) -> None:
    rules.check(f"import torch\nfrom torch import nn\nfrom course_utils.rank import device, report\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "import torch._C",
        "from torch import _C",
        "from torch import multiprocessing",
        "import course_utils.emulation",
        "from course_utils import rank",
        "from course_utils.rank import os",
        "from torch.nn import *",
        "torch.nn.functional.gelu = abs",
        "nn.Linear.forward = abs",
        "[torch.cuda.synchronize] = [abs]",
        "for torch.cuda.x in y: pass",
        "with a as torch.b: pass",
        "del torch.cuda",
        "model.forward = abs",
        "x.__class__ = y",
        "x.__dict__",
        "f.__globals__['os']",
        "getattr(x, 'y')",
        "eval('1')",
        "b = exec",
        "__builtins__",
        "__file__",
        "open('x')",
        "torch.load('x')",
        "torch.load(f=path)",
        "torch.load(options.data, weights_only=False)",
        "torch.save(x, options.data.replace('a', 'b'))",
        "if options.width > 64: pass",
        "w = options.width\nif w > 64: pass",
        "w = u = 2 * options.layers\nv = w\nx = 1 if v > 9 else 2",
        "a, b = 1, options.words\nwhile b > 9: pass",
        "def big(o):\n    return o.width // 100\nif big(options): pass",
        "self.big = width // 100\nif self.big: pass",
        "if x.numel() > 9: pass",
        "if len(x.shape) > 9 or x.shape[0] > 9: pass",
        "y = [b for b in c if b.shape[0] > 9]",
        "assert torch.distributed.get_world_size() == 8",
        "if device().type == 'cuda': pass",
        "if x.is_cuda: pass",
        "torch.cuda.is_available()",
        "torch.cuda.get_device_name()",
        "x.to(torch.float8_e4m3fn)",
        "torch._int_mm(a, b)",
        "class A:\n    def __reduce__(self): pass",
        "global x",
        "match x.shape:\n    case _: pass",
    ],
)
def test_what_reaches_for_the_score_is_refused(line: str) -> None:
    with pytest.raises(Refused, match=r"Line \d+: \S"):
        rules.check(f"import torch\nfrom torch import nn\nfrom course_utils.rank import device, report\n{line}\n")


# --- What the page shows ----------------------------------------------------------------------------------------------


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A board with two attempts, of which the second had a bet."""
    monkeypatch.setattr(lesson_14, "notebook_folder", lambda: tmp_path)
    seconds = {"products": 8.0, "communication": 1.0, "idle": 0.0}
    for name, rate, expected in (("naive", 8e3, None), ("naive", 7e3, None), ("faster", 120e3, 2.0)):
        part = rate / scoring.light_tokens_per_s()
        found = scoring.Score(name, rate, 65536 / rate, part, 40 << 30, seconds, "", "", expected)
        with (tmp_path / lesson_14.BOARD).open("a") as file:
            file.write(json.dumps(found.as_dict() | {"program": "abc"}) + "\n")
    return tmp_path


def test_the_board_keeps_the_latest_of_each_name(attempts: Path) -> None:
    assert [(s.name, s.tokens_per_s) for s in lesson_14.board()] == [("naive", 7e3), ("faster", 120e3)]
    figure = lesson_14.show_staircase()
    assert "2 attempts, emulated: from 2.6% to 43.8%" in figure.summary


def test_a_board_without_attempts_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson_14, "notebook_folder", lambda: tmp_path)
    monkeypatch.setattr(lesson_14, "_runs", {})
    for show in (lesson_14.show_staircase, lesson_14.show_timelines):
        with pytest.raises(LaunchError, match="attempt"):
            show()


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., f"{LIGHT:,.0f} tokens a second."),
        (300_000, "you know your GPUs"),
        (40_000, "That's one GPU"),
        (1e6, "More than the speed of light"),
        (100_000, "no program reaches it"),
        ("many", "Your bet should be tokens a second"),
        (0, "Your bet should be tokens a second"),
    ],
)
def test_a_bet_on_the_speed_of_light(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_14.show_light(guess)
    assert said in capsys.readouterr().out and "MPT of 65 billion, 512 H100 41%" in figure.summary


@pytest.mark.parametrize("line", ["", "a b c", "1st", "a/b", "fast x", "fast -1", "fast 0", "fast nan"])
def test_an_attempt_needs_a_name_and_a_bet_is_a_number(line: str) -> None:
    with pytest.raises(LaunchError, match="%%attempt"):
        lesson_14._run_attempt(line, "pass")


@pytest.mark.parametrize(
    ("times", "expected", "said"),
    [(2.0, None, "2.00 times as fast as naive. S"), (0.5, None, "2.00 times slower than naive"),
     (2.0, 2.1, "well predicted"), (3.0, 2.0, "it brought more"), (1.2, 2.0, "it brought less")],
)  # fmt: skip
def test_an_attempt_is_told_in_words(times: float, expected: float | None, said: str) -> None:
    naive = scoring.Score("naive", 8e3, 8.2, 0.025, 33 << 30)
    now = scoring.Score("now", 8e3 * times, 8.2 / times, 0.025 * times, 39 << 30, expected=expected)
    assert said in lesson_14._in_words(now, [naive])


@pytest.mark.parametrize(
    ("part", "said"), [(0.1, "reaches 43%"), (0.45, "Experts reach 52%"), (0.53, "experts reach.")]
)
def test_each_rung_has_its_words(part: float, said: str) -> None:
    assert said in lesson_14._rung(part)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"flops": 0.5}, "50% of its share"),
        ({"bytes": 0.4}, "40% of the gradients"),
        ({"stepped": 0.9}, "the smallest of 90%"),
        ({"stepped": 0.125}, "or on each rank its eighth of them, if the ranks gather them"),
        ({"stepped": 0.125, "gathered": 0.9}, "the smallest of 12%"),
        ({"stepped": 0.12, "gathered": 2}, "the smallest of 12%"),
        ({"steps": 2}, "2 steps"),
        ({"odd": 1}, "aren't in 32 bits"),
    ],
)
def test_a_program_that_does_less_gets_no_score(change: dict[str, float], said: str) -> None:
    weights, size = scoring.weights_of(scoring.GPT), scoring.GPT["length"]
    tokens, checked = 32 * size * 3 / 8, 16 * size / 8
    sent = {
        "all_reduce": int(2 * weights * 3 * change.get("bytes", 1.0)),
        "all_gather": int(2 * weights * 2 * change.get("gathered", 0.0)),
    }
    left = SimpleNamespace(
        flops=lambda: scoring.flops_of(scoring.GPT, tokens, checked) * change.get("flops", 1.0),
        collective_bytes=lambda: sent,
    )
    record = {"stepped": int(weights * change.get("stepped", 1.0)), "odd": int(change.get("odd", 0))}
    run: Any = SimpleNamespace(emulated=left, records=[record] * int(change.get("steps", 3)))
    with pytest.raises(Refused, match=said):
        scoring._did_it_all(run)
    record |= {"stepped": weights / 8, "odd": 0}  # its own eighth of them,
    sent |= {"all_reduce": 2 * weights * 3, "all_gather": 2 * weights * 2}  # which the ranks gather
    run.records, change = [record] * 3, {}
    scoring._did_it_all(run)


def test_a_failure_at_toy_size_names_the_line(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text(WAY["ddp"].replace("    loss.backward()", "    loss.backwards()", 1))
    assert "backwards()" in program.read_text()
    with pytest.raises(Refused, match=r"AttributeError.* That's in `loss.backwards\(\)`"):
        toy.gate(program)


def test_the_kernels_of_an_attempt_are_told_by_name_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(WAY["fused-adamw"])
    _, run = scoring.score(tmp_path / "program.py", "it")
    monkeypatch.setattr(lesson_14, "_runs", {"it": run})
    rows = lesson_14.show_kernels("it").rows
    assert len(rows) == lesson_14.LONGEST and {"aten::mm"} <= {row[0] for row in rows}
    assert (Path(run.path) / "trace.json").exists()
    begin, end = run.emulated.steps(0)[-1]
    assert 0.5 < sum(float(row[4].rstrip("%")) for row in rows) / 100 <= 1.2 and end > begin
    with pytest.raises(LaunchError, match="no attempt 'other' in this session; there are it"):
        lesson_14.show_kernels("other")
    monkeypatch.setattr(lesson_14, "_runs", {})
    with pytest.raises(LaunchError, match="run an attempt first"):
        lesson_14.show_kernels()
