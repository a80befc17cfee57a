#!/bin/sh
#SBATCH -J sweep
#SBATCH -a 0-99:5,200%4
#SBATCH --gpus=1 --constraint=a100
#SBATCH --mem-per-cpu=4000 --cpus-per-task=2
#SBATCH --time=90
#SBATCH --dependency=afterok:job-3f0,afterany:array-3f0,aftercorr:array-500,singleton
#SBATCH --qos=batch
#SBATCH --begin=now+2hours --deadline=2030-01-31T18:00
#SBATCH --chdir=/shared/sweep
#SBATCH --export=NONE,MODE=fast
#SBATCH --comment "for the paper"
exec python3 score.py "$SLURM_ARRAY_TASK_ID"
