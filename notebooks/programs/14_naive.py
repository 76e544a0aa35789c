"""Trains a GPT on several GPUs. What it does is right. How it does it is slow."""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course_utils.rank import device, report


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, words, width, layers, heads, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model, part):
    """The mean loss of sequences, each of which has one token more than the model reads at once."""
    logits = model(part[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())


def main(options):
    dist.init_process_group()
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    torch.manual_seed(0)
    with here:
        model = GPT(options.words, options.width, options.layers, options.heads, options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
    train, check = torch.load(options.data)  # sequences of length + 1 tokens
    begin = 0
    if options.resume:
        saved = torch.load(options.resume, map_location=here)
        model.load_state_dict(saved["model"])
        if "optimizer" in saved:
            optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]

    for step in range(begin, options.steps):
        batch = train[step * options.batch : (step + 1) * options.batch].to(here)
        mine = batch[rank::ranks]
        parts = mine.split(options.micro_batch)
        gradients = [torch.zeros_like(p) for p in model.parameters()]
        total = 0.0
        for part in parts:
            model.zero_grad()
            loss = loss_of(model, part)
            loss.backward()
            total += loss.item() / len(parts)
            for gradient, p in zip(gradients, model.parameters(), strict=True):
                dist.all_reduce(p.grad)
                gradient += p.grad / (len(parts) * ranks)
        for gradient, p in zip(gradients, model.parameters(), strict=True):
            p.grad = gradient
        optimizer.step()
        mean = torch.tensor(total / ranks, device=here)
        dist.all_reduce(mean)
        report(step=step, loss=mean.item(), norm=sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5)

        if (step + 1) % options.check_every == 0:
            if rank == 0:
                with torch.no_grad():
                    losses = [loss_of(model, part.to(here)).item() for part in check.split(1)]
                report(step=step, check_loss=sum(losses) / len(losses))
            dist.barrier()

    if options.save and rank == 0:
        whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": options.steps}
        torch.save(whole, options.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", type=int, default=50257)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--check-every", type=int, default=2)
    parser.add_argument("--data")
    parser.add_argument("--save")
    parser.add_argument("--resume")
    main(parser.parse_args())
