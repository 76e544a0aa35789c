"""An explorer: settings, a pure function that draws them, and what runs when somebody wants to see it for real.

In a notebook that runs it shows controls. The same output carries a picture for pages that run nothing: the book,
nbviewer, a saved copy. In a terminal it's a sentence.

JupyterLab, when it opens a saved notebook, looks for the controls and finds none: their kernel has ended. It would show
an error. So there a second output follows, hidden until that happens: the picture, and what to run.
"""

from __future__ import annotations

import html
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..failure.errors import LaunchError, RankError
from ..launching.under_the_cell.live import Known, LiveView, lines
from ..show.notebook import notebook_kernel
from ..show.table import ASIDE, GOOD, PROBLEM, fold, ink, marked
from .controls import Control
from .drawing import View

Values = Mapping[str, Any]
# Kind of number (measured, emulated) -> what the run at these settings gave; `earlier` has (values, kind, result) of
# the runs at others.
Found = Mapping[str, Any]
PROGRAMS = Path(__file__).resolve().parent / "programs"  # what the buttons run
OPEN = "Show me without guessing"
_SCROLLS = "overflow-x:auto;width:0;min-width:100%"  # as wide as the page, whatever lies inside
_TEXT = "line-height:1.5;max-width:680px"  # as text has it on a page, where ipywidgets sets its own
# In JupyterLab and Notebook, whose outputs lie in such elements: an output gets this class when its controls can't be
# found, and controls that lost their kernel while the page was open are `disconnected`.
_GONE = ".jp-OutputArea-child:has(>.jp-OutputArea-output.jupyter-widgets, .jupyter-widgets-disconnected)"
_AFTER = (
    f"<style>{_GONE}:has(+.jp-OutputArea-child .course-still){{display:none}}"
    f"{_GONE}+.jp-OutputArea-child .course-still{{display:block!important}}</style>"
)
_AGAIN = (
    "<b>These controls ended with their kernel.</b> To get them back, run the notebook's first cells, then this one."
)


@dataclass(frozen=True)
class Question:
    """What the reader guesses before the answer shows. `judge(guess)` answers, kindly; the guess is one of `choices`,
    or None."""

    text: str
    choices: Sequence[str]
    judge: Callable[[str | None], str]


def opening(guess: str | None, right: str, otherwise: str = "") -> str:
    """How a judge begins: nothing for who didn't guess, and for a miss perhaps what is right."""
    return "" if guess is None else "Yes. " if guess == right else f"Not this time. {otherwise}"


@dataclass(frozen=True)
class Action:
    """A button that runs something. `run(values)` launches, and returns what `render` then draws as `kind`; `seconds`
    estimates how long it takes; `refusal` says why it can't run these values, if so."""

    label: str
    kind: str
    run: Callable[[Values], Any]
    seconds: Callable[[Values], float]
    why: str
    refusal: Callable[[Values], str] = field(default=lambda values: "")


class Stopped(Exception):
    """Somebody clicked on Stop."""


class _Progress(LiveView):
    """Passes on how far a launch is, and ends it when somebody clicks on Stop."""

    def __init__(self, say: Callable[[str], None], stop: threading.Event):
        super().__init__()
        self._can_show, self._say, self._stop, self._due = False, say, stop, 0.0

    def tick(self, known: Callable[[], Known]) -> None:
        if self._stop.is_set():
            raise Stopped
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.5
            self._say(lines(known(), self.seconds)[0])


