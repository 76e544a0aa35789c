"""Train on any number of GPUs with Lightning. It resumes in the middle of an epoch, and tests each sample once.
PyTorch and Lightning, nothing else.

    python 12_lightning.py --devices 8
    torchrun --standalone --nproc-per-node=8 12_lightning.py
    sbatch 12_lightning.sbatch

To make it yours, replace the data and the model. `--batch-size` is for all devices together. Started again, it goes on
from the newest checkpoint in `--out`. Under srun it also saves when SIGUSR1 comes, and Lightning has its job queued
again. Sometimes that hangs: submit it again then, with the same `--out`. A save on SIGUSR1 can come within a step, and
then that batch may be trained twice. Lightning doesn't keep random states, so dropout draws other masks after a resume.
"""

import argparse
import os
import warnings
from itertools import islice
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

CLASSES = 10
warnings.filterwarnings("ignore", message=".*does not have many workers")  # the points lie in memory


def data(n, seed):
    """Points around ten centres: a stand-in for your own data set."""
    centres = torch.randn(CLASSES, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return TensorDataset(centres[labels] + 2 * torch.randn(n, 32, generator=generator), labels)


class SkippingSampler(DistributedSampler):
    """Leaves out the first samples of this rank's part, without loading them."""

    skip = 0

    def __iter__(self):
        return islice(super().__iter__(), self.skip, None)


class ResumableLoader(DataLoader):
    """Knows how many batches of the epoch are trained. Lightning keeps that in its checkpoints, because there's a
    `state_dict`."""

    done = skip = 0

    def __iter__(self):  # a generator: it begins with the first batch, when the trainer has set the sampler's epoch
        self.done, self.sampler.skip = self.skip, self.skip * self.batch_size
        self.skip = 0
        yield from super().__iter__()

    def state_dict(self):
        return {"done": self.done % len(self)}

    def load_state_dict(self, state):
        self.skip = state["done"]


class Count(L.Callback):
    """Tells the loader of each batch that has been trained: what was fetched and not trained comes again."""

    def on_train_batch_end(self, trainer, *_):
        trainer.train_dataloader.done += 1


class Classifier(L.LightningModule):
    def __init__(self, batch_size):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))
        self.batch_size = batch_size

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def train_dataloader(self):
        points = data(4000, seed=1)
        ranks, rank = self.trainer.world_size, self.trainer.global_rank
        sampler = SkippingSampler(points, ranks, rank, drop_last=True)
        return ResumableLoader(points, self.batch_size // ranks, sampler=sampler, drop_last=True)

    def training_step(self, batch, step):
        x, y = batch
        loss = cross_entropy(self.net(x), y)
        self.log("loss", loss, sync_dist=True)  # the mean over ranks
        return loss

    def val_dataloader(self):
        """This rank's part, and no sample twice."""
        points = data(1001, seed=2)
        return DataLoader(Subset(points, range(self.trainer.global_rank, len(points), self.trainer.world_size)), 256)

    def on_validation_epoch_start(self):
        self.counts = torch.zeros(2, device=self.device)  # right, all

    def validation_step(self, batch, step):
        x, y = batch
        self.counts += torch.stack([(self.net(x).argmax(1) == y).sum(), torch.tensor(len(y), device=self.device)])

    def on_validation_epoch_end(self):
        right, of = self.trainer.strategy.reduce(self.counts, reduce_op="sum").tolist()  # counts add up, means don't
        self.log("accuracy", right / of, rank_zero_only=True)
        self.print(f"epoch {self.current_epoch}: {right:.0f} of {of:.0f} right")


def devices_and_nodes(wanted):
    """What the launcher has started: both numbers must match it."""
    if torch.distributed.is_torchelastic_launched():  # by torchrun
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    if "SLURM_NTASKS_PER_NODE" in os.environ:  # by srun
        return int(os.environ["SLURM_NTASKS_PER_NODE"]), int(os.environ["SLURM_NNODES"])
    return wanted or torch.cuda.device_count() or 1, 1  # by Lightning itself


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many, in whatever epoch")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--devices", type=int, help="of this machine, if no launcher has started the ranks")
    parser.add_argument("--precision", default="32-true", help="bf16-mixed, 16-mixed")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--out", type=Path, default=Path("12_lightning"), help="a folder that all nodes see")
    args = parser.parse_args()

    devices, nodes = devices_and_nodes(args.devices)
    if args.batch_size % (devices * nodes):
        raise SystemExit(f"--batch-size {args.batch_size} can't be shared by {devices * nodes} ranks")
    saver = ModelCheckpoint(args.out, "last", every_n_train_steps=args.save_every, enable_version_counter=False)
    trainer = L.Trainer(
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=devices,
        num_nodes=nodes,
        strategy="ddp",
        precision=args.precision,
        max_epochs=args.epochs,
        max_steps=args.steps,
        callbacks=[Count(), saver],
        default_root_dir=args.out,  # where logs go, and what's saved on SIGUSR1
        use_distributed_sampler=False,  # ours are above
        log_every_n_steps=10,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    saved = sorted(args.out.glob("*.ckpt"), key=os.path.getmtime)
    model = Classifier(args.batch_size)
    trainer.fit(model, ckpt_path=saved[-1] if saved else None)
    total = sum(p.detach().double().sum() for p in model.parameters()).item()
    if trainer.is_global_zero:
        print(f"{trainer.world_size} ranks, {trainer.global_step} steps, the weights' sum is {total!r}", flush=True)
    if torch.distributed.is_initialized():
        del trainer, model  # DDP inside holds the process group
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
