# ruff: noqa: F811 - fixtures are imported by their names
"""What a cell shows while ranks run, and the line that it leaves."""

from __future__ import annotations

import html
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import Descendants
from jupyter_client.manager import KernelManager
from kernels import Kernel, close_shared_kernel, kernel, limit, own_kernel  # noqa: F401
from nbclient import NotebookClient
from test_run import a_run

from course_utils.launching.under_the_cell import live, watch
from course_utils.launching.under_the_cell.live import (
    APPEARS_S,
    FEW_ROWS,
    INTERVAL_S,
    WIDTH,
    Known,
    LiveView,
    RankState,
    lines,
    page,
)
from course_utils.launching.under_the_cell.watch import last_line, news

RUNNING = (RankState(0, "running", (3, 10), "loss=0.5"), RankState(1, "running", (2, 10), "loss=0.6"))
STUCK = RankState(16, "running", place="at x")
MANY = tuple(RankState(rank, "running", (50 + rank, 100)) for rank in range(16))

# --- the lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "sweep", "expected"),
    [
        (Known("importing torch, once for this notebook"), "", ["12 s · importing torch, once for this notebook"]),
        (
            Known("starting 2 ranks (cold)", (RankState(0, "running"), RankState(1, "starting"))),
            "",
            ["12 s · starting 2 ranks (cold)", "rank 0  running", "rank 1  starting"],
        ),
        (
            Known("running", RUNNING, 0.25),
            "",
            [
                "12 s · running · 25%",
                "rank 0  running  ████░░░░░░░░  3 of 10 · loss=0.5",
                "rank 1  running  ██░░░░░░░░░░  2 of 10 · loss=0.6",
            ],
        ),
        (
            Known("running", (RankState(0, "running", (1, 0)), RankState(10, "finished", (2_000_000, 2_000_000.5)))),
            "3 of 12 launches done, lr=0.1",
            [
                "12 s · 3 of 12 launches done, lr=0.1 · running",
                "rank 0   running   ░░░░░░░░░░░░  1 of 0",
                "rank 10  finished  ████████████  2,000,000 of 2e+06",
            ],
        ),
        (
            Known(
                "running",
                (RankState(0, "running", place="at `f()`, line 3"), RankState(1, "failed", (1, 1))),
                silent_s=6.7,
            ),
            "",
            [
                "12 s · running · no news for 6 s",
                "rank 0  running                at `f()`, line 3",
                "rank 1  failed   ████████████  1 of 1",
            ],
        ),
        # many: counted, then the slowest
        (
            Known("running", MANY),
            "",
            [
                "12 s · running",
                "16 ranks: 16 running",
                *(f"rank {r}  running  ██████░░░░░░  5{r} of 100" for r in range(FEW_ROWS)),
            ],
        ),
        # and before them those that differ
        (
            Known("running", (*MANY[:9], replace(MANY[9], state="failed"), *MANY[10:], STUCK)),
            "",
            [
                "12 s · running",
                "17 ranks: 1 failed, 16 running",
                "rank 0   running  ██████░░░░░░  50 of 100",
                "rank 1   running  ██████░░░░░░  51 of 100",
                "rank 9   failed   ███████░░░░░  59 of 100",
                "rank 16  running                at x",
            ],
        ),
    ],
    ids=["import", "start", "progress", "sweep", "silent", "many", "many that differ"],
)  # fmt: skip
def test_lines(known: Known, sweep: str, expected: list[str]) -> None:
    assert lines(known, 12.9, sweep) == expected
    on_page = re.sub(r"<[^>]*>|\s", "", page(known, 12.9, sweep))
    for line in expected:
        assert re.sub(r"[\s█░]", "", line) in html.unescape(on_page), "the page says the same"


def test_long_words_end_in_an_ellipsis_and_cannot_become_markup() -> None:
    known = Known("running", [RankState(0, "running", place="at `" + "<b>'x'&" * 50 + "`")])
    assert [len(line) for line in lines(known, 0)] == [len("0 s · running"), WIDTH] and lines(known, 0)[1][-1] == "…"
    assert "<b>" not in page(known, 0) and "'x'" not in page(known, 0)


def test_the_page_keeps_its_height_and_takes_the_themes_colours() -> None:
    assert (
        page(Known("running"), 0, height=4).count("<tr")
        == 3
        == page(Known("running", RUNNING), 0, height=4).count("<tr")
    )
    shown = page(Known("running", RUNNING), 0)
    assert not re.findall(r"color:(?!inherit|currentColor)|#", shown), "only a failure has a colour of its own"
    assert "nowrap" in shown and "scope='row'" in shown
    assert "table-layout:auto" in shown, "JupyterLab's own, fixed, would lay the columns over each other"


