"""What a replica has to know of a job, so that one of another release refuses what it would leave out."""

from __future__ import annotations

from typing import Iterable

from .v1beta1 import job_pb2

# What replicas list in their `features`, by the field of a job that needs it.
_FEATURES = {
    "affinity": "job-affinity",
    "artifacts": "job-artifacts",
    "capacity": "job-capacity",
    "exclusive": "job-exclusive",
    "host": "job-host",
    "licences": "job-licences",
    "nice": "job-nice",
    "nodes": "job-nodes",
    "notify": "job-notify",
    "readiness": "job-readiness",
    "scratch_bytes": "job-scratch",
    "terminal": "job-terminal",
    "ulimits": "job-ulimits",
    "workdir": "job-workdir",
}


def required_features(jobs: Iterable[job_pb2.Job]) -> str:
    """What a replica has to know so that it leaves nothing out of these jobs; empty for most."""
    asked = list(jobs)
    fields = {field.name for job in asked for field, _ in job.spec.ListFields()}
    required = {_FEATURES[name] for name in fields if name in _FEATURES}
    if any(job.hold for job in asked):
        required.add("job-hold")
    if any(group.container.credentials for job in asked for group in job.spec.groups):
        required.add("container-credentials")
    if any(job.spec.topology.segments for job in asked):
        required.add("job-segments")
    return ",".join(sorted(required))
