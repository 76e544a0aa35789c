"""Lesson 05: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

RING: Hints = {
    "library": (
        "Collectives do in one call what you are asked to build.",
        "Exchange one chunk a step with the two neighbours, by `dist.isend` and `dist.irecv`.",
    ),
    "unchanged": (
        "The sum is wanted in the tensor that you are given. Is what you add to a copy?",
        "`tensor.view(-1).tensor_split(n)` gives views: `chunk += came` then changes the tensor. `chunk = chunk + came` makes a new one.",
    ),
    "half way": (
        "After n - 1 steps of adding each rank holds one complete chunk. What brings the complete ones to the others?",
        "n - 1 more steps: in each, send the chunk that became complete last, `(rank + 1 - step) % n`, and let what comes replace `(rank - step) % n`.",
    ),
    "not everywhere": (
        "All ranks must end with the sum, not only one.",
        "In a ring every rank does the same in every step: send one chunk to the next rank, receive one from the rank before.",
    ),
    "wrong sum": (
        "Write down for 3 ranks which chunk each sends in each step. Is it the one that it received, and added to, in the step before?",
        "In step s of the adding, rank r sends chunk (r - s) % n and adds what comes to chunk (r - s - 1) % n.",
    ),
    "long messages": (
        "Whole tensors go round. What would the ring gain from cutting them?",
        "Cut the tensor into n chunks, `tensor.view(-1).tensor_split(n)`, and send one of them in each step.",
    ),
    "messages": (
        "Count the steps: how many until each rank holds one complete chunk, how many to hand those round?",
        "n - 1 steps of adding and n - 1 of copying, one message a rank in each: 2 (n - 1).",
    ),
    "hang": (
        "If every rank first sends, and waits for the end of that, who receives?",
        "Start both, then wait for both: `work = [dist.isend(out, right), dist.irecv(inbox, left)]`, then `wait()` on each.",
    ),
}

DDP: Hints = {
    "different start": (
        "Ranks begin with different weights. Parameters are not all that a model holds: buffers are state too.",
        "In `__init__`: `for t in module.state_dict().values(): dist.broadcast(t, src=0)`.",
    ),
    "frozen": ("A parameter with requires_grad=False has no gradient, and no hook.", "Leave it out of the buckets: `if p.requires_grad`."),
    "no exchange": (
        "Is your hook called, and does its bucket ever get full? Count what belongs to it, and what arrives.",
        "Register the hook on every parameter of the bucket with `p.register_post_accumulate_grad_hook`; when all of them came, start the all-reduce.",
    ),
    "once only": (
        "The first step is right. What does your count of ready gradients hold when the second one begins?",
        "Reset it when the bucket is sent, or in `finish`.",
    ),
    "drift": (
        "On each rank something of its own stays in the gradients. Is the sum written back into `p.grad`, for every parameter of the bucket?",
        "In `finish`: wait for each collective, then copy the pieces of its flat tensor back: `p.grad.copy_(piece.view_as(p))`.",
    ),
    "sum": ("An all-reduce adds up. What is asked for?", "Divide by `dist.get_world_size()`, before or after."),
    "wrong gradient": (
        "Both ranks hold the same, and not the mean of the gradients of this step. When does your hook run: is `p.grad` already that of this backward?",
        "`register_post_accumulate_grad_hook` runs when `p.grad` is complete; a hook of `register_hook` runs before it.",
    ),
    "number of collectives": (
        "Compare the number of your buckets with the rule: in which order are parameters taken, and when is a bucket closed?",
        "From the last parameter to the first; a bucket that holds `bucket_bytes` or more is closed, and the next parameter opens a new one.",
    ),
    "no overlap": (
        "When is your first all-reduce started? In `finish`, everything is over.",
        "Start it in the hook, at the moment when the last gradient of its bucket is ready. The first bucket holds the last parameters.",
    ),
    "waits in backward": (
        "The hook runs inside backward. As long as it waits, no layer is computed.",
        "`dist.all_reduce(flat, async_op=True)` returns at once; keep what it returns, and call `wait()` on it in `finish`.",
    ),
}

BUCKET: Hints = {
    "not a size": ("The answer is a bucket size in bytes.", "Return one of the sizes that you tried."),
    "unit": ("Sizes are in bytes everywhere in the cost model.", "A megabyte is 2**20 bytes."),
    "same everywhere": (
        "A good size depends on the layers and on the link: look at both arguments.",
        "Try many sizes with `predict.ddp_step(layers, all_reduce_s, bucket_bytes=size).total_s`, and return the best.",
    ),
    "too small": (
        "How many buckets are there, and what does each cost before its first byte has moved?",
        "Compare whole steps: `predict.ddp_step` charges the latency of each bucket and hides what it can. Larger sizes must be among those that you try.",
    ),
    "too large": (
        "When is the first bucket full, and how much of backward is then left to hide it?",
        "Compare whole steps with `predict.ddp_step`; smaller sizes must be among those that you try.",
    ),
    "off": (
        "Near the best size the step still jumps: layers are not cut, so a bucket may take one layer too many.",
        "Try finer: sums of the bytes of neighbouring layers are the sizes at which something changes.",
    ),
}

ACCUMULATION: Hints = {
    "last window lost": (
        "The number of micro-batches need not be a multiple of the window. What happens after the loop?",
        "A micro-batch ends its window when it is the window's last one, or the last of all: `(i + 1) % window == 0 or i + 1 == len(batches)`.",
    ),
    "last window not exchanged": (
        "The partial window takes a step, but its gradients stayed at home.",
        "The last micro-batch of all must run outside `no_sync()`, too.",
    ),
    "last window divided": (
        "How many micro-batches does the last window have?",
        "Divide the loss by the number of micro-batches of its own window: `min(window, len(batches) - start)`.",
    ),
    "steps": ("One optimizer step ends each window.", "Call `optimizer.step()` after the last micro-batch of a window, and only there."),
    "no exchange": (
        "Under `no_sync()` nothing is sent. Which micro-batch of each window runs outside it?",
        "`with nullcontext() if last else ddp.no_sync():` around forward and backward.",
    ),
    "drift": (
        "Gradients that came after the exchange stayed on their rank. Which micro-batch of the window sends?",
        "The last one of the window: it sends the sum of all. Forward and backward of the others stand inside `no_sync()`.",
    ),
    "too many": (
        "The result is right and the traffic is not saved: `no_sync` has no effect where you put it. When does DDP read the switch?",
        "In the forward pass. Put forward *and* backward inside `with ddp.no_sync():`.",
    ),
    "sum": ("`backward()` adds to what is there, so a window's gradient is a sum of means.", "Divide each loss by the number of micro-batches in its window."),
    "old gradients": ("What is in `p.grad` when a new window begins?", "`optimizer.zero_grad()` once a window, before its first backward."),
    "not the mean": (
        "Check two things: that gradients are cleared once a window, and what each loss is divided by.",
        "Divide by the micro-batches of the window.",
    ),
}
