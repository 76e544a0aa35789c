import torch


class BoundedServer:
    def __init__(self, weights, lr, trainers, ahead):
        self.weights = weights.clone()
        self.lr = lr
        self.ahead = ahead
        self.age = {t: 0 for t in range(trainers)}
        self.counts = {t: 0 for t in range(trainers)}
        self.blocked = []

    def check(self, trainer):
        return all(self.counts[trainer] - count <= self.ahead for count in self.counts.values())

    def give(self, trainer, future):
        self.age[trainer] = 0
        future.set_result((self.total, self.weights.clone()))

    total = 0

    def read(self, trainer):
        future = torch.futures.Future()
        if self.check(trainer):
            self.give(trainer, future)
        else:
            self.blocked.append((trainer, future))
        return future

    def release(self):
        free = [pair for pair in self.blocked if self.check(pair[0])]
        self.blocked = [pair for pair in self.blocked if pair not in free]
        for pair in free:
            self.give(*pair)

    def update(self, trainer, gradient):
        age = self.age[trainer]
        self.weights -= self.lr * gradient
        for other in self.age:
            self.age[other] += 1
        self.total += 1
        self.counts[trainer] += 1
        self.release()
        return age

    def leave(self, trainer):
        self.counts.pop(trainer)
        self.release()
