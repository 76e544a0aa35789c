"""Lesson 04's training with plain SGD: 30 steps of DDP. Leaves out what lesson 12 doesn't compare."""

from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from course_utils.rank import device, report
from course_utils.workloads import image_model, image_set

torch.backends.cudnn.conv.fp32_precision = "ieee"  # on a GPU too: no TF32, so that curves can be compared
if device().type == "cuda":
    torch.cuda.set_device(device())
dist.init_process_group()
data = image_set(split="train", pixels=32, train_per_class=60)
sampler = DistributedSampler(data)
loader = DataLoader(data, 128 // dist.get_world_size(), sampler=sampler)
torch.manual_seed(0)
model = DDP(image_model("cpu").to(device()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1):
    sampler.set_epoch(epoch)
    for images, labels in islice(loader, 30):
        images, labels = images.to(device()), labels.to(device())
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(loss=loss.item())
dist.destroy_process_group()
