"""The first page as HTML: where to go on, the lessons and what's done of each, and a place for the machine's state.

One column that works at any width and zoom, in the browser's light or dark scheme, with nothing from elsewhere.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

from ..show.units import counted
from .lessons import Lesson
from .progress import Done

FINISHED = 0.9  # of the core's cells: few learners run every last one

Address = Callable[[str], str]  # of a notebook, by its path below the course's root


def finished(lesson: Lesson, done: Done) -> bool:
    """Whether nearly all of the core has run."""
    return done.cells > 0 and done.cells >= FINISHED * len(lesson.core)


def current(lessons: Sequence[Lesson], done: Mapping[str, Done]) -> Lesson | None:
    """The lesson to go on with: the last one worked on, or once that's finished the first of those that aren't. None
    when all are."""
    last = max(lessons, key=lambda lesson: done[lesson.number].last)  # the first of all, if none has begun
    return next((lesson for lesson in (last, *lessons) if not finished(lesson, done[lesson.number])), None)


def render(lessons: Sequence[Lesson], done: Mapping[str, Done], address: Address | None, machine: str) -> str:
    """The whole page. `address` is None where the server doesn't show the lessons' folder; `machine` is the address
    that answers with the machine's state."""
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    total = sum(lesson.minutes for lesson in lessons)
    parts = {
        "summary": f"{len(lessons)} lessons, about {round(total / 60)} hours without the exercises",
        "next": _next(lessons, done, address) if lessons else "",
        "lessons": "\n".join(_row(lesson, done[lesson.number], address) for lesson in lessons),
        "machine": html.escape(machine, quote=True),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page)


def _next(lessons: Sequence[Lesson], done: Mapping[str, Done], address: Address | None) -> str:
    """The one thing to click."""
    if address is None:
        return (
            "<p>This server doesn't show the folder with the lessons. Start the course with <code>python -m"
            " course_utils.lab</code> instead.</p>"
        )
    lesson = current(lessons, done)
    if lesson is None:
        return "<p>You've finished the core of every lesson. Their deeper sections and exercises are below.</p>"
    mine = done[lesson.number]
    begun = any(each.last for each in done.values())
    verb = "Continue" if mine.last else "Next" if begun else "Start"
    left = f"{mine.cells} of {len(lesson.core)} cells done" if mine.cells else _minutes(lesson)
    return (
        f'<a class="go" href="{address(lesson.path)}"><b>{verb}</b> <span>{_name(lesson)}</span></a>'
        f'<p class="about">{_plain(lesson.question)} <span class="quiet">{left}</span></p>'
    )


def _row(lesson: Lesson, done: Done, address: Address | None) -> str:
    def link(path: str, text: str) -> str:
        return f'<a href="{address(path)}">{text}</a>' if address and path else text

    facts = []
    if done.cells:
        facts.append(_bar(f"{done.cells} of {len(lesson.core)} cells", done.cells, len(lesson.core)))
    if lesson.exercises:
        count = len(lesson.exercises)
        words = link(lesson.exercises_path, f"{counted(count, 'exercise')}")
        if done.solved:
            facts.append(_bar(f"{len(done.solved)} of {words} solved", len(done.solved), count))
        else:
            facts.append(f"<span>{words}</span>")
    if done.claims:
        facts.append(f"<span>{counted(done.claims, 'claim')} seen</span>")
    tick = ' <span class="tick" title="core finished">✓<i> finished</i></span>' if finished(lesson, done) else ""
    return (
        f'<li><span class="number">{lesson.number}</span><div><h3>{link(lesson.path, _plain(lesson.title))}{tick}</h3>'
        f'<p class="question">{_plain(lesson.question)}</p><p class="facts">{"".join(facts)}</p></div>'
        f'<span class="minutes">{_minutes(lesson)}</span></li>'
    )


def _bar(words: str, value: int, of: int) -> str:
    return f'<label><progress value="{value}" max="{of}"></progress>{words}</label>'


def _name(lesson: Lesson) -> str:
    return f"{lesson.number} · {_plain(lesson.title)}"


def _minutes(lesson: Lesson) -> str:
    return f"{lesson.minutes} min" if lesson.minutes else ""


def _plain(markdown: str) -> str:
    """A line of Markdown without its marks, as HTML."""
    return html.escape(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("*", ""))
