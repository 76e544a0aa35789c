"""Lesson 12 on the ranks: each task runs the student's functions and reports what it saw."""

from __future__ import annotations

import numbers
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from .. import rank_side
from .cases import LOSS_CASES, PORT_IMAGES, PORT_RANKS, REPLICAS


@contextmanager
def quiet() -> Iterator[None]:
    """Drops what is written to stderr. Both frameworks write a lot about themselves, TensorFlow from C++."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


# --- 12.1 -------------------------------------------------------------------------------------------------------------


def port(load: Callable[[], ModuleType], given: list[int]) -> None:
    import logging

    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    import lightning as L

    answer = load()
    module_of = rank_side.function(answer, "Ported", "model")
    settings_of = rank_side.function(answer, "trainer_settings")
    if not (isinstance(answer.Ported, type) and issubclass(answer.Ported, L.LightningModule)):
        rank_side.problem("`Ported` is not an `L.LightningModule`.", "module")

    model, x, y = port_data(*given)
    n = PORT_RANKS * PORT_IMAGES
    settings = settings_of(doing="asking for the settings of the trainer")
    rank_side.must_return(
        isinstance(settings, dict), "trainer_settings", settings, "a dict of arguments of `L.Trainer`"
    )
    module = module_of(model, doing="making the module")
    theirs = {id(p) for p in model.parameters()}
    if own := [name for name, p in module.named_parameters() if id(p) not in theirs]:
        rank_side.problem(f"`Ported` has parameters that `model` doesn't have: {', '.join(own[:3])}.", "own parameters")
    modes: set[bool] = set()
    model.register_forward_pre_hook(lambda model, _: modes.add(model.training))
    rank_side.seed_differently()
    # A step that optimizes by hand asks for its optimizers, and those exist only once there's a trainer.
    said = module.training_step((x[:n], y[:n]), 0) if module.automatic_optimization else None
    if module.automatic_optimization and not isinstance(said, torch.Tensor):
        rank_side.problem(
            f"`training_step` returned {rank_side.shown(said)}; the trainer needs the loss of the batch, a tensor.",
            "no loss",
        )
    rates: list[float] = []
    batches = 0

    class Watch(L.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            nonlocal batches
            batches += 1

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            rates.append(optimizer.param_groups[0]["lr"])

    ours = {
        "accelerator": "cpu",
        "strategy": "ddp",
        "devices": PORT_RANKS,
        "num_nodes": 1,
        "max_epochs": 1,
        "max_steps": -1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [Watch()],
        "use_distributed_sampler": False,  # Lightning's own would shuffle
    }
    rank_side.report(call="fitting the module")
    try:
        trainer = L.Trainer(**{**settings, **ours})
    except TypeError as error:
        rank_side.problem(f"`L.Trainer` does not take your settings: {error}", "settings")
    if type(trainer.limit_train_batches) is not float or trainer.limit_train_batches != 1.0:
        rank_side.problem(
            f"With your settings the trainer takes only a part of the batches: {trainer.limit_train_batches}.",
            "cut short",
        )
    data = TensorDataset(x, y)
    trainer.fit(
        module,
        DataLoader(data, PORT_IMAGES, sampler=DistributedSampler(data, PORT_RANKS, rank_side.RANK, shuffle=False)),
    )
    rank_side.report(call="")

    said = None if said is None else said.item()
    rank_side.tell(
        said=said, rates=rates, batches=batches, steps=trainer.global_step, weights=flat(model), mode=all(modes)
    )


def flat(model: Any) -> list[float]:
    return [value for p in model.parameters() for value in p.flatten().tolist()]


def port_data(seed: int, batches: int) -> tuple[Any, Any, Any]:
    """The model, and all images and their classes, so many batches for each rank: the same on all ranks."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    x = 4 * torch.randn(batches * PORT_RANKS * PORT_IMAGES, 6, dtype=torch.float64)
    return model, x, torch.randint(5, (len(x),))


# --- 12.2, 12.3: no framework needed ----------------------------------------------------------------------------------


