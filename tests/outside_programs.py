"""What programs from outside do, a small version of each kind: on four emulated GPUs, one after the other."""

from __future__ import annotations

import copy
import os
import sys
import traceback

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import report

dist.init_process_group("nccl", init_method="env://")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.backends.cudnn.benchmark = True
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
FOLDER = sys.argv[1]
torch.manual_seed(RANK)


def mlp(width=256, out=256):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, out))


def images(n, size=64):
    return torch.randn(n, 3, size, size).pin_memory().cuda(non_blocking=True)


def convolutions(classes=10):
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


@torch.no_grad()
def gathered(x):
    parts = [torch.ones_like(x) for _ in range(WORLD)]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def a_gpt_over_shards_of_tokens() -> None:
    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads, self.norm, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out, self.mlp = nn.Linear(width, 3 * width), nn.Linear(width, width), mlp(width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm(x)).split(c, dim=2)
            q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(b, t, c)
            x = x + self.out(y)
            return x + self.mlp(self.norm2(x))

    tokens = np.memmap(f"{FOLDER}/tokens.bin", dtype=np.uint16, mode="r")
    model = nn.Sequential(nn.Embedding(512, 128), Block(128, 4), Block(128, 4), nn.Linear(128, 512, bias=False)).to(
        DEVICE
    )
    model[-1].weight = model[0].weight
    model = DDP(torch.compile(model), device_ids=[RANK])
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.dim() < 2]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    for _step in range(2):
        total = 0.0
        for micro in range(2):
            at = torch.randint(len(tokens) - 129, (8,))
            x, y = (
                torch.stack([torch.from_numpy(tokens[i + k : i + k + 128].astype(np.int64)) for i in at])
                for k in (0, 1)
            )
            x, y = (t.pin_memory().to(DEVICE, non_blocking=True) for t in (x, y))
            model.require_backward_grad_sync = micro == 1
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).view(-1, 512), y.view(-1), ignore_index=-1) / 2
            total += loss.detach()
            loss.backward()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        f"{total.item():.4f} {norm:.4f}"
    if RANK == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, f"{FOLDER}/gpt.pt")
    dist.barrier()
    saved = torch.load(f"{FOLDER}/gpt.pt", map_location=DEVICE)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert model.module._orig_mod[0].weight.device == DEVICE


