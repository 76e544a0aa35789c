# symptom: swallowed
# says: as if nothing had happened
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    futures = [rpc.rpc_async(workers[i % len(workers)], function, args=(job,)) for i, job in enumerate(jobs)]
    answers = []
    for future in futures:
        try:
            answers.append(future.wait())
        except Exception:
            answers.append(None)
    return answers
