"""The checks of the exercises are checked: right answers of different kinds pass, every known mistake is rejected for what it is."""

from __future__ import annotations

import importlib
import json
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
from _pytest.mark import ParameterSet
from conftest import ROOT, skip_or_fail

from course_utils.check import ExerciseNotSolved, UnknownExercise, check_exercise, digest, summary
from course_utils.checks import base
from course_utils.checks.base import Exercise
from course_utils.checks.lesson_04 import EXERCISES, HANDED_OUT
from course_utils.extras import missing
from course_utils.launch import launch

HERE = Path(__file__).resolve().parent
RIGHT = sorted(HERE.glob("right_answers/*/*.py"))
WRONG = sorted(HERE.glob("wrong_answers/*/*.py"))
LESSONS = sorted(path.stem[-2:] for path in (ROOT / "course_utils" / "checks").glob("lesson_??.py"))
SHARD = (HERE / "right_answers/04/1_strided.py").read_text()
SAME_ORDER = (HERE / "wrong_answers/04/1_same_order_each_epoch.py").read_text()


def exercise(path: Path) -> str:
    """`wrong_answers/04/3a_name.py` answers 04.3a."""
    return f"{path.parent.name}.{path.stem.partition('_')[0]}"


def header(path: Path, key: str) -> str:
    """What a wrong answer's first lines say: its `symptom`, and a part of what the check `says`."""
    found = re.search(rf"^# {key}: (.+)$", path.read_text(), re.M)
    assert found, f"{path} has no line `# {key}: ...`"
    return found[1]


def param(path: Path, slow: bool = False) -> ParameterSet:
    """An answer; one to an exercise that needs an optional framework is left to the slow tests: they have it, and it takes seconds to import."""
    return pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=[pytest.mark.slow] if slow or known()[exercise(path)].needs else [])


def mistakes() -> list[ParameterSet]:
    """All wrong answers; of several with one symptom, those after the first are left to the slow tests."""
    seen: set[tuple[str, str]] = set()
    params = []
    for path in WRONG:
        kind = (exercise(path), header(path, "symptom"))
        params.append(param(path, slow=kind in seen))
        seen.add(kind)
    return params


@cache
def known() -> dict[str, Exercise]:
    """The exercises of all lessons, by name."""
    lessons = [importlib.import_module(f"course_utils.checks.lesson_{number}") for number in LESSONS]
    return {name: exercise for lesson in lessons for name, exercise in lesson.EXERCISES.items()}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course of its own, so that tries are counted anew in each test; returns the folder of its notebook."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_NOTEBOOK", "04_made_up.ipynb")
    monkeypatch.delenv("COURSE_CHECKS_FILE", raising=False)
    return tmp_path / "runs" / "04_made_up"


def rejected(name: str, source: str) -> ExerciseNotSolved:
    with pytest.raises(ExerciseNotSolved) as caught:
        check_exercise(name, source, {})
    return caught.value


def needed(path: Path) -> bool:
    """Whether the exercise needs an optional framework; skips, or in CI fails, where that is missing."""
    package = known()[exercise(path)].needs
    if package and (lacking := missing(package)):
        skip_or_fail(lacking)
    return bool(package)


def flat(error: Exception) -> str:
    return " ".join(str(error).split())


@pytest.mark.parametrize("path", [param(path) for path in RIGHT])
def test_a_right_answer_is_accepted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needed(path)
    check_exercise(exercise(path), path.read_text(), {})
    shown = capsys.readouterr().out
    assert f"✓ {exercise(path)}" in shown and "solved" in shown


@pytest.mark.parametrize("path", mistakes())
def test_a_wrong_answer_is_rejected_for_what_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = path.read_text()
    if not needed(path):
        monkeypatch.setattr(base, "TIMEOUT_S", 12)  # for the endless loop
    error = rejected(exercise(path), source)
    assert error.symptom == header(path, "symptom"), str(error)
    assert header(path, "says") in flat(error)
    assert "course_utils" not in str(error) and "Traceback" not in str(error)


