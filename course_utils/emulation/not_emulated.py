"""What an emulated cluster can't run, why, and what to do instead: the one list. Ranks refuse by it, failures that tell
of a missing driver are explained by it, and docs/emulated_gpus.md shows it."""

from __future__ import annotations

import re
from typing import NamedTuple

REAL = "run it on a real GPU, without --cluster"


class NotEmulated(RuntimeError):
    """An emulated cluster can't run this."""


class Limit(NamedTuple):
    """Something that can't be emulated. `names` say what's refused for it, as `module:function` or
    `module:Class.method`; if nobody has imported the module yet, once somebody does."""

    what: str
    why: str
    instead: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"an emulated cluster can't run {self.what}: {self.why}. {self.instead}."


def _in(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}:{name}" for name in names.split())


GRAPHS = Limit(
    "CUDA graphs",
    "the modelled GPU knows only operators that are called one by one",
    "Leave the capture out, and call the function itself",
    _in("torch.cuda", "CUDAGraph.__new__ graph.__init__ make_graphed_callables")
    + _in("torch.accelerator.graphs", "Graph.__new__"),
)
TORCHSCRIPT = Limit("TorchScript", "its interpreter bypasses what the emulation sees", "Run it in Python")
TRITON = Limit(
    "Triton kernels",
    "the modelled GPU knows only torch's operators",
    f"Compute the same with those, or {REAL}",
    (
        "triton.runtime.jit:JITFunction.run",
        "triton.runtime.autotuner:Autotuner.run",
        "triton.runtime.interpreter:InterpretedFunction.run",
        "triton.runtime.driver:_create_driver",
    ),
)
KERNELS = Limit(
    "CUDA kernels of your own",
    "the modelled GPU knows only torch's operators",
    f"Compute the same with those, or {REAL}",
    ("torch.cuda:_compile_kernel", *_in("torch.utils.cpp_extension", "CUDAExtension _join_cuda_home")),
)
AHEAD = Limit(
    "AOTInductor",
    "its kernels can't be emulated",
    "Run the exported program's module() instead, at eager speed",
    _in("torch._inductor", "aoti_compile_and_package aot_compile aoti_load_package"),
)
SYMMETRIC = Limit(
    "symmetric memory",
    "a modelled GPU has no memory into which another could write",
    "Use collectives, or send and recv",
    _in(
        "torch.distributed._symmetric_memory",
        "empty rendezvous get get_mem_pool get_mempool_allocator get_symm_mem_workspace enable_symm_mem_for_group"
        " reduce_scatter_offset all_to_all_nd set_backend",
    ),
)
RPC = Limit(
    "torch.distributed.rpc",
    "its messages travel outside of process groups",
    "Use send and recv",
    _in("torch.distributed.rpc", "init_rpc"),
)
ADDRESSES = Limit(
    "what gives a GPU's memory to another library (CuPy, Numba, DLPack)",
    "nothing has an address on a modelled GPU",
    "Give it tensor.cpu()",
    _in("torch.cuda", "ExternalStream.__init__ get_stream_from_external caching_allocator_alloc")
    + _in("torch.cuda", "caching_allocator_delete"),
)
PROCESSES = Limit(
    "what gives a GPU's memory to another process (queues, pipes, CUDA IPC)",
    "no other process sees the memory that this rank models",
    "Send tensor.cpu(), or use send and recv between ranks",
    _in("torch.cuda", "Event.ipc_handle Event.from_ipc_handle")
    + _in("torch", "UntypedStorage._share_cuda_ UntypedStorage._new_shared_cuda"),
)
POOLS = Limit(
    "memory pools and allocators of your own",
    "a modelled GPU's memory is counted as one pool",
    "Leave them out",
    _in("torch.cuda", "MemPool.__init__ use_mem_pool CUDAPluggableAllocator.__init__ change_current_allocator"),
)
PARTS = Limit(
    "green contexts",
    "a modelled GPU isn't divided",
    f"Leave them out, or {REAL}",
    _in("torch.cuda.green_contexts", "GreenContext.__new__ GreenContext.create SMPartition.__new__"),
)
STORAGE = Limit(
    "GPUDirect Storage",
    "a modelled GPU has no memory that a disk could fill",
    "Use torch.save and torch.load",
    _in("torch.cuda.gds", "GdsFile.__new__ gds_register_buffer gds_deregister_buffer"),
)
NCCL = Limit(
    "NCCL by its own functions (torch.cuda.nccl, ProcessGroupNCCL)",
    "they bypass the process groups",
    "Use torch.distributed",
    _in("torch.cuda.nccl", "all_reduce all_gather reduce_scatter init_rank unique_id")
    + _in("torch.distributed.distributed_c10d", "ProcessGroupNCCL.__init__"),
)
TUNING = Limit(
    "TunableOp",
    "an operator takes the time that the model gives it, whichever kernel a real GPU would choose",
    "Leave it out",
)
TENSORFLOW = Limit(
    "TensorFlow", "only PyTorch sees its GPUs", "`%%ranks` without --cluster runs it, on real GPUs or the CPU"
)
CUDA_ONLY = Limit(
    "operators that only CUDA has",
    "what lies on a modelled GPU is kept on the CPU, and PyTorch has no kernel for it there",
    f"Compute the same with other operators, or {REAL}",
)
DRIVER = Limit(
    "what calls the CUDA driver itself",
    "there's no CUDA driver on an emulated cluster",
    f"Leave it out, ask torch.cuda, or {REAL}",
)

LIMITS = (
    GRAPHS, TORCHSCRIPT, TRITON, KERNELS, AHEAD, SYMMETRIC, RPC, ADDRESSES, PROCESSES, POOLS, PARTS,
    STORAGE, NCCL, TUNING, TENSORFLOW, CUDA_ONLY, DRIVER,
)  # fmt: skip

# What a library says that has looked for a driver and hasn't found it. That a device isn't there we say as CUDA does.
_MISLED = re.compile(
    r"NVIDIA driver|lib(cuda|cudart|nvidia-ml)\b|PrimaryContext|CUDA driver|CUDA-capable|No CUDA GPUs|CUDA_HOME"
    r"|not (compiled|linked|built) with CUDA|without (CUDA|ATen_cuda)|CUDA build|CUDA_ERROR_|cudaError[A-Z]"
    r"|CUDA (unknown )?error(?!: invalid device ordinal)",
    re.I,
)


def really(message: str) -> str:
    """What to say before a message of an emulated rank that speaks of a missing driver; empty for any other."""
    if "emulated" in message or not _MISLED.search(message):
        return ""
    return f"{str(DRIVER)[0].upper()}{str(DRIVER)[1:]} The message is about this machine, not about the emulated GPU:"
