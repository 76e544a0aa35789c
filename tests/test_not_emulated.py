"""Where the emulated cluster ends: whatever a program calls either works there, or is refused in a sentence that says
*emulated*. Nobody is sent to look for a driver."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from course_utils.emulation import not_emulated
from course_utils.emulation.imports import after_import
from course_utils.emulation.not_emulated import LIMITS
from course_utils.launching.launcher import RankError, launch

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all

HEAD = """
import ctypes, importlib, os, sys, tempfile, warnings
import torch, torch.distributed as dist
from course_utils.rank import report

def outcome(call):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call()
            if hasattr(type(found), "__enter__"):
                with found:
                    pass
        return "works"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
# Modules whose public names are all called, without arguments.
WALKED = (
    "torch.cuda torch.cuda.amp torch.cuda.comm torch.cuda.gds torch.cuda.graphs torch.cuda.green_contexts"
    " torch.cuda.jiterator torch.cuda.memory torch.cuda.nccl torch.cuda.nvtx torch.cuda.profiler torch.cuda.random"
    " torch.cuda.sparse torch.cuda.streams torch.cuda.tunable torch.backends.cuda torch.backends.cudnn"
    " torch.accelerator torch.accelerator.memory torch.accelerator.random torch.accelerator.graphs"
    " torch.distributed._symmetric_memory"
)
WALK = f"""
for module in "{WALKED}".split():
    try:
        names = vars(importlib.import_module(module))
    except ImportError:  # newer than this torch
        continue
    for name, value in list(names.items()):
        own = getattr(value, "__module__", None) or ""
        if callable(value) and not name.startswith("_") and (own.startswith("torch") or own == "builtins"):
            report(walked=f"{{module}}.{{name}}", said=outcome(value))
"""
# What must be true.
RIGHT = r"""
torch.cuda.cudart().cudaMemGetInfo(0) == torch.cuda.mem_get_info(0)
torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart()) is None
(torch.cuda.profiler.start(), torch.cuda.profiler.stop()) == (None, None)
[torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.range_push("b")] == [0, 1]
[torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.range_pop()] == [1, 0]
torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("c")) is None
torch.cuda.set_per_process_memory_fraction(0.5) is None and torch.cuda.get_per_process_memory_fraction() == 0.5
hasattr(torch.cuda.use_mem_pool, "__wrapped__")
torch.cuda.default_generators[1].device == torch.device("cuda", 1)
torch.cuda.get_rng_state(1).dtype == torch.uint8 and torch.cuda._get_rng_state_offset() == 0
torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated()
torch.cuda.memory.get_allocator_backend() == "native"
torch.cuda.Stream.priority_range()[0] == 0
torch.cuda.FloatTensor(2, 3).is_cuda and torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
[isinstance(torch.ones(2, device=d), torch.cuda.FloatTensor) for d in ("cuda", "cpu")] == [True, False]
torch.ones(2).type(torch.cuda.HalfTensor).type() == "torch.cuda.HalfTensor"
torch.ones(2, device="cuda:1").type("torch.cuda.LongTensor").device.index == 1
torch.ones(2, device="cuda").type(torch.FloatTensor).device.type == torch.ones(2).type(torch.int8).device.type == "cpu"
not hasattr(torch.ones(2, device="cuda"), "__cuda_array_interface__")
torch.from_dlpack(torch.ones(2)).tolist() == [1, 1]
torch.ones(2, device="cuda").share_memory_().is_cuda and torch.ones(2, device="cuda").is_shared()
torch.ones(2).share_memory_().is_shared()
[part.device.index for part in torch.cuda.comm.scatter(torch.arange(4), [0, 1])] == [0, 1]
torch.cuda.comm.gather(torch.cuda.comm.scatter(torch.arange(2).cuda(), [1, 0]), destination="cpu").tolist() == [0, 1]
torch.cuda.comm.reduce_add(torch.cuda.comm.broadcast(torch.ones(2), [0, 1]), 1).tolist() == [2, 2]
(torch.backends.cuda.cufft_plan_cache.size, torch.backends.cuda.cufft_plan_cache[1].max_size) == (0, 4096)
torch.cuda.memory._set_allocator_settings("expandable_segments:True") is None
torch.backends.cudnn.version() is None or torch.backends.cudnn.version() > 8000
torch.compile(torch.nn.Linear(2, 2).cuda(), mode="reduce-overhead")(torch.ones(1, 2).cuda()).shape == (1, 2)
(torch.Event("cuda").query(), torch.Stream(device="cuda:1").device.index) == (True, 1)
torch.cuda.current_stream().cuda_stream == 0 != torch.ones(2, device="cuda").data_ptr()
torch.UntypedStorage(8, device="cuda").nbytes() == torch.cuda.FloatStorage(2).nbytes() == 8
torch.fft.fft(torch.ones(4, device="cuda")).device.type == "cuda"
torch.fft.rfft(torch.randn(1 << 17, device="cuda")).shape == (1 + (1 << 16),)
"""
# Of each limit, calls that it refuses. Most are statements.
REFUSED: dict[str, list[str]] = {
    "GRAPHS": [
        "torch.cuda.CUDAGraph()",
        "torch.cuda.graph(None)",
        "torch.cuda.make_graphed_callables(None, ())",
        "torch.accelerator.Graph()",
    ],
    "TORCHSCRIPT": ["torch.jit.script(torch.nn.Linear(1, 1).cuda())", "torch.jit.trace(len, [])"],
    "TRITON": [
        "import triton; triton.runtime.driver.active.get_current_device()",
        "import triton.testing; triton.testing.do_bench(len)",
    ],
    "KERNELS": [
        "torch.cuda._compile_kernel('', 'add')",
        "torch.cuda.jiterator._create_jit_fn('template <typename T> T f(T x) { return x; }')(torch.ones(2).cuda())",
        "from torch.utils.cpp_extension import load_inline;"
        " load_inline('a', '', cuda_sources='__global__ void f() {}', build_directory=tempfile.mkdtemp())",
        "from torch.utils.cpp_extension import load; load('b', ['b.cu'], build_directory=tempfile.mkdtemp())",
        "from torch.utils.cpp_extension import CUDAExtension; CUDAExtension('c', ['c.cu'])",
    ],
    "AHEAD": ["import torch._inductor; torch._inductor.aoti_compile_and_package(None)"],
    "SYMMETRIC": [
        "import torch.distributed._symmetric_memory as m; m.empty(2, device='cuda')",
        "import torch.distributed._symmetric_memory as m; m.enable_symm_mem_for_group('0')",
        "torch.ops.symm_mem.one_shot_all_reduce(torch.ones(2).cuda(), 'sum', '0')",
        "torch.ops.symm_mem.one_shot_all_reduce(torch.ones(1 << 20).cuda(), 'sum', '0')",
    ],
    "RPC": ["import torch.distributed.rpc as rpc; rpc.init_rpc('a', rank=0, world_size=1)"],
    "ADDRESSES": [
        "torch.ones(2).cuda().__cuda_array_interface__",
        "torch.from_dlpack(torch.ones(2).cuda())",
        "torch.utils.dlpack.to_dlpack(torch.ones(2).cuda())",
        "import numpy; numpy.from_dlpack(torch.ones(2).cuda())",
        "torch.cuda.ExternalStream(7)",
        "torch.cuda.get_stream_from_external(7)",
        "torch.cuda.caching_allocator_alloc(512)",
    ],
    "PROCESSES": [
        "import torch.multiprocessing as mp; mp.get_context('spawn').SimpleQueue().put(torch.ones(2).cuda())",
        "import torch.multiprocessing as mp; mp.get_context('spawn').SimpleQueue().put(torch.nn.Linear(1, 1).cuda())",
        "torch.cuda.Event(interprocess=True).ipc_handle()",
    ],
    "POOLS": [
        "torch.cuda.MemPool()",
        "with torch.cuda.use_mem_pool(None): pass",
        "torch.cuda.memory.CUDAPluggableAllocator('a.so', 'a', 'b')",
    ],
    "PARTS": ["torch.cuda.GreenContext.create(num_sms=8)"],
    "STORAGE": ["torch.cuda.gds.GdsFile('a', os.O_RDWR)", "torch.cuda.gds.gds_register_buffer(None)"],
    "NCCL": [
        "torch.cuda.nccl.all_reduce([torch.ones(2).cuda()])",
        "torch.cuda.nccl.unique_id()",
        "dist.ProcessGroupNCCL(dist.HashStore(), 0, 1)",
    ],
    "TUNING": ["torch.cuda.tunable.enable()", "torch.cuda.tunable.set_filename('a.csv')"],
    "TENSORFLOW": ["import tensorflow"],
    "CUDA_ONLY": ["torch._cudnn_init_dropout_state(0.5, True, 1, device='cuda')"],
    "DRIVER": [
        "torch.cuda._sleep(100)",
        "torch._C._cuda_sleep(100)",
        "torch._C._cuda_thatNoTorchHas()",
        "torch.cuda.cudart().cudaStreamCreate(0)",
        "ctypes.CDLL('libcuda.so.1')",
        "ctypes.CDLL('/usr/local/cuda/lib64/libcudart.so.13')",
        "from cuda.bindings import driver; driver.cuInit(0)",
        "torch.cuda._utils._get_cuda_library()",
    ],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one emulated rank said to all of it."""
    folder = tmp_path_factory.mktemp("not_emulated")
    script = folder / "walk.py"
    calls = [call for calls in REFUSED.values() for call in calls]
    script.write_text(
        f"{HEAD}\ndist.init_process_group()\n{WALK}"
        f"for check in {RIGHT.strip().splitlines()!r}:\n"
        "    report(check=check, said=outcome(lambda: eval(check) is True or 1 / 0))\n"
        f"for call in {calls!r}:\n"
        "    report(call=call, said=outcome(lambda: exec(call, globals())))\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_HOME", str(folder))
        records = launch(script, 1, cluster="2xV100", quiet=True, timeout=150).ranks[0].records
    return {
        kind: {record[kind]: record["said"] for record in records if kind in record}
        for kind in ("walked", "check", "call")
    }


def test_every_public_name_answers_or_says_emulated(found: dict[str, Any]) -> None:
    walk = found["walked"]
    false = {name: said for name, said in walk.items() if not_emulated.really(said)}
    assert len(walk) > 250 and not false, false
    # NVML's own answer to what it doesn't know; a remark says that the GPU is a modelled one.
    expected = "works|TypeError|.*emulated|NVMLError_NotSupported"
    others = {name: said for name, said in walk.items() if not re.match(expected, said)}
    assert not others, others


@pytest.mark.parametrize("check", RIGHT.strip().splitlines())
def test_what_can_be_modelled_works(check: str, found: dict[str, Any]) -> None:
    assert found["check"][check] == "works"


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in REFUSED.items() for call in calls])
def test_what_cannot_be_emulated_says_so_and_names_the_way_out(name: str, call: str, found: dict[str, Any]) -> None:
    for module in ("triton", "cuda.bindings"):
        if module in call:
            pytest.importorskip(module)
    limit = getattr(not_emulated, name)
    said = found["call"][call]
    assert "an emulated cluster can't run " in said and f"{limit.why}. {limit.instead}." in said, said


def test_the_list_is_whole_and_the_documents_show_it() -> None:
    assert [getattr(not_emulated, name) for name in REFUSED] == list(LIMITS)
    rows = re.findall(r"(?m)^\| (.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs" / "emulated_gpus.md").read_text())
    assert [row for row in rows if row in {limit[:3] for limit in LIMITS}] == [limit[:3] for limit in LIMITS]


def test_a_module_is_changed_though_somebody_has_only_looked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libraries do that ask whether pynvml is installed."""
    (tmp_path / "looked_for.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    calls: list[str] = []
    for who in ("first", "second"):
        after_import("looked_for", functools.partial(calls.append, who))
    finders = len(sys.meta_path)
    assert importlib.util.find_spec("looked_for") and importlib.util.find_spec("looked_for") and not calls
    importlib.import_module("looked_for")
    assert sorted(calls) == ["first", "second"] and len(sys.meta_path) == finders - 2
    sys.modules.pop("looked_for")


def test_torchs_compiler_can_be_imported_late() -> None:
    """A warm rank has it already; a cold one imports it when torch's functions are replaced, and it looks at each."""
    code = (
        "from course_utils.emulation.clusters import cluster; from course_utils.emulation import activate\n"
        "activate(cluster('2xT4').to_json(), 0, 1)\nimport torch._dynamo"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


FALSE = {
    "torch": "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "triton": "libcuda.so cannot found!\nPlease make sure GPU is set up",
    "runtime": "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
    "built": "Torch not compiled with CUDA enabled",
    "linked": "PyTorch is not linked with CUDA",
    "context": "module 'torch._C' has no attribute '_cuda_hasPrimaryContext'",
    "bindings": "Failed to dlopen libcuda.so.1",
}


@pytest.mark.parametrize("said", FALSE.values(), ids=FALSE)
def test_a_message_about_a_missing_driver_is_recognized(said: str) -> None:
    assert not_emulated.really(f"RuntimeError: {said}").startswith("An emulated cluster can't run ")


@pytest.mark.parametrize(
    "said",
    [
        "ValueError: on purpose",
        "AcceleratorError: CUDA error: invalid device ordinal (cuda:2, and 2xT4 has 2 in a node)",
        "OutOfMemoryError: CUDA out of memory (emulated). Tried to allocate 1 MiB",
        "NotEmulated: an emulated cluster can't run libcuda.so.1: ...",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
    ],
)
def test_any_other_message_stands_alone(said: str) -> None:
    assert not not_emulated.really(said)


def test_a_failure_puts_the_sentence_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    script = tmp_path / "driver.py"
    script.write_text('raise RuntimeError("Found no NVIDIA driver on your system.")\n')
    with pytest.raises(RankError) as error:
        launch(script, 1, cluster="1xT4", quiet=True)
    assert str(error.value).startswith("An emulated cluster can't run what calls the CUDA driver itself")
    with pytest.raises(RankError) as error:
        launch(script, 1, device="cpu", quiet=True)
    assert str(error.value).startswith("rank 0 failed first: RuntimeError: Found no NVIDIA driver")