@pytest.mark.parametrize("name", known())
def test_each_exercise_has_right_answers_wrong_ones_and_hints_for_them(name: str) -> None:
    assert sum(exercise(path) == name for path in RIGHT) >= 2
    wrong = [path for path in WRONG if exercise(path) == name]
    assert len(wrong) >= 3
    common = ("hang", "killed", "missing", "signature", "type", "endless")  # these say all in what differs, or have hints of their own
    for path in wrong:
        symptom = header(path, "symptom")
        assert symptom in known()[name].hints or symptom in common or symptom.startswith("raised "), symptom


def test_every_answer_belongs_to_an_exercise() -> None:
    assert {exercise(path) for path in RIGHT + WRONG} == set(known())


def test_an_exception_is_shown_with_the_students_line_and_none_of_ours() -> None:
    error = rejected("04.1", "def part(order, rank):\n    return order[rank]\n\n" + SHARD.replace("order[rank::world_size]", "part([], rank)"))
    assert error.symptom == "raised IndexError"
    assert "`return order[rank]`" in str(error) and "`return part([], rank)`" in str(error)
    assert "line 3 of the cell" in str(error), "as the notebook numbers lines: the magic is the first"
    assert error._render_traceback_() == [f"ExerciseNotSolved: {error}"]


def test_an_error_while_the_cell_is_loaded_and_a_syntax_error_name_the_line() -> None:
    assert "NameError" in str(rejected("04.1", "scale = undefined\n" + SHARD))
    error = rejected("04.1", "def shard(:\n    pass\n")
    assert "line 2 of the cell: `def shard(:`" in str(error)


