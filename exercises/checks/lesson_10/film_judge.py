"""Lesson 10, exercise 5: whether the frames of a step of FSDP come in an order that the rules allow, and which rule
they break."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from course_utils.show.units import counted

from ..judging import Answer, Difference, some
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
    expected = f"frames such as 'gather 0' and 'update', of the blocks 0 to {film.blocks - 1}"
    if others:
        shown = some([repr(frame[:40]) for frame in dict.fromkeys(others)])
        raise Difference("frames", f"The film has {shown}, and there's no such frame ({film}).", expected)
    once = [f"{kind} {i}" for i in range(film.blocks) for kind in ("forward", "backward", "reduce-scatter")]
    counted = Counter(film.frames)
    if lacking := [frame for frame in [*once, "update"] if not counted[frame]]:
        raise Difference("lacking", f"The film lacks {some(lacking)} ({film}).", "each once", film.around(0))
    if twice := [frame for frame in [*once, "update"] if counted[frame] > 1]:
        at = len(film.frames) - 1 - list(reversed(film.frames)).index(twice[0])
        raise Difference("twice", f"The film has {some(twice)} more than once ({film}).", "each once", film.around(at))


def _computed_in_order(film: Film) -> None:
    forwards = [f"forward {i}" for i in range(film.blocks)]
    backwards = [f"backward {i}" for i in range(film.blocks)]
    found = [film.frames[at] for at in film.computations()]
    right = forwards + backwards[::-1]
    if found == right:
        return
    place = next(i for i, (a, b) in enumerate(zip(found, right, strict=True)) if a != b)
    at = film.computations()[place]
    raise Difference(
        "backward order" if found == forwards + backwards else "order of computing",
        f"`{found[place]}` comes where `{right[place]}` should be computed ({film}).",
        "forward from block 0 to the last, then backward from the last to block 0",
        film.around(at),
    )


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
            if i in now:
                raise Difference(
                    "gathered twice",
                    f"`{frame}` comes while block {i} is whole ({film}).",
                    "a gather only for a block that isn't whole",
                    film.around(at),
                )
            now[i] = Whole(i, at)
            spans.append(now[i])
        elif i not in now:
            raise _not_whole(film, at, kind, i, spans)
        elif kind == "free":
            now.pop(i).free = at
        else:
            now[i].computes.append(at)
    return spans


def _not_whole(film: Film, at: int, kind: str, i: int, spans: list[Whole]) -> Difference:
    """What's wrong with a frame that needs a whole block."""
    if kind == "free":
        return Difference(
            "nothing to free",
            f"`free {i}` comes while block {i} isn't whole ({film}).",
            "one free for each gather",
            film.around(at),
        )
    was = any(span.block == i for span in spans)
    return Difference(
        "no second gather" if was and kind == "backward" else "not whole",
        f"`{kind} {i}` comes while block {i} isn't whole: it was {'freed' if was else 'never gathered'} ({film}).",
        f"`gather {i}` before `{kind} {i}`",
        film.around(at),
    )


def _freed(film: Film, spans: list[Whole]) -> None:
    """Each block is freed when it should be, and not otherwise."""
    for span in spans:
        if not span.computes:
            raise Difference(
                "for nothing",
                f"Block {span.block} is gathered, and doesn't compute before it's freed, or the film ends ({film}).",
                "a gather only for a computation that follows",
                film.around(span.gather),
            )
    for i in range(film.blocks):
        own = [span for span in spans if span.block == i]
        keeps = not film.reshard or i == film.blocks - 1
        if keeps and len(own) == 2:
            why = "`reshard` is False" if not film.reshard else "it's the last block, which backward needs at once"
            raise Difference(
                "last freed" if film.reshard else "freed in forward",
                f"Block {i} is freed after its forward, and {why} ({film}).",
                f"`free {i}` after `backward {i}`, and not before",
                film.around(own[1].gather),
            )
        if not keeps and len(own) == 1:
            raise Difference(
                "kept",
                f"Block {i} stays whole from its forward to its backward ({film}).",
                f"`free {i}` after `forward {i}`, before the next block computes",
                film.around(own[0].computes[0]),
            )
    for span in spans:
        _freed_in_time(film, span)


def _freed_in_time(film: Film, span: Whole) -> None:
    done = span.computes[-1]
    if span.free is None:
        raise Difference(
            "never freed",
            f"Block {span.block} isn't freed after `{film.frames[done]}` ({film}).",
            f"`free {span.block}` then, before the next block computes",
            film.around(done),
        )
    following = next((at for at in film.computations() if at > done), None)
    if following is not None and span.free > following:
        raise Difference(
            "freed late",
            f"`free {span.block}` comes only after `{film.frames[following]}` ({film}).",
            f"between `{film.frames[done]}` and `{film.frames[following]}`",
            film.around(span.free),
        )


def _room(film: Film, spans: list[Whole]) -> None:
    """With `reshard` at most two blocks are whole."""
    if not film.reshard:
        return
    for span in spans:
        whole = [s.block for s in spans if s.gather <= span.gather and (s.free is None or s.free > span.gather)]
        if len(whole) > 2:
            raise Difference(
                "three whole",
                f"From `gather {span.block}` on the blocks {some(sorted(whole))} are whole at once ({film}).",
                "at most two: one that computes, and the next",
                film.around(span.gather),
            )


def _one_ahead(film: Film, spans: list[Whole]) -> None:
    """Each gather comes one computation ahead."""
    places = film.computations()
    for span in spans:
        k, gather = places.index(span.computes[0]), film.frames[span.gather]
        if not k and span.gather:
            raise Difference(
                "begin",
                f"The film begins with `{film.frames[0]}` ({film}).",
                "`gather 0` first: everybody waits for it",
                film.around(0),
            )
        if k and span.gather > places[k - 1]:
            raise Difference(
                "not hidden",
                f"`{gather}` comes after `{film.frames[places[k - 1]]}`: the GPU waits for it, and computes nothing"
                f" meanwhile ({film}).",
                f"`{gather}` before `{film.frames[places[k - 1]]}`, which hides it",
                film.around(span.gather),
            )
        if k > 1 and span.gather < places[k - 2]:
            raise Difference(
                "too early",
                f"`{gather}` comes before `{film.frames[places[k - 2]]}`, though block {span.block} computes only at"
                f" `{film.frames[places[k]]}` ({film}).",
                f"between `{film.frames[places[k - 2]]}` and `{film.frames[places[k - 1]]}`",
                film.around(span.gather),
            )


def _scattered(film: Film) -> None:
    """Each gradient is reduce-scattered between its block's backward and the next."""
    for i in reversed(range(film.blocks)):
        at = film.at(f"reduce-scatter {i}")
        if at < film.at(f"backward {i}"):
            raise Difference(
                "scattered early",
                f"`reduce-scatter {i}` comes before `backward {i}` ({film}).",
                "after it: backward computes the gradient",
                film.around(at),
            )
        if i and at > film.at(f"backward {i - 1}"):
            raise Difference(
                "gradients pile up",
                f"`reduce-scatter {i}` comes only after `backward {i - 1}`: two whole gradients lie there ({film}).",
                f"between `backward {i}` and `backward {i - 1}`",
                film.around(at),
            )


def _updated_last(film: Film) -> None:
    at = film.at("update")
    if after := list(film.frames[at + 1 :]):
        raise Difference(
            "update early", f"After `update` there's still {some(after)} ({film}).", "`update` last", film.around(at)
        )
