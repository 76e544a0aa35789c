"""A parameter server on rank 0, and trainers on the others, that call it by RPC. Gradients cost time by a pause."""

import argparse
import os
import threading
import time
import warnings

import torch
import torch.distributed.rpc as rpc

from course_utils.rank import report

WIDTH = 64


class Server:
    """Applies each gradient when it comes."""

    def __init__(self, trainers, lr, serve_s):
        self.weights, self.version, self.lock = torch.zeros(WIDTH), 0, threading.Lock()
        self.trainers, self.lr, self.serve_s = trainers, lr, serve_s
        self.log = []  # of each update: when it ended, whose, how old, the loss after it, how long it took

    def read(self):
        with self.lock:
            return self.version, self.weights.clone()  # a copy: the weights go on changing

    def update(self, trainer, gradient, read_version):
        """Change the weights, and answer with new ones. Calls arrive on several threads."""
        with self.lock:
            return self._apply([trainer], gradient, [read_version])

    def _apply(self, trainers, gradient, read_versions):
        begin = time.perf_counter()
        staleness = [self.version - version for version in read_versions]
        self.weights -= self.lr * gradient
        self.version += 1
        time.sleep(self.serve_s)  # a larger update
        end, loss = time.perf_counter(), (self.weights - 1).square().mean().item()
        self.log += [(end, t, s, loss, end - begin) for t, s in zip(trainers, staleness, strict=True)]
        return self.version, self.weights.clone()


class InStep(Server):
    """Applies the mean of all trainers' gradients, and answers when all have sent one."""

    def __init__(self, trainers, lr, serve_s):
        super().__init__(trainers, lr, serve_s)
        self.waiting, self.answer = [], torch.futures.Future()

    @rpc.functions.async_execution  # the answer is a future, and this thread goes on to other calls
    def update(self, trainer, gradient, read_version):
        with self.lock:
            answer = self.answer
            self.waiting.append((trainer, gradient, read_version))
            if len(self.waiting) == self.trainers:
                trainers, gradients, versions = zip(*self.waiting, strict=True)
                done = self._apply(trainers, torch.stack(gradients).mean(0), versions)
                self.waiting, self.answer = [], torch.futures.Future()  # for the next step
                answer.set_result(done)
        return answer


def train(server, trainer, updates, gradient_s):
    """Compute gradients and send them until all trainers together have made so many updates."""
    random = torch.Generator().manual_seed(trainer)
    x = torch.linalg.qr(torch.randn(512, WIDTH, generator=random)).Q * 512**0.5  # equally steep in every direction
    y = x @ torch.ones(WIDTH) + 0.1 * torch.randn(512, generator=random)
    times, (version, weights) = [], server.rpc_sync().read()
    while version < updates:
        start = time.perf_counter()
        gradient = x.T @ (x @ weights - y) / len(y)
        time.sleep(max(0.0, gradient_s - (time.perf_counter() - start)))  # a larger model
        sent = time.perf_counter()
        version, weights = server.rpc_sync().update(trainer, gradient, version)
        times.append((sent - start, time.perf_counter() - sent))
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, nargs="+", default=[0.1], help="one training for each")
    parser.add_argument("--gradient-ms", type=float, default=8.0)
    parser.add_argument("--slow", type=float, default=1.0, help="how many times as long trainer 0 needs")
    parser.add_argument("--serve-ms", type=float, default=0.0, help="how long an update takes besides")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--in-step", action="store_true", help="wait for all trainers in each update")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*ProcessGroupGloo")  # torch's own, about itself
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    trainers = world_size - 1
    for lr in args.lr if rank == 0 else []:
        server = rpc.RRef((InStep if args.in_step else Server)(trainers, lr, args.serve_ms / 1e3))
        seconds = [args.gradient_ms / 1e3 * (args.slow if i == 0 else 1) for i in range(trainers)]
        futures = [
            rpc.rpc_async(f"worker{i + 1}", train, args=(server, i, args.updates, seconds[i])) for i in range(trainers)
        ]
        times = [pair for future in futures for pair in future.wait()]
        ends, who, staleness, losses, serving = zip(*server.local_value().log, strict=True)
        few = len(ends) // 10  # at the start and the end not all trainers work
        report(lr=lr, staleness=staleness[few:-few], trainer=who[few:-few], loss=[1.0, *losses])
        report(lr=lr, gradients_per_s=(len(ends) - 2 * few - 1) / (ends[-few - 1] - ends[few]))
        report(lr=lr, sent=len(times), applied=len(ends), version=server.local_value().version)
        gradient_s, call_s = (sorted(column)[len(times) // 2] for column in zip(*times, strict=True))
        report(lr=lr, gradient_s=gradient_s, call_s=call_s, serve_s=sorted(serving)[len(serving) // 2])
    rpc.shutdown()


if __name__ == "__main__":
    main()
