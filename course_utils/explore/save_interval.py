"""How often to save a run that fails now and then: a stretch of it as a timeline, and the time lost by interval."""

from __future__ import annotations

import math
import random
from typing import Any

from .. import predict
from ..figures.canvas import BLUE, GREEN, INK, ORANGE, PURPLE, RUST, VERMILION
from ..show.units import number
from .controls import Control
from .drawing import Drawing, View
from .explorer import Explorer, Found, Question, Values, opening
from .parts import LEFT, WIDE

# A job that saves and fails now and then, moment by moment: what `explore.checkpoints()` draws.


def stretch(work: float, save: float, failure: float, restart: float, length: float) -> list[tuple[str, float, float]]:
    """What a job does from 0 to `length`, as (what, start, end): work between saves, saves, and after a failure a
    restart; what wasn't saved by then is lost. All in one unit of time."""
    dice, now, found = random.Random(3), 0.0, []
    fails = dice.expovariate(1 / failure)
    while now < length:
        ready = now + work + save
        if fails >= ready:
            found += [("work that counts", now, now + work), ("saving", now + work, ready)]
            now = ready
            continue
        found += [("work lost", now, fails)] if fails > now else []
        now = max(now, fails)
        found.append(("restart", now, now + restart))
        now += restart
        fails = now + dice.expovariate(1 / failure)
    return [(what, start, min(end, length)) for what, start, end in found if start < length]


def time_words(seconds: float) -> str:
    for size, unit in ((2 * 86400, "days"), (2 * 3600, "h"), (120, "min")):
        if seconds >= size:
            each = {"days": 86400, "h": 3600, "min": 60}[unit]
            return f"{number(float(f'{seconds / each:.2g}') if seconds / each < 10 else round(seconds / each))} {unit}"
    return f"{number(float(f'{seconds:.2g}'))} s"


