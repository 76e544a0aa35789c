"""Lesson 02: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

WORKERS: Hints = {
    "too few": (
        "n workers give a batch every load_s / n seconds. Is that at least as often as the device wants one?",
        "`math.ceil(load_s / compute_s)`, and at least 1: rounding down leaves the loop waiting a little in every step.",
    ),
    "too many": (
        "One worker may be enough, when it loads faster than the device computes.",
        "The fewest that suffice: `max(1, math.ceil(load_s / compute_s))`, before the limits of cores and memory.",
    ),
    "cores": ("The loop is a process too, and starts the work of the device.", "At most `cores - 1`, but at least 1."),
    "one core": (
        "What does the core do while the device computes?",
        "`max(1, cores - 1)`: on a single core one worker loads while the loop waits for the device.",
    ),
    "memory": (
        "Count the batches on the way: each worker has prefetch_factor of them, and the loop holds one more.",
        "`(shm_nbytes // batch_nbytes - 1) // prefetch_factor` workers fit, and 0 if that is below 0.",
    ),
    "type": ("num_workers must be a whole number.", "`math.ceil` gives an int; `/` gives a float, `//` of ints an int."),
}

COLLATE: Hints = {
    "dtype": (
        "Look at the dtype of each of the three tensors.",
        "`torch.zeros(n, longest, dtype=torch.int64)` for tokens, `dtype=torch.bool` for the mask, `torch.tensor(labels)` for whole numbers.",
    ),
    "fixed length": ("A batch of short samples need not be as wide as the longest sample of all.", "Use `max(len(tokens) for tokens, _ in samples)`."),
    "shape": (
        "The shape is [samples, longest]. Check a batch with one sample, and one with an empty sample.",
        "Make `torch.zeros(len(samples), longest, dtype=torch.int64)` first and fill in row by row.",
    ),
    "token 0": (
        "0 is a token of its own, and it is also what you pad with. Can the mask be read off the padded tensor?",
        "Make the mask from the lengths: `real[i, :len(tokens)] = True`, or `torch.arange(longest) < lengths[:, None]`.",
    ),
    "inverted": (
        "True means: here is a token.",
        "Invert it, `~mask`. (Some of torch's layers want the inverse, as `key_padding_mask`; this contract does not.)",
    ),
    "mask": ("Compare the mask with the lengths, row by row.", "`real[i, :len(tokens)] = True`."),
    "left": ("On which side is the padding?", "`tokens[i, :len(sample)] = sample`: real tokens first, zeros behind."),
    "order": ("Row i belongs to sample i: labels and rows must stay together.", "Do not sort the samples, or undo it before you return."),
    "tokens": ("Compare one row with its sample: is a token lost or changed?", "`tokens[i, :len(sample)] = sample` for each sample."),
    "labels": ("The labels come in the order of the samples.", "`torch.tensor([label for _, label in samples])`."),
    "changed input": (
        "The list and its tensors belong to the dataset, which may hand them out again.",
        "Fill a new tensor; no `resize_`, no `sort` of the list in place.",
    ),
    "type": ("Three tensors are asked for: tokens, real, labels.", "`return tokens, real, labels`."),
    "raised RuntimeError": ("`torch.stack` wants tensors of one length.", "Make a tensor of zeros for the whole batch and copy each sample into its row."),
}

STREAM: Hints = {
    "workers repeat": (
        "Each worker has a copy of the dataset and iterates all of it. How does a worker learn which one it is?",
        "`info = torch.utils.data.get_worker_info()`; take every `info.num_workers`-th of this rank's indices, from `info.id` on.",
    ),
    "ranks repeat": (
        "`rank` and `world_size` are given. Do they take part?",
        "This rank's indices are `range(rank, n_samples, world_size)`; the workers deal out those.",
    ),
    "missed": (
        "Write down, for 2 ranks with 2 workers each, which index every one of the four takes.",
        "Deal twice: `range(rank, n_samples, world_size)[worker_id::num_workers]`.",
    ),
    "uneven ranks": (
        "Count for 10 samples, 2 ranks and 3 workers: when each of 6 streams gets every sixth sample, which ranks own the longer streams?",
        "Deal to ranks first, then to the workers of a rank: `range(rank, n_samples, world_size)[worker_id::num_workers]`.",
    ),
    "reads too much": (
        "`read` costs time. Which indices does it get that you then drop?",
        "Choose the indices first, then `yield self.read(i)` for those only.",
    ),
    "second epoch": (
        "The loader iterates the same dataset again in each epoch. What is left of an iterator by then?",
        "Make the iterator in `__iter__`, not in `__init__`.",
    ),
    "raised AttributeError": ("Without workers `get_worker_info()` gives None.", "`worker_id, num_workers = (info.id, info.num_workers) if info else (0, 1)`."),
    "type": ("Keep the base class.", "`class Stream(IterableDataset)`."),
}

AUGMENTED: Hints = {
    "workers matter": (
        "Where do your random numbers come from? A worker has its own copy of everything the dataset holds, and a seed of its own for global states.",
        "Make a generator in `__getitem__`, seeded from seed, epoch and index: then no worker, and no order, can matter.",
    ),
    "order matters": (
        "A generator that lives longer than one item remembers how many items came before.",
        "Make it anew in `__getitem__`, seeded from seed, epoch and index.",
    ),
    "same for all": ("Does the index take part in the seed?", "`numpy.random.default_rng([seed, epoch, index])` takes all three."),
    "same every epoch": (
        "Does the epoch take part? And does `set_epoch` keep it?",
        "`self.epoch = epoch` in `set_epoch`, and `numpy.random.default_rng([self.seed, self.epoch, index])`.",
    ),
    "sums collide": (
        "What is seed + epoch + index for image 1 in epoch 0, and for image 0 in epoch 1?",
        "`numpy.random.default_rng([seed, epoch, index])` mixes three numbers; with torch, multiply: `(seed * 10_007 + epoch) * 1_000_003 + index`.",
    ),
    "seed ignored": ("`seed` is an argument too.", "`numpy.random.default_rng([self.seed, self.epoch, index])`."),
    "global state": (
        "`torch.manual_seed` and `torch.randn` without a generator use the state that dropout and samplers share.",
        "`generator = torch.Generator().manual_seed(...)`, then `torch.randn(shape, generator=generator)`.",
    ),
    "in place": ("`images[i]` is a view: what is added to it in place stays.", "`return image + noise`, a new tensor."),
    "not normal": ("Standard normal noise has mean 0 and standard deviation 1.", "`torch.randn`, not `torch.rand`."),
    "type": ("An item is a float32 tensor with the shape of an image.", "numpy's noise is float64: `torch.from_numpy(noise).float()`."),
    "missing": ("The loop tells the dataset the epoch.", "`def set_epoch(self, epoch): self.epoch = epoch`."),
}
