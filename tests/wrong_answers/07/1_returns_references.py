# symptom: not awaited
# says: no answer yet
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    return [rpc.remote(workers[i % len(workers)], function, args=(job,)) for i, job in enumerate(jobs)]
