"""Lesson 00: what it says of its experiments, for every guess and every number of ranks; its map; the file to take
home."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from by_torchrun import torchrun
from conftest import ROOT, concludes_nothing, disturb, takes_nonsense
from conftest import made_run as run

import lesson_00
from course_utils import Run, Sweep, predict, published
from course_utils.cells.claims import ClaimError
from course_utils.explore import scaling_laws
from course_utils.figures import Figure
from lesson_00 import deeper, job
from lesson_00.ways import LAYERS, MODEL, TEXTS, WAYS, WHOLE, Way

Captured = pytest.CaptureFixture[str]


def a_job(n: int, train_s: float, test_s: float, shared: bool = False, tested: int | None = None) -> Run:
    """A run of 00_job.py."""
    counts = [16 // n] * n if shared else [16] + [0] * (n - 1)
    if tested is not None:
        counts[-1] = tested
    records = [
        [{"batch": 64, "steps": 8, "tested": count}, {"train_s": train_s, "test_s": test_s, "job_s": train_s + test_s}]
        for count in counts
    ]
    return run(*records)


def jobs(
    job_s: dict[int, float], spread: float = 0.0, shared_s: float | None = None, tested: int | None = None
) -> Sweep:
    """Three runs on each of these numbers of ranks, of which the last two take `spread` less and more; `shared_s` is
    the time on the largest with the test shared."""
    points = [{"ranks": n, "share_test": False} for n in job_s]
    runs = [[a_job(n, s - 1.0 + more, 1.0) for more in (0.0, -spread, spread)] for n, s in job_s.items()]
    if shared_s is not None:
        points.append({"ranks": max(job_s), "share_test": True})
        train_s = job_s[max(job_s)] - 1.0
        runs.append([a_job(max(job_s), train_s, shared_s - train_s, shared=True, tested=tested)] * 3)
    return Sweep(points, runs)


ALONE = jobs({1: 5.0})  # a fifth is serial: Amdahl expects 1.67 on two ranks


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    on_ranks([1, 2], monkeypatch)


def on_ranks(worlds: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lesson_00, job, deeper):
        monkeypatch.setattr(module, "WORLDS", list(worlds))


def title(figure: Figure) -> str:
    return str(figure.mpl.get_suptitle())


# --- The core ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 8, 16])
def test_the_first_ranks(n: int, capsys: Captured) -> None:
    shares = [list(range(rank, 10, n)) for rank in range(n)]
    lesson_00.show_first(run(*([{"mine": mine, "total": 10}] for mine in shares)))
    out = capsys.readouterr().out
    assert f"rank 0 took {len(shares[0])}" in out and "✓ together the ranks took every image once" in out
    with pytest.raises(ClaimError, match="every image once"):
        lesson_00.show_first(run([{"mine": [0], "total": 10}]))
    with pytest.raises(ClaimError, match="knows the total"):
        lesson_00.show_first(run([{"mine": list(range(10)), "total": 5}]))


def a_step(slope: float = -0.01, backward: float = 0.2) -> Run:
    parts = {"load": 0.01, "move": 0.001, "forward": 0.1, "backward": backward, "optimizer": 0.02}
    return run([{"loss": 4.6 + slope * i, "images": 64, **parts} for i in range(24)])


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "The longest part is backward."),
        (None, "The longest part is backward."),
        ("Backward", "You said backward, and it takes longest."),
        ("forward", "You said forward, and it's backward."),
        (3, "Your bet should be load, move, forward, backward or optimizer. The longest part is backward."),
    ],
)
def test_the_step(guess: object, said: str, capsys: Captured) -> None:
    figure = lesson_00.show_step(a_step(), guess)
    out = capsys.readouterr().out
    assert said in out and "A step of 64 images takes 331 ms" in out and "2.0 times as long as forward" in out
    assert "✓ forward takes less time than backward" in out and ".." not in out and figure.summary
    assert re.search(r"The loss went from 4.5\d to 4.4\d: so few steps", out)
    with pytest.raises(ClaimError, match="the loss doesn't grow"):
        lesson_00.show_step(a_step(slope=0.1), guess)
    lesson_00.show_step(a_step(slope=0.01), guess)
    assert "so few steps are only a beginning." in capsys.readouterr().out
    lesson_00.show_step(a_step(backward=0.1))
    assert "○ not shown here: forward takes less" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("many_s", "guess", "said"),
    [
        (
            3.2,
            ...,
            [
                "One rank took 5.00 s, and 2 took 3.20 s: 1.56 times as fast",
                "where Amdahl expected 1.67. You made no bet.",
            ],
        ),
        (3.2, None, ["You made no bet."]),
        (3.2, "fast", ["Your bet should be a number"]),
        (3.2, 1.6, ["You said 1.6. Well done."]),
        (3.2, "1.6", ["You said 1.6. Well done."]),
        (3.2, 2, ["You said 2. The test and the talking cost more"]),
        (3.2, 1, ["You said 1. It's better than you feared."]),
        (
            4.0,
            2,
            [
                "1.25 times as fast",
                "That's far below. Training took 3000 ms, where half of 4000 is 2000.",
                "is in the training. You said 2.",
            ],
        ),
        (2.2, 2, ["2.27 times as fast", "That's more than the law allows", "You said 2. It's better"]),
    ],
)
def test_the_speed_up(many_s: float, guess: object, said: list[str], capsys: Captured) -> None:
    lesson_00.show_prediction(ALONE)
    assert "4.00 s of training and 1.00 s of test. So 20.0% is serial" in capsys.readouterr().out
    figure = lesson_00.show_speedup(ALONE, jobs({1: 5.0, 2: many_s}), guess)
    out = capsys.readouterr().out
    assert all(words in out for words in [*said, "✓ two ranks finish the job before one", "1 more check passed"]), out
    assert "times as fast as one" in title(figure)
    assert ("guessed" in figure.summary) == any("You said" in words for words in said)


@pytest.mark.parametrize(("many_s", "spread"), [(5.1, 0.5), (9.0, 0.0)])
def test_too_close_to_tell(many_s: float, spread: float, capsys: Captured) -> None:
    """Two ranks took about as long as one, or longer: the words, the figure's title, and what others recorded."""
    noisy = jobs({1: 5.0, 2: many_s}, spread=spread)
    figure = lesson_00.show_speedup(ALONE, noisy, 1.9)
    out = capsys.readouterr().out
    assert "○ not shown here" in out and "Too close to tell" in out and "we take Amdahl's 1.67" in out
    assert "You said" not in out and title(figure) == "This sweep couldn't show a speed-up"
    assert "AMD EPYC" in figure.summary


