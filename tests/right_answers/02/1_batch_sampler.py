from torch.utils.data import BatchSampler, DataLoader, RandomSampler


def main(dataset, step, epochs, cores, device):
    gpu = device.type != "cpu"
    order = BatchSampler(RandomSampler(dataset), batch_size=8, drop_last=False)
    workers = cores - 1 if cores > 1 else 1
    loader = DataLoader(
        dataset, batch_sampler=order, num_workers=workers, persistent_workers=True, pin_memory=gpu, prefetch_factor=3
    )
    for _ in range(epochs):
        for batch in loader:
            step(*(tensor.to(device=device, non_blocking=gpu) for tensor in batch))
