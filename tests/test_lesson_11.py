"""Lesson 11: what it says of its experiments, for every guess; its batch file; and the trainer to take home."""

from __future__ import annotations

import os
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, takes_nonsense

import lesson_11
from course_utils import Provenance, Run, Sweep, launch, recorded
from course_utils.cells.claims import ClaimError
from course_utils.emulation.clusters import cluster
from course_utils.explore import several_nodes
from course_utils.results.rank_result import RankResult
from course_utils.slurm.job_template import torchrun_job
from lesson_11 import far, left_out, two_nodes

NOTEBOOK = ROOT / "notebooks" / "11_beyond_one_machine.ipynb"
EMULATED = Provenance("emulated", "16xH100")


def run(*ranks: list[dict[str, Any]]) -> Run:
    """A run whose ranks reported these records."""
    results = [RankResult(i, 0, log="no such file", records=records) for i, records in enumerate(ranks)]
    return Run(results, "no such script", [], "", "warm", "", 1.0, "", "finished", EMULATED)


def step(step_s: float, compute_s: float = 0.0183, nbytes: int = 102_228_128) -> Run:
    return run([{"step_s": step_s, "compute_s": compute_s, "nbytes": nbytes}])


ONE, EIGHT = step(0.01967), step(0.01976)
TWO = {"ethernet25": step(0.0456), "ethernet100": step(0.0206), "ndr400": step(0.0198)}
SCALING = {8: step(0.30), 64: step(0.05), 1024: step(0.025)}


