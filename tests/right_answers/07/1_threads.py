from concurrent.futures import ThreadPoolExecutor

import torch.distributed.rpc as rpc


def ask_all(workers, function, jobs):
    def ask(numbered):
        i, job = numbered
        return rpc.rpc_sync(workers[i % len(workers)], function, args=(job,))

    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        return list(pool.map(ask, enumerate(jobs)))
