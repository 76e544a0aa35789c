"""Cages whose programs end well, with gradients or weights that are wrong, and nobody notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from course_utils import Run

from .keeper import Mended, alike, cage, gap, need, reported

# What the same model ends at without DDP, FSDP or gathering, in one process that does the whole batch. Measured with
# torch 2.15 on an x86 CPU; rounding differs elsewhere.
ONE_PROCESS = {
    "token_means": 0.5180,
    "gathered_without_gradient": 0.0464,
    "own_norms": 2.2890,
    "optimizer_first": 0.0252,
    "half_a_checkpoint": 0.2197,
}
NEAR = 3e-3
SAME = 2e-4  # on one machine, whatever the number of ranks


def _last_of_rank_0(run: Run, key: str) -> Any:
    found = [record[key] for record in run.ranks[0].records if key in record]
    need(found, f"Rank 0 doesn't report `{key}` any more. Leave the line that does: it's what we look at.")
    return found[-1]


def _called(run: Run, word: str) -> bool:
    """Whether every rank called a collective with this word in its name."""
    return all(any(word in name for name in names) for names in reported(run, "calls"))


def _written(run: Run) -> int:
    """How many files the program left in its folder; those of the launcher don't count."""
    files = (path.name for path in Path(run.path).rglob("*") if path.is_file())
    return sum(not name.startswith("rank") and name != "run.json" for name in files)


def _as_one_process(program: Mended, name: str, key: str, what: str) -> float:
    """What the program ends at on one rank. Raises StillIll unless that's what one process gets for the whole batch."""
    value, wanted = reported(program.on(1), key)[0], ONE_PROCESS[name]
    value = value[-1] if isinstance(value, list) else value
    need(
        gap(value, wanted) < NEAR,
        f"On 1 rank, {what} ends at {value:.3f}; one process with the whole batch gets {wanted:.3f}.",
    )
    return value


@cage(
    "thawed_later",
    "wrong",
    "Every rank has a validation loss of its own",
    right="c",
    told={
        "a": "Then they'd differ from the first epoch on. For three epochs, all ranks log the same loss.",
        "b": "DDP copies rank 0's weights to all ranks at the start, and for three epochs the losses are the same.",
        "c": "That's it. DDP looks once, when it wraps the model, at which parameters need a gradient. It leaves the "
        "others out for good, so each rank trains the backbone on its own samples. Wrap the model again once it's "
        "unfrozen, or wrap it before you freeze.",
        "d": "Rounding shows in the seventh digit. Here it's the second, one epoch after the losses were equal.",
    },
    found="8ab1a9aa5a78",
)
def _thawed_later(program: Mended) -> list[str]:
    one = program.on(1)
    (losses,), (norms,) = reported(one, "val_loss"), reported(one, "backbone_norm")
    need(len(losses) == len(norms) == 8, f"The program reports {len(losses)} epochs, and had 8.")
    need(gap(norms[0], norms[2]) == 0, "The backbone moves in the first 3 epochs, when it's meant to be frozen.")
    need(gap(norms[2], norms[-1]) > 1e-3, "The backbone stays as it was after epoch 3: it's meant to train then.")
    for ranks in (2, 3, 4):
        run = program.on(ranks)
        mine = alike(run, "val_loss", "the validation losses", 1e-4)
        samples = sum(reported(run, "own_samples"))
        need(samples == 24, f"{ranks} ranks together train on {samples} samples in an epoch, where there are 24.")
        alike(run, "backbone_norm", "the norms of the backbone", 1e-4)
        need(
            gap(mine, losses) < SAME,
            f"On {ranks} ranks, the last validation loss is {mine[-1]:.3f}; on 1 rank it's {losses[-1]:.3f}.",
        )
    return [
        "2, 3 and 4 ranks share the samples, and have the losses of 1 rank",
        "the backbone is frozen for three epochs, then trains",
    ]


@cage(
    "token_means",
    "wrong",
    "The same batch trains another model on two GPUs",
    right="a",
    told={
        "a": "That's it. Each rank divides by its own number of tokens, and then DDP averages the ranks. So a token on "
        "a rank with few of them counts more. Divide the sum by the tokens of all ranks, times the number of ranks.",
        "b": "Then answers of equal length would show it too. With those, one and two processes agree: DDP averages.",
        "c": "One process has the same padding, and `ignore_index` leaves it out. The ranks' tokens add up to 140.",
        "d": "Each of the 12 answers is on one rank, in every step. The ranks' tokens add up to 140.",
    },
    found="e2806ccb511a",
)
def _token_means(program: Mended) -> list[str]:
    one = _as_one_process(program, "token_means", "loss", "the loss over all tokens")
    for ranks in (2, 3, 4):
        run = program.on(ranks)
        tokens = sum(reported(run, "own_tokens"))
        need(tokens == 140, f"{ranks} ranks together train on {tokens} tokens in a step, where there are 140.")
        loss = alike(run, "loss", "the losses over all tokens", 1e-4)
        need(
            gap(loss, one) < SAME,
            f"On {ranks} ranks, the loss over all tokens ends at {loss:.3f}; on 1 rank it's {one:.3f}.",
        )
    return ["2, 3 and 4 ranks end at the loss of 1 rank, which is the same as before"]


