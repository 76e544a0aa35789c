import threading


class ParameterServer:
    def __init__(self, weights, lr):
        self.weights = weights.clone()
        self.lr = lr
        self.version = 0
        self.lock = threading.RLock()

    def read(self):
        with self.lock:
            return self.version, self.weights.clone()

    def update(self, gradient, read_version):
        with self.lock:
            version, weights = self.read()
            if gradient.shape != weights.shape:
                raise ValueError("the shapes differ")
            self.weights = weights - self.lr * gradient
            self.version = version + 1
            return version - read_version
