"""Check the checks of the exercises: they pass different kinds of right answers, and reject every known mistake for the
right reason."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from _pytest.mark import ParameterSet
from conftest import ROOT, checks, skip_or_fail
from wrong_answers import WrongAnswer, find, load

from course_utils.check import (
    FOLDER,
    ExerciseNotSolved,
    Judgement,
    UnknownExercise,
    check_exercise,
    digest,
    hints_of,
    lesson_exercises,
    main,
    summary,
)
from course_utils.failure.errors import RankError
from course_utils.launching import local
from course_utils.machine.optional_packages import missing
from course_utils.show.card import Card

HERE = Path(__file__).resolve().parent
RIGHT = sorted(HERE.glob("right_answers/*/*.py"))
WRONG = load()
LESSONS = sorted(path.stem[-2:] for path in FOLDER.glob("lesson_??"))
# Of each exercise, besides its solution; the others run in `make test-lesson` and `make test-all`.
AT_EVERY_CHANGE = {"right": 2, "wrong": 3}
judging = checks("judging")
HANDED_OUT = checks("lesson_04.judge").HANDED_OUT
COLD = ("02.4", "04.2", "05.2", "06.3", "07.1", "07.4b", "09.2", "10.1")  # start ranks in every way that there is
SHARD = (HERE / "right_answers/04/1_strided.py").read_text()
SAME_ORDER = find("04.1", "same_order_each_epoch", WRONG).source


def exercise(path: Path) -> str:
    """`right_answers/04/3a_name.py` answers 04.3a."""
    return f"{path.parent.name}.{path.stem.partition('_')[0]}"


def right_answers() -> list[ParameterSet]:
    places = {path: sum(exercise(p) == exercise(path) for p in RIGHT[:i]) for i, path in enumerate(RIGHT)}
    return [
        pytest.param(
            path, id=f"{path.parent.name}-{path.stem}", marks=slow(exercise(path), place >= AT_EVERY_CHANGE["right"])
        )
        for path, place in places.items()
    ]


def has_nameless_files() -> bool:
    """Whether the file system of temporary files has files without a name: Linux, and not every overlay."""
    try:
        os.close(os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_WRONLY))
    except (AttributeError, OSError):
        return False
    return True


def wrong_answers() -> list[ParameterSet]:
    """All wrong answers; outside the slow tests a few of each exercise, with different symptoms, and none that waits
    for a limit of seconds."""
    waits = ("endless", "hang", "deadlock")
    seen: set[tuple[str, str]] = set()
    params = []
    for wrong in WRONG:
        later = (wrong.exercise, wrong.symptom) in seen or wrong.symptom in waits
        later = later or sum(exercise == wrong.exercise for exercise, _ in seen) >= AT_EVERY_CHANGE["wrong"]
        params.append(pytest.param(wrong, id=wrong.id, marks=slow(wrong.exercise, later)))
        if not later:
            seen.add((wrong.exercise, wrong.symptom))
    return params


def slow(name: str, also: bool = False) -> list[pytest.MarkDecorator]:
    """Answers that need an optional framework run in the slow tests: those have it, and importing it takes seconds."""
    return [pytest.mark.slow] if also or known()[name].needs else []


@cache
def known() -> dict[str, Any]:
    """The exercises of all lessons, by name."""
    return {name: exercise for number in LESSONS for name, exercise in lesson_exercises(number).items()}


def solution(name: str) -> str:
    """The cell of the solution notebook that answers an exercise: no blank, and no unchanged program."""
    (path,) = (ROOT / "solutions").glob(f"{name[:2]}_*.ipynb")
    cells = [
        cell.source.partition("\n")[2] + "\n"
        for cell in nbformat.read(path, as_version=4).cells
        if cell.source.startswith(f"%%exercise {name}\n")
    ]
    (found,) = (cell for cell in cells if digest(cell) != known()[name].handed_out)
    return found


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate course, so that each test starts with no tries. Returns the folder of its notebook."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_NOTEBOOK", "04_made_up.ipynb")
    monkeypatch.delenv("COURSE_CHECKS_FILE", raising=False)
    return tmp_path / "runs" / "04_made_up"


def rejected(name: str, source: str) -> ExerciseNotSolved:
    with pytest.raises(ExerciseNotSolved) as caught:
        check_exercise(name, source)
    return caught.value


def needed(name: str) -> bool:
    """Whether the exercise needs an optional framework. If that's missing, it skips, or fails in CI."""
    package = known()[name].needs
    if package and (lacking := missing(package)):
        skip_or_fail(lacking)
    return bool(package)