@cage(
    "gathered_without_gradient",
    "wrong",
    "All pairs are in the loss, and it's still worse",
    right="d",
    told={
        "a": "`all_gather` keeps the order of the ranks, or the first loss would be off, and it's right: 2.348.",
        "b": "Each query meets the keys of all 24 pairs, or the first loss would be lower, and it's right: 2.348.",
        "c": "The batch is the same 24 pairs, and so is the rate. The gradient differs, in the first step already.",
        "d": "That's it. What `dist.all_gather` writes has no gradient, so nothing pushes the keys, only the queries. "
        "`torch.distributed.nn.functional.all_gather` sends gradients back to the ranks that the keys came from.",
    },
    found="c5d277580e9e",
)
def _gathered_without_gradient(program: Mended) -> list[str]:
    one = _as_one_process(program, "gathered_without_gradient", "loss", "the loss")
    for ranks in (2, 3, 4):
        run = program.on(ranks)
        pairs = sum(reported(run, "own_pairs"))
        need(pairs == 24, f"{ranks} ranks together encode {pairs} pairs in a step, where there are 24.")
        loss = alike(run, "loss", "the losses", 1e-4)
        need(gap(loss, one) < SAME, f"On {ranks} ranks, the loss ends at {loss:.3f}; on 1 rank it's {one:.3f}.")
    return ["2, 3 and 4 ranks end at the loss of one process", "each pair is encoded once in a step"]


@cage(
    "own_norms",
    "wrong",
    "The gradient norm depends on whom you ask",
    right="b",
    told={
        "a": "FSDP has averaged over all samples before anyone looks. Square the norms of two ranks and add them up: "
        "that's the square of what one process logs.",
        "b": "That's it. Under FSDP each rank has a part of the gradient, so it must add up the squares of all ranks "
        "before it takes the root. `torch.nn.utils.clip_grad_norm_` does that for DTensors.",
        "c": "All ranks set the same seed before they make the model, and FSDP keeps one copy, in parts.",
        "d": "`backward` returns when the gradients are averaged. Square the norms of two ranks and add them up: "
        "that's the square of what one process logs.",
    },
    found="ac83a46a6e34",
)
def _own_norms(program: Mended) -> list[str]:
    one = _as_one_process(program, "own_norms", "loss", "the loss")
    (norms,) = reported(program.on(1), "norms")
    for ranks in (2, 3):
        run = program.on(ranks)
        mine = alike(run, "norms", "the gradient norms in the logs", 1e-4)
        need(
            gap(mine[0], norms[0]) < SAME,
            f"On {ranks} ranks, the first gradient norm is {mine[0]:.3f}; on 1 rank it's {norms[0]:.3f}.",
        )
        loss = alike(run, "loss", "the losses", 1e-4)
        need(gap(loss, one) < SAME, f"On {ranks} ranks, the loss ends at {loss:.3f}; on 1 rank it's {one:.3f}.")
    return ["2 and 3 ranks log the gradient norm of 1 rank", "the loss ends where clipping on 1 rank takes it"]


@cage(
    "optimizer_first",
    "wrong",
    "It trains, and the loss stays where it is",
    right="a",
    told={
        "a": "That's it. `fully_shard` gives the model new parameters. The optimizer still has the old ones, which "
        "never get a gradient, so it skips them. Make the optimizer after `fully_shard`.",
        "b": "AdamW moves each weight by about the learning rate, 0.02, in its first step. The loss would show it.",
        "c": "Then the gradients would be zero, or None. Look at what the model's parameters have.",
        "d": "If gradients weren't averaged, each rank would still take steps, and the loss would change.",
    },
    found="8848b57fa1c6",
)
def _optimizer_first(program: Mended) -> list[str]:
    one = _as_one_process(program, "optimizer_first", "losses", "the loss")
    for ranks in (2, 3):
        run = program.on(ranks, watch=[])
        held = sum(reported(run, "held"))
        need(held == 337, f"{ranks} ranks together hold {held} parameters of a model that has 337.")
        need(_called(run, "reduce_scatter"), f"On {ranks} ranks, no gradients are spread over the ranks.")
        losses = alike(run, "losses", "the losses", 1e-4)
        need(
            gap(losses[-1], one) < NEAR,
            f"On {ranks} ranks, the loss ends at {losses[-1]:.3f}; on 1 rank it's {one:.3f}.",
        )
    return ["the loss falls, on 2 and 3 ranks as on 1", "each parameter is held by one rank"]


@cage(
    "half_a_checkpoint",
    "dies",
    "The checkpoint is there, and nobody can load it",
    right="d",
    told={
        "a": "The file is whole, and `torch.load` reads it. The error comes one call later.",
        "b": "Both models come from `make_model`, and the error names the same shapes on both sides.",
        "c": "An optimizer has a state of its own, and the model doesn't need it.",
        "d": "That's it. Under FSDP2 `state_dict()` has this rank's shards, each in a DTensor that knows the full "
        "shape. Gather first, on all ranks: `get_model_state_dict` with `full_state_dict=True`. Then rank 0 saves.",
    },
    found="ef2909f5b057",
)
def _half_a_checkpoint(program: Mended) -> list[str]:
    program.on(2)  # so that an error names a line of the cell
    for ranks in (2, 3):
        run = program.on(ranks, watch=[])
        need(_called(run, "reduce_scatter"), f"On {ranks} ranks, the model isn't sharded any more.")
        trained, loaded = (_last_of_rank_0(run, key) for key in ("trained_loss", "loaded_loss"))
        wanted = ONE_PROCESS["half_a_checkpoint"]
        need(gap(trained, wanted) < NEAR, f"On {ranks} ranks, training ends at {trained:.3f}, and did at {wanted:.3f}.")
        need(
            gap(trained, loaded) < 1e-4,
            f"On {ranks} ranks, the loaded model has a loss of {loaded:.3f}, and the trained one {trained:.3f}.",
        )
        writers = sum(saves > 0 for saves in reported(run, "saves"))
        need(writers <= max(1, _written(run)), f"On {ranks} ranks, {writers} of them write one file at the same time.")
    return ["a plain model loads the file of 2 and of 3 ranks, with the loss of the trained one"]