class Explorer:
    """What `explore.NAME()` returns; one of a lesson's own has no name. `render(values, found, answered)` draws the
    settings, and never raises: for those that don't go together it returns `View.refusal(why)`. Before the reader has
    guessed, `answered` is False, and the picture keeps the answer to itself. `leaves_out` says what the model doesn't
    know; `still` draws what moves as frames side by side, for pages that run nothing; `also` are the function's
    arguments that are no settings. Raises ValueError for a setting that can't be."""

    def __init__(
        self,
        name: str,
        controls: Sequence[Control],
        render: Callable[[Values, Found, bool], View],
        *,
        given: Values,
        leaves_out: str,
        question: Question | None = None,
        actions: Sequence[Action] = (),
        still: Callable[[Values], View] | None = None,
        also: Values | None = None,
    ):
        self.controls = {control.name: control for control in controls}
        if unknown := set(given) - set(self.controls):
            raise ValueError(f"no setting {unknown.pop()!r}; there are {', '.join(self.controls)}")
        self.values = {
            name: control.checked(given.get(name, control.default)) for name, control in self.controls.items()
        }
        self.name, self.given, self.also = name, given, also or {}
        self.leaves_out, self.actions = leaves_out, actions
        self.question = None if given else question  # whoever sets something has one of their own
        self.found: dict[tuple[Any, ...], dict[str, Any]] = {}  # by settings, so that a result is drawn over its own
        self.answered = self.question is None
        self._render, self._still = render, still
        self._page: _Page | None = None

    def view(self, answered: bool = True) -> View:
        """The picture of the settings as they are now, with what ran at them."""
        earlier = [
            (dict(zip(self.controls, key, strict=True)), kind, result)
            for key, results in self.found.items() if key != self._key
            for kind, result in results.items()
        ]  # fmt: skip
        return self._render(self.values, {**self.found.get(self._key, {}), "earlier": earlier}, answered)

    def set(self, **values: Any) -> None:
        """Change settings, as the controls do. Those on the page stay where they are."""
        for name, value in values.items():
            self.values[name] = self.controls[name].checked(value)

    def keep(self, key: tuple[Any, ...], kind: str, result: Any) -> None:
        self.found.setdefault(key, {})[kind] = result

    @property
    def call(self) -> str:
        """How it was asked for, as in `explore.CALL`: `memory(stage=3)`."""
        asked = {**self.also, **self.given}
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in asked.items())})"

    @property
    def _key(self) -> tuple[Any, ...]:
        return tuple(self.values.values())

    def __repr__(self) -> str:
        settings = ", ".join(control.said(self.values[name]) for name, control in self.controls.items())
        return f"{self.view().summary}\nSettings: {settings}.\nLeft out: {self.leaves_out}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        view = self.view()
        still = self._still(self.values) if self._still is not None else view
        under = (
            f"<figcaption><p>{marked(view.summary)}</p>{fold('what this picture leaves out', marked(self.leaves_out))}"
        )
        named = f" data-explorer='{html.escape(self.call)}'" if self.name else ""  # so that a site can make it move
        page = f"<figure{named} style='margin:.3em 0;max-width:700px'>{still.image()}"
        page += f"{under}</figcaption></figure>"
        bundle = {"text/plain": repr(self), "text/html": page}
        if notebook_kernel() is not None:
            self._page = self._page or _Page(self)
            shown = {"version_major": 2, "version_minor": 0, "model_id": self._page.box.model_id}
            bundle["application/vnd.jupyter.widget-view+json"] = shown  # type: ignore[assignment]
        return bundle

    def _ipython_display_(self) -> None:
        """Where a Jupyter server keeps the notebook, and so may open it again without its kernel."""
        if notebook_kernel() is None or "JPY_SESSION_NAME" not in os.environ:
            raise NotImplementedError  # IPython then takes the bundle
        from IPython.display import display

        bundle = self._repr_mimebundle_()
        display(bundle, raw=True)
        page = (
            f"<div class='course-still' style='display:none'><p style='{_TEXT}'>{_AGAIN}</p>{bundle['text/html']}</div>"
        )
        display({"text/plain": "(what shows once the controls are gone)", "text/html": _AFTER + page}, raw=True)


