"""The tables of wrong answers: an unusable row is refused with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from wrong_answers import WrongAnswerError, load

RIGHT = "def shard(order, rank, n):\n    mine = order[rank::n]\n    return mine\n"
SOLVED = (
    '%%exercise 04.1\ndef shard(order, rank, n):\n    """This rank\'s part."""\n    ### BEGIN SOLUTION\n    return'
    " order[rank::n]\n    ### END SOLUTION"
)
ROW = 'symptom = "everything"\nsays = "all of it"\nbase = "strided"\n'


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    """A tests folder with one right answer to 04.1, and a solution notebook next to it."""
    (tmp_path / "solutions").mkdir()
    cells = ["%%exercise 04.1\nhanded out", SOLVED, "%%exercise 04.2\npass"]
    notebook = {"cells": [{"source": cell.splitlines(True)} for cell in cells]}
    (tmp_path / "solutions" / "04_shards_solutions.ipynb").write_text(json.dumps(notebook))
    folder = tmp_path / "tests"
    for name in ("wrong_answers", "right_answers/04"):
        (folder / name).mkdir(parents=True)
    (folder / "right_answers" / "04" / "1_strided.py").write_text(RIGHT)
    return folder


def rows(tests: Path, text: str) -> Path:
    (tests / "wrong_answers" / "04.toml").write_text(text)
    return tests


def test_replacements_are_made_in_the_right_answer_in_any_order(tests: Path) -> None:
    (answer,) = load(
        rows(tests, f'[04.1.all]\n{ROW}replace = [["return mine", "return list(order)"], ["rank::n", "rank:"]]')
    )
    assert answer.source == "def shard(order, rank, n):\n    mine = order[rank:]\n    return list(order)\n"
    assert (answer.exercise, answer.name, answer.symptom, answer.says) == ("04.1", "all", "everything", "all of it")
    assert answer.id == "04-1_all"


def test_the_rows_of_an_exercise_share_a_right_answer(tests: Path) -> None:
    own = ROW.replace("strided", "solution") + 'replace = [["order[rank::n]", "order"]]\n'
    shared = ROW.replace('base = "strided"\n', "")
    (tests / "right_answers" / "04" / "1_other.py").write_text("shard = 1\n")
    answers = load(
        rows(
            tests,
            f'[04.1]\nbase = "other"\n[04.1.whole]\n{shared}source = "shard = 3"\n[04.1.own]\n{own}'
            f'[04.1.shared]\n{shared}replace = [["1", "2"]]\n',
        )
    )
    assert [answer.base for answer in answers] == ["", "solution", "other"] and answers[2].source == "shard = 2\n"


def test_the_solution_notebooks_answer_can_be_mutated_too(tests: Path) -> None:
    row = ROW.replace("strided", "solution")
    (answer,) = load(rows(tests, f'[04.1.all]\n{row}replace = [["order[rank::n]", "order"]]'))
    assert answer.source == 'def shard(order, rank, n):\n    """This rank\'s part."""\n    return order\n'


def test_a_whole_program_begins_below_the_quotes(tests: Path) -> None:
    (answer,) = load(
        rows(tests, "[04.1.all]\nsymptom = \"everything\"\nsays = \"all\"\nsource = '''\nshard = None\n'''")
    )
    assert answer.source == "shard = None\n" and not answer.base


@pytest.mark.parametrize(
    ("replace", "complaint"),
    [
        (
            '[["order[rank]", "order"]]',
            r"04\.toml, 04\.1 all: 'order\[rank\]' stands 0 times .* has the right answer changed\?",
        ),
        ('[["mine", "order"]]', "'mine' stands 2 times in the right answer, and must stand there once: take more"),
        ('[["", "order"]]', "'' stands 0 times"),
        ('[["order[rank::n]", "order"], ["rank::n", "rank:"]]', "'rank::n' overlaps"),
        ('[["return mine", "return mine"]]', "change nothing"),
        ("[]", "change nothing"),
        ('[["return mine", "return order["]]', "not valid Python, line 3"),
    ],
)
def test_a_replacement_that_cannot_be_made_is_refused(tests: Path, replace: str, complaint: str) -> None:
    with pytest.raises(WrongAnswerError, match=complaint):
        load(rows(tests, f"[04.1.all]\n{ROW}replace = {replace}"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            ROW.replace("strided", "contiguous") + "replace = []",
            r"no right answer tests/right_answers/04/1_contiguous\.py; base may be strided, solution",
        ),
        (ROW, "give it `base` and `replace`, or else the whole `source`"),
        (ROW + 'source = "x = 1"', "give it `base` and `replace`, or else the whole `source`"),
        ('symptom = "everything"\nsource = "x = 1"', "has no says"),
        ('source = "x = 1"', "has no symptom and no says"),
        (ROW + 'symtom = "everything"', "and not symtom"),
    ],
)
def test_a_row_with_a_wrong_or_missing_key_is_refused(tests: Path, text: str, complaint: str) -> None:
    with pytest.raises(WrongAnswerError, match=complaint):
        load(rows(tests, f"[04.1.all]\n{text}"))


def test_a_name_a_program_and_a_lesson_are_there_once(tests: Path) -> None:
    row = f'{ROW}replace = [["mine = order[rank::n]", "mine = order"]]\n'
    with pytest.raises(WrongAnswerError, match=r"wrong_answers/04\.toml: Cannot declare .*twice"):
        load(rows(tests, f"[04.1.all]\n{row}\n[04.1.all]\n{row}"))
    with pytest.raises(WrongAnswerError, match="04.1 again: the same program as all"):
        load(rows(tests, f"[04.1.all]\n{row}\n[04.1.again]\n{row}"))
    with pytest.raises(WrongAnswerError, match=r"every row begins with \[04\.NUMBER\.NAME\], not with 05"):
        load(rows(tests, f"[04.1.all]\n{row}\n[05.1.all]\n{row}"))


def test_an_exercise_that_no_solution_answers(tests: Path) -> None:
    row = ROW.replace("strided", "solution")
    with pytest.raises(WrongAnswerError, match="no solution notebook answers 04.3"):
        load(rows(tests, f"[04.3.all]\n{row}replace = []"))


def printed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.wrong_answers", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_a_command_prints_a_wrong_answer_and_what_it_changes() -> None:
    whole = printed("04.1", "same_order_each_epoch")
    assert whole.returncode == 0 and "manual_seed(seed)\n" in whole.stdout and whole.stdout.startswith("import torch\n")
    changed = [
        line
        for line in printed("04.1", "same_order_each_epoch", "--diff").stdout.splitlines()
        if line.startswith(("+ ", "- "))
    ]
    assert len(changed) == 2 and "seed + epoch" in changed[0] and "seed + epoch" not in changed[1]
    assert "same_order_each_epoch" in printed("04.1").stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["04.1", "no_such_mistake"], "04.1 has no wrong answer 'no_such_mistake'; it has "),
        (["04.9"], "there are no wrong answers to an exercise '04.9'; there are some to 00.1"),
        (["04.1", "endless_loop", "--diff"], "04.1 endless_loop is written out whole"),
    ],
)
def test_a_command_that_cannot_be_followed_says_so_in_one_line(arguments: list[str], complaint: str) -> None:
    result = printed(*arguments)
    assert result.returncode == 1 and not result.stdout
    assert result.stderr.startswith(complaint) and result.stderr.count("\n") == 1
