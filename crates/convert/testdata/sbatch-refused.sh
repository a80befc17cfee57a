#!/bin/bash
#SBATCH --job-name=---
#SBATCH --nodes=0 --gres=gpu:h100:3,nvme:1 --ntasks=2
#SBATCH --time=soon --begin=teatime --array=x
#SBATCH --dependency=afterok:123456,afternotok:job-3f0
#SBATCH --chdir=work
#SBATCH hetjob
#SBATCH --mem
exec srun ./a
srun --multi-prog steps.conf
