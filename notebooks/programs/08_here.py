"""A training step of an MLP on this device, in float32 and in its 16-bit type, in turn; and what the device has for
16 bits."""

import torch
from torch.nn.functional import cross_entropy

from course_utils.rank import amp_dtype, device, report, timer
from course_utils.workloads import batch, deep_mlp, default_size

SLOW_S = 0.0006  # of a small product in bf16, which no processor with instructions for it comes near
FLAGS = ("avx512_bf16", "amx_bf16", "bf16")


def slow():
    """Whether bf16 is a burden here: a CPU without instructions for it is ten or a hundred times slower."""
    if device().type == "cuda":
        return False
    a, spent = torch.randn(256, 256).bfloat16(), []
    for _ in range(10):  # the best of them: what disturbs only slows down
        with timer() as t:
            a @ a
        spent.append(t.seconds)
    return min(spent) > SLOW_S


def has():
    """What this device has for products of 16 bits."""
    if device().type == "cuda":
        return ["tensor cores"] if torch.cuda.get_device_capability(device()) >= (7, 0) else []
    try:
        with open("/proc/cpuinfo") as file:
            words = set(file.read().split())
    except OSError:
        words = {name for name, there in getattr(torch.cpu, "get_capabilities", dict)().items() if there}
    return [flag for flag in FLAGS if flag in words]


def main():
    if device().type == "cuda":
        torch.cuda.set_device(device())
    half = amp_dtype()
    # At the sizes of the other lessons a CPU without bf16 would take seconds for a step.
    width, depth, n = (256, 4, 64) if slow() else (1024, 6, 256) if default_size() == "cpu" else (4096, 16, 2048)
    report(half=str(half).removeprefix("torch."), has=has(), on=device().type)
    model = deep_mlp(width, depth).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device().type, enabled=half == torch.float16)
    x, y = (t.to(device()) for t in batch(n, width=width))
    for i in range(8):
        for dtype in (torch.float32, half):
            with timer() as t:
                optimizer.zero_grad()
                with torch.autocast(device().type, dtype=half, enabled=dtype == half):
                    loss = cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            if i >= 2:  # the first ones warm up
                report(dtype=str(dtype).removeprefix("torch."), step_s=t.seconds)


if __name__ == "__main__":
    main()
