"""Steps of a model of 18 numbers, by a loop of your own, Fabric, Accelerate or Lightning's trainer: what's left is the
framework's own time."""

import argparse
import logging
import os
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_utils.rank import device, report

STEPS, WARM_UP = 200, 20
ranks = int(os.environ["WORLD_SIZE"])
logging.disable(logging.INFO)
warnings.filterwarnings("ignore")


class Clock:
    """Reports the seconds between two calls. Reading the loss waits for the device."""

    def __init__(self):
        self.last, self.seen = time.perf_counter(), 0

    def step(self, loss):
        loss.item()
        now = time.perf_counter()
        self.seen += 1
        if self.seen > WARM_UP:
            report(step_s=now - self.last)
        self.last = now


def make():
    """A model, its optimizer, and a loader of batches of two."""
    torch.manual_seed(0)
    net = nn.Linear(8, 2)
    data = TensorDataset(torch.randn(2 * STEPS * ranks, 8), torch.randint(2, (2 * STEPS * ranks,)))
    return net, torch.optim.SGD(net.parameters(), lr=0.01), data


def loop(model, optimizer, loader, backward, move):
    clock = Clock()
    for x, y in loader:
        x, y = move(x), move(y)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        clock.step(loss)


def ddp():
    if device().type == "cuda":
        torch.cuda.set_device(device())
    dist.init_process_group()
    net, optimizer, data = make()
    loader = DataLoader(data, 2, sampler=DistributedSampler(data))
    loop(DDP(net.to(device())), optimizer, loader, lambda loss: loss.backward(), lambda t: t.to(device()))
    dist.destroy_process_group()


def fabric():
    from lightning.fabric import Fabric

    own = Fabric(accelerator=device().type, devices=ranks, strategy="ddp")
    own.launch()
    net, optimizer, data = make()
    loader = own.setup_dataloaders(DataLoader(data, 2, shuffle=True))
    loop(*own.setup(net, optimizer), loader, own.backward, lambda t: t)


def accelerate():
    from accelerate import Accelerator

    own = Accelerator(cpu=device().type == "cpu")
    net, optimizer, data = make()
    model, optimizer, loader = own.prepare(net, optimizer, DataLoader(data, 2, shuffle=True))
    loop(model, optimizer, loader, own.backward, lambda t: t)
    own.end_training()


def lightning():
    import lightning as L

    net, optimizer, data = make()

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.clock = net, Clock()

        def training_step(self, batch, step):
            return cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return optimizer

        def on_train_batch_end(self, outputs, batch, step):
            self.clock.step(outputs["loss"])

    trainer = L.Trainer(
        accelerator=device().type, devices=ranks, strategy="ddp", max_epochs=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data, 2))


ways = {"DDP": ddp, "Fabric": fabric, "Accelerate": accelerate, "Lightning": lightning}
parser = argparse.ArgumentParser()
parser.add_argument("--by", choices=list(ways), required=True)
ways[parser.parse_args().by]()
