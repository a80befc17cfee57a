"""Describing jobs, and reading what has become of them."""

from __future__ import annotations

from typing import Literal, Mapping, Sequence

from .errors import ConfigurationError, JobFailed
from .v1 import common_pb2, job_pb2

Phase = Literal["pending", "starting", "running", "stopping", "succeeded", "failed", "cancelled", "unknown"]
Until = Literal["running", "succeeded", "finished", "checkpointed"]

_PHASES: dict[int, Phase] = {
    job_pb2.JOB_PHASE_PENDING: "pending",
    job_pb2.JOB_PHASE_STARTING: "starting",
    job_pb2.JOB_PHASE_RUNNING: "running",
    job_pb2.JOB_PHASE_STOPPING: "stopping",
    job_pb2.JOB_PHASE_SUCCEEDED: "succeeded",
    job_pb2.JOB_PHASE_FAILED: "failed",
    job_pb2.JOB_PHASE_CANCELLED: "cancelled",
}
UNTIL: tuple[Until, ...] = ("running", "succeeded", "finished", "checkpointed")


def phase(job: job_pb2.Job) -> Phase:
    """Where a job is in its life; ``unknown`` for a phase of a newer cluster."""
    return _PHASES.get(job.phase, "unknown")


def has_ended(job: job_pb2.Job) -> bool:
    """Whether nothing more will become of it."""
    return phase(job) in ("succeeded", "failed", "cancelled")


def reached(job: job_pb2.Job, until: Until) -> bool:
    """Whether a job is where it was waited for.

    Raises JobFailed when it has ended and will never be there; ``finished`` takes every end.
    """
    now = phase(job)
    there = {
        "running": now in ("running", "succeeded"),
        "succeeded": now == "succeeded",
        "finished": has_ended(job),
        "checkpointed": job.checkpointed_at_ms > 0,
    }[until]
    if not there and has_ended(job):
        raise JobFailed(job.id, now, job.status_detail)
    return there


def job(
    name: str,
    command: Sequence[str],
    *,
    workers: int = 1,
    accelerators: str | None = None,
    cpu: float | None = None,
    memory_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    tenant: str = "",
    tier: str = "",
    regions: Sequence[str] = (),
    failure_retries: int = 0,
    checkpoint_directory: str = "",
    run_time_limit_s: float | None = None,
    array_size: int = 0,
) -> job_pb2.JobSpec:
    """A job of one group of workers. Everything else is set on the message that this returns.

    ``accelerators`` is a type and a count per worker, as in job files: ``h100:8``, ``h100|a100:1``, ``any:0.25``.
    """
    if isinstance(command, str):
        raise ConfigurationError("command must be a list of words; no shell reads it")
    group = job_pb2.TaskGroup(workers=workers, command=list(command), environment=dict(environment or {}))
    if accelerators is not None:
        group.accelerators.CopyFrom(_accelerators(accelerators))
    if cpu is not None:
        group.cpu_milli = round(cpu * 1000)
    if memory_bytes is not None:
        group.memory_bytes = memory_bytes
    return job_pb2.JobSpec(
        name=name,
        tenant=tenant,
        tier=tier,
        groups=[group],
        regions=list(regions),
        failure_retries_max=failure_retries,
        checkpoint_directory=checkpoint_directory,
        run_time_limit_ms=0 if run_time_limit_s is None else max(1, round(run_time_limit_s * 1000)),
        array_size=array_size,
    )


def _accelerators(text: str) -> common_pb2.AcceleratorRequest:
    kinds, colon, amount = text.partition(":")
    choices = [kind.strip() for kind in kinds.split("|")]
    request = common_pb2.AcceleratorRequest()
    if choices != ["any"]:
        request.choices.extend(common_pb2.AcceleratorChoice(type=kind) for kind in choices)
    try:
        number = float(amount)
    except ValueError:
        number = 0.0
    if not colon or not 0 < number <= 64 or (number > 1 and number != int(number)):
        raise ConfigurationError(f"{text!r} must be a type and a count, like h100:4, h100|a100:1 or any:0.25")
    if number == int(number):
        request.count = int(number)
    else:
        request.share_milli = round(number * 1000)
    return request
