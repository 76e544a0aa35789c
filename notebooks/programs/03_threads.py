"""How many matrix products the threads of all ranks compute in a second, for several widths."""

import argparse
import threading
import time

import torch
import torch.distributed as dist

from course_utils.rank import report


def multiply(width, seconds, rates):
    torch.set_num_threads(1)  # of each operation; a setting of each thread
    x = torch.full((width, width), 1 / width)
    start, done = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        for _ in range(5):
            x @ x
        done += 5
    rates.append(done / (time.perf_counter() - start))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int)
    parser.add_argument("--widths", type=int, nargs="+")
    args = parser.parse_args()
    dist.init_process_group()
    for width in args.widths:
        for repeat in range(6):
            rates = []
            threads = [threading.Thread(target=multiply, args=(width, 0.06, rates)) for _ in range(args.threads)]
            dist.barrier()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            everyone = torch.tensor(sum(rates))
            dist.all_reduce(everyone)
            if repeat:
                report(width=width, products_per_s=everyone.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
