"""The speeds that lesson 04 compares: of the reader's two trainings, of a sweep, and as they were recorded."""

from __future__ import annotations

from course_utils import Run, Samples, Sweep, recorded
from course_utils.for_lessons import disturbed, say, say_disturbed

BATCH = 128  # images in a step of the trainers, over all ranks


def rates_here(plain: Run, ddp: Run) -> dict[int, Samples]:
    """Images per second of both trainings, over the number of ranks."""
    return {run.world_size: rate(step_s(run), BATCH // run.world_size * run.world_size) for run in (plain, ddp)}


def recorded_rates() -> list[dict[int, Samples]]:
    """Images per second over the number of ranks that share one batch, on each machine where somebody recorded it."""
    return [_shared_batch(scaling) for scaling in recorded.sweeps("04_scaling")]


def _shared_batch(scaling: Sweep) -> dict[int, Samples]:
    whole = max(point["batch_size"] for point in scaling.points)
    ranks = sorted({p["ranks"] for p in scaling.points if p["ranks"] * p["batch_size"] == whole})
    return {k: rate(scaling.samples("step_s", ranks=k, batch_size=whole // k), whole) for k in ranks}


def on_record() -> str:
    """The recorded speed-ups, each with its machine."""
    said = []
    for rates in recorded_rates():
        n = max(rates)
        times = rates[n].median / rates[1].median
        said.append(f"Recorded on {rates[n].provenance.machine}: {n} ranks were {times:.1f} times as fast as one.")
    return " ".join(said)


def images_per_s(scaling: Sweep) -> dict[int, Samples]:
    """Rates over the number of ranks, each rank having the same share."""
    share = max(point["batch_size"] for point in scaling.points if point["ranks"] > 1)
    counts = sorted({point["ranks"] for point in scaling.points})
    return {k: rate(scaling.samples("step_s", ranks=k, batch_size=share), k * share) for k in counts}


def when(run: Run) -> list[float]:
    """When rank 0 reported each loss, in seconds since the first."""
    times = [record["time"] for record in run.ranks[0].records if "loss" in record]
    return [time - times[0] for time in times]


def step_s(run: Run) -> Samples:
    """From one report to the next. The first steps are left out: they allocate memory and build DDP's buckets."""
    times = when(run)[3:]
    return Samples((b - a for a, b in zip(times, times[1:], strict=False)), "step_s", run.provenance)


def rate(step_s: Samples, images: int) -> Samples:
    """Images per second of steps with so many images on all ranks."""
    return step_s.map(lambda s: images / s, "images_per_s")


def conclusive(alone: Run, scaling: Sweep) -> bool:
    """Whether other programs left both measurements alone; otherwise say so, with what was recorded."""
    why = disturbed(alone, scaling)
    if why:
        say_disturbed(why, "how ranks scale", again="run the cells of `alone` and `scaling` again")
        say(on_record())
    return not why