def flat(error: ExerciseNotSolved) -> str:
    """What the card says, on one line."""
    return " ".join(str(error.card).split())


@pytest.mark.parametrize("path", right_answers())
def test_a_right_answer_is_accepted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needed(exercise(path))
    if "O_TMPFILE" in path.read_text() and not has_nameless_files():
        pytest.skip("this file system has no files without a name")
    check_exercise(exercise(path), path.read_text())
    shown = capsys.readouterr().out
    assert f"✓ {exercise(path)}" in shown and "solved" in shown


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow(name)) for name in known()])
def test_the_solution_is_accepted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer in the solution notebook. The slow tests run the whole notebook."""
    needed(name)
    check_exercise(name, solution(name))
    assert f"✓ {name}" in capsys.readouterr().out


@pytest.mark.xdist_group("cold")  # four ranks import torch at once: one such test at a time
@pytest.mark.slow
@pytest.mark.parametrize("name", COLD)
def test_the_solution_is_accepted_without_the_warm_start(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a new Python for every rank, things show that a fork would hide, such as inherited state or unguarded
    scripts. As on a machine that has no warm start: COURSE_ENGINE would not reach the checks."""
    monkeypatch.setattr(local.server, "_why_not", "not here")
    check_exercise(name, solution(name))
    assert f"✓ {name}" in capsys.readouterr().out
    engines = {json.loads(file.read_text())["engine"] for file in home.parent.rglob("run.json")}
    assert engines and not any("warm" in engine for engine in engines)


