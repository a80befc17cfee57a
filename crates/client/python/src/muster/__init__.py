"""Client of a Muster cluster.

>>> import muster
>>> with muster.Client("127.0.0.1:7401,127.0.0.1:7402") as client:  # doctest: +SKIP
...     [job_id] = client.submit(muster.job("train", ["python", "train.py"], workers=4, accelerators="h100:8"))
...     client.wait(job_id, until="succeeded")

:mod:`muster.aio` has the same for asyncio; :mod:`muster.v1` the messages of the protocol.
"""

from ._attempts import Bookmark, Changed, Forgotten, Output, Restarted, SyncEnd, WatchItem
from .client import Client
from .errors import (
    ConfigurationError,
    JobFailed,
    MusterError,
    NotFound,
    Refused,
    Unavailable,
    Violation,
)
from .jobs import Phase, Until, has_ended, job, phase
from .options import Options, Tls
from .v1.common_pb2 import FencingToken
from .v1.job_pb2 import Job, JobSpec

__all__ = [
    "Bookmark",
    "Changed",
    "Client",
    "ConfigurationError",
    "FencingToken",
    "Forgotten",
    "Job",
    "JobFailed",
    "JobSpec",
    "MusterError",
    "NotFound",
    "Options",
    "Output",
    "Phase",
    "Refused",
    "Restarted",
    "SyncEnd",
    "Tls",
    "Unavailable",
    "Until",
    "Violation",
    "WatchItem",
    "has_ended",
    "job",
    "phase",
]