class _Page:
    """The widgets of an explorer. Only `value`, `disabled` and `layout` change once they're shown: what every front end
    can do."""

    def __init__(self, explorer: Explorer):
        import ipywidgets as w

        self.explorer, self._stop, self._running = explorer, threading.Event(), ""
        self.picture, self.said, self.what = w.HTML(), w.HTML(), w.HTML()
        rows: dict[bool, list[Any]] = {False: [], True: []}
        self.inputs: list[Any] = []
        self.acting: list[tuple[Any, str]] = []  # each input, and the switch without which it does nothing
        self.shown: dict[str, Any] = {}
        for name, control in explorer.controls.items():
            shown, inputs = control.widgets(
                explorer.values[name], self._changed, lambda words: self.say(words, PROBLEM)
            )
            rows[control.more].append(shown)
            self.shown[name] = shown
            self.inputs += inputs
            self.acting += [(box, control.only_with) for box in inputs]
        wrap = {"flex_flow": "row wrap", "align_items": "center", "grid_gap": "0 24px"}
        parts: list[Any] = []
        if explorer.question is not None:
            parts += self._ask(w, explorer.question)
        parts.append(w.HBox(rows[False], layout=wrap))
        if rows[True]:
            hidden = w.HBox(rows[True], layout={**wrap, "display": "none"})
            switch = w.Checkbox(value=False, description="more settings", indent=False, layout={"width": "auto"})
            switch.observe(lambda change: setattr(hidden.layout, "display", "" if change["new"] else "none"), "value")
            parts += [switch, hidden]
        self.buttons = [self._button(w, action) for action in explorer.actions]
        parts.append(self.picture)
        if self.buttons:
            parts.append(w.HBox(self.buttons, layout={"flex_flow": "row wrap"}))
            parts.append(self.what)
        # In a box of its own, so that it stays open while the picture changes.
        left_out = fold("what this picture leaves out", marked(explorer.leaves_out))
        self.box = w.VBox([*parts, self.said, w.HTML(f"<div style='{_TEXT}'>{left_out}</div>")])
        self.draw()

    def draw(self) -> None:
        explorer = self.explorer
        for name, control in explorer.controls.items():
            control.follow(self.shown[name], explorer.values)
        try:
            view = explorer.view(explorer.answered)
        except ValueError as error:  # settings that don't go together
            view = View.refusal(str(error))
        summary = view.summary
        if not explorer.answered:
            summary = "Your guess first: choose one above. Then the picture is completed, and the controls move."
        text = f"<p style='margin:.4em 0' role='status'>{marked(summary)}</p>"
        for box, switch in self.acting:
            box.disabled = not explorer.answered or bool(switch and not explorer.values[switch])
        # On a narrow page the picture scrolls, before its words become too small to read.
        self.picture.value = f"<div style='{_SCROLLS}'>{view.svg}</div><div style='{_TEXT}'>{text}</div>"
        what = ""
        for button, action in zip(self.buttons, explorer.actions, strict=True):
            why_not = action.refusal(explorer.values)
            button.disabled = (
                bool(self._running and self._running != action.label) or bool(why_not) or not explorer.answered
            )
            button.tooltip = why_not or action.why
            not_now = f" Not at these settings: {marked(why_not)}." if why_not else ""
            what += f"<div><b>{action.label}</b>: {marked(action.why)}.{not_now}</div>"
            if not self._running:
                button.description = f"{action.label} (about {max(1, round(action.seconds(explorer.values)))} s)"
        first = "<div>The first run of a notebook takes longer, since PyTorch has to be loaded.</div>"
        self.what.value = f"<div style='{_TEXT};{ink(ASIDE)}'>{what}{first}</div>" if what else ""

    def say(self, words: str, color: str = ASIDE) -> None:
        shown = f"<p role='status' style='margin:.2em 0;{_TEXT};{ink(color)}'>{marked(words)}</p>"
        self.said.value = shown if words else ""

    def _changed(self, name: str, value: Any) -> None:
        try:
            self.explorer.set(**{name: value})
        except ValueError as error:
            self.say(str(error), PROBLEM)
            return
        if not self._running:
            explorer = self.explorer
            away = bool(explorer.found) and explorer._key not in explorer.found
            self.say("What ran at other settings shows again when you go back to them." if away else "")
        self.draw()

    def _ask(self, w: Any, question: Question) -> list[Any]:
        menu = w.Dropdown(
            options=["your guess …", *question.choices, OPEN], layout={"width": "auto", "max_width": "420px"},
            description="Guess", style={"description_width": "140px"},
        )  # fmt: skip
        words = w.HTML(f"<div style='{_TEXT}'>{marked(question.text)}</div>")

        def answer(change: Any) -> None:
            if change["new"] == "your guess …" or self.explorer.answered:
                return
            self.explorer.answered = True
            menu.disabled = True
            said = question.judge(None if change["new"] == OPEN else change["new"])
            words.value = f"<div style='{_TEXT}'>{marked(question.text)} <b>{marked(said)}</b></div>"
            self.draw()

        menu.observe(answer, "value")
        return [words, menu]

    def _button(self, w: Any, action: Action) -> Any:
        button = w.Button(layout={"width": "auto"}, tooltip=action.why)
        button.on_click(lambda _: self._click(action, button))
        return button

    def _click(self, action: Action, button: Any) -> None:
        if self._running:
            self._stop.set()
            self.say("stopping …")
            return
        self._running, values, key = action.label, dict(self.explorer.values), self.explorer._key
        self._stop.clear()
        button.description = "Stop"
        self.say(f"{action.label}: starting …")
        for each in self.buttons:
            each.disabled = each is not button
        # In a thread, so that the kernel goes on to listen: to Stop, and to other cells.
        self.thread = threading.Thread(target=self._work, args=(action, values, key), daemon=True)
        self.thread.start()

    def _work(self, action: Action, values: Values, key: tuple[Any, ...]) -> None:
        words, color = "", ASIDE
        try:
            with _Progress(lambda line: self.say(f"{action.label}: {line}"), self._stop):
                self.explorer.keep(key, action.kind, action.run(values))
            words, color = f"{action.label}: done, and drawn in the picture above.", GOOD
            if key != self.explorer._key:
                words = f"{action.label}: done. You have changed the settings meanwhile; go back to them to see it."
        except Stopped:
            words = f"{action.label}: stopped."
        except (LaunchError, RankError, ValueError, KeyError, OSError) as error:
            words, color = f"{action.label} failed: {html.unescape(str(error))[:600]}", PROBLEM
        finally:
            self._running = ""
            self.say(words or f"{action.label}: failed.", color)
            self.draw()
