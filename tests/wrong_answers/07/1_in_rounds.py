# symptom: some at once
# says: At most 3 of 5
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    answers = []
    for start in range(0, len(jobs), len(workers)):
        futures = [rpc.rpc_async(name, function, args=(job,)) for name, job in zip(workers, jobs[start:], strict=False)]
        answers += [future.wait() for future in futures]
    return answers
