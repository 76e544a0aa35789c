"""Lesson 08: hints by symptom. The first says where to look, the second is nearly the answer."""

from __future__ import annotations

from .base import Hints

UNDERFLOW: Hints = {
    "zeros counted": ("A gradient that is zero in float32 was not lost by fp16.", "Put all in one tensor and keep `g[g != 0]`, before anything else."),
    "of all": ("Of which numbers is it a share?", "Divide by the number of gradients that are not zero in float32."),
    "mean of means": (
        "A large tensor must count more than a small one.",
        "`torch.cat([g.flatten() for g in gradients])`, then one mean over what is not zero.",
    ),
    "one tensor": ("`gradients` is a list, a tensor for each layer.", "`torch.cat([g.flatten() for g in gradients])`."),
    "no scale": ("What is cast to fp16 is the gradient of the scaled loss.", "`(g * scale).half()`."),
    "scaled after the cast": ("In which order do the loss and the gradients meet the scale?", "First multiply, in float32, then cast: `(g * scale).half()`."),
    "divided": ("The loss is multiplied by the scale, and so is every gradient.", "`(g * scale).half()`."),
    "subnormal": (
        "`finfo(float16).tiny` is the smallest number with full precision, and there are smaller ones.",
        "Let torch round: cast with `.half()`, and compare with 0.",
    ),
    "counts": ("A share lies between 0 and 1.", "`(half == 0).float().mean().item()`."),
    "bf16": ("Which of the two 16-bit formats loses small numbers?", "`torch.float16`, or `.half()`."),
    "swapped": ("First those that become zero.", "`return lost, infinite`."),
    "shares": ("Try one number by hand: `torch.tensor([1e-9]).half()`.", "Cast `g[g != 0] * scale` to fp16; count zeros, count infinities."),
    "no power of two": ("Multiplying by a power of two rounds nothing.", "Start at a power of two, and halve or double."),
    "too large": ("The largest gradient decides, whatever its sign.", "Double the scale as long as `2 * scale * largest` is at most 65504."),
    "too small": ("How far is the largest gradient times your scale from 65504?", "2 ** floor(log2(65504 / largest)); it may be below 1 as well."),
    "changed": ("Do you multiply in place?", "`g * scale` makes a new tensor, `g *= scale` does not."),
}

SCALER: Hints = {
    "loss": ("`multiply` is called before backward.", "`return loss * self.scale`."),
    "steps on infinity": (
        "Look at all gradients before any weight is changed, and at all of their numbers.",
        "`all(g.isfinite().all() for g in gradients)`; otherwise do not call `optimizer.step()`.",
    ),
    "steps on NaN": ("NaN is not infinite, and no comparison with it is true.", "`torch.isfinite` is false for both."),
    "no step": ("When all gradients are finite, the optimizer steps.", "`optimizer.step()`, after the division."),
    "not divided": ("Backward gave gradients of the scaled loss.", "`p.grad /= self.scale` for each parameter, before `optimizer.step()`."),
    "weights": (
        "By which scale are the gradients divided: that of their loss, or the next one? Is anything else done to them?",
        "Divide by `self.scale` first, then step, and change `self.scale` last.",
    ),
    "no back-off": ("A skipped step says that the scale was too large.", "`self.scale *= self.backoff`."),
    "no growth": ("Which steps does your count hold?", "Count good steps; when there are `interval` in a row, multiply by `growth` and begin to count at 0."),
    "grows early": (
        "In a row: what becomes of the count after a skipped step, and after a growth?",
        "Set the count to 0 after a skipped step and after a growth.",
    ),
    "returns": ("The caller wants to know whether the step was skipped.", "`return finite`, a bool."),
    "raised TypeError": ("A parameter that took no part has the gradient None.", "Skip parameters whose `.grad` is None."),
    "raised AttributeError": ("A parameter that took no part has the gradient None.", "Skip parameters whose `.grad` is None."),
}

SPEED: Hints = {
    "no casts": (
        "Where do the 16-bit weights come from in each step?",
        "12 bytes for each weight move: 4 read and 2 written forward, 2 read and 4 written backward. Over `memory_Bps`.",
    ),
    "forward only": ("Gradients are cast back.", "6 bytes forward, 6 backward: 12 for each weight."),
    "casts gain": ("A cast reads one format and writes the other.", "4 + 2 bytes forward, 2 + 4 backward."),
    "rest gains": ("What autocast leaves in float32 gains nothing.", "after = products / ratio + rest + casts."),
    "no rest": ("Before and after, a step has a rest.", "before = products + rest; after = products / ratio + rest + casts."),
    "low end is 1": ("What is the gain of products that wait for memory?", "Half the bytes: 2."),
    "inverted": ("Times as fast: 2 for a step in half of the time.", "before / after."),
    "swapped": ("Low first.", "`return min(ends), max(ends)`."),
    "order": ("Which end is the lower one, when 16 bits are slower than 32?", "`sorted` both ends."),
    "bracket": (
        "Write down the step before and after, in seconds.",
        "before = products + rest; after = products / r + rest + 12 weights / memory_Bps, for r = 2 and r = compute_ratio.",
    ),
}

LAYERS: Hints = {
    "weights": (
        "Autocast casts inputs and copies of weights. What changes the weights themselves?",
        "No `.half()`, `.to(dtype)` or `.bfloat16()` on a module.",
    ),
    "left on": ("Who switches autocast off again?", "Use `with torch.autocast(...)`, not `__enter__` or `set_autocast_enabled`."),
    "features not lower": ("`features` runs once, under autocast.", "`with torch.autocast(x.device.type, dtype=dtype): h = model.features(x)`."),
    "head not lower": ("`head` runs under autocast, too.", "Put it in the same `with` block, after `energy`."),
    "energy calls": ("One call is enough.", "Keep its result in a variable."),
    "energy given 16 bits": ("Switching autocast off changes no tensor. What type has `h`?", "`model.energy(h.float())`."),
    "energy under autocast": (
        "A float32 input is cast again by the first linear layer, as long as autocast is on.",
        "`with torch.autocast(x.device.type, enabled=False): e = model.energy(h.float())`.",
    ),
    "output": ("What follows, a loss for example, wants float32.", "`return out.float()`."),
    "far": ("Is anything clamped, or replaced?", "Compute `energy` in float32; then nothing is infinite."),
    "no gradient": ("Is autograd on?", "No `no_grad`, no `detach`, no `.data`."),
    "gradient lost": ("By how many ways does the output depend on `features`?", "`h` goes into `energy` and into `head`: do not detach it."),
}
