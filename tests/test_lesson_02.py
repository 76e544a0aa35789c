"""Lesson 02: what it says of its experiments, for every guess and every machine; and the file to take home."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from by_torchrun import torchrun
from conftest import ROOT, concludes_nothing, disturb, takes_nonsense

import lesson_02
from course_utils import Provenance, Run, Samples, Sweep, published
from course_utils.cells.claims import ClaimError
from course_utils.figures import Figure
from course_utils.results.rank_result import RankResult
from lesson_02 import deeper

Out = pytest.CaptureFixture[str]
Records = list[dict[str, Any]]


def run(records: Records, args: tuple[str, ...] = (), kind: str = "measured", busy: float = 0.0) -> Run:
    """A run of one rank that reported these records, while other programs used so many cores."""
    results = [RankResult(0, 0, log="no such file", records=records)]
    return Run(
        results, "train.py", list(args), "", "warm", "", 1.0, "", provenance=Provenance(kind), others=(busy, 0.0)
    )


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A machine of four cores, or of as many as the test says, and no GPU."""

    def of(cores: int) -> None:
        here = SimpleNamespace(cores=cores, usable_gpus=[])
        for module in (lesson_02, deeper):
            monkeypatch.setattr(module, "Machine", SimpleNamespace(here=lambda: here))

    of(4)
    return of


class Rates:
    """A sweep over the number of workers, as lesson_02 reads it."""

    def __init__(self, rates: dict[int, float], busy: float = 0.0):
        self.rates, self.points, self.disturbed = rates, [{"workers": n} for n in rates], run([], busy=busy).disturbed

    def samples(self, key: str, workers: int) -> Samples:
        return Samples([self.rates[workers] * f for f in (0.99, 1.0, 1.01)], key)


def figure_title(figure: Figure) -> str:
    return str(figure.mpl.get_suptitle())


# --- what it says of its experiments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "guess", "said"),
    [
        (
            600.0,
            ...,
            ["loads 600 images a second. You made no bet", "would wait 80% of the time, and it takes 5 such cores"],
        ),
        (600.0, None, ["You made no bet"]),
        (600.0, 500, ["you've decoded JPEGs before"]),
        (600.0, 5000, ["You said 5,000, as most people do"]),
        (600.0, 50, ["better than you thought"]),
        (600.0, "many", ["should be a number"]),
        (600.0, 0, ["should be a number"]),
        (3000.0, ..., ["a fast core", "2,470 in mixed precision, and would wait 45%"]),
    ],
)
def test_the_rate_of_one_core(rate: float, guess: object, said: list[str], capsys: Out) -> None:
    lesson_02.show_rate(run([{"images_per_s": rate, "batch": [20, 3, 224, 224]}]), guess)
    out = capsys.readouterr().out
    assert all(words in out for words in said), out
    with pytest.raises(ClaimError, match="20 images"):
        lesson_02.show_rate(run([{"images_per_s": rate, "batch": [20, 3, 32, 32]}]), guess)


def test_the_page_says_what_its_numbers_are_of_and_leaves_exercise_3_to_the_reader() -> None:
    page = (ROOT / "notebooks" / "02_data_loading.ipynb").read_text()
    assert (
        f"In mixed precision, an A100 trains a ResNet-50 on [{lesson_02.A100_IMAGES_PER_S:,} images a second]" in page
    )
    assert "Recommendation models at Meta could lose [56%]" in page
    for text in (page, lesson_02.TAKE_HOME.read_text()):
        dealt = re.findall(
            r"[^\n]*world_size[^\n]*(?:num_workers|me\.id)|[^\n]*(?:num_workers|me\.id)[^\n]*world_size", text
        )
        assert not dealt, "dealing a stream to ranks and workers is what 02.3 asks for"


