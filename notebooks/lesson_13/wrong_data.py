"""Cages whose programs end well, with wrong data, numbers or weights that nobody notices."""

from __future__ import annotations

from typing import Any

from course_utils.for_lessons import counted

from .keeper import Mended, alike, cage, gap, need, reported, split

# Each rank starts as a Python of its own, as torchrun starts it. Ranks that are forked from one share its hash seed.
OWN_HASHES: dict[str, Any] = {"engine": "cold", "env": {"PYTHONHASHSEED": None}}
METRICS = ("loss", "accuracy", "top3", "confidence", "entropy", "tokens")

# The weights and the bias of `late_load` after its 20 steps on one rank.
RESUMED = [1.446, -0.948, -1.236, 5.115]


@cage(
    "shuffled_metrics",
    "wrong",
    "Each run logs other averages",
    right="c",
    told={
        "a": "Dropout would move every number a little. This model has none, and here `tokens`, which doesn't depend "
        "on the model, moves by far more than a little.",
        "b": "The order of a float sum changes its last digits. Compare `accuracy` on the two ranks: can rounding do "
        "that?",
        "c": "That's it. `keys() - {...}` is a set, and strings in a set have another order in each process. "
        "`all_reduce` knows no names: it adds up whatever each rank brings first. Give the names an order that "
        "all ranks share.",
        "d": "The seed is 0 on each rank, and each takes every n-th sample. Add up the six averages of a rank, in each "
        "run: other samples would change the total.",
    },
    found="7105e9541584",
    options=OWN_HASHES,
)
def _shuffled_metrics(program: Mended) -> list[str]:
    alone = program.on(1)
    for ranks in (2, 3):
        run = program.on(ranks, **OWN_HASHES)
        for name in METRICS:
            average, whole = alike(run, name, f"the averages `{name}`", 1e-6), reported(alone, name)[0]
            need(
                gap(average, whole) <= 0.002,
                f"On {ranks} ranks, `{name}` is {average}, where all samples together give {whole}.",
            )
    return ["2 and 3 ranks log the same six averages", "they're those of all samples on 1 rank"]


