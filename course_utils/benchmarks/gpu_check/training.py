"""Trains the lessons' two largest models with DDP and AdamW: lesson 04's network on 128 images a rank in float32, which
has most activations, and `deep_mlp` in mixed precision, which has most weights. A program that runs on every rank."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_utils.rank import amp_dtype, device, report, timer
from course_utils.workloads import PIXELS, batch, deep_mlp, default_size, image_model

ON_GPU = device().type == "cuda"


def train(name: str, network: nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    model = DistributedDataParallel(network.to(device()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler(device().type, enabled=dtype == torch.float16)
    x, y = x.to(device()), y.to(device())
    for _ in range(8):
        with timer() as t:
            optimizer.zero_grad()
            with torch.autocast(device().type, dtype=dtype, enabled=dtype != torch.float32):
                loss = cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        report(model=name, step_s=t.seconds, loss=loss.item())
    report(model=name, size=default_size(), dtype=str(dtype).removeprefix("torch."))
    if ON_GPU:
        report(model=name, peak_bytes=torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    if ON_GPU:
        torch.cuda.set_device(device())
        report(memory_bytes=torch.cuda.get_device_properties(device()).total_memory)
    dist.init_process_group()
    torch.manual_seed(0)
    side = PIXELS[default_size()]
    labels = torch.randint(100, (128,))
    train("images", image_model(norm="group"), torch.randn(128, 3, side, side), labels, torch.float32)
    train("layers", deep_mlp(), *batch(), amp_dtype() if ON_GPU else torch.float32)
    dist.destroy_process_group()
