"""What the deeper sections of lesson 02 show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from course_utils import (
    Machine,
    Provenance,
    Run,
    Samples,
    Sweep,
    claim,
    figures,
    launch,
    more_checks,
    predict,
    published,
    sweep,
)
from course_utils.for_lessons import Figure, disturbed, figure_first, say, say_disturbed

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
LOADING = PROGRAMS / "02_loading.py"  # a loader whose batches bring their times along
LOCKS = PROGRAMS / "02_locks.py"
BATCH = 16  # images, in LOADING
FATES = ("raises", "SIGBUS", "SIGKILL", "hangs")

# --- Predicting a loader ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """What a batch costs, in the loop and in a worker with a core to itself, and what several workers then did."""

    loop_s: float
    worker_s: float
    startup_s: float  # until a worker begins, after the epoch has
    batches: int
    measured: Sweep
    disturbed: str  # what other programs did meanwhile, if they were in the way

    @property
    def counts(self) -> list[int]:
        return sorted({point["workers"] for point in self.measured.points})

    def predicted(self, workers: int) -> float:
        """Images per second by the model, from what one batch costs on a core of its own."""
        start = {"load_s": self.worker_s, "startup_s": self.startup_s} if workers else {"load_s": self.loop_s}
        return self._rate(workers, cores=Machine.here().cores, **start)

    def replayed(self, workers: int) -> float:
        """The same model, with the time that each batch of the last run really took."""
        run = self.measured.at(workers=workers)[-1]
        startup_s = run.values("began_s")[0] if workers else 0.0
        return self._rate(workers, load_s=run.values("load_s"), startup_s=max(0.0, startup_s))

    def _rate(self, workers: int, **model: Any) -> float:
        return BATCH * self.batches / predict.loader_run(self.batches, compute_s=0.0, workers=workers, **model).total_s


def timed_loading() -> Timed:
    """Time one batch in the loop and in a worker alone, then several workers."""
    settings: dict[str, Any] = {"quiet": True, "threads": 1, "device": "cpu"}
    alone = launch(LOADING, 1, **settings)
    helped = launch(LOADING, 1, args=["--workers", 1], **settings)
    cores = Machine.here().cores
    counts = [0, 1, 2, 4, *(n for n in (8, 16) if n <= cores)]
    batches = max(48, 8 * counts[-1])
    measured = sweep(
        LOADING, {"workers": counts}, repeats=3, args=["--batches", batches], ranks=1, threads=1, device="cpu"
    )
    loop_s, worker_s = (run.samples("load_s").median for run in (alone, helped))
    why = disturbed(alone, helped, measured)
    return Timed(loop_s, worker_s, max(0.0, helped.values("began_s")[0]), batches, measured, why)


def show_predicted(timed: Timed) -> Any:
    """The prediction and the replay, each against what was measured."""
    if why := timed.disturbed:
        say_disturbed(why, "how good the prediction is")
    else:
        say(
            f"{BATCH} images take {timed.loop_s * 1e3:.1f} ms in the loop and {timed.worker_s * 1e3:.1f} ms in a"
            f" worker, which begins {timed.startup_s * 1e3:.1f} ms after the start."
        )
        inside = {
            n: median(sum((run.values("load_s") for run in timed.measured.at(workers=n)), [])) for n in timed.counts
        }
        say("A batch really took " + ", ".join(f"{s * 1e3:.1f} ms with {bar(n)}" for n, s in inside.items()) + ".")
    rate = {n: timed.measured.samples("images_per_s", workers=n) for n in timed.counts}
    models = {"predicted": timed.predicted, "its own load times": timed.replayed}
    rows = [(f"{bar(n)}: {name}", model(n), rate[n]) for name, model in models.items() for n in timed.counts]
    return figures.residuals(rows, unit="images/s", title=why or "Images a second: predicted and measured")


def loader_loading_s(case: published.Case) -> float:
    """What loading costs an epoch by the model, for a published loader."""
    given = case.inputs
    return predict.loader_run(
        given["batches"], given["load_s"], given["compute_s"], workers=given["workers"], startup_s=given["startup_s"]
    ).loading_s


def copies_alone() -> tuple[float, float]:
    """Seconds that ten copies of 100 MiB from pinned memory took on an A100: by the rule, and as published."""
    cases = {case.id: case for case in published.cases("copy_pass")}
    pinned, hidden = cases["copy-a100-pinned"], cases["copy-a100-non-blocking"]
    given = pinned.inputs
    return (
        given["copies"] * predict.copy_s(given["nbytes"], given["link_GBps"] * 1e9),
        pinned.observed - hidden.observed,
    )


@figure_first
def show_published() -> Figure:
    """The published loader, with the one row that the model wasn't fitted to predicted; and what the copies took."""
    cases = {bar(case.inputs["workers"]): case for case in published.cases("loader_des")}
    source = Provenance("published", "another machine")
    seen = {name: Samples([case.observed], "loading_s", source) for name, case in cases.items()}
    model = {name: loader_loading_s(case) for name, case in cases.items() if case.role != "calibration"}
    off = {name: seconds / cases[name].observed - 1 for name, seconds in model.items()}
    for name, error in off.items():
        say(f"{name}: {model[name]:.2f} s predicted, {cases[name].observed:.2f} s published, {error:+.0%}.")
    rule_s, took_s = copies_alone()
    h200 = published.cases(prefix="h2d-h200")[0]
    say(f"Ten copies of 100 MiB from pinned memory: {rule_s:.3f} s by the rule of 85%, {took_s:.3f} s published.")
    say(f"NVIDIA's test on an H200: {h200.observed:.1f} of {h200.inputs['spec_GBps']:g} GB/s.")
    claim("the model predicts the published loader with two workers to within 10%", abs(off["2 workers"]) < 0.1)
    more_checks(
        {
            "the rule of 85% promises a third more than a real loop's copies reached": took_s > 1.33 * rule_s,
            "NVIDIA's own test reaches 85% and more": h200.observed > 0.85 * h200.inputs["spec_GBps"],
        }
    )
    return figures.bars(seen, predicted=model, title="Published: seconds of an epoch that aren't computing")


