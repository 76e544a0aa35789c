# symptom: one more
# says: steps are done again
import math


def done_again(step: int, every: int) -> int:
    """How many whole steps are done a second time, when the process is killed while it works on `step`.

    step   counted from 0; the process is killed before this step is done
    every  a checkpoint is written after each `every` steps; the run began without one
    """
    return step % every + 1


def save_every(step_s: float, save_s: float, failure_s: float) -> int:
    """The number of steps between two saves for which least time is lost; at least 1.

    step_s     seconds of a step
    save_s     seconds that a save stops the training for
    failure_s  seconds between two failures, on average

    With t seconds of steps between two saves the share that is lost is save_s / t + t / (2 failure_s).
    """

    def lost(steps: int) -> float:
        t = steps * step_s
        return save_s / t + t / (2 * failure_s)

    below = max(1, math.floor(math.sqrt(2 * save_s * failure_s) / step_s))
    return min(below, below + 1, key=lost)
