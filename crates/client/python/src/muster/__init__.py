"""Client of a Muster cluster.

>>> import muster
>>> with muster.Client("127.0.0.1:7401,127.0.0.1:7402") as client:  # doctest: +SKIP
...     job = client.submit(muster.JobSpec.from_yaml("train.yaml"))
...     for piece in job.logs(follow=True):
...         print(piece.data.decode(), end="")
...     job.wait(until="succeeded")

:mod:`muster.aio` has the same for asyncio, :mod:`muster.worker` what a program says inside of a job, and
:mod:`muster.v1beta1` the messages of the protocol.
"""

from ._time import Seconds
from .client import Client, Job, Watching, as_completed, wait_all
from .errors import (
    ConfigurationError,
    Conflict,
    IncompleteIndices,
    InvalidJobFile,
    InvalidSpec,
    JobFailed,
    MusterError,
    NotFound,
    PermissionDenied,
    Problem,
    QuotaExceeded,
    Refused,
    TimedOut,
    Unavailable,
    Violation,
)
from .options import Options, Read, Tls
from .spec import JobSpec, job
from .types import (
    Array,
    Bookmark,
    Changed,
    Control,
    Controlled,
    Explanation,
    Forgotten,
    JobSelector,
    JobView,
    Node,
    Output,
    Phase,
    Quantiles,
    Restarted,
    ServerInfo,
    SyncEnd,
    Tenant,
    TenantChanges,
    Until,
    WatchItem,
)
from .v1beta1.common_pb2 import FencingToken

__all__ = [
    "Array",
    "Bookmark",
    "Changed",
    "Client",
    "ConfigurationError",
    "Conflict",
    "Control",
    "Controlled",
    "Explanation",
    "FencingToken",
    "Forgotten",
    "IncompleteIndices",
    "InvalidJobFile",
    "InvalidSpec",
    "Job",
    "JobFailed",
    "JobSelector",
    "JobSpec",
    "JobView",
    "MusterError",
    "Node",
    "NotFound",
    "Options",
    "Output",
    "PermissionDenied",
    "Phase",
    "Problem",
    "Quantiles",
    "QuotaExceeded",
    "Read",
    "Refused",
    "Restarted",
    "Seconds",
    "ServerInfo",
    "SyncEnd",
    "Tenant",
    "TenantChanges",
    "TimedOut",
    "Tls",
    "Unavailable",
    "Until",
    "Violation",
    "WatchItem",
    "Watching",
    "as_completed",
    "job",
    "wait_all",
]
