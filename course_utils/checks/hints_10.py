"""Lesson 10: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

OPTIMIZER: Hints = {
    "sum": ("A reduce-scatter sums. What does DDP do with the sum?", "Divide the slice that you received by the number of ranks."),
    "alone": (
        "Each rank updates by its own gradients only. Where do the others' come in?",
        "`dist.reduce_scatter_tensor(mine, flat_gradients)`, then the mean.",
    ),
    "forgets": (
        "Adam's averages must live from step to step. When is `make` called?",
        "Call `make([shard])` once, in `__init__`, and keep the optimizer and its tensor.",
    ),
    "start": (
        "The slice is a tensor of its own. Who writes its new values into the parameters?",
        "After the all-gather, go through `params` and `p.copy_(...)` the piece of the long vector that belongs to each, under `torch.no_grad()`.",
    ),
    "not gathered": (
        "A rank knows only its own slice after its update.",
        "`dist.all_gather_into_tensor(flat, shard.detach())`, then lay `flat` into the parameters.",
    ),
    "parameters": (
        "Compare one parameter at a time: is the order of the slices that of the ranks, and does each parameter get its own piece of the vector?",
        "Rank r's slice is flat[r * part : (r + 1) * part]. Lay the gathered vector back in the order of the list, with an offset that grows by p.numel().",
    ),
    "other memory": (
        "The model holds the tensors of `params`. A new tensor under the same name is not seen by it.",
        "`p.copy_(piece.view_as(p))` under `torch.no_grad()`.",
    ),
    "collectives in init": ("All ranks begin with the same parameters.", "`__init__` needs only the rank and the number of ranks."),
    "collectives": (
        "An all-reduce gives the sum to all ranks, but only the owner of a slice needs it; and many small messages cost many latencies.",
        "Lay all gradients into one vector: one `reduce_scatter_tensor`. One `all_gather_into_tensor` for the new weights.",
    ),
    "whole state": (
        "Of what tensor does your optimizer keep averages?",
        "`make` gets a list with one tensor: this rank's slice, cloned, with `requires_grad_()`.",
    ),
    "sizes of collectives": ("What do you send?", "The vector of all parameters, padded; nothing twice."),
    "sizes": (
        "The number of elements need not divide by the number of ranks, and a parameter may have no dimension at all.",
        "part = ceil(elements / ranks); lay the elements into `new_zeros(part * ranks)`; `flatten()` each parameter, and `view_as(p)` on the way back.",
    ),
    "in place": ("A leaf that requires a gradient cannot be written to while autograd looks on.", "Do it under `torch.no_grad()`."),
    "not a leaf": ("An optimizer wants a leaf.", "`flat.detach()[a:b].clone().requires_grad_()`."),
}

RESHARD: Hints = {
    "empty": ("A rank may need nothing of a file, and nothing at all.", "Add a piece only where first < last."),
    "rows of the tensor": ("Each file counts its rows from 0.", "Subtract the tensor row at which the file begins: file * ceil(rows / saved_on)."),
    "last": ("`last` is the first row that is not read any more, as in a Python slice.", "A file of 4 rows, read whole: (file, 0, 4)."),
    "beyond": ("The last files may be short or empty, and so may the slices of the last ranks.", "Cut both ends at `rows`: min((rank + 1) * each, rows)."),
    "order": ("The pieces, one after the other, are the slice.", "Go through the files from the first to the last, one piece each."),
    "too much": (
        "Reading whole files is easy, and what a sharded checkpoint is there to avoid.",
        "The overlap of two intervals: from max of the starts to min of the ends.",
    ),
    "rows": (
        "How many rows does each slice have when they do not divide? `torch.chunk` rounds up.",
        "each = -(-rows // ranks); rank r has rows r * each to min((r + 1) * each, rows). The same rule for the files, with `saved_on`.",
    ),
}

SPLIT: Hints = {
    "parts": (
        "Look at the shapes: `nn.Linear(a, b)` has a weight of b rows and a columns.",
        "up: rows of the weight, and its bias. down: columns of the weight, without bias. The whole bias of `down` is a parameter of its own.",
    ),
    "slices": (
        "Hidden unit i is row i of `up` and column i of `down`.",
        "`up.weight.chunk(n)[rank]`, `down.weight.chunk(n, dim=1)[rank]`, copied under `torch.no_grad()`.",
    ),
    "cut": ("Which dimension of the weight belongs to the hidden units?", "Rows (dim 0) of `up.weight`, columns (dim 1) of `down.weight`."),
    "bias": ("Every rank adds the bias, and then you sum over ranks.", "Add `self.bias` after the sum."),
    "times the ranks": (
        "The gradient of the output is already the same on all ranks; summing it makes it n times as large.",
        "The sum of the output has the identity as its backward. (`torch.distributed.nn.functional.all_reduce` sums in both directions.)",
    ),
    "output": ("Each rank's `down` gives a summand of the output.", "One all-reduce of `self.down(hidden)`, of a copy, inside an `autograd.Function`."),
    "input gradient": (
        "x goes into every rank's part, so its gradient is the sum of what they send back.",
        "An `autograd.Function` whose forward returns x and whose backward all-reduces the gradient. Apply it to x before `self.up`.",
    ),
    "gradients": (
        "Which of your two functions sums in backward? Only what comes back to x are summands.",
        "Output: sum forward, identity backward. Input: identity forward, sum backward.",
    ),
    "no gradient": (
        "Somewhere the way back is cut: by `detach`, `.data`, `no_grad`, or a collective on a tensor that autograd watches.",
        "Call `dist.all_reduce` only inside the two functions of an `autograd.Function`.",
    ),
    "no graph": ("Somewhere the way back is cut: by `detach`, `.data` or `no_grad`.", "Call `dist.all_reduce` inside the forward of an `autograd.Function`."),
    "not copied": ("A slice is a view of the tensor that it was cut from; so is what `.data` gives.", "New `nn.Linear`s, and `copy_` under `torch.no_grad()`."),
    "collectives": (
        "Between `up` and `down` nothing need be exchanged: tanh looks at each hidden unit by itself.",
        "One all-reduce of the output, and one of the gradient of x.",
    ),
    "shape": ("The output has the shape of x.", "Sum the summands; do not put them side by side."),
    "in place": ("A collective writes into its tensor.", "Give it a clone."),
    "no super": ("An nn.Module has to be set up before it takes parameters.", "`super().__init__()` first."),
}

MEMORY: Hints = {
    "activations divided": ("A rank's activations belong to its own part of the batch.", "No stage divides them."),
    "activations kept": ("Recomputing leaves a tenth of the activations.", "activation_bytes * (0.1 if recompute else 1)."),
    "a stage late": ("What does stage 1 divide?", "Optimizer state from stage 1 on, gradients from 2 on, weights at 3."),
    "gradients first": ("In which order do the stages divide?", "First the optimizer state, then gradients, then weights."),
    "8 bytes of state": ("In mixed precision the optimizer keeps a copy of the weights in 32 bits, too.", "12 bytes a parameter."),
}
TIME: Hints = {
    "stage 3 as the others": ("Stage 3 gathers the weights twice.", "3 (n - 1)/n instead of 2."),
    "every byte": ("A rank need not send its own part to itself.", "(n - 1)/n."),
    "all ranks": ("That is what all ranks send together.", "A rank sends (n - 1)/n of the bytes in each of 2 or 3 rounds."),
    "parameters, not bytes": ("How many bytes has a weight?", "2 bytes a parameter."),
    "4 bytes": ("How many bytes has a weight?", "2 bytes a parameter."),
    "no recomputing": ("Recomputing takes time.", "compute_s * 4/3."),
    "a third": ("Recomputing adds a third to computing.", "compute_s * 4/3, not compute_s / 3."),
}
PLAN: Hints = {
    **MEMORY,
    **TIME,
    "memory": ("Weights, gradients, optimizer state: which are divided at this stage?", "2, 2 and 12 bytes a parameter, and the activations."),
    "time": ("Computing, and then sending.", "compute_s (times 4/3) + rounds * (n - 1)/n * 2 * params / bandwidth_Bps."),
    "does not fit": (
        "Look at what fits before you look at the time.",
        "Skip a way whose `memory_bytes` is above `device_bytes`; what is exactly as large fits.",
    ),
    "exactly": ("This way needs exactly as much as the device has.", "At most `device_bytes`: compare with `<=`."),
    "none": ("Does any of the eight ways fit?", "None only if none of 4 stages, with or without recomputing, fits; and then None."),
    "slower": ("Another way fits and is faster.", "Go through all eight and keep the fastest: the network decides between stage 3 and recomputing."),
    "ties": ("Several ways take the same time.", "Go from stage 0 up, first without recomputing, and replace the best only if the new one is strictly faster."),
}
