"""What lesson 11 shows. Each function takes what a cell has run, says in words what came out, and checks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_utils import Run, Samples, Verdict, claim, figures, more_checks
from course_utils.for_lessons import (
    Figure,
    Program,
    Table,
    Words,
    as_number,
    bet,
    cluster,
    disturbed,
    figure_first,
    guessed,
    say,
    say_disturbed,
)

from .far import show_bert, show_published  # noqa: F401
from .left_out import left_out_table
from .two_nodes import LINK, SAMPLES, USUAL, Nodes, show_here, show_link, show_step, show_survived, take_node_away  # noqa: F401

HERE = Path(__file__).resolve().parents[1]
JOB = HERE / "take_home" / "11_job.sbatch"
TRAIN = HERE / "take_home" / "11_train.py"

ASKED = 11  # the rank whose LOCAL_RANK the page asks for
LINKS = {"ethernet25": "25 Gbit/s", "ethernet100": "100 Gbit/s", "ndr400": "8 x 400 Gbit/s"}
FORWARD = 1 / 3  # of computing: backward multiplies twice as much
TIMEOUT_S = 3.0  # of the sums in section 4; the launcher ends a rank that says nothing for half a second longer
NCCL_S, SLURMD_S = 600, 300  # torch's default_pg_nccl_timeout; SlurmdTimeout, slurm.conf(5)
BIG_JOB = (64, 8)  # nodes, and GPUs of each, for what waiting costs
IMAGES, EPOCHS = 1_281_167, 90  # of ImageNet's training set; of a usual training of ResNet-50

Guess = float | int | str | EllipsisType | None
ABOVE_0 = "a number above 0, such as 12"


def whole(guess: Guess, most: float = float("inf")) -> Guess:
    """The bet, but no bet that could be right if it's a number that isn't whole, or too large."""
    number = as_number(guess)
    return guess if number is None or (number.is_integer() and number <= most) else "not whole"


# --- 1: who is who ----------------------------------------------------------------------------------------------------


def show_hello(run: Run, guess: Guess = ...) -> None:
    """The LOCAL_RANK of one rank of the second node, and that all sixteen met."""
    (local,) = run.ranks[ASKED].values("local_rank")
    (node,) = run.ranks[ASKED].values("node")
    n = run.world_size
    answer = bet(
        whole(guess),
        local,
        close=f"its node counts its GPUs from 0, and rank {ASKED - local} is the first there.",
        over=f"Its node has {n // 2} GPUs, numbered from 0.",
        under=f"Its node's first rank is {ASKED - local}, so count from there.",
        within=0,
        traps={
            ASKED: "That's its RANK. Its node has just eight GPUs, numbered from 0.",
            local + 1: "They're numbered from 0, so its node's fourth GPU is number 3.",
        },
        kind="a whole number, 0 or more",
    )
    say(f"Rank {ASKED} lives on node {node}, and its LOCAL_RANK is {local}. {answer}")
    claim("each node counts its ranks from 0", run.values("local_rank") == [r % (n // 2) for r in range(n)])
    more_checks({"all ranks have met, over both nodes": run.values("total") == [n] * n})


# --- 2: what a second node brings -------------------------------------------------------------------------------------


def speedup(one: Run, run: Run, gpus: int) -> float:
    """How many times the images per second of one GPU so many have, each with the same batch."""
    return gpus * one.value("step_s") / run.value("step_s")


def show_one_node(one: Run, eight: Run) -> None:
    """What the eight GPUs of a node are worth."""
    say(
        f"One GPU takes {_ms(one.value('step_s'))} for a step. With eight it's {_ms(eight.value('step_s'))}, for eight"
        f" times the images: {speedup(one, eight, 8):.1f} times as fast. Without the sum it computes for"
        f" {_ms(one.value('compute_s'))}."
    )
    more_checks({"inside a node hardly anything is lost": speedup(one, eight, 8) > 7.8})


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@figure_first
def show_two_nodes(one: Run, eight: Run, two: Mapping[str, Run], guess: Guess = ...) -> Figure:
    """The speed-up of eight GPUs in a node, and of sixteen in two nodes over three links."""
    node = speedup(one, eight, 8)
    gains = {LINKS[link]: speedup(one, run, 16) for link, run in two.items()}
    slow, (fast, most) = next(iter(gains.values())), list(gains.items())[-1]
    answer = bet(
        guess,
        slow,
        close="you've met such a cable before, or worked it out.",
        over="All sixteen wait for the cable, in every step.",
        under="It's bad, but not that bad.",
        unit=" times",
        within=0.12,
        traps={
            (15.5, 16.5): "That's what a fast network brings. All sixteen wait for this one.",
            (11.5, 15.5): "You thought of the cable, and it's worse. All sixteen wait for it, in every step.",
            (8.2, 9.2): "That's if the whole step hides the sum. But it can't begin before backward.",
            (7.75, 8.2): "As if the second node weren't there. It's even a little worse.",
            (5.0, 6.0): "That's if the sum begins after backward. A part of it is sent meanwhile.",
            (1.5, 2.5): "Twice as fast as one *node* would be 16 here.",
            (0.5, 1.5): "If you meant times one *node*, you're near. But one GPU is asked for.",
        },
        kind=ABOVE_0,
        positive=True,
    )
    others = ", and ".join(f"{gain:.1f} over {link}" for link, gain in list(gains.items())[1:])
    than = "slower" if slow < node else "no slower"
    say(f"{slow:.1f} times: sixteen GPUs are {than} than the eight of one node. {answer}")
    say(f"The same program, with a better cable: {others}.")
    claim("over 25 Gbit/s, sixteen GPUs on two nodes are slower than eight on one", slow < node, headline=True)
    more_checks(
        {"the faster the link, the better": list(gains.values()) == sorted(gains.values()), "all there": most > 15}
    )
    runs = [eight, *two.values()]
    bars = {"8, in one node": node, **{f"16, {link}": gain for link, gain in gains.items()}}
    return figures.bars(
        {
            name: Samples([gain], "speed-up", run.provenance)
            for (name, gain), run in zip(bars.items(), runs, strict=True)
        },
        ylabel="times as fast as one GPU",
        title=f"Two nodes: {slow:.1f} times one GPU over 25 Gbit/s, {most:.1f} over {fast}",
    )


def on_paper(compute_s: float, nbytes: float, link_Bps: float, nodes: int = 2) -> float:
    """Seconds of a DDP step on several nodes: forward, then backward or the gradients' way over a node's link."""
    backward_s = (1 - FORWARD) * compute_s
    return compute_s - backward_s + max(backward_s, nbytes * 2 * (nodes - 1) / nodes / link_Bps)


def show_on_paper(one: Run, two: Mapping[str, Run]) -> Table:
    """The rule of the page for each link, next to what was emulated."""
    compute_s, nbytes = one.value("compute_s"), one.value("nbytes")
    backward_s = (1 - FORWARD) * compute_s
    rows, gaps = [], []
    for link, run in two.items():
        rate = cluster({"count": 16, "device": "H100", "between": link}).between.busbw_Bps
        paper_s = on_paper(compute_s, nbytes, rate)
        gaps.append(paper_s / run.value("step_s") - 1)
        times = (nbytes / rate, backward_s, paper_s, run.value("step_s"))
        rows.append((LINKS[link], f"{rate / 1e9:.1f} GB/s", *map(_ms, times)))
    say(
        f"The gradients are {nbytes / 1e6:.0f} MB, and two nodes send them once. Computing takes {_ms(compute_s)}, and"
        f" two thirds of it are backward's {_ms(backward_s)}. The emulator counts with the same links, and adds what"
        f" the rule leaves out: {max(map(abs, gaps)):.0%} of a step at most. {_ms(one.value('step_s') - compute_s)} of"
        " that DDP takes on one GPU, too."
    )
    return Table(("link", "carries", "the sum", "backward", "step, on paper", "step, emulated"), rows, "lrrrrr")


# --- 3: the batch file ------------------------------------------------------------------------------------------------


def show_left_out() -> Table | None:
    """What a real Slurm did with the batch file when a line of it was missing, as somebody recorded it."""
    return left_out_table()


def batch_file() -> Program:
    """The whole batch file, in plain Slurm and torchrun."""
    return Program(JOB)


# --- 4: a silent node -------------------------------------------------------------------------------------------------


def noticed_s(run: Run) -> float | None:
    """After how long rank 0 noticed that the other was gone; None if it was ended before it could tell."""
    return next((record["waited_s"] for record in run.ranks[0].records if "waited_s" in record), None)


_KILLED: dict[str, Any] = {
    "close": "its system closed the connection for it.",
    "over": "Its system is alive, and closes the connection at once.",
    "within": (0.0, 1.0),
    "traps": {
        "never": "its system is alive, and closes the connection at once.",
        TIMEOUT_S: "That's how long a silent one takes. A killed process has a system that closes its connections.",
    },
}
_FROZEN: dict[str, Any] = {
    "close": "the timeout, and not a moment earlier.",
    "over": "The timeout ends it.",
    "traps": {"never": "so it would be without a timeout."},
    "under": "Who should have told rank 0? To it, the other is just slow.",
}


def show_silent(killed: Run, frozen: Run, guess_killed: Guess = ..., guess_frozen: Guess = ...) -> None:
    """After how long rank 0 noticed that rank 1 had been killed, and that it had been frozen; and what that costs."""
    waited = {"killed": noticed_s(killed), "frozen": noticed_s(frozen)}
    for (name, seconds), guess, words in zip(
        waited.items(), (guess_killed, guess_frozen), (_KILLED, _FROZEN), strict=True
    ):
        if seconds is None:
            stays = " Your bet stays open." * guessed(guess)
            say(f"*{name.capitalize()}:* rank 0 was ended before it could tell: this machine is busy.{stays}")
            continue
        answer = bet(guess, seconds, unit=" s", kind='seconds, 0 or more, or "never"', **words)
        say(f"*{name.capitalize()}:* rank 0 noticed after {seconds:.1f} s. {answer}")
    nodes, each = BIG_JOB
    hours = {who: nodes * each * seconds / 3600 for who, seconds in (("NCCL", NCCL_S), ("Slurm", SLURMD_S))}
    say(
        f"With NCCL a sum may take {NCCL_S // 60} minutes by default. On {nodes} nodes with {each} GPUs that's"
        f" {hours['NCCL']:.0f} GPU hours for a frozen process. For a node without power it's about"
        f" {hours['Slurm']:.0f}, or somewhat more: Slurm gives it {SLURMD_S // 60} minutes, and looks now and then."
    )
    _claim_silence(waited["killed"], waited["frozen"], disturbed(killed, frozen))


def _claim_silence(killed_s: float | None, frozen_s: float | None, why: str) -> None:
    """Claim that a killed rank is noticed early and a silent one late; a busy machine proves nothing."""
    sentence = "a killed rank is noticed before the timeout, and a silent one when it has passed"
    again = "run both cells again"
    if killed_s is None or frozen_s is None:
        claim(sentence, None, why=f"a rank was ended before it could tell; {again}")
        return
    holds = killed_s < 0.75 * TIMEOUT_S and frozen_s > 0.95 * TIMEOUT_S
    if why and not holds:
        say_disturbed(why, "when a rank notices", again=again)
        claim(sentence, Verdict("not shown", why[0].lower() + why[1:]))
        return
    claim(sentence, holds)


# --- 5: an application for hours --------------------------------------------------------------------------------------


def application(scaling: Mapping[int, Run], batch: int) -> list[tuple[int, float, float, float, float]]:
    """Rows for the table: GPUs, seconds of a step, speed-up and efficiency against the fewest GPUs, GPU hours of the
    whole training."""
    first = min(scaling)
    reference_s = scaling[first].value("step_s")
    steps = EPOCHS * IMAGES / batch
    rows = []
    for n in sorted(scaling):
        step_s = scaling[n].value("step_s")
        gain = reference_s / step_s
        rows.append((n, step_s, gain, gain * first / n, n * steps * step_s / 3600))
    return rows


def show_application(scaling: Mapping[int, Run], batch: int, guess: Guess = ..., price: float = 2.50) -> Table:
    """The table of a strong scaling analysis, and how many times as much the most GPUs cost."""
    rows = application(scaling, batch)
    (first, *_, hours), (most, step_s, gain, efficiency, dear) = rows[0], rows[-1]
    computes = scaling[most].value("compute_s") / step_s
    answer = bet(
        guess,
        dear / hours,
        close="you've paid such a bill before.",
        over=f"They are faster: {gain:.0f} times. Just not {most // first} times.",
        under=f"Each GPU computes for {computes:.0%} of its step, and on few images. You pay for all of it.",
        unit=" times",
        traps={
            (0, 1): "More GPUs are faster, but the work doesn't shrink.",
            1: "It's the same work, but you also pay for the waiting.",
            most / first: f"Then they'd be no faster than {first}. They are, {gain:.0f} times.",
        },
        kind="a number above 0, such as 2",
        positive=True,
    )
    say(
        f"{dear / hours:.0f} times as many. {answer} {most:,} GPUs are {gain:.1f} times as fast as {first}, where"
        f" {most // first} would be ideal: an efficiency of {efficiency:.0%}."
    )
    claim(f"{most:,} GPUs take several times the GPU hours of {first}, for the same training", dear > 3 * hours)
    more_checks({"each further GPU helps, if only a little": [r[2] for r in rows] == sorted(r[2] for r in rows)})
    return Table(
        ("GPUs", "images each", "step", "speed-up", "efficiency", "hours", "GPU hours", "price"),
        [
            (f"{n:,}", f"{batch // n}", _ms(step_s), f"{gained:.2f}", f"{share:.0%}",
             f"{total / n:.2f}", f"{total:.0f}", f"{total * price:,.0f}")
            for n, step_s, gained, share, total in rows
        ],
        "rrrrrrrr",
        note=f"Emulated H100 over 100 Gbit/s. Each GPU hour costs {price:.2f}.",
    )  # fmt: skip


# --- 6: the wrong GPU -------------------------------------------------------------------------------------------------


def show_wrong(run: Run, guess: Guess = ...) -> None:
    """How many ranks got the GPU of their own number."""
    got = [rank.rank for rank in run.ranks if any("has" in record for record in rank.records)]
    n, half = run.world_size, run.world_size // 2
    answer = bet(
        whole(guess, n),
        half,
        close="and the program ends all the same, since a barrier needs everybody.",
        over=f"On the second node there's no cuda:{half}.",
        under="On the first node it works as it always has.",
        within=0,
        traps={n: f"That's what the author thought. On the second node there's no cuda:{half}."},
        kind=f"a whole number from 0 to {n}",
    )
    say(f"{half} ranks can have one, 0 to {half - 1}: those of the first node. {answer}")
    others = "no rank of the second node got a GPU"
    late = half - len([rank for rank in got if rank < half])
    if late:
        say(f"Here {late} of them were ended before they could say so: this machine is busy.")
        more_checks({others: not any(rank >= half for rank in got)})
    else:
        more_checks({f"the first node's ranks got their GPUs, and {others}": got == list(range(half))})


# --- 7 and 8 ----------------------------------------------------------------------------------------------------------


def take_home() -> Program:
    """A trainer for the batch file, in plain PyTorch."""
    return Program(TRAIN)


def what_you_saw(
    hello: Run, one: Run, eight: Run, two: Mapping[str, Run], killed: Run, frozen: Run, scaling: Mapping[int, Run]
) -> Words:
    """The lesson in the reader's own numbers."""
    gains = {LINKS[link]: speedup(one, run, 16) for link, run in two.items()}
    (link, slow), (better, fast) = list(gains.items())[0], list(gains.items())[-1]
    rows = application(scaling, 1)
    most, times = rows[-1][0], rows[-1][-1] / rows[0][-1]
    waited = [
        f"{name} after {seconds:.1f} s"
        for name, seconds in (("a killed neighbour", noticed_s(killed)), ("a frozen neighbour", noticed_s(frozen)))
        if seconds is not None
    ]
    return Words(
        [
            f"{hello.world_size} ranks met over two nodes, and rank {ASKED} had GPU"
            f" {hello.ranks[ASKED].values('local_rank')[0]} of its node.",
            f"Eight GPUs were {speedup(one, eight, 8):.1f} times as fast as one. Sixteen were {slow:.1f} times as fast"
            f" over {link}, and {fast:.1f} times over {better}.",
            *[f"Rank 0 noticed {', and '.join(waited)}."] * bool(waited),
            f"{most:,} GPUs took {times:.0f} times the GPU hours of {rows[0][0]}, for the same training.",
        ]
    )
