"""The smallest distributed program: all it costs is the launch."""

import torch
import torch.distributed as dist

from course_utils.rank import device

if __name__ == "__main__":
    if device().type == "cuda":
        torch.cuda.set_device(device())
    dist.init_process_group()
    dist.barrier()
    dist.destroy_process_group()
