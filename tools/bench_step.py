"""One rank of the step benchmark: lesson 04's step for every configuration given, with and without sending gradients.

A configuration is BATCH:WIDTH:BUCKET_MB; 0 for the bucket is DDP's default.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from course_utils.rank import device, report, timer
from course_utils.workloads import image_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("configurations", nargs="+")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    dist.init_process_group()
    models = {}
    for configuration in args.configurations:
        batch, width, bucket_mb = (float(part) for part in configuration.split(":"))
        options = {"bucket_cap_mb": bucket_mb} if bucket_mb else {}
        model = DistributedDataParallel(image_model(norm="group", width=width).to(device()), **options)
        x, y = torch.randn(int(batch), 3, 32, 32, device=device()), torch.randint(100, (int(batch),), device=device())
        models[configuration] = (model, torch.optim.AdamW(model.parameters()), x, y)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    for repeat in range(args.repeats + 3):  # interleaved, so that a machine that slows down affects all alike
        for configuration, parts in models.items():
            dist.barrier()
            with timer() as t:
                step(*parts)
            if repeat >= 3:
                report(configuration=configuration, step_s=t.seconds)
            with parts[0].no_sync():
                dist.barrier()
                with timer() as t:
                    step(*parts)
            if repeat >= 3:
                report(configuration=configuration, compute_s=t.seconds)
    for configuration, (model, _, x, _) in models.items():  # each layer's share of the work and of the gradients
        with FlopCounterMode(display=False) as counter:
            model.module(x)
        counts = counter.get_flop_counts()
        layers = [
            (name, module)
            for name, module in model.module.named_children()
            if sum(p.numel() for p in module.parameters())
        ]
        report(
            configuration=configuration,
            flops=[sum(counts.get(f"{type(model.module).__name__}.{name}", {}).values()) for name, _ in layers],
            nbytes=[4 * sum(p.numel() for p in module.parameters()) for _, module in layers],
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
