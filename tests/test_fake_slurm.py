"""The stand-in for a cluster reads a batch file as Slurm does, and notes what bash really starts."""

from __future__ import annotations

import pytest

from course_utils.checks.fake_slurm import agent, options, play, seconds

HEAD = "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1  # words\n\n# a remark\n#SBATCH --time 30\n"


def test_the_head_ends_at_the_first_command() -> None:
    assert options(HEAD + "echo\n#SBATCH --mem=4G\n") == {"--nodes": "2", "--ntasks-per-node": "1", "--time": "30"}


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 5400), ("90:30", 5430), ("1:30:00", 5400), ("1-2", 93_600), ("0-1:30", 5400), ("1-0:0:5", 86_405), ("", None), ("1h", None)]
)
def test_times_as_slurm_reads_them(text: str, expected: float | None) -> None:
    assert seconds(text) == expected


def test_each_node_runs_the_task_under_its_own_name() -> None:
    text = HEAD + 'srun -l --cpus-per-task 3 bash -c \'torchrun --nnodes=2 --node_rank $SLURM_NODEID --rdzv_id="$(hostname)" "a b.py" x\'\n'
    played = play(text, ["gpu07", "gpu12"], 5, "3")
    assert played.code == 0 and [node for node, _ in played.launches] == ["gpu07", "gpu12"]
    found, command = agent(played.launches[1][1])
    assert found == {"--nnodes": "2", "--node-rank": "1", "--rdzv-id": "gpu12"} and command == ["a b.py", "x"]
    assert len(played.sruns) == 1 and "3" in played.sruns[0][1]


def test_the_first_node_is_where_the_file_runs_and_failures_are_told() -> None:
    text = (
        HEAD
        + 'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n[ "$first" = "$(hostname)" ] && srun python3 -m torch.distributed.run t.py\n'
    )
    assert play(text, ["gpu07", "gpu12"], 5, "", code=3).code == 3
    assert play("#!/bin/bash\nnosuchprogram\n", ["gpu07"], 5, "").stderr
