import threading


class ParameterServer:
    def __init__(self, weights, lr):
        self.weights = weights.clone()
        self.lr = lr
        self.version = 0
        self.lock = threading.Lock()

    def read(self):
        with self.lock:
            version, weights = self.version, self.weights
        return version, weights.clone()

    def update(self, gradient, read_version):
        step = self.lr * gradient
        if step.shape != self.weights.shape:
            raise ValueError(tuple(step.shape))
        self.lock.acquire()
        try:
            self.weights = self.weights - step
            self.version += 1
            return self.version - 1 - read_version
        finally:
            self.lock.release()
