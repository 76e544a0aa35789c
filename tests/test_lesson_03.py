"""Lesson 03: what it says of its experiments, for every guess and every number of GPUs; what torch's own code sends;
and the file to take home."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_torchrun import torchrun
from conftest import checks, concludes_nothing, disturb, takes_nonsense
from conftest import made_run as run
from torch import nn
from torch.nn.functional import cross_entropy

import lesson_03
from course_utils import Run
from course_utils.cells.claims import ClaimError
from lesson_03 import deeper, threads, traffic

Records = list[dict[str, object]]


def on_gpus(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    here = SimpleNamespace(here=lambda: SimpleNamespace(usable_gpus=[object()] * n))
    monkeypatch.setattr(lesson_03, "Machine", here)


def program(name: str) -> Any:
    """A program that the lesson launches, as a module."""
    spec = importlib.util.spec_from_file_location(name, lesson_03.PROGRAMS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the core ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "seen", "guess", "said"),
    [
        (0, [24], ..., ["once, with 24 samples", "You made no bet", "no GPU here that it could use"]),
        (0, [24], 1, ["You knew."]),
        (0, [24], 4, ["You said 4. It's one call for each GPU"]),
        (1, [24], None, ["With one GPU the wrapper moves the model and the batch there"]),
        (1, [24], 2, ["You said 2. It's one call for each GPU"]),
        (2, [12, 12], 2, ["2 times, with 12 + 12 samples. You said 2. You knew.", "2 GPUs work on one batch"]),
        (7, [4] * 6, 7, ["6 times", "You said 7. It's one call for each chunk", "6 of 7 GPUs", "6 GPUs work on"]),
        (8, [3] * 8, 8, ["8 times", "You knew."]),
    ],
)
def test_one_line(
    devices: int, seen: list[int], guess: Any, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    records: Records = [*({"samples": n} for n in seen), {"devices": devices, "rows": 24}]
    lesson_03.show_one_line(run(records), guess)
    out = capsys.readouterr().out
    assert all(words in out for words in [*said, "2 more checks passed"]), out
    with pytest.raises(ClaimError, match="each sample went in once"):
        lesson_03.show_one_line(run([*records, {"samples": 1}]), guess)


def places_of(n: int) -> dict[str, Any]:
    """What the cells of section 2 define, with n places."""
    import nbformat

    from course_utils.folders import COURSE

    cells = nbformat.read(COURSE / "notebooks" / "03_data_parallel.ipynb", as_version=4).cells
    found: dict[str, Any] = {"lesson_03": lesson_03}
    for name in ("scatter-cell", "replicate-cell", "apply-cell", "gather-cell"):
        (source,) = (cell.source for cell in cells if cell.id == name)
        exec(source.replace("] * 4", f"] * {n}"), found)
    return found


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_four_functions_give_the_gradient_of_one_device(
    n: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_gpus(monkeypatch, 0)
    found = places_of(n)
    out = capsys.readouterr().out
    assert "✓ the replicas' gradients add up" in out and "CopyBackward" in out
    assert str([len(c) for c in torch.arange(10).chunk(n)]) in out
    model = found["model"]
    next(model.parameters()).grad.mul_(2)
    with pytest.raises(ClaimError, match="add up to the gradient"):
        lesson_03.show_same(model, found["batch"], found["labels"])
    model.zero_grad()
    with pytest.raises(ValueError, match="run the cell that calls backward"):
        lesson_03.show_same(model, found["batch"], found["labels"])


def test_with_gpus_the_real_one_is_looked_at_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real: dict[str, object] = {
        "gap": 1e-16,
        "chunks": [2, 3],
        "calls": 0,
        "norm_gap": 0.0,
        "refused": True,
        "trained_on": 3,
        "samples": 5,
    }
    on_gpus(monkeypatch, 2)
    model, batch, labels = nn.Linear(8, 5), torch.randn(10, 8), torch.randint(5, (10,))
    cross_entropy(model(batch), labels).backward()
    monkeypatch.setattr(lesson_03, "_real", lambda: run([real]))
    lesson_03.show_same(model, batch, labels)
    out = capsys.readouterr().out
    assert "The real nn.DataParallel, on your 2 GPUs, is off by 1e-16" in out and "6 more checks passed" in out
    for wrong in ({"gap": 0.1}, {"calls": 2}, {"trained_on": 5}):
        monkeypatch.setattr(lesson_03, "_real", lambda wrong=wrong: run([real | wrong]))
        with pytest.raises(ClaimError):
            lesson_03.show_same(model, batch, labels)


def test_the_program_for_several_gpus_on_four_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stand-in that splits as the real wrapper does. (Only the real one asks where the weights are.)"""
    module, found = program("03_real"), {}
    monkeypatch.setattr(module.nn, "DataParallel", checks("lesson_03.convert").Places)
    monkeypatch.setattr(module, "devices", lambda: [torch.device("cpu")] * 4)
    monkeypatch.setattr(module, "report", found.update)
    module.main()
    assert found.pop("gap") < 1e-12 and found.pop("norm_gap") == 0
    assert found == {"devices": 4, "calls": 0, "chunks": [2, 3, 3, 3], "trained_on": 3, "samples": 11, "refused": False}


