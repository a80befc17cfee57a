#!/bin/bash
#SBATCH --job-name=pretrain
#SBATCH --account=Research
#SBATCH --nodes=4 --ntasks-per-node=1   # one task a node
#SBATCH --gres=gpu:h100:8
#SBATCH -c 64
#SBATCH --mem=512G
#SBATCH --tmp=2T
#SBATCH -t 2-00:00:00
#SBATCH --output=logs/%x-%j.out
#SBATCH --signal=B:USR1@120
#SBATCH --requeue

module load cuda
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
cd "$SLURM_SUBMIT_DIR" && echo "on $SLURM_CLUSTER_NAME"
srun --ntasks=4 --cpu-bind none python3 train.py "$@"
#SBATCH --mail-type=END
