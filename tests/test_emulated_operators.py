"""What programs from outside call on modelled GPUs: choices, recurrent layers, attention by name, sparse and nested
tensors, memory's history, processes of their own. Whatever a program asserts is a failure of its launch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_emulation_core import run  # noqa: F401

from course_utils.emulation.clusters import cluster

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all
Launch = Callable[..., Any]


def test_choices_among_what_was_not_computed_are_valid_and_even(run: Launch) -> None:  # noqa: F811
    """As a sampler makes them, and a router to experts. One remark at the end says so."""
    found = run("""
        scores, draw = torch.randn(40, 50_304, device="cuda").softmax(-1), torch.Generator("cuda")
        best, tokens = scores.topk(50)
        picked = [torch.multinomial(best, 1, generator=draw.manual_seed(42)) for _ in range(2)]
        assert torch.equal(*picked) and len(picked[0].unique()) > 10 and 0 <= picked[0].min() <= picked[0].max() < 50
        assert torch.cat([tokens, tokens.gather(-1, picked[0])], dim=1).shape == (40, 51) and tokens.max() == 1999
        several = torch.multinomial(scores[0], 5)
        assert len(several.unique()) == 5 and torch.multinomial(scores[0].cpu(), 1).item() < 50_304
        experts = scores[:, :8].topk(2, dim=-1).indices
        assert experts.flatten().bincount().tolist() == [10] * 8
        assert scores.argmax() == 0 and scores.argmax(-1).max() == 39 and scores.argmin(0, keepdim=True).max() == 39
        assert scores.sort(descending=True).indices[7].tolist() == list(range(50_304))
        assert scores.max(dim=1, keepdim=True).indices.shape == (40, 1) and scores.min(0).indices.shape == (50_304,)
        torch.distributions.Categorical(logits=scores).sample()
        torch.distributions.Normal(scores.mean(), scores.std()).sample()
        known = torch.tensor([[3.0, 9.0, 1.0]], device="cuda")
        assert known.topk(2).indices.tolist() == [[1, 0]] and known.argmax(-1).item() == 1
        assert torch.multinomial(torch.tensor([0.0, 1.0], device="cuda"), 1).item() == 1
    """)
    (line,) = found.said
    assert re.search(r"chosen from, by topk .*line 6.*, multinomial .*line 7.*, argmax .*line 14.*evenly", line), line


def test_recurrent_layers_run_as_cudnn_runs_them(run: Launch) -> None:  # noqa: F811
    """One operator for all steps; its arithmetic, and what it keeps for backward, by hand."""
    found = run(
        """
        import time
        from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
        def seconds(call):
            torch.cuda.synchronize()
            before = time.perf_counter()
            call()
            torch.cuda.synchronize()
            return time.perf_counter() - before
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            layer = kind(1024, 1024, num_layers=2, batch_first=True).cuda()
            x, held = torch.randn(512, 100, 1024, device="cuda", requires_grad=True), []
            before = torch.cuda.memory_allocated()
            forward_s = seconds(lambda: held.append(layer(x)))
            kept = torch.cuda.memory_allocated() - before
            backward_s = seconds(lambda: held[0][0].sum().backward())
            assert held[0][0].shape == (512, 100, 1024) and held[0][0].is_cuda and x.grad.shape == x.shape
            assert all(p.grad.shape == p.shape and p.grad.is_cuda for p in layer.parameters())
            report(forward_s=forward_s, backward_s=backward_s, kept_bytes=kept)
            few = kind(8, 16, bidirectional=True).cuda()
            report(few_s=seconds(lambda: few(torch.randn(100, 1, 8, device="cuda"))))
        with torch.autocast("cuda"):
            assert layer(x)[0].dtype == torch.float16
        packed = pack_padded_sequence(x[:4, :10], torch.tensor([3, 10, 5, 7]), True, enforce_sorted=False)
        padded, lengths = pad_packed_sequence(nn.LSTM(1024, 16, proj_size=4).cuda()(packed)[0], batch_first=True)
        assert padded.shape == (4, 10, 4) and padded.is_cuda and lengths.tolist() == [3, 10, 5, 7]
        padded.sum().backward()
        try:
            pack_padded_sequence(x[:2], torch.tensor([3, 2], device="cuda"), True)
        except RuntimeError as error:
            assert "should be a 1D CPU int64 tensor, but got 1D cuda:0" in str(error)
        else:
            raise AssertionError
        nn.LSTMCell(8, 16).cuda()(torch.randn(4, 8, device="cuda"))
        nn.LSTM(8, 16)(torch.randn(5, 3, 8))[0].sum().backward()
        """,
        cluster="1xV100",
    )
    assert found.said == []
    rows, few = found.ranks[0].records[::2], found.ranks[0].records[1::2]
    reached = cluster("1xV100").device
    for row, small, gates, elements in zip(rows, few, (4, 3, 1), (6, 5, 1), strict=True):
        flops = 2 * 512 * 100 * gates * 1024 * 2048 * 2  # two layers, inputs and hidden states
        assert row["forward_s"] == pytest.approx(
            flops / (reached.flops["float32"] * reached.reached["float32"]), rel=0.1
        )
        assert 1.8 < row["backward_s"] / row["forward_s"] < 2.3
        states = (1 + (gates == 4)) * 2 * 512 * 1024 * 4
        assert row["kept_bytes"] == pytest.approx((2 * elements + 1) * 512 * 100 * 1024 * 4 + states, rel=0.01)
        assert small["few_s"] > 200 * reached.launch_s  # two kernels a step, one after the other


def test_attention_takes_the_kernel_that_its_name_says(run: Launch) -> None:  # noqa: F811
    """And FlexAttention: compiled, one kernel over the blocks that its mask leaves."""
    found = run(
        """
        import time
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
        F, taken = nn.functional, {}
        def run(attend, *qkv, **more):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, held = time.perf_counter(), torch.cuda.memory_allocated()
            out = attend(*qkv, **more)
            out.sum().backward()
            torch.cuda.synchronize()
            assert out.shape == qkv[0].shape and out.is_cuda and out.dtype == qkv[0].dtype
            assert all(t.grad.shape == t.shape for t in qkv)
            return [(time.perf_counter() - before) * 1e3, (torch.cuda.max_memory_allocated() - held) / 2**20]
        q = torch.randn(2, 8, 4096, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
            with sdpa_kernel(getattr(SDPBackend, name)):
                taken[name] = run(F.scaled_dot_product_attention, q, q, q)
        torch.backends.cuda.enable_flash_sdp(False)
        taken["other"] = run(F.scaled_dot_product_attention, q, q, q)
        torch.backends.cuda.enable_flash_sdp(True)
        for wrong in ([q.float()] * 3, [q, q, q, torch.ones(4096, 4096, dtype=torch.bool, device="cuda")]):
            try:
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    F.scaled_dot_product_attention(*wrong)
            except RuntimeError as error:
                assert str(error).startswith("No available kernel. Aborting execution.") and "emulated" in str(error)
            else:
                raise AssertionError
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast("cuda", torch.bfloat16):
            F.scaled_dot_product_attention(*[q.float()] * 3)
        few = torch.randn(2, 4, 32, 8, device="cuda", requires_grad=True)
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 32, 32, device="cuda")
        plain = F.scaled_dot_product_attention(few, few, few, is_causal=True)
        assert torch.allclose(flex_attention(few, few, few, block_mask=mask), plain, atol=1e-5)
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 4096, 4096, device="cuda")
        bias = nn.Parameter(torch.zeros(8, device="cuda"))
        taken["eager"] = run(flex_attention, q, q, q, block_mask=mask)
        compiled = torch.compile(flex_attention)
        taken["all"], taken["half"] = run(compiled, q, q, q), run(compiled, q, q, q, block_mask=mask)
        run(compiled, q, q, q, score_mod=lambda score, b, h, i, j: score + bias[h], block_mask=mask)
        assert bias.grad.shape == (8,)
        kv = torch.randn(2, 2, 4096, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        run(compiled, q, kv, kv, block_mask=mask, enable_gqa=True)
        out, aux = compiled(q, kv, kv, enable_gqa=True, return_aux=AuxRequest(lse=True))
        assert aux.lse.shape == (2, 8, 4096)
        report(**taken)
        """,
        cluster="1xA100",
    )
    took = found.ranks[0].records[0]
    whole = 2 * 8 * 4096**2 * 2 / 2**20  # MiB of one matrix of scores
    fused = [took[name] for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "other")]
    assert all(taken == pytest.approx(fused[0], rel=0.05) for taken in fused) and fused[0][1] < whole / 2
    assert took["MATH"][1] > whole and took["eager"][1] > whole and took["all"][1] < whole / 2
    assert took["MATH"][0] > 2 * fused[0][0] and took["eager"][0] > 3 * took["all"][0]
    assert 0.45 < took["half"][0] / took["all"][0] < 0.65  # 528 of 1,024 blocks, and what else a step has
    assert [line for line in found.said if "one kernel that torch.compile makes" in line]


def test_context_parallel_passes_keys_and_values_around(run: Launch) -> None:  # noqa: F811
    found = run(
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        dist.init_process_group()
        torch.cuda.set_device(device())
        mesh = init_device_mesh("cuda", (2,))
        for dtype in (torch.bfloat16, torch.float32):
            qkv = [torch.randn(2, 8, 4096, 64, device=device(), dtype=dtype) for _ in range(3)]
            with context_parallel(mesh, buffers=qkv, buffer_seq_dims=[2] * 3, no_restore_buffers=set(qkv)):
                qkv = [t.detach().requires_grad_() for t in qkv]
                out = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
                out.sum().backward()
            assert out.shape == qkv[0].shape == (2, 8, 2048, 64) and all(t.grad.shape == t.shape for t in qkv)
        dist.destroy_process_group()
        """,
        2,
        "2xA100",
    )
    spans = json.loads((Path(found.path) / "rank0.emulated.json").read_text())["spans"]
    names = {name for _, name, *_ in spans}
    assert {"all_gather", "all_to_all"} <= names  # keys and values forward, their gradients backward
    assert {"aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention"} <= names


