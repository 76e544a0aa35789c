# symptom: one by one
# says: awaited before the next began
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    return [rpc.rpc_sync(workers[i % len(workers)], function, args=(job,)) for i, job in enumerate(jobs)]
