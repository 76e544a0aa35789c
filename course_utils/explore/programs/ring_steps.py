"""A ring all-reduce of one number a chunk, which says after each step what it holds: what the button under
`explore.ring()` runs."""

import torch
import torch.distributed as dist

from course_utils.rank import report


def exchange(send: torch.Tensor, receive: torch.Tensor) -> None:
    """Send a tensor to the next rank of the ring, while another comes from the rank before."""
    rank, n = dist.get_rank(), dist.get_world_size()
    out, into = dist.P2POp(dist.isend, send, (rank + 1) % n), dist.P2POp(dist.irecv, receive, (rank - 1) % n)
    for work in dist.batch_isend_irecv([out, into]):
        work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    numbers = torch.full((n,), 2**rank)  # in every sum you can read, bit by bit, who is in it
    chunks, inbox = numbers.tensor_split(n), torch.empty(1, dtype=numbers.dtype)
    report(held=numbers.tolist())
    for step in range(n - 1):  # reduce-scatter: add what comes
        exchange(chunks[(rank - step) % n], inbox)
        chunks[(rank - step - 1) % n].add_(inbox)
        report(held=numbers.tolist())
    for step in range(n - 1):  # all-gather: what comes is complete
        exchange(chunks[(rank + 1 - step) % n], chunks[(rank - step) % n])
        report(held=numbers.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