def test_gradients_of_an_embedding_may_be_sparse(run: Launch) -> None:  # noqa: F811
    """Memory and time go by the rows that are used; small ones are computed. Over DDP, gloo adds them up."""
    program = """
        import time
        dist.init_process_group("gloo")
        torch.cuda.set_device(device())
        few = nn.Embedding(10, 4, sparse=True, device=device())
        before = few.weight.detach().clone()
        few(torch.tensor([1, 1, 3], device=device())).sum().backward()
        assert few.weight.grad.is_sparse and few.weight.grad.device == device()
        torch.optim.SGD(few.parameters(), 1.0).step()
        assert (before - few.weight)[:4, 0].round(decimals=4).tolist() == [0, 2, 0, 1]
        two = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), device=device())
        assert two.is_cuda and (two @ torch.eye(2, device=device())).tolist() == [[0, 1], [2, 0]]
        assert two.cpu().device.type == "cpu" and two.cpu().cuda().is_cuda and two.to_dense().is_cuda

        table = nn.Embedding(4_000_000, 64, sparse=True, device=device())
        optimizer = torch.optim.SparseAdam(list(table.parameters()))
        model = DDP(table)
        for rows in (1 << 12, 1 << 16):
            for _ in range(2):
                optimizer.zero_grad()
                torch.cuda.synchronize()
                begun = time.perf_counter()
                model(torch.randint(4_000_000, (rows,), device=device())).square().sum().backward()
                torch.cuda.reset_peak_memory_stats()
                optimizer.step()
                torch.cuda.synchronize()
                took = time.perf_counter() - begun
            grad = table.weight.grad
            assert grad.is_sparse and grad.is_cuda and 0 < grad._nnz() <= 2 * rows
        report(step_s=took, peak_mib=torch.cuda.max_memory_allocated() / 2**20)
        dist.destroy_process_group()
        dist.init_process_group("nccl")
        model = DDP(table)
        try:
            model(torch.randint(9, (8,), device=device())).sum().backward()
        except RuntimeError as error:
            assert "NCCL does not support all_reduce with sparse tensors" in str(error)
        else:
            raise AssertionError
        dist.destroy_process_group()
    """
    found = run(program, 2, "2xA100")
    (row,) = found.ranks[0].records
    tables = 3 * 4_000_000 * 64 * 4 / 2**20
    assert tables < row["peak_mib"] < tables + 800 and 1e-4 < row["step_s"] < 0.1


