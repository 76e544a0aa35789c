"""Times an all-reduce over sizes from 4 KiB to 64 MiB; a program that runs on every rank."""

import torch
import torch.distributed as dist

from course_utils.rank import device, report, timer

SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]  # bytes

if __name__ == "__main__":
    if device().type == "cuda":
        torch.cuda.set_device(device())
    dist.init_process_group()
    for nbytes in SIZES:
        tensor = torch.zeros(nbytes // 4, device=device())
        times = 12 if nbytes <= 4 << 20 else 7
        for i in range(times + 2):
            dist.barrier()
            with timer() as t:
                dist.all_reduce(tensor)
            if i >= 2:  # the first ones connect the ranks and touch the memory
                report(nbytes=nbytes, sum_s=t.seconds)
    dist.destroy_process_group()
