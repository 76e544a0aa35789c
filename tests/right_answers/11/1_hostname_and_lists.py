import shlex


def batch_file(nodes: int, gpus_per_node: int, cpus_per_gpu: int, minutes: int, warn_s: int, command: list[str]) -> str:
    cores = gpus_per_node * cpus_per_gpu
    lines = ["#!/bin/bash"]
    asked = {"N": nodes, "c": cores}
    lines += [f"#SBATCH -{name} {value}" for name, value in asked.items()]
    lines += [f"#SBATCH --ntasks={nodes}", f"#SBATCH --gres=gpu:h100:{gpus_per_node}", f"#SBATCH -t {minutes // 60:02d}:{minutes % 60:02d}:00"]
    lines += [f"#SBATCH --signal=B:SIGUSR1@{warn_s}  # in time", "", "set -e", "rm -f save_now", "trap '> save_now' SIGUSR1"]
    agent = f"torchrun --nnodes {nodes} --nproc_per_node {gpus_per_node} --rdzv_backend c10d --rdzv_id job-$SLURM_JOB_ID"
    lines += ["master=$(hostname)"]
    lines += [f"srun -K1 --cpus-per-task={cores} {agent} --rdzv_endpoint $master:$((20000 + SLURM_JOB_ID % 10000)) {shlex.join(command)} &", "wait $! || wait $!"]
    return "\n".join(lines) + "\n"
