import math

import torch


def numbers():
    return {
        "digits": (65504.0, 65536.0),
        "large": (-(2.0**100), -math.inf),
        "small": (3 * 2.0**-40, 0.0),
        "few digits": (2.0**-20 + 2.0**-26, 2.0**-20),
        "whole": (257, 256),
    }


def frozen_from(step, dtype):
    return 2.0 ** math.ceil(math.log2(2 * step / torch.finfo(dtype).eps))
