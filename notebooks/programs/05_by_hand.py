import torch
import torch.distributed as dist
from course_utils.rank import device, report

dist.init_process_group()
torch.manual_seed(0)                                   # the same weights on all ranks
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(device())
names = {p: name for name, p in model.named_parameters()}
bucket, sums = [], []

def flush():                                           # one sum for all that has gathered
    flat = torch.cat([p.grad.flatten() for p in bucket])
    sums.append((dist.all_reduce(flat, async_op=True), flat, bucket.copy()))
    report(sent=[names[p] for p in bucket])
    bucket.clear()

def send(p):                                           # autograd calls it when p.grad is ready
    bucket.append(p)
    if sum(q.grad.nbytes for q in bucket) >= 33_280:   # two layers: the bucket is full
        flush()

for p in model.parameters():
    p.register_post_accumulate_grad_hook(send)
x = torch.randn(32, 64, generator=torch.Generator().manual_seed(dist.get_rank()))   # its own data
model(x.to(device())).square().mean().backward()       # sums start while it runs
if bucket:
    flush()
for work, flat, params in sums:
    work.wait()
    for p, grad in zip(params, flat.split([p.numel() for p in params])):
        p.grad = grad.view_as(p)
for p in model.parameters():
    p.grad /= dist.get_world_size()
report(norms=[p.grad.norm().item() for p in model.parameters()])
dist.destroy_process_group()
