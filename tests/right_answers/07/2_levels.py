from collections import Counter, defaultdict

import torch
from torch.futures import Future


class BoundedServer:
    """Waits are kept by the level that the slowest must reach."""

    def __init__(self, weights, lr, trainers, ahead):
        self.history = [weights.clone()]
        self.lr, self.ahead = lr, ahead
        self.made = {t: 0 for t in range(trainers)}
        self.waits = defaultdict(list)
        self.given = {}

    def _give(self, trainer, future):
        version = len(self.history) - 1
        self.given[trainer] = version
        future.set_result((version, self.history[-1].clone()))

    def _moved(self):
        if not self.made:
            return
        level = min(self.made.values())
        for needed in sorted(n for n in self.waits if n <= level):
            for trainer, future in self.waits.pop(needed):
                self._give(trainer, future)

    def read(self, trainer):
        future = Future()
        needed = self.made[trainer] - self.ahead
        if min(self.made.values()) >= needed:
            self._give(trainer, future)
        else:
            self.waits[needed].append((trainer, future))
        return future

    def update(self, trainer, gradient):
        age = len(self.history) - 1 - self.given[trainer]
        self.history.append(torch.sub(self.history[-1], gradient, alpha=self.lr))
        self.made[trainer] += 1
        self._moved()
        return age

    def leave(self, trainer):
        self.made.pop(trainer)
        self._moved()
