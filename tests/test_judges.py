"""What a judge decides from what the ranks told, without starting any; and that an answer runs apart from it."""

from __future__ import annotations

import ast
import copy
import dataclasses
import itertools
import json
import random
import re
import string
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from conftest import ROOT, checks
from torch.nn.functional import cross_entropy
from wrong_answers import right_answer

from course_utils.check import check_exercise

RIGHT = Path(__file__).resolve().parent / "right_answers"
Difference = checks("judging").Difference
accuracy, trainers, checkpoint = (
    checks(f"lesson_04.{name}") for name in ("accuracy_judge", "trainer_judge", "checkpoint_judge")
)
loss, noise = checks("lesson_03.loss_judge"), checks("lesson_02.noise_judge")
orders = checks("lesson_06.orders")
curves, curves_judge, lesson_09 = (checks(f"lesson_09.{name}") for name in ("curves", "curves_judge", "cases"))
bounded, overwritten, local_sgd, lesson_07 = (
    checks(f"lesson_07.{name}") for name in ("bounded", "overwritten", "local_sgd", "cases")
)


def symptom(decide: Any, *args: Any) -> str:
    """What is decided: a symptom, or "" for a right answer."""
    try:
        decide(*args)
    except Difference as found:
        return found.symptom
    return ""


# --- 04.2 -------------------------------------------------------------------------------------------------------------

CASE = (21, 4, 4)
RIGHT_OR_WRONG = [1] * 9 + [0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0]  # 13 of 21


def test_batches_are_dealt_like_cards_and_padded_from_the_front() -> None:
    dealt = [accuracy.batches(list(range(5)), list(range(5)), rank, 5, 2, 2) for rank in (0, 1, 2)]
    assert [[predictions for predictions, _ in rank] for rank in dealt] == [[[0, 2], [4]], [[1, 3], [0]], []]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([13 / 21] * 4, ""),
        ([(13 + 3) / 24] * 4, "padding"),
        ([13 / 21, 0.0, 0.0, 0.0], "one rank"),
        ([13 / 21, 13 / 21, 13 / 21, 13 / 24], "ranks disagree"),  # the padded number on the last rank
        ([0.25, 0.5, 0.25, 0.5], "ranks disagree"),
        ([0.25] * 4, "wrong value"),
        ("local", "local"),
        ("mean_of_ranks", "mean of means"),
        ("mean_of_batches", "mean of means"),
    ],
)
def test_an_accuracy_is_known_by_the_mistake_that_gives_it(values: Any, found: str) -> None:
    facts = accuracy.facts([1] * 21, RIGHT_OR_WRONG, 4, 4)
    if isinstance(values, str):
        values = facts[values] if isinstance(facts[values], list) else [facts[values]] * 4
    seen = [{"value": value, "collectives": 1, "handed_out": 2} for value in values]
    assert symptom(accuracy.decide, seen, [2] * 4, facts, CASE) == found


def test_collectives_and_batches_are_counted_on_every_rank() -> None:
    facts = accuracy.facts([1] * 21, RIGHT_OR_WRONG, 4, 4)
    seen = [{"value": 13 / 21, "collectives": 4, "handed_out": 2} for _ in range(4)]
    for key, count, found in (("collectives", 5, "collectives"), ("handed_out", 3, "reads twice")):
        changed = copy.deepcopy(seen)
        changed[3][key] = count
        assert symptom(accuracy.decide, changed, [2] * 4, facts, CASE) == found
    assert symptom(accuracy.decide, seen, [2] * 4, facts, CASE) == ""


# --- 04.3 -------------------------------------------------------------------------------------------------------------


def training(step: float = 1.0) -> dict[str, Any]:
    """What two ranks told that train 40 samples in three epochs; weights grow by `step` in each of 15 steps."""
    orders = [random.Random(epoch).sample(range(40), 40) for epoch in range(3)]
    samples = [[[*o[i + 4 * r : i + 4 * r + 4]] for o in orders for i in range(0, 40, 8)] for r in (0, 1)]
    weights = [[step * i] for i in range(1, 16)]
    start = {"head.bias": [0.0], "head.weight": [0.0]}
    calls = [["broadcast", "allreduce"]] * 15
    ranks = [{"start": start, "weights": weights, "samples": s, "calls": calls, "evaluating": 0} for s in samples]
    return {"ranks": [rank | {"result": [0.5, 0.6, 0.7]} for rank in ranks]}


