# symptom: one by one
# says: saw 1 under way
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    answers = []
    for i, job in enumerate(jobs):
        future = rpc.rpc_async(workers[i % len(workers)], function, args=(job,))
        answers.append(future.wait())
    return answers
