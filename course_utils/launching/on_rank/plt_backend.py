"""What matplotlib draws with on a rank: Agg, except that `plt.show()` and `fig.show()` save the figure in the launch's
folder. `rank_process.py` chooses it when a program imports pyplot."""

from __future__ import annotations

import io
import os
from typing import Any

from matplotlib import pyplot
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

MOST = 100  # figures that a rank saves


class FigureManager(FigureManagerBase):
    def show(self) -> None:
        _save(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, block: bool | None = None) -> None:
        """Save all open figures and close them, as if somebody had looked at each and closed its window."""
        for number in pyplot.get_fignums():
            _save(pyplot.figure(number))
            pyplot.close(number)


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager


def _save(figure: Any) -> None:
    image = io.BytesIO()
    figure.savefig(image, format="png", bbox_inches="tight")
    begin = os.path.join(os.environ["COURSE_RUN_DIR"], f"rank{os.environ['RANK']}.figure")
    for number in range(1, MOST + 1):
        try:
            with open(f"{begin}{number}.png", "xb") as file:
                file.write(image.getbuffer())
        except FileExistsError:
            continue
        said = f"figure: {begin}{number}.png\n"
        break
    else:
        said = f"this rank has shown {MOST} figures, and more aren't kept\n"
    os.write(1, said.encode())  # to the log, whatever the program has done to sys.stdout