def test_sequences_of_different_lengths_may_be_nested(run: Launch) -> None:  # noqa: F811
    run("""
        parts = [torch.randn(n, 64) for n in (100, 300, 50)]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda", requires_grad=True)
        assert x.device.type == "cuda" and x.is_cuda and x.values().is_cuda
        layer = nn.Linear(64, 64).cuda()
        y = nn.functional.layer_norm(torch.relu(layer(x)), (64,))
        q = y.unflatten(-1, [4, 16]).transpose(1, 2)
        out = nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)
        padded = torch.nested.to_padded_tensor(out, 0.0)
        assert padded.shape == (3, 300, 64) and padded.is_cuda
        padded.sum().backward()
        assert layer.weight.grad.is_cuda and x.grad.shape == x.shape
        try:
            torch.nested.nested_tensor(parts, device="cuda")
        except RuntimeError as error:
            assert "emulated cluster can't run torch.nested.nested_tensor with the strided layout" in str(error)
        else:
            raise AssertionError
    """)


def test_memory_has_a_history_that_torchs_tools_read(run: Launch) -> None:  # noqa: F811
    """Who took what, and when; what's there; the counters of the allocator."""
    found = run("""
        import os, pickle
        from torch.cuda import _memory_viz
        kept, seen = torch.zeros(1 << 20, device="cuda"), []
        torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
        torch.cuda.memory._record_memory_history(max_entries=100)
        a = torch.zeros(3 << 20, device="cuda")
        b = a + 1
        del a
        try:
            torch.empty(5_000_000_000, device="cuda")
        except torch.OutOfMemoryError:
            pass
        assert len(seen) == 1 and seen[0][:2] == (0, 20_000_000_000)
        path = os.path.join(os.environ["COURSE_RUN_DIR"], "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as file:
            snapshot = pickle.load(file)
        events = [e for e in snapshot["device_traces"][0] if not e["action"].startswith("segment")]
        assert [e["action"] for e in events] == ["alloc", "alloc", "free_requested", "free_completed", "oom"]
        assert [e["frames"][0]["line"] for e in events] == [10, 11, 12, 12, 14]
        assert [e["size"] for e in events[:4]] == [12 << 20] * 4 and events[0]["addr"] == events[3]["addr"]
        assert events[0]["time_us"] <= events[1]["time_us"] <= events[3]["time_us"]
        assert sum(s["allocated_size"] for s in snapshot["segments"]) == torch.cuda.memory_allocated() == 16 << 20
        assert "cudaMalloc" in _memory_viz.trace(snapshot) and "html" in _memory_viz.trace_plot(snapshot)
        assert "16.0MiB" in _memory_viz.segsum(snapshot)
        told = torch.cuda.memory_summary()
        assert "emulated" in told and "CUDA OOMs: 1" in told and "from large pool" in told
        stats = torch.cuda.memory_stats()
        assert stats["num_ooms"] == 1 and stats["requested_bytes.large_pool.allocated"] == 28 << 20
        assert stats["allocated_bytes.all.peak"] == 28 << 20 and stats["active_bytes.all.current"] == 16 << 20
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"] == 16 << 20
        torch.cuda.memory._record_memory_history(enabled=None)
        assert len(torch.cuda.memory_snapshot()) == 2 and not torch.cuda.memory._snapshot()["device_traces"][0]
    """)
    assert found.said == []


