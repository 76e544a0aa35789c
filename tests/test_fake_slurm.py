"""The fake cluster reads a batch file as Slurm does, and records what bash really starts."""

from __future__ import annotations

import pytest
from conftest import checks

fake_slurm = checks("lesson_11.fake_slurm")
agent, options, play = fake_slurm.agent, fake_slurm.options, fake_slurm.play
play_warned, seconds = fake_slurm.play_warned, fake_slurm.seconds

HEAD = "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1 -c 3  # words\n\n# a remark\n#SBATCH --time 30\n"


def test_the_head_ends_at_the_first_command() -> None:
    assert options(HEAD + "echo\n#SBATCH --mem=4G\n") == {
        "--nodes": "2",
        "--ntasks-per-node": "1",
        "--cpus-per-task": "3",
        "--time": "30",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("1-2", 93_600),
        ("0-1:30", 5400),
        ("1-0:0:5", 86_405),
        ("", None),
        ("1h", None),
    ],
)
def test_times_as_slurm_reads_them(text: str, expected: float | None) -> None:
    assert seconds(text) == expected


def test_each_node_runs_the_task_under_its_own_name() -> None:
    text = (
        HEAD
        + 'srun -l --cpus-per-task 3 bash -c \'torchrun --nnodes=2 --node_rank $SLURM_NODEID --rdzv_id="$(hostname)" "a'
        " b.py\" x'\n"
    )
    played = play(text, ["gpu07", "gpu12"], 5)
    assert played.code == 0 and [node for node, _ in played.launches] == ["gpu07", "gpu12"]
    found, command = agent(played.launches[1][1])
    assert found == {"--nnodes": "2", "--node-rank": "1", "--rdzv-id": "gpu12"} and command == ["a b.py", "x"]
    assert len(played.sruns) == 1 and "3" in played.sruns[0][1]


def test_the_first_node_is_where_the_file_runs_and_failures_are_told() -> None:
    text = (
        HEAD
        + 'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n[ "$first" = "$(hostname)" ] && srun'
        " python3 -m torch.distributed.run t.py\n"
    )
    assert play(text, ["gpu07", "gpu12"], 5, code=3).code == 3
    assert play("#!/bin/bash\nnosuchprogram\n", ["gpu07"], 5).stderr


SHELL = "rm -f save_now\ntrap 'touch save_now' USR1\nsrun TASK &\nwait $!; wait $!\n"
BEHIND = (  # a shell, and torchrun as its child
    "bash -c 'trap \"touch save_now\" USR1; torchrun t.py & wait $!; wait $!'"
)


@pytest.mark.parametrize(
    ("task", "to", "warned", "ended"),
    [
        ("torchrun t.py", "shell", 2, 2),
        ("torchrun t.py", "task", 0, 0),  # which ends it
        ("torchrun t.py", "tree", 0, 0),
        (BEHIND, "task", 2, 2),  # as Slurm with proctrack/cgroup: the child of the task is left alone
        (BEHIND, "tree", 0, 0),  # as with proctrack/linuxproc
        ("bash -c 'trap \"\" USR1; exec torchrun t.py'", "tree", 0, 2),
    ],
)
def test_a_signal_reaches_those_that_slurm_sends_it_to(task: str, to: str, warned: int, ended: int) -> None:
    found = play_warned(HEAD + SHELL.replace("TASK", task), ["gpu07", "gpu12"], 5, to, "save_now")
    assert (len(found.begun), len(found.warned), len(found.ended), found.stale) == (2, warned, ended, [])
    assert (found.code == 0) == (ended == 2)


def test_an_earlier_jobs_file_and_a_shell_without_a_trap() -> None:
    found = play_warned(HEAD + "srun torchrun t.py\n", ["gpu07", "gpu12"], 5, "shell", "save_now", code=3)
    assert found.stale == ["gpu07", "gpu12"] and found.code == -10 and found.ended == []
