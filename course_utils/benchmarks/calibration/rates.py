"""Times matrix products, a large copy, and copies to the GPU on one rank."""

from collections.abc import Callable

import torch

from course_utils.rank import device, report, timer

BUDGET_S = 0.8  # for each rate: a dtype that the processor doesn't support may be a hundred times slower than float32


def repeat(action: Callable[[], object], save: Callable[[float], None], times: int = 7) -> None:
    """Call `action` until it was timed `times` times or the budget is spent, and `save` every time but the first."""
    action()
    spent = 0.0
    for i in range(times + 1):
        with timer() as t:
            action()
        if i:
            save(t.seconds)
        spent += t.seconds
        if i >= 1 and spent > BUDGET_S:
            break


def matmul(n: int, dtype: torch.dtype) -> None:
    a, b = (torch.randn(n, n, device=device()).to(dtype) for _ in range(2))
    name = str(dtype).removeprefix("torch.")
    repeat(lambda: a @ b, lambda s: report(dtype=name, matmul_flops=2 * n**3 / s))


def memory(nbytes: int) -> None:
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    repeat(lambda: target.copy_(source), lambda s: report(memory_Bps=2 * nbytes / s))


def host_to_device(kind: str, nbytes: int) -> None:
    host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=kind == "pinned")
    target = torch.empty(nbytes, dtype=torch.uint8, device=device())
    repeat(lambda: target.copy_(host, non_blocking=True), lambda s: report(memory=kind, copy_Bps=nbytes / s))


if __name__ == "__main__":
    on_gpu = device().type == "cuda"
    report(device=torch.cuda.get_device_name(device()) if on_gpu else "cpu")
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        # In float64 most GPUs are 32 to 64 times slower than in float32.
        matmul((2048 if dtype == torch.float64 else 8192) if on_gpu else 512, dtype)
    # Of a GPU at most a quarter of what is free, for other programs may use it, too.
    memory(min(4 << 30, torch.cuda.mem_get_info(device())[0] // 8) if on_gpu else 256 << 20)
    for kind in ("pageable", "pinned") if on_gpu else ():
        host_to_device(kind, 256 << 20)