@pytest.mark.parametrize("wrong", wrong_answers())
def test_a_wrong_answer_is_rejected_for_what_it_is(wrong: WrongAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    if not needed(wrong.exercise) and wrong.symptom == "endless":
        monkeypatch.setattr(judging, "PATIENCE", replace(judging.PATIENCE, work_s=8))
    error = rejected(wrong.exercise, wrong.source)
    assert error.symptom == wrong.symptom, str(error.card)
    assert wrong.says in flat(error)
    assert "course_utils" not in str(error.card) and "Traceback" not in str(error.card)


@pytest.mark.parametrize("name", known())
def test_each_exercise_has_right_answers_wrong_ones_and_hints_for_them(name: str) -> None:
    programs = [solution(name), *(path.read_text() for path in RIGHT if exercise(path) == name)]
    assert len({ast.dump(ast.parse(program)) for program in programs}) == len(programs) >= 2, (
        "or one stands there twice"
    )
    symptoms = [wrong.symptom for wrong in WRONG if wrong.exercise == name]
    assert len(symptoms) >= 3
    common = (
        "hang",
        "killed",
        "missing",
        "signature",
        "type",
        "endless",
    )  # these say all in what differs, or have hints of their own
    for symptom in symptoms:
        hints = {**judging.HINTS, **hints_of(name)}
        assert symptom in hints or symptom in common or symptom.startswith("raised "), symptom


def test_each_hint_is_reached_by_a_wrong_answer() -> None:
    """If no known mistake reaches a hint, it could be wrong and nobody would notice. Exercises that share a hint share
    the mistakes that reach it."""
    reached = {hint for wrong in WRONG if (hint := hints_of(wrong.exercise).get(wrong.symptom))}
    assert not [
        f"{name}: {symptom}" for name in known() for symptom, hint in hints_of(name).items() if hint not in reached
    ]
    symptoms = {wrong.symptom for wrong in WRONG}
    assert not judging.HINTS.keys() - symptoms - {"ended early"}, "hints for any exercise"


def test_every_answer_belongs_to_an_exercise() -> None:
    assert {exercise(path) for path in RIGHT} | {wrong.exercise for wrong in WRONG} == set(known())


def test_an_exception_is_shown_with_the_students_line_and_none_of_ours() -> None:
    error = rejected(
        "04.1",
        "def part(order, rank):\n    return order[rank]\n\n"
        + SHARD.replace("order[rank::world_size]", "part([], rank)"),
    )
    assert error.symptom == "raised IndexError"
    assert "`return order[rank]`" in flat(error) and "`return part([], rank)`" in flat(error)
    assert "line 3 of the cell" in flat(error), "as the notebook numbers lines: the magic is the first"
    assert error._render_traceback_() == ["ExerciseNotSolved: 04.1 is not solved yet (raised IndexError)"]


def test_an_error_while_the_cell_is_loaded_and_a_syntax_error_name_the_line() -> None:
    assert "NameError" in flat(rejected("04.1", "scale = undefined\n" + SHARD))
    error = rejected("04.1", "def shard(:\n    pass\n")
    assert "line 2 of the cell: `def shard(:`" in flat(error)


@pytest.mark.parametrize(
    "blank", ["    ...  # your code here\n", "    raise NotImplementedError\n", "    order = ...\n    return order\n"]
)
def test_a_blank_is_not_done_yet_and_no_error(blank: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_exercise(
        "04.1", f"def shard(n_samples, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):\n{blank}"
    )
    assert "not done yet. Line 3" in capsys.readouterr().out
    assert not list(home.parent.rglob("launches")), "nothing to run"


def test_an_exception_of_a_framework_with_none_of_the_students_lines_is_known_by_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, path = tmp_path / "program.py", tmp_path / "answer.py"
    program.write_text("raise RuntimeError('backward through the graph a second time')\n")
    path.write_text("x = 1\n")
    monkeypatch.setattr(judging, "PROGRAM", program)
    answer = judging.Answer(path, "lesson_04")
    with pytest.raises(judging.Difference) as caught:
        answer.on_ranks("train", 1, said={"second time": "own backward"})
    assert caught.value.symptom == "own backward" and "stopped: RuntimeError: backward" in str(caught.value)
    with pytest.raises(RankError):
        answer.on_ranks("train", 1)


def inserted(line: str, before: str = "    generator =") -> str:
    """The right answer to 04.1, with one more line."""
    return "import os, sys, threading, time\n" + SHARD.replace(before, f"    {line}\n{before}", 1)


@pytest.mark.parametrize(
    "line", ["os._exit(0)", "quit()", "sys.exit()", "rank == 3 and os._exit(0)", "rank == 3 and sys.exit(3)"]
)
def test_an_answer_that_ends_the_process_is_told_so(line: str) -> None:
    assert rejected("04.1", inserted(line)).symptom == "ended early"


def test_a_thread_that_an_answer_leaves_holds_nobody_up() -> None:
    began = time.monotonic()
    check_exercise("04.1", inserted("threading.Thread(target=time.sleep, args=(600,)).start()"))
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("torch.manual_seed(0)", "the random state of torch"),
        ("torch.set_default_dtype(torch.float64)", "the default dtype"),
        ("torch.set_grad_enabled(False)", "whether gradients are recorded"),
        ("torch.set_autocast_enabled('cpu', True)", "autocast"),
        ("os.environ['A'] = 'b'", "the environment"),
        ("os.chdir('/')", "the working folder"),
        ("torch.set_num_threads(2)", "the number of threads"),
    ],
)
def test_what_the_whole_program_shares_is_left_alone(line: str, what: str) -> None:
    error = rejected("04.1", inserted(line))
    assert error.symptom == "global state" and f"changed {what}, while" in flat(error), error


def test_nothing_can_be_told_in_the_checks_name() -> None:
    """Facts count only with the marker of the launch, which is handed over once the answer has returned."""
    forged = "import json, os\nfrom course_utils.rank import report\n"
    forged += "report(told=[json.dumps({'shards': []})], marker='')\nos._exit(0)\n"
    assert rejected("04.1", forged).symptom == "ended early"


def test_what_an_answer_writes_and_prints_is_not_left(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_exercise("04.1", inserted("open('left.txt', 'w').write('x' * 1000); print('y' * 1_000_000)"))
    assert not list(tmp_path.rglob("left.txt"))
    assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) < 3_000_000
    assert "64 MB" in flat(rejected("04.1", inserted("[sys.stdout.write('y' * 1_000_000) for _ in range(100)]")))


def test_a_name_from_another_cell_is_explained() -> None:
    assert "The answer runs by itself" in flat(rejected("04.1", inserted("helper(3)")))


