"""One process, no DDP: load what rank 0 saved, test it, and name ten images."""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from course_utils.rank import device, report
from course_utils.workloads import image_model, image_set

model = image_model(norm="group").to(device()).eval()
weights = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("ddp.pt")
model.load_state_dict(torch.load(weights, map_location=device()))
test_set = image_set(split="test")
chosen = list(range(7, len(test_set), len(test_set) // 10))[:10]
with torch.no_grad():
    found = model(torch.stack([test_set[i][0] for i in chosen]).to(device())).argmax(1)
    batches = DataLoader(test_set, 250)
    correct = sum((model(x.to(device())).argmax(1) == y.to(device())).sum().item() for x, y in batches)
report(correct=correct, chosen=chosen, found=found.tolist(), pixels=test_set.pixels)