# --- Copies and memory ------------------------------------------------------------------------------------------------


def show_locks() -> Figure | None:
    """Launch the program that locks memory. Nothing is drawn where the system lets you lock nothing."""
    return on_locks(launch(LOCKS, 1, device="cpu", quiet=True))


def on_locks(run: Run) -> Figure | None:
    sentence = "locking takes longer where pages have to be found first"
    if not any("lock_s" in record for record in run.records):
        claim(sentence, None, why="this system lets you lock nothing")
        return None
    cold, warm = (run.samples("lock_s", state=state) for state in ("cold", "warm"))
    before, after, pages = run.value("before"), run.value("after"), run.value("pages")
    say(f"{run.value('nbytes') / 2**20:.1f} MiB, {pages} pages; in memory before: {before}, after: {after}")
    if why := run.disturbed:
        say_disturbed(why, "what locking costs")
    claim(sentence, warm.faster_than(cold).unless(why))
    if after >= 0:
        more_checks({"after mlock all pages are in memory": after == pages})
    title = f"Locking takes {warm.median * 1e3:.2f} ms, finding the pages first {cold.median * 1e3:.2f}"
    named = {"cold: page faults, then locking": cold, "warm: locking alone": warm}
    return figures.bars(named, title=why or title)


@figure_first
def show_overlap(script: Path | str) -> Figure:
    """Run the program on this machine's GPU, or else on an emulated A100."""
    return on_overlap(launch(script, 1, quiet=True, cluster=cluster_for_a_gpu()))


def cluster_for_a_gpu() -> str:
    """What `launch(cluster=)` gets for a program that needs a GPU: nothing where there is one, or an emulated A100."""
    return "" if Machine.here().usable_gpus else "1xA100"


def on_overlap(run: Run) -> Figure:
    turns, ahead = (run.samples("epoch_s", way=way) for way in ("in turns", "overlapped"))
    emulated = run.provenance.kind == "emulated"
    if why := run.disturbed:
        say_disturbed(why, "what overlapping gains")
    verdict = None if emulated else ahead.faster_than(turns).unless(why)
    claim("on a stream of its own a copy hides behind computing", verdict, why="needs a GPU" if emulated else "")
    where = "an emulated A100" if emulated else "your GPU"
    title = f"On {where}, four batches in turns take {turns.median / ahead.median:.1f} times as long as overlapped"
    return figures.bars({"copy, then compute": turns, "copy while computing": ahead}, title=why or title)


# --- Random numbers, epochs, deaths -----------------------------------------------------------------------------------


