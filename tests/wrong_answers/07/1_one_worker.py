# symptom: wrong worker
# says: not dealt to the workers in turn
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    futures = [rpc.rpc_async(workers[0], function, args=(job,)) for job in jobs]
    return [future.wait() for future in futures]
