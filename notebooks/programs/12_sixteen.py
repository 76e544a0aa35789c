"""A ResNet-50 on the GPUs of an emulated cluster, by DDP or by Lightning's trainer: how often gradients are summed, how
long four batches take, and how much memory that needs.

`--parts` batches make a step of the optimizer. The last four of twelve batches are measured.
"""

import argparse
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torchvision.models import resnet50

from course_utils.rank import device, report

IMAGES, BATCHES, MEASURED = 32, 12, 4
parser = argparse.ArgumentParser()
parser.add_argument("--by", choices=["DDP", "Lightning"], required=True)
parser.add_argument("--parts", type=int, default=1)
parser.add_argument("--precision", choices=["32-true", "bf16-mixed"], default="32-true")
args = parser.parse_args()
parts = args.parts


class Sums:
    """Counts the bytes of gradients that DDP sums, and sums them as it would itself."""

    nbytes = 0

    def hook(self, state, bucket):
        self.nbytes += bucket.buffer().nbytes
        return allreduce_hook(None, bucket)


class Watch:
    """Notes the time and the counts when a batch is done, and reports what the last ones took."""

    def __init__(self, model):
        self.sums, self.whole = Sums(), sum(p.nbytes for p in model.parameters())
        self.at = None

    def done(self, batch):
        if batch + 1 in (BATCHES - MEASURED, BATCHES):
            torch.cuda.synchronize()
            now = time.perf_counter(), self.sums.nbytes
            if self.at:
                took_s, nbytes = now[0] - self.at[0], now[1] - self.at[1]
                report(took_s=took_s, sums=nbytes / self.whole, peak_bytes=torch.cuda.max_memory_allocated())
            self.at = now


def by_hand():
    torch.cuda.set_device(device())
    dist.init_process_group()
    with device():
        net = resnet50()
        x, y = torch.randn(IMAGES, 3, 224, 224), torch.randint(1000, (IMAGES,))
    watch, model = Watch(net), DDP(net)
    model.register_comm_hook(None, watch.sums.hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in range(BATCHES):
        last = (batch + 1) % parts == 0
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cuda", torch.bfloat16, enabled=args.precision == "bf16-mixed"):
                loss = cross_entropy(model(x), y)
            (loss / parts).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        watch.done(batch)
    dist.destroy_process_group()


def by_lightning():
    import lightning as L
    from lightning.pytorch.strategies import DDPStrategy

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = resnet50()

        def training_step(self, batch, step):
            return cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_batch_end(self, outputs, batch, step):
            watch.done(step)

    net = Net()
    watch = Watch(net)
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = L.Trainer(
        accelerator="cuda", devices=local, num_nodes=int(os.environ["WORLD_SIZE"]) // local, max_epochs=1,
        strategy=DDPStrategy(ddp_comm_hook=watch.sums.hook), precision=args.precision, accumulate_grad_batches=parts,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    batch = torch.randn(IMAGES, 3, 224, 224), torch.randint(1000, (IMAGES,))
    trainer.fit(net, DataLoader([batch] * BATCHES, batch_size=None))


by_lightning() if args.by == "Lightning" else by_hand()