TWIN = {"weights": [[float(i)] for i in range(1, 16)], "accuracies": [0.5, 0.6, 0.7], "log_frequency": [0.0]}


def decided(letter: str, ranks: list[dict[str, Any]]) -> str:
    return symptom(lambda: trainers.decide(letter, trainers.compare(ranks, TWIN)))


def test_a_trainer_is_held_beside_the_other_rank_and_the_twin() -> None:
    assert [decided(letter, training()["ranks"]) for letter in "abce"] == ["", "", "", ""]
    assert decided("a", training(step=1.001)["ranks"]) == "not the mean"
    assert decided("d", training()["ranks"]) == "shares"
    for key, value, found in (
        ("weights", [[i + 1e-6] for i in range(1, 16)], "drift"),
        ("weights", [[float("nan")]] * 15, "drift"),
        ("start", {"head.bias": [0.1], "head.weight": [0.0]}, "different start"),
        ("evaluating", 3, "evaluation mode"),
    ):
        ranks = training()["ranks"]
        ranks[1] = ranks[1] | {key: value}
        assert decided("a", ranks) == found, key
    ranks = [rank | {"result": [0.5, 0.6]} for rank in training()["ranks"]]
    assert decided("e", ranks) == "accuracy" and decided("a", ranks) == ""


# --- 04.4 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("epoch", 3, ""),
        ("epoch", "None", "epoch"),
        ("loaded", {"model": {"w": [[1], [2.5]]}, "optimizer": {}}, "optimizer state"),
        ("loaded", {"model": {"w": [[1], [9.0]]}, "optimizer": {"lr": [[], [0.1]]}}, "model state"),
        ("loaded", {"model": {"w": [[1], [0.0]]}, "optimizer": {"lr": [[], [0.1]]}}, "nothing loaded"),
        ("next", {"w": [[1], [3.6]]}, "next step"),
    ],
)
def test_a_loaded_state_is_compared_to_the_last_bit(key: str, value: Any, found: str) -> None:
    right = {"model": {"w": [[1], [2.5]]}, "optimizer": {"lr": [[], [0.1]]}}
    seen = {"epoch": 3, "before": {"w": [[1], [0.0]]}, "loaded": right, "next": {"w": [[1], [3.5]]}}
    twin = {"saved": right, "plain": {"w": [[1], [3.5]]}}
    result = checkpoint.compare(seen | {key: value}, twin, "plain")
    assert symptom(checkpoint.decide, "loading a plain checkpoint into a plain model", [result], 3) == found


# --- 03.4 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "found"),
    [
        ({}, ""),
        ({"loss": 3.0}, "sum of means"),
        ({"loss": 6.0}, "not divided"),
        ({"loss": 1.7}, "weights"),
        ({"loss": 1.1}, "wrong"),
        ({"of_parts": [[0.25, 0.0], [0.0, 0.0]]}, "gradient"),
        ({"dtype": "float32"}, "dtype"),
        ({"loss": float("nan")}, "not a number"),
        ({"gradient": False}, "no gradient"),
    ],
)
def test_loss_and_gradient_of_the_replicas_are_joined_by_the_chain_rule(total: dict[str, Any], found: str) -> None:
    """Two replicas return (sum, number): sums of 4 and 2 over 2 samples each, and 6 / 4 is the loss of one device."""
    gradients = ([3.0, 1.0], [1.0, -1.0])  # of the sums, by two parameters; of the numbers there are none
    parts = [
        {"numbers": [s, 2.0], "shape": [1, 2], "dtype": "float64", "gradients": [g, [0.0, 0.0]]}
        for s, g in zip((4.0, 2.0), gradients, strict=True)
    ]
    right = {"loss": 1.5, "dtype": "float64", "gradient": True, "of_parts": [[0.25, -0.375], [0.25, -0.375]]}
    twin = {
        "loss": 1.5,
        "gradient": [1.0, 0.0],
        "known": {"weights": [1.7], "not divided": [6.0], "sum of means": [3.0]},
    }
    assert symptom(loss.decide, (4, 2, []), [2, 2], loss.join(parts, right | total, twin)) == found


