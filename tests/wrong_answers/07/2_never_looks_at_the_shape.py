# symptom: shape
# says: without complaint
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
        with self.lock:
            staleness = self.version - read_version
            self.weights[: len(gradient)] -= self.lr * gradient
            self.version += 1
            return staleness
