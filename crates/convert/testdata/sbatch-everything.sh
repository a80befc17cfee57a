#!/usr/bin/env bash
#SBATCH -N 2-4 -p gpu,gpu-large -q urgent
#SBATCH --gpus-per-node=4 --ntasks-per-node=4 --gpus-per-task=1
#SBATCH --mem=0 --exclusive --oversubscribe
#SBATCH -x node[1-3] -w node7 --reservation=demo --licenses=ansys:2
#SBATCH --mail-type=ALL --mail-user=ada@example.com
#SBATCH -o out.txt -e err.txt --open-mode=append -i in.txt
#SBATCH --export=ALL,SEED=7 --get-user-env
#SBATCH --no-requeue --hold --nice=100 --switches=1@60
#SBATCH --array=7 --wckey=x --frobnicate=1
#SBATCH --time=5 --time=10
mpirun ./a.out
sbatch next.sh
srun --container-image=x ./b.out
