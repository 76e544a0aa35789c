"""A small transformer learns to continue sequences that count: in float32, under autocast, as a bf16 model, and in fp16
with several factors on the loss, which the weights' gradients are divided by again."""

import argparse
from contextlib import nullcontext

import torch
from torch.nn.functional import cross_entropy

from course_utils.rank import device, report
from course_utils.workloads.models import Transformer

N, LENGTH = 4, 16  # sequences in a batch, and tokens in each
WAYS = {"float32": None, "autocast to bf16": torch.bfloat16, "bf16 model": None, "fp16": torch.float16}


def sequences(random):
    """Tokens that count upwards, each row in steps of its own, and the tokens that follow them."""
    start, stride = torch.randint(64, (N, 1), generator=random), torch.randint(1, 5, (N, 1), generator=random)
    tokens = ((start + stride * torch.arange(LENGTH + 1)) % 64).to(device())
    return tokens[:, :-1], tokens[:, 1:].flatten()


def train(way, power, steps, lr):
    torch.manual_seed(0)
    model, random, dtype = Transformer(64, 1, 4, LENGTH).to(device()), torch.Generator().manual_seed(1), WAYS[way]
    if way == "bf16 model":
        model.bfloat16()
    before = [p.detach().clone() for p in model.parameters()]
    asked = [torch.zeros_like(p, dtype=torch.bool) for p in model.parameters()]  # rows of tokens that never come aren't
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(steps):
        x, y = sequences(random)
        with torch.autocast(device().type, dtype=dtype) if dtype else nullcontext():
            loss = cross_entropy(model(x).flatten(0, 1), y)
        (loss * 2.0**power).backward()
        for p, ever in zip(model.parameters(), asked, strict=True):
            p.grad *= 2.0**-power
            ever |= p.grad != 0
        optimizer.step()
        optimizer.zero_grad()
        report(way=way, power=power, step=step, loss=loss)
        if not loss.isfinite():
            break
    old, new, ever = (torch.cat([p.detach().flatten() for p in each]) for each in (before, model.parameters(), asked))
    report(way=way, power=power, same=(old == new)[ever].float().mean())
    exponents = torch.frexp(old.float())[1] - 1  # of the power of two at or below each weight
    counted = ever & (old != 0)
    for exponent in exponents[counted].unique().tolist():
        here = (exponents == exponent) & counted
        kept = (here & (old == new)).sum()
        report(way=way, power=power, exponent=exponent, kept=kept, moved=here.sum() - kept)
    return model, random


def look(model, random, powers):
    """Which share of the activations' gradients fp16 makes zero, for each factor on the loss."""
    gradients = []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_full_backward_hook(lambda layer, gives, given: gradients.append(given[0].flatten()))
    x, y = sequences(random)
    cross_entropy(model(x).flatten(0, 1), y).backward()
    g = torch.cat(gradients)
    g = g[g != 0]
    for power in powers:
        half = (g * 2.0**power).half()
        report(factor=power, lost=(half == 0).float().mean(), infinite=half.isinf().float().mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[])
    parser.add_argument("--powers", type=int, nargs="+", default=[0], help="factors on the loss, as powers of two")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    for way in args.ways:
        for power in args.powers if way == "fp16" else [0]:
            model, random = train(way, power, args.steps, args.lr)
            if way == "float32":
                look(model, random, args.powers)


if __name__ == "__main__":
    main()
