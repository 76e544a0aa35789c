"""Lesson 03: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

PIECES: Hints = {
    "chunks": (
        "How many rows does the first device get of 10 rows on 4 devices? Round up, and let the last take what is left.",
        "`value.chunk(n)` cuts like that, and returns fewer chunks when there are fewer rows. `tensor_split` cuts otherwise.",
    ),
    "idle devices": (
        "With 5 rows on 4 devices, chunks of 2 rows make three chunks. The fourth device is not needed.",
        "Return one value for each chunk that has rows: no empty tensors.",
    ),
    "other objects": (
        "What is not a tensor is handed to every device as it is: the same object, not a copy.",
        "`[value] * n` for anything that is neither a tensor nor a container; no `copy`, no `deepcopy`.",
    ),
    "too many": (
        "A value that holds a tensor of 5 rows and an object has as many parts as the tensor has chunks.",
        "Scatter all parts of a container first, find how many chunks its tensors have, then build that many containers.",
    ),
    "container": (
        "A tuple comes back as a tuple, a list as a list, and a dict with its keys, on every device.",
        "For a dict: scatter its values, then build `{name: parts[name][k] for name in value}` for each device k. For the others `type(value)(...)`.",
    ),
    "rows differ": (
        "If one tensor has 12 rows and another has 1, they make different numbers of chunks, and `zip` stops at the shortest without a word.",
        "Collect the numbers of rows of all tensors inside, and raise ValueError when they are not all equal. Equal numbers of *chunks* are not enough.",
    ),
    "joined": (
        "Chunks of rows are joined along their first dimension, in the order of the devices.",
        "`torch.cat(outputs)` for tensors with a dimension; for a tuple, list or dict, gather each part by itself.",
    ),
    "scalars": ("Tensors without dimensions have no rows to join.", "`torch.stack(outputs)` when `outputs[0].ndim == 0`, otherwise `torch.cat`."),
    "no gradient": (
        "Something on the way makes a tensor that autograd does not connect with the old one.",
        "No `detach`, `.data`, `.tolist()` or `torch.tensor(...)`: slices, `chunk`, `cat` and `stack` keep the connection.",
    ),
}

BYTES: Hints = {
    "one device": (
        "With one device nothing travels.",
        "The factors are n - 1 for weights, and what is not in the first chunk for inputs and outputs: all zero for n = 1.",
    ),
    "elements": ("A float64 has 8 bytes, a float32 4.", "`tensor.nbytes`, or `numel() * element_size()`."),
    "directions": (
        "Which way does each go? Weights and inputs leave the first device, outputs and gradients of weights come to it.",
        "sent = weights, buffers, inputs, gradients of the outputs; received = gradients of the weights, outputs.",
    ),
    "output gradients": (
        "The loss is computed on the first device. Where do the replicas get the gradient of their outputs from?",
        "As many bytes as the outputs that came also go back: add them to `sent`.",
    ),
    "own share": (
        "The first device computes a chunk too, and that chunk goes nowhere.",
        "Of inputs and outputs only the rows after the first chunk travel; of the weights n - 1 copies.",
    ),
    "uneven": (
        "With 10 samples on 4 devices the first device keeps three of them, not two and a half.",
        "Count rows: `rows - len(x.chunk(n)[0])` of them travel.",
    ),
    "idle devices": (
        "With 5 samples on 4 devices there are three chunks. How many replicas are made?",
        "`replicas = len(x.chunk(n))`, and the weights travel `replicas - 1` times.",
    ),
    "tied": (
        "Two modules share one matrix. It is one parameter with two names.",
        "`model.parameters()` lists it once; `state_dict()` and `named_parameters(remove_duplicate=False)` list it twice.",
    ),
    "frozen": ("A frozen weight is copied to the replicas, and has no gradient.", "Count gradients only where `p.requires_grad`."),
    "buffers": (
        "The running statistics of BatchNorm are no parameters, and a replica needs them.",
        "Add `model.buffers()` to what is sent. They have no gradient.",
    ),
    "wrong": (
        "Write down the six things that travel, with their direction, and how often each does.",
        "sent: (r-1) x (parameters + buffers) + inputs and output gradients of all rows after the first chunk; received: (r-1) x gradients + those outputs.",
    ),
}

CHECKPOINT: Hints = {
    "prefix saved": (
        "The wrapper's `state_dict()` has `module.` before every name.",
        "`bare = model.module if isinstance(model, nn.DataParallel) else model`, then `bare.state_dict()`.",
    ),
    "nothing loaded": (
        "`load_state_dict` found no name that it knows, and `strict=False` made it say nothing.",
        "Leave `strict` alone, and load into the bare model a dict whose names are those of the bare model.",
    ),
    "keys": (
        "Compare the names in the state with those of the model: one side has `module.` before each.",
        "Take the bare model; if all names in the state begin with `module.` and the model's do not, cut that off once.",
    ),
    "name inside": (
        "A part of the model is called `submodule`. What does your change do to its name?",
        "Only the beginning: `name.removeprefix('module.')`, not `name.replace(...)`.",
    ),
    "own module": (
        "A plain model may have a part that it calls `module`. Then its own names begin with `module.`.",
        "Ask the model: when the state has exactly the names of the bare model, load it as it is. Otherwise cut one prefix off.",
    ),
    "lenient": (
        "A state with a name less, or one more, is not this model's: silently going on means random weights.",
        "`load_state_dict(...)` with its default `strict=True` raises for you.",
    ),
    "state changed": (
        "The caller's dict has other names after the call.",
        "Build a new dict. `consume_prefix_in_state_dict_if_present` works in place: give it a copy.",
    ),
    "state": ("Buffers are state too.", "Load everything that `state_dict()` holds, not only `parameters()`."),
}

LOSS: Hints = {
    "mean of means": (
        "A replica with one sample counts as much as one with three.",
        "Return the *sum* of the losses and the *number* of samples from each replica; add up both, then divide once.",
    ),
    "sum of means": ("The gradients of the replicas are added up.", "Divide by the number of all samples, once, after adding up the replicas' sums."),
    "not divided": ("The sum over all samples is as many times too large as there are samples.", "Let each replica also return how many samples it had."),
    "ignored": (
        "Labels of -100 do not count, neither in the sum nor in the number.",
        "The number is `(y != -100).sum()`; `cross_entropy(..., reduction='sum')` leaves them out of the sum by itself.",
    ),
    "not a number": (
        "One replica has ignored labels only. What is the mean of nothing?",
        "Never divide on a replica: `reduction='sum'` gives 0 there, and the count is 0.",
    ),
    "too much": (
        "The point is that outputs stay where they are: a replica returns a few numbers, however many samples it has.",
        "Two numbers: `torch.stack([total, count])[None]`, of shape [1, 2].",
    ),
    "no gradient": (
        "A number that left autograd has no gradient.",
        "No `.item()`, `detach` or `torch.tensor(...)` around the loss: `torch.stack` keeps it connected.",
    ),
    "gradient": ("The loss is right, its gradient is not.", "Autograd must see the same formula: sums of the replicas, divided by the number of all samples."),
    "wrong": ("Try it on paper with chunks of 3, 3, 3 and 1.", "sum of all replicas' sums, divided by the sum of all replicas' counts."),
}
