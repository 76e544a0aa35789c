import torch


class BoundedServer:
    def __init__(self, weights, lr, trainers, ahead):
        self.w = weights.detach().clone()
        self.lr = lr
        self.ahead = ahead
        self.clocks = [0] * trainers
        self.gone = set()
        self.queue = []
        self.seen = [0] * trainers
        self.version = 0

    def slowest(self):
        return min((c for t, c in enumerate(self.clocks) if t not in self.gone), default=0)

    def wake(self):
        still = []
        for trainer, future in self.queue:
            if self.clocks[trainer] - self.slowest() > self.ahead:
                still.append((trainer, future))
                continue
            self.seen[trainer] = self.version
            future.set_result((self.version, self.w.clone()))
        self.queue = still

    def read(self, trainer):
        future = torch.futures.Future()
        self.queue.append((trainer, future))
        self.wake()
        return future

    def update(self, trainer, gradient):
        self.w = self.w - self.lr * gradient
        self.clocks[trainer] += 1
        self.version += 1
        self.wake()
        return self.version - 1 - self.seen[trainer]

    def leave(self, trainer):
        self.gone.add(trainer)
        self.wake()
