"""`claim`: what it prints, when it fails, and what it leaves for the list of claims."""

import json
import os
import re
import subprocess
import sys

import nbformat
import numpy as np
import pytest
from conftest import ROOT, load_tool

from course_utils.cells.claims import ClaimError, _Line, claim, more_checks
from course_utils.results.samples import Samples, Verdict

list_claims = load_tool("list_claims")


@pytest.fixture(autouse=True)
def no_file(monkeypatch):
    monkeypatch.delenv("COURSE_CLAIMS_FILE", raising=False)


@pytest.fixture
def claims_file(tmp_path, monkeypatch):
    path = tmp_path / "claims.jsonl"
    monkeypatch.setenv("COURSE_CLAIMS_FILE", str(path))
    monkeypatch.setenv("COURSE_NOTEBOOK", "notebooks/04_ddp.ipynb")
    return path


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("holds", [True, np.bool_(True), np.array(True)])
def test_what_holds_is_printed_with_a_tick(holds, capsys):
    claim("both ranks hold the same gradient", holds)
    assert capsys.readouterr().out == "✓ both ranks hold the same gradient\n"


def test_a_tensor_of_one_boolean_counts():
    torch = pytest.importorskip("torch")
    claim("the losses agree", torch.tensor(1.0) == torch.tensor(1.0))
    with pytest.raises(ClaimError):
        claim("the losses agree", torch.tensor(1.0) == torch.tensor(2.0))
    with pytest.raises(TypeError, match=r"\.all\(\) or \.any\(\)"):
        claim("the losses agree", torch.ones(2) == torch.ones(2))


@pytest.mark.parametrize(
    "holds, shown", [(True, True), (Verdict("shown", ""), True), (Verdict("not shown", ""), False), (None, False)]
)
def test_a_lesson_learns_whether_it_was_shown(holds, shown):
    assert claim("two ranks are faster", holds, why="why not") is shown


def test_a_verdict_the_wrong_way_round_was_not_shown_either():
    assert claim("two ranks are faster", Verdict("contradicted", "")) is False


@pytest.mark.parametrize("number", [f"{n:02}" for n in range(15)])
def test_every_lesson_has_a_headline(number):
    """What it's about; a slow test runs the lesson, and asks whether that was seen."""
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    code += [path.read_text() for path in (ROOT / "notebooks" / f"lesson_{number}").glob("**/*.py")]
    assert "headline=True" in "\n".join(code)


@pytest.mark.parametrize("number", ["00", "02", "04", "06"])  # whose headline is a measured speed
def test_lessons_about_speed_use_what_their_headline_showed(number):
    """The name that a headline's claim is given comes back in a condition: in a later cell, or further down in the
    module that makes the claim."""
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    modules = sorted((ROOT / "notebooks").glob(f"lesson_{number}*/**/*.py"))
    modules += sorted((ROOT / "notebooks").glob(f"lesson_{number}.py"))
    code += [path.read_text() for path in modules]
    headline = re.compile(r"(?m)^ *(\w+) = claim\((?:(?!claim\()[\s\S])*?headline=True")
    headlines = [
        (found[1], [source[found.end() :], *code[at + 1 :]])
        for at, source in enumerate(code)
        for found in headline.finditer(source)
    ]
    assert headlines
    for name, after in headlines:
        assert any(re.search(rf"\b(el)?if (not |.* not )?{name}\b", source) for source in after), name


@pytest.mark.parametrize("holds", [False, np.bool_(False)])
def test_what_does_not_hold_fails_with_the_sentence(holds, capsys):
    with pytest.raises(ClaimError, match="does not hold here: replicas are equal"):
        claim("replicas are equal", holds)
    assert capsys.readouterr().out == ""


def test_more_checks_are_one_line(capsys, claims_file):
    more_checks({"one": True, "two": np.bool_(True)})
    assert capsys.readouterr().out == "✓ 2 more checks passed\n"
    with pytest.raises(ClaimError, match="does not hold here: four"):
        more_checks({"three": True, "four": False, "five": True})
    with pytest.raises(TypeError, match="give 'six' to claim"):
        more_checks({"six": Samples([1.0]).faster_than(Samples([2.0]))})
    page = _Line("shown", "2 more checks passed", "", more=["one", "a < b"])._repr_html_()
    assert "<details><summary" in page and "<li>one</li><li>a &lt; b</li>" in page
    made = [(entry["sentence"], entry["status"]) for entry in entries(claims_file)]
    assert made == [("one", "shown"), ("two", "shown"), ("three", "shown"), ("four", "contradicted")]


def test_jupyter_shows_the_message_and_no_traceback():
    with pytest.raises(ClaimError) as caught:
        claim("replicas are equal", False)
    assert caught.value._render_traceback_() == [str(caught.value)]


def test_a_verdict_has_three_outcomes(capsys):
    fast, slow = Samples([1.0, 1.1, 1.2]), Samples([2.0, 2.1, 2.2])
    claim("two ranks are faster", fast.faster_than(slow))
    claim("equal things differ", fast.faster_than(fast))
    claim("two ranks are faster", slow.faster_than(fast))
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "✓ two ranks are faster (1.1 (1.05 to 1.15) against 2.1 (2.05 to 2.15))"
    assert second.startswith("○ not shown here: equal things differ (1.1")
    assert third.startswith("✗ the wrong way round here: two ranks are faster (2.1 (2.05 to 2.15) against 1.1")


def test_what_this_hardware_cannot_run_is_skipped_with_its_reason(capsys):
    claim("NCCL overlaps", None, why="needs two GPUs")
    assert capsys.readouterr().out == "– not run here: NCCL overlaps (needs two GPUs)\n"
    with pytest.raises(TypeError, match="why="):
        claim("NCCL overlaps", None)


