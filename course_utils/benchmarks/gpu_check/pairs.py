"""Times what each pair of ranks can send each other, both ways at once, and looks at what arrives; a program that runs
on every rank."""

from itertools import combinations

import torch
import torch.distributed as dist

from course_utils.rank import device, report, timer

NBYTES = 64 << 20

if __name__ == "__main__":
    if device().type == "cuda":
        torch.cuda.set_device(device())
    dist.init_process_group()
    rank = dist.get_rank()
    give = torch.full((NBYTES // 4,), float(rank), device=device())
    for pair in combinations(range(dist.get_world_size()), 2):
        dist.barrier()
        if rank not in pair:
            continue
        other = sum(pair) - rank
        take = torch.full_like(give, -1.0)
        for i in range(7):
            with timer() as t:
                both = [dist.P2POp(dist.isend, give, other), dist.P2POp(dist.irecv, take, other)]
                for work in dist.batch_isend_irecv(both):
                    work.wait()
            if i >= 2 and rank == pair[0]:  # the first ones connect the two
                report(pair=list(pair), each_way_Bps=NBYTES / t.seconds)
        report(pair=list(pair), right=bool((take == other).all()))
    dist.destroy_process_group()
