"""Lesson 04: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

SHARD: Hints = {
    "same every epoch": (
        "The epoch is an argument. Look at where your random numbers come from, and whether it takes part.",
        "Seed the generator with both: `torch.Generator().manual_seed(seed + epoch)`, then `torch.randperm(n_samples, generator=...)`.",
    ),
    "permutations differ": (
        "Each rank deals from a deck of its own. Look at what the order depends on: is any of it different on each rank?",
        "Seed a generator of your own with `seed + epoch` only, never with `rank` and never from the global state; then every rank has the "
        "same permutation, and takes its part, `order[rank::world_size]`.",
    ),
    "overlap": (
        "Write down what ranks 0 and 1 take from a list of 10. Some element is taken by both, or by neither.",
        "Deal like cards: rank r takes elements r, r + world_size, r + 2 * world_size ... of the padded order: `order[rank::world_size]`.",
    ),
    "everything": ("What does `rank` change in your function?", "After padding, return only this rank's part: `order[rank::world_size]`."),
    "unequal lengths": (
        "Count: when `n_samples` is no multiple of `world_size`, some rank gets one sample more.",
        "Before dealing, lengthen the order to a multiple of `world_size` by repeating its beginning, as often as needed (or, with drop_last, cut it to one).",
    ),
    "length": (
        "How many samples should each rank get? Round n_samples / world_size up; with drop_last, down.",
        "`length = n // world if drop_last else -(-n // world)`, and the order is cut or padded to `length * world` before it is dealt.",
    ),
    "uneven padding": (
        "With fewer samples than ranks the padding is longer than the data: look at n_samples=3 on 4 ranks, and at what you repeat.",
        "Repeat the whole order as often as needed, then cut: `(order * world_size)[: length * world_size]`. With drop_last nothing is repeated.",
    ),
    "not repeatable": (
        "Calling the function moves something that the next call sees: a global random state, or a list that is changed in place.",
        "Make a new `torch.Generator()` in each call, and seed it with `seed + epoch`.",
    ),
    "global state": (
        "`torch.manual_seed` and `random.seed` change a state that dropout, augmentation and others share.",
        "Use an object of your own: `torch.Generator().manual_seed(...)` or `random.Random(...)`.",
    ),
    "seed ignored": ("`seed` is an argument too.", "Seed the generator with `seed + epoch`."),
    "fixed shards": (
        "You shuffle what each rank has, after it was dealt. Which comes first?",
        "Shuffle all indices first, the same way on every rank, then deal: each epoch mixes samples between ranks.",
    ),
    "not shuffled": ("Moving the starting point leaves neighbours together.", "Use `torch.randperm(n_samples, generator=...)`."),
    "shuffled anyway": ("With shuffle=False the order is that of the data set.", "`order = randperm(...) if shuffle else list(range(n_samples))`."),
    "not in order": ("With shuffle=False each rank's indices rise.", "Start from `list(range(n_samples))`, pad at its end, and deal without sorting."),
    "out of range": ("Padding repeats samples that exist.", "Take padding from the beginning of the order, not from numbers after `n_samples`."),
}

ACCURACY: Hints = {
    "padding": (
        "Which positions does the sampler invent? On rank r, the j-th sample of the loader has position r + j * world_size in the padded test set.",
        "Keep a running count j over all batches, and drop a sample when `rank + j * world_size >= n_samples`.",
    ),
    "mean of means": (
        "A mean of means weighs a rank or a batch with 2 samples like one with 6.",
        "Add up two numbers on each rank, right answers and real samples; all-reduce both as sums; divide once, at the end.",
    ),
    "one rank": (
        "Look at which collective leaves its result where.",
        "`reduce(dst=0)` and `gather` fill one rank only; `all_reduce` and `all_gather` fill all.",
    ),
    "local": (
        "Nothing was exchanged between ranks, or the exchanged value was not used.",
        "`dist.all_reduce(tensor)` adds up in place: use `tensor` afterwards.",
    ),
    "ranks disagree": (
        "A value that only one rank has goes into the result after the exchange.",
        "Exchange everything that the result needs, in one tensor: right answers and samples.",
    ),
    "collectives": (
        "Look at whether the collective stands inside the loop over batches.",
        "Add up in plain tensors in the loop; one `all_reduce` of two numbers after it.",
    ),
    "wrong value": (
        "Try n_samples=21 on 4 ranks by hand: which three samples come twice, and on which ranks?",
        "On rank r, the j-th sample over all batches is padding when `r + j * world_size >= n_samples`. Does j go on from batch to batch?",
    ),
    "raised ZeroDivisionError": (
        "A rank may hold nothing but padding, as rank 1 does with one sample on two ranks.",
        "Divide only after the all-reduce: then there is at least one sample.",
    ),
    "nothing returned": (
        "Every rank needs the value: rank 0 to print it, the others to stop early or to keep the best checkpoint.",
        "Return on every path, after an `all_reduce` that leaves the sum on all ranks.",
    ),
}

TRAINER: Hints = {
    "same every epoch": (
        "The sampler shuffles from a seed and the epoch, and nobody tells it the epoch.",
        "Keep the sampler in a variable, and call `sampler.set_epoch(epoch)` at the beginning of each epoch, before the loop over the loader.",
    ),
    "no exchange": (
        "DDP exchanges gradients in backward, of what went through its own forward. Which object is called?",
        "`ddp.module` is the bare model. Call the wrapper, `ddp(x)`, in training.",
    ),
    "different start": (
        "DDP sends rank 0's weights to all others once, when the model is wrapped. What changes afterwards, and on which ranks?",
        "Change weights before `DDP(model)`: then the wrapper spreads rank 0's change. (Or change them on every rank alike.)",
    ),
    "drift": ("Something changes the weights on one rank only, after the gradients were exchanged.", "Every rank must take the same optimizer step."),
    "not the mean": (
        "DDP averages the ranks' gradients, each rank counting the same. Do they stand for equally many samples?",
        "Sum the loss on each rank (`reduction='sum'`), divide by the samples of all ranks, and multiply by the number of ranks, which DDP divides by.",
    ),
    "shares": ("The sizes of the shares were not the fault: the second machine is really slower.", "Keep 6 and 2 samples, and weigh the losses."),
    "bias": ("The starting bias is wanted, on every rank.", "Set it before `DDP(model)`, which then sends it to all."),
    "accuracy": (
        "After every epoch rank 0 measures the accuracy on the test set, with the weights of that moment.",
        "Collect one number an epoch in a list, and return the list.",
    ),
    "samples missed": ("Look at which indices each rank's loader gives.", "`DistributedSampler(dataset)` deals all samples to the ranks."),
    "no steps": ("An optimizer step is `optimizer.step()` of an optimizer from `torch.optim`.", "Step once a batch, after `backward()`."),
    "steps": ("Count the batches of one rank in one epoch: 40 samples, 2 ranks, 4 samples a batch.", "Deal the data by a `DistributedSampler`, batch_size=4."),
    "too many": ("Gradients are averaged by hand as well, or loss values are exchanged more than once a step.", "Leave averaging to DDP's backward."),
}
EVALUATING_TRAINER: Hints = {
    **TRAINER,
    "hang": (
        "Look at the line that waits. What does the wrapper's forward exchange, and who else calls it at that time?",
        "Before each forward the wrapper sends rank 0's buffers to all ranks. To evaluate on one rank, call the model itself: "
        "`ddp.module(x)` (or `model(x)`). Or evaluate on every rank. A barrier, too, is for all ranks.",
    ),
}

CHECKPOINT: Hints = {
    "nothing loaded": (
        "`load_state_dict` found no name that it knows, and said nothing. Compare the names in the file with those of the model.",
        "A DDP wrapper puts `module.` before every name, and `strict=False` hides that. Save and load the state of the bare model: "
        "`model.module` where there is a wrapper, else `model`.",
    ),
    "keys": (
        "Compare the names in the file with those of the model: one side has `module.` before each.",
        "Save and load the state of the bare model: `bare = model.module if isinstance(model, DDP) else model`.",
    ),
    "needs a wrapper": ("A plain model has no `.module`: only a DDP wrapper does.", "`bare = model.module if isinstance(model, DDP) else model`."),
    "optimizer state": (
        "AdamW keeps two averages for each weight and a step count: without them the next step is another one.",
        "Save `optimizer.state_dict()` beside the model's, and load it again.",
    ),
    "all write": ("On which ranks is the line that writes reached?", "Write on rank 0 only: `if not dist.is_initialized() or dist.get_rank() == 0:`."),
    "no wait": (
        "Rank 1 has nothing to write, so it goes on at once, and may load a file that is not there yet.",
        "After the write, and outside the `if`: `if dist.is_initialized(): dist.barrier()`.",
    ),
    "no file": (
        "Look at where the file is written, and whether it gets its final name.",
        "`torch.save(state, temporary)`, then `os.replace(temporary, path)`.",
    ),
    "not atomic": (
        "`torch.save(state, path)` empties the old file before the new one is complete.",
        "Write to a name beside it, then give it the final name in one move: `os.replace(temporary, path)`.",
    ),
    "one rank loads": (
        "On which ranks is `load_state_dict` called? DDP sends weights when it wraps, not when you load into it.",
        "Let every rank read the file. Only writing is for one rank.",
    ),
    "location": (
        "Tensors in a file remember their device; without that device, loading stops.",
        "`torch.load(path, map_location='cpu')`: `load_state_dict` then copies to where each parameter lies.",
    ),
    "no group": (
        "These functions are also called in a plain process, without a process group.",
        "Ask `dist.is_initialized()` before any other `dist.` function.",
    ),
    "epoch": ("The epoch comes from the file.", "Put `epoch` into the dict that you save, and return it after loading."),
    "model state": (
        "Some of the state is not in the file: buffers, such as the running mean of BatchNorm, are state too.",
        "Save `state_dict()`, which has both.",
    ),
    "next step": (
        "Model and optimizer are both as saved, and the next step still differs: look at what else `load_checkpoint` changes.",
        "Load into the objects that you are given, in place.",
    ),
    "hang": (
        "A barrier is passed when all ranks have called it. Which ranks reach yours?",
        "The barrier stands after the `if` of the writing rank, not in it.",
    ),
}