# --- 02.4 -------------------------------------------------------------------------------------------------------------


def noise_of(seed: int, epoch: int, index: int, n: int = 192) -> list[int]:
    draw = random.Random(f"{seed} {epoch} {index}")
    return [round(draw.gauss(0, 1) / noise.UNIT) for _ in range(n)]


def told_noise() -> dict[str, Any]:
    """What the ranks tell of an answer whose noise follows from seed, epoch and index."""
    found: dict[str, Any] = {}
    for name, ask in ((name, ask) for rank in noise.asks(5) for name, ask in rank.items()):
        if ask["task"] == "many":
            found[name] = [noise_of(*asked, n=4) for asked in noise.noises(ask["draw"])]
        elif ask["task"] == "items":
            found[name] = {"noise": [noise_of(0, ask["epoch"], i) for i in ask["indices"]], "touched": []}
        else:
            n = 3 * ask.get("size", 8) ** 2
            found[name] = [noise_of(ask["seed"], ask["epoch"], i, n) for i in range(ask.get("n", noise.AUGMENTED))]
    return found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("elsewhere", "another process"),
        ("epoch 1 with 2", "workers matter"),
        ("turned", "order matters"),
        ("black", "images matter"),
        ("salted", "another process"),
    ],
)
def test_noise_that_must_be_the_same_is_told_from_other_noise(name: str, found: str) -> None:
    told = told_noise()
    assert symptom(lambda: noise.decide(noise.compare(told, 5))) == ""
    told[name][3] = [v + 2 for v in told[name][3]]
    assert symptom(lambda: noise.decide(noise.compare(told, 5))) == found


def test_noise_that_must_differ_and_does_not() -> None:
    first, *others = told_noise()["many"]
    for name, value, found in (
        ("epoch 1", [noise_of(0, 0, i) for i in range(noise.AUGMENTED)], "same every epoch"),
        ("epoch 0", [noise_of(0, 0, 0)] * noise.AUGMENTED, "same for all"),
        ("seed", told_noise()["epoch 0"], "seed ignored"),
        ("many", [[1, 2, 3, 4]] * len(noise.noises(5)), "sums collide"),
        ("many", [first, [-v for v in first], *others[1:]], "borrowed"),
        ("many", [first, [*first[2:], *first[:2]], *others[1:]], "borrowed"),
        ("many", [first, [*first[1:], 7], *others[1:]], "borrowed"),
    ):
        assert symptom(lambda n=name, v=value: noise.decide(noise.compare(told_noise() | {n: v}, 5))) == found


# --- 06.4 -------------------------------------------------------------------------------------------------------------


def every(kinds: str, m: int) -> list[tuple[str, ...]]:
    """All orders in which a stage can go through its boxes."""
    boxes = [f"{kind}{i}" for kind in kinds for i in range(m)]
    pairs = [(f"{a}{i}", f"{b}{i}") for a, b in itertools.pairwise(kinds) for i in range(m)]
    return [o for o in itertools.permutations(boxes) if all(o.index(a) < o.index(b) for a, b in pairs)]


def shortest_of(lists: list[tuple[str, ...]], stages: int, takes: dict[str, int]) -> int:
    steps = (orders.run(chosen, takes) for chosen in itertools.product(lists, repeat=stages))
    return min(step.length for step in steps if not step.stuck)


@pytest.mark.parametrize(("stages", "m"), [(1, 3), (2, 2), (2, 3), (3, 2)])
def test_no_order_of_boxes_makes_a_shorter_step(stages: int, m: int) -> None:
    for most in range(1, min(m, 2) + 1):
        fitting = [boxes for boxes in every("FB", m) if orders.in_flight(boxes, "B") <= most]
        assert shortest_of(fitting, stages, orders.FULL) == orders.shortest(stages, m, most)


