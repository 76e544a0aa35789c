# symptom: order
# says: not in the order of the jobs
import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    answers = []
    futures = [rpc.rpc_async(workers[i % len(workers)], function, args=(job,)).then(lambda done: answers.append(done.value())) for i, job in enumerate(jobs)]
    for future in futures:
        future.wait()
    return answers
