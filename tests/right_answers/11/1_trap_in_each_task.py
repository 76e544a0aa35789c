import shlex


def batch_file(nodes: int, gpus_per_node: int, cpus_per_gpu: int, minutes: int, warn_s: int, command: list[str]) -> str:
    agent = (
        f"torchrun --nnodes={nodes} --nproc-per-node={gpus_per_node} --rdzv-backend=c10d "
        f"--rdzv-endpoint=$first:$port --rdzv-id=$SLURM_JOB_ID {shlex.join(command)}"
    )
    task = f"trap 'touch save_now' USR1; (trap '' USR1; exec {agent}) & wait $!; wait $!"
    return f"""#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --gpus-per-node={gpus_per_node}
#SBATCH --cpus-per-task={gpus_per_node * cpus_per_gpu} --time={minutes}
#SBATCH --signal=USR1@{warn_s}
rm -f save_now
export first=$(hostname) port=$((10000 + SLURM_JOB_ID % 20000)) SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --kill-on-bad-exit=1 bash -c {shlex.quote(task)}
"""
