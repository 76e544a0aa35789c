import torch
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    futures = [rpc.rpc_async(workers[i % len(workers)], function, (job,)) for i, job in enumerate(jobs)]
    return torch.futures.wait_all(futures)
