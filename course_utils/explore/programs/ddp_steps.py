"""Steps of DDP over a deep MLP with a given bucket size: what the buttons under `explore.buckets()` run."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils.rank import device, report, timer, trace_path
from course_utils.workloads import batch, deep_mlp


def main(args: argparse.Namespace) -> None:
    dist.init_process_group()
    on_gpu = device().type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device())
    model = DDP(deep_mlp(args.width, args.layers).to(device()), bucket_cap_mb=args.bucket_bytes / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = (t.to(device()) for t in batch(args.rows, width=args.width))

    def step() -> None:
        with record_function("step"), timer() as t:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        report(step_s=t.seconds)
        dist.barrier()  # so that all ranks begin the next step together

    for i in range(3):  # DDP settles its buckets in the second
        step()
        report(progress=(i + 1, 3 + args.steps))
    if args.profile:
        with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as prof:
            for i in range(args.steps):
                step()
                report(progress=(4 + i, 3 + args.steps))
        prof.export_chrome_trace(trace_path())
    sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    report(buckets=len(sizes.split(",")), nbytes=sum(p.nbytes for p in model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("width", "layers", "rows", "steps"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--bucket-bytes", type=float)
    parser.add_argument("--profile", action="store_true", help="where the virtual clock doesn't see to the timeline")
    main(parser.parse_args())
