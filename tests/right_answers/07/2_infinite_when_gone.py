import math
import threading

from torch.futures import Future


class BoundedServer:
    def __init__(self, weights, lr, trainers, ahead):
        self.lock = threading.RLock()
        self.weights, self.lr, self.ahead, self.version = weights + 0, lr, ahead, 0
        self.made, self.read_at, self.future = [0] * trainers, {}, {}

    def may(self, trainer):
        return self.made[trainer] <= min(self.made) + self.ahead

    def look(self):
        for trainer in range(len(self.made)):
            if trainer in self.future and self.may(trainer):
                self.read_at[trainer] = self.version
                self.future.pop(trainer).set_result((self.version, self.weights + 0))

    def read(self, trainer):
        with self.lock:
            future = self.future[trainer] = Future()
            self.look()
            return future

    def update(self, trainer, gradient):
        with self.lock:
            self.weights.sub_(gradient * self.lr)
            self.version, age = self.version + 1, self.version - self.read_at[trainer]
            self.made[trainer] += 1
            self.look()
            return age

    def leave(self, trainer):
        with self.lock:
            self.made[trainer] = math.inf
            self.look()
