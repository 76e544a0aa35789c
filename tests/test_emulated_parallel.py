"""What runs on several emulated GPUs from one process, by `nn.DataParallel`, and what `torch.compile` brings there."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course_utils.failure.errors import RankError
from course_utils.launching.launcher import launch

HEAD = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from course_utils.rank import report, timer
torch.manual_seed(0)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Launch a program with one process on a cluster; what it reported last."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))

    def start(program: str, cluster: str = "4xA100") -> Any:
        script = tmp_path / "program.py"
        script.write_text(HEAD + textwrap.dedent(program))
        found = launch(script, 1, cluster=cluster, gpus_per_rank="all", quiet=True, timeout=100)
        log = (Path(found.path) / "rank0.log").read_text()
        found.said = [line for line in log.splitlines() if line.startswith("emulated:")]
        return found

    return start


# --- DataParallel -----------------------------------------------------------------------------------------------------


def test_four_replicas_give_the_gradient_of_one_device(run: Callable[..., Any]) -> None:
    """With uneven chunks, tied weights, buffers, keyword arguments, and what isn't a tensor."""
    found = run("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
            self.second.weight = self.first.weight
            self.calls = 0
        def forward(self, x, scale=1, words=()):
            self.calls += 1
            report(rows=len(x), gpu=x.get_device(), words=list(words), mean=self.norm.running_mean.get_device())
            return self.second(self.norm(self.first(x)).relu() * scale)
    import copy
    model = Model().cuda()
    twin = copy.deepcopy(model)
    x, y = torch.randn(11, 8, device="cuda"), torch.randint(8, (11,), device="cuda")
    out = nn.DataParallel(model)(x, scale=2, words=["a"])
    cross_entropy(out, y).backward()
    alone = torch.cat([twin(part, 2) for part in x.chunk(4)])
    cross_entropy(alone, y).backward()
    gaps = [(p.grad - q.grad).abs().max().item() for p, q in zip(model.parameters(), twin.parameters())]
    report(gap=max(gaps), same=torch.equal(out, alone), where=str(out.device), calls=model.calls, kept=len(gaps),
           norm=(model.norm.running_mean - (0.1 * twin.first(x[:3]).mean(0))).abs().max().item())
    """)
    seen = [record for record in found.ranks[0].records if "rows" in record][:4]
    assert [(r["rows"], r["gpu"], r["mean"], r["words"]) for r in seen] == [
        (rows, gpu, gpu, ["a"]) for gpu, rows in enumerate((3, 3, 3, 2))
    ]
    last = found.ranks[0].records[-1]
    assert last["gap"] < 1e-6 and last["same"] and last["where"] == "cuda:0" and last["calls"] == 0
    assert last["kept"] == 5 and last["norm"] < 1e-6, "the running mean is that of the first chunk"
    assert not found.said


REFUSED = {
    "a model on another GPU": (
        "nn.DataParallel(nn.Linear(2, 2).to('cuda:1'))(torch.ones(4, 2))",
        "found one of them on",
    ),
    "a model on the CPU": ("nn.DataParallel(nn.Linear(2, 2))(torch.ones(4, 2))", "found one of them on device: cpu"),
    "a replica that raises": (
        "class M(nn.Linear):\n    def forward(self, x):\n        return 1 / (x.get_device() - 2)\n"
        "nn.DataParallel(M(2, 2).cuda())(torch.ones(4, 2))",
        "Caught ZeroDivisionError in replica 2 on device 2",
    ),
    "a GPU that isn't there": ("nn.DataParallel(nn.Linear(2, 2).cuda(), [0, 4])", "invalid device ordinal"),
    "too much for GPU 0": (
        "m = nn.DataParallel(nn.Linear(1024, 1 << 16).cuda())\nm(torch.empty(1 << 18, 1024, device='cuda'))",
        "CUDA out of memory",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_refuses(what: str, run: Callable[..., Any]) -> None:
    program, says = REFUSED[what]
    with pytest.raises(RankError, match=says):
        run(program)


def test_its_other_forms(run: Callable[..., Any]) -> None:
    """One GPU, no gradients, another place for the outputs, fewer samples than GPUs, the function, scalars, lists."""
    found = run("""
    import warnings
    warnings.simplefilter("ignore")
    class Loss(nn.Linear):
        def forward(self, x):
            return super().forward(x).sum()
    layer, x = nn.Linear(4, 4).cuda(), torch.randn(6, 4)
    right = layer(x.cuda())
    close = lambda out, right=right: bool((out.to("cuda:0") - right).abs().max() < 1e-6)
    with torch.no_grad():
        report(evaluated=close(nn.DataParallel(layer)(x)))
    report(one=close(nn.DataParallel(layer, [0])(x)), function=close(nn.parallel.data_parallel(layer, x.cuda())))
    there = nn.DataParallel(layer, output_device=2)(x)
    report(there=there.get_device(), right=close(there), few=nn.DataParallel(layer)(x[:2]).shape[0])
    loss = Loss(4, 4).cuda()
    losses = nn.DataParallel(loss)(x)
    losses.mean().backward()
    report(losses=list(losses.shape), gradient=loss.weight.grad.is_cuda)
    class Two(nn.Module):
        def forward(self, pair):
            return {"sum": pair[0] + pair[1], "rows": [pair[0]]}
    out = nn.DataParallel(Two())([x.cuda(), x.cuda()])
    report(kinds=sorted(out), rows=out["rows"][0].shape[0])
    table = nn.Embedding(10, 3, sparse=True).cuda()
    nn.DataParallel(table)(torch.arange(8)).sum().backward()
    report(sparse=table.weight.grad.to_dense().sum().item())
    with torch.autocast("cuda", torch.bfloat16):
        report(half=str(nn.DataParallel(layer)(x).dtype))
    """)
    records = {k: v for record in found.ranks[0].records for k, v in record.items()}
    assert records["evaluated"] and records["one"] and records["function"] and records["right"]
    assert (records["there"], records["few"], records["losses"], records["gradient"]) == (2, 2, [3], True)
    assert (records["kinds"], records["rows"]) == (["rows", "sum"], 6)
    assert records["sparse"] == 24.0
    assert records["half"] == "torch.float16", "autocast's type is each thread's own, and parallel_apply passes none on"


LARGE = """
def step_ms(gpus, width=4096, rows=2048, depth=4):
    with torch.device("cuda"):
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
        x = torch.randn(rows * gpus, width)
    wrapped = nn.DataParallel(model, list(range(gpus))) if gpus > 1 else model
    for _ in range(3):
        with timer() as t:
            wrapped(x).square().mean().backward()
    return t.seconds * 1e3
report(ms=[step_ms(n) for n in (1, 2, 4)])
"""


def test_its_times_are_the_same_on_every_machine(run: Callable[..., Any]) -> None:
    """To the last digit; GPUs work at the same time; and it costs what travels."""
    once, again = (run(LARGE).ranks[0].records[-1]["ms"] for _ in range(2))
    assert once == again
    one, two, four = once
    weights_ms = 4 * 4096 * 4096 * 4 / 235e9 * 1e3  # over NVLink 3, once out and once back
    assert one + weights_ms < two < four < 2 * one


def test_gpu_0_holds_more_and_begins_first(run: Callable[..., Any]) -> None:
    found = run("""
    with torch.device("cuda"):
        model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024))
        x = torch.randn(4096, 1024)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        nn.DataParallel(model)(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    report(peaks=[torch.cuda.max_memory_allocated(i) for i in range(4)],
           now=[torch.cuda.memory_allocated(i) for i in (1, 3)])
    """)
    record = found.ranks[0].records[-1]
    weights = 4 * 1024 * 8192 * 2
    assert record["peaks"][0] > record["peaks"][1] + 2 * weights and record["peaks"][1] == record["peaks"][3] > weights
    assert record["now"] == [0, 0], "replicas are thrown away"
    rows = found.emulated.by_gpu()
    assert {row for row, *_ in rows} == {0, 1, 2, 3}
    assert all(any(s[0] == gpu and s[3] == "communication" for s in rows) for gpu in range(4))


def test_replicas_that_wait_for_each_other_come_on(run: Callable[..., Any]) -> None:
    """Each waits until all are there, as a batch norm over all replicas would: they run at the same time after all."""
    found = run("""
    import threading, course_utils.emulation.data_parallel as ours
    ours.STALLED_S = 0.2
    barrier = threading.Barrier(4)
    class Meets(nn.Linear):
        def forward(self, x):
            barrier.wait(30)
            return super().forward(x)
    report(rows=len(nn.DataParallel(Meets(2, 2).cuda())(torch.ones(8, 2))))
    """)
    assert found.value("rows") == 8


# --- streams ----------------------------------------------------------------------------------------------------------

STREAMS = """
import torch
from course_utils.rank import device, report
d = device()
a, x = torch.empty(8192, 8192, device=d, dtype=torch.bfloat16), torch.empty(1 << 26, device=d)
streams = [torch.cuda.Stream() for _ in range(3)]
def seconds(*works):
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for stream, work in zip(streams, works):
        stream.wait_event(begin)
        with torch.cuda.stream(stream):
            work()
    torch.cuda.synchronize()
    end.record(); torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3
product, moves = lambda: a @ a, lambda: x.add_(1)
def late():
    x.add_(1); a @ a
report(one=seconds(product), three=seconds(product, product, product), moves=seconds(moves),
       both=seconds(product, moves), first=seconds(late, product), other=seconds(product, late))
"""


def test_products_on_several_streams_take_turns(tmp_path, monkeypatch):
    """They'd fill the GPU. What moves bytes runs next to them, and a gap is used by whoever is ready."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    (tmp_path / "streams.py").write_text(STREAMS)
    (took,) = launch(tmp_path / "streams.py", 1, cluster="1xA100", quiet=True).ranks[0].records
    assert took["three"] == pytest.approx(3 * took["one"], rel=0.01)
    assert took["moves"] < took["one"] == pytest.approx(took["both"], rel=0.01)
    assert took["other"] == pytest.approx(2 * took["one"], rel=0.01)
    assert took["first"] == pytest.approx(2 * took["one"] + took["moves"], rel=0.01), "the host gave it out first"


# --- torch.compile ----------------------------------------------------------------------------------------------------

IN_PLACE = """
import torch
from course_utils.rank import device, report
d, n = device(), 40_000_000
def bytes_of(call):
    call = torch.compile(call)
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(); call(); end.record(); torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 * 2.039e12 * 0.58 / n
x, y, half = torch.empty(n, device=d), torch.empty(n, device=d), torch.empty(n, device=d, dtype=torch.bfloat16)
def thrice(): x.mul_(2); x.add_(y); x.mul_(3)
def rounds(): half.copy_(x * 2)
def there_and_back(): x.copy_(half); x.mul_(2); half.copy_(x)
def makes():
    z = x + y
    z.mul_(2)
    return z.sum()
weights = torch.nn.Parameter(torch.empty(n, device=d))
weights.grad = torch.empty_like(weights)
adam = torch.optim.AdamW([weights])
report(thrice=bytes_of(thrice), rounds=bytes_of(rounds), there_and_back=bytes_of(there_and_back), makes=bytes_of(makes),
       adam=bytes_of(adam.step))
"""


def test_what_a_compiled_program_changes_in_place_is_read_and_written_once(tmp_path, monkeypatch):
    """Bytes for each of the elements: AdamW reads four numbers of 32 bits, and writes three."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    (tmp_path / "in_place.py").write_text(IN_PLACE)
    (found,) = launch(tmp_path / "in_place.py", 1, cluster="1xA100", quiet=True).ranks[0].records
    once = {"thrice": 12, "rounds": 6, "there_and_back": 8, "makes": 8, "adam": 28}
    for name, nbytes in once.items():
        assert found[name] == pytest.approx(nbytes, rel=0.05), name
    off = {"TORCH_COMPILE_DISABLE": "1"}
    (found,) = launch(tmp_path / "in_place.py", 1, cluster="1xA100", quiet=True, env=off).ranks[0].records
    assert found["thrice"] == pytest.approx(28, rel=0.05), "each operator reads and writes"


PADDED = """
import torch
from course_utils.rank import device, report
d = device()
def took(rows, columns, wrap=lambda f: f):
    a, b = (torch.empty(n, 768, device=d, dtype=torch.bfloat16) for n in (rows, columns))
    call = wrap(lambda: a @ b.t())
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(); call(); end.record(); torch.cuda.synchronize()
    return begin.elapsed_time(end)
for rows in (8192, 8):
    ms = {n: (took(rows, n), took(rows, n, torch.compile)) for n in (50304, 50257)}
    report(rows=rows, even=ms[50304], odd=ms[50257])
"""


def test_a_compiled_program_pads_products_of_odd_rows_where_that_pays(tmp_path, monkeypatch):
    """It copies the smaller matrix, 77 MB, into one whose rows are aligned; not if that takes longer than it brings."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    (tmp_path / "padded.py").write_text(PADDED)
    large, small = launch(tmp_path / "padded.py", 1, cluster="1xA100", quiet=True).ranks[0].records
    (even, same), (eager, compiled) = large["even"], large["odd"]
    assert same == pytest.approx(even, rel=0.01) and eager > 1.5 * even
    copied = 2 * 50257 * 768 * 2 / (2.039e12 * 0.58) * 1e3
    assert compiled == pytest.approx(50257 / 50304 * even + copied, rel=0.01)
    assert small["odd"][1] == pytest.approx(small["odd"][0], rel=0.01)


COMPILED = """
def measure(model, x, how="compile", **options):
    model = torch.compile(model, **options) if how == "compile" else model
    for _ in range(3):
        torch.cuda.synchronize()
        with timer() as forward:
            out = model(x)
        with timer() as backward:
            out.sum().backward()
    return forward.seconds * 1e6, backward.seconds * 1e6, out
class Chain(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n
    def forward(self, x):
        for _ in range(self.n):
            x = x * 2 + 1
        return x
x = torch.randn(1 << 26, device="cuda", requires_grad=True)          # 256 MiB
"""


def test_a_chain_of_operators_reads_and_writes_once(run: Callable[..., Any]) -> None:
    """Forward and backward, 1 operator or 20: what an A100's memory takes for one read and one write."""
    found = run(
        COMPILED
        + """
    for n in (1, 20):
        eager, compiled = measure(Chain(n), x, "eager"), measure(Chain(n), x)
        report(n=n, eager=eager[:2], compiled=compiled[:2])
    """.replace("\n    ", "\n"),
        "1xA100",
    )
    few, many = found.ranks[0].records
    once = 2 * 4 * (1 << 26) / (2.039e12 * 0.58) * 1e6
    assert many["compiled"][0] == pytest.approx(few["compiled"][0], rel=0.02) == pytest.approx(once, rel=0.05)
    assert many["eager"][0] == pytest.approx(40 * once, rel=0.05)
    assert many["compiled"][1] < 3 * once < many["eager"][1]  # with the sum into x.grad, which is no part of it
    assert len(found.said) == 1 and "by a rule" in found.said[0]


def test_what_a_product_reads_is_written(run: Callable[..., Any]) -> None:
    """An activation between two products: written and read once, and not again; made again in backward."""
    found = run(
        COMPILED
        + """
    with torch.device("cuda"):
        model = nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.GELU(), nn.Linear(2048, 2048, bias=False))
        y = torch.randn(1 << 15, 2048)
        bare = nn.Sequential(model[0], model[2])
    report(bare=measure(bare, y)[:2], gelu=measure(model, y)[:2], eager=measure(model, y, "eager")[:2])
    """.replace("\n    ", "\n"),
        "1xA100",
    )
    record = found.ranks[0].records[-1]
    tensor = 4 * (1 << 15) * 2048 / (2.039e12 * 0.58) * 1e6
    assert record["gelu"][0] - record["bare"][0] == pytest.approx(2 * tensor, rel=0.1)
    assert all(record["gelu"][i] < 1.001 * record["eager"][i] for i in (0, 1))


FORMS = """
layer, y = nn.Linear(8, 8).cuda(), torch.randn(2, 8, device="cuda")
made = torch.compile(layer)
assert list(made.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"] and made.weight is layer.weight
made.eval()
assert not layer.training and not made.training and torch.equal(made(y), layer(y)) and torch.compile(made) is made
import copy, pickle
twin = copy.deepcopy(made)
assert twin._orig_mod is not layer and torch.equal(twin(y), layer(y))
made.note = 3
assert layer.note == 3 and [n for n, _ in made.named_parameters()] == ["_orig_mod.weight", "_orig_mod.bias"]
assert len(torch.compile(nn.Sequential(layer))) == 1
layer.compile()
assert torch.equal(layer(y), twin(y)) and list(layer.state_dict()) == ["weight", "bias"]
@torch.compile(mode="reduce-overhead")
def double(x):
    '''Twice.'''
    return {"it": [x * 2]}
assert double.__doc__ == "Twice." and torch.equal(double(y)["it"][0], 2 * y)
assert torch.compile(layer, disable=True) is layer and torch.compile(layer, backend="eager") is layer
try:
    torch.compile(lambda x: 1 / 0)(y)
except ZeroDivisionError:
    report(done=True)
nn.DataParallel(torch.compile(nn.Linear(8, 8).cuda()))(torch.randn(8, 8)).sum().backward()
big = torch.compile(nn.Linear(512, 512).cuda())
optimizer = torch.optim.SGD(big.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad(); big(torch.randn(256, 512, device="cuda")).relu().mean().backward(); optimizer.step()
"""


def test_what_it_gives_back_is_as_torchs(run: Callable[..., Any]) -> None:
    assert run(FORMS, "2xA100").value("done")


def test_cuda_graphs_spare_the_host(run: Callable[..., Any]) -> None:
    """Many tiny products: the host's part goes, and the launches stay."""
    found = run(
        COMPILED
        + """
    small = nn.Sequential(*[nn.Linear(16, 16) for _ in range(50)]).cuda()
    z = torch.randn(4, 16, device="cuda")
    times = {name: measure(small, z, **options)[0] for name, options in
             (("eager", {"how": "eager"}), ("compiled", {}), ("graphed", {"mode": "reduce-overhead"}))}
    report(**times)
    """.replace("\n    ", "\n"),
        "1xA100",
    )
    times = found.ranks[0].records[-1]
    assert times["graphed"] < times["compiled"] < 1.001 * times["eager"]
    assert times["graphed"] == pytest.approx(50 * 4, rel=0.2)  # 4 us between two kernels
