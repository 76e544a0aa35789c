# symptom: lock kept
# says: was not given back
import threading


class ParameterServer:
    def __init__(self, weights, lr):
        self.weights = weights.clone()
        self.lr = lr
        self.version = 0
        self.lock = threading.Lock()

    def read(self):
        with self.lock:
            return self.version, self.weights.clone()

    def update(self, gradient, read_version):
        self.lock.acquire()
        if gradient.shape != self.weights.shape:
            raise ValueError("the shapes differ")
        staleness = self.version - read_version
        self.weights -= self.lr * gradient
        self.version += 1
        self.lock.release()
        return staleness