def a_masked_autoencoder_scaled_by_hand() -> None:
    model = DDP(mlp().cuda(), device_ids=[RANK], find_unused_parameters=True)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    for _step in range(2):
        x = torch.randn(16, 64, 256, device=DEVICE)
        order = torch.argsort(torch.rand(16, 64, device=DEVICE), dim=1)
        back, keep = torch.argsort(order, dim=1), order[:, :16]
        mask = torch.ones(16, 64, device=DEVICE)
        mask[:, :16] = 0
        mask = torch.gather(mask, 1, back)
        assert mask.sum().item() == 16 * 48
        kept = torch.gather(x, 1, keep.unsqueeze(-1).repeat(1, 1, 256))
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(torch.cat([kept, x[:, :48] * 0], dim=1))
        loss = ((out.float() - x).pow(2).mean(-1) * mask).sum() / mask.sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.norm(torch.stack([torch.norm(p.grad.detach(), 2.0).to(DEVICE) for p in model.parameters()]), 2.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    meter = torch.tensor([2, loss.item()], dtype=torch.float64, device="cuda")
    dist.barrier()
    dist.all_reduce(meter)
    assert meter.tolist()[0] == 2 * WORLD


def a_student_its_teacher_and_crops_of_two_sizes() -> None:
    def body():
        return nn.Sequential(
            *convolutions(256)[:-1], nn.utils.parametrizations.weight_norm(nn.Linear(64, 4096, bias=False))
        )

    student, teacher = (nn.SyncBatchNorm.convert_sync_batchnorm(body().cuda()) for _ in range(2))
    teacher.load_state_dict(student.state_dict())
    student = DDP(student, device_ids=[RANK])
    teacher.requires_grad_(False)
    center = torch.zeros(1, 4096, device=DEVICE)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    for step in range(2):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        crops = [*(images(8) for _ in range(2)), *(images(8, 32) for _ in range(3))]
        sizes = torch.tensor([c.shape[-1] for c in crops])
        ends = torch.cumsum(torch.unique_consecutive(sizes, return_counts=True)[1], 0)
        parts = [student(torch.cat(crops[a:b])) for a, b in zip([0, *ends[:-1]], ends, strict=False)]
        wanted = F.softmax((teacher(torch.cat(crops[:2])) - center) / 0.04, dim=-1).detach().chunk(2)
        loss = sum(
            torch.sum(-wanted[i] * F.log_softmax(c, dim=-1), dim=-1).mean()
            for i in range(2)
            for c in torch.cat(parts).chunk(5)
        )
        optimizer.zero_grad()
        loss.backward()
        for p in student.parameters():
            clip = 3.0 / (p.grad.data.norm(2) + 1e-6)
            if clip < 1:
                p.grad.data.mul_(clip)
        optimizer.step()
        mean = torch.sum(torch.cat(wanted), dim=0, keepdim=True)
        dist.all_reduce(mean)
        center = center * 0.9 + mean / (16 * WORLD) * 0.1
        with torch.no_grad():
            for ours, theirs in zip(student.module.parameters(), teacher.parameters(), strict=False):
                theirs.data.mul_(0.99).add_(0.01 * ours.detach().data)
        torch.cuda.synchronize()


def a_queue_of_keys_from_shuffled_batches() -> None:
    encoder, keys = DDP(mlp(256, 128).cuda(), device_ids=[RANK]), mlp(256, 128).cuda()
    queue, pointer = (
        F.normalize(torch.randn(128, 1024, device=DEVICE), dim=0),
        torch.zeros(1, dtype=torch.long, device=DEVICE),
    )
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
    for _step in range(2):
        x = torch.randn(32, 256).cuda(RANK, non_blocking=True)
        with torch.no_grad():
            everything = gathered(x)
            order = torch.randperm(len(everything)).cuda()
            dist.broadcast(order, src=0)
            mine = order.view(WORLD, -1)[RANK]
            k = gathered(F.normalize(keys(everything[mine]), dim=1))[torch.argsort(order).view(WORLD, -1)[RANK]]
        q = F.normalize(encoder(x), dim=1)
        positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        logits = torch.cat([positive, torch.einsum("nc,ck->nk", [q, queue.clone().detach()])], dim=1) / 0.07
        labels = torch.zeros(logits.shape[0], dtype=torch.long).cuda()
        loss = nn.CrossEntropyLoss().cuda(RANK)(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        new, at = gathered(k), int(pointer)
        queue[:, at : at + len(new)] = new.T
        pointer[0] = (at + len(new)) % 1024
        _, best = logits.topk(5, 1, True, True)
        best.t().eq(labels.view(1, -1).expand_as(best.t()))[:1].reshape(-1).float().sum(0, keepdim=True).mul_(
            100 / 32
        ).item()
    assert pointer.item() == 2 * 32 * WORLD


def pictures_and_texts_against_all_ranks() -> None:
    import torch.distributed.nn

    model = nn.ModuleDict({"image": convolutions(128), "text": nn.EmbeddingBag(1000, 128)})
    model.scale = nn.Parameter(torch.ones([]) * 2.6)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x, y):
            return (
                F.normalize(self.parts["image"](x), dim=-1),
                F.normalize(self.parts["text"](y), dim=-1),
                self.parts.scale.exp(),
            )

    both = DDP(Both().to(DEVICE, memory_format=torch.channels_last), device_ids=[RANK], static_graph=True)
    optimizer = torch.optim.AdamW(both.parameters())
    for _step in range(2):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            a, b, scale = both(images(16), torch.randint(1000, (16, 12), device=DEVICE))
            all_a, all_b = (torch.cat(torch.distributed.nn.all_gather(t), dim=0) for t in (a, b))
            labels = torch.arange(16, device=DEVICE) + 16 * RANK
            loss = (F.cross_entropy(scale * a @ all_b.T, labels) + F.cross_entropy(scale * b @ all_a.T, labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            both.module.parts.scale.clamp_(0, 4.6)


def a_classifier_with_loaders_and_meters() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, pin_memory=True)
    model = DDP(convolutions().cuda(), device_ids=[RANK])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    for epoch in range(1):
        sampler.set_epoch(epoch)
        for picture, label in loader:
            picture, label = picture.cuda(RANK, non_blocking=True), label.cuda(RANK, non_blocking=True)
            out = model(picture)
            loss = F.cross_entropy(out, label, label_smoothing=0.1)
            _, best = out.topk(5, 1, True, True)
            right = best.t().eq(label.view(1, -1).expand_as(best.t()))
            scores = [right[:k].reshape(-1).float().sum(0).mul_(100 / 8) for k in (1, 5)]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        _, guessed = torch.max(model(picture).data, 1)
        right = (guessed == label).sum()
        dist.all_reduce(right)
    assert 0 <= right.item() <= 8 * WORLD
    if RANK == 0:
        torch.save(
            {"state": model.state_dict(), "optimizer": optimizer.state_dict(), "best": scores[0]}, f"{FOLDER}/best.pt"
        )


def noise_of_random_strengths() -> None:
    model = DDP(mlp(256, 512).cuda(), device_ids=[DEVICE], broadcast_buffers=False, bucket_cap_mb=128)
    average = [copy.deepcopy(p.detach()) for p in model.module.parameters()]
    for p in average:
        dist.broadcast(p, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    alphas = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))

    def taken(t, x):
        return torch.from_numpy(alphas).to(device=t.device)[t].float()[:, None].expand(x.shape)

    for _step in range(2):
        x = torch.randn(256, 256, device=DEVICE)
        picked = np.random.choice(1000, size=(256,), p=np.ones(1000) / 1000)
        t = torch.from_numpy(picked).long().to(DEVICE)
        noise = torch.randn_like(x)
        noised = taken(t, x).sqrt() * x + (1 - taken(t, x)).sqrt() * noise
        mean, spread = torch.split(model(noised), 256, dim=1)
        losses = (mean - noise).pow(2).mean(1) + torch.where(
            spread < -0.999, spread, spread.clamp(min=1e-12).log()
        ).mean(1) / 1e3
        sizes = gathered(torch.tensor([len(t)], dtype=torch.int32, device=DEVICE)).tolist()
        gathered(t)
        history = [v.item() for v in gathered(losses.detach())[:4]]
        assert sizes == [256] * WORLD and len(history) == 4
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        with torch.no_grad():
            for mean_p, p in zip(average, model.module.parameters(), strict=False):
                mean_p.mul_(0.999).add_(p, alpha=0.001)


def two_networks_against_each_other() -> None:
    make = nn.Sequential(
        nn.ConvTranspose2d(64, 64, 4, 1, 0), nn.BatchNorm2d(64), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 4), nn.Tanh()
    ).cuda()
    judge = nn.Sequential(*convolutions(1), nn.Sigmoid()).cuda()
    adams = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (judge, make)]
    fixed = torch.randn(64, 64, 1, 1, device=DEVICE)
    for _step in range(2):
        judge.zero_grad()
        label = torch.full((32,), 1, dtype=torch.float32, device=DEVICE)
        real = F.binary_cross_entropy(judge(images(32, 16)).view(-1), label)
        real.backward()
        fake = make(torch.randn(32, 64, 1, 1, device=DEVICE))
        label.fill_(0)
        F.binary_cross_entropy(judge(fake.detach()).view(-1), label).backward()
        adams[0].step()
        make.zero_grad()
        label.fill_(1)
        F.binary_cross_entropy(judge(fake).view(-1), label).backward()
        adams[1].step()
    with torch.no_grad():
        assert make(fixed).detach().cpu().shape == (64, 3, 16, 16)