@pytest.mark.parametrize(("stages", "m"), [(1, 2), (2, 1), (2, 2), (3, 1)])
def test_no_order_of_boxes_with_weights_of_their_own_makes_a_shorter_step(stages: int, m: int) -> None:
    fitting = [boxes for boxes in every("FIW", m) if orders.in_flight(boxes, "W") <= stages]
    assert shortest_of(fitting, stages, orders.SPLIT) == orders.shortest_split(stages, m)


def test_the_lists_that_the_exercise_fills_in_take_as_long_as_it_says() -> None:
    lists = ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 B0 B1 F2 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    said = nbformat.read(ROOT / "solutions/06_model_and_pipeline_parallel_solutions.ipynb", as_version=4)
    (text,) = (cell.source for cell in said.cells if cell.source.startswith("## 06.4"))
    assert all(f"Stage {stage}: {boxes}." in text for stage, boxes in enumerate(lists))
    step = orders.run([boxes.split() for boxes in lists], orders.FULL)
    assert step.length == orders.shortest(3, 4, 2) == 21 and "That's 21 units" in text
    assert (orders.shortest(3, 4, 3), orders.shortest(3, 4, 1)) == (18, 36)
    assert "room for three it takes 18 units, with room for one 36" in text
    lists[1] = "F0 F1 B0 F2 B1 F3 B2 B3"
    step = orders.run([boxes.split() for boxes in lists], orders.FULL)
    assert step.length == 24 and "the step would take 24" in text
    assert orders.told(step, orders.FULL)[1] == "[1] F0 F1 [2] B0 [3] F2 B1 [3] F3 B2 [1] B3"
    assert orders.run([["F0", "F1", "B0", "B1"], ["F1", "F0", "B1", "B0"]], orders.FULL).length == 12
    assert orders.run([["F0", "B0", "F1", "B1"], ["F1", "F0", "B1", "B0"]], orders.FULL).stuck == [(0, "B0"), (1, "F1")]


# --- 07.1 to 07.3 -----------------------------------------------------------------------------------------------------


def said_in_lesson_07(beginning: str) -> str:
    notebook = json.loads((ROOT / "solutions/07_rpc_and_hogwild_solutions.ipynb").read_text())
    texts = ["".join(cell["source"]) for cell in notebook["cells"]]
    (text,) = (text for text in texts if text.startswith(beginning))
    return text


@pytest.mark.parametrize(("optimizer", "as_ddp"), [("SGD", True), ("Adam", False)])
def test_averaging_weights_in_every_step_is_ddp_with_sgd_and_not_with_adam(optimizer: str, as_ddp: bool) -> None:
    """The text says so. What `DDP` does is done here with the mean of all ranks' losses."""
    assert "With plain SGD or momentum, yes, to the last digits" in said_in_lesson_07("Without DDP, two of its")
    options = {"momentum": 0.9} if as_ddp else {}
    models = [local_sgd.new_model(5, 0) for _ in range(4)]
    optimizers = [getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, **options) for model in models]
    batches = [local_sgd.new_batches(5, rank, 9) for rank in range(3)]
    for step in range(9):
        losses = [cross_entropy(model(b[step][0]), b[step][1]) for model, b in zip(models, batches, strict=False)]
        all_of_them = [cross_entropy(models[3](b[step][0]), b[step][1]) for b in batches]
        for loss, own in zip([*losses, torch.stack(all_of_them).mean()], optimizers, strict=True):
            own.zero_grad()
            loss.backward()
            own.step()
        local_sgd.average([list(model.parameters()) for model in models[:3]])
    assert (local_sgd_gap(models[0], models[3]) < 1e-12) == as_ddp