def share_words(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0995 else f"{100 * share:.2g}%"


CONTROLS = (
    Control("minutes", "save every", 60, "minutes of work between two saves", 0.5, 1440, "min", base=10, whole=False),
    Control("save_s", "a save takes", 60, "seconds that the training stands still", 1, 1800, "s", base=10, whole=False),
    Control("failures", "failures a day", 7.8, "of the whole job. Llama 3 on 16,384 GPUs: 419 in 54 days", 0.01, 200,
            base=10, whole=False),
    Control("restart_min", "a restart takes", 10, "minutes until it trains again: noticing, starting, loading", 0, 120,
            "min", whole=False, more=True),
)  # fmt: skip
LEAVES_OUT = (
    "saving in the background, which makes a save as short as a copy; saves that fail; failures that come in groups, as"
    " after maintenance. Failures come at any moment, with the same chance. The timeline is one throw of dice, the same"
    " each time; the curve is the average: Daly, FGCS 22 (2006), equation 20. Young's interval, sqrt(2 x save x time"
    " between failures), CACM 17 (1974), is its first order, and Daly's equation 37 corrects it for long saves."
)
_LOOKS = {
    "work that counts": (BLUE, ""),
    "saving": (PURPLE, "..."),
    "work lost": (VERMILION, "///"),
    "restart": ("#BDBDBD", ""),
}
LOW, HIGH = 0.5, 1440.0  # minutes on the axis


def render(values: Values, found: Found, answered: bool = True) -> View:
    """A stretch of the job with a handful of failures, and the share of time that is lost, for every interval."""
    work, save, failure = 60 * values["minutes"], values["save_s"], 86400 / values["failures"]
    restart = 60 * values["restart_min"]
    drawing = Drawing(316 if answered else 120)
    lost = predict.lost_to_failures(work, save, failure, restart)
    young, daly = predict.save_interval(save, failure), predict.daly_interval(save, failure)
    least = predict.lost_to_failures(daly, save, failure, restart)
    title = f"Saving every {time_words(work)} loses {share_words(lost)} of the time;"
    title += f" every {time_words(daly)}, {share_words(least)}"
    drawing.text(12, 24, title if answered else "How often should this job save?", 15, bold=True)
    length = min(5 * failure, 120 * (work + save))
    drawn = length / WIDE
    x = LEFT
    for what, (fill, hatch) in _LOOKS.items():
        drawing.bar(x, 40, 16, 12, fill, hatch)
        drawing.text(x + 21, 51, what, 12)
        x += 42 + 6.8 * len(what)
    spans = stretch(work, save, failure, restart, length)
    if not answered:  # the failures, and nothing that would give the answer away
        spans = [("work that counts", 0.0, length)]
    drawing.text(LEFT - 8, 80, "one job", 12, "end")
    for what, start, end in spans:
        fill, hatch = _LOOKS[what]
        drawing.bar(LEFT + start / drawn, 62, (end - start) / drawn, 26, fill, hatch if end - start > 4 * drawn else "",
                    f"{what}: {time_words(end - start)}", edge_width=0)  # fmt: skip
    for share in range(6):
        drawing.text(
            LEFT + WIDE * share / 5,
            104,
            time_words(length * share / 5) if share else "0",
            11,
            "end" if share == 5 else "middle",
        )
    if not answered:
        return View.of(drawing, "The job without saves. What it loses shows after your guess.")
    _curve(drawing, 122, (save, failure, restart), work, young, daly)
    floor = predict.lost_to_failures(1e-6 * failure, 0.0, failure, restart)
    said = (
        f"A failure every {time_words(failure)}, and {time_words(save)} for a save: every {time_words(work)} loses"
        f" {share_words(lost)} of the time. Young's interval is {time_words(young)}, Daly's {time_words(daly)},"
        f" which loses {share_words(least)}; of that {share_words(floor)} goes into restarts, whatever you do."
    )
    return View.of(drawing, said)


def _curve(drawing: Drawing, y: float, job: tuple[float, float, float], work: float, young: float, daly: float) -> None:
    """The share lost, by interval."""
    low, tall = y + 150, 112.0
    xs = [LOW * (HIGH / LOW) ** (i / 120) for i in range(121)]
    lost = [predict.lost_to_failures(60 * m, *job) for m in xs]
    now = predict.lost_to_failures(work, *job)
    top = min(1.0, max(0.02, 1.25 * now, 3.5 * min(lost)))

    def at(seconds: float, share: float) -> tuple[float, float]:
        place = math.log(min(max(seconds / 60, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
        return LEFT + WIDE * place, low - tall * min(share, top) / top

    drawing.text(12, y + 14, "time lost, by interval", 12)
    drawing.line([(LEFT, low - tall), (LEFT, low), (LEFT + WIDE, low)], "#888888", 1)
    for share in (0, top / 2, top):
        drawing.text(LEFT - 8, low - tall * share / top + 4, share_words(share), 11, "end")
    for minutes in (1, 5, 15, 60, 240, 1440):
        drawing.text(at(60 * minutes, 0)[0], low + 17, time_words(60 * minutes), 11, "middle")
    shown = [(m, share) for m, share in zip(xs, lost, strict=True) if share <= top * 1.02]
    drawing.line([at(60 * m, share) for m, share in shown], ORANGE, 2.4, "7 4")
    drawing.text(LEFT + WIDE, y + 14, "- - predicted   ● yours   | Young   ○ Daly", 12, "end")
    x = at(young, 0)[0]
    drawing.line([(x, low - tall), (x, low)], INK, 1.4, "2 3")
    drawing.dot(*at(daly, predict.lost_to_failures(daly, *job)), GREEN, 7, hollow=True)
    drawing.dot(*at(work, now), RUST, 5)


def checkpoints(**settings: Any) -> Explorer:
    """How often to save. `settings` are minutes, save_s, failures and restart_min."""
    start = {control.name: control.default for control in CONTROLS}
    job = (start["save_s"], 86400 / start["failures"], 60 * start["restart_min"])
    every = {"every 2 minutes": 120.0, "every 20 minutes": 1200.0, "every 3 hours, as often as it fails": 10800.0}

    def judge(guess: str | None) -> str:
        lost = {words: predict.lost_to_failures(seconds, *job) for words, seconds in every.items()}
        right = min(lost, key=lambda words: lost[words])
        first = opening(guess, right, f"Best is {right}. ")
        told = ", ".join(f"{words.partition(',')[0]} {share_words(share)}" for words, share in lost.items())
        return (
            f"{first}Lost are: {told}. The valley is flat: how far can you go from the best, and lose a percent more?"
        )

    text = (
        "Llama 3 was trained on 16,384 GPUs, and something failed every 3 hours. If a save stops the training for a"
        " minute and a restart takes ten, how often should it save?"
    )
    question = Question(text, tuple(every), judge)
    return Explorer("checkpoints", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question)
