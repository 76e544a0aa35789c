import os
import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def save(state, path):
    partial = path.with_suffix(".partial")
    try:
        torch.save(state, partial)
        os.sync()
        partial.rename(path)
        os.sync()
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


EPOCHS = 4
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(seed)
random.seed(seed)
points = torch.randn(90, 16)
loader = DataLoader(TensorDataset(points, points[:, :4].argmax(1)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
losses = []
run = folder / "run.pt"
total, epoch, batches = 0.0, 0, None
if run.exists():
    saved = torch.load(run)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    losses, total, epoch, batches = saved["losses"], saved["total"], saved["epoch"], saved["batches"]
    torch.set_rng_state(saved["torch"])
    random.setstate(saved["python"])
while epoch < EPOCHS:
    if batches is None:
        batches = list(loader)
    while batches:
        x, y = batches.pop(0)
        if random.random() < 0.5:
            x = x + 0.1 * torch.randn_like(x)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if len(batches) % 2 == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            states |= {"schedule": schedule.state_dict(), "losses": losses, "total": total, "epoch": epoch}
            states |= {"batches": batches, "torch": torch.get_rng_state(), "python": random.getstate()}
            save(states, run)
    schedule.step()
    losses.append(total / len(loader))
    print(f"epoch {epoch}: loss {losses[-1]:.4f}")
    total, epoch, batches = 0.0, epoch + 1, None
save({"weights": model.state_dict(), "losses": losses}, folder / "result.pt")
