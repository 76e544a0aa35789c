"""Are a pipeline's gradients those of the whole model on the whole batch? In double precision, under two schedules."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import mse_loss

from course_utils.rank import device, report


def main():
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    rank, p = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same numbers on all ranks
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(p)]
    whole = nn.Sequential(*blocks).double().to(device())
    x, y = torch.randn(2, 16 * p, 64, dtype=torch.float64).to(device())
    mine = copy.deepcopy(whole[rank])
    mse_loss(whole(x), y).backward()  # the twin: one device, one batch
    expected = torch.cat([q.grad.flatten() for q in whole[rank].parameters()])
    for name, schedule in (("gpipe", ScheduleGPipe), ("1f1b", Schedule1F1B)):
        stage = PipelineStage(mine, stage_index=rank, num_stages=p, device=device())
        pipeline = schedule(stage, n_microbatches=2 * p, loss_fn=mse_loss)
        losses = []
        if rank == 0:
            pipeline.step(x)
        elif rank == p - 1:
            pipeline.step(target=y, losses=losses)
        else:
            pipeline.step()
        found = torch.cat([q.grad.flatten() for q in mine.parameters()])
        gap = (found - expected).abs().max() / expected.abs().max()
        report(schedule=name, gap=gap.item(), losses=len(losses))
        mine.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
