"""The published results: every case is complete, and the speed-ups drawn in lesson 04 follow from them."""

import json

import pytest

from course_utils import published


def test_every_case_is_whole_and_named_once():
    cases = published.load()
    assert len(cases) >= 73
    assert len({case.id for case in cases}) == len(cases)
    for case in cases:
        assert case.source and case.unit and case.cls, case.id
        assert case.observed > 0, case.id
        assert (case.expected_rel_err is None) == (case.role == "bound"), case.id


def test_one_case_a_line_so_that_changes_can_be_read():
    lines = published.PATH.read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[-1]) == ("[", "]")
    assert [json.loads(line.rstrip(","))["id"] for line in lines[1:-1]] == [case.id for case in published.load()]


def test_cases_by_class_and_by_prefix():
    assert {case.cls for case in published.cases("zero")} == {"zero"}
    assert {case.id for case in published.cases(prefix="loader-")} == {"loader-w0", "loader-w1", "loader-w2"}
    with pytest.raises(KeyError, match="classes are .*allreduce.*zero"):
        published.cases("nothing")


def test_ddp_scaling_divides_the_rate_by_that_of_one_gpu():
    points = {point.label: point for point in published.ddp_scaling()}
    resnet = points["ResNet-50, fp32, 8 V100"]
    assert (resnet.n, resnet.speedup) == (8, pytest.approx(2855 / 367))
    assert "DeepLearningExamples" in resnet.source
    assert all(1 < p.speedup <= p.n for p in points.values())
    lowest = {label: p for label, p in points.items() if p.speedup < 6.8}  # of NVIDIA's tables, which lesson 00 cites
    assert {label: (p.n, round(p.speedup, 2)) for label, p in lowest.items()} == {
        "ResNet-50, mixed precision, 8 A100": (8, 6.73),
        "ResNeXt-101, mixed precision, 8 A100": (8, 6.54),
    }
    assert all("DeepLearningExamples" in p.source and "README.md" in p.source for p in lowest.values())


def test_a_file_with_an_unknown_role_is_refused(tmp_path):
    case = {
        "id": "x",
        "cls": "zero",
        "source": "s",
        "inputs": {},
        "observed": 1,
        "unit": "s",
        "expected_rel_err": 0.1,
        "role": "guesswork",
    }
    path = tmp_path / "published.json"
    path.write_text(json.dumps([case]))
    with pytest.raises(ValueError, match="x: the role must be one of"):
        published.load(path)


def test_a_missing_file_says_where_it_belongs(tmp_path):
    with pytest.raises(FileNotFoundError, match="course's folder"):
        published.load(tmp_path / "published.json")
