import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    references = []
    for i, job in enumerate(jobs):
        references.append(rpc.remote(workers[i % len(workers)], function, args=(job,)))
    return [reference.to_here() for reference in references]
