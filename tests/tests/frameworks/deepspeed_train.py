"""A DeepSpeed program as its documentation has it: a model, an optimizer in shards, a few steps."""

import deepspeed
import torch
import torch.distributed as dist

deepspeed.init_distributed()
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = torch.nn.Linear(8, 1, bias=False)
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
losses = []
for _ in range(3):
    inputs = torch.ones(2, 8, device=engine.device) * (rank + 1)
    loss = engine(inputs).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
told = torch.tensor([rank + 1])
dist.all_reduce(told)
assert losses[-1] < losses[0], losses
# After every step all ranks have the same weights.
weights = [torch.empty(1) for _ in range(world)]
dist.all_gather(weights, next(engine.module.parameters()).detach().sum().reshape(1))
assert all(torch.equal(weights[0], other) for other in weights), weights
print(f"deepspeed rank {rank} of {world} sum {int(told)}", flush=True)
dist.barrier()
dist.destroy_process_group()
