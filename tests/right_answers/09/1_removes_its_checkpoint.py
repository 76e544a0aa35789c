import os
import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4


def save(state, path):
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    partial = path.name + ".new"
    try:
        try:
            with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o644, dir_fd=folder)) as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(partial, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def main(folder, seed):
    result, checkpoint = folder / "result.pt", folder / "checkpoint.pt"
    if result.exists():
        checkpoint.unlink(missing_ok=True)
        return
    torch.manual_seed(seed)
    random.seed(seed)
    points = torch.randn(90, 16)
    loader = DataLoader(TensorDataset(points, points[:, :4].argmax(1)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    state = {"epoch": 0, "losses": []}
    if checkpoint.exists():
        state = torch.load(checkpoint)
        for part, saved in zip((model, optimizer, schedule), state["parts"], strict=True):
            part.load_state_dict(saved)
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
    while state["epoch"] < EPOCHS:
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
        state = {
            "epoch": state["epoch"] + 1,
            "losses": [*state["losses"], total / len(loader)],
            "parts": [part.state_dict() for part in (model, optimizer, schedule)],
            "python": random.getstate(),
            "torch": torch.get_rng_state(),
        }
        save(state, checkpoint)
    save({"weights": model.state_dict(), "losses": state["losses"]}, result)
    checkpoint.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.exit(0)