def shards_in_two_dimensions_and_their_checkpoint() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (2, WORLD // 2), mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = nn.Sequential(*(mlp() for _ in range(2)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    model.to_empty(device="cuda")
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for step in range(2):
        torch.manual_seed(step)
        model(torch.rand(64, 256, device="cuda")).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=f"{FOLDER}/shards")
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=f"{FOLDER}/shards")


def stages_that_send_what_they_computed() -> None:
    stage = mlp().cuda()
    optimizer = torch.optim.AdamW(stage.parameters())

    def sent(tensor, to):
        [w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, to)])]
        torch.cuda.synchronize()

    def got(source):
        tensor = torch.empty(256, 256, device=DEVICE, requires_grad=True)
        [w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, source)])]
        torch.cuda.synchronize()
        return tensor

    for _step in range(2):
        held = []
        for _micro in range(4):
            x = torch.randn(256, 256, device=DEVICE) if RANK == 0 else got(RANK - 1)
            y = stage(x)
            held.append((x, y))
            RANK == WORLD - 1 or sent(y, RANK + 1)
        for x, y in held:
            if RANK == WORLD - 1:
                y.square().mean().backward()
            else:
                torch.autograd.backward(y, grad_tensors=got(RANK + 1))
            RANK == 0 or sent(x.grad, RANK - 1)
        optimizer.step()
        optimizer.zero_grad()


def states_in_shards_and_gradients_in_half() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(mlp().cuda(), device_ids=[RANK], gradient_as_bucket_view=True)
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3, fused=True)
    for _step in range(2):
        with model.no_sync():
            model(torch.randn(64, 256, device=DEVICE)).sum().backward()
        model(torch.randn(64, 256, device=DEVICE)).sum().backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
    optimizer.consolidate_state_dict(0)
    RANK or optimizer.state_dict()


KINDS = [
    a_gpt_over_shards_of_tokens,
    a_masked_autoencoder_scaled_by_hand,
    a_student_its_teacher_and_crops_of_two_sizes,
    a_queue_of_keys_from_shuffled_batches,
    pictures_and_texts_against_all_ranks,
    a_classifier_with_loaders_and_meters,
    noise_of_random_strengths,
    two_networks_against_each_other,
    shards_in_two_dimensions_and_their_checkpoint,
    stages_that_send_what_they_computed,
    states_in_shards_and_gradients_in_half,
]

if __name__ == "__main__":
    for kind in KINDS:
        failed = ""
        try:
            kind()
        except Exception:  # the others still run
            failed = traceback.format_exc()
        report(kind=kind.__name__, failed=failed, peak_bytes=torch.cuda.max_memory_allocated())
    dist.destroy_process_group()