def local_sgd_gap(a: Any, b: Any) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize(("trainers", "ahead"), [(2, 0), (3, 1), (3, 2), (4, 1)])
def test_a_bound_on_who_is_ahead_is_one_on_age(trainers: int, ahead: int) -> None:
    """While one computes, each of the others makes at most 2 * ahead + 1 updates, as the text says: that is reached."""
    assert "that's `2 * ahead + 1` updates each" in said_in_lesson_07("Everything that can end a wait")
    draw, ages = random.Random(0), [0]
    for _ in range(200):
        server = bounded.Bounded(trainers, ahead)
        speed = [draw.choice([1, 20]) for _ in range(trainers)]
        for _ in range(100):
            speed = [draw.choice([1, 20]) for _ in range(trainers)] if draw.random() < 0.1 else speed
            free = [t for t in server.made if t not in server.waiting]
            (trainer,) = draw.choices(free, [speed[t] for t in free])
            age = server.call(f"{'u' if trainer in server.read_at else 'r'}{trainer}").age
            ages.append(age or 0)
            assert max(map(server.lead, server.made)) <= ahead + 1
    assert max(ages) == (trainers - 1) * (2 * ahead + 1)


def test_the_calls_that_the_exercise_shows_are_answered_as_it_says() -> None:
    text = said_in_lesson_07("## 07.2").partition("|---|---|")[2]
    server = bounded.Bounded(2, 1)
    for call in ("r0", "u0", "r0", "u0", "r0", "r1", "u1"):
        said = server.call(call)
        row = f"trainer {call[1]} {'reads' if call[0] == 'r' else 'updates'} | "
        row += f"age {said.age}" if call[0] == "u" else "at once, version" if said.answers else "not yet"
        _, found, text = text.partition(row)
        assert found, row
        if call[0] == "r" and said.answers:
            assert text.startswith(f" {said.answers[int(call[1])]}"), row
    assert text.startswith(f", and now trainer 0 gets version {said.answers[0]}")


def test_the_log_that_the_exercise_shows_is_read_as_it_says() -> None:
    text = said_in_lesson_07("## 07.3")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    log = [(int(trainer), int(read), int(wrote)) for trainer, read, wrote in rows]
    assert log in lesson_07.LOGS and f"{overwritten.lost(log)}" in text
    assert overwritten.contents(log)[6] == {2, 4, 6} and "has the updates 2, 4 and 6" in text


# --- apart ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["02.4", "03.2", "03.4", "04.2", "04.3a", "04.4"])
def test_neither_judge_nor_twin_is_in_the_process_of_an_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    lesson, _, number = name.partition(".")
    source = min((RIGHT / lesson).glob(f"{number}_*.py")).read_text()
    look = "import sys\n\nassert not [name for name in sys.modules if 'judg' in name or 'twins' in name]\n"
    check_exercise(name, f"{source}\n\n{look}")


# --- 09.5 -------------------------------------------------------------------------------------------------------------

INSIDES = [2.0, 5.0, 3.0, 4.0, 1.5]  # of the model in the picture, in outputs of a block


def curve_by_hand(insides: list[float], program: str, output: float) -> list[float]:
    """What the four programs hold, worked out: a kept block holds its inside and its output, all hold their inputs."""
    n, whole = len(insides), [inside + output for inside in insides]
    if program == lesson_09.ONE:
        return [output] * n + [sum(whole[:k]) for i in reversed(range(n)) for k in (i + 1, i)]
    again = {i for computed, blocks in curves.parts(program, n) if computed for i in blocks}

    def left(k: int) -> float:
        inputs = sum(i - 1 in again for i in range(1, k))  # the output of a kept block is there anyway
        return sum(whole[i] for i in range(k) if i not in again) + output * inputs

    came = [output * (i - 1 in again) for i in range(n + 1)]  # from the block before
    backward = [[left(i) + came[i] + whole[i], left(i)] for i in reversed(range(n))]
    return [left(k) + came[k] for k in range(1, n + 1)] + [value for pair in backward for value in pair]


def said_in_09_5() -> str:
    notebook = json.loads((ROOT / "solutions/09_checkpointing_solutions.ipynb").read_text())
    texts = ["".join(cell["source"]) for cell in notebook["cells"]]
    (text,) = (text for text in texts if text.startswith("## 09.5"))
    return text


