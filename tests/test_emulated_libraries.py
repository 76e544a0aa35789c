"""What libraries such as transformers, accelerate and timm take for granted of torch, in plain torch: each check is one
at which such a library failed on modelled GPUs."""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.fsdp  # noqa: F401 - names for the first test

from course_utils.launching.launcher import launch

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Launch a program on an emulated cluster, with a module `library` that it can import."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))

    def start(program: str, ranks: int = 1, cluster: str = "2xA100", library: str = "") -> Any:
        (tmp_path / "library.py").write_text(textwrap.dedent(library))
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(program))
        return launch(script, ranks, cluster=cluster, quiet=True, timeout=100)

    return start


LIBRARY = """
import torch
from torch import Generator

class Cached:
    graph: torch.cuda.CUDAGraph | None = None

class Graphed(torch.cuda.CUDAGraph):
    pass

class Capture(torch.cuda.graph):
    pass

def draw(generator: torch.Generator | None = None, stream: torch.cuda.Stream | torch.Stream | None = None,
         event: torch.cuda.Event | torch.Event | None = None) -> bool:
    return isinstance(generator, torch.Generator)
"""


def test_classes_stay_classes(run: Callable[..., Any], tmp_path: Path) -> None:
    """In annotations, in isinstance, and as bases: whatever is a class in torch is one on a modelled GPU."""
    names = [
        (module.__name__, name)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").partition(".")[0] in ("torch", "time", "datetime", "threading", "timeit")
        for name, found in list(vars(module).items())
        if inspect.isclass(found)
    ]
    assert ("torch.cuda", "CUDAGraph") in names and len(names) > 5000
    (tmp_path / "names.json").write_text(json.dumps(names))
    run(
        """
        import copy, inspect, json, pickle, sys, torch
        from pathlib import Path
        import library

        here = Path(__file__).parent
        gone = [(module, name) for module, name in json.loads((here / "names.json").read_text())
                if module in sys.modules and name in vars(sys.modules[module])
                and not inspect.isclass(vars(sys.modules[module])[name])]
        assert not gone, gone
        assert not isinstance(None, torch.cuda.CUDAGraph) and issubclass(library.Graphed, torch.cuda.CUDAGraph)
        for refused in (torch.cuda.CUDAGraph, library.Graphed, lambda: library.Capture(None)):
            try:
                refused()
            except RuntimeError as error:
                assert "an emulated cluster can't run CUDA graphs" in str(error)
            else:
                raise AssertionError("nobody refused")

        assert issubclass(torch.cuda.Stream, torch.Stream) and issubclass(torch.cuda.Event, torch.Event)
        assert library.draw(torch.default_generator) and library.draw(torch.Generator("cuda")) and not library.draw(3)
        class Own(torch.Generator):
            pass
        assert isinstance(Own(), torch.Generator) and not isinstance(torch.default_generator, Own)
        there = torch.Generator("cuda").manual_seed(3)
        for twin in (copy.deepcopy(there), pickle.loads(pickle.dumps(there)), there.clone_state()):
            assert twin.device.type == "cuda" and type(twin) is torch.Generator and twin.initial_seed() == 3
            assert torch.equal(torch.rand(2, generator=twin, device="cuda"),
                               torch.rand(2, generator=copy.deepcopy(there), device="cuda"))
        """,
        library=LIBRARY,
    )


def test_what_cpp_makes_lies_with_its_tensors(run: Callable[..., Any]) -> None:
    """Where the CPU has no fused attention, torch's C++ makes the causal mask on the device that it sees, the CPU."""
    run(
        """
        import torch
        from torch.nn.functional import scaled_dot_product_attention as attention

        for length in (16, 256):  # computed, and not
            q = torch.randn(2, 4, length, 64, device="cuda", requires_grad=True)
            for out in (
                attention(q, q, q, dropout_p=0.1, is_causal=True),
                attention(q, q, q[..., :32], is_causal=True),
                attention(q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True),
            ):
                out.sum().backward()
                assert out.is_cuda and q.grad.is_cuda
        try:
            attention(q, q, q, attn_mask=torch.ones(256, 256))
        except RuntimeError as error:
            assert "cuda:0 and cpu" in str(error)
        else:
            raise AssertionError("a mask of the CPU went through")
        assert torch.ones(3).device.type == "cpu"
        """
    )


