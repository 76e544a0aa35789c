import torch
from torch.distributed import all_reduce, destroy_process_group, get_rank, get_world_size, init_process_group


def main(predict, pictures, path):
    init_process_group(backend="gloo")
    counts = torch.zeros(2, dtype=torch.float64)
    for i, (picture, label) in enumerate(pictures):
        if i % get_world_size() == get_rank():
            counts += torch.tensor([predict(picture) == label, 1])
    all_reduce(counts)
    right, of = counts.tolist()
    if get_rank() == 0:
        path.write_text(f"{right / of:.6f}")
    destroy_process_group()
    return right / of
