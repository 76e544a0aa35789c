"""Lesson 01: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

WINNERS: Hints = {
    "dead code": (
        "Follow each value of `a` to where it is read. Is everything read?",
        "`spread` is read by nobody, so its exp, difference and std are dropped; and `x.mean()` is the same in every round. The graph has much less to do.",
    ),
    "long operations": (
        "How long does one `x @ w` of this size take, against the microsecond of Python around it? And is any of them superfluous?",
        "Each product needs the one before, and takes far longer than the Python between them: both versions do the same work.",
    ),
    "words": (
        "What must happen to the list before TorchScript's interpreter can read it?",
        "Every word is copied from Python's list to TorchScript's, in each call, and no tensor operation is there to gain by.",
    ),
    "same product": (
        "Which part of the loop does not change from round to round?",
        "`x @ (w @ w)` has the same inputs in all rounds: after unrolling, it is computed once.",
    ),
    "integers": (
        "There is no tensor. Who is the better interpreter of integers?",
        "TorchScript executes the same steps as Python, one node at a time, and Python has become fast at small integers.",
    ),
}

MEANS: Hints = {
    "untyped": (
        "TorchScript takes everything without a type for a tensor: every parameter, and every empty list.",
        "Write `sizes: list[int]`, `scale: float | None = None`, and `means: list[Tensor] = []`.",
    ),
    "types": (
        "TorchScript takes a parameter without a type for a tensor. Compare what is passed with what was declared.",
        "`def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None) -> tuple[Tensor, int]:`",
    ),
    "scale": ("`scale` may be a number, or None. What does its type say?", "`scale: float | None = None`, or `Optional[float]`."),
    "does not compile": (
        "The message names the line. Not all of Python is in TorchScript: `try`, for one, is not.",
        "A window that is too long needs no exception: `if size > len(x): short += 1`, and the start of the window is `max(0, len(x) - size)`.",
    ),
    "python": (
        "`torch.jit.ignore` leaves a function to Python. Then there is no graph of it.",
        "Take the decorator away, and write the work so that it can be scripted.",
    ),
    "zero": ("`if scale:` is false for None, and also for the number 0.0. What do you want to know of `scale`?", "`if scale is not None:`"),
    "short": ("Count the windows that are longer than x.", "`if size > len(x): short += 1`"),
    "wrong value": (
        "Take x of 5 numbers and a size of 7: where does the window start?",
        "A window that is longer than x is all of x: `x[max(0, len(x) - size):]`.",
    ),
}

BREAKS: Hints = {
    "graph break": (
        "Each line that is named needs a *value*, now: a number for Python, text for a print, or the answer to an `if`.",
        "Leave `norm` a tensor (no `.item()`), print outside of the function, and replace the `if` by arithmetic on tensors: "
        "`y * torch.clamp(LIMIT / norm, max=1.0)`, or `torch.where`.",
    ),
    "no graph": (
        "`torch.compiler.disable` takes a function out of the compiler's sight. That hides the breaks.",
        "Take the decorator away, and write the function so that it is one graph.",
    ),
    "small": ("For which y must the factor be 1?", "The factor is `LIMIT / norm`, but never more than 1: `torch.clamp(LIMIT / norm, max=1.0)`."),
    "norm": ("Look at when the norm is taken, and at which of the values is returned.", "`norm = y.norm()` before y is scaled; return `y, norm`."),
    "wrong value": ("A large y is scaled to the norm LIMIT.", "`y * torch.clamp(LIMIT / norm, max=1.0)`"),
    "compiled again": ("Something in the function is a Python number that changes with the values.", "Keep everything that depends on x in tensors."),
}

PAID: Hints = {
    "off by one": (
        "The first call is the first of the n: it compiles, and it also does the work of one call.",
        "After n calls: `first_us + (n - 1) * compiled_us` against `n * eager_us`. Solve for n, and round up, in integers: `-(-p // q)`.",
    ),
    "never": (
        "When does the compiled version come nearer from call to call?",
        "Only while `compiled_us < eager_us`. If it does not, and the first call was slower, return None.",
    ),
    "at once": ("n counts from 1.", "If `first_us <= eager_us`, the answer is 1, whatever comes later."),
    "wrong count": (
        "Write down both sums for n = 1, 2, 3 of a small case: first call 10, eager 4, compiled 2.",
        "1 plus what the first call costs more than an eager one, divided by what every later call saves, rounded up.",
    ),
    "raised ZeroDivisionError": ("What do you divide by when both calls take equally long?", "Ask first whether `compiled_us < eager_us`."),
    "endless": ("A loop over n never ends where it is never paid back.", "Ask first whether `compiled_us < eager_us`, or compute n without a loop."),
}
