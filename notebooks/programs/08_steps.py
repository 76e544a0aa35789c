"""A training step of a transformer in several precisions, one after the other: its seconds, and the bytes at its
fullest moment. On several ranks it's DDP."""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import device, report, timer
from course_utils.workloads import transformer

WAYS = {"fp32": None, "TF32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", nargs="+", choices=WAYS, required=True)
    parser.add_argument("--batch", type=int, nargs=2, default=(8, 1024), metavar=("SEQUENCES", "TOKENS"))
    args = parser.parse_args()
    on_gpu, ranks = device().type == "cuda", int(os.environ["WORLD_SIZE"])
    if on_gpu:
        torch.cuda.set_device(device())
    if ranks > 1:
        dist.init_process_group()
    sequences, tokens = args.batch
    x = torch.randint(256, (sequences, tokens + 1)).to(device())
    for way in args.ways:
        dtype = WAYS[way]
        torch.set_float32_matmul_precision("high" if way == "TF32" else "highest")
        with device():  # weights are made where they'll be used
            model = DDP(transformer()) if ranks > 1 else transformer()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler(device().type, enabled=dtype == torch.float16)
        for _ in range(3):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            with timer() as t:
                with torch.autocast(device().type, dtype=dtype) if dtype else nullcontext():
                    loss = cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        # The last of three: Adam has made its state in the first, and DDP its buckets in the second.
        report(way=way, step_s=t.seconds, peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else 0)
        del model, optimizer, scaler, loss
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
