"""Submits a command, explains it, follows its output, and cancels it once it has printed something.

    MUSTER_ENDPOINTS=replica-1:7401,replica-2:7401,replica-3:7401 python job.py sh -c "echo hello; sleep 600"

Whatever happens to the leader meanwhile, there is one job, and it is cancelled.
"""

import sys

import muster

with muster.Client() as client:
    job = client.submit(muster.job("example", sys.argv[1:], cpu=0.1, memory="64Mi"))
    print("submitted", job.id, flush=True)
    job.wait(until="running")
    print("explained", job.explain().reason, flush=True)
    for piece in job.logs(follow=True):
        print("printed", piece.data.decode().strip(), flush=True)
        break
    job.cancel()
    print("ended", job.wait().phase, flush=True)
