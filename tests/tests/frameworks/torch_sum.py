"""A torchrun program as its documentation has it: nothing in it knows of a scheduler."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
told = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(told)
print(f"torch rank {dist.get_rank()} of {dist.get_world_size()} sum {int(told)}", flush=True)
print(f"group {os.environ['GROUP_RANK']} local {os.environ['LOCAL_RANK']}", flush=True)
dist.barrier()
dist.destroy_process_group()
