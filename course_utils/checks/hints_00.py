"""Lesson 00: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

PROFILE: Hints = {
    "warm-up": (
        "The first steps also allocate memory and start things up. Which steps go into your numbers?",
        "Cut them off each part's list first: `seconds[warm_up:]`.",
    ),
    "mean": (
        "One step in five was disturbed, and your typical time has moved. Which kind of average does not?",
        "Take `statistics.median(seconds[warm_up:])` of each part.",
    ),
    "share": (
        "A share says how large the part is, not what is won without it. How long is a step when the part takes no time?",
        "The step takes `total - longest` then, so it is `total / (total - longest)` times as fast.",
    ),
    "one over share": (
        "Take away half of a step: what is left is half of it, and it is twice as fast. Take away three quarters: four times. What do you divide by?",
        "By what is left: `total / (total - longest)`.",
    ),
    "other part": (
        "Compare the parts' typical times after the warm-up, one number for each part.",
        "`max(typical, key=typical.get)`, where `typical` maps a part to its median.",
    ),
    "no such part": ("Return the name as it stands in `times`.", "`max(typical, key=typical.get)` is the name."),
    "wrong factor": (
        "How long is a typical step, and how long is it without the part?",
        "`total = sum(typical.values())`, then `total / (total - typical[longest])`.",
    ),
    "changed": (
        "Something sorts or cuts the lists in place.",
        "`sorted(seconds)` and `seconds[warm_up:]` make new lists; `seconds.sort()` and `del` change yours.",
    ),
}

DEADLINE: Hints = {
    "all divided": (
        "Which part of the time gets shorter with more ranks, and which does not?",
        "Only `split_s / n` does. What is left for it is `deadline_s - serial_s`.",
    ),
    "impossible": (
        "With very many ranks the split part takes nearly no time. What is left, and does it meet the deadline?",
        "When `serial_s + split_s / n` must be at most the deadline and `serial_s` alone already is as long: `None` (unless there is nothing to split).",
    ),
    "possible": (
        "Look at a job without a split part, and at one whose deadline is long.",
        "When `serial_s + split_s <= deadline_s`, one rank is enough. Ask that first.",
    ),
    "given up": (
        "Many ranks are needed here, and that is not the same as no number. When does even a very large number not help?",
        "Only when `serial_s` alone is as long as the deadline. Otherwise it is `math.ceil(split_s / (deadline_s - serial_s))`, however many that are.",
    ),
    "too few": (
        "Put your number into serial_s + split_s / n. A result of 8.9 means that 8 are not enough.",
        "Round up: `math.ceil(split_s / (deadline_s - serial_s))`.",
    ),
    "too many": (
        "The deadline may be met exactly. Try one rank less in the formula.",
        "`math.ceil(split_s / (deadline_s - serial_s))` is enough, without one more; and one rank where that is 0.",
    ),
    "no rank": ("A job needs at least one rank.", "`max(1, ...)` around the number."),
    "endless": (
        "A loop that tries 1, 2, 3 ... never ends when no number is enough.",
        "Ask for the impossible before the loop: with the serial part as long as the deadline and something to split, return None.",
    ),
    "raised ZeroDivisionError": (
        "What is left for the split part when the serial part takes the whole deadline?",
        "Nothing. Return before you divide: 1 when there is nothing to split, otherwise None.",
    ),
}

TWO_RUNS: Hints = {
    "first on one": (
        "The first run need not be on one rank. Write down the two equations with n1 and n2 in them.",
        "t1 = serial + split / n1 and t2 = serial + split / n2: subtract them, and `split = (t1 - t2) / (1 / n1 - 1 / n2)`.",
    ),
    "below zero": (
        "More than n times as fast, or slower on more ranks: what do the equations give then?",
        "If serial would be below zero, it is 0 and split is `n1 * t1`; if split would be, it is 0 and serial is `t1`.",
    ),
    "limit": (
        "You cut one part off at zero. Is the other one still that of the equations? Put both into serial + split / n1.",
        "With serial 0, split is `n1 * t1`; with split 0, serial is `t1`.",
    ),
    "swapped": ("Look at the order in the docstring.", "Return `(serial_s, split_s)`."),
    "fractions": ("The result is in seconds: the parts of the time that one rank would take.", "Return the two parts themselves, not divided by their sum."),
    "wrong parts": (
        "Put your two parts into serial + split / n for both runs, and compare with the times.",
        "`split = (t1 - t2) / (1 / n1 - 1 / n2)`, and `serial = t1 - split / n1`.",
    ),
    "raised ZeroDivisionError": ("Which of your numbers can be zero?", "Divide by `1 / n1 - 1 / n2`, which is not zero for two different numbers of ranks."),
}

CLOCK: Hints = {
    "not after": (
        "`work()` comes back at once. What has your clock measured when it is stopped right after?",
        "For each call: start the clock, `work()`, `wait()`, and only then stop it.",
    ),
    "not before": (
        "The device may still be busy when you start: with what was in its queue before, or with the warm-up. Who pays for that?",
        "Call `wait()` once after the warm-up and before the first timed call, also when there is no warm-up.",
    ),
    "stopped early": ("Where do you read the clock the second time, before or after `wait()`?", "After it: `wait()` belongs inside the measured time."),
    "calls": (
        "How often is `work` called in all, and how many of these calls are timed?",
        "Two loops: `warm_up` calls without a clock, then `repeats` calls with one.",
    ),
    "mean": ("One call was disturbed, and it shows in your result.", "Keep the time of each call in a list, and return `statistics.median` of it."),
    "min": ("The shortest call is the luckiest.", "Return the median of all timed calls."),
    "max": ("The longest call is the one that was disturbed.", "Return the median of all timed calls."),
    "sum": ("One number for a typical call is asked for.", "Keep the time of each call in a list, and return `statistics.median` of it."),
    "warm-up": ("Calls that are not to be counted are among your times.", "Start the list of times after the warm-up."),
}
