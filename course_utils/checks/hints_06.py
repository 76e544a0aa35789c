"""Lesson 06: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

BALANCE: Hints = {
    "equal counts": (
        "Stages with as many layers are not stages with as much work. What does your answer do with `layer_s`?",
        "Ask another question: into how many stages must the layers go, if no stage may take longer than a limit? Then look for the smallest limit that "
        "`stages` stages can keep.",
    ),
    "not the best": (
        "Compare the slowest stages. Filling each stage up to the mean can leave too much for the last one, or cut in the wrong place.",
        "best[k][i]: the slowest stage when the first i layers are on k stages. The last stage begins at some layer j: "
        "best[k][i] = min over j of max(best[k-1][j], sum(layer_s[j:i])). Keep the j that was best.",
    ),
    "layers": ("Add up your numbers: do you return counts, or the places of the cuts?", "From cuts 3 and 5 of 8 layers follow the counts 3, 2 and 3."),
    "stages": ("A model for `stages` stages has `stages` counts.", "With p stages there are p - 1 cuts, and p counts."),
    "empty": (
        "A single slow layer already decides; the other stages must still get a layer each.",
        "Leave enough layers for the stages that come: the k-th of p stages may take layers up to number n - (p - k) only.",
    ),
    "changed": ("Does your function `pop` from the list?", "Work on a copy, `list(layer_s)`, or on indices."),
}

BUBBLE: Hints = {
    "gaps only": (
        "A stage that has not begun, or is done, waits as well.",
        "The step lasts for all stages from the first start on any of them to the last end on any of them.",
    ),
    "clock": ("A clock starts anywhere: rank clocks count from when the machine was started.", "Subtract the first start of all spans from the last end."),
    "busy": ("You have the other share.", "bubble = 1 - that."),
    "seconds": ("The bubble is a share, between 0 and 1.", "Divide the idle seconds by the seconds of all stages: their number times the length of the step."),
    "not shared": ("How much time do all stages have together?", "Their number times the length of the step."),
    "one stage": ("Every stage has its part in the bubble.", "Add up the computing of all stages, and divide by their number times the length of the step."),
    "overhead": ("Idle over busy is another measure, which has no upper end.", "Divide by the whole time, number of stages times length of the step."),
    "wrong share": (
        "Work out the first case by hand: 2 stages, a step of 6 s, 6 s of computing.",
        "1 - (sum of all lengths) / (stages x (last end - first start)).",
    ),
    "ideal time": (
        "(p - 1) / m is the idle time over the time of the work. The bubble is a share of the whole step.",
        "(p - 1) / (m + p - 1) <= most, so m >= (p - 1) (1 - most) / most.",
    ),
    "too few": ("Put your number into the formula.", "Round up: `math.ceil`."),
    "too many": ("One less would do. Put that into the formula.", "At most: a bubble of exactly `most` is allowed, and then there is nothing to round."),
    "none": ("At least one micro-batch is needed, also with one stage, which has no bubble.", "`max(1, ...)`."),
    "not whole": ("Half a micro-batch cannot be sent.", "Round up, and return an int."),
}

GPIPE: Hints = {
    "no gradient": (
        "What a rank receives is a leaf: autograd starts there. Does it know that you want a gradient for it?",
        "`x = torch.empty(shape, dtype=...)`, receive into it, then `x.requires_grad_()`; after backward its gradient is `x.grad`. The ranks before the "
        "last call `output.backward(gradient)` with what they received.",
    ),
    "sum": (
        "m micro-batches add m gradients, each of a mean over a micro-batch. And the mean over the whole batch?",
        "Divide each loss by `micro_batches` before its backward.",
    ),
    "last only": (
        "How many outputs do you still have when the backwards begin? Or is something set to zero in between?",
        "Keep inputs and outputs of all micro-batches in two lists, and run backward for each; gradients add up by themselves.",
    ),
    "gradients": (
        "Does the gradient that arrives belong to the output that you call backward on? Messages come in the order in which they were sent.",
        "Run the backwards in one order on all ranks, and take input, output and gradient of the same micro-batch.",
    ),
    "one buffer": (
        "Autograd keeps what you received until the backward. Do you receive the next micro-batch into the same tensor?",
        "Make a new tensor for each micro-batch: `torch.empty(shape, dtype=...)` inside the loop.",
    ),
    "second backward": ("Is one output used for two micro-batches?", "Keep one output for each micro-batch in a list."),
    "forwards": ("GPipe calls the stage once for each micro-batch, on every rank.", "`for i in range(micro_batches): ... output = stage(x)`."),
    "messages": (
        "Count: each micro-batch crosses each border between two ranks once as an activation, and once as a gradient.",
        "Every rank but the last sends `micro_batches` activations, every rank but the first as many gradients.",
    ),
    "size": ("What is sent for a micro-batch has the shape of its activation.", "Send each `output.detach()` and each `x.grad` as it is."),
    "collectives": ("Ranks that are not neighbours have nothing to say to each other here.", "Use `dist.send` and `dist.recv` (or isend and irecv) only."),
    "not GPipe": ("Where does your first backward stand?", "Two loops, one after the other: all forwards, then all backwards."),
    "no overlap": (
        "When does rank 0 send micro-batch 0, and when does rank 1 begin with it?",
        "Send each activation right after its forward; on the other side receive one, compute, receive the next.",
    ),
    "loss": ("The last rank knows all losses.", "Add up the detached losses, each divided by `micro_batches`, and return the `.item()`."),
    "hang": (
        "Who sends while nobody receives? Each send needs the receive of its neighbour, in the same order, into a tensor of the same shape and dtype: "
        "where a rank was killed, more bytes came than its tensor holds.",
        "Forward: every rank but the first receives from rank - 1, every rank but the last sends to rank + 1. Backward the other way round.",
    ),
}

PLAN: Hints = {
    "whole gradients once": (
        "A ring all-reduce sends more than the gradients once.",
        "Each device sends 2 (n - 1)/n times the bytes: (n - 1)/n to sum up, (n - 1)/n to spread the sum.",
    ),
    "whole gradients twice": ("On n devices a part need not travel: the own one.", "2 (n - 1)/n times the bytes."),
    "half a ring": ("Summing up is half of the way; the sum has to come back to all.", "2 (n - 1)/n times the bytes."),
    "no sum": ("After the backward the gradients are summed over the devices.", "Add 2 (n - 1)/n times the bytes, over the bandwidth."),
    "not divided": ("Each device computes its part of the batch.", "`compute_s / devices`."),
    "no bubble": ("The last stage ends after the first one.", "(m + p - 1) boxes one after the other, not m."),
    "one box too many": ("Count the boxes in the drawing of 4 stages and 4 micro-batches.", "m + p - 1."),
    "one message": (
        "A micro-batch crosses a border twice.",
        "Its activation on the way up, and the gradient of it on the way down: two messages for each box.",
    ),
    "no messages": ("Activations travel as well.", "Each box takes two messages more, an activation and its gradient."),
    "messages outside the bubble": ("A message belongs to its box, and there are m + p - 1 of them in a row.", "(m + p - 1) (compute + 2 messages)."),
    "whole stages": ("A box is one micro-batch on one stage.", "`compute_s / (devices * micro_batches)`."),
    "whole micro-batches": ("A box is one micro-batch on one stage.", "`compute_s / (devices * micro_batches)`."),
    "time of data parallel": ("Two parts: a share of the computing, and the sum.", "compute_s / n + 2 (n - 1)/n gradient_bytes / bandwidth."),
    "time of the pipeline": ("How many boxes in a row, and how long is one?", "(m + n - 1) (compute_s / (n m) + 2 activation_bytes / bandwidth)."),
    "does not fit": (
        "How much state does a device hold under each plan?",
        "Data parallel: all of it. Pipeline: an n-th. First ask what fits, then what is faster.",
    ),
    "slower": ("Both fit, and the other one is faster; where they are equal, data parallel.", "Compare the two numbers of `step_times`."),
    "name": ("The names are given in the docstring.", '"data parallel", "pipeline" or "neither".'),
}