def test_on_eight_ranks(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    on_ranks([1, 2, 4, 8], monkeypatch)
    lesson_00.show_prediction(ALONE)
    lesson_00.show_speedup(ALONE, jobs({1: 5.0, 2: 3.1, 4: 2.1, 8: 1.6}), 3.3)
    out = capsys.readouterr().out
    assert "3.33 times the speed on 8 ranks" in out and "✓ 8 ranks finish the job before one" in out


def test_a_job_that_all_ranks_tested_is_seen() -> None:
    wrong = Sweep([{"ranks": 1}, {"ranks": 2}], [[a_job(1, 4.0, 1.0)], [a_job(2, 2.0, 1.0, tested=3)]])
    with pytest.raises(ClaimError, match="rank 0 tested alone"):
        lesson_00.show_speedup(ALONE, wrong)


@pytest.mark.parametrize(
    ("after_s", "said"),
    [
        (
            2.5,
            [
                "✓ the test is faster when",
                "the test takes 300 ms instead of 1000. The whole job takes 2500 ms instead of 3200.",
                "1.56 times the speed of one rank becomes 2.00.",
            ],
        ),
        (3.2, ["○ not shown here", "Too close to tell"]),
        (4.2, ["○ not shown here", "did each rank have a core to itself?", "Too close to tell"]),
    ],
)
def test_sharing_the_test(after_s: float, said: list[str], capsys: Captured) -> None:
    figure = lesson_00.show_shared_test(jobs({1: 5.0, 2: 3.2}, shared_s=after_s))
    out = capsys.readouterr().out
    assert all(words in out for words in said), out
    assert ("the test takes 300 ms" in title(figure)) == (after_s < 3)
    lesson_00.show_shared_test(jobs({1: 3.0, 2: 3.2}, shared_s=after_s))
    assert "becomes" not in capsys.readouterr().out, "nothing is said of a speed-up that wasn't shown"
    with pytest.raises(ClaimError, match="as many images were tested"):
        lesson_00.show_shared_test(jobs({1: 5.0, 2: 3.2}, shared_s=after_s, tested=3))


EMULATED = {(1, False): (4.0, 1.0), (8, False): (0.6, 1.0), (8, True): (0.6, 0.13)}


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "You made no bet."),
        ("three", "Your bet should be a number of hours."),
        (2, "You said 2. For that, every GPU would have to work overtime."),
        (3, "You said 3, as nearly everybody does"),
        (3.5, "You said 3.5, as nearly"),
        (5, "between the two"),
        (7.5, "You've waited for a rank 0 before."),
        (20, "not as bad as you feared"),
    ],
)
def test_eight_gpus(guess: object, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(job, "emulated_s", lambda: EMULATED)
    figure = lesson_00.show_eight(guess, ALONE)
    out = capsys.readouterr().out
    assert "Eight GPUs need 7.7 hours: 2.9 to train and 4.8 to test. If they share the test, it's 3.5." in out
    assert "19.2 hours of training / 8 + 4.8 of test = 7.2. The other 0.5 go to" in out
    assert "The test is 20% of the day on an A100, and 20% of the job on your device." in out
    assert said in out and "✓ 3 more checks passed" in out and "24 hours become 7.7, or 3.5" in title(figure)
    monkeypatch.setattr(job, "emulated_s", lambda: EMULATED | {(8, False): (0.3, 1.0)})
    with pytest.raises(ClaimError, match="than Amdahl allows"):
        lesson_00.show_eight(guess)


@pytest.mark.parametrize(
    ("guess", "said"),
    [(..., "You made no bet."), (3, "You said 3%. Close."), (50, "You said 50%."), ("half", "0 to 100")],
)
def test_a_clock_that_stops_too_early(guess: object, said: str, capsys: Captured) -> None:
    clocks = run(*([{"asked_s": 0.001, "done_s": 0.05}] * 5 for _ in range(2)))
    lesson_00.show_clocks(clocks, guess)
    out = capsys.readouterr().out
    assert said in out and "The hasty clock saw 2.0%." in out and "✓ a clock that doesn't wait" in out


@pytest.mark.parametrize(
    "show",
    [
        lambda guess: lesson_00.show_step(a_step(), guess),
        lambda guess: lesson_00.show_speedup(ALONE, jobs({1: 5.0, 2: 3.2}), guess),
        lambda guess: lesson_00.show_eight(guess, ALONE),
        lambda guess: lesson_00.show_clocks(run([{"asked_s": 0.001, "done_s": 0.05}] * 5), guess),
        lambda guess: lesson_00.show_doubled(doubled(), guess),
    ],
    ids=["step", "speedup", "eight", "clocks", "doubled"],
)
def test_a_bet_that_is_none(
    show: Callable[[object], object], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(job, "emulated_s", lambda: EMULATED)
    takes_nonsense(show, capsys)


def test_a_serial_part_that_another_device_does_not_have(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(job, "emulated_s", lambda: EMULATED)
    lesson_00.show_eight(3, jobs({1: 10.0}))
    out = capsys.readouterr().out
    assert "20% of the day on an A100, and 10% of the job on your device. A device isn't equally fast" in out
    lesson_00.show_eight(3)
    assert "your device" not in capsys.readouterr().out


def test_what_the_page_says_of_64_gpus() -> None:
    """The numbers in its text are the emulated job's and the explorer's."""
    page = (ROOT / "notebooks" / "00_start_here.ipynb").read_text()
    share = job.hours(1)["test"] / job.DAY_H
    for words in (f"{share:.0%} serial", f"scaling(serial={100 * share:.0f}, talk=3)"):
        assert words in page
    told = {}
    for serial in (22, 0):
        values = {"serial": serial, "talk": 3, "latency": scaling_laws.LATENCY.default}
        told[serial] = {n: scaling_laws.strong(values, n) for n in range(1, 129)}
    best = {serial: max(found, key=lambda n: found[n]) for serial, found in told.items()}
    assert 55 < best[22] < 65 and f"beyond about {round(best[0], -1)} it falls all the same" in page
    for words in (f"64 make it {told[22][64]:.1f} times as fast", f"64 make it {told[0][64]:.1f} times as fast"):
        assert words in page
    assert scaling_laws.LATENCY.more and "under <em>more</em>" in page
    no_latency = {"serial": 22, "talk": 3, "latency": 0}
    rises = [scaling_laws.strong(no_latency, n) for n in range(1, 1025)]
    assert rises == sorted(rises) and "Set it to 0, and the line only rises." in page
    talk = scaling_laws.talk_share({"talk": 3, "latency": 0}, 2)
    assert talk == pytest.approx(0.03) and "on two GPUs, talking takes 3% of what a step takes on one" in page


@pytest.mark.parametrize(
    ("many_s", "said"),
    [
        (3.2, "you measured 1.56."),
        (4.0, "1.25; what's missing is in the training."),
        (5.0, "your machine was too busy"),
    ],
)
def test_what_you_saw(many_s: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "emulated_s", lambda: EMULATED)
    first = run([{"mine": []}], [{"mine": []}])
    words = str(lesson_00.what_you_saw(first, a_step(), ALONE, jobs({1: 5.0, 2: many_s})))
    assert said in words and "You started 2 ranks" in words and "24 hours become 7.7" in words


# --- On a busy machine ------------------------------------------------------------------------------------------------

RECORDED = "ecorded on AMD EPYC, 2 cores, 24 GiB, no GPU"


@pytest.mark.parametrize("guess", [..., "backward", "load"])
def test_a_disturbed_step_does_not_say_where_its_time_goes(guess: object, capsys: Captured) -> None:
    figure = lesson_00.show_step(disturb(a_step()), guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "where a step's time goes", guess)
    assert "○ not shown here: forward takes less time than backward (other programs used" in out
    assert " ms" not in out and "longest" not in out and "busy, and" not in out and "The loss went from" in out
    assert title(figure).startswith("Other programs used") and figure.summary.startswith("Other programs used")


def test_a_disturbed_run_on_one_rank_predicts_nothing(capsys: Captured) -> None:
    alone = disturb(jobs({1: 10.0}))  # a tenth is serial
    lesson_00.show_prediction(alone)
    out = capsys.readouterr().out
    concludes_nothing(out, "how much of the job is serial")
    assert f"Until then we take what was r{RECORDED}: {job.serial_share(job.on_record(alone)):.1%} is serial" in out
    assert "10.0%" not in out and job.expected_speedup(alone, 2) == job.expected_speedup(job.on_record(alone), 2)


@pytest.mark.parametrize("guess", [..., 1.9, 1.25, 1.0])
@pytest.mark.parametrize("which", ["alone", "runs", "both"])
def test_a_disturbed_job_does_not_say_what_two_ranks_bring(which: str, guess: object, capsys: Captured) -> None:
    """Undisturbed, the same numbers blame the training, and judge the bet (`test_the_speed_up`)."""
    alone, runs = jobs({1: 5.0}), jobs({1: 5.0, 2: 4.0}, shared_s=3.0)
    for name, sweep in (("alone", alone), ("runs", runs)):
        if which in (name, "both"):
            disturb(sweep)
    figure = lesson_00.show_speedup(alone, runs, guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "how much faster 2 ranks are", guess)
    assert "○ not shown here: two ranks finish the job before one" in out and f"R{RECORDED}: 2 ranks were 1." in out
    assert "far below" not in out and "missing" not in out and "talking" not in out and "You made no bet" not in out
    assert title(figure).startswith("Other programs used") and RECORDED in figure.summary


def test_disturbed_a_shared_test_gains_nothing_that_we_could_see(capsys: Captured) -> None:
    runs = disturb(jobs({1: 5.0, 2: 3.2}, shared_s=2.5))
    figure = lesson_00.show_shared_test(runs)
    out = capsys.readouterr().out
    concludes_nothing(out, "what sharing the test gains")
    assert "○ not shown here: the test is faster" in out and "takes 300 ms" not in out + title(figure)
    assert f"R{RECORDED}: shared, the test took" in out and "Recorded: 2 ranks, test shared: " in figure.summary


@pytest.mark.parametrize("guess", [..., 2, 50])
def test_a_disturbed_clock_says_nothing(guess: object, capsys: Captured) -> None:
    lesson_00.show_clocks(disturb(run(*([{"asked_s": 0.001, "done_s": 0.05}] * 5 for _ in range(2)))), guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "how much a hasty clock sees", guess)
    assert "○ not shown here: a clock that doesn't wait" in out and "2.0%" not in out


def test_the_end_repeats_no_disturbed_number(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(job, "emulated_s", lambda: EMULATED)
    first, alone, runs = run([{"mine": []}], [{"mine": []}]), jobs({1: 5.0}), jobs({1: 5.0, 2: 4.0})
    calm = str(lesson_00.what_you_saw(first, a_step(), alone, runs))
    assert "what's missing is in the training" in calm and "took 331 ms here" in calm
    disturb(alone)
    words = str(lesson_00.what_you_saw(first, disturb(a_step()), alone, runs))
    assert "Run section 2 again" in words and "Run section 3 again to see what two ranks bring" in words
    assert " ms" not in words and "1.25" not in words and "training is" not in words and "24 hours become 7.7" in words
    lesson_00.show_eight(3, alone)
    out = capsys.readouterr().out
    assert "of the job on your device" not in out and "On your device other programs were in the way" in out


def test_the_deeper_sections_conclude_nothing_from_disturbed_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    alone, runs = jobs({1: 5.0}), disturb(jobs({1: 5.0, 2: 3.2}))
    shown = repr(lesson_00.show_residuals(alone, runs))
    concludes_nothing(capsys.readouterr().out, "what the law leaves out")
    assert "2 ranks: predicted by Amdahl's law, and recorded on AMD EPYC" in shown
    lesson_00.show_fit(alone, runs)
    out = capsys.readouterr().out
    concludes_nothing(out, "what is serial")
    assert "○ not shown here: from outside" in out and "Karp" not in out
    lesson_00.show_queue({1: 0.0, 2: 0.5, 4: 2.0, 8: 10.0}, alone, runs)
    assert "cores meanwhile, so this takes Amdahl's: 1.67" in capsys.readouterr().out
    figure = lesson_00.show_doubled(disturb(doubled()), 50)
    out = capsys.readouterr().out
    concludes_nothing(out, "how much faster a tensor is", 50)
    assert out.count("○ not shown here") == 2 and title(figure).startswith("Other programs")
    lesson_00.show_product(disturb(run([{"on_gpu": True, "asked_s": 1e-5, "done_s": 4e-2}])))
    out = capsys.readouterr().out
    concludes_nothing(out, "when a product is there")
    assert "○ not shown here: on a GPU" in out
    pieces = [[run([{"compute_s": 0.4, "update_s": 0.01, "exchange_s": 0.0}])] for _ in range(3)]
    monkeypatch.setattr(deeper, "sweep", lambda script, over, **_: Sweep(list(over), pieces))
    lesson_00.show_pieces(alone, runs)
    concludes_nothing(capsys.readouterr().out, "which of the four costs most")


# --- The deeper sections ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("many_s", "says"),
    [
        (3.2, "8 GPUs are worth waiting for if their queue is shorter than"),
        (6.0, "this takes Amdahl's: 1.67 on 2 ranks"),  # a busy machine: two ranks took longer than one
    ],
)
def test_no_conclusion_is_drawn_from_a_speed_up_that_was_not_shown(many_s: float, says: str, capsys: Captured) -> None:
    lesson_00.show_queue({1: 0.0, 2: 0.5, 4: 2.0, 8: 10.0}, ALONE, jobs({1: 5.0, 2: many_s}))
    out = capsys.readouterr().out
    assert says in out and re.search(r"shorter than [1-9]\d?\.\d hours", out)


def test_a_queue_of_one_kind_only(capsys: Captured) -> None:
    figure = lesson_00.show_queue({1: 3.0}, ALONE, jobs({1: 5.0, 2: 3.2}))
    assert "1 GPU: the result is there after 27.0 hours" in title(figure)


def test_the_residual_and_its_four_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = jobs({1: 5.0, 2: 3.4})
    assert "worst −17% (train)" in repr(lesson_00.show_residuals(ALONE, runs))

    def timed(script: object, over: Sequence[dict[str, object]], **_: object) -> Sweep:
        times = [(0.40, 0.01, 0.0), (0.21, 0.01, 0.0), (0.23, 0.01, 0.005)]
        pieces = [[run([{"compute_s": c, "update_s": u, "exchange_s": e}])] for c, u, e in times]
        return Sweep(list(over), pieces)

    monkeypatch.setattr(deeper, "sweep", timed)
    rows = {what: float(ms) for what, ms in lesson_00.show_pieces(ALONE, runs).rows}
    assert rows["smaller pieces"] == 10 and rows["sharing the machine"] == 20 and rows["the exchange"] == 5
    assert rows["together"] == 40 and rows["the residual, a step of the job"] == 50


def doubled() -> Run:
    times = {
        ("Python loop", 10): 1e-6,
        ("Python loop", 10**6): 6e-2,
        ("tensor, CPU", 10): 5e-6,
        ("tensor, CPU", 10**6): 2e-4,
    }
    return run([{"how": how, "n": n, "double_s": s} for (how, n), s in times.items()])


@pytest.mark.parametrize(("guess", "said"), [(..., "You made no bet."), (50, "You said 50.")])
def test_loops_and_tensors(guess: object, said: str, capsys: Captured) -> None:
    lesson_00.show_doubled(doubled(), guess)
    assert f"300 times as fast. {said}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("on_gpu", "asked_s", "said"), [(True, 1e-5, "✓ on a GPU"), (False, 4e-2, "– not run here: on a GPU")]
)
def test_a_clock_and_a_product(on_gpu: bool, asked_s: float, said: str, capsys: Captured) -> None:
    lesson_00.show_product(run([{"on_gpu": on_gpu, "asked_s": asked_s, "done_s": 4e-2}]))
    assert said in capsys.readouterr().out


def test_only_their_numbers_differ(capsys: Captured) -> None:
    def rank(number: int, port: str = "29500") -> list[dict[str, object]]:
        found = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "MASTER_PORT": port}
        return [*({"name": k, "value": v} for k, v in found.items()), {"process": 100 + number}]

    table = lesson_00.show_variables(run(rank(0), rank(1)))
    assert ("RANK", "0", "1") in [tuple(row) for row in table.rows]
    with pytest.raises(ClaimError, match="only their numbers differ"):
        lesson_00.show_variables(run(rank(0), rank(1, port="1")))


@pytest.mark.parametrize(("many_s", "said"), [(3.2, "✓ from outside"), (2.6, "○ not shown here: from outside")])
def test_the_serial_part_from_outside(many_s: float, said: str, capsys: Captured) -> None:
    lesson_00.show_fit(ALONE, jobs({1: 5.0, 2: many_s}))
    out = capsys.readouterr().out
    assert said in out and "– not run here: the law explains all times" in out


def test_nothing_is_fitted_where_no_speed_up_was_shown(capsys: Captured) -> None:
    lesson_00.show_fit(ALONE, jobs({1: 5.0, 2: 5.5}))
    out = capsys.readouterr().out
    assert "From outside everything looks serial then" in out and "✓" not in out and "Karp" not in out


def test_a_fit_to_four_numbers_of_ranks(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    on_ranks([1, 2, 4, 8], monkeypatch)
    lesson_00.show_fit(ALONE, jobs({1: 5.0, 2: 3.1, 4: 2.1, 8: 1.6}))
    assert "✓ the law explains all times to within a tenth" in capsys.readouterr().out


def test_the_published_trainings_lose_little() -> None:
    points = published.ddp_scaling()
    assert min(predict.efficiency(point.speedup, point.n) for point in points) > 0.8
    speedups = [point.speedup for point in points]
    assert {point.n for point in points} == {8} and (round(min(speedups), 1), round(max(speedups), 1)) == (6.5, 7.9)
    page = (ROOT / "notebooks" / "00_start_here.ipynb").read_text()
    assert "[6.5 to 7.9 times](#What-others-measured)" in page
    efficiencies = [predict.efficiency(point.speedup, point.n) for point in points]
    assert f"{min(efficiencies):.0%} to {max(efficiencies):.0%}." in page
    assert len(lesson_00.published_table().rows) == len(points)


# --- The map ----------------------------------------------------------------------------------------------------------


def words(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.mpl.axes[0].texts]


def test_each_way_has_a_picture_and_says_what_is_divided_and_exchanged_and_where_it_is_taught() -> None:
    figure = lesson_00.ways(9)
    text = figure.summary
    for way in WAYS:
        assert way.name in words(figure) and way.name in text
        assert way.divided in text and way.exchanged in text and all(lesson in text for lesson in way.lessons)
    assert len(WAYS) == 9 and title(figure).startswith("Nine ways")
    names = " ".join(way.name for way in WAYS)
    assert all(what in names for what in ("FSDP", "Tensor", "Sequence", "Expert"))


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.name)
def test_the_devices_of_a_way_hold_the_whole_model_and_see_the_whole_batch(way: Way) -> None:
    devices = [device for machine in way.machines for device in machine]
    pieces = [(part, half) for part in TEXTS for half in "01"]  # of the batch
    weights = [(layer, quarter) for layer in range(LAYERS) for quarter in WHOLE]
    keeps = [{(i, quarter) for i, kept in enumerate(device.layers) for quarter in kept} for device in devices]
    sees = [{(part, half) for part in device.batch for half in device.halves} for device in devices]
    assert set.union(*keeps) == set(weights) and set.union(*sees) == set(pieces)
    for piece in pieces:  # passes every weight exactly once, where it is or where the other comes from
        for weight in weights:
            there = sum(piece in batch and weight in kept for batch, kept in zip(sees, keeps, strict=True))
            holders = sum(weight in kept for kept in keeps)
            assert there == 1 or (way.travels and holders == 1 and there == 0), (piece, weight)
    copies = all(device.layers == MODEL for device in devices)
    assert copies == (not re.search("layer|weights|experts", way.divided)), "what is divided is not copied"
    split = len({tuple(sorted(batch)) for batch in sees}) > 1
    assert split == bool(re.search("batch|tokens", way.divided))


def test_the_map_has_the_six_ways_that_a_beginner_needs() -> None:
    figure = lesson_00.ways()
    drawn = [way.name for way in WAYS if way.name in words(figure)]
    assert drawn == [way.name for way in WAYS[:6]] and title(figure).startswith("Six ways")
    assert all(way.lessons for way in WAYS[:6]) and "Expert" not in figure.summary


@pytest.mark.parametrize("count", [6, 9])
def test_the_text_of_the_map_is_not_cut_off_and_no_line_covers_another(count: int) -> None:
    figure = lesson_00.ways(count)
    figure.mpl.canvas.draw()
    whole = figure.mpl.bbox
    boxes = [(t.get_text(), t.get_window_extent()) for t in figure.mpl.axes[0].texts]
    assert all(b.x0 >= 0 and b.x1 <= whole.width and b.y0 >= 0 and b.y1 <= whole.height for _, b in boxes)
    for i, (one, a) in enumerate(boxes):
        for other, b in boxes[i + 1 :]:
            assert a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0, f"{one!r} and {other!r} overlap"


# --- The file to take home --------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_file_to_take_home_times_a_training_on_one_rank_and_on_two(ranks: int, tmp_path: Path) -> None:
    """Under torchrun. On one rank it also says what Amdahl expects, and that follows from the times it prints."""
    answer = torchrun(lesson_00.TAKE_HOME, "--steps", "5", "--batch-size", "64", ranks=ranks, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = re.search(r"(\d) ranks?: ([\d.]+) s of training and ([\d.]+) s serial, ([\d.]+) s in all", answer.stdout)
    assert found and int(found[1]) == ranks, answer.stdout
    train_s, serial_s, total_s = map(float, found.groups()[1:])
    assert total_s == pytest.approx(train_s + serial_s, abs=0.002)
    expected = {
        int(n): float(s) for s, n in re.findall(r"expects ([\d.]+) times the speed on (\d+) ranks", answer.stdout)
    }
    assert sorted(expected) == ([2, 4, 8, 64] if ranks == 1 else [])
    assert all(1 <= times <= n for n, times in expected.items())
