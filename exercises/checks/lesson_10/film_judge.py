"""Lesson 10, exercise 5: whether the frames of a step of FSDP come in an order that the rules allow, and which rule
they break."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from course_utils.show.units import counted

from ..judging import Answer, differ, require, some
from .cases import film_cases

SHOWN = 24  # frames; of a longer film only those around the wrong one
_FRAME = re.compile(r"(gather|forward|free|backward|reduce-scatter) (0|[1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Film:
    """The frames of one step, for so many blocks."""

    frames: Sequence[str]
    blocks: int
    reshard: bool

    def __str__(self) -> str:
        return f"{counted(self.blocks, 'block')}, reshard={self.reshard}"

    def at(self, frame: str) -> int:
        """The place of a frame that's there once."""
        return self.frames.index(frame)

    def computations(self) -> list[int]:
        """The places of all that's computed, forward and backward."""
        return [at for at, frame in enumerate(self.frames) if frame.startswith(("forward", "backward"))]

    def around(self, at: int) -> list[str]:
        """The film as lines to show, with ... where it's cut."""
        if not self.frames:
            return ["no frames"]
        first = max(0, min(at - SHOWN // 2, len(self.frames) - SHOWN))
        shown = list(self.frames[first : first + SHOWN])
        cut = first + SHOWN < len(self.frames)
        return [", ".join(["..."] * (first > 0) + shown + ["..."] * cut)]


@dataclass
class Whole:
    """A block from a gather to the free that follows, by their places in the film; `computes` are the places where it
    computes meanwhile. Without a free it's whole to the end."""

    block: int
    gather: int
    free: int | None = None
    computes: list[int] = field(default_factory=list)


def judge_film(answer: Answer) -> list[str]:
    cases = film_cases(random.Random())
    told = answer.on_ranks("film", ranks=1, given=cases)[0]
    for (blocks, reshard), frames in zip(cases, told["films"], strict=True):
        decide(frames, blocks, reshard)
    most = max(blocks for blocks, _ in cases)
    return [
        f"{len(cases)} films of 1 to {most} blocks: every block is whole when it computes",
        "each gather hides behind the computation before, except the first",
        "with `reshard` never more than two blocks are whole; without, nothing is gathered twice",
        "each gradient is scattered before the next one is computed, and the update comes last",
    ]


def decide(frames: Sequence[str], blocks: int, reshard: bool) -> None:
    """Raise the `Difference` of the first rule that the film breaks, if it breaks one."""
    film = Film(frames, blocks, reshard)
    _there(film)
    _computed_in_order(film)
    spans = _spans(film)
    _freed(film, spans)
    _room(film, spans)
    _one_ahead(film, spans)
    _scattered(film)
    _updated_last(film)


def _there(film: Film) -> None:
    """All frames are of the film, and those that come once are there once."""
    known = [_FRAME.fullmatch(frame) for frame in film.frames]
    others = [
        frame
        for frame, found in zip(film.frames, known, strict=True)
        if frame != "update" and not (found and int(found[2]) < film.blocks)
    ]
    shown = some([repr(frame[:40]) for frame in dict.fromkeys(others)])
    require(not others, "frames", shown=shown, last=film.blocks - 1, film=film)
    once = [f"{kind} {i}" for i in range(film.blocks) for kind in ("forward", "backward", "reduce-scatter")]
    times = Counter(film.frames)
    lacking = [frame for frame in [*once, "update"] if not times[frame]]
    require(not lacking, "lacking", film.around(0), frames=some(lacking), film=film)
    if twice := [frame for frame in [*once, "update"] if times[frame] > 1]:
        at = len(film.frames) - 1 - list(reversed(film.frames)).index(twice[0])
        differ("twice", film.around(at), frames=some(twice), film=film)


def _computed_in_order(film: Film) -> None:
    forwards = [f"forward {i}" for i in range(film.blocks)]
    backwards = [f"backward {i}" for i in range(film.blocks)]
    found = [film.frames[at] for at in film.computations()]
    right = forwards + backwards[::-1]
    if found == right:
        return
    place = next(i for i, (a, b) in enumerate(zip(found, right, strict=True)) if a != b)
    at = film.computations()[place]
    symptom = "backward order" if found == forwards + backwards else "order of computing"
    differ(symptom, film.around(at), found=found[place], right=right[place], film=film)


def _spans(film: Film) -> list[Whole]:
    """When which block is whole, in the order of the gathers."""
    spans: list[Whole] = []
    now: dict[int, Whole] = {}
    for at, frame in enumerate(film.frames):
        kind, _, number = frame.partition(" ")
        if kind in ("update", "reduce-scatter"):
            continue
        i = int(number)
        if kind == "gather":
            require(i not in now, "gathered twice", film.around(at), frame=frame, block=i, film=film)
            now[i] = Whole(i, at)
            spans.append(now[i])
        elif i not in now:
            _not_whole(film, at, kind, i, spans)
        elif kind == "free":
            now.pop(i).free = at
        else:
            now[i].computes.append(at)
    return spans


def _not_whole(film: Film, at: int, kind: str, i: int, spans: list[Whole]) -> NoReturn:
    """Say what's wrong with a frame that needs a whole block."""
    was = any(span.block == i for span in spans)
    symptom = "nothing to free" if kind == "free" else "no second gather" if was and kind == "backward" else "not whole"
    differ(symptom, film.around(at), how="freed" if was else "never", kind=kind, block=i, film=film)


def _freed(film: Film, spans: list[Whole]) -> None:
    """Each block is freed when it should be, and not otherwise."""
    for span in spans:
        require(span.computes, "for nothing", film.around(span.gather), block=span.block, film=film)
    for i in range(film.blocks):
        own = [span for span in spans if span.block == i]
        keeps = not film.reshard or i == film.blocks - 1
        if keeps and len(own) == 2:
            symptom = "last freed" if film.reshard else "freed in forward"
            differ(symptom, film.around(own[1].gather), block=i, film=film)
        if not keeps and len(own) == 1:
            differ("kept", film.around(own[0].computes[0]), block=i, film=film)
    for span in spans:
        _freed_in_time(film, span)


def _freed_in_time(film: Film, span: Whole) -> None:
    done = span.computes[-1]
    if span.free is None:
        differ("never freed", film.around(done), block=span.block, done=film.frames[done], film=film)
    following = next((at for at in film.computations() if at > done), None)
    if following is not None and span.free > following:
        facts = {"block": span.block, "done": film.frames[done], "next": film.frames[following], "film": film}
        differ("freed late", film.around(span.free), **facts)


def _room(film: Film, spans: list[Whole]) -> None:
    """With `reshard` at most two blocks are whole."""
    if not film.reshard:
        return
    for span in spans:
        whole = [s.block for s in spans if s.gather <= span.gather and (s.free is None or s.free > span.gather)]
        got = film.around(span.gather)
        require(len(whole) <= 2, "three whole", got, block=span.block, blocks=some(sorted(whole)), film=film)


def _one_ahead(film: Film, spans: list[Whole]) -> None:
    """Each gather comes one computation ahead."""
    places = film.computations()
    for span in spans:
        k, gather = places.index(span.computes[0]), film.frames[span.gather]
        require(k or not span.gather, "begin", film.around(0), first=film.frames[0], film=film)
        names = {"two": film.frames[places[k - 2]], "one": film.frames[places[k - 1]], "itself": film.frames[places[k]]}
        facts = {"gather": gather, "block": span.block, "film": film} | names
        require(not k or span.gather <= places[k - 1], "not hidden", film.around(span.gather), **facts)
        require(k < 2 or span.gather >= places[k - 2], "too early", film.around(span.gather), **facts)


def _scattered(film: Film) -> None:
    """Each gradient is reduce-scattered between its block's backward and the next."""
    for i in reversed(range(film.blocks)):
        at = film.at(f"reduce-scatter {i}")
        got = film.around(at)
        require(at > film.at(f"backward {i}"), "scattered early", got, block=i, film=film)
        late = i and at > film.at(f"backward {i - 1}")
        require(not late, "gradients pile up", got, block=i, before=i - 1, film=film)


def _updated_last(film: Film) -> None:
    at = film.at("update")
    after = list(film.frames[at + 1 :])
    require(not after, "update early", film.around(at), after=some(after), film=film)
