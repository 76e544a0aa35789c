"""Are all ranks in step? Run me with `torchrun --nproc-per-node 2 13_same_everywhere.py`, or copy `check`.

Call `check` on all ranks after the first step, and again after the first epoch. It costs one small collective.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def check(model: nn.Module, seen: int = 0, total: int = 0) -> list[str]:
    """What looks wrong, a sentence each, the same on all ranks.

    model        replicated on all ranks, as under DDP: its weights should be equal, and random numbers shouldn't
    seen, total  the samples that this rank has trained on, and how many all should have seen; 0 leaves that out
    """
    device = next(model.parameters()).device
    with torch.no_grad():
        weights = sum(p.double().sum() for p in model.parameters())
        sizes = sum(p.double().abs().sum() for p in model.parameters())
    with torch.random.fork_rng(devices=[]):  # leaves the random state as it is
        draw = torch.rand(1, dtype=torch.float64)
    mine = torch.tensor([float(weights), float(sizes), draw.item(), float(seen)], dtype=torch.float64, device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    table = torch.stack(rows).cpu()

    wrong = []
    if not table[:, :2].isfinite().all():
        wrong.append("Some weights are NaN or infinite.")
    elif odd := (table[:, :2] != table[0, :2]).any(1).nonzero().flatten().tolist():
        wrong.append(f"The weights of ranks {odd} differ from rank 0's.")
    if len(table) > 1 and len(set(table[:, 2].tolist())) < len(table):
        wrong.append("Some ranks draw the same random numbers: they drop out and augment alike.")
    if total and table[:, 3].sum() != total:
        wrong.append(f"The ranks have seen {table[:, 3].sum():.0f} samples together, and not {total}.")
    return wrong


def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    model = DDP(nn.Linear(8, 1).to(device), device_ids=[device] if gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    seen = 0
    for step, (x,) in enumerate(loader):
        x = x.to(device)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(x)
        if step == 0 and (wrong := check(model)) and rank == 0:
            print(*wrong, sep="\n")
    wrong = check(model, seen, total=len(data))
    if rank == 0:
        print(*(wrong or ["All ranks are in step."]), sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
