"""Trains a small classifier: python train.py FOLDER SEED"""

import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

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
for epoch in range(EPOCHS):
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
torch.save({"weights": model.state_dict(), "losses": losses}, folder / "result.pt")
