"""One rank of `tools/bench_emulation.py parallel`: a step of known models, divided among all GPUs by nn.DataParallel.

A case is MODEL:PRECISION:BATCH:WHAT, as in resnet50:half:12:inference, with BATCH images a GPU and all numbers in that
precision. As the published program does, it copies its images in each step, fills gradients with zeros, and makes no
step of an optimizer.
"""

import sys

import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.rank import report, timer

WARM_UP = 2


def main() -> None:
    gpus = torch.cuda.device_count()
    for case in sys.argv[1:]:
        name, precision, batch, what = case.split(":")
        with torch.device("cuda"):  # made there, so that nothing is computed
            model: nn.Module = torchvision.models.get_model(name)
        images, labels = torch.randn(int(batch) * gpus, 3, 224, 224), torch.randint(1000, (int(batch) * gpus,)).cuda()
        if precision == "half":
            model, images = model.half(), images.half()
        model = nn.DataParallel(model) if gpus > 1 else model
        model.train(what == "train")

        def step(model: nn.Module = model, images: torch.Tensor = images, labels: torch.Tensor = labels) -> None:
            if model.training:
                model.zero_grad(set_to_none=False)
                cross_entropy(model(images.cuda()), labels).backward()
            else:
                with torch.no_grad():
                    model(images.cuda())

        for _ in range(WARM_UP):
            step()
        torch.cuda.synchronize()
        with timer() as t:
            step()
            torch.cuda.synchronize()
        report(case=case, seconds=t.seconds)


main()