@pytest.mark.parametrize(
    ("cores", "rates", "guess", "said"),
    [
        (4, {0: 500, 1: 480, 2: 950, 4: 1500}, ..., ["✓ several", "4 workers: 3.0 times", "One worker"]),
        (4, {0: 500, 1: 480, 2: 950, 4: 1500}, 3, ["Well judged"]),
        (4, {0: 500, 1: 480, 2: 950, 4: 1500}, 6, ["Workers need cores, and there are 4"]),
        (4, {0: 500, 1: 480, 2: 950, 4: 1500}, 1.5, ["they do better than that"]),
        (4, {0: 500, 1: 480, 2: 950, 4: 1500}, "lots", ["should be a number"]),
        (16, {0: 500, 1: 300, 2: 600, 16: 5000}, 16, ["16 workers: 10.0 times", "share their memory and clock"]),
        (2, {0: 500, 1: 500, 2: 500, 4: 500}, 2, ["○ not shown here: several workers", "Too close to tell"]),
        (1, {0: 500, 1: 480, 2: 480, 4: 480}, ..., ["One core can't load twice as fast"]),
    ],
)  # fmt: skip
def test_the_workers(
    cores: int, rates: dict[int, float], guess: object, said: list[str], four_cores: Callable[[int], None], capsys: Out
) -> None:
    four_cores(cores)
    figure = lesson_02.show_workers(Rates(rates), guess)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert all(words in out for words in said), out
    assert ("times" in figure_title(figure)) == ("✓ several" in out)
    assert ("One worker is about as fast" in out) == (abs(rates[1] / rates[0] - 1) < 0.25)
    assert "On a machine of 16 cores we recorded 3,172 images a second with 16 workers, 11 times" in out


def test_workers_that_had_no_core_to_themselves_prove_nothing(four_cores: Callable[[int], None], capsys: Out) -> None:
    slower: Any = {0: 500, 1: 300, 2: 300, 4: 300}
    starved, fed = training(0, 0.04, 0.04), training(1, 0.001, 0.16)
    lesson_02.show_workers(Rates(slower))  # type: ignore[arg-type]
    assert "✗ the wrong way round here: several workers load" in capsys.readouterr().out
    lesson_02.show_starving(starved, fed)
    assert "✗ the wrong way round here: with workers" in capsys.readouterr().out
    four_cores(1)
    lesson_02.show_workers(Rates(slower))  # type: ignore[arg-type]
    lesson_02.show_starving(starved, fed)
    assert capsys.readouterr().out.count("○ not shown here") == 2


@pytest.mark.parametrize(("cores", "counts"), [(1, [0, 1, 2, 4]), (8, [0, 1, 2, 4, 8]), (64, [0, 1, 2, 4, 8, 16])])
def test_the_numbers_of_workers_to_try(cores: int, counts: list[int], four_cores: Callable[[int], None]) -> None:
    four_cores(cores)
    assert lesson_02.worker_counts() == counts


def training(workers: int, wait_s: float, step_s: float, device: str = "cpu", epochs: int = 3) -> Run:
    """A training as the lesson's program reports it. In its first epoch it also waits for its workers to start."""
    steps = [
        {"epoch": e, "wait_s": (wait_s + (e == 0)) * f, "step_s": step_s * f, "device": device}
        for e in range(epochs)
        for f in (0.99, 1.0, 1.01, 1.0)
    ]
    return run(steps, args=(str(workers),))


