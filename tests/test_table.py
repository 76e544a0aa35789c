"""The one kind of table for runs, machines, diagnoses and residuals."""

from __future__ import annotations

import re
from typing import Any

import pytest

from course_utils import claim, more_checks
from course_utils.cells.claims import ClaimError
from course_utils.figures.canvas import Figure, new_axes
from course_utils.show.pages import figure_first, say
from course_utils.show.table import (
    ASIDE,
    GOOD,
    INK_SHARE,
    LINE_LETTERS,
    MEASURED,
    PREDICTED,
    PROBLEM,
    WARNING,
    Bar,
    Cell,
    ShowsTable,
    Table,
    ink,
    print_lines,
)


def test_text_has_columns_numbers_to_the_right_and_lines_below_each_other() -> None:
    rows = [("a", "1", "x"), ("long", "10.5", Cell("found\n→ `cure`", GOOD, bold=True))]
    text = str(Table(("what", "how much", ""), rows, "lrl", "Above", "below"))
    assert text.splitlines() == [
        "Above",
        "what  how much",
        "a            1  x",
        "long      10.5  found",
        "                → `cure`",
        "below",
    ]


def test_a_table_without_head_or_rows() -> None:
    assert str(Table((), [("a", "b")], "ll")) == "a  b" and str(Table((), [], "ll", "nothing")) == "nothing"
    assert "<thead>" not in Table((), [("a", "b")], "ll")._repr_html_()
    assert str(Table(("a", "b"), [], "ll")) == "a  b"


def test_the_page_is_escaped_and_has_code_and_new_lines() -> None:
    page = Table(("<h>",), [("<b>`x<y`\nz",)], "l", "<c>", "run `make`")._repr_html_()
    for words in ("&lt;h&gt;", "&lt;b&gt;<code>x&lt;y</code><br>z", "&lt;c&gt;", "run <code>make</code>"):
        assert words in page
    assert not re.search("<[bch]>", page)


def test_bars_go_to_both_sides_and_the_longest_sets_the_scale() -> None:
    table = Table(("", "less│more"), [("a", Bar(-0.5)), ("b", Bar(0.25)), ("c", Bar(0.0))], "lb")
    head, a, b, c = str(table).splitlines()
    middle = head.index("│")
    assert head == f"{'':3}{'less':>12}│more" and a == f"a  {'█' * 12}│" and b[middle:] == "│" + "█" * 6
    assert c[middle:] == "│"
    assert re.findall(r"width:([\d.]+)px;height:11px;background:", table._repr_html_()) == ["70.0", "35.0"]
    assert "█" not in str(Table(("", "x│y"), [("a", Bar(0))], "lb")), "bars of nothing have no length"


def test_a_row_of_another_length_is_named() -> None:
    with pytest.raises(ValueError, match=r"a row has 1 cells, but align has letters for 2: \('a',\)"):
        Table((), [("a",)], "ll")


def test_words_can_be_read_on_white_and_in_a_dark_theme() -> None:
    def light(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def mixed(color: str, text: str) -> str:  # as `ink` does
        channels = ((int(c[i : i + 2], 16) for c in (color, text)) for i in (1, 3, 5))
        return "#" + "".join(f"{round((INK_SHARE * a + (100 - INK_SHARE) * b) / 100):02x}" for a, b in channels)

    for color in (GOOD, WARNING, PROBLEM, ASIDE, MEASURED, PREDICTED):
        on_white = 1.05 / (light(mixed(color, "#212121")) + 0.05)  # JupyterLab's text on its light theme
        on_black = (light(mixed(color, "#ffffff")) + 0.05) / (light("#111111") + 0.05)
        assert min(on_white, on_black) > 4.5, f"{color}: {on_white:.1f} on white, {on_black:.1f} in the dark"
        border = min(1.05 / (light(color) + 0.05), (light(color) + 0.05) / (light("#111111") + 0.05))
        assert border > 3, f"{color}: {border:.1f} as it is"
        assert f"{color} {INK_SHARE}%,currentColor" in ink(color)
    page = Table(("a",), [("1",)], "r", "above", "below")._repr_html_()
    assert "color:#" not in page, "other words have the colour of the page"


def test_what_shows_a_table_does_so_as_text_and_as_a_page() -> None:
    class Two(ShowsTable):
        def table(self) -> Table:
            return Table((), [("two", "2")], "lr")

    assert repr(Two()) == "two  2" and Two()._repr_html_() == Two().table()._repr_html_()


def test_sentences_are_printed_in_lines_that_jupyterlab_need_not_break(capsys: pytest.CaptureFixture[str]) -> None:
    words = "two ranks would need gpus-per-rank=2 " * 20
    print_lines(words)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5 and max(map(len, lines)) <= LINE_LETTERS and " ".join(lines) == words.strip()


def test_a_sentence_of_a_lesson_is_text_and_html(capsys: pytest.CaptureFixture[str]) -> None:
    said = "1 < 2, " * 30 + "and so on"
    say(said)
    assert capsys.readouterr().out == said + "\n", "whoever tests or reads a log sees it as it was said"
    say("")
    say("Two of three.  Well judged. ")
    assert capsys.readouterr().out == "Two of three. Well judged.\n", "what wasn't guessed leaves no gap and no line"
    shown: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("course_utils.show.pages.show", shown.append)
        say("is 1 < 2, `x`?")
    assert "is 1 &lt; 2, <code>x</code>?</div>" in shown[0]._repr_html_()


@figure_first
def a_result(fine: bool = True) -> Figure:
    say("It took 1.5 s, and not 2. (Run it once more.) You said 3.")
    claim("two are faster", fine)
    say("That's `much`. 8 GPUs are 1 < 2.")
    more_checks({"all is well": True})
    return Figure(new_axes()[0], "a plot")


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a notebook displays, in order."""
    found: list[Any] = []
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", found.append)
    return found


def test_in_a_notebook_a_result_is_its_figure_then_three_sentences_then_the_ticks(displayed: list[Any]) -> None:
    figure = a_result()
    assert displayed == [], "all of it comes with the figure, below it"
    bundle, _ = figure._repr_mimebundle_()
    page = bundle["text/html"]
    order = ["<img", "It took 1.5 s", "You said 3.</div>", "more</summary>", "<code>much</code>. 8 GPUs are 1 &lt; 2.",
             "two are faster", "1 more check passed"]  # fmt: skip
    assert [page.index(words) for words in order] == sorted(page.index(words) for words in order)
    assert page.count("It took") == 1 and bundle["text/plain"].splitlines()[:2] == [
        "a plot", "It took 1.5 s, and not 2. (Run it once more.) You said 3."
    ]  # fmt: skip
    assert repr(figure) == figure.summary == "a plot"
    say("later")
    assert [str(thing) for thing in displayed] == ["later"], "what comes after it is displayed as before"


def test_a_result_that_fails_in_a_notebook_shows_what_it_had_said(displayed: list[Any]) -> None:
    with pytest.raises(ClaimError, match="two are faster"):
        a_result(fine=False)
    say("later")
    assert [str(thing)[:7] for thing in displayed] == ["It took", "later"]


def test_elsewhere_a_result_prints_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    assert not list(a_result().below)
    assert [line[:8] for line in capsys.readouterr().out.splitlines()] == [
        "It took ",
        "✓ two ar",
        "That's `",
        "✓ 1 more",
    ]
