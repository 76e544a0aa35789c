"""Counts what passes through each of n GPUs in a training step. One rank: what torch's own `replicate`, `scatter` and
`gather` hand to NCCL and to copies, on tensors without data. Several ranks: DDP's buckets, around a ring."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.parallel import comm, gather, replicate, scatter

from course_utils.rank import report

VOCABULARY, WIDTH, DEPTH, LENGTH, BATCH = 4096, 256, 4, 32, 16


class LanguageModel(nn.Module):
    """Tokens [n, length] to scores [n, length, vocabulary]. One matrix has two names."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


class Wires:
    """In place of what torch calls in C++ (torch/csrc/cuda/comm.cpp): makes the tensors, and counts the bytes that
    leave and reach GPU 0. NCCL's ring hands on; the star copies to each GPU, as torch does where there's no NCCL."""

    def __init__(self, star):
        self.star, self.counts = star, {}

    def count(self, what, nbytes, calls=1):
        had = self.counts.get(what, (0, 0))
        self.counts[what] = had[0] + nbytes, had[1] + calls

    def broadcast_coalesced(self, tensors, devices, buffer_size=10485760):
        copies = [list(tensors)] + [[] for _ in devices[1:]]  # GPU 0 keeps its own
        for chunk in _take_tensors(tensors, buffer_size):
            flat = _flatten_dense_tensors(chunk)
            self.count("weights", flat.nbytes * (len(devices) - 1 if self.star else 1))
            for copy in copies[1:]:
                copy.extend(_unflatten_dense_tensors(torch.empty_like(flat), chunk))
        return copies

    def reduce(self, inputs, output, root):
        self.count("gradients", output.nbytes * (len(inputs) - 1 if self.star else 1))

    def scatter(self, tensor, devices, chunk_sizes=None, dim=0, streams=None):
        chunks = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
        what = "gradients of outputs" if tensor.is_floating_point() else "inputs"
        self.count(what, sum(chunk.nbytes for chunk in chunks[1:]))
        return tuple(chunk.clone() for chunk in chunks)

    def gather(self, tensors, dim=0, destination=None):
        self.count("outputs", sum(tensor.nbytes for tensor in tensors[1:]))
        return torch.cat(tuple(tensors), dim)


def data_parallel(n, star):
    wires = Wires(star)
    comm.broadcast_coalesced, comm.scatter, comm.gather = wires.broadcast_coalesced, wires.scatter, wires.gather
    comm.nccl.is_available, comm.nccl.reduce = lambda tensors: True, wires.reduce
    torch.accelerator.is_available = lambda: False  # Scatter would ask it for a stream to copy on
    gpus = list(range(n))
    with torch.device("meta"):
        model, tokens = LanguageModel(), torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        parts = scatter(tokens, gpus)
        replicas = replicate(model, gpus)
        scores = gather([replica(part) for replica, part in zip(replicas, parts, strict=True)], 0)
        cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
    assert all(p.grad is not None for p in model.parameters())
    way = "star" if star else "ring"
    for what, (nbytes, calls) in wires.counts.items():
        report(way=way, gpus=n, what=what, nbytes=nbytes, calls=calls)
    return model, tokens, scores


def ring_mean(travelled, bucket):
    """DDP's hook: the mean of a bucket, from sends and receives around a ring."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = list(bucket.buffer().tensor_split(n))
    for step in range(2 * (n - 1)):  # first n - 1 steps that add, then n - 1 that hand the sums round
        out, into = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        arrived = torch.empty_like(into)
        sends = dist.P2POp(dist.isend, out, (rank + 1) % n)
        receives = dist.P2POp(dist.irecv, arrived, (rank - 1) % n)
        for request in dist.batch_isend_irecv([sends, receives]):
            request.wait()
        travelled.append(out.nbytes + arrived.nbytes)
        into.copy_(into + arrived if step < n - 1 else arrived)
    done = torch.futures.Future()
    done.set_result(bucket.buffer() / n)
    return done


def distributed():
    travelled = []
    torch.manual_seed(dist.get_rank())  # other tokens on every rank
    model = DDP(LanguageModel())
    model.register_comm_hook(travelled, ring_mean)
    for _ in range(2):
        travelled.clear()
        x = torch.randint(VOCABULARY, (BATCH // dist.get_world_size(), LENGTH))
        cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    report(ddp_bytes=sum(travelled), gradient=model.module.head.weight.grad.sum().item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, nargs="*", default=[])
    args = parser.parse_args()
    dist.init_process_group()
    if args.gpus:
        for n in args.gpus:
            for star in (False, True):
                model, tokens, scores = data_parallel(n, star)
        weights = list(model.parameters())
        report(weights_bytes=sum(p.nbytes for p in weights), weights=len(weights))
        report(inputs_bytes=tokens.nbytes, outputs_bytes=scores.nbytes)
    else:
        distributed()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
