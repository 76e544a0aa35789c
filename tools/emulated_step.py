"""One rank of `tools/bench_emulation.py`: steps on modelled GPUs, with the times of their parts.

`ddp` trains a chain of linear layers under DistributedDataParallel, `pipeline` a stage of them under torch's schedules.
"""

import argparse
import functools
from typing import Any

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
from torch.nn.parallel import DistributedDataParallel

from course_utils.rank import device, report, timer

WIDTH = 1024
SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}  # fmt: skip


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)])


class Marks:
    """When each layer has begun its forward and its backward, in seconds of the modelled GPU."""

    def __init__(self, model: nn.Sequential):
        self.events: dict[tuple[str, int], torch.cuda.Event] = {}
        for i, layer in enumerate(model):
            layer.register_forward_pre_hook(lambda *_, i=i: self.mark("forward", i))
            layer.register_forward_hook(functools.partial(self._when_its_gradient_comes, i))

    def _when_its_gradient_comes(self, i: int, layer: nn.Module, given: Any, out: torch.Tensor) -> None:
        out.register_hook(lambda _: self.mark("backward", i))

    def mark(self, what: str, i: int) -> None:
        self.events[what, i] = torch.cuda.Event(enable_timing=True)
        self.events[what, i].record()

    def between(self, one: tuple[str, int], other: tuple[str, int]) -> float:
        return self.events[one].elapsed_time(self.events[other]) / 1e3


def ddp(count: int, batch: int, buckets_mb: list[float]) -> None:
    x = torch.randn(batch, WIDTH, device=device())
    for bucket_mb in buckets_mb:
        chain = layers(count).to(device())
        marks = Marks(chain)
        model = DistributedDataParallel(chain, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
        for _ in range(3):
            torch.cuda.synchronize()
            with timer() as t:
                model(x).square().mean().backward()
                marks.mark("end", 0)
                torch.cuda.synchronize()
        # What the loss takes goes to the last layer's forward.
        starts = [("forward", i) for i in range(count)] + [("backward", count - 1)]
        ends = [("backward", i) for i in reversed(range(count))] + [("end", 0)]
        report(
            bucket_mb=bucket_mb, step_s=t.seconds,
            forward_s=[marks.between(a, b) for a, b in zip(starts, starts[1:], strict=False)],
            backward_s=[marks.between(a, b) for a, b in zip(ends, ends[1:], strict=False)][::-1],
        )  # fmt: skip


def pipeline(count: int, batch: int, micro_batches: list[int]) -> None:
    """A stage has `count` layers; with several chunks a rank, each chunk has. `batch` is that of a micro-batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for name, schedule in SCHEDULES.items():
        chunks = 2 if name == "interleaved" else 1
        for m in micro_batches:
            modules = [layers(count).to(device()) for _ in range(chunks)]
            stages = [
                PipelineStage(module, rank + size * c, size * chunks, device()) for c, module in enumerate(modules)
            ]
            many = name in ("interleaved", "zero-bubble")
            loss = lambda out, _: out.square().mean()  # noqa: E731
            runs = schedule(stages if many else stages[0], m, loss_fn=loss)
            x = torch.randn(batch * m, WIDTH, device=device())
            for _ in range(3):
                for module in modules:
                    module.zero_grad()
                torch.cuda.synchronize()
                dist.barrier()
                with timer() as t:
                    runs.step(*([x] if rank == 0 else []), **({"target": x} if rank == size - 1 else {}))
                    torch.cuda.synchronize()
                    dist.barrier()
            report(schedule=name, micro_batches=m, step_s=t.seconds)


def one_stage(count: int, batch: int) -> None:
    """What a stage takes for a micro-batch, alone on a GPU: the first, which has no input to send a gradient for, one
    in the middle, and the last, which has the loss. `input_s` is the part of backward for the input."""
    module = layers(count).to(device())
    given = torch.randn(batch, WIDTH, device=device())

    def seconds(call: Any) -> float:
        call()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(20):
            call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 20e3

    for which in ("first", "middle", "last"):
        x = torch.randn(batch, WIDTH, device=device(), requires_grad=which != "first")

        def forward(x: torch.Tensor = x, which: str = which) -> torch.Tensor:
            return module(x).square().mean() if which == "last" else module(x)

        def backward(x: torch.Tensor = x, which: str = which, forward: Any = forward) -> None:
            x.grad = None
            forward().backward(None if which == "last" else given)

        forward_s, both_s = seconds(forward), seconds(backward)
        both_s -= forward_s
        only = torch.randn(batch, WIDTH, device=device(), requires_grad=True)
        alone_s = seconds(lambda x=only: module(x))
        input_s = seconds(lambda x=only: torch.autograd.grad(module(x), x, given)) - alone_s
        report(stage=which, forward_s=forward_s, backward_s=both_s, input_s=input_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["ddp", "pipeline", "stage"])
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--bucket-mb", type=float, nargs="+", default=[25.0])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[8])
    args = parser.parse_args()
    torch.cuda.set_device(device())
    dist.init_process_group()
    if args.what == "ddp":
        ddp(args.layers, args.batch, args.bucket_mb)
    elif args.what == "pipeline":
        pipeline(args.layers, args.batch, args.micro_batches)
    else:
        one_stage(args.layers, args.batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
