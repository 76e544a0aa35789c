"""Environment variables that Python and torch read only once, so that it's too late to set them for a rank that is
forked after `import torch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# torch and Python read these when they start, so a launch that changes one of them starts cold.
FROZEN_PREFIXES = (
    "PYTHON", "TORCH", "PYTORCH", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_",
    "NPY_", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "NVIDIA_TF32", "CXX", "AOT", "INDUCTOR_", "KINETO_",
    "SYMPY_",
)  # fmt: skip
# `import torch` alone doesn't read these: the compiler does when it's imported. A plain program imports it later, and
# the warm server has imported it already.
COMPILER_PREFIXES = ("TORCHDYNAMO", "TORCHINDUCTOR", "TORCH_COMPILE", "TORCH_DYNAMO", "CXX", "AOT", "INDUCTOR_")
RENEWED = ("OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG", "TORCH_COMPILE_DISABLE")  # we can set these after a fork
READ_LATE = ("TORCHINDUCTOR_CACHE_DIR", "TORCH_DIST_INIT_BARRIER")  # torch looks each time that it needs them


def is_frozen(name: str) -> bool:
    """Whether a variable is read when torch is imported, and never again."""
    return name.startswith(FROZEN_PREFIXES) and name not in READ_LATE and not name.startswith("TORCHELASTIC")


def frozen(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that come too late for a process forked from the server."""
    return {k: v for k, v in env.items() if is_frozen(k) and k not in RENEWED}


def too_late(before_torch: Iterable[str], after_torch: Iterable[str]) -> list[str]:
    """Of the variables that a script sets itself, those that a process forked from the server has read already, in
    order."""
    return sorted(
        {n for n in before_torch if is_frozen(n)}
        | {n for n in after_torch if is_frozen(n) and n.startswith(COMPILER_PREFIXES)}
    )
