"""Lesson 08: number formats; what the page says of its experiments, for every guess; its figures; and the file to take
home."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from by_torchrun import torchrun
from conftest import ROOT, concludes_nothing, disturb, made_run, takes_nonsense

import lesson_08
from course_utils import Run, launch
from course_utils.cells.claims import ClaimError
from course_utils.predict import Bracket
from course_utils.predict.precision import FORMATS, Format
from course_utils.results.provenance import Provenance
from course_utils.results.samples import Samples
from lesson_08 import small_gradients, speeds
from lesson_08.pictures import percent
from lesson_08.speeds import Step

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8 e5m2": torch.float8_e5m2,
    "fp8 e4m3": torch.float8_e4m3fn,
}
Said = pytest.CaptureFixture[str]


def run(*records: dict[str, Any], script: Path = lesson_08.TAKE_HOME) -> Run:
    return made_run(list(records), script=script)


def text(capsys: Said) -> str:
    return capsys.readouterr().out.replace("\n", " ")


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TORCH)
def test_bits_give_what_torch_says(name: str) -> None:
    info, counted = torch.finfo(TORCH[name]), FORMATS[name]
    assert (counted.bits, counted.max, counted.eps, counted.smallest_normal) == (
        info.bits,
        info.max,
        info.eps,
        info.smallest_normal,
    )
    kept = (
        torch.tensor([counted.smallest, counted.smallest * 0.49], dtype=torch.float64).float().to(TORCH[name]).double()
    )
    assert kept[0] == counted.smallest or name == "fp32", "it is a number of the format"
    assert kept[1] == 0


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16() -> None:
    assert FORMATS["TF32"].eps == FORMATS["fp16"].eps
    assert FORMATS["TF32"].smallest_normal == FORMATS["fp32"].smallest_normal
    assert FORMATS["TF32"].bits == 19


@pytest.mark.parametrize(("exponent", "mantissa"), [(1, 3), (0, 3), (4, 0)])
def test_a_format_needs_bits(exponent: int, mantissa: int) -> None:
    with pytest.raises(ValueError, match="above zero|positive|mantissa|exponent"):
        Format("none", exponent, mantissa)


def test_the_first_picture_and_its_text_have_the_right_ends() -> None:
    """Section 1: the ends of the bars, 65,504, 0.00000006, 1/128, and the bit that makes 1 infinite."""
    smallest = {name: math.log2(FORMATS[name].smallest) for name in ("fp32", "bf16", "fp16")}
    assert smallest == {"fp32": -149, "bf16": -133, "fp16": -24}
    assert FORMATS["fp16"].max == 65504 and f"{FORMATS['fp16'].smallest:.8f}" == "0.00000006"
    bf16 = FORMATS["bf16"]
    assert bf16.eps == 1 / 128 and math.isinf(bf16.value(bf16.pattern(1.0) ^ 1 << 14))
    weight = torch.ones((), dtype=torch.bfloat16)
    for _ in range(1000):
        weight += 0.003
    assert weight == 1, "section 3: a thousand times, and still 1"


# --- one line ---------------------------------------------------------------------------------------------------------


def types(weight: str = "float32") -> Run:
    found = {"weight": weight, "gradient": weight, "output": "bfloat16", "loss": "float32"}
    return run(*({"name": name, "dtype": f"torch.{dtype}"} for name, dtype in found.items()))


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "1 of 4 has 16 bits."),
        (1, "You said 1: the output, and nothing else."),
        (2, "You said 2. It's only the output. A gradient is cast to its weight's type"),
        (4, "You said 4. The weights keep their type"),
        (0, "You said 0. The last layer multiplies in 16 bits"),
    ],
)
def test_the_types(guess: Any, said: str, capsys: Said) -> None:
    table = lesson_08.show_types(types(), guess)
    out = text(capsys)
    assert said in out and "✓ under autocast the output has 16 bits" in out
    assert re.search(r"output +bfloat16 +2", str(table)) and re.search(r"loss +float32 +4", str(table))
    with pytest.raises(ClaimError, match="float32"):
        lesson_08.show_types(types("bfloat16"), guess)


def frozen(same: float = 0.75, low: float = 5.5) -> Run:
    ends = {"float32": (0.0, 4.9), "autocast to bf16": (0.0, 4.9), "bf16 model": (same, low)}
    records = []
    for way, (kept, last) in ends.items():
        records += [{"way": way, "power": 0, "step": i, "loss": 5.7 if i == 0 else last} for i in range(20)]
        records.append({"way": way, "power": 0, "same": kept})
        records += [{"way": way, "power": 0, "exponent": e, "kept": 70, "moved": 30} for e in (-6, -5, 0)]
    return run(*records)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "After 200 steps 75% of the bf16 model's weights are where they began."),
        (80, "You said 80%: you know how coarse bf16 is."),
        ("75%", "You said 75%: you know"),
        (100, "You said 100%. The small ones do move."),
        (5, "You said 5%. For a weight above 1/32 half the way to its neighbour is longer than a step of 0.0001."),
    ],
)
def test_the_frozen_weights(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(lesson_08, "frozen", frozen)
    figure = lesson_08.show_frozen(guess)
    out = text(capsys)
    assert said in out and "from 5.70 to 5.50. With autocast it went to 4.90, and in float32 to 4.90." in out
    assert "75%" in str(figure.mpl.get_suptitle()) and "from 1/32: 23.3% never moved, 10.0% did" in figure.summary
    monkeypatch.setattr(lesson_08, "frozen", lambda: frozen(0.2))
    with pytest.raises(ClaimError, match="over half"):
        lesson_08.show_frozen(guess)


def test_the_step_that_is_lost_is_where_bf16_says() -> None:
    """A step of 1e-4 is lost on weights from 1/32 on, and not below."""
    for weight, lost in ((1 / 32, True), (1.0, True), (1 / 33, False), (1 / 64, False)):
        stored = torch.tensor(weight, dtype=torch.bfloat16)
        assert bool(stored + lesson_08.RATE == stored) == lost, weight


# --- speeds -----------------------------------------------------------------------------------------------------------

STEPS = {
    "A100": {"fp32": Step(0.494, 8.5e9), "TF32": Step(0.089, 8.5e9), "bf16": Step(0.0625, 6.3e9)},
    "A100, one short text": {"fp32": Step(0.015, 3e9), "TF32": Step(0.0134, 3e9), "bf16": Step(0.0153, 3e9)},
    "T4": {"fp32": Step(1.293, 8.5e9), "bf16": Step(1.765, 14e9), "fp16": Step(0.341, 6.3e9)},
}
EIGHT = {"fp32": 7.9, "TF32": 5.3, "bf16": 4.0}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lesson_08, speeds):
        monkeypatch.setattr(module, "steps", lambda: STEPS)
        monkeypatch.setattr(module, "eight", lambda: EIGHT)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "74%: at its fullest moment it holds 6.3 GB, and 8.5 in float32."),
        (74, "You said 74%: you remembered what stays in float32."),
        (50, "You said 50%. That's half the bits everywhere. But"),
        (20, "You said 20%. 16-bit copies of the weights come on top"),
        (95, "You said 95%. Activations do shrink."),
        (0.7, "You said 0.7%, so less than one of a hundred. Did you mean 70%?"),
        (110, "Your bet should be a percentage, such as 60."),
        (0, "Your bet should be a percentage, such as 60."),
    ],
)
def test_the_steps(guess: Any, said: str, emulated: None, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    figure = lesson_08.show_steps(guess)
    out = text(capsys)
    assert said in out and "494 ms in float32, 89 with TF32 and 62 with autocast" in out and "a factor of 1.4" in out
    assert (
        "74%: at its fullest moment it holds 6.3 GB, and 8.5 in float32" in out
        and "T4, bf16: emulated" in figure.summary
    )
    slow = STEPS | {"A100": STEPS["A100"] | {"bf16": Step(0.2, 6.3e9)}}
    monkeypatch.setattr(speeds, "steps", lambda: slow)
    with pytest.raises(ClaimError, match="over 5 times"):
        lesson_08.show_steps(guess)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "7.9 times in float32, 5.3 in TF32, and 4.0 in bf16."),
        (4, "You said 4 times: you asked what the messages do."),
        (8, "You said 8 times. That's float32's number"),
        (7.9, "You said 7.9 times. That's float32's number"),
        (6, "You said 6 times. The step got shorter"),
        (1, "You said 1 times. Part of the sending still hides"),
    ],
)
def test_eight(guess: Any, said: str, emulated: None, capsys: Said) -> None:
    figure = lesson_08.show_eight(guess)
    assert said in text(capsys)
    assert "7.9 times one in float32, 4.0 in bf16" in str(figure.mpl.get_suptitle())


def test_the_page_says_what_the_emulated_gpus_say() -> None:
    """When their model gets better, the first paragraphs and the question about eight have to follow."""
    found = speeds.steps()
    ms = {(gpu, way): f"{step.s * 1e3:,.0f}" for gpu, row in found.items() for way, step in row.items()}
    a100, t4 = found["A100"], found["T4"]
    page = (ROOT / "notebooks" / "08_mixed_precision.ipynb").read_text()
    gain, left = a100["fp32"].s / a100["bf16"].s, a100["TF32"].s / a100["bf16"].s
    short = found["A100, one short text"]
    assert f"Same code: {gain:.0f} times as fast, {left:.1f} times, or slower?" in page, (gain, left)
    assert (
        f"takes {ms['A100', 'fp32']} ms for a training step on an emulated A100. You add one line, and it takes" in page
    ), ms
    assert f"it takes {ms['A100', 'bf16']}. Seven times as fast!" in page and round(gain) == 7, ms
    assert f"brings the old code to {ms['A100', 'TF32']} ms." in page and f"a factor of {left:.1f}." in page, ms
    assert f"makes a step slower: {ms['T4', 'bf16']} ms instead of {ms['T4', 'fp32']}." in page, ms
    assert f"With the other 16-bit type it takes {ms['T4', 'fp16']}." in page, ms
    assert t4["bf16"].s > t4["fp32"].s and short["bf16"].s > short["fp32"].s


def here(half: str, seconds: tuple[float, float], has: list[str], on: str = "cpu") -> Run:
    times = zip(("float32", half), seconds, strict=True)
    return run(
        {"half": half, "has": has, "on": on}, *({"dtype": name, "step_s": s} for name, s in times for _ in range(6))
    )


@pytest.mark.parametrize(
    ("found", "said", "title"),
    [
        (("bfloat16", (0.01, 0.06), []), "Your processor shows no instructions for bf16.", "takes 6 times as long in"),
        (("bfloat16", (0.06, 0.02), ["amx_bf16"]), "your processor has amx_bf16.", "is 3 times as fast in bf16"),
        (("float16", (0.09, 0.03), ["tensor cores"], "cuda"), "in fp16 your GPU has tensor cores.", "3 times as fast"),
    ],
)
def test_your_machine(found: Any, said: str, title: str, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(speeds, "launch", lambda *args, **settings: here(*found))
    figure = lesson_08.show_here()
    assert said in text(capsys) and title in str(figure.mpl.get_suptitle())


def test_a_busy_machine_says_nothing_of_its_speed(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(speeds, "launch", lambda *_, **__: disturb(here("bfloat16", (0.06, 0.02), ["amx_bf16"])))
    figure = lesson_08.show_here()
    concludes_nothing(text(capsys), "what bf16 brings here")
    assert "Too busy" in str(figure.mpl.get_suptitle())


# --- fp16 -------------------------------------------------------------------------------------------------------------


def trained(**changed: float) -> Run:
    """What the program reports: `changed` has other losses at the end for some factors, as in `at_7=5.0`."""
    ends = {-20: 5.7, -16: 4.0, -13: 3.5, -10: 2.7, -7: 2.6, 0: 2.6, 8: 2.6, 16: 2.6, 20: math.nan}
    lost = {-20: 1.0, -16: 0.995, -13: 0.8, -10: 0.4, -7: 0.16}
    ends |= {-int(key.removeprefix("at_")): loss for key, loss in changed.items()}
    records = [{"way": "float32", "power": 0, "loss": 5.7 if i == 0 else 2.6} for i in range(10)]
    for power, end in ends.items():
        records.append({"factor": power, "lost": lost.get(power, 0.0), "infinite": 0.0})
        records += [{"way": "fp16", "power": power, "loss": 5.7 if i == 0 else end} for i in range(10)]
    return run(*records)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "fp16 would make 16% of the activations' gradients zero. The loss ends at 2.60, in float32 at 2.60."),
        ("yes", "You said yes: and you didn't let a number scare you."),
        ("No", "You said no. So you'd think, but the large gradients"),
        (3, "Your bet should be one of these: no, yes."),
        ("maybe", "Your bet should be one of these: no, yes."),
    ],
)
def test_fp16(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(small_gradients, "fp16", trained)
    figure = lesson_08.show_fp16(guess)
    out = text(capsys)
    assert said in out and "Times 2^-13, 80% are lost, and it learns less. Times 2^-20 nothing is left" in out
    assert "times 2^20: NaN" in figure.summary and "times 2^-16: 4, >99% of the gradients lost" in figure.summary
    monkeypatch.setattr(small_gradients, "fp16", lambda: trained(at_7=5.0))
    with pytest.raises(ClaimError, match="many gradients lost"):
        lesson_08.show_fp16(guess)


def test_only_all_are_a_hundred_percent() -> None:
    assert [percent(share) for share in (1.0, 0.995, 0.16, 0.0)] == ["100%", ">99%", "16%", "0%"]


def scaled(skips: list[int], last: float = 2.5, steps: int = 60) -> Run:
    """A scaler's life with these steps skipped, and a doubling after ten good ones in a row."""
    scale, good, records = 2.0**32, 0, []
    for i in range(steps):
        skip = i in skips
        records.append({"loss": 5.7 + (last - 5.7) * i / (steps - 1), "scale": scale, "skipped": skip})
        good = 0 if skip else good + 1
        scale = scale / 2 if skip else scale * 2 if good == 10 else scale
        good %= 10
    return run(*records)