@pytest.mark.parametrize("blank", ["    ...  # your code here\n", "    raise NotImplementedError\n", "    order = ...\n    return order\n"])
def test_a_blank_is_not_done_yet_and_no_error(blank: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_exercise("04.1", f"def shard(n_samples, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):\n{blank}", {})
    assert "not done yet. Line 3" in capsys.readouterr().out
    assert not (home / "launches").exists(), "nothing to run"


def test_hints_grow_with_each_try_of_one_symptom_and_begin_anew_with_another() -> None:
    where, nearly = (" ".join(hint.split()) for hint in EXERCISES["04.1"].hints["same every epoch"])
    tries = [flat(rejected("04.1", SAME_ORDER)) for _ in range(3)]
    assert [where in text for text in tries] == [False, True, True]
    assert [nearly in text for text in tries] == [False, False, True]
    other = flat(rejected("04.1", "def shard(n_samples, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):\n    return list(range(n_samples))\n"))
    assert "What differs" in other and "Where to look" not in other
    check_exercise("04.1", SHARD, {})
    assert where not in flat(rejected("04.1", SAME_ORDER)), "counted anew after it was solved"


def test_what_an_answer_prints_is_shown_for_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    check_exercise(
        "04.4", (HERE / "right_answers/04/4_bare_model.py").read_text().replace("        state = {", '        print("writing", epoch)\n        state = {'), {}
    )
    shown = capsys.readouterr().out
    assert "rank 0 | writing 3" in shown and "rank 1 |" not in shown


def test_records_for_the_learner_and_for_an_instructor(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COURSE_CHECKS_FILE", str(tmp_path / "all.jsonl"))
    rejected("04.1", SAME_ORDER)
    check_exercise("04.1", SHARD, {})
    check_exercise("04.2", "...", {})
    rejected("04.4", "x = 1\n")
    records = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [(r["exercise"], r["outcome"]) for r in records] == [("04.1", "not solved"), ("04.1", "solved"), ("04.2", "not done"), ("04.4", "not solved")]
    assert records[0]["symptom"] == "same every epoch" and records[0]["seconds"] > 0
    assert (home / "exercises.jsonl").read_text() == (tmp_path / "all.jsonl").read_text()
    capsys.readouterr()
    summary()
    table = capsys.readouterr().out
    assert re.search(r"^04\.1 .*✓ solved$", table, re.M) and re.search(r"^04\.2 .*not done yet$", table, re.M)
    assert re.search(r"^04\.3a .*not tried yet$", table, re.M) and re.search(r"^04\.4 .*✗ not solved yet$", table, re.M)
    assert table.endswith("1 of 8 solved\n")


def test_an_exercise_and_its_solution_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Their notebooks have one name, and lie in two folders."""
    for folder in ("solutions", "exercises"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        if folder == "solutions":
            check_exercise("04.1", SHARD, {})
    capsys.readouterr()
    summary("04")
    assert "0 of 8 solved" in capsys.readouterr().out


def test_an_unknown_exercise_names_those_that_exist() -> None:
    with pytest.raises(UnknownExercise, match=r"there is no exercise '04\.9'; lesson 04 has 04\.1, 04\.2"):
        check_exercise("04.9", "", {})
    with pytest.raises(UnknownExercise, match="exercises are named like"):
        check_exercise("shard", "", {})


def handed_out() -> dict[str, str]:
    """The cells of 04.3 as the exercise notebook has them: letter -> source."""
    notebook = nbformat.read(ROOT / "exercises" / "04_distributed_data_parallel.ipynb", as_version=4)
    cells = [cell.source.partition("\n") for cell in notebook.cells if cell.source.startswith("%%exercise 04.3")]
    return {head[-1]: body + "\n" for head, _, body in cells}


def test_the_faulty_trainers_are_known_as_they_are_handed_out() -> None:
    assert {letter: digest(source) for letter, source in handed_out().items()} == HANDED_OUT
    commented = handed_out()["a"].replace("    ddp = DDP(model)", "    # the wrapper:\n    ddp = DDP(model)  # here\n")
    assert digest(commented) == HANDED_OUT["a"]
    assert digest(handed_out()["a"].replace("            optimizer.step()", "        optimizer.step()")) != HANDED_OUT["a"]


@pytest.mark.parametrize(
    ("letter", "symptom"), [("a", "same every epoch"), ("b", "no exchange"), ("c", "different start"), ("d", "not the mean"), ("e", "hang")]
)
def test_a_faulty_trainer_shows_its_symptom_and_counts_as_not_done(letter: str, symptom: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_exercise(f"04.3{letter}", handed_out()[letter], {})
    assert "as it was handed out" in capsys.readouterr().out
    record = json.loads((home / "exercises.jsonl").read_text())
    assert (record["outcome"], record["symptom"]) == ("not done", symptom)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_solution_notebook_solves_every_exercise(lesson: str) -> None:
    """Each exercise has one cell in the solutions that is neither blank nor handed out."""
    (path,) = (ROOT / "solutions").glob(f"{lesson}_*.ipynb")
    cells = [cell.source.partition("\n") for cell in nbformat.read(path, as_version=4).cells if cell.source.startswith("%%exercise")]
    handed_out = {exercise.handed_out for exercise in known().values()}
    solved = [head.split()[1] for head, _, body in cells if digest(body + "\n") not in handed_out]
    assert solved == [name for name in known() if name.startswith(lesson)]


@pytest.mark.parametrize(("engine", "hang_s"), [("local", 5), pytest.param("cold", 20, marks=pytest.mark.slow)])
def test_a_rank_that_still_imports_is_given_more_time_before_it_counts_as_hanging(engine: str, hang_s: int, tmp_path: Path) -> None:
    script = tmp_path / "limit.py"
    script.write_text("from course_utils.checks.inside import HANG_S\nfrom course_utils.rank import report\nreport(hang_s=HANG_S)\n")
    assert launch(script, 2, engine=engine, device="cpu", quiet=True).values("hang_s") == [hang_s] * 2