def test_a_file_is_judged_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tmp_path / "answer.py"
    answer.write_text("%%exercise 04.1\n" + SHARD)
    assert main(["04.1", str(answer), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["solved"] is True and found["symptom"] == "" and found["seconds"] > 0
    answer.write_text(SAME_ORDER)
    assert main(["04.1", str(answer), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["symptom"] == "same every epoch"
    assert main(["04.1", str(answer)]) == 1
    told = capsys.readouterr().out
    assert "Where to look" not in told and "A hint is there: --hint" in told and "Symptom: same every epoch" in told
    assert main(["04.1", str(answer), "--hint", "--hint"]) == 1
    assert "Nearly there" in capsys.readouterr().out
    answer.write_text("def shard(:\n")
    assert main(["04.1", str(answer), "--json"]) == 1 and json.loads(capsys.readouterr().out)["symptom"] == "syntax"
    assert main(["04.9", str(answer)]) == 2 and main(["04.1", str(tmp_path / "none.py")]) == 2
    assert "there is no exercise '04.9'" in capsys.readouterr().err
    assert main(["04.9", str(answer), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["solved"] is None


def test_every_answer_gets_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that makes a judge, or a task of ours, stop with an error of its own."""
    program, path = tmp_path / "program.py", tmp_path / "answer.py"
    program.write_text("int(float('nan'))\n")
    path.write_text("x = 1\n")

    def verdict(decide: Any) -> dict[str, Any]:
        monkeypatch.setitem(lesson_exercises("04"), "04.1", replace(known()["04.1"], judge=decide))
        assert main(["04.1", str(path), "--json"]) == 1
        return json.loads(capsys.readouterr().out)

    found = verdict(lambda answer: [1 // 0])
    assert found["symptom"] == "check stopped" and "ZeroDivisionError" in found["differs"]
    monkeypatch.setattr(judging, "PROGRAM", program)
    found = verdict(lambda answer: answer.on_ranks("train", 1))
    assert found["symptom"] == "check stopped" and "ValueError: cannot convert" in found["differs"]
    assert main(["04.1", str(path)]) == 1 and "Traceback" not in capsys.readouterr().out
    path.write_text("x = " + "-" * 20_000 + "1\n")
    assert verdict(lambda answer: ["never asked"])["symptom"] == "syntax"


def test_only_asking_opens_a_hint_one_at_a_time_and_it_stays_until_the_exercise_is_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hints = [" ".join(hint.split()) for hint in hints_of("04.1")["same every epoch"]]
    same, changed, other, right = "x = 1", "x = 2", "x = 3", "x = 4"

    def judged(name: str, source: str) -> Judgement:
        symptom = "overlap" if source == other else "same every epoch"
        difference = judging.Difference(symptom, "It differs.", "another", ["one"])
        return Judgement("solved" if source == right else "not solved", symptom, difference=difference)

    monkeypatch.setattr("course_utils.check.judge", judged)

    def seen(source: str, hint: bool = False) -> tuple[int, str]:
        with pytest.raises(ExerciseNotSolved) as caught:
            check_exercise("04.1", source, hint)
        assert caught.value.card._repr_html_().count("<details open>") == sum(h in flat(caught.value) for h in hints)
        return sum(hint in flat(caught.value) for hint in hints), flat(caught.value)

    assert [seen(same)[0] for _ in range(3)] == [0, 0, 0], "the same code is run again"
    told = seen(changed)[1]
    assert "Try 2 with this symptom" in told and "A hint is there: %%exercise 04.1 --hint" in told
    assert [seen(changed, hint=True)[0], seen(same)[0], seen(same, hint=True)[0]] == [1, 1, 2]
    assert seen(same, hint=True)[0] == 2 and "is there" not in seen(changed)[1], "there are no more"
    told = seen(other)[1]
    assert "What differs" in told and "Where to look" not in told, "another symptom has hints of its own"
    check_exercise("04.1", right)
    assert seen(same)[0] == 0, "counted anew after it was solved"


@pytest.mark.parametrize(
    ("source", "says"), [("...", "Hints come once your code has run"), ("x = ", "Hints come once your code has run")]
)
def test_a_hint_for_code_that_has_not_run_is_not_there_yet(
    source: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(ExerciseNotSolved):
        check_exercise("04.1", source, hint=True)
    assert says in capsys.readouterr().out


def test_the_card_has_a_table_by_rank_folded_hints_and_code_that_is_escaped() -> None:
    card = Card(
        "not solved", "04.1 deal: not solved yet.", "`a<b`", "c<d", [("rank 0", "<e>"), ("rank 1", "f")], ("1", "2")
    )
    page = card._repr_html_()
    for words in ("<code>a&lt;b</code>", "c&lt;d", "rank\xa00\xa0got</td>", "&lt;e&gt;", "Hint 2 of 2: nearly there"):
        assert words in page
    assert page.index("Hint 1") < page.index("Hint 2") and "<details open" not in page
    assert page.count("<details") == page.count("</details>") == 2 and not re.search("<[abe]>", page)


def test_a_notebook_shows_the_card_once_and_fails_the_cell_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    from course_utils.cells.magic import register

    difference = judging.Difference("overlap", "Two ranks see sample 3.", "one rank", judging.by_rank([1, 2]))
    judged = Judgement("not solved", "overlap", difference=difference)
    monkeypatch.setattr("course_utils.check.judge", lambda *_: judged)
    shell = InteractiveShell.instance()
    try:
        register(shell)
        for line, opened in (("04.1", 0), ("04.1 --hint", 1), ("--hint 04.1", 2)):
            with capture_output() as captured:
                assert shell.run_cell(f"%%exercise {line}\nx = 1").error_in_exec is not None
            (shown,) = captured.outputs
            assert "Two ranks see sample 3." in shown.data["text/plain"] and "<details" in shown.data["text/html"]
            assert shown.data["text/html"].count("<details open") == opened
            assert captured.stdout.strip() == "ExerciseNotSolved: 04.1 is not solved yet (overlap)"
        with capture_output() as captured:
            shell.run_cell("%%exercise 04.1 --hnt\nx = 1")
        assert "for a hint %%exercise 04.1 --hint" in captured.stdout
    finally:
        InteractiveShell.clear_instance()


def test_a_solved_card_says_how_many_are_solved_and_what_comes_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solved = Judgement("solved", checked=("all",))
    monkeypatch.setattr("course_utils.check.judge", lambda *_: solved)
    monkeypatch.chdir(ROOT / "exercises")
    names = list(lesson_exercises("04"))
    for name in [*names[1:], names[0]]:
        check_exercise(name, "x = 1\n")
    lines = [line for line in capsys.readouterr().out.splitlines() if f" of {len(names)} solved" in line]
    assert len(names) == 9 and lines[0].startswith("1 of 9 solved. Next: 04.3a mend: ")
    assert "Next: 04.1" in lines[-2] and lines[-1] == "9 of 9 solved. Next: lesson 05"
    for name in lesson_exercises("12"):
        check_exercise(name, "x = 1\n")
    assert "4 of 4 solved. Next: lesson 13" in capsys.readouterr().out


def test_what_an_answer_prints_is_shown_for_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    check_exercise(
        "04.4",
        (HERE / "right_answers/04/4_bare_model.py")
        .read_text()
        .replace("        state = {", '        print("writing", epoch)\n        state = {'),
    )
    shown = capsys.readouterr().out
    assert "rank 0 | writing 3" in shown and "rank 1 |" not in shown


def test_records_for_the_learner_and_for_an_instructor(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COURSE_CHECKS_FILE", str(tmp_path / "all.jsonl"))
    rejected("04.1", SAME_ORDER)
    check_exercise("04.1", SHARD)
    check_exercise("04.2", "...")
    rejected("04.4", "x = 1\n")
    records = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [(r["exercise"], r["outcome"]) for r in records] == [
        ("04.1", "not solved"),
        ("04.1", "solved"),
        ("04.2", "not done"),
        ("04.4", "not solved"),
    ]
    assert records[0]["symptom"] == "same every epoch" and records[0]["seconds"] > 0
    assert (home / "exercises.jsonl").read_text() == (tmp_path / "all.jsonl").read_text()
    capsys.readouterr()
    summary()
    table = capsys.readouterr().out
    assert re.search(r"^04\.1 .*✓ solved$", table, re.M) and re.search(r"^04\.2 .*not done yet$", table, re.M)
    assert re.search(r"^04\.3a .*not tried yet$", table, re.M) and re.search(r"^04\.4 .*✗ not solved yet$", table, re.M)
    assert table.endswith("1 of 9 solved\n")


def test_copies_of_a_notebook_in_two_folders_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An instructor's and a student's, for example."""
    for folder in ("solutions", "exercises"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        if folder == "solutions":
            check_exercise("04.1", SHARD)
    capsys.readouterr()
    summary("04")
    assert "0 of 9 solved" in capsys.readouterr().out


def test_an_unknown_exercise_names_those_that_exist() -> None:
    with pytest.raises(UnknownExercise, match=r"there is no exercise '04\.9'; lesson 04 has 04\.1, 04\.2"):
        check_exercise("04.9", "")
    with pytest.raises(UnknownExercise, match="exercises are named like"):
        check_exercise("shard", "")


def handed_out() -> dict[str, str]:
    """The cells of 04.3 as the exercise notebook has them: letter -> source."""
    notebook = nbformat.read(ROOT / "exercises" / "04_distributed_data_parallel_exercises.ipynb", as_version=4)
    cells = [cell.source.partition("\n") for cell in notebook.cells if cell.source.startswith("%%exercise 04.3")]
    return {head[-1]: body + "\n" for head, _, body in cells}


def test_the_faulty_trainers_are_known_as_they_are_handed_out() -> None:
    assert {letter: digest(source) for letter, source in handed_out().items()} == HANDED_OUT
    commented = handed_out()["a"].replace("    ddp = DDP(model)", "    # the wrapper:\n    ddp = DDP(model)  # here\n")
    assert digest(commented) == HANDED_OUT["a"]
    assert (
        digest(handed_out()["a"].replace("            optimizer.step()", "        optimizer.step()")) != HANDED_OUT["a"]
    )


@pytest.mark.parametrize(
    ("letter", "symptom"),
    [("a", "same every epoch"), ("b", "no exchange"), ("c", "different start"), ("d", "not the mean"), ("e", "hang")],
)
def test_a_faulty_trainer_shows_its_symptom_and_counts_as_not_done(
    letter: str, symptom: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_exercise(f"04.3{letter}", handed_out()[letter])
    assert "You haven't changed the program" in capsys.readouterr().out
    record = json.loads((home / "exercises.jsonl").read_text())
    assert (record["outcome"], record["symptom"]) == ("not done", symptom)


def test_the_trainer_without_resume_is_the_twin_and_counts_as_not_done(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = (FOLDER / "lesson_09" / "trainer.py").read_text()
    assert digest(trainer) == known()["09.1"].handed_out
    check_exercise("09.1", trainer)
    assert "You haven't changed the program" in capsys.readouterr().out
    record = json.loads((home / "exercises.jsonl").read_text())
    assert (record["outcome"], record["symptom"]) == ("not done", "starts over")


def handed_out_of_08() -> dict[str, str]:
    """The cells of 08.3 and 08.5 as the exercise notebook has them: name -> source."""
    notebook = nbformat.read(ROOT / "exercises" / "08_mixed_precision_exercises.ipynb", as_version=4)
    cells = [cell.source.partition("\n") for cell in notebook.cells if cell.source.startswith("%%exercise 08.")]
    found = {head.removeprefix("%%exercise "): body + "\n" for head, _, body in cells}
    return {name: source for name, source in found.items() if known()[name].handed_out}


def test_the_loops_to_mend_are_known_as_they_are_handed_out() -> None:
    judge = checks("lesson_08.judge")
    handed = {f"08.3{letter}": known_as for letter, known_as in judge.HANDED_OUT.items()} | {"08.5": judge.SCRIPT}
    assert {name: digest(source) for name, source in handed_out_of_08().items()} == handed


@pytest.mark.parametrize(
    ("name", "symptom"),
    [
        ("08.3a", "stale"),
        ("08.3b", "clipped too early"),
        ("08.3c", "frozen"),
        ("08.3d", "count"),
        ("08.3e", "schedule moves"),
        ("08.5", "no autocast"),
    ],
)
def test_a_loop_to_mend_shows_its_symptom_and_counts_as_not_done(
    name: str, symptom: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_exercise(name, handed_out_of_08()[name])
    assert "You haven't changed the program" in capsys.readouterr().out
    record = json.loads((home / "exercises.jsonl").read_text())
    assert (record["outcome"], record["symptom"]) == ("not done", symptom)


@pytest.mark.parametrize(("work", "idle_s"), [("sum(i for i in range(40_000_000))", 0.5), ("time.sleep(2)", 20)])
def test_an_answer_that_takes_its_time_is_neither_stuck_nor_endless(
    work: str, idle_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It computes longer than ranks may wait, or waits, but not for as long; once, in its first call."""
    monkeypatch.setattr(judging, "PATIENCE", replace(judging.PATIENCE, idle_s=idle_s))
    check_exercise("04.1", inserted(f"'done' in globals() or globals().update(done={work})"))
    assert "solved" in capsys.readouterr().out


def test_a_deadlock_is_told_with_the_line_where_each_rank_waits() -> None:
    error = rejected("04.1", inserted("rank == 0 and torch.distributed.barrier()"))
    assert error.symptom == "hang" and "torch.distributed.barrier()" in flat(error), flat(error)
