"""Train a transformer cut into pipeline stages, with several pipelines side by side. Plain PyTorch.

    torchrun --standalone --nproc-per-node=8 06_pipeline.py --stages 4 --micro-batches 16

Eight ranks make two pipelines of four stages. Each pipeline gets half of the batch, and ranks with the same stage
average their gradients by DDP. To make it yours, replace the data and what's in a `Stage`. At the end the weights of
all stages are in one file, and `Stage(0, 1)` loads it: the whole model. On several nodes, start it in a folder that
all of them see. To go on later you'd save the optimizer, too.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

TOKENS, LENGTH, WIDTH, BLOCKS = 32, 24, 64, 8


def seeded(seed, make):
    """Make a layer. Its first weights depend on the seed alone, so any number of stages begins with the same model."""
    torch.manual_seed(seed)
    return make()


class Stage(nn.Module):
    """Some consecutive blocks. The first stage also embeds tokens, and the last one scores them."""

    def __init__(self, index, stages):
        super().__init__()
        mine = range(index * BLOCKS // stages, (index + 1) * BLOCKS // stages)
        first, last = index == 0, index == stages - 1
        self.embed = seeded(100, lambda: nn.Embedding(TOKENS, WIDTH)) if first else None
        # Named by their number in the whole model, so that the files of all stages fit together.
        self.blocks = nn.ModuleDict({str(i): seeded(i, self.new_block) for i in mine})
        self.head = seeded(101, lambda: nn.Linear(WIDTH, TOKENS)) if last else None

    def new_block(self):
        return nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        for block in self.blocks.values():
            x = block(x, src_mask=mask, is_causal=True)
        return x if self.head is None else self.head(x)


def batch(step, n):
    """Sequences that count up by a step of their own: a stand-in for your data. All ranks draw the same ones."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(TOKENS, (n, 1), generator=generator)
    by = torch.randint(1, 4, (n, 1), generator=generator)
    tokens = (start + by * torch.arange(LENGTH + 1)) % TOKENS
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(scores, targets):
    # A mean, not a sum: step() divides by the number of micro-batches.
    return cross_entropy(scores.flatten(0, 1), targets.flatten())


def clip(parameters, max_norm, pipeline):
    """Clip by the norm of the whole model's gradients. Each stage knows only its own part of it."""
    squares = torch.stack([p.grad.square().sum() for p in parameters]).sum()
    dist.all_reduce(squares, group=pipeline)
    scale = (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for p in parameters:
        p.grad *= scale


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, help="of a pipeline; by default as many as ranks")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64, help="sequences of all pipelines together")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, or all on the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)  # NCCL between GPUs, gloo between CPUs
    ranks = dist.get_world_size()
    stages = args.stages or ranks
    if not 1 <= stages <= BLOCKS or ranks % stages:
        raise SystemExit(f"{stages} stages won't do: give --stages, a divisor of {ranks} ranks, and at most {BLOCKS}")
    pipelines = ranks // stages
    if args.micro_batches < stages or args.batch % (pipelines * args.micro_batches):
        raise SystemExit(
            "--micro-batches has to be at least --stages, and --batch a multiple of pipelines x micro-batches"
        )

    # Neighbouring ranks are one pipeline, and ranks with the same stage lie `stages` apart.
    mesh = init_device_mesh(device.type, (pipelines, stages), mesh_dim_names=("dp", "pp"))
    replica, index = mesh.get_coordinate()
    dp, pp = mesh["dp"].get_group(), mesh["pp"].get_group()
    model = Stage(index, stages).to(device)
    module = DDP(model, process_group=dp) if pipelines > 1 else model
    stage = PipelineStage(module, index, stages, device, group=pp)
    schedule = Schedule1F1B(stage, args.micro_batches, loss_fn=loss_of)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)

    for step in range(args.steps):
        x, y = (t[replica::pipelines].to(device) for t in batch(step, args.batch))
        losses = []
        inputs = [x] if index == 0 else []
        last = {"target": y, "losses": losses} if index == stages - 1 else {}
        schedule.step(*inputs, **last, return_outputs=False)  # or the last stage would keep them all
        clip(parameters, 1.0, pp)
        optimizer.step()
        optimizer.zero_grad()  # before the next step(): it would divide these gradients, too
        if step % 20 == 0 or step == args.steps - 1:
            loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
            loss = loss.detach() / pipelines
            dist.all_reduce(loss)  # only last stages bring something
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)

    dcp.save({"model": model.state_dict()}, checkpoint_id="06_pipeline")  # each rank writes its own part
    if dist.get_rank() == 0:
        dcp_to_torch_save("06_pipeline", "06_pipeline.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