def test_processes_that_a_rank_spawns_are_ranks_of_the_cluster(run: Launch) -> None:  # noqa: F811
    """As in multigpu.py of pytorch/examples, launched as one process. Their clocks go on from its own."""
    found = run(
        """
        import os, time
        import torch.multiprocessing as mp
        def train(rank, size, began):
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="12355")
            torch.cuda.set_device(rank)
            assert time.time() > began
            dist.init_process_group("nccl", rank=rank, world_size=size)
            model = DDP(nn.Linear(2048, 2048).to(rank), device_ids=[rank])
            for _ in range(3):
                model(torch.randn(256, 2048, device=rank)).sum().backward()
            total = torch.ones(1, device=rank)
            dist.all_reduce(total)
            assert total.item() == size == 2 and total.device.index == rank == torch.cuda.current_device()
            time.sleep(100 + rank)
            dist.destroy_process_group()
        if __name__ == "__main__":
            time.sleep(50)
            before = time.perf_counter()
            mp.spawn(train, args=(torch.cuda.device_count(), time.time()), nprocs=torch.cuda.device_count())
            assert 101 <= time.perf_counter() - before < 102, time.perf_counter() - before
        """,
        1,
        "2xA100",
    )
    emulated = found.emulated
    assert emulated.ranks == 2 and [round(end) for end, _ in emulated.peaks()] == [151, 151]
    assert all(nbytes > 16 << 20 for _, nbytes in emulated.peaks())
    assert sum(name == "all_reduce" and kind == "communication" for kind, name, *_ in emulated.found[1]["spans"]) >= 3


def test_operators_that_arrive_whole_are_taken_apart(run: Launch) -> None:  # noqa: F811
    """In inference_mode, in Python's own operators, and where backward runs Python that names a device."""
    run("""
        import time
        from torch.utils.checkpoint import checkpoint
        model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.LayerNorm(4096)).cuda()
        x, took = torch.randn(4096, 4096, device="cuda"), []
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                torch.cuda.synchronize()
                before = time.perf_counter()
                y = model(x)
                torch.cuda.synchronize()
                took.append(time.perf_counter() - before)
                assert y.to(torch.float16).is_cuda and y.reshape(-1).is_cuda and (y @ y.T).is_cuda
        assert abs(took[1] / took[0] - 1) < 1e-3 and took[0] > 0.01, took

        def block(x):
            return model(x) + torch.arange(4096, device=x.device) + torch.zeros(4096, device="cuda")
        x.requires_grad_()
        checkpoint(block, x, use_reentrant=False).sum().backward()
        assert x.grad.is_cuda

        @torch.library.custom_op("ours::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2 + torch.zeros(x.shape, device=x.device)
        few = torch.ones(3, device="cuda")
        assert twice(few).tolist() == [2.0] * 3 and twice(few).is_cuda and twice(x.detach()).is_cuda
    """)
