# symptom: wrong share
# says: The bubble is another one
import math


def bubble(spans: list[tuple[int, float, float]]) -> float:
    """The share of the stages' time, from 0 to 1, in which they do not compute.

    spans  (stage, start_s, end_s) of every box, in any order; those of one stage do not overlap. The clock is the same for all
           stages and may start anywhere

    The step lasts from the first start on any stage to the last end on any stage, and each stage has that long.
    """
    {stage for stage, _, _ in spans}
    length = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    return 1 - sum((end - start) / length for _, start, end in spans) / len(spans)


def enough_micro_batches(stages: int, most: float) -> int:
    """The smallest number of micro-batches for which the bubble of a GPipe with equal stages is at most `most`.

    stages  at least 1
    most    a share above 0 and below 1
    """
    # (p - 1) / (m + p - 1) <= most, solved for m. A little less before rounding up: 63.00000000000001 is 63.
    return max(1, math.ceil((stages - 1) * (1 - most) / most - 1e-9))
