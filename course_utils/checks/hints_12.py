"""Lesson 12: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

PORT: Hints = {
    "loss": (
        "What the trainer gets is the loss of this batch. Who divides it when gradients are accumulated?",
        "Return `nn.functional.cross_entropy(self.model(x), y)` and nothing else; the trainer divides by `accumulate_grad_batches`.",
    ),
    "no loss": ("The trainer calls `backward()` on what you return.", "`return nn.functional.cross_entropy(...)`, without `.item()`."),
    "own backward": ("Who calls `backward()`?", "Return the loss; backward, step and zero_grad are the trainer's."),
    "module": ("The trainer needs a module of its own kind.", "`class Ported(L.LightningModule)`."),
    "accumulation": (
        "The loop steps after every second batch. Which setting of the trainer was that?",
        '`"accumulate_grad_batches": 2` in `trainer_settings`.',
    ),
    "no schedule": (
        "The learning rate never changes. What does `configure_optimizers` return beside the optimizer?",
        '`{"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}`.',
    ),
    "once an epoch": (
        "The schedule is there, and is never stepped in this epoch. When does the trainer step it, if you do not say?",
        'The default is once an epoch: `"lr_scheduler": {"scheduler": schedule, "interval": "step"}`.',
    ),
    "rates": (
        "Compare the first rates with `start_factor=0.1, total_iters=4`. Is the schedule stepped twice?",
        "Let the trainer step it, once an optimizer step.",
    ),
    "clipping": (
        "In the loop clipping stands between the last backward and the step. There is no such place in your module.",
        '`"gradient_clip_val": 0.5` in `trainer_settings`, and no `gradient_clip_algorithm`: the trainer clips the norm of all gradients together.',
    ),
    "weights": (
        "Optimizer, its learning rate, its weight decay, the place of the clipping: are they those of the loop? AdamW is not Adam.",
        "`torch.optim.AdamW(self.parameters(), lr=1e-2)`, and clipping as a setting of the trainer, which does it after the last backward.",
    ),
    "settings": ("Each key is an argument of `L.Trainer`.", '`{"accumulate_grad_batches": ..., "gradient_clip_val": ...}`.'),
}

SAMPLER: Hints = {
    "uneven": ("Each rank must take the same number of steps.", "Each gets ceil(n_images / world_size) images; the list is continued from its beginning."),
    "dropped": ("`drop_last=False`: no image is left out.", "Round up: `-(-n_images // world_size)` images for each rank."),
    "out of range": ("After the last index the list begins again.", "`i % n_images`; with fewer images than ranks this may go round more than once."),
    "blocks": ("Neighbours in the list go to different ranks.", "Every world_size-th index, beginning with the rank: rank, rank + world_size, ..."),
    "other images": (
        "Write the list for 10 images on 4 ranks: 0 to 9, then 0 and 1 again. Rank r takes every fourth entry.",
        "`[i % n_images for i in range(rank, each * world_size, world_size)]`.",
    ),
    "counted twice": ("What was filled up is in your sum.", "Remember the answer by its index, in a dict, and sum that."),
    "over n": ("The count has the repeated images, the divisor does not.", "Remember the answer by its index, in a dict, and sum that."),
    "a count": ("An accuracy is a share.", "Divide by `n_images`."),
    "accuracy": ("Which image was the k-th of a rank? `seen_by` knows.", "{index: answer}, for all ranks, then the mean of its values."),
}

BATCHES: Hints = {
    "global in the loader": ("The batch size of the `DataLoader` is that of one process.", "Divide by nodes x devices first, then find the parts."),
    "nodes left out": ("How many processes are there on all machines?", "nodes x devices."),
    "another step": (
        "Multiply: batch size x accumulation x ranks.",
        "Parts must divide the share of a rank exactly: try 1, 2, 3, ... until one does and fits.",
    ),
    "does not fit": (
        "`fits` is for what a device holds at once.",
        "More parts: the smallest number that divides the share and makes a batch of at most `fits`.",
    ),
    "too many parts": ("Small batches waste the device.", "The smallest number of parts that divides the share and makes a batch of at most `fits`."),
    "error": ("Accumulation helps: the share of a rank may be cut into parts.", "Only what does not divide by the ranks is an error."),
    "no error": ("Rounding changes the recipe, and nobody would notice.", "`if global_batch % ranks: raise ValueError(...)`."),
    "none": ("Fewer images than ranks cannot be shared out.", "`if global_batch % ranks: raise ValueError(...)`."),
    "local batch": ("`Dataset.batch` wants what all replicas take together.", "The first number is the global batch itself."),
    "batch of a worker": ("`Dataset.batch` wants what all replicas of all workers take together.", "The first number is the global batch itself."),
    "tensorflow": (
        "The strategy cuts a global batch into equal parts for all replicas of all workers.",
        "(global_batch, global_batch // (workers x replicas)).",
    ),
    "not whole": ("`/` gives a float.", "`//`, after the test that it divides."),
}

LOSS: Hints = {
    "local mean": ("`apply_gradients` sums over the replicas. What is the sum of two means?", "`tf.reduce_sum(per_image) / global_batch`."),
    "local mean, penalty twice": (
        "`apply_gradients` sums over the replicas, and so everything that each replica adds counts as often as there are replicas.",
        "Images: `tf.reduce_sum(per_image) / global_batch`. Penalty: divided by `tf.distribute.get_strategy().num_replicas_in_sync`.",
    ),
    "mean of means": (
        "Right for replicas with equally many images. The last batch has 8 and 4.",
        "`tf.reduce_sum(per_image) / global_batch`: the global batch is given, the local one does not matter.",
    ),
    "penalty twice": ("Each replica adds the penalty, and the sum has it as often.", "Divide it by `tf.distribute.get_strategy().num_replicas_in_sync`."),
    "penalty over images": ("The penalty belongs to the step, not to an image.", "Divide it by the number of replicas only."),
    "two replicas": (
        "Right on two replicas; on one, half of the penalty is lost.",
        "`tf.distribute.get_strategy().num_replicas_in_sync` knows how many there are.",
    ),
    "no penalty": ("The loss of the step has two parts.", "Add `0.01 * tf.nn.l2_loss(kernel)`, divided by the number of replicas."),
    "sum": ("The images' losses are summed, and their mean is wanted.", "Divide by `global_batch`."),
    "divided twice": ("The global batch has the images of all replicas already.", "Divide by `global_batch` alone."),
    "another loss": ("Two parts: the images' and the penalty's. Which of them is off?", "`tf.reduce_sum(per_image) / global_batch + penalty / replicas`."),
    "gradient": ("Is a part of the loss computed outside of TensorFlow, by numpy or `.numpy()`?", "Use tensors throughout."),
}
