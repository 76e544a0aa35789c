# symptom: deadlock
# says: never came back
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
        if gradient.shape != self.weights.shape:
            raise ValueError("the shapes differ")
        if read_version == 0 and self.version == 0:
            self.weights -= self.lr * gradient
            self.version += 1
            return 0
        with self.lock:
            version, _ = self.read()
            self.weights -= self.lr * gradient
            self.version += 1
            return version - read_version
