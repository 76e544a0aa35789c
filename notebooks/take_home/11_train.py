"""Train on any number of nodes, say what the network between them costs, and live through a job's end. Plain PyTorch.

    sbatch --nodes=1 11_job.sbatch    # both, and then compare the two steps: that's what a second node is worth
    sbatch --nodes=2 11_job.sbatch
    torchrun --standalone --nproc-per-node=2 11_train.py --steps 20

To make it yours, replace the model and `batch`. It saves every `--save-every` steps, and goes on from there when it's
started again. When the file that SAVE_FILE names appears, it saves, creates the file that REQUEUE_FILE names, and ends:
the batch file then puts the job back into the queue.
"""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: after it, it would keep the group, and gloo may abort at exit
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

WIDTH, SAMPLES = 1024, 64  # of the model; of each rank


def new_model():
    return nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


def batch(step, rank, device):
    """Random inputs, the same whenever this step is done: a stand-in for your own loader."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(SAMPLES, WIDTH, generator=generator).to(device)
    return x, x.roll(1, dims=1)


def train_step(model, optimizer, x, y):
    loss = mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def seconds(action, device, times=5):
    """The fastest of a few runs, which all ranks begin together. The slowest rank counts."""
    took = []
    for _ in range(times + 2):  # DDP makes its buckets in the first two
        dist.barrier()
        begun = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - begun)
    slowest = torch.tensor(min(took[2:]), device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def times_sent(ranks, nodes):
    """How many times a sum sends its bytes out of each node, or out of each GPU if there's only one node. It's the
    least that does it: on more than two nodes NCCL may send nearly twice the bytes."""
    senders = nodes if nodes > 1 else ranks
    return 2 * (senders - 1) / senders


def what_the_network_costs(device):
    """Time a step with and without its sum, and the sum alone, on a model of its own."""
    model = DDP(new_model().to(device), device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = batch(0, dist.get_rank(), device)
    n, nodes = dist.get_world_size(), dist.get_world_size() // int(os.environ["LOCAL_WORLD_SIZE"])
    together = seconds(lambda: train_step(model, optimizer, x, y), device)
    with model.no_sync():  # computes the same, and sends nothing
        alone = seconds(lambda: train_step(model, optimizer, x, y), device)
    gradients = torch.zeros(sum(p.numel() for p in model.parameters()), device=device)
    the_sum = seconds(lambda: dist.all_reduce(gradients), device)
    if dist.get_rank() == 0:
        rate = times_sent(n, nodes) * gradients.nbytes / the_sum / 1e9
        sender = "node" if nodes > 1 else "rank"
        print(f"nodes {nodes}, ranks {n}: a step takes {together * 1e3:.1f} ms, and {alone * 1e3:.1f} ms without its"
              f" sum: an efficiency of {alone / together:.0%}. The sum of {gradients.nbytes / 1e6:.0f} MB alone takes"
              f" {the_sum * 1e3:.1f} ms, so each {sender} sends {rate:.1f} GB/s.", flush=True)  # fmt: skip


def asked_to_save(device):
    """Whether any rank sees the file: they decide together, or some would end a step before the others."""
    path = os.environ.get("SAVE_FILE", "")
    seen = torch.tensor(int(bool(path) and os.path.exists(path)), device=device)
    dist.all_reduce(seen, dist.ReduceOp.MAX)
    return bool(seen.item())


def save(model, optimizer, done, path):
    """Written by one rank, to another name first: a reader finds the old file or the new one, never half of one."""
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
        torch.save(state, f"{path}.partial")
        os.replace(f"{path}.partial", path)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--out", default="11_train.pt", help="a path that all nodes see")
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    gpus, ranks = torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])  # of this node
    if 0 < gpus < ranks:
        raise SystemExit(f"{ranks} ranks on {socket.gethostname()}, and GPUs for only {gpus} of them. Give torchrun"
                         f" --nproc-per-node={gpus}, or set CUDA_VISIBLE_DEVICES= to try it on the CPU.")  # fmt: skip
    gpu = gpus > 0
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size}: local rank {local_rank} on {socket.gethostname()}, {device}", flush=True)
    what_the_network_costs(device)

    torch.manual_seed(0)
    model = DDP(new_model().to(device), device_ids=[device] if gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if os.path.exists(args.out):
        state = torch.load(args.out, map_location=device)  # on every rank
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["done"]
    dist.barrier()  # nobody writes the file while another rank still looks for it
    if rank == 0:
        print(f"starts with step {first}", flush=True)
    for step in range(first, args.steps):
        loss = train_step(model, optimizer, *batch(step, rank, device))
        warned = asked_to_save(device)
        if warned or (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            save(model, optimizer, step + 1, args.out)
            dist.all_reduce(loss)
            if rank == 0:
                print(f"step {step}: loss {loss.item() / world_size:.4f}, saved", flush=True)
        if warned:
            if "REQUEUE_FILE" in os.environ and step + 1 < args.steps:
                open(os.environ["REQUEUE_FILE"], "w").close()
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
