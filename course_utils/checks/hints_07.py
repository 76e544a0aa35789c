"""Lesson 07: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

OVERLAP: Hints = {
    "one by one": (
        "Which line waits for an answer, and how often is it reached before the next call is made?",
        "Two passes: `futures = [rpc.rpc_async(...) for ...]` makes all calls, and only then `[future.wait() for future in futures]` waits.",
    ),
    "some at once": (
        "You wait for a round of calls before you make the next ones. A worker runs up to 16 calls at a time.",
        "Make all calls first, for all jobs, whichever worker they go to; wait afterwards.",
    ),
    "order": (
        "The answers stand in the order in which they came, and the last job is done first here.",
        "Keep the futures in the order of the jobs, and wait for them in that order: those that are done already cost nothing.",
    ),
    "wrong worker": ("Job 0 goes to the first worker, job 1 to the second, and after the last the first is next.", "`workers[i % len(workers)]`"),
    "not awaited": ("The caller gets promises, and no answers.", "`future.wait()` gives the answer of `rpc_async`, `reference.to_here()` that of `remote`."),
    "length": ("Count the answers: some jobs are missing or doubled.", "One call for each `i, job in enumerate(jobs)`."),
    "swallowed": ("Look for a `try`, or for futures that nobody waits for.", "`wait()` raises what the call has raised. Let it."),
}

SERVER: Hints = {
    "wrong value": ("One step of gradient descent.", "`self.weights -= self.lr * gradient`."),
    "version": (
        "The version is read, used and counted up. Where could another thread come in between?",
        "Read the version, change the weights and count up under one lock: `with self.lock:` around all three. `read` takes version and weights under it too.",
    ),
    "staleness": (
        "Which updates came between this trainer's read and now? Its own is not one of them.",
        "`staleness = self.version - read_version`, before you count up.",
    ),
    "live tensor": ("`return self.weights` gives away the tensor itself, which goes on changing.", "Return `self.weights.clone()`, made under the lock."),
    "lost": (
        "Two threads read the same weights, both compute new ones, and the second puts its own over those of the first.",
        "Nobody may come between reading and writing the weights: `with self.lock:` around the whole update. One lock for all calls, made in `__init__`.",
    ),
    "torn read": ("An update changes a tensor piece by piece. Who may read meanwhile?", "`read` takes the same lock as `update`, and makes its copy under it."),
    "deadlock": (
        "A thread waits for a lock that it holds itself, or that another has not given back.",
        "A `threading.Lock` cannot be taken twice by one thread: do not call `read` under the lock in `update`, or use `threading.RLock`. Use `with`.",
    ),
    "lock kept": ("An exception leaves your function between `acquire` and `release`.", "`with self.lock:` gives the lock back however the block is left."),
    "shape": (
        "A gradient of two numbers for six weights: does a line of yours notice?",
        "`if gradient.shape != self.weights.shape: raise ValueError(...)`, before anything is changed.",
    ),
}

STALENESS: Hints = {
    "off by one": ("The version that `update` returns counts your own update too.", "`staleness = version_after - 1 - version_read`."),
    "always zero": (
        "Which version did the weights have from which this gradient was computed?",
        "Keep the version that `read` gave together with those weights; do not ask again before the update.",
    ),
    "old weights": ("From which weights is each gradient computed?", "In each step: read, compute from what was read, update."),
    "reads": (
        "One `read` gives version and weights together. A second one gives another version.",
        "`version, weights = server.rpc_sync().read()`, once a step.",
    ),
    "updates": ("Each step sends one gradient.", "`server.rpc_sync().update(gradient)`, once a step."),
    "length": ("One number for each step.", "Append in the loop."),
    "wrong": (
        "Two versions count: that of the weights you read, and that which your update found.",
        "`staleness = version_after - 1 - version_read`, both from the same step.",
    ),
}

RACING: Hints = {
    "wrong alone": (
        "Without other processes, read, add 1, write, `times` times.",
        "`value = counter.item()`, then a pause, then `counter[0] = value + 1`, in a loop.",
    ),
    "too few lost": (
        "An addition is lost when another process writes between your read and your write. How long is that moment?",
        "Make it longer: `time.sleep(0.001)` between reading and writing.",
    ),
}

MENDED: Hints = {
    "no lock": ("A lock that each process makes for itself keeps nobody out.", "`with lock:`, with the lock that was given."),
    "lost": (
        "Which steps does the lock cover? Reading, adding and writing belong together.",
        "`with lock:` around all three: `value = counter.item()` stands inside it as well.",
    ),
    "held": ("Where does the `with` stand, outside the loop or in it?", "In the loop: `for _ in range(times):` and then `with lock:`."),
    "deadlock": (
        "A lock that is taken must be given back, each time.",
        "`with lock:` does both. With `acquire`, call `release` in the same round of the loop.",
    ),
}
