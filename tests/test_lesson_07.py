"""Lesson 07: what it says of its experiments, for every guess; its model of a server; and the file to take home."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, concludes_nothing, disturb, made_run, program_of, takes_nonsense

import lesson_07
from course_utils import Run, launch
from course_utils.cells.claims import ClaimError
from lesson_07 import old_gradients, ways

PAGE = ROOT / "notebooks" / "07_rpc_and_hogwild.ipynb"
BUCKETS = ROOT / "notebooks" / "programs" / "05_buckets.py"  # a training step, for the first paragraph


def run(*records: dict[str, object], script: Path = lesson_07.HOGWILD) -> Run:
    return made_run(list(records), script=script)


def said_by(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.replace("\n", " ")


# --- calls ------------------------------------------------------------------------------------------------------------


def calls(at_once: Sequence[float] = (0.0,) * 6, gap: float = 0.0, owner: str = "worker3") -> Run:
    """Six calls one by one, with a gap between them, and six that start at these times."""
    names = [f"worker{i}" for i in (1, 2, 3, 1, 2, 3)]
    in_turn = [[i * (0.1 + gap), i * (0.1 + gap) + 0.1, name] for i, name in enumerate(names)]
    together = [[7 + t, 7.1 + t, name] for t, name in zip(at_once, names, strict=True)]
    fetched = [9, 9.1, owner]
    return run({"one_by_one": in_turn}, {"at_once": together}, {"owner": owner, "fetched": fetched})


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "One by one they took 0.60 s, at once 0.10 s. The seventh call left its answer on worker3"),
        (0.1, "You said 0.1 s: as long as the slowest call."),
        ("0.1 s", "You said 0.1 s: as long as the slowest call."),
        (0.2, "You said 0.2 s. That would be two calls one after the other on each worker, but"),
        (0.6, "You said 0.6 s. That's one by one."),
        (0.35, "You said 0.35 s. All six run at the same time"),
        (0.01, "You said 0.01 s. No call is done before its own 0.1 s"),
    ],
)
def test_the_calls(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_07.show_calls(calls(), guess)
    out = said_by(capsys)
    assert said in out and "3 more checks passed" in out
    assert "Six calls: 0.6 s one by one, 0.1 s at once" in str(figure.mpl.get_suptitle())


def test_calls_on_a_busy_machine_and_on_the_wrong_worker(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_07.show_calls(calls(at_once=(0, 0.05, 0.3, 0.1, 0.2, 0.4)), 0.1)
    assert "at once 0.50 s. You said 0.1 s: as long as" in said_by(capsys)
    with pytest.raises(ClaimError, match="before the last had ended"):
        lesson_07.show_calls(calls(gap=-0.05))
    with pytest.raises(ClaimError, match="knew its owner"):
        lesson_07.show_calls(calls(owner="worker1"))


# --- a model in two processes -----------------------------------------------------------------------------------------


def halves(off: float = 0.0, kept: str = "None", steps: int = 3) -> Run:
    """What the cell reports, with the right gradients; `off` is added to one of them."""
    records: list[dict[str, object]] = []
    for step, norms in enumerate(lesson_07._one_process(steps)):
        for grads in (norms[:2], norms[2:]):
            wrong = off if step == 1 and grads == norms[2:] else 0.0
            records.append({"step": step, "loss": 1 / (1 + step), "grads": [[g + wrong, kept] for g in grads]})
    return run(*records)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "`p.grad` holds nothing: it's None on both workers. In 3 steps"),
        ("nothing", "You said nothing: right, and hardly anybody guesses it."),
        ("None", "You said nothing: right"),
        ("gradient", "You said the gradient, as it would be in one process."),
        ("Nothing!", "You said nothing: right"),
        ("the gradient", "You said the gradient, as it would be in one process."),
        ("zeros", "You said zeros: but nobody ever wrote there"),
        (0, 'Your bet should be "the gradient", "zeros" or "nothing".'),
    ],
)
def test_the_halves(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_07.show_halves(halves(), guess)
    out = said_by(capsys)
    assert said in out and "fell from 1.00 to 0.33. The gradients' norms are exactly those of one process." in out
    assert "✓ a model in two processes has the gradients of one process" in out


def test_the_program_in_two_processes_has_the_gradients_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "halves.py").write_text(program_of("07", "halves.py"))
    lesson_07.show_halves(launch(tmp_path / "halves.py", 3, device="cpu", threads=1, quiet=True))
    assert "`p.grad` holds nothing" in said_by(capsys)


def test_halves_with_a_wrong_gradient_or_with_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClaimError, match="the gradients of one process"):
        lesson_07.show_halves(halves(off=0.01))
    capsys.readouterr()
    lesson_07.show_halves(halves(off=1e-7))
    assert "differ from those of one process by" in said_by(capsys)
    lesson_07.show_halves(halves(kept="tensor(0.)"), "nothing")
    assert "`p.grad` holds the gradient" in said_by(capsys)


# --- the race, and Hogwild --------------------------------------------------------------------------------------------


def raced_to(counted: int) -> Run:
    return run({"counted": counted, "of": 200_000})


@pytest.mark.parametrize(
    ("lost", "guess", "said"),
    [
        (
            3000,
            ...,
            "They counted to 197,000, so 3,000 of 200,000 additions are missing. Three more runs lose 7, 0 and 12.",
        ),
        (3000, 2000, "You said 2,000: good nose."),
        (3000, "3,000", "You said 3,000: good nose."),
        (3000, 0, "You said 0. Most programs hope so."),
        (3000, 100_000, "You said 100,000. Reading and writing lie nanoseconds apart"),
        (3000, 10, "You said 10: good nose."),
        (2, 5, "You said 5: good nose."),
        (0, 0, "You said 0: good nose."),
        (0, 500, "You said 500. Reading and writing"),
    ],
)
def test_the_race(
    lost: int, guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lesson_07, "_again", lambda run: [199_993, 200_000, 199_988])
    lesson_07.show_race(raced_to(200_000 - lost), guess)
    out = said_by(capsys)
    assert said in out and "✓ two processes that add without a lock lose additions" in out
    with pytest.raises(ClaimError, match="counted twice"):
        lesson_07.show_race(raced_to(200_001), guess)
    capsys.readouterr()
    monkeypatch.setattr(lesson_07, "_again", lambda run: [200_000] * 3)
    lesson_07.show_race(raced_to(200_000), guess)
    assert "○ not shown here: two processes that add without a lock" in said_by(capsys)


def test_hogwild_learns(capsys: pytest.CaptureFixture[str]) -> None:
    change = lesson_07.show_hogwild(raced_to(0))
    assert "Two processes changed the same weights, and the loss fell from" in said_by(capsys)
    assert (change.added, change.removed) == (0, 0), "the made-up run has the program itself as its script"


# --- reads without the lock -------------------------------------------------------------------------------------------


def reads(torn: int, wrong: int, good: int) -> Run:
    found = [(1, 1, 2)] * torn + [(1, 2, 2)] * wrong + [(2, 2, 2)] * good
    return run(*({"version": v, "least": a, "most": b} for v, a, b in found), script=lesson_07.MENDED)


@pytest.mark.parametrize(
    ("torn", "guess", "said"),
    [
        (15, ..., "Of 100 reads 15 got weights of which some were new and others old, and 5 got whole ones"),
        (15, 25, "That's 20%. You said 25%: you've debugged threads before."),
        (15, "20%", "You said 20%: you've"),
        (15, 0, "You said 0%. So said the colleague."),
        (15, 90, "You said 90%. A read and an update have to run"),
        (15, 1, "You said 1%. Copying takes a while"),
    ],
)
def test_torn_reads(
    torn: int, guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lesson_07, "_mended", lambda: reads(0, 0, 100))
    lesson_07.show_torn(reads(torn, 5, 95 - torn), guess)
    out = said_by(capsys)
    assert said in out and "✓ without the lock, reads get weights or versions that never were (20 of 100 reads)" in out
    lesson_07.show_torn(reads(0, 0, 100), guess)
    assert "○ not shown here: without the lock" in said_by(capsys)
    monkeypatch.setattr(lesson_07, "_mended", lambda: reads(1, 0, 99))
    with pytest.raises(ClaimError, match="with the lock no read is wrong"):
        lesson_07.show_torn(reads(torn, 5, 95 - torn), guess)


def test_with_the_lock_every_read_is_whole() -> None:
    """On real ranks; what goes wrong without it depends on who runs when."""
    torn, wrong, n = lesson_07._reads(lesson_07._mended())
    assert (torn, wrong, n) == (0, 0, 100)


def test_the_cure_is_the_lock_alone() -> None:
    text = "".join(next(c["source"] for c in cells() if c["id"] == "torn")).partition("\n")[2]
    without = text.splitlines()
    with_it = lesson_07.MENDED.read_text().splitlines()
    assert [line for line in with_it if line not in without] == [
        "            return self.version, self.weights.clone()"
    ]
    assert len(with_it) == len(without) + 1


def cells() -> list[dict[str, Any]]:
    import json

    found: list[dict[str, Any]] = json.loads(PAGE.read_text())["cells"]
    return found


# --- the server -------------------------------------------------------------------------------------------------------


def served(ages: Sequence[int], of: Sequence[int] = (0, 1, 2, 3), sent: int = 8) -> Run:
    return run({"staleness": list(ages) * 2, "trainer": list(of) * 2, "sent": sent, "applied": 8})


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "The slow trainer's gradients are 11.0 updates old, those of the others 2.0. The mean over all is 4.2."),
        (12, "You said 12: you counted who comes by meanwhile."),
        (3, "You said 3. That's the mean over all four, and this one is away"),
        (4, "You said 4. That's how many one of the others makes meanwhile, but"),
        (40, "You said 40. The others aren't that fast."),
        (1, "You said 1. While it computes one gradient"),
    ],
)
def test_the_ages(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(old_gradients, "uneven", lambda: served([11, 2, 2, 2]))
    figure = lesson_07.show_ages(guess)
    out = said_by(capsys)
    assert said in out and "✓ the slow trainer's gradients are more than twice as old" in out
    assert "The slow trainer is 11 updates behind, the others 2" in str(figure.mpl.get_suptitle())
    monkeypatch.setattr(old_gradients, "uneven", lambda: served([3, 2, 2, 2]))
    with pytest.raises(ClaimError, match="more than twice as old"):
        lesson_07.show_ages(guess)
    monkeypatch.setattr(old_gradients, "uneven", lambda: served([9, 2, 2, 2]))
    lesson_07.show_ages(12)
    assert "You said 12: you counted" in said_by(capsys), "on paper it's twelve"
    monkeypatch.setattr(old_gradients, "uneven", lambda: served([11, 2, 2, 2], sent=9))
    with pytest.raises(ClaimError, match="was applied"):
        lesson_07.show_ages(guess)


def learning(four: float, small: float = 0.001) -> dict[int, Run]:
    ends = {1: 1e-5, 2: 1e-4, 4: four}
    return {
        n: run({"lr": 0.8, "loss": [1.0, *[end] * 60]}, {"lr": 0.2, "loss": [1.0, *[small] * 60]})
        for n, end in ends.items()
    }


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "After 60 updates one trainer's loss is 1e-05 times what it was at the start, and four trainers' is 900"),
        ("explodes", "You said explodes, and you've been burnt before."),
        ("as good", "You said as good. It is for one. But four step from the same place"),
        ("worse", "You said worse. Each update makes it worse, without end."),
        ("not as good", 'Your bet should be "as good", "worse" or "explodes".'),
        (4, 'Your bet should be "as good", "worse" or "explodes".'),
    ],
)
def test_the_rates(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(old_gradients, "_learning", lambda: learning(900.0))
    figure = lesson_07.show_rates(guess)
    out = said_by(capsys)
    assert said in out and "2.00 with one trainer, 1.00 with two trainers, 0.45 with four trainers" in out
    assert "✓ the same learning rate is good for one trainer, and four explode with it" in out
    assert "four explode" in str(figure.mpl.get_suptitle())
    for found, match in ((learning(0.5), "four explode with it"), (learning(900.0, small=0.2), "all learn")):
        monkeypatch.setattr(old_gradients, "_learning", lambda found=found: found)
        with pytest.raises(ClaimError, match=match):
            lesson_07.show_rates(guess)


def test_a_real_server_loses_no_update_and_answers_in_step_when_all_have_come() -> None:
    for extra, updates in (((), 20), (("--in-step",), 6)):
        found = lesson_07.serve(2, "--gradient-ms", 0.5, "--updates", updates, *extra)
        each = 2 if extra else 1
        assert found.value("sent") == found.value("applied") == each * found.value("version") >= each * updates
        assert len(found.value("loss")) == found.value("applied") + 1
        if extra:
            assert set(found.value("staleness")) == {0}, "in step every gradient is fresh"


# --- the model of a server --------------------------------------------------------------------------------------------


def test_one_trainer_makes_an_update_a_round() -> None:
    one = lesson_07.parameter_server([8e-3], call_s=1e-3, serve_s=2e-3, updates=10)
    assert one.updates_per_s == pytest.approx(1 / 11e-3, rel=1e-9) and one.staleness == (0,) * 9


def test_the_faster_of_two_trainers_comes_first_and_the_slower_is_two_behind() -> None:
    two = lesson_07.parameter_server([2e-3, 5.1e-3], call_s=1e-3, updates=20)
    assert two.trainer[:4] == (1, 0, 0, 1), "after the first two, which are left out"
    assert two.of(1)[:2] == (2, 2)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_equal_trainers_reach_the_bound_of_the_queue(n: int) -> None:
    many = lesson_07.parameter_server([8e-3] * n, call_s=1e-3, serve_s=2e-3)
    assert many.updates_per_s == pytest.approx(min(n / 11e-3, 1 / 2e-3), rel=0.02)
    assert set(many.staleness) == {n - 1}


def test_a_slow_trainer_holds_nobody_up_and_its_gradients_are_old() -> None:
    found = lesson_07.parameter_server([32e-3] + [8e-3] * 3, call_s=1e-3, updates=800)
    assert found.updates_per_s == pytest.approx(3 / 9e-3 + 1 / 33e-3, rel=0.02)
    slow, fast = (sum(found.of(i)) / len(found.of(i)) for i in (0, 3))
    assert slow == pytest.approx(3 * 33 / 9, rel=0.1) and fast < 3
    assert sum(found.staleness) / len(found.staleness) == pytest.approx(3, rel=0.02), "n - 1 holds for the mean"


@pytest.mark.parametrize("staleness", [0, 1, 3, 7])
def test_above_the_largest_rate_stale_gradients_diverge(staleness: int) -> None:
    limit = lesson_07.largest_rate(staleness)
    below, above = (max(map(abs, lesson_07.delayed_sgd(limit * f, staleness, 3000)[-50:])) for f in (0.97, 1.03))
    assert below < 1e-2 and above > 1e2


def test_the_largest_rates_that_are_known_by_hand() -> None:
    assert [lesson_07.largest_rate(s) for s in (0, 1)] == pytest.approx([2.0, 1.0])
    assert lesson_07.largest_rate(100) == pytest.approx(torch.pi / 200, rel=0.01)
    assert lesson_07.delayed_sgd(1.0, 0, 3) == [1.0, 0.0, 0.0, 0.0]
    assert lesson_07.delayed_sgd(0.5, 1, 3) == [1.0, 0.5, 0.0, -0.25]


def test_what_no_server_does_is_refused() -> None:
    for gradient_s, call_s, updates in (
        ([], 1e-3, 400),
        ([8e-3] * 4, 1e-3, 4),
        ([8e-3], 0.0, 400),
        ([-1.0], 1e-3, 400),
    ):
        with pytest.raises(ValueError, match="trainers|takes some time"):
            lesson_07.parameter_server(gradient_s, call_s=call_s, updates=updates)
    with pytest.raises(ValueError, match="0 is the least"):
        lesson_07.largest_rate(-1)


# --- seconds to a loss ------------------------------------------------------------------------------------------------


def raced(hogwild_s: float, losses: Sequence[float] = (4.0, 3.5, 2.9, 2.5)) -> Run:
    """Three rounds, in which each way takes this long for its points; those of one process take 1 s each."""
    records = []
    for way, each_s, n in ((ways.ONE, 1.0, 4), (ways.HOGWILD, hogwild_s, 6), (ways.STEP, 0.8, 4)):
        points = [[each_s * (i + 1), loss] for i, loss in enumerate(losses)]
        records += [{"way": way, "points": points, "updates": n, "age": 0.0 if way == ways.STEP else 0.7}] * 3
    return run(*records)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Hogwild made 2.0 times the updates a second of one process, and was at a loss of 3 1.3 times as fast."),
        (1.3, "You said 1.3 times: you've met old gradients before."),
        (1.8, "You said 1.8 times. It made 2.0 times the updates, and none of them"),
        (5, "You said 5 times. It made 2.0 times the updates"),
        (0.9, "You said 0.9 times. An old gradient still points roughly"),
    ],
)
def test_the_seconds(
    guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ways, "three_ways", lambda: raced(0.75))
    figure = lesson_07.show_seconds(guess)
    out = said_by(capsys)
    assert said in out and "The two in step made 1.2 times the updates of one process" in out
    assert "Hogwild: 2.0 times the updates, 1.3 times as fast" in str(figure.mpl.get_suptitle())
    assert lesson_07.updates_per_s("Hogwild") == pytest.approx(6 / 3.0)
    monkeypatch.setattr(ways, "three_ways", lambda: raced(0.5))
    lesson_07.show_seconds(2)
    assert "You said 2 times: you've met" in said_by(capsys)


def test_ways_that_were_disturbed_or_never_came_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ways, "three_ways", lambda: disturb(raced(0.75)))
    lesson_07.show_seconds(2)
    concludes_nothing(said_by(capsys), "how fast Hogwild is", 2)
    monkeypatch.setattr(ways, "three_ways", lambda: raced(0.75, losses=(4.0, 3.6, 3.4, 3.3)))
    lesson_07.show_seconds(2)
    assert "Not every way came to a loss of 3 here" in said_by(capsys)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_a_bet_that_is_none_gets_a_kind_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lesson_07, "_mended", lambda: reads(0, 0, 100))
    monkeypatch.setattr(lesson_07, "_again", lambda run: [199_993, 200_000, 199_988])
    monkeypatch.setattr(old_gradients, "uneven", lambda: served([11, 2, 2, 2]))
    monkeypatch.setattr(old_gradients, "_learning", lambda: learning(900.0))
    monkeypatch.setattr(ways, "three_ways", lambda: raced(0.75))
    for show in (
        lambda guess: lesson_07.show_calls(calls(), guess),
        lambda guess: lesson_07.show_halves(halves(), guess),
        lambda guess: lesson_07.show_race(raced_to(197_000), guess),
        lesson_07.show_ages,
        lesson_07.show_rates,
        lesson_07.show_seconds,
        lambda guess: lesson_07.show_torn(reads(15, 5, 80), guess),
    ):
        takes_nonsense(show, capsys)


def test_what_you_saw_is_in_the_readers_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_gradients, "uneven", lambda: served([11, 2, 2, 2]))
    monkeypatch.setattr(ways, "three_ways", lambda: raced(0.75))
    words = str(lesson_07.what_you_saw(calls(), halves(), raced_to(197_000), reads(15, 5, 80)))
    for said in ("took 0.10 s", "lost 3,000 of 200,000", "were 11.0 updates old, the others' 2.0", "1.3 times as fast",
                 "20 of 100 reads"):  # fmt: skip
        assert said in words, words
    monkeypatch.setattr(ways, "three_ways", lambda: disturb(raced(0.75)))
    words = str(lesson_07.what_you_saw(calls(), halves(), raced_to(197_000), reads(15, 5, 80)))
    assert "couldn't show today" in words and "as fast" not in words


def test_the_page_begins_with_what_the_emulated_gpus_say() -> None:
    """When their model gets better, the first paragraph has to follow."""
    args: dict[str, Any] = {"args": ["--bucket-mb", 25, "--steps", 1], "cluster": "8xA100", "quiet": True}
    alike_s = launch(BUCKETS, one_of=8, **args).samples("step_s", name="25").median
    slow_s = launch(BUCKETS, 8, slow={3: 1.3}, timeout=250, **args).samples("step_s", name="25").median
    text = PAGE.read_text()
    assert f"a step takes {alike_s * 1e3:.0f} ms." in text, alike_s
    assert f"From now on a step takes {slow_s * 1e3:.0f} ms," in text, slow_s
    assert f"get the work of {8 * alike_s / slow_s:.1f}." in text, 8 * alike_s / slow_s


def test_the_page_shows_its_server() -> None:
    assert "class InStep(Server)" in lesson_07.server_program().text
    assert "def agree(self)" in lesson_07.take_home().text


# --- the file to take home --------------------------------------------------------------------------------------------


def losses_of(stdout: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", stdout)]


@pytest.mark.timeout(120)
def test_the_file_to_take_home_is_ddp_if_ranks_agree_after_each_step(tmp_path: Path) -> None:
    """Under torchrun, with plain SGD: the mean of two ranks' weights is a step with the mean of their gradients, so two
    ranks with half of each batch are one rank with all of it."""
    as_ddp = ["--every", "1", "--inner", "sgd", "--lr", "0.03", "--outer-lr", "1", "--outer-momentum", "0"]
    found = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        answer = torchrun(lesson_07.TAKE_HOME, "--epochs", "2", *as_ddp, ranks=ranks, cwd=folder)
        assert answer.returncode == 0, answer.stderr
        found.append((losses_of(answer.stdout), torch.load(folder / "07_local_sgd.pt")))
    (one, weights), (two, others) = found
    assert len(one) == 2 and one[1] < one[0]
    assert all(abs(a - b) < 2e-3 for a, b in zip(one, two, strict=True)), (one, two)
    assert all(torch.allclose(weights[name], others[name], atol=1e-3) for name in weights)


APART = """
import importlib.util
import torch, torch.distributed as dist
from course_utils.rank import report
dist.init_process_group()
spec = importlib.util.spec_from_file_location("take_home", {path!r})
take_home = importlib.util.module_from_spec(spec)
spec.loader.exec_module(take_home)
torch.manual_seed(dist.get_rank())
model = take_home.new_model()
before = [p.sum().item() for p in model.parameters()]
take_home.Meeting(model, 1.0, 0.0)
report(before=before, after=[p.sum().item() for p in model.parameters()])
dist.destroy_process_group()
"""


def test_ranks_of_the_file_to_take_home_begin_with_the_weights_of_rank_0(tmp_path: Path) -> None:
    (tmp_path / "apart.py").write_text(APART.format(path=str(lesson_07.TAKE_HOME)))
    found = launch(tmp_path / "apart.py", 2, device="cpu", threads=1, quiet=True)
    zero, one = found.values("before")
    assert zero != one and found.values("after") == [zero, zero]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_file_to_take_home_learns_with_few_meetings(ranks: int, tmp_path: Path) -> None:
    answer = torchrun(lesson_07.TAKE_HOME, ranks=ranks, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    sent, as_ddp = (float(x) for x in re.findall(r"([\d.]+) MB", answer.stdout))
    assert 0.04 < sent / as_ddp < 0.06, "4 x 64 steps, and a meeting after each 20"
    accuracy = re.search(r"test accuracy ([\d.]+)", answer.stdout)
    assert accuracy and float(accuracy[1]) > 0.7 and losses_of(answer.stdout)[-1] < 1.0, answer.stdout
    drift = [float(x) for x in re.findall(r"drift ([\d.]+)", answer.stdout)]
    assert (max(drift) == 0) == (ranks == 1), "alone, nobody drifts from the mean"