def test_a_page_that_nobody_updates_any_more_says_so() -> None:
    """A kernel that has been restarted can't; tests/test_browser.py sees it. Each update begins to wait anew."""
    shown = page(Known("running", RUNNING), 10)
    was, ended = re.findall(r"<div class='course-(?:was|is)'.*?>([^<]*)</div>", shown)
    assert was == "10 s · running" and ended.startswith("10 s, and no news since. If the kernel was restarted")
    assert re.search(r"class='course-is' style='grid-area:1/1;visibility:hidden", shown)
    job = page(replace(Known("running", RUNNING), outlives_kernel=True), 10)
    assert "the job goes on: squeue shows it" in job and "ended with it" not in job
    assert f".course-is{{animation:course-is 0s {live.STALE_S}s forwards}}" in shown


# --- when they are shown ----------------------------------------------------------------------------------------------


class Display:
    """Stands for the cell: the texts it has shown, and when."""

    def __init__(self, clock: list[float]):
        self.clock, self.shown = clock, []  # type: tuple[list[float], list[tuple[float, str]]]

    def __call__(self, bundle: dict[str, str], raw: bool, display_id: bool) -> Display:
        assert raw and display_id and not self.shown, "one display"
        self.update(bundle, raw)
        return self

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert set(bundle) == {"text/plain", "text/html"}
        self.shown.append((self.clock[0], bundle["text/plain"]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> Display:
    fake = Display(clock)
    monkeypatch.setattr("IPython.display.display", fake)
    monkeypatch.setattr(live, "notebook_kernel", lambda: "a kernel")
    return fake


def test_it_is_updated_seldom_and_its_height_never_shrinks(
    display: Display, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten seconds in which every look finds another number; then nothing new for five seconds."""
    asked = 0

    def known() -> Known:
        nonlocal asked
        asked += 1
        return Known("running", [RankState(r, "running", (min(asked, 50), 50)) for r in range(asked % 5)])

    with LiveView() as view:
        begin = clock[0]
        for _ in range(200):
            clock[0] += 0.05
            view.tick(known)
        heights = [text.count("\n") for _, text in display.shown]
        view.end("2 ranks, 10.0 s", well=True)
    times = [at for at, _ in display.shown]
    assert times[0] >= begin + APPEARS_S
    assert all(b - a >= INTERVAL_S - 1e-9 for a, b in zip(times, times[1:-1], strict=False))
    assert heights == sorted(heights) and max(heights) == 4
    assert display.shown[-1][1] == "✓ 2 ranks, 10.0 s" and capsys.readouterr().out == ""


def test_it_is_not_updated_when_nothing_has_changed(display: Display, clock: list[float]) -> None:
    with LiveView() as view:
        for _ in range(100):
            clock[0] += 0.05
            view.tick(lambda: Known("running", RUNNING))
        view.end("", True)
    assert len(display.shown) == 5 + 1, "once a second, and the end"


@pytest.mark.parametrize(
    ("seconds", "notebook", "quiet", "printed"),
    [(0.25, True, False, "✓ done\n"), (9, False, False, "✓ done\n"), (9, True, True, ""), (0.25, True, True, "")],
    ids=["short", "no notebook", "quiet", "quiet and short"],
)
def test_where_nothing_is_displayed_the_line_is_printed(
    display: Display, clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    seconds: float, notebook: bool, quiet: bool, printed: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(live, "notebook_kernel", lambda: "a kernel" if notebook else None)
    with LiveView(quiet) as view:
        assert view.to_come == (notebook and not quiet)
        clock[0] += seconds
        view.tick(lambda: Known("running"))
        view.end("done", well=True)
    assert not display.shown and capsys.readouterr().out == printed


@pytest.mark.parametrize(("error", "word"), [(KeyboardInterrupt, "stopped"), (OSError, "failed")])
def test_an_error_folds_what_was_shown(
    display: Display, clock: list[float], error: type[BaseException], word: str
) -> None:
    with pytest.raises(error), LiveView() as view:
        clock[0] += 1
        view.tick(lambda: Known("running"))
        raise error
    assert [text for _, text in display.shown] == ["1 s · running", f"✗ {word}"]


def test_a_quiet_launch_speaks_in_the_view_of_its_sweep(display: Display, clock: list[float]) -> None:
    with LiveView() as outer:
        outer.sweep = "0 of 2 launches done"
        for _ in range(2):
            clock[0] += 0.5
            with LiveView(quiet=True) as inner:
                inner.tick(lambda: Known("running", RUNNING))
                inner.end("of nobody's interest", well=True)
        outer.end("2 launches", well=True)
    with LiveView(quiet=True) as alone:
        alone.tick(lambda: pytest.fail("nobody sees it"))
    assert [text.partition("\n")[0] for _, text in display.shown] == [
        "0 s · 0 of 2 launches done · running", "1 s · 0 of 2 launches done · running", "✓ 2 launches",
    ]  # fmt: skip


# --- the words before and after ---------------------------------------------------------------------------------------


def test_advice_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_advice_given", {""})
    two, four = (f"{n} ranks on the CPU. With {n} GPUs each rank would have its own, over nccl." for n in (2, 4))
    fewer = "2 ranks on the CPU. Don't compare it with launches of fewer ranks: those run on GPUs."
    assert [news(s) for s in (two, two, four, fewer, fewer, "1 rank.")] == [
        two, "2 ranks on the CPU.", "4 ranks on the CPU.", fewer, fewer, "1 rank.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "seconds", "expected"),
    [
        ({}, 1.9, "2 ranks, 1.5 s"),
        ({"wall_s": 0.04}, 9.5, "2 ranks, 0.04 s (plus 9.5 s until they could start)"),
        ({"outcome": "failed"}, 1.5, "2 ranks, failed after 1.5 s"),
        ({"outcome": "interrupted", "wall_s": 9.04}, 9, "2 ranks, stopped after 9.0 s"),
        ({"outcome": "timeout", "wall_s": 120.0}, 120, "2 ranks, out of time after 120.0 s"),
        ({"outcome": "lost", "wall_s": float("nan")}, 3.0, "2 ranks, lost after 3.0 s"),
    ],
    ids=str,
)
def test_the_last_line(settings: dict[str, Any], seconds: float, expected: str) -> None:
    assert last_line(a_run(**settings), seconds) == expected


# --- real launches ----------------------------------------------------------------------------------------------------

SLOW = """import time
from course_utils.rank import report
for i in range(4):
    report(progress=(i + 1, 4), loss=1 / (i + 1))
    print("step", i)
    time.sleep(0.2)
"""


def shown(cell: Any) -> list[str]:
    kinds = [kind for kind, _ in cell.displays]
    if kinds[1:].count("display_data"):  # after what was printed
        assert kinds.pop() == "display_data" and cell.displays[-2][1] == ""
    assert kinds == ["display_data"] + ["update_display_data"] * (len(kinds) - 1), "one display, updated in place"
    return [text for _, text in cell.displays]


def test_a_launch_that_ends_well(kernel: Kernel) -> None:
    got = kernel.run(f"%%ranks 2 -o run\n{SLOW}")
    texts = shown(got)
    assert got.error is None and re.fullmatch(r"✓ 2 ranks, \d\.\d+ s", texts[-1])
    assert any(re.search(r"^rank 1  running  █+░*  [1-4] of 4 · loss=", text, re.M) for text in texts)
    assert "✓" not in got.text and not list(Path(kernel.ask("run.path")).glob("*.place"))
    short = kernel.run("%%ranks 2 -o run\nprint('x')")
    assert not short.displays or short.seconds > APPEARS_S
    assert re.search(r"rank 1 \| x\n✓ 2 ranks, [\d.]+ s\n$", short.text) or short.displays


def test_a_launch_that_fails(kernel: Kernel) -> None:
    got = kernel.run(f"%%ranks 2\n{SLOW}raise ValueError('no')")
    assert (
        got.error and got.error[0] == "RankError" and re.fullmatch(r"✗ 2 ranks, failed after \d\.\d+ s", shown(got)[-1])
    )
    assert "✗" not in got.text + got.shown_error


def test_a_launch_that_is_stopped(kernel: Kernel) -> None:
    kernel.start(f"%%ranks 2\n{SLOW}time.sleep(60)")
    kernel.wait_for("rank 1 | step 3")
    kernel.interrupt()
    got = kernel.finish(10)
    assert got.error and re.fullmatch(r"✗ 2 ranks, stopped after \d\.\d+ s", shown(got)[-1])
    assert got.shown_error.startswith("Stopped")


def test_a_sweep(kernel: Kernel) -> None:
    (kernel.work / "slow.py").write_text(SLOW)
    got = kernel.run("found = sweep('slow.py', over={'ranks': [1, 2]}, repeats=1)")
    texts = shown(got)
    assert got.error is None and re.fullmatch(r"✓ 2 launches, \d\.\d+ s", texts[-1])
    assert any(re.search(r"s · 1 of 2 launches done, ranks=2 · running.*\nrank 0 .* of 4", text) for text in texts)
    assert "rank 0 |" not in got.text


def test_ranks_without_news_say_where_they_are_and_go_on(kernel: Kernel) -> None:
    """Asked ten times in the middle of a collective and of a computation, which both end well."""
    kernel.run("from course_utils.launching.under_the_cell import live, watch\nwatch.SILENT_S = live.SILENT_S = 0.2")
    script = """import os, time, torch
import torch.distributed as dist
dist.init_process_group()
end = time.monotonic() + 2
total = torch.zeros(1)
while os.environ["RANK"] == "0" and time.monotonic() < end:
    total += torch.rand(300, 300).matmul(torch.rand(300, 300)).sum() * 0 + 1
dist.all_reduce(total)
dist.barrier()
assert total.item() > 1
"""
    try:
        got = kernel.run(f"%%ranks 2 -o run\n{script}")
    finally:
        kernel.run("watch.SILENT_S = live.SILENT_S = 5.0")
    said = "\n".join(shown(got))
    assert got.error is None, got.error
    assert "no news for 1 s" in said
    assert re.search(r"rank 0  running  (at|is in|waits in) .*line [78] of ", said), said
    assert "rank 1  running  waits in all_reduce: `dist.all_reduce(total)`, line 9 of the cell" in said


def test_a_notebook_keeps_the_last_line_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nbclient writes it, for the book and for `jupyter execute`."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    cells = ["%load_ext course_utils", f"%%ranks 2 -o run\n{SLOW}"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = notebook.cells[1].outputs
    emptied, kept = [output for output in outputs if output.output_type == "display_data"]
    assert emptied.data["text/plain"] == "" and outputs[-1] is kept, "the last line comes after the output"
    assert kept.data["text/plain"].startswith("✓ 2 ranks, ") and "importing" not in str(outputs)


# --- stopping early, restarting ---------------------------------------------------------------------------------------


def test_a_stop_while_torch_is_imported(own_kernel: Kernel) -> None:
    own_kernel.start("%load_ext course_utils\nget_ipython().run_cell_magic('ranks', '2', 'print(1)')")
    until = time.monotonic() + 30
    while not own_kernel.cell.displays:
        assert own_kernel._take(1.0) != "idle" and time.monotonic() < until, own_kernel.cell
    own_kernel.interrupt()
    asked = time.monotonic()
    got = own_kernel.finish()
    assert time.monotonic() - asked < limit(1)
    assert got.shown_error == "Stopped while importing torch, once for this notebook; no rank had started"
    assert shown(got)[-1] == "✗ stopped"
    again = own_kernel.run("%%ranks 2 -o run\nprint('x')")
    assert again.error is None and own_kernel.ask("run.engine") == "warm", "the import went on"


@pytest.mark.parametrize("now", [True, False], ids=["at once", "politely"])
@pytest.mark.parametrize("cell", ["importing", "running"])
def test_a_restart_leaves_no_traceback_and_no_process(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, descendants: Descendants, cell: str, now: bool
) -> None:
    """Where JupyterLab runs, in its terminal, is the kernel's stderr."""
    code = "%load_ext course_utils\nget_ipython().run_cell_magic('ranks', '2', 'import time; time.sleep(60)')"
    manager = KernelManager(kernel_name="python3", transport="ipc", connection_file=str(tmp_path / "k.json"))
    own = {"COURSE_HOME": str(tmp_path), "COURSE_NOTEBOOK": "lesson.ipynb"}
    with open(tmp_path / "terminal", "wb") as terminal:
        manager.start_kernel(
            env=os.environ | descendants.env | own, cwd=str(tmp_path), stdout=terminal, stderr=terminal
        )
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        client.execute(code)
        until = time.monotonic() + 60
        wanted = "importing" if cell == "importing" else "rank 1  running"
        while True:
            message = client.get_iopub_msg(timeout=60)
            if wanted in message["content"].get("data", {}).get("text/plain", ""):
                break
            assert time.monotonic() < until
        client.stop_channels()
        manager.restart_kernel(now=now)
        manager.shutdown_kernel(now=True)
    assert not descendants.wait_gone(10)
    assert (tmp_path / "terminal").read_text() == ""
