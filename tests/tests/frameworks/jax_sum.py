"""A multi-process JAX program as its documentation has it: nothing in it knows of a scheduler."""

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
rank, world = jax.process_index(), jax.process_count()
told = multihost_utils.process_allgather(jnp.array([rank + 1]))
print(f"jax rank {rank} of {world} sum {int(told.sum())}", flush=True)
multihost_utils.sync_global_devices("done")
jax.distributed.shutdown()
