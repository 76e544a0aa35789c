"""What each of n GPUs that share a batch as DataParallel does would hold, counted in places on one CPU: at the end of
forward, when all activations are there, and at the end of backward, when they've gone and all gradients have come."""

import argparse

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from course_utils.rank import report


class Saved(saved_tensors_hooks):
    """The storages that autograd keeps of what runs inside, apart from those of `weights`."""

    def __init__(self, weights=()):
        self.found = {}
        self.weights = {w.untyped_storage().data_ptr() for w in weights}
        super().__init__(self.keep, lambda tensor: tensor)

    def __enter__(self):
        super().__enter__()
        return self

    def keep(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.found[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def nbytes(self):
        return sum(self.found.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int)
    n = parser.parse_args().gpus
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(nn.Embedding(4096, 256), *layers, nn.Linear(256, 4096, bias=False))
    optimizer = torch.optim.AdamW(model.parameters())
    weights = dict(model.named_parameters())
    x, y = (torch.randint(4096, (4 * n, 32)) for _ in range(2))

    copies = [{name: w.clone() for name, w in weights.items()} for _ in range(n)]
    gradients, activations, outputs = [0] * n, [], []
    for k, chunk in enumerate(x.chunk(n)):
        for w in copies[k].values():
            w.register_hook(lambda g, k=k: gradients.__setitem__(k, gradients[k] + g.nbytes))
        with Saved(copies[k].values()) as saved:
            outputs.append(functional_call(model, copies[k], chunk))
        activations.append(saved.nbytes)
    scores = torch.cat(outputs).flatten(0, 1)
    with Saved() as in_loss:
        loss = cross_entropy(scores, y.flatten())
    in_loss.keep(scores)
    loss.backward()
    optimizer.step()
    state = sum(t.nbytes for s in optimizer.state.values() for t in s.values() if t.ndim)
    parameters = sum(w.nbytes for w in weights.values())
    report(parameters=parameters, optimizer=state, outputs=scores.nbytes, loss=in_loss.nbytes)
    for k in range(n):
        report(gpu=k, activations=activations[k], gradients=gradients[k])


if __name__ == "__main__":
    main()
