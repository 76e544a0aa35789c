"""Train a transformer with FSDP: made in shards, saved in shards, resumed on any number of ranks. Plain PyTorch.

    torchrun --standalone --nproc-per-node=8 10_fsdp.py --steps 200 --export model.pt
    torchrun --standalone --nproc-per-node=4 10_fsdp.py --steps 400 --resume --export model.pt

To make it yours, replace the data, the model and `first_weights`. The file of `--export` is an ordinary one, without
shards: `Model().load_state_dict(torch.load("model.pt"))`. `--weights model.pt` begins with such a file.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import cross_entropy

TOKENS, LENGTH, WIDTH, BLOCKS = 32, 24, 64, 4
FOLDER = Path("10_fsdp")  # of the checkpoints, one folder in it for each


class Model(nn.Module):
    """Predicts the next token of each."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        x = self.embed(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


@torch.no_grad()
def first_weights(model):
    """Fill shards that `to_empty` has made. Each rank draws the whole tensor from a seed of its own and keeps its part,
    so any number of ranks begins with the same model. One whole tensor lies in memory at a time."""
    for seed, (name, p) in enumerate(model.named_parameters()):
        generator = torch.Generator().manual_seed(seed)
        if p.dim() > 1:
            whole = torch.randn(p.shape, generator=generator) * 0.02 ** (0.5 if "embed" in name else 1)
        else:
            whole = torch.ones(p.shape) if "norm" in name and name.endswith("weight") else torch.zeros(p.shape)
        # With src_data_rank=None nothing is sent: all ranks have drawn the same.
        p.copy_(distribute_tensor(whole.to(p.device), p.device_mesh, p.placements, src_data_rank=None))


def build(mesh, device):
    """The model in shards. No rank has the whole of it at any moment."""
    with torch.device("meta"):
        model = Model()
    # The reduce_dtype is said in full: its default changed in torch 2.15.
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for unit in [*model.blocks, model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    first_weights(model)
    return model


def batch(step, n):
    """Sequences that count up by a step of their own: a stand-in for your data. All ranks draw the same ones."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(TOKENS, (n, 1), generator=generator)
    by = torch.randint(1, 4, (n, 1), generator=generator)
    tokens = (start + by * torch.arange(LENGTH + 1)) % TOKENS
    return tokens[:, :-1], tokens[:, 1:]


def state_of(model, optimizer, step):
    """What a checkpoint has. `dcp.load` fills it, so it's asked for before loading, too."""
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
        "step": torch.tensor(step),
    }


def save(model, optimizer, step):
    # A folder of its own: whoever is killed while saving still has the one before. DCP writes `.metadata` last.
    dcp.save(state_of(model, optimizer, step), checkpoint_id=FOLDER / f"step_{step}")


def resume(model, optimizer):
    """Load the last checkpoint that's whole, on as many ranks as there are now. Returns the steps that are done."""
    whole = [path for path in FOLDER.glob("step_*") if (path / ".metadata").exists()]
    if not whole:
        raise SystemExit(f"there's no whole checkpoint in {FOLDER}: leave out --resume")
    state = state_of(model, optimizer, 0)
    dcp.load(state, checkpoint_id=max(whole, key=lambda path: int(path.name.removeprefix("step_"))))
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    return int(state["step"])


def start_from(model, path):
    """Rank 0 reads an ordinary file, and sends each rank its shards."""
    whole = torch.load(path, map_location="cpu", mmap=True) if dist.get_rank() == 0 else {}
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))


def export(model, path):
    """Gather the weights on the CPU of rank 0, tensor by tensor, and write an ordinary file."""
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:  # the others have got nothing
        torch.save(whole, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200, help="in all, with those before --resume")
    parser.add_argument("--batch", type=int, default=64, help="sequences of all ranks together")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="go on with the last checkpoint")
    parser.add_argument("--weights", metavar="FILE", help="begin with the weights of a file without shards")
    parser.add_argument("--export", metavar="FILE", help="write the weights into one at the end")
    args = parser.parse_args()

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, or all on the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)  # NCCL between GPUs, gloo between CPUs
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if args.batch % ranks:
        raise SystemExit(f"--batch {args.batch} can't be shared by {ranks} ranks")
    if args.weights and args.resume:
        raise SystemExit("--weights begins anew and --resume goes on: take one of them")

    model = build(init_device_mesh(device.type, (ranks,)), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # after fully_shard, which makes new parameters
    done = 0
    if args.weights:
        start_from(model, args.weights)
    if args.resume:
        done = resume(model, optimizer)

    for step in range(done, args.steps):
        x, y = (t[rank::ranks].to(device) for t in batch(step, args.batch))
        loss = cross_entropy(model(x).float().flatten(0, 1), y.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # of all shards together
        optimizer.step()
        optimizer.zero_grad()
        last = step == args.steps - 1
        if step % 20 == 0 or last:
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}: loss {mean.item() / ranks:.4f}, gradient norm {norm.item():.3f}", flush=True)
        if (step + 1) % args.save_every == 0 or last:
            save(model, optimizer, step + 1)
    if args.export:
        export(model, args.export)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