@pytest.mark.parametrize(
    ("wait_s", "guess", "said"),
    [
        (0.04, ..., ["the model waits for images 50% of the time.", "that would be 18 of the 36 dollars"]),
        (0.04, 45, ["You said 45%. Good eye."]),
        (0.04, 5, ["You said 5%. It's easy to miss"]),
        (0.04, 90, ["better than their reputation"]),
        (0.04, "half", ["should be a percentage"]),
        (
            0.12,
            ...,
            [
                "waits for images 75%",
                "that would be 27 of",
                "120 ms to load and a step 40: 3 workers should hide it, but 4",
            ],
        ),
        (0.03, ..., ["A batch takes 30 ms to load and a step 40: 1 worker should hide it."]),
    ],
)
def test_a_training_that_starves_and_one_that_does_not(
    wait_s: float, guess: object, said: list[str], capsys: Out
) -> None:
    starved, fed = training(0, wait_s, 0.04), training(2, 0.001, 0.04)
    figure = lesson_02.show_starving(starved, fed, guess)
    out = capsys.readouterr().out
    faster = ["✓ with workers the same training takes less time", "With 2 workers it waits 2%, and trains"]
    assert all(words in out for words in [*said, *faster, "2 more checks passed"]), out
    assert "It still waits" not in out and "Without workers the model waits" in figure_title(figure)
    assert "no worker" in figure.summary and "2 workers" in figure.summary


def test_a_training_that_still_waits_and_one_that_workers_do_not_help(capsys: Out) -> None:
    lesson_02.show_starving(training(0, 0.12, 0.04, "cuda"), training(3, 0.04, 0.04, "cuda"))
    out = capsys.readouterr().out
    assert "Without workers the GPU waits for images 75%" in out
    assert "With 3 workers it waits 50%" in out and "It still waits: workers share the cores" in out
    figure = lesson_02.show_starving(training(0, 0.04, 0.04), training(1, 0.04, 0.04))
    out = capsys.readouterr().out
    assert "○ not shown here: with workers" in out and "Too close to tell whether 1 worker helped" in out
    assert figure_title(figure) == "The same training without and with 1 worker"
    with pytest.raises(ClaimError, match="same number of batches"):
        lesson_02.show_starving(training(0, 0.04, 0.04), training(1, 0.0, 0.04, epochs=2))


@pytest.mark.parametrize(
    ("wait_s", "step_s", "cores", "workers"),
    [(0.03, 0.04, 2, 1), (0.09, 0.04, 8, 3), (0.09, 0.04, 3, 2), (0.09, 0.04, 1, 1), (0.001, 0.04, 8, 1)],
)
def test_how_many_workers_feed_it(wait_s: float, step_s: float, cores: int, workers: int) -> None:
    assert lesson_02.workers_for(training(0, wait_s, step_s), cores) == workers


def copied(kind: str = "measured", pinned_s: float = 0.004, returned_s: float = 1e-5) -> Run:
    ways = {"pageable": (0.008, 0.008), "pinned": (pinned_s, pinned_s), "pinned, non_blocking": (pinned_s, returned_s)}
    records = [
        {"what": what, "took_s": took * f, "returned_s": back}
        for what, (took, back) in ways.items()
        for f in (0.99, 1.0, 1.01)
    ]
    return run(records, kind=kind)


@pytest.mark.parametrize(
    ("kind", "guess", "said"),
    [
        ("measured", ..., ["On your GPU a copy", "2.0 times as long.", "✓ a copy from pinned memory"]),
        (
            "emulated",
            3,
            ["On an A100, as published,", "You said 3: that's it.", "– not run here: a copy", "needs a GPU"],
        ),
        (
            "emulated",
            2,
            ["17 GB/s from pinned memory, in a real loop", "has to touch every byte", "modelled time: with"],
        ),
        ("measured", 10, ["The detour is cheaper than that"]),
        ("measured", 1, ["has to touch every byte"]),
        ("measured", "long", ["should be a number"]),
    ],
)
def test_the_copies(kind: str, guess: object, said: list[str], capsys: Out) -> None:
    figure = lesson_02.show_copies(copied(kind), guess)
    out = capsys.readouterr().out
    returned = "the call came back after 0.01 ms, and the copy took 4.0 ms"
    assert all(words in out for words in [*said, returned, "1 more check passed"]), out
    assert ("3.0 times as long" if kind == "emulated" else "2.0 times as long") in figure_title(figure)
    assert kind == "emulated" or "Published for an A100: 3.0 times." in out
    with pytest.raises(ClaimError, match="before the copy is done"):
        lesson_02.show_copies(copied(kind, returned_s=0.004), guess)
    if kind == "measured":
        lesson_02.show_copies(copied(kind, pinned_s=0.008))
        assert "○ not shown here: a copy from pinned memory" in capsys.readouterr().out


