"""A pipeline with a stage on each rank, the batch cut into more and more pieces, timed one after the other."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import mse_loss

from course_utils.rank import device, report, timer
from course_utils.workloads import default_size

SIZES = {"cpu": (16, 512, 1024), "small-gpu": (32, 2048, 4096), "gpu": (32, 4096, 8192)}  # layers, width, rows


def main():
    pieces = [int(m) for m in sys.argv[1:]]
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    rank, p = dist.get_rank(), dist.get_world_size()
    layers, width, rows = SIZES[default_size()]
    rows -= rows % max(pieces)  # pieces of equal size
    with device():
        mine = nn.Sequential(*[nn.Linear(width, width) for _ in range(max(1, layers // p))])
        x, y = torch.randn(2, rows, width)
    schedules = {}
    for m in pieces:  # a stage for each: a schedule prepares its buffers for pieces of one size
        stage = PipelineStage(mine, rank, p, device())
        schedules[m] = ScheduleGPipe(stage, max(m, p), loss_fn=mse_loss)
        schedules[m]._n_microbatches = m  # torch 2.10 refuses to be asked for fewer pieces than stages
    for step in range(9):
        for m, schedule in schedules.items():  # in turn: what slows the machine hits all of them alike
            dist.barrier()
            with timer() as t:
                if rank == 0:
                    schedule.step(x)
                elif rank == p - 1:
                    schedule.step(target=y)
                else:
                    schedule.step()
                if device().type == "cuda":
                    torch.cuda.synchronize()  # a barrier doesn't wait for what GPUs still compute
                dist.barrier()
            if step >= 2:
                report(m=m, step_s=t.seconds)
            mine.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
