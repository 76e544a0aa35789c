# symptom: one port
# says: 29500
import shlex


def batch_file(nodes: int, gpus_per_node: int, cpus_per_gpu: int, minutes: int, warn_s: int, command: list[str]) -> str:
    return f"""#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus_per_node}
#SBATCH --cpus-per-task={gpus_per_node * cpus_per_gpu}
#SBATCH --time={minutes}
#SBATCH --signal=USR1@{warn_s}

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((10000 + SLURM_JOB_ID % 20000))

srun --kill-on-bad-exit=1 torchrun \\
    --nnodes=$SLURM_NNODES --nproc-per-node={gpus_per_node} \\
    --rdzv-backend=c10d --rdzv-endpoint=$first:29500 --rdzv-id=$SLURM_JOB_ID \\
    {shlex.join(command)}
"""