def streams(twice: bool = True) -> Run:
    everything = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    dealt = [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    records: Records = []
    for worker in range(2):
        as_it_stands = everything if twice else dealt[worker::2]
        records += [{"dataset": "as it stands", "samples": s, "worker": worker} for s in as_it_stands]
        records += [{"dataset": "with get_worker_info", "samples": s, "worker": worker} for s in dealt[worker::2]]
    return run(records)


@pytest.mark.parametrize(
    ("guess", "said"),
    [(..., "Would you have noticed"), (2, "You said 2. Remember"), (1, "nobody deals"), (3, "There are two workers")],
)  # fmt: skip
def test_samples_that_come_twice(guess: object, said: str, capsys: Out) -> None:
    lesson_02.show_streams(streams(), guess)
    out = capsys.readouterr().out
    assert said in out and "12 samples: 24 arrive as it stands, 12 when they're dealt out" in out
    with pytest.raises(ClaimError, match="twice"):
        lesson_02.show_streams(streams(twice=False), guess)


@pytest.mark.parametrize(
    "show",
    [
        lambda guess: lesson_02.show_rate(run([{"images_per_s": 600.0, "batch": [20, 3, 224, 224]}]), guess),
        lambda guess: lesson_02.show_workers(Rates({0: 500, 1: 480, 2: 950, 4: 1500}), guess),  # type: ignore[arg-type]
        lambda guess: lesson_02.show_starving(training(0, 0.04, 0.04), training(2, 0.001, 0.04), guess),
        lambda guess: lesson_02.show_copies(copied(), guess),
        lambda guess: lesson_02.show_streams(streams(), guess),
    ],
    ids=["rate", "workers", "starving", "copies", "streams"],
)
def test_a_bet_that_is_none(show: Callable[[object], object], capsys: Out) -> None:
    takes_nonsense(show, capsys)


@pytest.mark.parametrize(
    ("fed", "said"), [(0.001, "it waited 2%: 2.0 times as fast"), (0.04, "too close to tell here")]
)
def test_what_you_saw(fed: float, said: str) -> None:
    rates: Any = Rates({0: 500, 1: 480, 2: 950, 4: 1500})
    alone = run([{"images_per_s": 500.0}])
    words = str(lesson_02.what_you_saw(alone, rates, training(0, 0.04, 0.04), training(2, fed, 0.04), streams()))
    assert said in words and "On 4 cores, 4 workers loaded 1,500" in words
    assert "Two workers made 24 samples of 12" in words


# --- on a busy machine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [..., 500, 5000])
def test_a_disturbed_core_loads_no_number_of_images(guess: object, capsys: Out) -> None:
    lesson_02.show_rate(disturb(run([{"images_per_s": 600.0, "batch": [20, 3, 224, 224]}])), guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "how many images your core loads", guess)
    assert "600" not in out and "such cores" not in out and "An A100 trains ResNet-50 on 2,470 a second in mixed" in out


@pytest.mark.parametrize("guess", [..., 3, 6])
@pytest.mark.parametrize("best", [1500, 300])
def test_disturbed_workers_bring_nothing_that_we_could_see(best: float, guess: object, capsys: Out) -> None:
    figure = lesson_02.show_workers(Rates({0: 500, 1: 480, 2: best, 4: best}, busy=1000.0), guess)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    concludes_nothing(out, "how much several workers bring", guess)
    assert "○ not shown here: several workers" in out and "One worker" not in out
    assert figure_title(figure).startswith("Other programs used")


@pytest.mark.parametrize("guess", [..., 50, 5])
@pytest.mark.parametrize("which", [0, 1])
def test_a_disturbed_training_does_not_say_what_it_waits_for(which: int, guess: object, capsys: Out) -> None:
    """One of the two is enough."""
    pair = [training(0, 0.04, 0.04), training(2, 0.001, 0.04)]
    disturb(pair[which])
    figure = lesson_02.show_starving(*pair, guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "how long the model waits", guess)
    assert "○ not shown here: with workers" in out and "%" not in out and "dollars" not in out and "2 more" in out
    assert figure_title(figure).startswith("Other programs used")


@pytest.mark.parametrize("guess", [..., 2, 10])
def test_disturbed_copies_leave_what_was_published(guess: object, capsys: Out) -> None:
    figure = lesson_02.show_copies(disturb(copied(returned_s=0.004)), guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "how long your GPU's copies take", guess)
    assert "○ not shown here: a copy from pinned" in out and "Published for an A100: 3.0 times." in out
    assert "2.0 times" not in out and figure_title(figure).startswith("Other programs used")
    lesson_02.show_copies(disturb(copied("emulated")), guess)
    assert "Other programs" not in capsys.readouterr().out, "modelled time doesn't mind"


def test_the_end_repeats_no_disturbed_number() -> None:
    rates: Any = Rates({0: 500, 1: 480, 2: 950, 4: 1500})
    alone, starved, fed = disturb(run([{"images_per_s": 500.0}])), training(0, 0.04, 0.04), training(2, 0.001, 0.04)
    words = str(lesson_02.what_you_saw(alone, rates, starved, disturb(fed), streams()))
    assert "Run sections 1 and 2 again" in words and "Run section 4 again" in words and "made 24 samples" in words
    assert "500" not in words and "%" not in words and "times as fast" not in words


def test_the_deeper_sections_conclude_nothing_from_disturbed_runs(capsys: Out) -> None:
    records: Records = [
        {"state": state, "lock_s": s, "before": 0, "after": 1024} for state, s in (("cold", 1e-3), ("warm", 1e-4))
    ]
    figure = deeper.on_locks(disturb(run([*records, {"nbytes": 4 << 20, "pages": 1024}])))
    out = capsys.readouterr().out
    concludes_nothing(out, "what locking costs")
    assert "○ not shown here: locking" in out and figure and figure_title(figure).startswith("Other programs used")
    figure = deeper.on_overlap(
        disturb(run([{"way": w, "epoch_s": s} for w, s in (("in turns", 2), ("overlapped", 1))]))
    )
    out = capsys.readouterr().out
    concludes_nothing(out, "what overlapping gains")
    assert "○ not shown here: on a stream" in out and figure_title(figure).startswith("Other programs used")
    stays = [
        {"stay": stay, "epoch": e, "seen": 0 if stay else e, "first_batch_s": 0.1 / (1 + stay)}
        for stay in (False, True)
        for e in range(5)
    ]
    lesson_02.show_persistent(disturb(run(stays)))
    out = capsys.readouterr().out
    concludes_nothing(out, "which of them is faster")
    assert "✓ new workers see" in out and "○ not shown here: persistent workers give" in out


def test_a_disturbed_loader_is_no_test_of_the_prediction(capsys: Out) -> None:
    loaded = disturb(run([{"load_s": 0.02, "began_s": 0.01}] * 48 + [{"images_per_s": 800.0}]))
    swept = Sweep([{"workers": n} for n in (0, 1)], [[loaded] * 3] * 2)
    shown = repr(lesson_02.show_predicted(deeper.Timed(0.02, 0.02, 0.01, 48, swept, swept.disturbed)))
    out = capsys.readouterr().out
    concludes_nothing(out, "how good the prediction is")
    assert "A batch really took" not in out and "Other programs used" in shown


# --- the deeper sections ----------------------------------------------------------------------------------------------


def test_locks(capsys: Out) -> None:
    def locked(warm_s: float, after: int = 1024) -> Run:
        states = {"cold": 1e-3, "warm": warm_s}
        records: Records = [
            {"state": state, "lock_s": s * f, "before": 0, "after": after}
            for state, s in states.items()
            for f in (0.99, 1.0, 1.01)
        ]
        return run([*records, {"nbytes": 4 << 20, "pages": 1024}])

    figure = deeper.on_locks(locked(1e-4))
    assert figure is not None and "locking alone" in figure.summary and "page faults" in figure.summary
    out = capsys.readouterr().out
    assert "4.0 MiB, 1024 pages; in memory before: 0, after: 1024" in out and "1 more check passed" in out
    with pytest.raises(ClaimError, match="all pages are in memory"):
        deeper.on_locks(locked(1e-4, after=1000))
    assert deeper.on_locks(locked(1e-4, after=-1)) is not None, "a system that doesn't say which pages are there"
    assert deeper.on_locks(run([{"nbytes": 0, "pages": 0}])) is None
    assert "– not run here: locking takes longer" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "said"), [("measured", "✓ on a stream of its own"), ("emulated", "needs a GPU")])
