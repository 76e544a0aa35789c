import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    futures = [rpc.rpc_async(workers[i % len(workers)], function, args=(job,)) for i, job in enumerate(jobs)]
    return [future.wait() for future in futures]