def hello(wrong: bool = False) -> Run:
    return run(*[[{"node": r // 8, "local_rank": r if wrong else r % 8, "total": 16.0}] for r in range(16)])


def silent(seconds: float | None) -> Run:
    """Rank 0 noticed after so many seconds; None if it was ended before it could tell."""
    return run([] if seconds is None else [{"waited_s": seconds}], [])


def wrong_gpu(*got: int) -> Run:
    return run(*[[{"has": f"cuda:{r}"}] * (r in got) for r in range(16)])


def cells() -> list[Any]:
    return list(nbformat.read(NOTEBOOK, as_version=4).cells)


def program(file: str) -> str:
    """The program of a cell, by its `--file`."""
    (source,) = (c.source for c in cells() if c.source.startswith("%%ranks") and f"--file {file} " in c.source)
    return str(source.partition("\n")[2])


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "Rank 11 lives on node 1, and its LOCAL_RANK is 3."),
        (3, "You said 3: its node counts its GPUs from 0, and rank 8 is the first there."),
        ("3", "You said 3: its node"),
        (11, "You said 11. That's its RANK."),
        (4, "You said 4. They're numbered from 0, so its node's fourth GPU is number 3."),
        (7, "You said 7. Its node has 8 GPUs, numbered from 0."),
        (2, "You said 2. Its node's first rank is 8, so count from there."),
        (3.5, "Your bet should be a whole number, 0 or more."),
    ],
)
def test_which_gpu(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_11.show_hello(hello(), guess)
    out = capsys.readouterr().out
    assert said in out and "✓ each node counts" in out
    with pytest.raises(ClaimError, match="counts its ranks"):
        lesson_11.show_hello(hello(wrong=True), guess)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "6.9 times: sixteen GPUs are slower than the eight of one node."),
        (7, "You said 7 times: you've met such a cable before, or worked it out."),
        ("7.2 times", "You said 7.2 times: you've met"),
        (8, "You said 8 times. As if the second node weren't there."),
        (12, "You said 12 times. You thought of the cable, and it's worse."),
        (15, "You said 15 times. You thought of the cable"),
        (8.6, "You said 8.6 times. That's if the whole step hides the sum."),
        (5.6, "You said 5.6 times. That's if the sum begins after backward."),
        (10, "You said 10 times. All sixteen wait for the cable"),
        (16, "You said 16 times. That's what a fast network brings."),
        (30, "You said 30 times. All sixteen wait for the cable"),
        (4, "You said 4 times. It's bad, but not that bad."),
        (2, "You said 2 times. Twice as fast as one *node* would be 16 here."),
        (0, "Your bet should be a number above 0, such as 12."),
        (-3, "Your bet should be a number above 0, such as 12."),
        ("12 GiB", "Your bet should be a number above 0, such as 12."),
    ],
)
def test_two_nodes(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_11.show_two_nodes(ONE, EIGHT, TWO, guess)
    out = capsys.readouterr().out
    assert said in out and "15.3 over 100 Gbit/s, and 15.9 over 8 x 400 Gbit/s" in out
    title = " ".join(figure.mpl._suptitle.get_text().split())  # it may need two lines
    assert "6.9 times one GPU over 25 Gbit/s" in title
    with pytest.raises(ClaimError, match="slower than eight"):
        lesson_11.show_two_nodes(ONE, EIGHT, {**TWO, "ethernet25": step(0.0201)}, guess)
    assert "sixteen GPUs are no slower than the eight of one node" in capsys.readouterr().out


def test_each_bar_names_the_cluster_that_it_ran_on(capsys: pytest.CaptureFixture[str]) -> None:
    eight = replace(EIGHT, provenance=Provenance("emulated", "8xH100"))
    summary = repr(lesson_11.show_two_nodes(ONE, eight, TWO))
    assert "8, in one node: emulated on 8xH100" in summary and "16, 25 Gbit/s: emulated on 16xH100" in summary


def test_a_node_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_11.show_one_node(ONE, EIGHT)
    assert "One GPU takes 19.7 ms for a step. With eight it's 19.8 ms" in capsys.readouterr().out
    with pytest.raises(ClaimError):
        lesson_11.show_one_node(ONE, step(0.03))


def test_the_rule_on_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert lesson_11.on_paper(0.03, 1e8, 1e9) == pytest.approx(0.11)  # 10 ms forward, then the sum of 100 ms
    assert lesson_11.on_paper(0.03, 1e8, 1e12) == pytest.approx(0.03)  # it hides behind backward
    assert lesson_11.on_paper(0.03, 1e8, 1e9, nodes=4) == pytest.approx(0.16)  # each node sends 1.5 times as much
    table = lesson_11.show_on_paper(ONE, TWO)
    out = capsys.readouterr().out
    assert "The gradients are 102 MB" in out and "leaves out: 11% of a step at most. 1.4 ms of that DDP takes" in out
    assert [row[0] for row in table.rows] == list(lesson_11.LINKS.values()) and len(table.head) == 6


@pytest.mark.parametrize(
    ("killed", "frozen", "said"),
    [
        (..., ..., "*Killed:* rank 0 noticed after 0.0 s."),
        (0, 3, "You said 0 s: its system closed the connection for it."),
        (0.5, 3, "You said 3 s: the timeout, and not a moment earlier."),
        (3, 3, "You said 3 s. That's how long a silent one takes."),
        (30, 30, "You said 30 s. Its system is alive"),
        (0, 0, "You said 0 s. Who should have told rank 0?"),
        (0, 60, "You said 60 s. The timeout ends it."),
        (-1, 3, "Your bet should be seconds, 0 or more"),
        (0, "soon", "Your bet should be seconds, 0 or more"),
        (0, "never", "You said never: so it would be without a timeout."),
        ("Never ", 3, "You said never: its system is alive"),
    ],
)
def test_a_silent_rank(killed: Any, frozen: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_11.show_silent(silent(0.01), silent(3.0), killed, frozen)
    out = capsys.readouterr().out
    assert (
        said in out and "85 GPU hours for a frozen process" in out and "without power it's about 43, or somewhat" in out
    )
    assert "✓ a killed rank is noticed before the timeout" in out
    for early, late in ((3.0, 3.0), (0.01, 1.0)):
        with pytest.raises(ClaimError, match="before the timeout"):
            lesson_11.show_silent(silent(early), silent(late))


@pytest.mark.parametrize(("early", "late"), [(None, 3.0), (0.01, None), (None, None)])
def test_a_rank_that_was_ended_before_it_could_tell(
    early: float | None, late: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine whose cores are busy: a bet stays open, nothing is claimed, and the page goes on."""
    lesson_11.show_silent(silent(early), silent(late), 0, 3)
    out = capsys.readouterr().out
    assert "rank 0 was ended before it could tell: this machine is busy. Your bet stays open." in out
    assert "– not run here: a killed rank" in out and "run both cells again" in out and "✓" not in out
    words = repr(lesson_11.what_you_saw(hello(), ONE, EIGHT, TWO, silent(early), silent(late), SCALING))
    assert ("Rank 0 noticed" in words) == (early is not None or late is not None)
    assert ("a killed neighbour after 0.0 s" in words) == (early is not None)


def test_a_rank_that_noticed_late_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lesson_11, "disturbed", lambda *_: "Other programs used 2 of 2 cores")
    lesson_11.show_silent(silent(2.9), silent(3.0))
    out = capsys.readouterr().out
    assert "so this says nothing about when a rank notices" in out and "○" in out
    lesson_11.show_silent(silent(0.01), silent(3.0))
    assert "✓ a killed rank" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_killed_rank_and_a_frozen_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program of the page: rank 0 lives long enough to notice by itself, or to run into the timeout."""
    (tmp_path / "silent.py").write_text(program("silent.py"))
    killed, frozen = (
        launch(tmp_path / "silent.py", 2, args=[how], device="cpu", threads=1, check=False, quiet=True)
        for how in ("kill", "freeze")
    )
    lesson_11.show_silent(killed, frozen)
    assert "✗" not in capsys.readouterr().out


def test_the_timeouts_are_pytorchs() -> None:
    from torch.distributed import constants

    nccl = getattr(constants, "default_pg_nccl_timeout", None)  # None in a PyTorch without NCCL
    assert nccl is None or nccl.total_seconds() == lesson_11.NCCL_S
    assert f"timedelta(seconds={lesson_11.TIMEOUT_S:g})" in program("silent.py")


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "11 times as many."),
        (10, "You said 10 times: you've paid such a bill before."),
        (1, "You said 1 times. It's the same work, but"),
        (128, "You said 128 times. Then they'd be no faster than 8. They are, "),
        (3, "You said 3 times. Each GPU computes for 73% of its step"),
        (0.5, "You said 0.5 times. More GPUs are faster, but the work doesn't shrink."),
        (50, "You said 50 times. They are faster: "),
        (0, "Your bet should be a number above 0, such as 2."),
        (-3, "Your bet should be a number above 0, such as 2."),
    ],
)
def test_an_application(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = lesson_11.show_application(SCALING, 4096, guess)
    assert said in capsys.readouterr().out
    assert [row[0] for row in table.rows] == ["8", "64", "1,024"] and [row[4] for row in table.rows][0] == "100%"
    with pytest.raises(ClaimError, match="several times the GPU hours"):
        lesson_11.show_application({8: step(0.3), 16: step(0.15)}, 4096)


def test_gpu_hours_are_those_of_the_smallest_run_over_the_efficiency() -> None:
    rows = lesson_11.application(SCALING, 4096)
    assert all(total == pytest.approx(rows[0][4] / share) for _, _, _, share, total in rows)
    steps = lesson_11.EPOCHS * lesson_11.IMAGES / 4096
    assert rows[0][4] == pytest.approx(8 * steps * 0.30 / 3600)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "8 ranks can have one, 0 to 7: those of the first node."),
        (8, "You said 8: and the program ends all the same"),
        ("8", "You said 8: and the program"),
        (16, "You said 16. That's what the author thought."),
        (0, "You said 0. On the first node it works as it always has."),
        (9, "You said 9. On the second node there's no cuda:8."),
        (17, "Your bet should be a whole number from 0 to 16."),
        (8.5, "Your bet should be a whole number from 0 to 16."),
        (-1, "Your bet should be a whole number from 0 to 16."),
    ],
)
def test_the_wrong_gpu(guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_11.show_wrong(wrong_gpu(*range(8)), guess)
    out = capsys.readouterr().out
    assert said in out and "busy" not in out and "✓ 1 more check passed" in out
    lesson_11.show_wrong(wrong_gpu(0, 1, 2, 4, 6), guess)  # the launcher ended three ranks before they could tell
    out = capsys.readouterr().out
    assert said in out and "Here 3 of them were ended before they could say so: this machine is busy." in out
    for got in ((*range(9),), (0, 8)):
        with pytest.raises(ClaimError, match="no rank of the second node"):
            lesson_11.show_wrong(wrong_gpu(*got), guess)


def test_bets_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    takes_nonsense(lambda guess: lesson_11.show_hello(hello(), guess), capsys)
    takes_nonsense(lambda guess: lesson_11.show_two_nodes(ONE, EIGHT, TWO, guess), capsys)
    takes_nonsense(lambda guess: lesson_11.show_silent(silent(0.01), silent(3.0), guess), capsys)
    takes_nonsense(lambda guess: lesson_11.show_silent(silent(0.01), silent(3.0), ..., guess), capsys)
    takes_nonsense(lambda guess: lesson_11.show_application(SCALING, 4096, guess), capsys)
    takes_nonsense(lambda guess: lesson_11.show_wrong(wrong_gpu(*range(8)), guess), capsys)


def test_what_you_saw() -> None:
    words = repr(lesson_11.what_you_saw(hello(), ONE, EIGHT, TWO, silent(0.01), silent(3.0), SCALING))
    assert "rank 11 had GPU 3 of its node" in words and "6.9 times as fast over 25 Gbit/s" in words
    assert "1,024 GPUs took 11 times the GPU hours of 8" in words


# --- what the emulated GPUs say ---------------------------------------------------------------------------------------


def emulated(gpus: int, images: int, folder: Path, link: str = "ndr400") -> Run:
    """The program of the page, as its cells launch it."""
    (folder / "train_step.py").write_text(program("train_step.py"))
    cluster = {"count": gpus, "device": "H100", "between": link}
    return launch(folder / "train_step.py", args=[images], one_of=gpus, cluster=cluster, quiet=True)


def test_what_the_page_says_before_the_bet_is_what_the_emulated_gpus_say(tmp_path: Path) -> None:
    """Its numbers are typed, so they are compared; and sixteen GPUs over a slow link are slower than eight."""
    one, eight, slow = (
        emulated(n, 32, tmp_path, link) for n, link in ((1, "ndr400"), (8, "ndr400"), (16, "ethernet25"))
    )
    rate = cluster({"count": 16, "device": "H100", "between": "ethernet25"}).between.busbw_Bps
    nbytes, mb, step_ms = one.value("nbytes"), f"{one.value('nbytes') / 1e6:.0f} MB", eight.value("step_s") * 1e3
    (before,) = (c.source for c in cells() if "Each GPU keeps its 32 images." in c.source)
    assert f"The gradients are {mb}, and with eight GPUs a step takes {step_ms:.0f} ms." in before
    (envelope,) = (c.source for c in cells() if "Take an envelope." in c.source)
    forward_ms = one.value("compute_s") * 1e3 * lesson_11.FORWARD
    for words in (
        f"Computing takes {3 * forward_ms:.0f} ms. A third of that is forward, {forward_ms:.0f} ms, and two thirds are"
        f" backward, {2 * forward_ms:.0f} ms.",
        f"sums, {mb}: four bytes",
        f"at best {rate / 1e9:.1f} GB in a second, so that takes {nbytes / rate * 1e3:.0f} ms",
        f"a step is {forward_ms:.0f} ms of forward, and then {nbytes / rate * 1e3:.0f} ms. That's"
        f" {round(forward_ms) + round(nbytes / rate * 1e3)} ms instead of {3 * forward_ms:.0f}",
        f"= {16 * round(3 * forward_ms) / (round(forward_ms) + round(nbytes / rate * 1e3)):.1f}:",
    ):
        assert words in envelope
    assert 6.5 < lesson_11.speedup(one, slow, 16) < 7.4


@pytest.mark.slow
def test_the_rule_and_the_explorer_agree_with_the_emulated_gpus(tmp_path: Path) -> None:
    one = emulated(1, 32, tmp_path)
    compute_s, nbytes = one.value("compute_s"), one.value("nbytes")
    for nodes, link in ((2, "ethernet25"), (2, "ethernet100"), (8, "ethernet25"), (8, "ethernet100")):
        values = {"nodes": nodes, "link": link, "gradients_mb": nbytes / 1e6, "compute_ms": compute_s * 1e3}
        found = emulated(8 * nodes, 32, tmp_path, link).value("step_s")
        assert several_nodes.step_s(values, nodes) == pytest.approx(found, rel=0.15), (nodes, link)


@pytest.mark.slow
def test_sixteen_ranks_on_two_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("hello.py", "wrong_gpu.py"):
        (tmp_path / file).write_text(program(file))
    lesson_11.show_hello(launch(tmp_path / "hello.py", 16, cluster="16xH100", quiet=True))
    lesson_11.show_wrong(launch(tmp_path / "wrong_gpu.py", 16, cluster="16xH100", quiet=True, check=False))
    assert "those of the first node" in capsys.readouterr().out


# --- the files to take home -------------------------------------------------------------------------------------------


def test_the_batch_file_is_the_courses_own() -> None:
    asked = {"script": "11_train.py", "out": "11_train.pt"}
    assert lesson_11.JOB.read_text() == torchrun_job(**asked), f"write it again, as torchrun_job(**{asked}) has it"
    assert "course_utils" not in lesson_11.JOB.read_text() + lesson_11.TRAIN.read_text()
    assert "```bash" in lesson_11.batch_file()._repr_markdown_()
    assert "```python" in lesson_11.take_home()._repr_markdown_()


def test_the_six_lines_of_the_page_are_in_the_whole_file() -> None:
    (page,) = (c.source for c in cells() if "Six lines are a whole job" in c.source)
    short, whole = page.partition("```bash")[2].partition("```")[0], lesson_11.JOB.read_text()
    assert len(re.sub(r"\\\n", "", short.strip()).splitlines()) == 5 + ("#!" not in short)
    for word in re.findall(r"--[\w-]+(?:=\S+)?", short):
        assert word.partition("=")[0] in whole, word


def test_the_trainer_counts_what_leaves_a_node() -> None:
    """As the rule on the page does; inside one node, what leaves a GPU."""
    times_sent = runpy.run_path(str(lesson_11.TRAIN), run_name="train")["times_sent"]
    assert [times_sent(16, 2), times_sent(32, 4), times_sent(8, 1), times_sent(1, 1)] == [1, 1.5, 1.75, 0]


def test_the_trainer_refuses_ranks_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all ranks of a node with four GPUs would train on its CPU, if its torchrun starts eight."""
    main = runpy.run_path(str(lesson_11.TRAIN), run_name="train")["main"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr("sys.argv", ["11_train.py"])
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(SystemExit, match="8 ranks on .*, and GPUs for only 4 of them. .*--nproc-per-node=4"):
        main()


def losses(text: str) -> list[str]:
    return re.findall(r"step \d+: loss [\d.]+", text)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_trainer_is_warned_and_goes_on(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that was warned in its first step, and started again, ends with the weights of an undisturbed one."""
    straight, warned = tmp_path / "straight", tmp_path / "warned"
    for folder in (straight, warned):
        folder.mkdir()
    args = ("--steps", "6", "--save-every", "4")
    whole = torchrun(lesson_11.TRAIN, *args, ranks=ranks, cwd=straight)
    assert whole.returncode == 0, whole.stderr
    assert f"rank 0 of {ranks}: local rank 0 on " in whole.stdout and "an efficiency of" in whole.stdout
    assert f"nodes 1, ranks {ranks}: a step takes" in whole.stdout and len(losses(whole.stdout)) == 2
    save, requeue = tmp_path / "save_now", tmp_path / "requeue"
    monkeypatch.setenv("SAVE_FILE", str(save))
    monkeypatch.setenv("REQUEUE_FILE", str(requeue))
    save.touch()
    first = torchrun(lesson_11.TRAIN, *args, ranks=ranks, cwd=warned)
    assert first.returncode == 0 and requeue.exists() and len(losses(first.stdout)) == 1, first.stderr
    save.unlink()
    again = torchrun(lesson_11.TRAIN, *args, ranks=ranks, cwd=warned)
    assert "starts with step 1" in again.stdout and losses(again.stdout) == losses(whole.stdout), again.stderr
    a, b = (torch.load(folder / "11_train.pt")["model"] for folder in (straight, warned))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not os.path.exists(warned / "11_train.pt.partial")


# --- Slurm ------------------------------------------------------------------------------------------------------------


def test_what_a_slurm_did_without_a_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As it would be recorded: six jobs, three of them without a part of the file."""
    usual = {
        "saved": 2,
        "first_lines": 2,
        "nodes": ["n1", "n2"],
        "torchruns": 2,
        "state": "COMPLETED",
        "requeued": False,
    }
    without = {
        "B:": {"saved": 0, "state": "FAILED"},
        "--open-mode=append": {"first_lines": 0},
        "--ntasks-per-node=1": {"torchruns": 4, "nodes": ["n1", "n1"]},
    }
    facts = {f"with {part}": usual for part in without} | {part: usual | more for part, more in without.items()}
    sweep = Sweep([{"left_out": name} for name in facts], [[run([fact])] for fact in facts.values()])
    monkeypatch.setattr(recorded, "sweeps", lambda name: [sweep])
    table = left_out.left_out_table()
    assert table is not None and [row[0].text for row in table.rows] == list(left_out.TRIALS)
    assert table.rows[0][2:] == ("2 of 2 ranks saved, ended as COMPLETED", "0 of 2 ranks saved, ended as FAILED")
    assert table.rows[2][3] == "4 torchruns, ranks on n1 and n1, ended as COMPLETED"
    assert capsys.readouterr().out == ""


def test_what_slurm_did_without_a_part_was_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    """What the tables of the page say of three lines, a real Slurm did."""
    table = lesson_11.show_left_out()
    if table is None:
        assert "There's no record of it here" in capsys.readouterr().out
        return
    assert [row[0].text for row in table.rows] == list(left_out.TRIALS) and "local Slurm" in table.note
    warned, appended, tasks = (row[2:] for row in table.rows)
    assert warned[0].startswith("2 of 2 ranks saved") and warned[1].startswith("0 of 2 ranks saved")
    assert "has 2 of 2 lines" in appended[0] and "has 0 of 2 lines" in appended[1]
    assert tasks[0].startswith("2 torchruns") and tasks[1].startswith("4 torchruns")


def test_two_jobs_predict_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    """With what was recorded, as a reader without Slurm sees it."""
    nodes = lesson_11.Nodes(None)
    link, slow = nodes.run("link"), nodes.run("slow")
    assert two_nodes.rate_Bps(link) * 8 / 1e6 == pytest.approx(200, rel=0.1)
    assert two_nodes.predicted(link).total_s == pytest.approx(slow.samples("step_s").median, rel=0.1)
    lesson_11.show_link(nodes, link)
    for guess in (..., 560, 100, "nonsense"):
        lesson_11.show_step(nodes, link, slow, guess)
    lesson_11.show_here(nodes, slow, slow)
    out = capsys.readouterr().out
    assert "This was recorded on 2 nodes" in out and "You said 560 ms: you could plan a cluster." in out
    assert "– skipped" in out or "needs two nodes" in out
    nodes.down()
    assert "none was started" in capsys.readouterr().out


def test_no_slurm_no_death(capsys: pytest.CaptureFixture[str]) -> None:
    found = lesson_11.take_node_away(lesson_11.Nodes(None), "no such script")
    assert found is None and lesson_11.show_survived(found) is None
    out = capsys.readouterr().out
    assert "no node dies" in out and out.count("needs a local Slurm") == 3


def test_a_node_that_died(capsys: pytest.CaptureFixture[str]) -> None:
    first = [{"attempt": 0, "step": k, "at_s": 100 + k, "weights": 0.0} for k in range(13)]
    again = [{"attempt": 1, "step": k, "at_s": 120 + k, "weights": float(sum(range(1, k + 2)))} for k in range(10, 40)]
    figure = lesson_11.show_survived((run(first + again, []), 113.0), 20)
    out = capsys.readouterr().out
    assert "17 s from the node's death to the first new step, and 3 steps were done twice." in out
    assert "You said 20 s: you've waited for such a job before." in out and figure is not None and out.count("✓") == 3
    with pytest.raises(ClaimError, match="nothing had died"):
        again[-1]["weights"] += 1
        lesson_11.show_survived((run(first + again, []), 113.0))


def test_the_survivor_has_as_many_steps_as_its_figure_says() -> None:
    (source,) = (c.source for c in cells() if "--file survivor.py" in c.source)
    assert f"STEPS, EVERY = {two_nodes.STEPS}, {two_nodes.EVERY}" in source


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_program_of_the_two_jobs_on_this_machine() -> None:
    args = ["--sums", "--alone", 32, "--together", 32]
    found = launch(lesson_11.LINK, 2, args=args, device="cpu", threads=1, quiet=True)
    assert len(two_nodes.sums(found).points) == 4 and two_nodes.predicted(found).total_s > 0
    assert len(found.ranks[0].values("step_s")) == 4


def test_published_runs_leave_identities_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert {case.role for case in far.rows()} == {"validation"} and len(far.rows()) == 6
    assert len(lesson_11.show_published().errors) == 6
    assert "keep 95%" in lesson_11.show_bert().summary or "NVIDIA's runs keep" in capsys.readouterr().out


def test_recorded_runs_are_there() -> None:
    assert all(recorded.runs(f"11_{name}") for name in ("link", "slow"))