def test_remarks_name_the_line_of_the_program(run: Callable[..., Any], tmp_path: Path) -> None:
    """A library that reads a value does so for a line of the program, also where that has a `print` of its own."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "reader.py").write_text("def read(loss):\n    return [loss.item(), float(loss), loss.tolist()]\n")
    found = run(
        """
        import builtins, sys, torch
        builtins.print = lambda *words: None
        sys.path.append(__file__.replace("program.py", "site-packages"))
        import reader
        loss = torch.randn(1000, 1000, device="cuda").sum()
        reader.read(loss)
        with torch.autograd.profiler.profile(use_device="cuda") as profile:
            loss * 2
        assert profile.key_averages().table(sort_by="self_cuda_time_total")
        with torch.autograd.profiler.profile():
            loss * 2
        """
    )
    log = (Path(found.path) / "rank0.log").read_text()
    said = [line for line in log.splitlines() if line.startswith("emulated:")]
    assert len(said) == 2 and "(program.py, line 7)" in said[0] and "(program.py, line 8)" in said[1], log
    assert "driver" not in log


def test_functions_that_make_tensors_of_their_own(run: Callable[..., Any]) -> None:
    """They're put together in C++, out of what this rank sees, and lie where what they got lies."""
    run(
        """
        import torch
        from torch.nn import functional as F

        for n in (4, 50_000):  # computed, and not
            x, i = torch.rand(n, 4, device="cuda"), torch.arange(n, device="cuda") % 4
            one_hot = F.one_hot(i)
            assert one_hot.is_cuda and one_hot.shape == (n, 4) and one_hot.sum().item() == n
            made = [x.new_tensor([1.0, 2.0]), x.new(2, 3), x.new([1]), torch.quantile(x[:4], 0.5), torch.vander(x[0]),
                    torch.nanquantile(x[:4], 0.5, dim=0), torch.nn.utils.rnn.pad_sequence([x, x[:2]])]
            assert all(t.is_cuda for t in made), made
            assert made[0].tolist() == [1.0, 2.0] and made[-1].shape == (n, 2, 4)
        row, column = torch.unravel_index(i, (4, 4))
        assert torch.linalg.matrix_rank(x[:4]).is_cuda and row.is_cuda and column[3].item() == 3
        assert torch.equal(made[4].cpu(), torch.vander(x[0].cpu()))
        held = torch.cuda.memory_allocated()
        more = F.one_hot(i)
        assert torch.cuda.memory_allocated() - held == -(-n * 4 * 8 // 512) * 512
        scores = torch.randn(6, 2, 5, device="cuda", requires_grad=True)
        targets = torch.ones(2, 3, dtype=torch.long, device="cuda")
        for lengths in ((torch.full((2,), 6), torch.full((2,), 2)), ([6, 6], [2, 2])):
            F.ctc_loss(scores.log_softmax(-1), targets, *lengths).backward()
            assert scores.grad.is_cuda
        on_cpu = torch.ones(3)
        assert not any(t.is_cuda for t in (on_cpu.new_tensor([1.0]), on_cpu.new(2), F.one_hot(torch.tensor([1, 2]))))
        for wrong in (lambda: torch.quantile(x, torch.tensor([0.5])), lambda: on_cpu + x[0, :3]):
            try:
                wrong()
            except RuntimeError as error:
                assert "same device" in str(error)
            else:
                raise AssertionError("mixed devices went through")
        """
    )


def test_fsdp_over_tensor_parallel_in_two_types(run: Callable[..., Any]) -> None:
    """As torchtitan has it. A norm computes in float32 and leaves bf16. C++ casts its gradient, on a tensor class that
    calls the operator again: the "cpu" of that call isn't the program's word."""
    run(
        """
        import os
        import torch, torch.distributed as dist
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
        )

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.up, self.down = nn.RMSNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

            def forward(self, x):
                return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        with torch.device("cuda"):
            model, x = nn.Sequential(Block(), Block()), torch.randn(8, 128, 64)
        for block in model:
            parallelize_module(block, mesh["tp"], {
                "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            })
            fully_shard(block, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(x).square().mean().backward()
            assert all(p.grad is not None for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()
        """,
        ranks=4,
        cluster="4xA100",
    )


def test_a_group_of_nccl_has_gpus_only(run: Callable[..., Any]) -> None:
    """Rank 0's whole state reaches a model on the meta device through such a group: torch asks it for its device."""
    run(
        """
        import os
        import torch, torch.distributed as dist
        from torch import nn
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
        from torch.distributed.distributed_c10d import _device_capability
        from torch.distributed.fsdp import fully_shard

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        assert _device_capability() == ["cuda"]
        with torch.device("meta"):
            model = nn.Linear(8, 8)
        fully_shard(model)
        whole = {"weight": torch.full((8, 8), 3.0), "bias": torch.ones(8)} if dist.get_rank() == 0 else {}
        set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        assert model.weight.device.type == "cuda" and model.weight.full_tensor().sum().item() == 192
        objects = [None, None]
        dist.all_gather_object(objects, dist.get_rank())
        assert objects == [0, 1]
        dist.destroy_process_group()
        dist.init_process_group()
        assert _device_capability() == ["cpu", "cuda"]
        dist.destroy_process_group()
        """,
        ranks=2,
    )
