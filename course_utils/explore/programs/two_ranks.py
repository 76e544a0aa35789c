"""Two gloo ranks make the calls in their lists: what the button under `explore.deadlock()` runs."""

import argparse
import os

import torch
import torch.distributed as dist

from course_utils.rank import report


def main(calls: list[str], other: int) -> None:
    pending = []
    for number, call in enumerate(calls):
        tensor = torch.ones(1000)
        report(called=number)
        if call == "send":
            dist.send(tensor, other)
        elif call == "recv":
            dist.recv(tensor, other)
        elif call == "isend":
            pending.append((dist.isend(tensor, other), tensor))
        elif call == "irecv":
            pending.append((dist.irecv(tensor, other), tensor))
        elif call == "wait":
            for work, _ in pending:
                work.wait()
            pending.clear()
        elif call == "all_reduce":
            dist.all_reduce(tensor)
        elif call == "barrier":
            dist.barrier()
        report(returned=number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("calls", nargs=2, help="of rank 0 and of rank 1, with commas between them")
    lists = parser.parse_args().calls
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    dist.barrier()  # both are there before the first call
    main([call for call in lists[rank].split(",") if call], other=1 - rank)
    dist.destroy_process_group()