class _Torchs:
    """Takes the place of torch's sampler while the student's code runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        rank_side.problem("The cell asks torch's DistributedSampler. Work it out without it.", "asks torch")


def sampler(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    import torch.utils.data.distributed

    torch.utils.data.DistributedSampler = torch.utils.data.distributed.DistributedSampler = _Torchs
    answer = load()
    seen_by = rank_side.function(answer, "seen_by", "rank", "world_size", "n_images")
    accuracy = rank_side.function(answer, "accuracy", "correct", "n_images")
    seen, shares = [], []
    for n, ranks, asked in given["sets"]:
        lists = []
        for rank in asked:
            value = seen_by(rank, ranks, n, doing=f"asking what rank {rank} of {ranks} sees of {n} images")
            rank_side.must_return(
                isinstance(value, (list, tuple)) and all(isinstance(i, numbers.Integral) for i in value),
                "seen_by",
                value,
                "a list of indices",
            )
            lists.append([int(i) for i in value])
        seen.append(lists)
    rank_side.tell(seen=seen)
    if not given["correct"]:
        return
    for n, correct in given["correct"]:
        doing = f"computing the accuracy over {n} images on {len(correct)} ranks"
        shares.append(rank_side.number(accuracy(correct, n, doing=doing), "`accuracy`"))
    rank_side.tell(shares=shares)


def _pairs(function: Any, cases: Sequence[tuple[int, ...]], name: str) -> list[list[int] | str]:
    """What the function returns for each case: two whole numbers, or "ValueError"."""
    pairs: list[list[int] | str] = []
    for case in cases:
        try:
            value = function(*case, doing=f"calling {name}{tuple(case)}")
        except ValueError:
            pairs.append("ValueError")
            continue
        if (
            not isinstance(value, (list, tuple))
            or len(value) != 2
            or not all(isinstance(v, numbers.Real) for v in value)
        ):
            rank_side.problem(
                f"`{name}{tuple(case)}` returned {rank_side.shown(value)}; it must return two whole numbers.", "type"
            )
        if any(int(v) != v or not isinstance(v, numbers.Integral) for v in value):
            rank_side.problem(
                f"`{name}{tuple(case)}` returned {tuple(value)}; images come in whole numbers, of type int.",
                "not whole",
            )
        pairs.append([int(v) for v in value])
    return pairs


def batches(load: Callable[[], ModuleType], given: dict[str, list[tuple[int, ...]]]) -> None:
    answer = load()
    lightning = rank_side.function(answer, "lightning_batch", "global_batch", "nodes", "devices", "fits")
    tensorflow = rank_side.function(answer, "tensorflow_batch", "global_batch", "workers", "replicas")
    rank_side.tell(
        **{
            what: _pairs(lightning, cases, "lightning_batch")
            if what.startswith("lightning")
            else _pairs(tensorflow, cases, "tensorflow_batch")
            for what, cases in given.items()
        }
    )


# --- 12.4 -------------------------------------------------------------------------------------------------------------


def loss(load: Callable[[], ModuleType]) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with quiet():
        import tensorflow as tf

    import numpy as np

    tf.config.set_visible_devices([], "GPU")
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
    replica_loss = rank_side.function(load(), "replica_loss", "per_image", "kernel", "global_batch")
    told = []
    # Collective operations, which are the default, can't change their number of devices within a process.
    one_device = tf.distribute.ReductionToOneDevice
    rng = np.random.default_rng()
    for parts, global_batch in LOSS_CASES:
        strategy = (
            tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(len(parts))], one_device())
            if len(parts) > 1
            else tf.distribute.get_strategy()
        )
        first = rng.normal(size=(4, 3)).astype("float32")  # as everything in TensorFlow, unless one asks for more
        images = [rng.normal(size=(n, 4)).astype("float32") for n in parts]
        with strategy.scope():
            kernel = tf.Variable(first)
            optimizer = tf.keras.optimizers.SGD(1.0)
            optimizer.build([kernel])

        def step(x: Any, kernel: Any = kernel, optimizer: Any = optimizer, n: int = global_batch) -> Any:
            with tf.GradientTape() as tape:
                value = replica_loss(tf.reduce_sum(tf.square(tf.matmul(x, kernel)), axis=1), kernel, n)
                rank_side.must_return(
                    tf.is_tensor(value) and value.shape.rank == 0, "replica_loss", value, "a scalar tensor"
                )
            gradient = tape.gradient(value, kernel)
            if gradient is None:
                rank_side.problem("No gradient flows from what `replica_loss` returns to the weights.", "no gradient")
            optimizer.apply_gradients([(gradient, kernel)])
            return value

        rank_side.report(call=f"a step with {' and '.join(map(str, parts))} images on {len(parts)} replicas")
        if len(parts) > 1:
            x = strategy.experimental_distribute_values_from_function(
                lambda c, xs=images: tf.constant(xs[c.replica_id_in_sync_group])
            )
            value = strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)
        else:
            value = step(tf.constant(images[0]))
        rank_side.report(call="")
        told.append(
            {
                "first": first.tolist(),
                "images": [x.tolist() for x in images],
                "value": float(value),
                "kernel": kernel.numpy().tolist(),
            }
        )
    rank_side.tell(cases=told)