@pytest.mark.parametrize("holds", [1, 0.0, "yes", [True], np.array([True, True]), np.float64(1.0), Samples([1.0])])
def test_anything_else_is_a_mistake_of_the_author(holds, claims_file):
    with pytest.raises(TypeError):
        claim("a sentence", holds)
    assert not claims_file.exists()


def test_every_claim_is_recorded_with_its_notebook(claims_file):
    claim("a", True, headline=True)
    claim("b", Verdict("not shown", "1 against 1"))
    claim("c", None, why="no GPU")
    with pytest.raises(ClaimError):
        claim("d", False)
    assert entries(claims_file) == [
        {"sentence": "a", "status": "shown", "detail": "", "headline": True, "notebook": "04_ddp"},
        {"sentence": "b", "status": "not shown", "detail": "1 against 1", "headline": False, "notebook": "04_ddp"},
        {"sentence": "c", "status": "skipped", "detail": "no GPU", "headline": False, "notebook": "04_ddp"},
        {"sentence": "d", "status": "contradicted", "detail": "", "headline": False, "notebook": "04_ddp"},
    ]


def test_notebooks_that_run_at_once_do_not_tear_lines(claims_file):
    script = "from course_utils import claim\nfor i in range(200): claim(f'sentence {i} ' + 'x' * 500, True)"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.DEVNULL, env={**os.environ, "COURSE_NOTEBOOK": f"n{k}"}
        )
        for k in range(3)
    ]
    assert [p.wait() for p in running] == [0, 0, 0]
    found = entries(claims_file)
    assert sorted((e["notebook"], int(e["sentence"].split()[1])) for e in found) == sorted(
        (f"n{k}", i) for k in range(3) for i in range(200)
    )


def test_the_list_groups_by_notebook_and_counts_runs(claims_file, capsys):
    for verdict in ("not shown", "shown", "not shown"):
        claim("two ranks are faster", Verdict(verdict, f"seen {verdict}"), headline=True)
    claim("needs a GPU", None, why="no GPU")
    capsys.readouterr()
    assert list_claims.main([str(claims_file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "04_ddp: 1 shown, 1 skipped",
        "  ✓ two ranks are faster (headline) [shown in 1 of 3 runs]",
        "      seen shown",
        "  – needs a GPU",
        "      no GPU",
    ]


def test_a_headline_that_is_never_shown_fails_on_request(claims_file, tmp_path, monkeypatch, capsys):
    claim("the headline", Verdict("not shown", ""), headline=True)
    claim("only on GPUs", None, why="no GPU", headline=True)
    claim("a side remark", Verdict("not shown", ""))
    assert list_claims.main([str(claims_file)]) == 0
    assert list_claims.main(["--headlines-must-show", str(claims_file)]) == 1
    assert "headline not shown in any run: 04_ddp: the headline" in capsys.readouterr().out
    second = tmp_path / "second.jsonl"
    monkeypatch.setenv("COURSE_CLAIMS_FILE", str(second))
    claim("the headline", Verdict("shown", ""), headline=True)
    assert list_claims.main(["--headlines-must-show", str(claims_file), str(second)]) == 0


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ([], ""),
        ([(0.1, 0.8)], ". No other program was in the way."),
        ([(1.4, 0.0)], ". Other programs used 1.4 of 2 cores meanwhile"),
    ],
)
def test_a_speed_that_comes_out_the_wrong_way_round_is_told_with_what_the_machine_did_meanwhile(
    others, says, claims_file, monkeypatch, capsys
):
    """What is true or false without a clock fails all the same."""
    monkeypatch.setattr("course_utils.machine.busy.recent", others)
    monkeypatch.setattr("course_utils.cells.claims.usable_cores", lambda: 2)
    claim("two are faster than one", Verdict("contradicted", "1.0 s against 2.0 s"))
    told = capsys.readouterr().out
    assert told.startswith(f"✗ the wrong way round here: two are faster than one (1.0 s against 2.0 s{says}")
    assert entries(claims_file)[0]["status"] == "contradicted"
    with pytest.raises(ClaimError):
        claim("both hold the same gradient", False)


def test_what_is_always_the_wrong_way_round_is_found():
    def made(*statuses):
        return [{"notebook": "04", "sentence": "a", "headline": False, "status": status} for status in statuses]

    assert list_claims.contradicted(made("not shown", "contradicted")) == ["04: a"]
    assert list_claims.contradicted(made("contradicted", "shown")) == []
    assert list_claims.contradicted(made("not shown", "skipped")) == []


def test_the_list_fails_when_a_claim_was_contradicted(claims_file):
    with pytest.raises(ClaimError):
        claim("a", False)
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "list_claims.py", claims_file], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "04_ddp: 1 contradicted\n  ✗ a\n"


def test_in_a_notebook_the_claim_is_html_with_a_text_fallback(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    try:
        with capture_output() as captured:
            shell.run_cell("from course_utils import claim\nclaim('1 < 2 & so on', True)\nclaim('2 < 1', False)")
        (shown,) = captured.outputs
        assert shown.data["text/plain"] == "✓ 1 < 2 & so on"
        assert "1 &lt; 2 &amp; so on" in shown.data["text/html"]
        assert "✗ This does not hold here: 2 < 1" in captured.stdout
        assert "Traceback" not in captured.stdout and "_status" not in captured.stdout
    finally:
        InteractiveShell.clear_instance()


def test_no_check_is_no_tick():
    with pytest.raises(ValueError, match="nothing to check"):
        more_checks({})
