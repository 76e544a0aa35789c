"""A step of a pipeline under one of torch's schedules, and what its stage takes alone: what the button under
`explore.schedules()` runs."""

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.profiler import record_function

from course_utils.rank import device, report, timer

WIDTH, LAYERS, ROWS = 1024, 8, 4096  # of a stage, and of a micro-batch
SCHEDULES = {
    "gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}  # fmt: skip


def seconds(call: Callable[[], object]) -> float:
    """What a call takes on the GPU."""
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(5):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 5e3


def alone(module: nn.Module, first: bool) -> tuple[float, float]:
    """Seconds of a micro-batch on this stage, forward and backward; the first needs no gradient of its input."""
    x = torch.randn(ROWS, WIDTH, device=device(), requires_grad=not first)
    given = torch.randn(ROWS, WIDTH, device=device())
    forward_s = seconds(lambda: module(x))
    return forward_s, seconds(lambda: module(x).backward(given)) - forward_s


def main(args: argparse.Namespace) -> None:
    dist.init_process_group()
    torch.cuda.set_device(device())
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = LAYERS // args.chunks
    modules = [nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))) for _ in range(args.chunks)]
    for c, module in enumerate(modules):
        forward_s, backward_s = alone(module.to(device()), rank + c == 0)
        report(forward_s=forward_s, backward_s=backward_s, chunk=c)
    stages = [PipelineStage(m, rank + size * c, size * args.chunks, device()) for c, m in enumerate(modules)]
    several = args.schedule in ("interleaved", "zero-bubble")  # these take a list
    schedule = SCHEDULES[args.schedule](
        stages if several else stages[0], args.micro_batches, loss_fn=lambda out, _: out.square().mean()
    )
    x = torch.randn(ROWS * args.micro_batches, WIDTH, device=device())
    for i in range(2):  # the first learns the shapes of what is sent
        for module in modules:
            module.zero_grad()
        torch.cuda.synchronize()
        dist.barrier()
        with record_function("step"), timer() as t:
            schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == size - 1 else {}))
            torch.cuda.synchronize()
            dist.barrier()
        report(progress=(i + 1, 2))
    report(step_s=t.seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", choices=SCHEDULES)
    parser.add_argument("--micro-batches", type=int)
    parser.add_argument("--chunks", type=int)
    main(parser.parse_args())
