"""One rank of `tools/bench_emulation.py published`: training steps of known models on modelled GPUs.

A case is MODEL:PRECISION:BATCH:SEQUENCE:ACCUMULATE, as in resnet50:amp:256:0:1 or bert_large:tf32:128:128:64. amp takes
images with channels_last, amp-nchw without.
"""

import argparse
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_utils.rank import device, report, timer

VOCABULARY = 30528  # of BERT, rounded up to a multiple of 64


class Layer(nn.Module):
    """A layer of BERT, its attention written out as in 2019. The mask is left out, since a fused kernel added it on the
    way, and the softmax stays in the type of its input, as under Apex."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        q, k, v = (f(x).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = (q / (width / self.heads) ** 0.5) @ k.transpose(2, 3)
        with torch.autocast("cuda", enabled=False):
            shares = self.dropout(scores.softmax(-1))
        mixed = (shares @ v).transpose(1, 2).reshape(b, s, width)
        x = self.norms[0](x + self.dropout(self.out(mixed)))
        return self.norms[1](x + self.dropout(self.down(nn.functional.gelu(self.up(x)))))


class Bert(nn.Module):
    """BERT, with its head for masked words or, for fine-tuning on SQuAD (384 words), for the ends of an answer."""

    def __init__(self, width: int, depth: int, heads: int, length: int):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(512, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(depth)])
        self.answers = length == 384
        self.head = nn.Linear(width, 2 if self.answers else VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        if self.answers:
            return self.head(x).transpose(1, 2).reshape(-1, tokens.shape[1])
        return self.head(x[:, : 80 if tokens.shape[1] == 512 else 20].reshape(-1, x.shape[2]))


def model_and_data(name: str, batch: int, length: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    if name.startswith("bert"):
        model: nn.Module = Bert(*((1024, 24, 16) if name == "bert_large" else (768, 12, 12)), length)
        rows = batch * (2 if length == 384 else 80 if length == 512 else 20)
        labels = length if length == 384 else VOCABULARY
        return model, torch.randint(VOCABULARY, (batch, length)), torch.randint(labels, (rows,))
    if name == "resnext101":
        blocks = torchvision.models.resnet.Bottleneck
        model = torchvision.models.ResNet(blocks, [3, 4, 23, 3], groups=32, width_per_group=4)
    else:
        model = torchvision.models.get_model(name)
    return model, torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))


def kernels() -> Counter[tuple[float, float, str, int, float]]:
    """Count from now on what the modelled GPU runs: FLOPs, bytes, the type of its arithmetic, launches, and the bytes
    of what is reordered for it."""
    from course_utils.emulation import costs, plans

    counted: Counter[tuple[float, float, str, int, float]] = Counter()
    parts: dict[int, tuple[float, float, str, int, float]] = {}
    latest: dict[str, Any] = {}
    real_seconds, real_launches, real_new, real_plan = costs.seconds, costs.launches, plans.Plans._new, plans.Plans.plan
    real_reordered = costs.reordered

    def seconds(gpu: Any, func: Any, flops: float, nbytes: float, dtype: torch.dtype) -> float:
        kind = str(dtype).removeprefix("torch.") + ("_conv" if "convolution" in func._schema.name else "")
        latest["work"] = (flops, nbytes, kind)
        return real_seconds(gpu, func, flops, nbytes, dtype)

    def launches(*args: Any) -> int:
        latest["launches"] = real_launches(*args)
        return int(latest["launches"])

    def reordered(*args: Any) -> float:
        latest["reordered"] = real_reordered(*args)
        return float(latest["reordered"])

    def new(self: Any, *args: Any) -> Any:
        latest.clear()
        plan = real_new(self, *args)
        if latest:
            parts[id(plan)] = (*latest["work"], latest["launches"], latest["reordered"])
        return plan

    def plan(self: Any, *args: Any) -> Any:
        found = real_plan(self, *args)
        if id(found) in parts:
            counted[parts[id(found)]] += 1
        return found

    for owner, name, own in (
        (costs, "seconds", seconds), (costs, "launches", launches), (costs, "reordered", reordered),
        (plans.Plans, "_new", new), (plans.Plans, "plan", plan),
    ):  # fmt: skip
        setattr(owner, name, own)
    return counted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    torch.cuda.set_device(device())
    dist.init_process_group()
    counted = kernels() if args.kernels else Counter()
    for case in args.cases:
        name, precision, *numbers = case.split(":")
        batch, length, accumulate = map(int, numbers)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        with device():  # made there, so that nothing is computed
            model, x, y = model_and_data(name, batch, length)
        if precision == "amp" and not name.startswith("bert"):  # as the published programs do
            model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
        if dist.get_world_size() > 1:
            model = DistributedDataParallel(model, device_ids=[device().index])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if name.startswith("bert"):
            optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda", enabled=precision.startswith("amp"))

        def backward(model: Any = model, x: Any = x, y: Any = y, scaler: Any = scaler) -> None:
            with torch.autocast("cuda", torch.float16, enabled=scaler.is_enabled()):
                loss = cross_entropy(model(x), y)
            scaler.scale(loss).backward()

        def seconds(call: Any) -> float:
            torch.cuda.synchronize()
            with timer() as t:
                call()
                torch.cuda.synchronize()
            return float(t.seconds)

        def step(optimizer: Any = optimizer, scaler: Any = scaler) -> None:
            scaler.step(optimizer)
            scaler.update()

        for _ in range(2 if dist.get_world_size() > 1 else 1):  # makes the optimizer's state, and DDP's buckets
            backward()
            step()
            optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        alone_s = 0.0
        if accumulate > 1:
            no_sync = model.no_sync() if isinstance(model, DistributedDataParallel) else torch.enable_grad()
            with no_sync:
                backward()
                alone_s = seconds(backward)
        counted.clear()
        sending_s = seconds(backward)
        work = [[*kernel, count] for kernel, count in counted.items()]
        counted.clear()
        step_s = seconds(step)
        work_once = [[*kernel, count] for kernel, count in counted.items()]
        optimizer.zero_grad()
        whole_s = (accumulate - 1) * alone_s + sending_s + step_s
        rate = batch * accumulate * dist.get_world_size() / whole_s
        report(
            case=case, samples_per_s=rate, samples=batch * accumulate, accumulate=accumulate,
            peak_bytes=torch.cuda.max_memory_allocated(), work=work, once=work_once,
        )  # fmt: skip
        del model, optimizer, x, y, scaler, backward, step
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