SKIPS = [*range(14), 24, 35]


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (..., "It skips 16 of 60 steps: the first 14, until S fits, and 2 later, when S had doubled or"),
        (15, "You said 15: a good eye for logarithms."),
        (40, "You said 40. Halving is fast"),
        (3, "You said 3. It only halves"),
    ],
)
def test_the_scaler(guess: Any, said: str, capsys: Said) -> None:
    figure = lesson_08.show_scaler(scaled(SKIPS), guess)
    out = text(capsys)
    assert said in out and "The loss falls from 5.70 to 2.50 all the same." in out
    assert figure.mpl.get_suptitle() == "16 of 60 steps skipped"
    for never, what in ((scaled(SKIPS, last=5.6), "fp16 learns"), (scaled(list(range(60))), "finds its scale")):
        with pytest.raises(ClaimError, match=what):
            lesson_08.show_scaler(never, guess)


# --- stairs -----------------------------------------------------------------------------------------------------------

TIDY = """
import torch
from torch.nn.functional import cross_entropy
from course_utils.rank import report
torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 16), torch.randint(4, (32,))
for epoch in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(3):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            report(loss=loss)
"""


@pytest.mark.timeout(60)
def test_the_stairs(tmp_path: Path, capsys: Said) -> None:
    """A block around an epoch really makes them, and one that forgets its copies in each step doesn't."""
    program = tmp_path / "tidy.py"
    program.write_text(TIDY)
    tidy = launch(program, 1, device="cpu", threads=1, quiet=True)
    figure = lesson_08.show_tidy(tidy, "stairs")
    out = text(capsys)
    assert "the loss is the same in all 3 steps" in out and "You said stairs: and it didn't take you a week" in out
    assert "✓ with one block an epoch, the loss stands still" in out and "a block in each step" in figure.summary
    right = lesson_08._forgetting(tidy)
    with pytest.raises(ClaimError, match="stands still"):
        lesson_08.show_tidy(right)
    program.write_text(TIDY.replace("optimizer.step()", "pass"))
    with pytest.raises(ValueError, match="0 times, and should be there once"):
        lesson_08._forgetting(run(script=program))


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ("fall", "You said fall. It does, once an epoch."),
        ("Stand still", "You said stand still. Within an epoch, yes."),
        ("nan", "You said nan. That would be easy to see."),
        ("up", "Your bet should be one of these: fall, nan, stairs, stand still."),
    ],
)
def test_bets_on_the_stairs(guess: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    right = run(*({"loss": 2.0 - 0.1 * i} for i in range(8)))
    monkeypatch.setattr(lesson_08, "_forgetting", lambda tidy: right)
    lesson_08.show_tidy(run(*({"loss": loss} for loss in (2.0, 2.0, 1.8, 1.8, 1.6, 1.6, 1.4, 1.4))), guess)
    assert said in text(capsys)


def test_a_bet_that_is_nonsense_gets_a_kind_word(emulated: None, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(lesson_08, "frozen", frozen)
    monkeypatch.setattr(small_gradients, "fp16", trained)
    shown = (
        lambda guess: lesson_08.show_types(types(), guess),
        lesson_08.show_frozen,
        lesson_08.show_steps,
        lesson_08.show_eight,
        lesson_08.show_fp16,
        lambda guess: lesson_08.show_scaler(scaled(SKIPS), guess),
    )
    for show in shown:
        takes_nonsense(show, capsys)


def test_what_you_saw(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson_08, "frozen", frozen)
    tidy = run(*({"loss": loss} for loss in (2.0, 2.0, 1.8, 1.8)))
    said = str(lesson_08.what_you_saw(types(), scaled(SKIPS), tidy))
    assert "Under autocast the output was bfloat16." in said and "75% of the weights ended where they began" in said
    assert "7.9 times as fast as float32, and 1.4 times as fast as TF32" in said and "fp16 was 3.8 times" in said
    assert "skipped 16 of 60 steps" in said and "the loss had 2 values in 4 steps" in said


# --- the file to take home --------------------------------------------------------------------------------------------


def losses(stdout: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+) in ", stdout)]


@pytest.mark.timeout(120)
def test_the_file_to_take_home_trains_alike_on_one_rank_and_on_two(tmp_path: Path) -> None:
    """Under torchrun, in bf16; the second run on two ranks goes on from the first one's last epoch."""
    found = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        answer = torchrun(lesson_08.TAKE_HOME, ranks=ranks, cwd=folder)
        assert answer.returncode == 0, answer.stderr
        assert "in torch.bfloat16" in answer.stdout and "loss scale" not in answer.stdout
        found.append(losses(answer.stdout))
    one, two = found
    assert len(one) == 3 and one[2] < one[1] < one[0] and all(abs(a - b) < 0.01 for a, b in zip(one, two, strict=True))
    saved = torch.load(tmp_path / "2" / "08_amp.pt")
    assert {p.dtype for p in saved["model"].values()} == {torch.float32} and saved["epoch"] == 2


IN_FP16 = """
import importlib.util, os, sys
import torch
os.chdir({folder!r})
spec = importlib.util.spec_from_file_location("take_home", {path!r})
take_home = importlib.util.module_from_spec(spec)
spec.loader.exec_module(take_home)
whole = take_home.data

def data(n):
    samples = whole(n)
    samples.tensors[0][100, 0] = 1e6        # beyond fp16
    return samples

clip, norms = torch.nn.utils.clip_grad_norm_, []

def noted(*args, **kwargs):
    norms.append(clip(*args, **kwargs))
    return norms[-1]

torch.nn.utils.clip_grad_norm_ = noted
take_home.data = data
sys.argv[1:] = {args!r}
take_home.main()
found = torch.stack(norms)
print("largest norm", found[found.isfinite()].max().item(), "of", len(found))
"""


@pytest.mark.timeout(120)
def test_the_file_to_take_home_skips_and_goes_on_in_fp16(tmp_path: Path) -> None:
    """One sample that fp16 can't hold: both ranks skip that step, halve S, and leave the schedule where it is. What's
    saved goes on."""
    program = tmp_path / "in_fp16.py"

    def go(*args: str) -> str:
        settings = {"path": str(lesson_08.TAKE_HOME), "folder": str(tmp_path), "args": ["--dtype", "float16", *args]}
        program.write_text(IN_FP16.format(**settings))
        return launch(program, 2, device="cpu", threads=1, quiet=True, timeout=100).log(0)

    log = go("--epochs", "2")
    assert re.findall(r"loss scale ([\d.e+]+), (\d+) steps skipped", log) == [("32768", "1"), ("16384", "1")], log
    largest, clips = re.findall(r"largest norm ([\d.]+) of (\d+)", log)[0]
    assert float(largest) < 100 and int(clips) == 2 * 21, "what's clipped are the true gradients, not S times as large"
    saved = torch.load(tmp_path / "08_amp.pt")
    assert saved["schedule"]["last_epoch"] == 2 * 21 - 2 and saved["scaler"]["scale"] == 2.0**14
    assert all(p.isfinite().all() for p in saved["model"].values())
    log = go("--epochs", "3", "--resume")
    assert "epoch 1" not in log and re.search(r"epoch 2: .* loss scale 8192, 1 steps skipped", log), log


# --- figures ----------------------------------------------------------------------------------------------------------


def test_brackets_count_what_lies_inside_and_name_sources() -> None:
    published = Samples([2.63], "ratio", Provenance("published", "an A100"))
    figure = lesson_08.brackets(
        {"MLP": Bracket(1.5, 3.0), "CNN": Bracket(2.0, 2.0)}, {"MLP": 2.0, "CNN": published}, guess={"MLP": 4.0}
    )
    assert figure.mpl.get_suptitle() == "1 of 2 speed-ups lie in their bracket"
    assert "MLP: 2, predicted 1.5 to 3, guessed 4" in figure.summary and "CNN: 2.63, predicted 2 to 2" in figure.summary
    assert figure.sources == ["CNN: an A100"]
    labels = figure.mpl.axes[0].get_legend_handles_labels()[1]
    assert sorted(labels) == ["measured", "predicted bracket", "published on an A100", "your guess"]


def test_what_16_bits_brought_a_recorded_gpu_is_drawn_beside_and_judged_by_no_bracket() -> None:
    (theirs,) = [found for found in lesson_08.recorded_speedups() if "H200" in found["MLP"].provenance.machine]
    mine = {"MLP": 0.5, "an own model": 0.5}
    figure = lesson_08.brackets(dict.fromkeys(mine, Bracket(0.4, 0.6)), mine, recorded=[theirs])
    assert figure.mpl.get_suptitle() == "2 of 2 speed-ups lie in their bracket"
    assert f"MLP {theirs['MLP'].median:.2f}, recorded on NVIDIA H200" in figure.summary
    assert "recorded on NVIDIA H200" in figure.mpl.axes[0].get_legend_handles_labels()[1]
    assert 3 < theirs["MLP"].median < 16 and figure.mpl.axes[0].get_xlim()[1] > theirs["MLP"].median


def test_brackets_need_what_they_compare() -> None:
    with pytest.raises(ValueError, match="at least one"):
        lesson_08.brackets({}, {})
    with pytest.raises(KeyError):
        lesson_08.brackets({"MLP": Bracket(1.0, 2.0)}, {})
    assert (
        "No guess was made." in lesson_08.brackets({"MLP": Bracket(1.0, 2.0)}, {"MLP": 1.5}, guess={"MLP": ...}).summary
    )


def test_the_life_of_a_scale_names_the_skipped_steps() -> None:
    figure = lesson_08.loss_scale([4, 8, 4, 4], [False, True, False, False])
    assert figure.mpl.get_suptitle() == "1 of 4 steps skipped"
    assert figure.summary == "The loss scale goes from 4 to 4, at most 8. Skipped steps: 1."
    assert "none" in lesson_08.loss_scale([1.0], [False]).summary
    for scales, skipped in (([], []), ([1.0], [])):
        with pytest.raises(ValueError, match="as many marks as scales"):
            lesson_08.loss_scale(scales, skipped)
