"""A loader and nothing else, in which each batch brings its own history: from when to when it was loaded."""

import argparse
import time

from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2

from course_utils.rank import report
from course_utils.workloads import image_set

BATCH = 16


class TimedImages(Dataset):
    """JPEG files, decoded anew each time: dataset[i] is (image, label, when its decoding began)."""

    def __init__(self):
        augment = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()])
        self.images = image_set(pixels=256, in_memory=False, train_per_class=3, test_per_class=1, transform=augment)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        began = time.time()
        image, label = self.images[index]
        return image, label, began


def timed_collate(samples):
    images, labels = default_collate([(image, label) for image, label, _ in samples])
    return images, labels, (samples[0][2], time.time())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batches", type=int, default=24)
    args = parser.parse_args()
    data, workers = TimedImages(), args.workers
    order = [
        i % len(data) for i in range(max(1, workers) * BATCH)
    ]  # a list is a sampler: first a batch for each worker
    loader = DataLoader(
        data, BATCH, sampler=order, collate_fn=timed_collate, num_workers=workers, persistent_workers=workers > 0
    )
    for _ in loader:
        pass
    order[:] = [i % len(data) for i in range(args.batches * BATCH)]
    began = time.time()
    for _images, _labels, (load_began, load_ended) in loader:
        report(load_s=load_ended - load_began, began_s=load_began - began)
    report(images_per_s=len(order) / (time.time() - began))


if __name__ == "__main__":
    main()
