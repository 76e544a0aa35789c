# symptom: length
# says: For 5 jobs there are 3 answers
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    futures = [rpc.rpc_async(name, function, args=(job,)) for name, job in zip(workers, jobs, strict=False)]
    return [future.wait() for future in futures]
