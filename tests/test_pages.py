"""What pages say to a bet: every branch has its words, and nonsense is no traceback."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from conftest import NONSENSE

from course_utils.show.pages import as_number, bet

WORDS = {"close": "good eye.", "over": "It's less, because they wait.", "under": "as most people say."}


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "You made no bet."),
        (None, "You made no bet."),
        (3, "You said 3 s: good eye."),
        (3.5, "You said 3.5 s: good eye."),
        (np.float32(2.5), "You said 2.5 s: good eye."),
        (Fraction(3, 1), "You said 3 s: good eye."),
        ("3", "You said 3 s: good eye."),
        ("3 s", "You said 3 s: good eye."),
        ("3s", "You said 3 s: good eye."),
        ("3e0", "You said 3 s: good eye."),
        (3.6, "You said 3.6 s. It's less, because they wait."),
        (12_000, "You said 12,000 s. It's less, because they wait."),
        (5000.0, "You said 5,000 s. It's less, because they wait."),
        (1e300, "You said 1e+300 s. It's less, because they wait."),
        ("12,000", "You said 12,000 s. It's less, because they wait."),
        (2.4, "You said 2.4 s: as most people say."),
        (0, "You said 0 s: as most people say."),
        (8, "You said 8 s. There are only two."),
        (9, "You said 9 s, and it's the other way round."),
        (10, "You said 10 s. It's less, because they wait."),
    ],
)
def test_a_bet_on_a_number(guess: Any, said: str) -> None:
    traps = {8: "There are only two.", (9, 10): ", and it's the other way round."}
    answer = bet(guess, 3, **WORDS, unit=" s", none="You made no bet.", traps=traps)
    assert answer == said


@pytest.mark.parametrize(
    "guess", [*NONSENSE, "1.2.3", "1,5", "nan", "1e999", float("-inf"), 10**400, -1e-9, "-3", (3, 4), print]
)
def test_a_bet_that_is_none_gets_a_kind_word(guess: Any) -> None:
    assert bet(guess, 3, **WORDS, kind="a number of hours") == "Your bet should be a number of hours."
    assert bet(guess, 3, **WORDS) == "Your bet should be a number." and as_number(guess) is None


def test_a_figure_draws_the_number_that_was_bet() -> None:
    assert as_number(None) is None and as_number(...) is None
    assert as_number("1,500.5 ms", " ms") == 1500.5 and as_number(0) == 0 and as_number(np.int64(3)) == 3


@pytest.mark.parametrize(
    ("guess", "said"), [(2, "good eye"), (5.9, "good eye"), (6, "It's less"), (1.9, "as most"), (0, "should be more")]
)
def test_what_is_right_may_be_a_range(guess: float, said: str) -> None:
    assert said in bet(guess, 4, **WORDS, within=(2, 6), positive=True, kind="more than that")


def test_a_bet_that_has_to_be_exact_may_be_wrong_in_one_way_only() -> None:
    exact = [bet(guess, 1, "you knew.", "It's one for each.", within=0, traps={1: "A trap."}) for guess in (0, 1, 2)]
    assert exact == ["You said 0. It's one for each.", "You said 1: you knew.", "You said 2. It's one for each."]


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ("nothing", "You said nothing: and that's it."),
        (" Nothing ", "You said nothing: and that's it."),
        ("error", "You said error. There's none."),
        ("an error!", "You said error. There's none."),
        ("an error, and no loss", "Your bet should be one of these: error, loss, nothing."),
        ("boom", "Your bet should be one of these: error, loss, nothing."),
        ("not an error", "Your bet should be one of these: error, loss, nothing."),
        ("I don't know, error?", "Your bet should be one of these: error, loss, nothing."),
        ("not sure", "Your bet should be one of these: error, loss, nothing."),
        ("errors", "Your bet should be one of these: error, loss, nothing."),
        (["error"], "Your bet should be one of these: error, loss, nothing."),
        (..., "Would you have noticed?"),
    ],
)
def test_a_bet_on_a_word(guess: Any, said: str) -> None:
    others = {"error": "There's none.", "loss": "it falls."}
    assert bet(guess, "nothing", "and that's it.", traps=others, none="Would you have noticed?") == said


@pytest.mark.parametrize("guess", NONSENSE)
def test_a_word_that_is_none(guess: Any) -> None:
    said = bet(guess, "sizes", "good eye.", traps={"counter": "it isn't."}, kind='"sizes" or "counter"')
    assert said == 'Your bet should be "sizes" or "counter".'


@pytest.mark.parametrize(("guess", "said"), [(8, "It's less"), (8.1, "Your bet should be 0 to 8."), (9e99, "Your bet")])
def test_a_bet_beyond_what_is_possible_is_none(guess: float, said: str) -> None:
    assert said in bet(guess, 3, **WORDS, kind="0 to 8", most=8)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (0.7, "You said 0.7%, so less than one of a hundred. Did you mean 70%?"),
        ("70%", "You said 70%: good eye."),
        ("0.7 %", "You said 0.7%, so less"),
        (0, "You said 0%. It's more"),
        (1, "You said 1%. It's more"),
    ],
)
def test_a_share_where_percent_are_asked_for(guess: Any, said: str) -> None:
    assert bet(guess, 72, "good eye.", "It's less.", "It's more.", unit="%").startswith(said)


def test_other_words_for_an_answer() -> None:
    also, others = {"stays": "stay", "none": 0, "the stay": "stay"}, {"fall": "it doesn't."}
    for guess in ("stay", "It stays.", "the stay", " STAYS "):
        assert bet(guess, "stay", "good eye.", traps=others, also=also) == "You said stay: good eye."
    assert bet("stays or fall", "stay", "good eye.", traps=others, also=also).startswith("Your bet should be")
    assert bet("none", 0, "good eye.", also=also) == "You said 0: good eye."
    assert bet("Never ", 3, **WORDS, traps={"never": "it's sooner.", 8: "no."}) == "You said never: it's sooner."
    assert bet("nev", 3, **WORDS, traps={"never": "it's sooner."}).startswith("Your bet should be")


def test_a_truth_of_zero_is_met_exactly() -> None:
    assert bet(0, 0, **WORDS) == "You said 0: good eye." and bet(1e-9, 0, **WORDS).startswith("You said 1e-09. It's")
    assert bet(3, 3, close="") == "You said 3."