def test_the_overlap(kind: str, said: str, capsys: Out) -> None:
    ways = {"in turns": 0.016, "overlapped": 0.012}
    records: Records = [{"way": way, "epoch_s": s * f} for way, s in ways.items() for f in (0.99, 1.0, 1.01)]
    figure = deeper.on_overlap(run(records, kind=kind))
    assert said in capsys.readouterr().out and "1.3 times as long as overlapped" in figure_title(figure)


@pytest.mark.parametrize(
    ("device", "pinned", "warned", "holds"),
    [("cpu", False, "'pin_memory' argument ...", True), ("cuda", True, "", True), ("cpu", False, "", False)],
)
def test_what_pinning_does_without_a_gpu_and_with_one(
    device: str, pinned: bool, warned: str, holds: bool, capsys: Out
) -> None:
    records: Records = [{"device": device, "pinned": pinned, "warned": warned}]
    if not holds:
        with pytest.raises(ClaimError, match="only warns"):
            deeper.show_pins(run(records))
        return
    deeper.show_pins(run(records))
    assert f"On {device}: pinned {pinned}; warning: {warned or 'none'}" in capsys.readouterr().out


def test_what_was_published_is_predicted_where_it_is_said_to_be_and_the_rule_is_not_flattered(capsys: Out) -> None:
    """Two of the loader's rows were fitted, so only the third is judged; copies alone are 38% off by the rule."""
    figure = deeper.show_published()
    out = capsys.readouterr().out
    assert "✓ the model predicts the published loader with two workers to within 10%" in out
    assert "0.039 s by the rule of 85%, 0.063 s published" in out and "2 more checks passed" in out
    assert "2 workers: 1.41 s predicted, 1.33 s published, +5%" in out and out.count(" predicted,") == 1
    assert figure.summary.count("predicted") >= 1
    assert {c.id for c in published.cases("loader_des") if c.role == "calibration"} == {"loader-w0", "loader-w1"}


# --- the file to take home --------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "workers"), [pytest.param(1, 0, marks=pytest.mark.slow), (2, 1)])
def test_the_file_to_take_home_trains_and_says_what_loading_costs(ranks: int, workers: int, tmp_path: Path) -> None:
    args = ["--epochs", "2", "--samples", "640", "--workers", str(workers)]
    answer = torchrun(lesson_02.TAKE_HOME, *args, ranks=ranks, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    said = re.findall(
        rf"epoch \d: loss ([\d.]+), \d+ images/s on each rank with num_workers={workers}, \d+ on one batch;"
        r" loading costs \d+% of the time",
        answer.stdout,
    )
    assert len(said) == 2 and float(said[1]) < 1.6, answer.stdout  # 2.3 is chance
    program = lesson_02.take_home()
    assert "course_utils" not in program.text and "```python\n" in program._repr_markdown_()
