#!/bin/bash
# An ordinary job of Slurm: `sbatch` with the path of this file submits it by hand, and each line can be read on its own.
@{options}
folder=@{folder}  # all nodes see it
export SAVE_FILE="$folder/save_now"     # appears when the time is nearly up: the ranks look for it after every step, and save
export REQUEUE_FILE="$folder/requeue"   # each rank creates it when all have saved, and the job is queued again
mkdir -p "$folder" && rm -f "$SAVE_FILE" "$REQUEUE_FILE"  # an earlier attempt may have left them
trap 'touch "$SAVE_FILE"' USR1
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # since Slurm 22.05 srun doesn't take this from sbatch by itself
@{exports}
@{setup}first=$(hostname)                       # this script runs on the first node of the job
port=$((10000 + SLURM_JOB_ID % 20000))  # differs from job to job, and lies below the ports that systems hand out by themselves

# srun starts the task once on each node, and ends them all when one fails. It runs in the background, because bash handles a signal only
# between two commands, or in `wait`. The signal ends that wait early, so wait until srun has really ended; bash keeps its exit code.
srun --kill-on-bad-exit=1@{srun} @{task} &
while kill -0 $! 2> /dev/null; do wait $!; done
wait $!; code=$?

if [ -e "$REQUEUE_FILE" ]; then         # exit codes don't say it: torchrun and srun replace them
    scontrol requeue "$SLURM_JOB_ID"
    exit
fi
@{at_end}exit "$code"
