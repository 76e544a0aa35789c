"""A step of GPT-2 (124 million parameters) on one GPU, for each of several cases: how long it takes.

A case is WORDS:PRECISION:BATCH:LENGTH, as in gpt2-50257:bf16:16:1024. bf16 is autocast, bf16-all has the weights in
bfloat16 too, and -compiled after it compiles the model with its loss. gpt2-50257-matrix keeps the whole matrix of
attention.
"""

import functools
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from course_utils.rank import device, report, timer

STEPS = 3  # of which the last is timed


class Gpt2(nn.Module):
    """GPT-2, whose head shares the words' vectors. It returns the loss."""

    def __init__(self, words, matrix=False, width=768, depth=12, heads=12):
        super().__init__()
        self.heads, self.matrix = heads, matrix
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        parts = {"first": (width,), "second": (width,), "qkv": (width, 3 * width), "out": (width, width)}
        parts |= {"up": (width, 4 * width), "down": (4 * width, width)}
        self.layers = nn.ModuleList(
            nn.ModuleDict({k: nn.LayerNorm(*n) if len(n) == 1 else nn.Linear(*n) for k, n in parts.items()})
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens, wanted):
        (b, s), x = tokens.shape, self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            q, k, v = (
                t.view(b, s, self.heads, -1).transpose(1, 2) for t in layer["qkv"](layer["first"](x)).chunk(3, -1)
            )
            if self.matrix:
                scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
                mixed = scores.masked_fill(self.future(s, tokens.device), float("-inf")).softmax(-1) @ v
            else:
                mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["out"](mixed.transpose(1, 2).reshape(x.shape))
            x = x + layer["down"](gelu(layer["up"](layer["second"](x)), approximate="tanh"))
        return cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted)

    @staticmethod
    @functools.cache
    def future(length, device):
        return torch.ones(1, 1, length, length, dtype=torch.bool, device=device).triu(1)


def main():
    torch.cuda.set_device(device())
    for case in sys.argv[1:]:
        name, how, batch, length, *_ = case.split(":")
        precision = how.removesuffix("-compiled")
        words, batch, length = int(name.split("-")[1]), int(batch), int(length)
        torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
        with device():
            model = Gpt2(words, name.endswith("-matrix"))
            x, y = torch.randint(words, (batch, length)), torch.randint(words, (batch * length,))
        model = model.to(torch.bfloat16) if precision == "bf16-all" else model
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        run = torch.compile(model) if how.endswith("-compiled") else model
        for _ in range(STEPS):
            with timer() as t:
                with torch.autocast("cuda", torch.bfloat16, enabled=precision.startswith("bf16")):
                    loss = run(x, y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        peak = torch.cuda.max_memory_allocated()
        report(case=case, step_s=t.seconds, samples_per_s=batch / t.seconds, peak_bytes=peak)
        del model, run, optimizer, loss


if __name__ == "__main__":
    main()
