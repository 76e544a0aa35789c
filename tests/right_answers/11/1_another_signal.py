import shlex


def batch_file(nodes: int, gpus_per_node: int, cpus_per_gpu: int, minutes: int, warn_s: int, command: list[str]) -> str:
    return f"""#!/bin/bash
#SBATCH -N {nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:{gpus_per_node}
#SBATCH -c {gpus_per_node * cpus_per_gpu}
#SBATCH -t {minutes}
#SBATCH --signal=B:TERM@{warn_s}
cd "$SLURM_SUBMIT_DIR"
rm -f save_now
trap 'touch save_now' TERM
: "${{SLURM_NTASKS_PER_NODE:?}} ${{SLURM_TASKS_PER_NODE:?}} ${{SLURM_JOB_GPUS:?}} ${{SLURM_CPUS_ON_NODE:?}}"
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --kill-on-bad-exit=1 torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=$SLURM_GPUS_ON_NODE \\
    --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$(hostname):$((20000 + SLURM_JOB_ID % 1000)) {shlex.join(command)} &
job=$!
wait $job; code=$?
while kill -0 $job 2> /dev/null; do wait $job; code=$?; done
[ -e save_now ] && {{ wait $job; code=$?; }}
exit $code
"""
