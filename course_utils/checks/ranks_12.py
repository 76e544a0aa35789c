"""Lesson 12 on the ranks: one adapter a task runs the student's functions and tells what it saw."""

from __future__ import annotations

import copy
import numbers
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from course_utils.checks import inside
from course_utils.checks.cases_12 import (
    LIGHTNING_CASES,
    LIGHTNING_ERRORS,
    LOSS_CASES,
    PENALTY,
    PORT_ACCUMULATE,
    PORT_BATCHES,
    PORT_CLIP,
    PORT_IMAGES,
    PORT_ITERS,
    PORT_LR,
    PORT_RANKS,
    PORT_START,
    SAMPLER_CASES,
    TENSORFLOW_CASES,
    TENSORFLOW_ERRORS,
)  # fmt: skip


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60} (a {type(value).__name__})"


@contextmanager
def quiet() -> Iterator[None]:
    """Both frameworks speak of themselves, TensorFlow from C++."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


# --- 12.1 -------------------------------------------------------------------------------------------------------------------


def port(answer_path: str) -> None:
    import logging

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    import lightning as L

    answer = inside.load(answer_path)
    module_of = inside.function(answer, "Ported", "model")
    settings_of = inside.function(answer, "trainer_settings")
    if not (isinstance(answer.Ported, type) and issubclass(answer.Ported, L.LightningModule)):
        inside.problem("`Ported` is no `L.LightningModule`.", "module")

    torch.manual_seed(5)  # the same model and data on all ranks
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    n = PORT_RANKS * PORT_IMAGES
    x = 4 * torch.randn(PORT_BATCHES * n, 6, dtype=torch.float64)
    y = torch.randint(5, (len(x),))
    twins = {clip: _loop(copy.deepcopy(model), x, y, clip) for clip in ("norm", "none")}
    loss = nn.functional.cross_entropy(model(x[:n]), y[:n]).item()

    settings = settings_of(doing="asking for the settings of the trainer")
    if not isinstance(settings, dict):
        inside.problem(f"`trainer_settings` returned {_shown(settings)}; it must return a dict of arguments of `L.Trainer`.", "type")
    module = module_of(model, doing="making the module")
    inside.seed_differently()
    said = module.training_step((x[:n], y[:n]), 0)
    if not isinstance(said, torch.Tensor):
        inside.problem(f"`training_step` returned {_shown(said)}; the trainer needs the loss of the batch, a tensor.", "no loss")
    rates: list[float] = []

    class Watch(L.Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            rates.append(optimizer.param_groups[0]["lr"])

    ours = {
        "accelerator": "cpu", "strategy": "ddp", "devices": PORT_RANKS, "num_nodes": 1, "max_epochs": 1, "max_steps": -1, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "callbacks": [Watch()],
        "use_distributed_sampler": False,  # Lightning's own would shuffle
    }  # fmt: skip
    inside.report(call="fitting the module")
    try:
        trainer = L.Trainer(**{**settings, **ours})
    except TypeError as error:
        inside.problem(f"`L.Trainer` does not take your settings: {error}", "settings")
    data = TensorDataset(x, y)
    trainer.fit(module, DataLoader(data, PORT_IMAGES, sampler=DistributedSampler(data, PORT_RANKS, inside.RANK, shuffle=False)))
    inside.report(call="")

    def gap(twin: Any) -> float:
        return max((p - q).abs().max().item() for p, q in zip(model.parameters(), twin.parameters(), strict=True))

    inside.tell(said=said.item(), loss=loss, rates=rates, steps=trainer.global_step, gaps={clip: gap(twin) for clip, (twin, _) in twins.items()},
                wanted=twins["norm"][1])  # fmt: skip


def _loop(model: Any, x: Any, y: Any, clip: str) -> tuple[Any, list[float]]:
    """The loop of the exercise, on one device with the batches of all ranks; returns the model and the learning rates."""
    import torch
    from torch import nn

    optimizer = torch.optim.AdamW(model.parameters(), lr=PORT_LR)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=PORT_START, total_iters=PORT_ITERS)
    rates = []
    n = PORT_RANKS * PORT_IMAGES
    for i in range(PORT_BATCHES):
        loss = nn.functional.cross_entropy(model(x[i * n : (i + 1) * n]), y[i * n : (i + 1) * n])
        (loss / PORT_ACCUMULATE).backward()
        if i % PORT_ACCUMULATE == PORT_ACCUMULATE - 1:
            if clip == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), PORT_CLIP)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model, rates


# --- 12.2, 12.3: no framework needed ------------------------------------------------------------------------------------


def answers(n: int) -> list[bool]:
    """Whether each of n images is classified correctly: the first ones, which are repeated, more often than the rest."""
    return [i < 3 or i % 3 == 0 for i in range(n)]


def sampler(answer_path: str) -> None:
    from torch.utils.data import DistributedSampler

    answer = inside.load(answer_path)
    seen_by = inside.function(answer, "seen_by", "rank", "world_size", "n_images")
    accuracy = inside.function(answer, "accuracy", "correct", "n_images")
    seen, shares, true = [], [], []
    for n, ranks in SAMPLER_CASES:
        lists = []
        for rank in range(ranks):
            value = seen_by(rank, ranks, n, doing=f"asking what rank {rank} of {ranks} sees of {n} images")
            if not isinstance(value, (list, tuple)) or not all(isinstance(i, numbers.Integral) for i in value):
                inside.problem(f"`seen_by` returned {_shown(value)}; it must return a list of indices.", "type")
            lists.append([int(i) for i in value])
        seen.append(lists)
        true.append([list(DistributedSampler(range(n), ranks, rank, shuffle=False)) for rank in range(ranks)])
    right = seen == true
    for n, ranks in SAMPLER_CASES if right else []:  # its lists are judged first
        found = answers(n)
        correct = [[found[i] for i in DistributedSampler(range(n), ranks, rank, shuffle=False)] for rank in range(ranks)]
        value = accuracy(correct, n, doing=f"computing the accuracy over {n} images on {ranks} ranks")
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            inside.problem(f"`accuracy` returned {_shown(value)}; it must return a number.", "type")
        shares.append(float(value))
    inside.tell(seen=seen, true=true, shares=shares)


def _pairs(function: Any, cases: Sequence[tuple[int, ...]], name: str) -> list[list[int] | str]:
    """What the function returns for each case: two whole numbers, or "ValueError"."""
    pairs: list[list[int] | str] = []
    for case in cases:
        try:
            value = function(*case, doing=f"calling {name}{case}")
        except ValueError:
            pairs.append("ValueError")
            continue
        if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(isinstance(v, numbers.Real) for v in value):
            inside.problem(f"`{name}{case}` returned {_shown(value)}; it must return two whole numbers.", "type")
        if any(int(v) != v or not isinstance(v, numbers.Integral) for v in value):
            inside.problem(f"`{name}{case}` returned {tuple(value)}; images come in whole numbers, of type int.", "not whole")
        pairs.append([int(v) for v in value])
    return pairs


def batches(answer_path: str) -> None:
    answer = inside.load(answer_path)
    lightning = inside.function(answer, "lightning_batch", "global_batch", "nodes", "devices", "fits")
    tensorflow = inside.function(answer, "tensorflow_batch", "global_batch", "workers", "replicas")
    inside.tell(
        lightning=_pairs(lightning, LIGHTNING_CASES, "lightning_batch"),
        lightning_errors=_pairs(lightning, LIGHTNING_ERRORS, "lightning_batch"),
        tensorflow=_pairs(tensorflow, TENSORFLOW_CASES, "tensorflow_batch"),
        tensorflow_errors=_pairs(tensorflow, TENSORFLOW_ERRORS, "tensorflow_batch"),
    )


# --- 12.4 -------------------------------------------------------------------------------------------------------------------


def loss(answer_path: str) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with quiet():
        import tensorflow as tf

    import numpy as np

    tf.config.set_visible_devices([], "GPU")
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    replica_loss = inside.function(inside.load(answer_path), "replica_loss", "per_image", "kernel", "global_batch")
    told = []
    rng = np.random.default_rng(3)
    for parts, global_batch in LOSS_CASES:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if len(parts) > 1 else tf.distribute.get_strategy()
        first = rng.normal(size=(4, 3))
        images = [rng.normal(size=(n, 4)) for n in parts]
        with strategy.scope():
            kernel = tf.Variable(first)
            optimizer = tf.keras.optimizers.SGD(1.0)
            optimizer.build([kernel])

        def step(x: Any, kernel: Any = kernel, optimizer: Any = optimizer, n: int = global_batch) -> Any:
            with tf.GradientTape() as tape:
                value = replica_loss(tf.reduce_sum(tf.square(tf.matmul(x, kernel)), axis=1), kernel, n)
                if not tf.is_tensor(value) or value.shape.rank != 0:
                    inside.problem(f"`replica_loss` returned {_shown(value)}; it must return a scalar tensor.", "type")
            gradient = tape.gradient(value, kernel)
            if gradient is None:
                inside.problem("No gradient flows from what `replica_loss` returns to the weights.", "no gradient")
            optimizer.apply_gradients([(gradient, kernel)])
            return value

        inside.report(call=f"a step with {' and '.join(map(str, parts))} images on {len(parts)} replicas")
        if len(parts) > 1:
            x = strategy.experimental_distribute_values_from_function(lambda c, xs=images: tf.constant(xs[c.replica_id_in_sync_group]))
            value = strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)
        else:
            value = step(tf.constant(images[0]))
        inside.report(call="")
        each = [np.square(x @ first).sum(axis=1) for x in images]
        penalty = PENALTY * np.square(first).sum() / 2
        whole = np.concatenate(images)
        gradient = 2 * whole.T @ (whole @ first) / global_batch + PENALTY * first
        told.append(
            {
                "value": float(value),
                "penalty": float(penalty),
                "images": float(sum(e.sum() for e in each) / global_batch),
                "local means": float(sum(e.mean() for e in each)),
                "sum": float(sum(e.sum() for e in each)),
                "gap": float(abs(first - gradient - kernel.numpy()).max()),
            }
        )
    inside.tell(cases=told)


if __name__ == "__main__":
    {"port": port, "sampler": sampler, "batches": batches, "loss": loss}[sys.argv[1]](sys.argv[2])
