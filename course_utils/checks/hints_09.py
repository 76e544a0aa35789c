"""Lesson 09: where to look, and nearly the answer, for each symptom that its checks know."""

from __future__ import annotations

from .base import Hints

SAVE: Hints = {
    "not saved": ("Which file did you write, and does it end up at `path`?", "`os.replace(partial, path)` after `torch.save(state, file)`."),
    "torn": (
        "At which moment does `path` stop to be the old file? Everything after it is a time in which a kill leaves nothing.",
        "Never write to `path`. Write to `path.with_name(path.name + '.partial')`, then `os.replace(partial, path)`.",
    ),
    "gap": ("A rename replaces what has the name already.", "Leave out the removal: `os.replace(partial, path)` does both at one moment."),
    "in place": ("Copying onto `path` is writing to `path`.", "Use `os.replace(partial, path)`: it changes the name and copies nothing."),
    "other folder": (
        "A rename is atomic within one file system. Between two of them it fails, or becomes a copy.",
        "Make the other name from `path` itself: `path.with_name(path.name + '.partial')`.",
    ),
    "leftover": ("A killed process cannot tidy up. What does your code do when its temporary file is there already?", 'Open it with "wb", which overwrites.'),
    "litter": ("Which name had the new file before?", "Rename it; do not copy or link it."),
    "swallowed": ("A caller who hears nothing goes on for a week without a checkpoint.", "In `except`, tidy up and then `raise`."),
    "left half": (
        "The disk is full, and what you wrote until then still takes room.",
        "`try: ... except BaseException: partial.unlink(missing_ok=True); raise`.",
    ),
    "not on disk": (
        "Until the operating system has written the bytes, they are in memory; the rename may reach the disk first.",
        "`file.flush(); os.fsync(file.fileno())` before `os.replace`.",
    ),
    "before flush": ("Python holds back the last bytes of an open file.", "`file.flush()` first, then `os.fsync(file.fileno())`, both after `torch.save`."),
    "name not on disk": (
        "A name is an entry of the folder, and the folder is written to the disk too.",
        "`fd = os.open(path.parent, os.O_RDONLY); os.fsync(fd); os.close(fd)` after the rename.",
    ),
}

RESUME: Hints = {
    "refused": (
        "weights_only=True takes tensors, numbers, strings, lists, tuples and dicts. What else is in yours?",
        "NumPy's state holds an array: `name, keys, *rest = np.random.get_state()`, and save `(name, keys.tolist(), *rest)`.",
    ),
    "changed": ("Saving must not draw from, or set, anything.", "Only read: `state_dict()`, `getstate()`, `get_state()`, `get_rng_state()`."),
    "position": ("What is returned is what was given to `save_run`: the batches of this epoch that are done.", "`return saved['epoch'], saved['batches']`."),
    "part": ("All that is in `parts` has a state, whatever its name.", "`for name, part in parts.items(): part.load_state_dict(saved['parts'][name])`."),
    "one rank's": (
        "What rank 0 returns is all that is written. Where are the random states of the others?",
        "`dist.all_gather_object(everyone, mine)` in `save_run`; `saved['random'][dist.get_rank()]` in `load_run`.",
    ),
    "random": (
        "Three generators are in use: `random`, `np.random`, `torch`. Setting a seed again starts from its beginning.",
        "`random.setstate`, `np.random.set_state`, `torch.set_rng_state`, each with the saved state of this rank.",
    ),
    "batch size": (
        "The last batch of the epoch is the smaller one, not the first.",
        "`indices[i : i + batch_size] for i in range(0, len(indices), batch_size)`.",
    ),
    "done twice": ("The first `batches` batches are done. How many indices are that?", "`list(sampler)[batches * batch_size :]`."),
    "left out": ("How many indices are `batches` batches?", "`list(sampler)[batches * batch_size :]`, the smaller last batch included."),
    "order": ("A new DistributedSampler is in epoch 0.", "`sampler.set_epoch(epoch)` before you go through it."),
    "draws": ("The sampler shuffles by a generator of its own.", "Set no seed, and draw nothing, in `rest_of_epoch`."),
    "another run": ("After the load everything was equal.", "Set nothing again in `rest_of_epoch`."),
}

CHOOSE: Hints = {
    "too careful": (
        "Another choice fits. Is your sum too large?",
        "Inputs of the chosen, kept_bytes of the others, and once the largest kept_bytes of the chosen.",
    ),
    "indices": ("Blocks are counted from 0.", "A list of different indices, `0 <= i < len(kept_bytes)`."),
    "does not fit": (
        "Work out one case by hand: what does a recomputed block hold, and what a kept one?",
        "Inputs of the chosen, kept_bytes of the others, and once the largest kept_bytes of the chosen, if any.",
    ),
    "the block itself": (
        "While backward is at a recomputed block, all of its activations are there again.",
        "Add `max(kept_bytes[i] for i in chosen)` where something is chosen.",
    ),
    "inputs": ("A recomputed block is not free: what must be there to run it again?", "`input_bytes[i] if i in chosen else kept_bytes[i]`."),
    "the others": ("Which are asked for, those that are recomputed or those that are kept?", "Return the indices of the blocks to recompute."),
    "all": ("Where it fits with less, recompute less.", "Try the choices by how much time they cost."),
    "not the best": (
        "One block after the other, by size or by bytes a second, can end at a choice that frees more than is needed.",
        "Try all: `for count in range(n + 1): for chosen in combinations(range(n), count)`.",
    ),
}

OFTEN: Hints = {
    "again": ("After which step was the last save?", "`step % every`."),
    "one more": ("The step in which it was killed was not done yet, so it is not done a second time.", "`step % every`."),
    "to the next": ("What comes after the kill was not done yet.", "Count from the last save to the kill: `step % every`."),
    "the safe ones": ("Those steps are in the checkpoint.", "`step % every`."),
    "always all": ("The kill seldom comes at the end of an interval.", "`step % every`."),
    "none": ("At least one step lies between two saves.", "`max(1, ...)`."),
    "seconds": ("The formula gives seconds; the answer is a number of steps.", "Divide by `step_s`."),
    "without the 2": ("Set the derivative of the share to zero: -save_s/t² + 1/(2 failure_s).", "t = sqrt(2 save_s failure_s)."),
    "rounded": (
        "The best number of steps is next to the formula's, above or below. Which?",
        "Compute the share for both whole numbers, and take the smaller: `min(below, below + 1, key=lost)`.",
    ),
    "interval": ("Where is save_s / t + t / (2 failure_s) smallest?", "At t = sqrt(2 save_s failure_s) seconds, which are t / step_s steps."),
}
