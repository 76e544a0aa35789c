"""What pages say to a bet: every branch has its words, and nonsense is no traceback."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from course_utils.pages import bet

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
        ("12,000", "You said 12,000 s. It's less, because they wait."),
        (2.4, "You said 2.4 s: as most people say."),
        (0, "You said 0 s: as most people say."),
        (-1, "You said -1 s: as most people say."),
        (8, "You said 8 s. There are only two."),
    ],
)
def test_a_bet_on_a_number(guess: Any, said: str) -> None:
    answer = bet(guess, 3, **WORDS, unit=" s", none="You made no bet.", traps={8: "There are only two."})
    assert answer == said


@pytest.mark.parametrize(
    "guess", ["", "a few", "1.2.3", "nan", float("nan"), float("-inf"), 10**400, True, 2j, [3], {}, object(), print]
)
def test_a_bet_that_is_none_gets_a_kind_word(guess: Any) -> None:
    assert bet(guess, 3, **WORDS, kind="a number of hours") == "Your bet should be a number of hours."


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ("nothing", "You said nothing: and that's it."),
        (" Nothing ", "You said nothing: and that's it."),
        ("error", "You said error. There's none."),
        ("boom", "Your bet should be one of these: error, loss, nothing."),
        (3, "Your bet should be one of these: error, loss, nothing."),
        (..., "Would you have noticed?"),
    ],
)
def test_a_bet_on_a_word(guess: Any, said: str) -> None:
    others = {"error": "There's none.", "loss": "it falls."}
    assert bet(guess, "nothing", "and that's it.", traps=others, none="Would you have noticed?") == said


def test_a_truth_of_zero_is_met_exactly() -> None:
    assert bet(0, 0, **WORDS) == "You said 0: good eye." and bet(1e-9, 0, **WORDS).startswith("You said 1e-09. It's")
    assert bet(3, 3, close="") == "You said 3."