@cage(
    "same_noise",
    "wrong",
    "More ranks, and the gradient is as noisy as before",
    right="a",
    told={
        "a": "That's it. Each rank is a process with random numbers of its own, and the same seed makes them all draw "
        "the same. Their samples differ, their noise doesn't. Keep the run repeatable, and give each rank another "
        "seed.",
        "b": "Then the losses of two ranks in one step would be equal too. Are they?",
        "c": "Look at the losses of one step, which are each rank's own. DDP works on gradients during backward, and "
        "the noise was drawn before that.",
        "d": "DDP copies parameters and buffers from rank 0. The state of the random numbers is neither, so look for "
        "another reason why they're equal at the first step.",
    },
    found="d8e017c77f6a",
)
def _same_noise(program: Mended) -> list[str]:
    for ranks in (2, 3):
        run = program.on(ranks)
        split(run, "seen", range(96), "sample")
        alike(run, "weights", "the weights", 1e-6)
        for key, what in (("times", "`t`"), ("noises", "noise")):
            drawn = reported(run, key)
            need(
                all(len(own) == 96 // 4 // ranks for own in drawn), f"On {ranks} ranks, `{key}` isn't a number a step."
            )
            need(
                all(len({*own}) == len(own) for own in drawn),
                f"On {ranks} ranks, a rank draws the same {what} in two of its steps.",
            )
            need(
                len({number for own in drawn for number in own}) == sum(map(len, drawn)),
                f"On {ranks} ranks, some {what} of one rank is the same as on another, in this step or another one.",
            )
    again = program.on(3)
    need(
        all(reported(run, key) == reported(again, key) for key in ("times", "noises", "seen")),
        "Two runs of 3 ranks draw different numbers. The run was repeatable, and should stay so.",
    )
    return [
        "on 2 and 3 ranks, no two ranks draw the same",
        "each sample is seen once",
        "two runs draw the same numbers",
    ]


@cage(
    "own_split",
    "wrong",
    "It guesses coin flips, with several ranks only",
    right="d",
    told={
        "a": "It does: the loss comes to 0. But by heart helps only with samples it was trained on, and on one rank "
        "the accuracy is what chance gives.",
        "b": "`DistributedSampler` pads a list that doesn't divide, with samples of that same list. Here 72 and 24 "
        "divide by 2, 3 and 4.",
        "c": "The logit is compared with 0, on every number of ranks. And the sum of the hits is divided by the length "
        "of the validation set, once.",
        "d": "That's it. `random_split` takes its permutation from the global random numbers, which differ by rank. So "
        "one rank trains on what another validates with, and DDP shares what it learns. Give the split a "
        "generator with a seed that all ranks share.",
    },
    found="8b69517c997d",
    ranks=3,
)
def _own_split(program: Mended) -> list[str]:
    for ranks in (2, 3, 4):
        run = program.on(ranks)
        trained, validated = ({i for own in reported(run, key) for i in own} for key in ("trained", "validated"))
        where, both = f"On {ranks} ranks", trained & validated
        need(
            not both, f"{where}, {len(both)} of {len(validated)} validation samples are in the training set of a rank."
        )
        need(
            (len(trained), len(validated)) == (72, 24),
            f"{where}, {len(trained)} samples are trained with and {len(validated)} validated, not 72 and 24.",
        )
        split(run, "trained", sorted(trained), "sample")
        alike(run, "accuracy", "the accuracy")
        augmented = reported(run, "augmented")
        need(
            len({*augmented}) == ranks,
            f"{where}, some ranks now draw the same augmentation. Each had its own, and should keep it.",
        )
    return [
        "on 2, 3 and 4 ranks, no rank trains with a validation sample",
        "72 samples are trained with, once in an epoch, and 24 validated",
        "every rank still augments in its own way",
    ]


@cage(
    "other_world",
    "wrong",
    "The learning rate never comes down",
    right="b",
    told={
        "a": "It's called after each step of the optimizer, on one rank and on four. On one rank the rate comes to 0.",
        "b": "That's it. The schedule is made for the steps of one rank with all the data. Each rank has its share, so "
        "training ends long before the schedule does. `len(loader)` knows the share: count with that.",
        "c": "It's 3 epochs in both runs, and on one rank they're enough. What else differs in the two logs?",
        "d": "Look at the table below the log: all four ranks end with the same rate.",
    },
    found="1aedaad75d2d",
    ranks=4,
)
def _other_world(program: Mended) -> list[str]:
    for ranks in (1, 2, 3, 4):
        where, run = f"On {counted(ranks, 'rank')}", program.on(ranks)
        rates = alike(run, "rates", "the learning rates")
        seen = [i for own in reported(run, "seen") for i in own]
        need({*seen} == {*range(100)}, f"{where}, {len({*seen})} of 100 samples were trained with.")
        # a sampler pads each epoch with less than a sample for each rank
        need(
            300 - 3 * ranks < len(seen) < 300 + 3 * ranks,
            f"{where}, training took {len(seen)} samples in 3 epochs, all ranks together; it should be about 300.",
        )
        need(len(rates) > 9, f"{where}, there are only {counted(len(rates), 'step')}.")
        need(gap(max(rates), 0.1) < 0.005, f"{where}, the rate comes up to {max(rates):.4f}; its peak was to be 0.1.")
        need(rates[-1] < 0.002, f"{where}, the rate ends at {rates[-1]:.4f}. It should come down to zero.")
        climb = rates.index(max(rates)) / len(rates)
        need(0.1 < climb < 0.3, f"{where}, the rate climbs for {climb:.0%} of all steps; it was to be 20%.")
        need(
            sum(rate < 0.002 for rate in rates) < 0.25 * len(rates),
            f"{where}, the rate is down long before the last step.",
        )
    return [
        "on 1 to 4 ranks, the rate climbs for a fifth of the steps, and ends at zero",
        "each rank still trains with its share, for 3 epochs",
    ]


@cage(
    "late_load",
    "wrong",
    "It resumes, and the loss goes up",
    right="c",
    told={
        "a": "Rank 0's first loss is the one that was saved, so the file is whole, and read well. And the others?",
        "b": "A rate that's too high would show on one rank too. There the loss only falls.",
        "c": "That's it. DDP copies rank 0's weights once, in its constructor. After that it averages gradients and "
        "copies buffers, so weights that rank 0 loads later stay there. Load before, or on every rank. An "
        "optimizer's state DDP never copies.",
        "d": "The parts are nearly alike: on 1 rank, the first loss of all of them is 6.4. Other samples don't explain "
        "31.",
    },
    found="d6fddf47d109",
)
def _late_load(program: Mended) -> list[str]:
    alone = program.on(1)
    wanted, first = reported(alone, "weights")[0], reported(alone, "first")[0]
    need(gap(first, 6.4146) < 0.01, f"On 1 rank, the first loss is {first:.3f}; with last week's weights it's 6.415.")
    need(
        gap(wanted, RESUMED) < 0.01,
        "On 1 rank, training goes on in another way than it did: weights and momentum come from the checkpoint.",
    )
    for ranks in (2, 3):
        where, run = f"On {ranks} ranks", program.on(ranks)
        losses = reported(run, "first")
        for rank, loss in enumerate(losses):
            need(
                loss < 8,
                f"{where}, rank {rank} begins with a loss of {loss:.1f}: it doesn't start from the checkpoint.",
            )
        mean = sum(losses) / ranks
        need(gap(mean, first) < 0.01, f"{where}, the ranks begin with a loss of {mean:.3f}; it was {first:.3f}.")
        weights = alike(run, "weights", "the weights after 20 steps", 1e-5)
        need(
            gap(weights, wanted) < 1e-3,
            f"{where}, the weights after 20 steps aren't those of 1 rank, though all start from the same checkpoint.",
        )
    return ["2 and 3 ranks begin with the loss that was saved", "their weights stay equal, and are those of 1 rank"]


@cage(
    "half_reduced",
    "wrong",
    "Two ranks, two learning rates",
    right="b",
    told={
        "a": "DDP averages them during backward, so both ranks have the same. A schedule doesn't look at gradients "
        "anyway: what does it look at?",
        "b": "That's it. `reduce` gives the sum to rank 0 alone. The others go on with their own number, or with a "
        "part of the sum, and their schedulers decide by that. Once the rates differ, the weights do. "
        "`all_reduce` gives everybody the sum.",
        "c": "Then the losses would be equal, and only the rates would differ. Compare the losses.",
        "d": "All samples are cut into parts, one for each rank, so none is missing and none comes twice. Whose "
        "sum is it that rank 1 goes by?",
    },
    found="b32839c0393a",
)
def _half_reduced(program: Mended) -> list[str]:
    alone = program.on(1)
    wanted, expected, schedule = (reported(alone, key)[0] for key in ("weights", "losses", "rates"))
    need(
        len(schedule) == 24 and schedule[0] > 0.2 and schedule[-1] < 0.01,
        "On 1 rank, the learning rate doesn't come down any more, from 0.3 in 24 epochs, when the loss stays.",
    )
    for ranks in (2, 3):
        where, run = f"On {ranks} ranks", program.on(ranks)
        rates = alike(run, "rates", "the learning rates", 1e-12)
        need(
            gap(reported(run, "losses")[0], expected) < 1e-4,
            f"{where}, the validation loss of rank 0 isn't the mean over all samples, which 1 rank has.",
        )
        need(gap(rates, schedule) < 1e-9, f"{where}, the learning rate comes down in other epochs than on 1 rank.")
        weights = alike(run, "weights", "the weights", 1e-6)
        need(gap(weights, wanted) < 1e-3, f"{where}, the weights at the end aren't those of 1 rank.")
    return ["2 and 3 ranks lower their rates in the same epochs as 1 rank", "their weights stay equal"]
