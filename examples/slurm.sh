#!/bin/bash
# headrace on several Slurm nodes: one task on each node starts torchrun, torchrun starts the processes.
#   sbatch examples/slurm.sh corpus/ training.max_steps=100000
# Submitted again with the same OUT, or requeued, it continues from the last checkpoint, with any number of nodes.
#SBATCH --job-name=headrace
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
set -euo pipefail

OUT=${OUT:-$SLURM_SUBMIT_DIR/runs/mine}        # on a file system that all nodes see
CACHE=${CACHE:-/tmp/headrace-$USER}            # local to each node; a shared folder works too
PROCESSES=${PROCESSES:-2}                      # per node: one per socket, or what `headrace scale` found best
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HEAD OUT CACHE PROCESSES PORT=$((20000 + SLURM_JOB_ID % 10000))

# Slurm's TERM, two minutes before the end, reaches torchrun, which passes it on and waits 30 s for all to save.
srun bash -c '
  exec torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="$PROCESSES" \
    --rdzv-backend=c10d --rdzv-endpoint="$HEAD:$PORT" --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-conf="is_host=$([ "$SLURM_NODEID" = 0 ] && echo 1 || echo 0)" \
    -m headrace train "$@" --out "$OUT" run.resume=auto data.cache_dir="$CACHE"
' bash "$@"
