"""What the modules of lessons (`notebooks/lesson_NN.py`) use besides the front door, so that they know nothing of its
rooms: what pages say, what figures and small explorers are drawn with, numbers in words."""

from __future__ import annotations

from .check import digest
from .emulation.clusters import cluster
from .explore.controls import Control
from .explore.drawing import Drawing, View
from .explore.explorer import Explorer, Found, Values
from .explore.parts import LEFT, WIDE
from .figures.canvas import (
    BLUE,
    GREEN,
    GREY,
    GUESS,
    INK,
    KINDS,
    ORANGE,
    RUST,
    VERMILION,
    Figure,
    kind_of,
    listing,
    made_guesses,
    middle,
    new_axes,
    provenance_words,
    sentence,
    spread,
)
from .folders import CELL, add_json_line, json_lines, notebook_folder, save_script
from .launching.program import checked_script
from .launching.supervisor.patience import Patience
from .machine.optional_packages import EXTRAS, missing
from .predict.experiments import predict_case
from .results.spans import Span, covered, intersection, intervals, union
from .show.card import Card
from .show.pages import (
    Diff,
    Program,
    Words,
    as_number,
    beside_programs,
    bet,
    diff,
    disturbed,
    figure_first,
    guessed,
    say,
    say_disturbed,
)
from .show.table import Cell, ShowsTable, Table, show
from .show.units import counted, number, readable, readable_unit, unit_of_name
from .slurm import local_cluster
from .slurm.local_cluster import guard
