"""The map of the course: five ways to split the training of one model over several devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import look
from .look import Figure, listing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 4


@dataclass(frozen=True)
class Way:
    """One way to split work: who holds which layers and which parts of the batch, on `machines` of devices, and who drives them.

    `devices` holds for each machine a list of (layers held, parts of the batch); `process_of` is "machine" where one process drives all devices
    of a machine, otherwise "device". `lessons` are the numbers of the lessons that teach it.
    """

    name: str
    devices: tuple[tuple[tuple[tuple[int, ...], str], ...], ...]
    process_of: str
    divided: str
    exchanged: str
    when: str
    lessons: tuple[str, ...]


ALL = tuple(range(LAYERS))
FRONT, BACK = ALL[: LAYERS // 2], ALL[LAYERS // 2 :]
WAYS = (
    Way("One machine, data parallel", (((ALL, "ab"), (ALL, "cd")),), "machine", "the batch",
        "parameters and gradients, in each step", "one process, a quick first try", ("03",)),
    Way("One machine, model parallel", (((FRONT, "abcd"), (BACK, "abcd")),), "machine", "the layers",
        "activations and their gradients", "the model does not fit one device", ("06",)),
    Way("Distributed data parallel (DDP)", (((ALL, "a"), (ALL, "b")), ((ALL, "c"), (ALL, "d"))), "device", "the batch",
        "gradients, once a step", "the model fits; the usual choice", ("04", "05")),
    Way("DDP with model parallel inside", (((FRONT, "ab"), (BACK, "ab")), ((FRONT, "cd"), (BACK, "cd"))), "machine", "batch and layers",
        "activations inside, gradients between", "it does not fit, and must be fast", ("06", "10")),
    Way("Distributed model parallel", ((((0,), "abcd"), ((1,), "abcd")), (((2,), "abcd"), ((3,), "abcd"))), "device", "the layers",
        "activations, also over the network", "it does not fit one machine", ("06", "07")),
)  # fmt: skip

# Places in a row, in units of a device's width.
DEVICE, GAP, MACHINE_GAP = 1.0, 0.36, 0.62
TEXT_AT = 6.0


def ways() -> Figure:
    """Five ways to split the training of one model, each as a picture with what is divided, what is exchanged, and its lesson.

    A machine is a grey box, a process a dashed frame around the devices that it drives. A device shows the layers of the model that it holds in blue, and
    below them the parts a to d of the batch that it gets.
    """
    mpl, (ax,) = look.new_axes(size=(look.SIZE[0] + 0.6, 1.2 + 1.22 * len(WAYS)))
    ax.axis("off")
    ax.set_xlim(-0.35, 12.4)
    ax.set_ylim(len(WAYS) * 2.0 - 0.1, -0.85)
    for i, way in enumerate(WAYS):
        _row(ax, way, 2.0 * i)
        if i:
            ax.plot([-0.3, 12.3], [2.0 * i - 0.19] * 2, color="#DDDDDD", linewidth=0.8)
    _key(ax)
    look.title(mpl, "Five ways to split the training of one model")
    told = [
        f"{w.name} (lesson{'s' * (len(w.lessons) > 1)} {listing(list(w.lessons))}): divided is {w.divided}, exchanged are {w.exchanged}; for when: {w.when}."
        for w in WAYS
    ]
    return Figure(mpl, " ".join(told))


def _row(ax: Axes, way: Way, top: float) -> None:
    x = 0.0
    for machine in way.devices:
        width = len(machine) * DEVICE + (len(machine) - 1) * GAP
        _box(ax, x - 0.2, top, width + 0.4, 1.72, face="#EFEFEF", edge="#BBBBBB")
        if way.process_of == "machine":
            _box(ax, x - 0.1, top + 0.1, width + 0.2, 1.52, edge=look.VERMILION, line="--")
        for k, (layers, batch) in enumerate(machine):
            at = x + k * (DEVICE + GAP)
            if way.process_of == "device":
                _box(ax, at - 0.1, top + 0.1, DEVICE + 0.2, 1.52, edge=look.VERMILION, line="--")
            _device(ax, at, top + 0.2, layers, batch)
        x += width + MACHINE_GAP
    ax.text(TEXT_AT, top + 0.12, way.name, fontsize=11, fontweight="bold", color=look.INK, va="center")
    rows = (("divided", way.divided), ("exchanged", way.exchanged), ("when", way.when), ("lesson", listing(list(way.lessons))))
    for k, (label, text) in enumerate(rows):
        y = top + 0.52 + 0.345 * k
        strong = {"color": look.BLUE, "fontweight": "bold"} if label == "lesson" else {"color": look.INK}
        ax.text(TEXT_AT, y, label, fontsize=9, color="#666666", va="center")
        ax.text(TEXT_AT + 1.5, y, text, fontsize=9.5, va="center", **strong)  # type: ignore[arg-type]


def _device(ax: Axes, x: float, y: float, layers: tuple[int, ...], batch: str) -> None:
    for layer in range(LAYERS):
        held = layer in layers
        _box(ax, x, y + 0.245 * layer, DEVICE, 0.19, face=look.BLUE if held else "white", edge=look.BLUE if held else "#C8C8C8", rounded=False)
    for k, part in enumerate("abcd"):
        if part in batch:
            _box(ax, x + 0.25 * k + 0.015, y + 1.02, 0.22, 0.3, face=look.YELLOW, edge="#8A7F00", rounded=False)
            ax.text(x + 0.25 * k + 0.125, y + 1.175, part, fontsize=7.5, ha="center", va="center", color="black")


def _key(ax: Axes) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="#EFEFEF", edgecolor="#BBBBBB", label="machine"),
        Patch(fill=False, edgecolor=look.VERMILION, linestyle="--", label="process"),
        Patch(facecolor=look.BLUE, label="layers that a device holds"),
        Patch(facecolor=look.YELLOW, edgecolor="#8A7F00", label="its parts a to d of the batch"),
    ]
    ax.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False, fontsize=9, handlelength=1.6, borderaxespad=0.0, columnspacing=1.4
    )


def _box(ax: Axes, x: float, y: float, width: float, height: float, face: str = "none", edge: str = "none", line: str = "-", rounded: bool = True) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    style = {"facecolor": face, "edgecolor": edge, "linestyle": line, "linewidth": 1.2}
    if rounded:
        ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", **style))  # type: ignore[arg-type]
    else:
        ax.add_patch(Rectangle((x, y), width, height, **style))  # type: ignore[arg-type]
