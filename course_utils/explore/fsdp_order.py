"""What FSDP gathers, computes, drops and scatters, moment by moment, and what one rank then holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """A moment of a step. `whole` are the blocks whose weights every rank has; `arriving` is the one that's gathered
    into a buffer, `gradient` the one whose whole gradient lies here, `leaving` the one whose gradients are scattered;
    of those in `scattered` a rank keeps its part of the sum. With `buffer` that of the last gather still lies there."""

    name: str
    says: str
    phase: str = ""
    computing: int | None = None
    whole: frozenset[int] = frozenset()
    arriving: int | None = None
    gradient: int | None = None
    leaving: int | None = None
    scattered: frozenset[int] = frozenset()
    buffer: bool = False

    def memory(self, ranks: int, blocks: int) -> dict[str, float]:
        """What a rank holds, in times the weights of the model; a gradient is as large as its weight."""
        return {
            "own weights": 1 / ranks,
            "gathered": (len(self.whole) + (self.buffer or self.arriving is not None)) / blocks,
            "own gradients": len(self.scattered) / blocks / ranks,
            "whole gradients": ((self.gradient is not None) + (self.leaving is not None)) / blocks,
        }


def order(blocks: int, keep: bool = False) -> list[Frame]:
    """The moments of a step; `keep` is `reshard_after_forward=False`. As torch 2.10 to 2.13 do it: gathering fills a
    buffer, from which the weights are copied; forward keeps it until the next one, which is then under way
    (`FSDPParamGroup.wait_for_unshard`). Backward gathers the block before while it computes, and what a scatter reads
    lies there until the next begins (`post_backward`)."""
    last = blocks - 1
    found = [Frame("start", "Every rank holds its part of each block, and nothing else")]
    found.append(Frame("gather 0", "All ranks send their parts of block 0, and get the others'", "forward",
                       whole=frozenset({0}), arriving=0))  # fmt: skip
    for i in range(blocks):
        then = f", while block {i + 1} is gathered" if i < last else ", the last one"
        dropped = f"Block {i - 1} is dropped. " if i and not keep else ""
        found.append(Frame(f"F{i}", f"{dropped}Block {i} computes{then}", "forward", i,
                           frozenset(range(i + 1) if keep else {i}), i + 1 if i < last else None,
                           buffer=i == last))  # fmt: skip
    if not keep:
        found.append(Frame(f"gather {last}", f"Forward has ended, block {last} was dropped; backward gathers it again",
                           "backward", whole=frozenset({last}), arriving=last))  # fmt: skip
    for i in reversed(range(blocks)):
        meanwhile = [f"the gradients of block {i + 1} are scattered"] * (i < last)
        meanwhile += [f"block {i - 1} is gathered"] * (i > 0 and not keep)
        while_ = f", while {' and '.join(meanwhile)}" if meanwhile else ""
        found.append(Frame(f"B{i}", f"Backward through block {i}{while_}", "backward", i,
                           frozenset(range(i + 1) if keep else {i}), i - 1 if i and not keep else None, i,
                           i + 1 if i < last else None, frozenset(range(i + 1, blocks))))  # fmt: skip
    every = frozenset(range(blocks))
    found.append(Frame("scatter 0", "The gradients of block 0 are scattered: each rank gets its part of the sum",
                       "backward", gradient=0, leaving=0, scattered=every - {0}))  # fmt: skip
    found.append(Frame("update", "Each rank updates its part, with its part of the gradients", scattered=every))
    return found


def peak(frames: list[Frame], phase: str, ranks: int, blocks: int) -> float:
    """The most that a rank holds in a phase, in times the weights of the model."""
    return max(sum(frame.memory(ranks, blocks).values()) for frame in frames if frame.phase == phase)