def test_real_steps_hold_what_one_can_work_out_by_hand() -> None:
    for model in [(64, 8, [[16], [40], [24], [32], [12]]), *lesson_09.curve_models(random.Random(1))[3:5]]:
        rows, width, inside = model
        kib = [4 * rows * sum(sizes) / 1024 for sizes in inside]
        for program in lesson_09.PROGRAMS:
            assert curves.curve(model, program) == curve_by_hand(kib, program, 4 * rows * width / 1024), program


def test_four_curves_of_any_model_are_told_apart() -> None:
    """Of all models that have an inside: the first two blocks show which program it was, so no curve can be another
    program's of another model."""
    space: dict[str, Any] = {}
    exec(right_answer("09.5", "solution"), space)
    draw = random.Random(2)
    models = [model for _ in range(60) for model in lesson_09.curve_models(draw)]
    assert {len(inside) for _, _, inside in models} == set(range(2, 13))
    assert min(sum(sizes) / width for _, width, inside in models for sizes in inside) < 0.3
    for _, width, inside in models:
        made = {name: curve_by_hand([sum(s) for s in inside], name, width) for name in lesson_09.PROGRAMS}
        assert {name: space["program"](curve) for name, curve in made.items()} == {name: name for name in made}


def test_the_picture_shows_what_the_four_programs_hold() -> None:
    text = said_in_09_5()
    drawn = [[tuple(map(float, p.split(","))) for p in line.split()] for line in re.findall(r"points='([^']+)'", text)]
    names = re.findall(r"[A-D] is <i>([^<]+)</i>", text)
    assert sorted(names) == sorted(lesson_09.PROGRAMS) and len(drawn) == len(names)
    for name, points in zip(names, drawn, strict=True):
        bottom = points[-1][1]
        assert [(bottom - y) / 5 for _, y in points] == pytest.approx(curve_by_hand(INSIDES, name, 1.0)), name


def test_every_pair_of_programs_that_can_be_mistaken_has_a_symptom() -> None:
    pairs = set(itertools.permutations(lesson_09.PROGRAMS, 2))
    assert curves_judge.SYMPTOMS.keys() == pairs
    model = (1, 8, [[8]] * 4)
    right = [curves_judge.Curve(model, p, curve_by_hand([8.0] * 4, p, 8.0), p) for p in lesson_09.PROGRAMS]
    assert symptom(curves_judge.decide, right) == ""
    for made, said in pairs:
        wrong = [dataclasses.replace(curve, said=said) if curve.program == made else curve for curve in right]
        assert symptom(curves_judge.decide, wrong) == curves_judge.SYMPTOMS[made, said]


def sentences(row: dict[str, Any]) -> list[str]:
    """All that a row of hints.toml may put facts into."""
    found = [row.get(key, "") for key in ("differs", "expected")]
    return [text for words in found for text in (words.values() if isinstance(words, dict) else [words])]


@pytest.mark.parametrize("folder", sorted((ROOT / "exercises" / "checks").glob("lesson_*")), ids=lambda p: p.name)
def test_each_symptom_has_words_and_its_judge_gives_the_facts_in_them(folder: Path) -> None:
    """Also for symptoms that no answer reaches. Where a judge passes on facts that it has collected, only the row."""
    tables = tomllib.loads((folder / "hints.toml").read_text())
    rows: dict[str, list[set[str]]] = {}
    for table in tables.values():
        for symptom, row in table.items():
            if isinstance(row, dict) and "differs" in row:
                row = {"expected": table.get("expected", "")} | row
                parsed = [part for text in sentences(row) for part in string.Formatter().parse(text)]
                rows.setdefault(symptom, []).append({field.split(".")[0] for _, field, _, _ in parsed if field})
    calls = 0
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id not in ("require", "differ"):
                continue
            symptom = node.args[node.func.id == "require"]
            if not isinstance(symptom, ast.Constant):
                continue
            calls += 1
            where = f"{path.name}, line {node.lineno}: {symptom.value}"
            assert symptom.value in rows, f"{where} has no words in hints.toml"
            given = {keyword.arg for keyword in node.keywords}
            if None in given or "how" in given:  # collected before, or of one sentence among several
                continue
            assert any(fields <= given for fields in rows[symptom.value]), f"{where} lacks {rows[symptom.value]}"
    assert calls > 5
