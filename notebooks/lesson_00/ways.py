"""The map of the course: the ways to split the training of one model over several devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from course_utils.figures import canvas
from course_utils.for_lessons import Figure, listing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 4
WHOLE = "0123"  # a layer, in quarters
TEXTS = "abcd"  # the batch, in four parts


@dataclass(frozen=True)
class Device:
    """What one device has: for each layer, from the first to the last, the quarters that it keeps ("" for none of it);
    the parts of the batch that it gets; and which halves of each of them, "0" the first, "1" the second."""

    layers: tuple[str, ...]
    batch: str
    halves: str = "01"


@dataclass(frozen=True)
class Way:
    """One way to split work: what the devices of each machine have, and who drives them.

    `process_of` is "machine" where one process drives all devices of a machine, otherwise "device". Where a device
    doesn't keep all that its part of the batch needs, `travels` says what comes to the other: weights or activations.
    `lessons` are the numbers of the lessons that teach it.
    """

    name: str
    machines: tuple[tuple[Device, ...], ...]
    divided: str
    exchanged: str
    when: str
    lessons: tuple[str, ...] = ()
    process_of: Literal["device", "machine"] = "device"
    travels: Literal["", "weights", "activations"] = ""


MODEL = (WHOLE,) * LAYERS
FRONT, BACK = (WHOLE, WHOLE, "", ""), ("", "", WHOLE, WHOLE)


def _only(layer: int) -> tuple[str, ...]:
    return tuple(WHOLE if i == layer else "" for i in range(LAYERS))


def _four(devices: list[Device]) -> tuple[tuple[Device, ...], ...]:
    """Two machines with two devices each."""
    return tuple(devices[:2]), tuple(devices[2:])


WAYS = (
    Way("Data parallel, one process", ((Device(MODEL, "ab"), Device(MODEL, "cd")),),
        divided="the batch", exchanged="weights and gradients",
        when="a quick first try", lessons=("03",), process_of="machine"),
    Way("Distributed data parallel (DDP)", _four([Device(MODEL, part) for part in TEXTS]),
        divided="the batch", exchanged="gradients",
        when="the model fits: the usual choice", lessons=("04", "05")),
    Way("Sharded (FSDP)", _four([Device((str(k),) * LAYERS, TEXTS[k]) for k in range(4)]),
        divided="batch, weights, optimizer", exchanged="weights and gradients",
        when="weights or optimizer don't fit", lessons=("10",), travels="weights"),
    Way("Model parallel, one process", ((Device(FRONT, TEXTS), Device(BACK, TEXTS)),),
        divided="the layers", exchanged="activations",
        when="the model doesn't fit one device", lessons=("06",), process_of="machine"),
    Way("Model parallel, distributed", _four([Device(_only(k), TEXTS) for k in range(4)]),
        divided="the layers", exchanged="activations",
        when="it doesn't fit one machine", lessons=("06", "07")),
    Way("Tensor parallel", ((Device(("01",) * LAYERS, TEXTS), Device(("23",) * LAYERS, TEXTS)),),
        divided="each layer", exchanged="activations, in each layer",
        when="one layer is too much", lessons=("10",)),
    Way("DDP, model parallel inside", _four([Device(part, two) for two in ("ab", "cd") for part in (FRONT, BACK)]),
        divided="the batch and the layers", exchanged="activations, gradients",
        when="it doesn't fit, and must be fast", lessons=("06", "10"), process_of="machine"),
    Way("Sequence or context parallel", ((Device(MODEL, TEXTS, "0"), Device(MODEL, TEXTS, "1")),),
        divided="the tokens of each text", exchanged="keys, values, gradients",
        when="the texts are very long"),
    Way("Expert parallel", _four([Device((WHOLE, str(k), WHOLE, str(k)), TEXTS[k]) for k in range(4)]),
        divided="the batch and the experts", exchanged="tokens, gradients",
        when="a mixture of many experts", travels="activations"),
)  # fmt: skip

# In hundredths of an inch.
CARD, ROW, COLUMNS = 262, 184, 3
COUNTED = {6: "Six", 9: "Nine"}
DEVICE, GAP, MACHINE_GAP = 40, 12, 20
PICTURE_AT, WORDS_AT = 26, 108


def ways(count: int = 6) -> Figure:
    """Ways to split the training of one model, the six of the map or all nine: for each a picture, what is divided,
    what is exchanged, when to take it, and its lesson.

    A machine is a grey box, a process a dashed frame around the devices that it drives. A device shows in blue what it
    keeps of the model's four layers, and below them the parts a to d of the batch that it gets.
    """
    shown = WAYS[:count]
    rows = -(-count // COLUMNS)
    width, height = COLUMNS * CARD, 22 + rows * ROW
    mpl, (ax,) = canvas.new_axes(size=(width / 100, height / 100 + 0.4))
    ax.axis("off")
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    for i, way in enumerate(shown):
        row, column = divmod(i, COLUMNS)
        _card(ax, way, column * CARD + 6, row * ROW + 30)
    _key(ax)
    canvas.title(mpl, f"{COUNTED[count]} ways to split the training of one model")
    said = [
        f"{way.name} ({_taught(way)}): divided: {way.divided}; exchanged: {way.exchanged}; when: {way.when}."
        for way in shown
    ]
    return Figure(mpl, " ".join(said))


def _taught(way: Way) -> str:
    if not way.lessons:
        return "see the sources"
    return f"lesson{'s' * (len(way.lessons) > 1)} {listing(list(way.lessons))}"


def _card(ax: Axes, way: Way, left: float, top: float) -> None:
    ax.text(left, top + 8, way.name, fontsize=9.5, fontweight="bold", color=canvas.INK, va="center")
    x = left + 6
    for machine in way.machines:
        width = len(machine) * DEVICE + (len(machine) - 1) * GAP
        _box(ax, x - 6, top + PICTURE_AT - 6, width + 12, 74, face="#EFEFEF", edge="#BBBBBB")
        framed = [(x, width)] if way.process_of == "machine" else [
            (x + k * (DEVICE + GAP), DEVICE) for k in range(len(machine))
        ]  # fmt: skip
        for at, wide in framed:
            _box(ax, at - 3, top + PICTURE_AT - 3, wide + 6, 68, edge=canvas.VERMILION, line="--")
        for k, device in enumerate(machine):
            _device(ax, x + k * (DEVICE + GAP), top + PICTURE_AT, device)
        x += width + MACHINE_GAP
    rows = (("divided", way.divided), ("exchanged", way.exchanged), ("when", way.when))
    for k, (label, text) in enumerate(rows):
        y = top + WORDS_AT + 15 * k
        ax.text(left, y, label, fontsize=7.5, color="#666666", va="center")
        ax.text(left + 64, y, text, fontsize=8, color=canvas.INK, va="center")
    y = top + WORDS_AT + 15 * len(rows)
    ax.text(left + 64, y, _taught(way), fontsize=8, fontweight="bold", color=canvas.BLUE, va="center")


def _device(ax: Axes, x: float, y: float, device: Device) -> None:
    for i, kept in enumerate(device.layers):
        top = y + 11 * i
        _box(ax, x, top, DEVICE, 8, face="white", edge="#C8C8C8", rounded=False)
        for quarter in kept:
            _box(ax, x + DEVICE / 4 * int(quarter), top, DEVICE / 4, 8, face=canvas.BLUE, rounded=False)
    for k, part in enumerate(TEXTS):
        if part in device.batch:
            at = x + DEVICE / 4 * k
            _box(ax, at + 0.5, y + 47, DEVICE / 4 - 1, 15, face="white", edge="#8A7F00", rounded=False)
            for half in device.halves:
                wide = (DEVICE / 4 - 1) / 2
                _box(ax, at + 0.5 + wide * int(half), y + 47, wide, 15, face=canvas.YELLOW, rounded=False)
            ax.text(at + DEVICE / 8, y + 54.5, part, fontsize=6.5, ha="center", va="center", color="black")


def _key(ax: Axes) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="#EFEFEF", edgecolor="#BBBBBB", label="machine"),
        Patch(fill=False, edgecolor=canvas.VERMILION, linestyle="--", label="process"),
        Patch(facecolor=canvas.BLUE, label="what a device keeps of four layers"),
        Patch(facecolor=canvas.YELLOW, edgecolor="#8A7F00", label="its parts a to d of the batch"),
    ]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False, fontsize=8.5,
              handlelength=1.6, borderaxespad=0.0, columnspacing=1.4)  # fmt: skip


def _box(
    ax: Axes, x: float, y: float, width: float, height: float, face: str = "none", edge: str = "none", line: str = "-",
    rounded: bool = True,
) -> None:  # fmt: skip
    from matplotlib.patches import FancyBboxPatch, Rectangle

    style = {"facecolor": face, "edgecolor": edge, "linestyle": line, "linewidth": 1.0}
    if rounded:
        ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=4", **style))  # type: ignore[arg-type]
    else:
        ax.add_patch(Rectangle((x, y), width, height, **style))  # type: ignore[arg-type]
