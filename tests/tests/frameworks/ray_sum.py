"""A Ray driver as its documentation has it: nothing in it knows of a scheduler."""

import ray

ray.init()


@ray.remote(num_cpus=1)
def square(number):
    return number * number


alive = [node for node in ray.nodes() if node["Alive"]]
cpus = int(ray.cluster_resources()["CPU"])
print(f"ray nodes {len(alive)} cpus {cpus} sum {sum(ray.get([square.remote(n) for n in range(5)]))}", flush=True)
