"""Published runs on many nodes, next to the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_utils import Provenance, Samples, claim, figures, published
from course_utils.for_lessons import Figure, figure_first, predict_case, say

SEQUENCES = 65_536  # of BERT's global batch
MANY = [8 * 2**k for k in range(10)]  # GPUs
CLASSES = ("strong_scaling_accum", "ddp_efficiency", "add_allreduce")


def bert_rate(case: Any, gpus: int) -> float:
    """Sequences per second of BERT-large on A100s, predicted: a fixed global batch in fewer micro-batches on each."""
    part = SEQUENCES // gpus
    micro = min(case.inputs["micro"], part)
    inputs = {**case.inputs, "micro": micro, "accum": part // micro, "gpus": gpus}
    return _predicted({**vars(case), "inputs": inputs})


def _predicted(case: Mapping[str, Any]) -> float:
    """What the cost model says of a case. Raises ValueError for a class that it has no model of."""
    predicted = predict_case(case).predicted
    if predicted is None:
        raise ValueError(f"there's no model of {case['cls']}")
    return predicted


@figure_first
def show_bert() -> Figure:
    """The efficiency of BERT on up to 32 nodes, as published, and on up to 512, as predicted."""
    cases = published.cases("strong_scaling_accum")
    one_node = cases[0].inputs["thr_node"]
    source = Provenance("published", "NVIDIA")
    seen = {case.inputs["gpus"] // 8: case.observed / one_node / (case.inputs["gpus"] // 8) for case in cases}
    kept = [bert_rate(cases[0], gpus) / one_node / (gpus // 8) for gpus in MANY]
    errors = [abs(_predicted(vars(case)) / case.observed - 1) for case in cases]
    say(f"NVIDIA's runs keep {seen[max(seen)]:.0%} on {max(seen)} nodes. The model is {max(errors):.1%} off at most.")
    claim("BERT on 2 to 32 nodes is predicted within 3%", max(errors) < 0.03)
    return figures.lines(
        {
            "predicted: BERT-large, the same global batch": ([gpus // 8 for gpus in MANY], kept),
            "BERT-large": (list(seen), [Samples([share], "efficiency", source) for share in seen.values()]),
        },
        xlabel="nodes of 8 A100s",
        ylabel="efficiency",
        log="x",
        title=f"{max(seen)} nodes keep {seen[max(seen)]:.0%}; {MANY[-1] // 8} would keep {kept[-1]:.0%}",
    )


def rows() -> list[Any]:
    """The published runs on many nodes that can be predicted. Identities, which any model would match, are left out."""
    return [case for name in CLASSES for case in published.cases(name) if case.role != "identity"]


def show_published() -> Any:
    """Published runs on many nodes, worst first, and how far off the model is."""
    theirs = Provenance("published", "their machines")
    table = figures.residuals(
        [(f"{c.id} ({c.unit})", _predicted(vars(c)), Samples([c.observed], "value", theirs)) for c in rows()],
        order="worst first",
        title="Published runs on 16 to 512 GPUs",
    )
    claim("half of the published runs on many nodes are predicted within 5%", table.median_error < 0.05)
    return table
