"""The cost model: what a run should cost, from numbers that were measured or published. Pure functions, no torch.

Times are in seconds, sizes in bytes, rates per second. Every function names the source of its formula.
"""

from .scaling import amdahl, data_parallel_step, efficiency, gustafson

__all__ = ["amdahl", "data_parallel_step", "efficiency", "gustafson"]
