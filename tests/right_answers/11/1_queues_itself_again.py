import shlex


def batch_file(nodes: int, gpus_per_node: int, cpus_per_gpu: int, minutes: int, warn_s: int, command: list[str]) -> str:
    return f"""#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus_per_node}
#SBATCH --cpus-per-task={gpus_per_node * cpus_per_gpu}
#SBATCH --time={minutes}
#SBATCH --requeue --open-mode=append
#SBATCH --signal=B:USR1@{warn_s}

rm -f save_now
trap 'touch save_now' USR1
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((10000 + SLURM_JOB_ID % 20000))

srun --kill-on-bad-exit=1 torchrun \\
    --nnodes=$SLURM_NNODES --nproc-per-node={gpus_per_node} \\
    --rdzv-backend=c10d --rdzv-endpoint=$first:$port --rdzv-id=$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}} \\
    {shlex.join(command)} &
agent=$!
until wait $agent; code=$?; ! kill -0 $agent 2> /dev/null; do :; done
[ -e save_now ] && scontrol requeue $SLURM_JOB_ID
exit $code
"""
