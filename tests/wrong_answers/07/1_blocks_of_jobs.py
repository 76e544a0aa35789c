# symptom: wrong worker
# says: worker1, worker2, worker3
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    each = -(-len(jobs) // len(workers))
    futures = [rpc.rpc_async(workers[i // each], function, args=(job,)) for i, job in enumerate(jobs)]
    return [future.wait() for future in futures]