@pytest.fixture(scope="module")
def counted() -> tuple[Run, dict[int, Run]]:
    """What the counting program reports, in this process: torch's own code, and what a ring of n ranks would send."""
    records: Records = []
    module = program("03_traffic")
    module.report = lambda **values: records.append(values)
    was = {name: getattr(module.comm, name) for name in ("broadcast_coalesced", "scatter", "gather")}
    nccl = module.comm.nccl.is_available, module.comm.nccl.reduce
    is_available = torch.accelerator.is_available
    try:
        for n in lesson_03.COUNTS:
            for star in (False, True):
                model, tokens, scores = module.data_parallel(n, star)
    finally:
        for name, function in was.items():
            setattr(module.comm, name, function)
        module.comm.nccl.is_available, module.comm.nccl.reduce = nccl
        torch.accelerator.is_available = is_available
    weights = sum(p.nbytes for p in model.parameters())
    records.append({"weights_bytes": weights, "inputs_bytes": tokens.nbytes, "outputs_bytes": scores.nbytes})
    rings = {
        n: run(*([{"ddp_bytes": 4 * (n - 1) * weights // n, "gradient": 0.5}] for _ in range(n)))
        for n in lesson_03.COUNTS
    }
    return run(records), rings


def test_torch_hands_nccl_all_weights_at_once_and_gpu_0_sends_them_once(counted: tuple[Run, dict[int, Run]]) -> None:
    """The headline, from torch's own code: 24.0 MiB through GPU 0 of eight, 83.9 if it copied to each."""
    found = counted[0]
    total = {way: sum(found.values("nbytes", way=way, gpus=8)) / 2**20 for way in ("ring", "star")}
    assert total["ring"] == pytest.approx(24.0, abs=0.05) and total["star"] == pytest.approx(84.1, abs=0.1)
    assert found.values("calls", what="weights", way="ring") == [1, 1, 1]


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "times as much."),
        ("more", "should be a number"),
        (1.4, "you know your rings"),
        (7, "You said 7. If GPU 0 copied its weights to each of the others, it would be 4.8 times."),
        (0.5, "The weights pass GPU 0 only once, but outputs"),
    ],
)
def test_the_traffic(
    guess: Any,
    said: str,
    counted: tuple[Run, dict[int, Run]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(traffic, "counts", lambda: counted)
    figure = lesson_03.show_traffic(guess)
    out = capsys.readouterr().out
    assert said in out and "24.0 MiB pass through GPU 0, and 17.5 MiB with DDP: 1.4 times as much" in out
    assert "6 more checks passed" in out and "1.4 times" in str(figure.mpl.get_suptitle())
    assert out.count("✓") == 1, "nothing here is worth a tick: that the ring passes GPU 0 once is put in"
    assert "DP, 8 GPUs: predicted 24 MiB" in figure.summary and "DDP, 8 GPUs: measured 17.5 MiB" in figure.summary


def a_training(data_parallel: Any) -> tuple[Any, list[float], list[float]]:
    def train(loss_of: Any, lr: float = 0.15) -> list[float]:
        torch.manual_seed(0)
        w, losses = torch.ones(1, requires_grad=True), []
        for _ in range(12):
            loss = loss_of(w, None)
            losses.append((4 * w**2).sum().item())
            (gradient,) = torch.autograd.grad(loss, w)
            w = (w - lr * gradient).detach().requires_grad_()
        return losses

    def alone(loss_of: Any, lr: float = 0.15) -> list[float]:
        return train(lambda w, _: 4 * w**2, lr)

    return alone, train(lambda w, _: data_parallel * 4 * w**2), alone(None)


@pytest.mark.parametrize(
    ("n", "guess", "said"),
    [
        (4, ..., "Would you have looked at your learning rate?"),
        (4, 4, "You said 4: that's it"),
        (4, 1, "each replica's loss is already a mean"),
        (4, 0.25, "it's the other way round"),
        (4, 8, "4 replicas each bring a mean"),
        (4, 0.999, "You said 0.999, and it's the other way round"),
        (4, 0, "Your bet should be a number, where 1 is the rate you set."),
        (8, 8, "You said 8: that's it"),
    ],
)
def test_sum_or_mean(n: int, guess: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    train, summed, averaged = a_training(n)
    lesson_03.show_sum(train, summed, averaged, n, guess)
    out = capsys.readouterr().out
    assert said in out and f"✓ the sum over {n} replicas trains as {n} times the learning rate does" in out
    with pytest.raises(ClaimError, match="times the learning rate"):
        lesson_03.show_sum(train, averaged, averaged, n, guess)


def multiplied(two_threads: float, processes: float, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Run]]:
    """The runs of `show_threads`, as they'll come; the list shows how often they were started."""
    rates = {"one": {8: 1.0, 512: 1.0}, "threads": {8: two_threads, 512: 1.8}, "processes": {8: processes, 512: 1.9}}
    started: list[dict[str, Run]] = []

    def launched() -> dict[str, Run]:
        started.append({})
        for how, by_width in rates.items():
            records: Records = [
                {"width": width, "products_per_s": 1000 * v * f}
                for width, v in by_width.items()
                for f in (0.99, 1, 1.01)
            ]
            started[-1][how] = run(records)
        return started[-1]

    monkeypatch.setattr(threads, "_timed", {})
    monkeypatch.setattr(threads, "_time_threads", launched)
    return started


@pytest.mark.parametrize(
    ("two_threads", "processes", "guess", "said"),
    [
        (1.1, 2.0, ..., ["✓ with small operations", "there the lock hardly matters"]),
        (1.1, 2.0, "two", ["should be a number"]),
        (1.1, 2.0, 1.0, ["You've met this lock before"]),
        (0.8, 2.0, 2, ["One thread computes, and the other waits"]),
        (1.5, 2.0, 1, ["a thread lets go of the lock"]),
        (1.1, 1.1, 2, ["○ not shown", "Too close to tell"]),
        (1.5, 1.1, 2, ["○ not shown", "Too close to tell"]),
    ],
)
def test_the_threads(
    two_threads: float,
    processes: float,
    guess: Any,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = multiplied(two_threads, processes, monkeypatch)
    lesson_03.show_threads(guess)
    out = capsys.readouterr().out
    assert all(words in out for words in said), out
    lesson_03.show_threads(guess)
    assert capsys.readouterr().out == out and len(started) == 1, "measured once"


@pytest.mark.parametrize("guess", [..., 1.1, 2])
def test_disturbed_threads_say_nothing_and_are_measured_again(
    guess: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = multiplied(1.1, 2.0, monkeypatch)
    lesson_03.show_threads()
    capsys.readouterr()
    disturb(started[0]["one"])
    assert "Run section 5 again to see what two do" in threads.threads_you_saw()
    assert "1.1 times" not in threads.threads_you_saw()
    lesson_03.show_threads(guess)
    assert len(started) == 2 and "✓ with small operations" in capsys.readouterr().out, "the cell run again measures"
    monkeypatch.setattr(threads, "_time_threads", lambda: {name: disturb(r) for name, r in started[1].items()})
    threads._timed.clear()
    figure = lesson_03.show_threads(guess)
    out = capsys.readouterr().out
    concludes_nothing(out, "what threads and processes do", guess)
    assert "○ not shown here: with small operations" in out and "times" not in out
    assert str(figure.mpl.get_suptitle()).startswith("Other programs used")


@pytest.mark.parametrize(
    ("gpus", "ddp_s", "said"),
    [
        (0, 1.0, ["needs two GPUs"]),
        (1, 1.0, ["needs two GPUs"]),
        (
            2,
            0.05,
            ["✓ a step of DDP takes less time", "100 ms with DataParallel and 50 ms with DDP.", "3.00, 1.00 GiB"],
        ),
        (8, 0.2, ["○ not shown", "too close to tell, or your link is slow"]),
        (2, -0.05, ["○ not shown", "meanwhile, so this says nothing about which is faster on your 2 GPUs. Close them"]),
    ],
)
def test_against_ddp(
    gpus: int, ddp_s: float, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A time below zero stands for one that other programs disturbed."""

    def launched(path: Path, ranks: Any, args: list[str], **_: Any) -> Run:
        steps: Records = [{"step_s": (0.1 if args == ["dp"] else abs(ddp_s)) * f} for f in (0.99, 1.0, 1.01)]
        peaks: Records = [{"peak_bytes": [3 * 2**30, 2**30] if args == ["dp"] else [2**30]}]
        found = run(*([steps + peaks] * (1 if args == ["dp"] else gpus)))
        return disturb(found) if ddp_s < 0 else found

    on_gpus(monkeypatch, gpus)
    monkeypatch.setattr(lesson_03, "launch", launched)
    lesson_03.show_against_ddp()
    out = capsys.readouterr().out
    assert "wait for 1.0 GB of weights and gradients and 0.8 GB of outputs" in out and "predicts 7.3 s more" in out
    assert "took 131 s" in out and all(words in out for words in said), out


def four(one_ms: float = 20.0, dp_ms: float = 26.0, ddp_ms: float = 22.0) -> tuple[Any, Any, Any]:
    """Runs of `show_four` that took so long; in the last step each GPU computes, and DataParallel's after a while."""

    def one_of(ms: float, rows: dict[int, tuple[float, float]]) -> Any:
        spans = [(gpu, start, stop, "compute", "") for gpu, (start, stop) in rows.items()]
        emulated = SimpleNamespace(
            steps=lambda rank: [(0.0, ms / 1e3)],
            by_gpu=lambda: spans,
            spans=lambda rank: [span for span in spans if span[0] == rank],
        )
        found = run([{"step_s": ms / 1e3}])
        return SimpleNamespace(samples=found.samples, emulated=emulated)

    late = dict.fromkeys(range(4), (0.004, dp_ms / 1000.0))
    return one_of(one_ms, {0: (0.0, 0.01)}), one_of(dp_ms, late), one_of(ddp_ms, dict.fromkeys(range(4), (0.0, 0.02)))


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "It would be 1 if four GPUs"),
        (1.3, "You said 1.3: you've learnt what it costs."),
        (4, "You said 4. It isn't that bad"),
        (1, "You said 1. The weights go out before anyone computes"),
    ],
)
def test_four_gpus(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(lesson_03, "four_gpus", four)
    figure = lesson_03.show_four(guess)
    out = " ".join(capsys.readouterr().out.split())
    assert "Four take 26 ms for 64 with DataParallel, 1.30 times as long." in out and said in out, out
    assert "GPU 3 begins to compute 4 ms into the step" in out and "3 more checks passed" in out
    assert "26 ms a step with DataParallel, 22 with DDP" in str(figure.mpl.get_suptitle())
    monkeypatch.setattr(lesson_03, "four_gpus", lambda: four(ddp_ms=30.0))
    with pytest.raises(ClaimError, match="DDP takes less"):
        lesson_03.show_four(guess)


@pytest.mark.slow
def test_four_gpus_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    """The page says that the gradients come in, that GPU 0 steps alone, and what it costs."""
    lesson_03.show_four(...)
    assert "3 more checks passed" in capsys.readouterr().out
    rows = lesson_03.four_gpus()[1].emulated.by_gpu()
    last = {gpu: max(s[2] for s in rows if s[0] == gpu and s[3] == "compute") for gpu in range(4)}
    assert last[0] > max(last[1], last[2], last[3])


def test_what_others_measured(capsys: pytest.CaptureFixture[str]) -> None:
    figure = lesson_03.show_measured()
    out = " ".join(capsys.readouterr().out.split())
    assert "four GPUs did 1.2 times the work of one with mobilenet_v2, and 2.4 times with vgg16" in out, out
    assert "published" in figure.summary


@pytest.mark.parametrize(("devices", "said"), [(0, "it only called your model"), (4, "over 4 GPUs")])
def test_what_you_saw(
    devices: int, said: str, counted: tuple[Run, dict[int, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lesson_03, "counts", lambda: counted)
    multiplied(1.1, 2.0, monkeypatch)
    words = str(lesson_03.what_you_saw(run([{"devices": devices}]), [1.0, 3e7], [1.0, 0.1], 4))
    assert said in words and "24.0 MiB" in words and "30,000,000" in words and "1.1 times the small products" in words


# --- deeper -----------------------------------------------------------------------------------------------------------


def as_launched(name: str, monkeypatch: pytest.MonkeyPatch, **change: object) -> None:
    """`launch` in the deeper sections runs the program here, and changes what it reports."""

    def launched(path: Path, ranks: int, args: list[Any] = [], **_: Any) -> Run:  # noqa: B006
        records: Records = []
        module = program(name)
        module.report = lambda **values: records.append({k: change.get(k, v) for k, v in values.items()})
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        was = module.comm.broadcast_coalesced if hasattr(module, "comm") else None
        module.main()
        if was:
            module.comm.broadcast_coalesced = was
        return run(records)

    monkeypatch.setattr(deeper, "launch", launched)


@pytest.mark.parametrize(
    ("guess", "said"), [(..., ""), (2.1, "you could plan"), (1, "twice the weights"), (9, "alike"), ("two", "a number")]
)
def test_memory(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    as_launched("03_memory", monkeypatch)
    figure = lesson_03.show_memory(2, guess)
    out = capsys.readouterr().out
    assert said in out, out
    assert "3 more checks passed" in out and "end of backward" in figure.summary


def test_a_bet_that_is_none(
    counted: tuple[Run, dict[int, Run]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_launched("03_memory", monkeypatch)
    memory = deeper.launch("03_memory.py", 1, ["--gpus", 2])
    monkeypatch.setattr(deeper, "launch", lambda *_, **__: memory)
    monkeypatch.setattr(traffic, "counts", lambda: counted)
    multiplied(1.1, 2.0, monkeypatch)
    called = run([{"samples": 24}, {"devices": 0, "rows": 24}])
    monkeypatch.setattr(lesson_03, "four_gpus", four)
    for show in (
        lambda guess: lesson_03.show_one_line(called, guess),
        lambda guess: lesson_03.show_sum(*a_training(4), 4, guess),
        lambda guess: lesson_03.show_memory(2, guess),
        lesson_03.show_four,
        lesson_03.show_traffic,
        lesson_03.show_threads,
    ):
        takes_nonsense(show, capsys)


def test_what_a_replica_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    as_launched("03_replica", monkeypatch)
    lesson_03.show_replica()
    assert "5 more checks passed" in capsys.readouterr().out
    as_launched("03_replica", monkeypatch, tied=False)
    with pytest.raises(ClaimError, match="one matrix"):
        lesson_03.show_replica()


def test_batch_norm_prefix_and_a_model_in_two_parts(capsys: pytest.CaptureFixture[str]) -> None:
    norm, first, all_ = (nn.BatchNorm1d(3) for _ in range(3))
    batch = torch.randn(16, 3) + torch.arange(16)[:, None]
    output = torch.cat([norm(batch.chunk(4)[0]), *(nn.BatchNorm1d(3)(c) for c in batch.chunk(4)[1:])])
    lesson_03.show_norm(norm, first, all_, batch, output, 4)
    lesson_03.show_prefix(run([{"refused": True}, {"changed": False, "missing": 2}, {"loaded": True}]))
    lesson_03.show_partly(run([{"crossed_bytes": 2**16}, {"table_bytes": 2**24, "gap": 0.0}]))
    out = capsys.readouterr().out
    assert out.count("passed") == 3 and "64 KiB cross to a GPU" in out and "16 MiB" in out
    with pytest.raises(ClaimError, match="no weight changes"):
        lesson_03.show_prefix(run([{"refused": True}, {"changed": True, "missing": 2}, {"loaded": True}]))


@pytest.mark.parametrize("n", [2, 4])
def test_six_losses(n: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = places_of(4)
    found["places"][:] = [torch.device("cpu")] * n
    ddp: Records = [
        {"how": "mean", "samples": 12, "factor": 1.0, "off": 1e-16},
        {"how": "sum", "samples": 12, "factor": 0.25, "off": 1e-16},
        {"how": "mean", "samples": 10, "factor": 0.99, "off": 0.5},
        {"how": "sum", "samples": 10, "factor": 0.25, "off": 1e-16},
    ]
    monkeypatch.setattr(deeper, "launch", lambda *_, **__: run(ddp))
    lesson_03.show_six_losses(found["data_parallel"], n)
    out = capsys.readouterr().out
    assert re.search(rf"DP, sum of the replicas' means +x {n}.00 ", out) and "5 more checks passed" in out
    assert re.search(r"DDP, mean on each rank +x 1.00 +x 0.99, bent", out)


# --- the file to take home --------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_the_file_to_take_home_trains_alike_started_either_way(tmp_path: Path) -> None:
    """By python, and by torchrun on 1 and 2 ranks. A wrong factor ends it."""
    saved = []

    def started(ranks: int | None, path: Path) -> subprocess.CompletedProcess[str]:
        args = ["--steps", "20", "--out", str(tmp_path / f"{len(saved)}.pt")]
        if ranks is not None:
            return torchrun(path, *args, ranks=ranks, cwd=tmp_path)
        env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, str(path), *args]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=250, cwd=tmp_path)

    for way, ranks in {"DataParallel": None, "DDP on 1": 1, "DDP on 2": 2}.items():
        answer = started(ranks, lesson_03.TAKE_HOME)
        assert answer.returncode == 0 and re.search(rf"{way}.* samples a second, loss \d", answer.stdout), answer
        saved.append(torch.load(tmp_path / f"{len(saved)}.pt"))
    assert all(torch.allclose(s[name], saved[0][name], atol=1e-4) for s in saved for name in saved[0])
    assert not any(name.startswith("module.") for name in saved[0])
    text = lesson_03.TAKE_HOME.read_text()
    assert text.count("everyone * world_size") == 1
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text.replace("everyone * world_size", "everyone"))
    answer = started(2, wrong)
    assert answer.returncode != 0 and "isn't that of one device" in answer.stderr


def test_what_it_takes_home_reads_in_a_terminal_too() -> None:
    assert str(lesson_03.take_home()) == lesson_03.TAKE_HOME.read_text()
