"""A step of a pipeline under several of torch's schedules: how long it takes, what each rank holds, in which order it
works."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.nn.functional import mse_loss

from course_utils.rank import device, report, timer

# How many parts of the model a rank holds, and whether they lie in a row, as in 0 4, or in a V, as in 0 7.
PARTS = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "InterleavedZeroBubble": 1, "ZBVZeroBubble": 2, "DualPipeV": 2}
IN_A_V = ("ZBVZeroBubble", "DualPipeV")


def noted(stage, done):
    """Let a stage write down what it does, as in 0F3: its number, then F or B, or backward's two halves, I for the
    input's gradient and W for that of the weights, and the micro-batch."""
    forward, backward, weights = stage.forward_one_chunk, stage.backward_one_chunk, stage.backward_weight_one_chunk

    def note(method, letter):
        def call(i, *args, **kwargs):
            whole = kwargs.get("full_backward", True)
            done.append(f"{stage.stage_index}{'I' if letter == 'B' and not whole else letter}{i}")
            return method(i, *args, **kwargs)

        return call

    stage.forward_one_chunk = note(forward, "F")
    stage.backward_one_chunk = note(backward, "B")
    stage.backward_weight_one_chunk = note(weights, "W")


def new_schedule(name, layers, width, micro_batches, done):
    rank, p = dist.get_rank(), dist.get_world_size()
    parts = PARTS[name] * p
    mine = [rank] if parts == p else [rank, 2 * p - 1 - rank if name in IN_A_V else p + rank]
    stages = []
    for part in mine:
        with device():
            module = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers // parts)])
        stages.append(pipelining.PipelineStage(module, part, parts, device()))
        noted(stages[-1], done)
    kind = getattr(pipelining, f"Schedule{name}")
    alone = name in ("GPipe", "1F1B")
    schedule = kind(stages[0] if alone else stages, micro_batches, loss_fn=mse_loss)
    return schedule, 0 in mine, parts - 1 in mine


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedules", nargs="+", default=list(PARTS))
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=16384, help="of the whole batch")
    args = parser.parse_args()
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    with device():
        x, y = torch.randn(2, args.rows, args.width)
    for name in args.schedules:
        done = []
        schedule, first, last = new_schedule(name, args.layers, args.width, args.micro_batches, done)
        inputs, target = [x] if first else [], {"target": y} if last else {}
        schedule.step(*inputs, **target)  # the first one also agrees on shapes
        for _ in range(2):
            done.clear()
            held = torch.cuda.memory_allocated() if device().type == "cuda" else 0
            if held:
                torch.cuda.reset_peak_memory_stats()
            dist.barrier()
            with timer() as t:
                schedule.step(*inputs, **target)
        peak = torch.cuda.max_memory_allocated() - held if held else 0
        report(schedule=name, step_s=t.seconds, held_bytes=peak, order=list(done))
        del schedule
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
