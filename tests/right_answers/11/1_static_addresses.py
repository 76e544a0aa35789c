import shlex


def batch_file(nodes: int, gpus_per_node: int, cpus_per_gpu: int, minutes: int, warn_s: int, command: list[str]) -> str:
    inner = (
        f"python -m torch.distributed.run --nnodes={nodes} --node-rank=$SLURM_NODEID --nproc-per-node=gpu "
        f"--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT {shlex.join(command)}"
    )
    return f"""#!/usr/bin/env bash
#SBATCH --nodes={nodes} --ntasks-per-node=1
#SBATCH --gpus={nodes * gpus_per_node}
#SBATCH --cpus-per-task={gpus_per_node * cpus_per_gpu}
#SBATCH --time=0-{minutes // 60}:{minutes % 60}
#SBATCH --signal=B:10@{warn_s}
warn() {{ echo 'the time is nearly over'; touch "$SLURM_SUBMIT_DIR/save_now"; }}
rm -f "$SLURM_SUBMIT_DIR/save_now"
trap warn USR1
export MASTER_ADDR=$(scontrol show hostnames | head -n1)
export MASTER_PORT=$(( 15000 + $SLURM_JOB_ID % 5000 ))
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --kill-on-bad-exit bash -c {shlex.quote(inner)} &
wait $!
wait $!
code=$?
echo "ended with $code"
exit $code
"""
