"""Which samples each rank sees, in which order, in each epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from . import canvas
from .canvas import Figure, listing, sentence

Order = Sequence[Sequence[Sequence[int]]]


def who_has_what(
    order: Order | Mapping[str, Order], n_samples: int | None = None, title: str | None = None, row: str = "rank"
) -> Figure:
    """Draw which samples each rank sees, and in which order, in each epoch.

    `order[epoch][rank]` lists the indices of the samples in the order in which that rank saw them. A mapping draws one
    panel for each of its names, for example without and with `set_epoch`. The number in a cell is the sample's index,
    and its colour follows the number, so two equal epochs look equal. A sample that comes again in an epoch, such as
    the sampler's padding, gets a thick frame. With `n_samples`, the size of the data set, the text also says which
    samples nobody saw. `row` says what a row is if it isn't a rank, for example a worker.
    """
    panels: dict[str, Order] = dict(order) if isinstance(order, Mapping) else {"": order}
    if not panels or not all(
        epochs and all(any(len(seen) for seen in ranks) for ranks in epochs) for epochs in panels.values()
    ):
        raise ValueError("who_has_what() needs order[epoch][rank] = indices, with at least one sample in each epoch")
    from matplotlib import colormaps

    biggest = max(int(i) for epochs in panels.values() for ranks in epochs for seen in ranks for i in seen)
    rows = max(sum(len(ranks) for ranks in epochs) for epochs in panels.values())
    mpl, axes = canvas.new_axes(1, len(panels), size=(canvas.SIZE[0], max(canvas.SIZE[1], 1.2 + 0.3 * rows)))
    findings, summaries = [], []
    for i, (ax, (name, epochs)) in enumerate(zip(axes, panels.items(), strict=True)):
        width = max(len(seen) for ranks in epochs for seen in ranks)
        size = min(
            11.0, 210.0 / len(panels) / width
        )  # of the numbers; if they'd be too small to read, only the colours are drawn
        y = 0.0
        ticks, names = [], []
        for e, ranks in enumerate(epochs):
            met: set[int] = set()
            # Go through the ranks step by step, so that the frame goes to the later copy: the padding.
            again = set()
            for step in range(width):
                for r, seen in enumerate(ranks):
                    if step < len(seen):
                        if int(seen[step]) in met:
                            again.add((r, step))
                        met.add(int(seen[step]))
            if i == 0:
                place: Any = {
                    "xycoords": ("axes fraction", "data"),
                    "textcoords": "offset points",
                    "va": "center",
                    "ha": "center",
                }
                ax.annotate(f"epoch {e}", (0, y + len(ranks) / 2), (-52, 0), rotation=90, fontsize=9.5, **place)
            for r, seen in enumerate(ranks):
                for step, index in enumerate(int(v) for v in seen):
                    red, green, blue, _ = colormaps["cividis"](0.12 + 0.88 * index / max(1, biggest))
                    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.52
                    ax.add_patch(_cell(step, y, (red, green, blue)))
                    weight = "bold" if (r, step) in again else "normal"
                    if size < 5.0:
                        continue
                    ax.text(
                        step + 0.5,
                        y + 0.5,
                        str(index),
                        ha="center",
                        va="center",
                        fontsize=size,
                        color="white" if dark else "black",
                        fontweight=weight,
                    )
                for step in [s for rank, s in again if rank == r]:
                    ax.add_patch(_cell(step, y, None))
                ticks.append(y + 0.5)
                names.append(f"{row} {r}")
                y += 1
            y += 0.45
        ax.set_xlim(-0.05, width + 0.05)
        ax.set_ylim(y - 0.4, -0.1)
        ax.set_yticks(ticks, names if i == 0 else [""] * len(ticks))
        ax.set_xticks([0.5, width - 0.5] if width > 1 else [0.5], ["first", "last"] if width > 1 else ["first"])
        ax.tick_params(length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
        if name:
            ax.set_title(name, fontsize=10.5, loc="left", color=canvas.INK)
        finding, summary = _sampling(epochs, n_samples, row)
        findings.append(f"{name}: {finding}" if name else finding)
        summaries.append(sentence(f"{name}: {summary}" if name else summary))
    if any(_repeats(ranks) for epochs in panels.values() for ranks in epochs):
        from matplotlib.patches import Patch

        framed = Patch(
            facecolor="white",
            edgecolor=canvas.VERMILION,
            linewidth=2.2,
            label="seen again in this epoch" + " (padding)" * (row == "rank"),
        )
        canvas.legend_below(mpl, [framed], loc="outside lower right")
    axes[0].set_xlabel(
        f"position in the {row}'s epoch" + ("; the number is the sample's index" if len(panels) == 1 else ""),
        loc="left",
    )
    canvas.title(mpl, title or "; ".join(findings))
    return Figure(mpl, " ".join(summaries))


def _cell(step: int, y: float, color: tuple[float, float, float] | None) -> Any:
    from matplotlib.patches import Rectangle

    if color is None:
        return Rectangle(
            (step + 0.06, y + 0.06), 0.88, 0.88, facecolor="none", edgecolor=canvas.VERMILION, linewidth=2.4, zorder=4
        )
    return Rectangle((step, y), 1, 1, facecolor=color, edgecolor="white", linewidth=0.8)


def _repeats(ranks: Sequence[Sequence[int]]) -> int:
    seen = Counter(int(i) for indices in ranks for i in indices)
    return sum(n - 1 for n in seen.values())


def _sampling(epochs: Order, n_samples: int | None, row: str) -> tuple[str, str]:
    """What one panel shows, in short and in full."""
    plain = [tuple(tuple(int(i) for i in seen) for seen in ranks) for ranks in epochs]
    different = len(set(plain))
    if len(plain) == 1:
        finding = f"every sample goes to one {row}" if not _repeats(epochs[0]) else f"some samples go to two {row}s"
    elif different == 1:
        finding = "every epoch repeats the same order"
    elif different == len(plain):
        finding = "every epoch has a new order"
    else:
        finding = f"{different} different orders in {len(plain)} epochs"
    text = finding
    repeats = sorted({_repeats(ranks) for ranks in epochs})
    if repeats[-1]:
        many = "1 sample is" if repeats[-1] == 1 else f"{repeats[-1]} samples are"
        text += f"; {'' if len(repeats) == 1 else 'up to '}{many} seen again in an epoch"
    if n_samples is not None:
        missing = [sorted(set(range(n_samples)) - {i for seen in ranks for i in seen}) for ranks in plain]
        most = max(missing, key=len)
        if most:
            named = listing([str(i) for i in most[:8]]) + (", …" if len(most) > 8 else "")
            text += f"; in an epoch nobody saw {len(most)} of {n_samples} ({named})"
            finding += f", {len(most)} of {n_samples} are missed"
        else:
            text += f"; all {n_samples} are seen in each epoch"
    return finding, text
