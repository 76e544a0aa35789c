"""The smallest program that is still distributed: what remains is the cost of the launch."""

import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group()
    dist.barrier()
    dist.destroy_process_group()