@figure_first
def show_draws(run: Run) -> Figure:
    """Which ways of drawing random numbers repeat themselves in workers and epochs."""
    own, shared = ("own torch.Generator", "own default_rng(0)"), ("torch, global", "numpy, global")
    drawn = {
        way: [[run.value("numbers", way=way, epoch=e, worker=w) for w in range(2)] for e in range(2)]
        for way in (*shared, *own)
    }
    repeated = {way: 16 - len(set(sum(sum(numbers, []), []))) for way, numbers in drawn.items()}
    say("Repeated among 16 numbers: " + ", ".join(f"{n} ({way})" for way, n in repeated.items()) + ".")
    fresh = all(a[0] != a[1] and a != b for a, b in (drawn[way] for way in shared))
    stale = all(a[0] == a[1] and a == b for a, b in (drawn[way] for way in own))
    claim(
        "a generator held by the dataset repeats itself in every worker and every epoch, the global states do not",
        stale and fresh,
    )
    chosen = {way: drawn[way] for way in (shared[0], own[0])}
    return figures.who_has_what(chosen, row="worker", title="Numbers drawn for eight samples, in two epochs")


def show_seeds(run: Run) -> None:
    """What the workers of two ranks draw, with one seed for both and with one for each."""
    same, other = (run.values("numbers", name=name) for name in ("same seed", "seed + rank"))
    for name, numbers in (("same seed", same), ("seed + rank", other)):
        print(f"{name:12} rank 0 draws {numbers[0]}, rank 1 draws {numbers[1]}")
    claim(
        "ranks with the same seed augment alike, ranks with seeds of their own do not",
        same[0] == same[1] and other[0] != other[1],
    )


def show_ahead(run: Run) -> None:
    """How many batches two workers had loaded while the loop slept."""
    counted = {factor: run.value("ahead", factor=factor) for factor in (1, 2, 4)}
    said = ", ".join(f"{n} batches with prefetch_factor={factor}" for factor, n in counted.items())
    say(f"Loaded while the loop slept: {said}.")
    claim(
        "two workers run ahead by prefetch_factor batches each, and no further",
        all(n == 2 * factor for factor, n in counted.items()),
    )


def show_pins(run: Run) -> None:
    """What `pin_memory=True` does here: it pins where there's a GPU, and elsewhere only warns."""
    pinned, warned, gpu = run.value("pinned"), run.value("warned"), run.value("device") == "cuda"
    say(f"On {run.value('device')}: pinned {pinned}; warning: {warned or 'none'}")
    claim(
        "pin_memory pins where there is a GPU, and elsewhere only warns",
        pinned if gpu else not pinned and "pin_memory" in warned,
    )


@figure_first
def show_persistent(run: Run) -> Figure:
    """What workers see of a changed dataset, and how long the first batch takes, with and without them staying."""
    first = {
        stay: Samples([run.value("first_batch_s", stay=stay, epoch=e) for e in range(1, 5)], "first_batch_s")
        for stay in (False, True)
    }
    new, kept = (run.values("seen", stay=stay) for stay in (False, True))
    say(f"The loop sets epoch 0, 1, 2, 3, 4. New workers see {new}, persistent ones {kept}.")
    claim(
        "new workers see what the loop changed in the dataset, persistent ones do not",
        new == [0, 1, 2, 3, 4] and kept == [0] * 5,
    )
    if why := run.disturbed:
        say_disturbed(why, "which of them is faster", again="run both cells again")
    faster = first[True].faster_than(first[False]).unless(why)
    claim("persistent workers give the first batch of an epoch sooner", faster)
    named = {"workers started anew": first[False], "persistent workers": first[True]}
    return figures.bars(named, ylabel="time to the first batch (ms)", title=why or None)


def show_deaths(run: Run) -> None:
    """What the loop hears of a worker that came to a bad end."""
    message = {how: run.value("message", how=how) for how in FATES}
    for how, text in message.items():
        lines = text.strip().splitlines()
        said = " ... ".join(dict.fromkeys((lines[0], lines[-1])))
        print(f"{how:7} {run.value('kind', how=how)} after {run.value('took_s', how=how):.1f} s: {said}")
    traced = "sample 3 is no JPEG" in message["raises"] and "__getitem__" in message["raises"]
    named = all("by signal" in message[s] for s in ("SIGBUS", "SIGKILL")) and "timed out" in message["hangs"]
    claim(
        "an exception brings its traceback, a signal its name, and a hang is noticed with a timeout", traced and named
    )


def bar(count: int) -> str:
    """A number of workers, as the name of a bar."""
    return "no worker" if count == 0 else f"{count} worker{'s' * (count != 1)}"
