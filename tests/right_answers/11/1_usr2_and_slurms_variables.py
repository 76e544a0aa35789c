import shlex


def batch_file(nodes: int, gpus_per_node: int, cpus_per_gpu: int, minutes: int, warn_s: int, command: list[str]) -> str:
    head = [f"nodes={nodes}", f"ntasks={nodes}", f"gpus=a100:{nodes * gpus_per_node}"]
    head += [f"cpus-per-task={gpus_per_node * cpus_per_gpu}", f"time={minutes}:00", f"signal=B:SIGUSR2@{warn_s}"]
    return (
        "\n".join(["#!/bin/bash", *(f"#SBATCH --{option}" for option in head)])
        + """
rm -f save_now
trap 'touch save_now' USR2
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_ON_NODE
port=$((SLURM_JOB_ID % 30000 + 2000))
srun -K torchrun --nnodes=$SLURM_NTASKS --nproc_per_node=$(tr , '\\n' <<< $SLURM_JOB_GPUS | wc -l) \\
  --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_NAME-$SLURM_JOB_ID --rdzv_endpoint=$SLURMD_NODENAME:$port """
        + shlex.join(command)
        + """ &
wait $!; while kill -0 $!; do wait $!; done 2> /dev/null
wait $!
"""
    )
