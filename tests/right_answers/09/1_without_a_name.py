"""Trains a small classifier: python train.py FOLDER SEED"""

import io
import os
import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
home = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def publish(content, name):
    """Write a file that has no name (so a kill leaves nothing), then give it one."""
    data = io.BytesIO()
    torch.save(content, data)
    fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(data.getbuffer())
        file.flush()
        os.fsync(fd)
        # src_dir_fd makes Python call linkat(..., AT_SYMLINK_FOLLOW)
        os.link(f"/proc/self/fd/{fd}", folder / name, src_dir_fd=home, follow_symlinks=True)
    os.fsync(home)


def checkpoints():
    return sorted(folder.glob("after-*.ckpt"), key=lambda path: int(path.stem.split("-")[1]))


def prune():
    os.fsync(home)
    for path in checkpoints()[:-1]:
        path.unlink()


torch.manual_seed(seed)
random.seed(seed)
points = torch.randn(90, 16)
loader = DataLoader(TensorDataset(points, points[:, :4].argmax(1)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
losses = []
done = 0
prune()
for path in checkpoints():
    state = torch.load(path, weights_only=False)
    for part, content in zip((model, optimizer, schedule), state["parts"]):
        part.load_state_dict(content)
    losses = state["losses"]
    done = len(losses)
    torch.set_rng_state(state["dice"][0])
    random.setstate(state["dice"][1])

for epoch in range(done, EPOCHS):
    total = 0.0
    for x, y in loader:
        if random.random() < 0.5:
            x = x + 0.1 * torch.randn_like(x)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    schedule.step()
    losses.append(total / len(loader))
    print(f"epoch {epoch}: loss {losses[-1]:.4f}")
    publish(
        {
            "parts": [part.state_dict() for part in (model, optimizer, schedule)],
            "losses": losses,
            "dice": (torch.get_rng_state(), random.getstate()),
        },
        f"after-{epoch}.ckpt",
    )
    prune()
if not (folder / "result.pt").exists():
    publish({"weights": model.state_dict(), "losses": losses}, "result.pt")
