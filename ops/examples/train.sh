#!/bin/bash
# A training gang as a script: `muster submit train.sh --epochs 3`. The lines below say what a job file says
# under `spec`; the script itself travels with the job and runs once per worker.
#MUSTER name: train
#MUSTER tenant: vision
#MUSTER tier: standard
#MUSTER workers: 4
#MUSTER accelerators: h100:8
#MUSTER cpu: 16
#MUSTER memory: 128Gi
#MUSTER runTimeLimit: 12h
#MUSTER checkpoint:
#MUSTER   directory: /shared/checkpoints
#MUSTER topology: {required: rack}
#MUSTER environment:
#MUSTER   NCCL_DEBUG: WARN
set -euo pipefail
echo "rank $RANK of $WORLD_SIZE on $(hostname)"
exec python3 train.py "$@"
