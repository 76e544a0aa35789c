"""Counts the matrix products that torch.compile leaves of `same_product`: for inference, and in a training step.

The folder where lesson 01's `functions.py` lies is its only argument. It generates no code, and needs no C++ compiler.
"""

import sys

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from course_utils.rank import report

sys.path.insert(0, sys.argv[1])
from functions import same_product


def counting(name):
    """A compiler that counts the matrix products of a graph, and runs it as it is."""

    def compiler(graph, inputs):
        products = sum("mm" in str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        report(name=name, products=products)
        return make_boxed_func(graph.forward)

    return compiler


if __name__ == "__main__":
    backend = aot_autograd(
        fw_compiler=counting("training"),
        bw_compiler=lambda graph, inputs: make_boxed_func(graph.forward),
        inference_compiler=counting("inference"),
        partition_fn=min_cut_rematerialization_partition,  # as Inductor has it
    )
    x, w = torch.rand(4, 64), torch.rand(64, 64) / 64
    with torch.no_grad():
        torch.compile(same_product, backend=backend)(x, w)
    torch.compiler.reset()
    torch.compile(same_product, backend=backend)(x, w.requires_grad_()).sum().backward()
