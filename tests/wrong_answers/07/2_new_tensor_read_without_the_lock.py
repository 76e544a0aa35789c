# symptom: version
# says: A read said version
import threading


class ParameterServer:
    def __init__(self, weights, lr):
        self.weights = weights.clone()
        self.lr = lr
        self.version = 0
        self.lock = threading.Lock()

    def read(self):
        return self.version, self.weights.clone()

    def update(self, gradient, read_version):
        if gradient.shape != self.weights.shape:
            raise ValueError("the shapes differ")
        with self.lock:
            staleness = self.version - read_version
            self.weights = self.weights - self.lr * gradient
            self.version += 1
            return staleness
