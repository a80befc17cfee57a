"""Jobs, nodes, tenants and explanations as answers show them.

Each stands over the message that it came in, which :meth:`to_message` gives; times are datetimes in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Literal, Sequence, TypeVar, Union

from ._closed import TIERS
from ._time import moment, span
from ._quantity import ARRAY_RANGES_MAX, index_ranges, indices_text, ranges_of
from .errors import IncompleteIndices, JobFailed
from .spec import JobSpec
from .v1beta1 import common_pb2, explanation_pb2, fleet_pb2, job_pb2, tenant_pb2

Phase = Literal["pending", "starting", "running", "stopping", "succeeded", "failed", "cancelled", "unknown"]
Until = Literal["running", "succeeded", "finished", "checkpointed"]
OutputStream = Literal["stdout", "stderr"]

PHASES: dict[int, Phase] = {
    job_pb2.JOB_PHASE_PENDING: "pending",
    job_pb2.JOB_PHASE_STARTING: "starting",
    job_pb2.JOB_PHASE_RUNNING: "running",
    job_pb2.JOB_PHASE_STOPPING: "stopping",
    job_pb2.JOB_PHASE_SUCCEEDED: "succeeded",
    job_pb2.JOB_PHASE_FAILED: "failed",
    job_pb2.JOB_PHASE_CANCELLED: "cancelled",
}
_STATUSES: dict[int, Literal["up", "lost"]] = {fleet_pb2.NODE_STATUS_UP: "up", fleet_pb2.NODE_STATUS_LOST: "lost"}


Control = Literal["cancel", "hold", "release", "requeue", "suspend"]
"""What may be asked of several jobs at once."""


@dataclass(frozen=True)
class JobSelector:
    """Which jobs something is asked of: those for which all that is given holds."""

    job_ids: Sequence[str] = ()
    """These jobs and no others, all of them or none; nothing else is given then."""
    array_id: str = ""
    """Only jobs of this array, ``array-...``."""
    tenant: str = ""
    """Only this tenant."""
    name_prefix: str = ""
    """Only names that start so."""
    labels: str = ""
    """Only jobs whose labels match: ``team=vision,stage in (train,eval),!debug``."""
    creator: str = ""
    """Only jobs of this principal."""
    mine: bool = False
    """Only jobs of the caller."""
    phases: Sequence[Phase] = ()
    """Only these phases."""
    all_jobs: bool = False
    """Every job that the caller may change; needed where nothing else is given."""
    after_job_id: str = ""
    """Only jobs that were submitted after this one: the ``last_job_id`` of an answer goes on behind it."""


@dataclass(frozen=True)
class Controlled:
    """What became of what was asked of several jobs."""

    jobs: int
    """Of how many it changed anything, or with ``dry_run`` would; at most 1,000 jobs with one call, and members of arrays
    that are not created."""
    remaining: int
    """Jobs that were found beyond those; ask again behind ``last_job_id`` for them."""
    passed_over: int
    """Jobs that were found and that it cannot be asked of."""
    job_ids: Sequence[str]
    """With ``dry_run``: which they are; an array's id stands for its members that are not created."""
    last_job_id: str = ""
    """The last of them; empty where there was none, and where the answer repeats an earlier one."""


class Array:
    """An array of like jobs as it was when this was read."""

    def __init__(self, message: job_pb2.Array) -> None:
        self._message = message

    def to_message(self) -> job_pb2.Array:
        """All of it, as it was sent; not to be changed."""
        return self._message

    def __repr__(self) -> str:
        return f"<Array {self.id} {self.name!r} of {self.size}>"

    @property
    def id(self) -> str:
        """``array-…`` with the number of its first member."""
        return self._message.id

    @property
    def name(self) -> str:
        """Of every member."""
        return self._message.name

    @property
    def tenant(self) -> str:
        """Who it is for."""
        return self._message.tenant

    @property
    def size(self) -> int:
        """How many members it has."""
        return self._message.size

    @property
    def counts(self) -> dict[str, int]:
        """Members by what has become of them: uncreated, pending, active, succeeded, failed, cancelled."""
        counts = self._message.counts
        return {
            "uncreated": counts.uncreated,
            "pending": counts.pending,
            "active": counts.active,
            "succeeded": counts.succeeded,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
        }

    @property
    def has_ended(self) -> bool:
        """Whether every member has ended."""
        return self._message.HasField("end_time")

    @property
    def reason(self) -> str:
        """Code of what its members that are not created wait for; empty when all were created."""
        return self._message.reason

    def indices(self, phase: Phase) -> str:
        """Indices of the members in a phase, as ``array`` takes them; empty when there are none.

        Raises IncompleteIndices where they do not all fit into an answer or into ``array``, and for an array of a list.
        """
        states = [state for state in self._message.states if PHASES.get(state.phase) == phase]
        counts = self._message.counts
        in_list = {
            "pending": counts.uncreated + counts.pending, "succeeded": counts.succeeded, "failed": counts.failed,
            "cancelled": counts.cancelled,
        }  # fmt: skip
        if not self._message.states and in_list.get(phase, counts.active) > 0:
            raise IncompleteIndices(f"{self.id} is of a list, which has no indices; array({self.id!r}) reads them")
        if not all(state.complete for state in states):
            count = sum(state.count for state in states)
            raise IncompleteIndices(f"{self.id}: the indices of {count} members that are {phase} do not fit into an answer")
        # Members of one phase are in two states where some are created and others not.
        found = {index for state in states for part in index_ranges(state.indices) or () for index in part}
        ranges = ranges_of(sorted(found))
        if len(ranges) > ARRAY_RANGES_MAX:
            raise IncompleteIndices(f"{self.id}: members that are {phase} are in {len(ranges)} ranges, more than an array takes")
        return indices_text(ranges)


class JobView:
    """A job as it was when this was read."""

    def __init__(self, message: job_pb2.Job) -> None:
        self._message = message

    def to_message(self) -> job_pb2.Job:
        """All of it, as it was sent; not to be changed."""
        return self._message

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r} {self.phase}>"

    @property
    def id(self) -> str:
        """``job-…``."""
        return self._message.id

    @property
    def name(self) -> str:
        """As its file says; need not be unique."""
        return self._message.name

    @property
    def tenant(self) -> str:
        """Who it is for."""
        return self._message.tenant

    @property
    def labels(self) -> dict[str, str]:
        """What it is selected by."""
        return dict(self._message.labels)

    @property
    def creator(self) -> str:
        """Who submitted it, as the certificate says; ``anonymous`` where none was asked for."""
        return self._message.creator

    @property
    def etag(self) -> str:
        """Changes whenever the job does; opaque."""
        return self._message.etag

    @property
    def tier(self) -> str:
        """``free``, ``batch``, ``standard``, ``production`` or ``critical``."""
        return TIERS.word(self._message.status.tier)

    @property
    def spec(self) -> JobSpec | None:
        """As submitted, with defaults, so that it can be submitted again; none in lists."""
        if not self._message.HasField("spec"):
            return None
        shown = self._message
        message = job_pb2.Job(name=shown.name, tenant=shown.tenant, labels=shown.labels, annotations=shown.annotations)
        message.spec.CopyFrom(shown.spec)
        # It is a part of the span that it is submitted in then.
        message.spec.ClearField("trace_parent")
        return JobSpec.from_message(message)

    @property
    def phase(self) -> Phase:
        """Where it is in its life; ``unknown`` for a phase of a newer cluster."""
        return PHASES.get(self._message.status.phase, "unknown")

    @property
    def has_ended(self) -> bool:
        """Whether its phase is final."""
        return self.phase in ("succeeded", "failed", "cancelled")

    @property
    def reason(self) -> str:
        """Stable code of ``message``, such as ``WAITING_FOR_CAPACITY``."""
        return self._message.status.reason

    @property
    def message(self) -> str:
        """Why it waits, stops or ended: one sentence."""
        return self._message.status.message

    @property
    def attempt(self) -> int:
        """Placements so far."""
        return self._message.status.attempt

    @property
    def failures(self) -> int:
        """Attempts that failed by the application's fault."""
        return self._message.status.failures

    @property
    def preemptions(self) -> int:
        """Times that policy stopped it to make room."""
        return self._message.status.preemptions

    @property
    def create_time(self) -> datetime | None:
        """When it was submitted."""
        return moment(self._message.status.create_time)

    @property
    def start_time(self) -> datetime | None:
        """When its current or last attempt started; none before the first."""
        return moment(self._message.status.start_time)

    @property
    def end_time(self) -> datetime | None:
        """When it ended; none before."""
        return moment(self._message.status.end_time)

    @property
    def checkpoint_time(self) -> datetime | None:
        """When it last saved its work in this attempt; none when it has not."""
        status = self._message.status
        return self.last_checkpoint_time if status.last_checkpoint.attempt == status.attempt else None

    @property
    def last_checkpoint_time(self) -> datetime | None:
        """When it last saved its work in any attempt."""
        return moment(self._message.status.last_checkpoint.time)

    @property
    def expected_run_time(self) -> timedelta | None:
        """How long one attempt is expected to run; none when nothing is known."""
        return span(self._message.status.estimate.run_time)

    @property
    def worker_count(self) -> int:
        """Workers that it has, or asks for while it has none."""
        return self._message.status.worker_count

    @property
    def device_count(self) -> int:
        """Devices, likewise."""
        return self._message.status.device_count

    @property
    def array_index(self) -> int | None:
        """Its index in an array, as its owner gave it; none outside of one."""
        return self._message.array.index if self._message.HasField("array") else None

    @property
    def array_ordinal(self) -> int | None:
        """Its place among the members of an array, from 0; none outside of one."""
        return self._message.array.ordinal if self._message.HasField("array") else None

    @property
    def array_id(self) -> str:
        """``array-…``; empty outside of one."""
        return self._message.array.array_id

    @property
    def region(self) -> str:
        """Where its current or last placement is; empty before the first."""
        return self._message.status.placement.region

    @property
    def cluster(self) -> str:
        """The fleet cluster of that placement."""
        return self._message.status.placement.cluster

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes of that placement, by rank; empty in lists."""
        return [worker.node_name for worker in self._message.status.placement.workers]

    @property
    def fencing_token(self) -> common_pb2.FencingToken | None:
        """Of that placement; none before the first."""
        placement = self._message.status.placement
        return placement.token if placement.HasField("token") else None

    @property
    def log_index(self) -> int:
        """The record that changed it last."""
        return self._message.status.changed_at_index

    def has_reached(self, until: Until) -> bool:
        """Whether it is where it was waited for; an end that is none of it raises JobFailed."""
        there = {
            "running": self.phase in ("running", "succeeded"),
            "succeeded": self.phase == "succeeded",
            "finished": self.has_ended,
            "checkpointed": self.checkpoint_time is not None,
        }[until]
        if not there and self.has_ended:
            raise JobFailed(self.id, self.phase, self.reason, self.message)
        return there


class Node:
    """A host as the cluster sees it."""

    def __init__(self, message: fleet_pb2.Node) -> None:
        self._message = message

    def to_message(self) -> fleet_pb2.Node:
        """All of it, as it was sent; not to be changed."""
        return self._message

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.status}>"

    @property
    def id(self) -> str:
        """``node-…``."""
        return self._message.id

    @property
    def name(self) -> str:
        """Unique; what calls take."""
        return self._message.description.name

    @property
    def region(self) -> str:
        """Where it is."""
        return self._message.description.region

    @property
    def cluster(self) -> str:
        """Its fleet cluster."""
        return self._message.description.cluster

    @property
    def labels(self) -> dict[str, str]:
        """What selectors of jobs go by."""
        return dict(self._message.description.labels)

    @property
    def taints(self) -> list[str]:
        """Only jobs that tolerate every one of these are placed here."""
        return list(self._message.description.taints)

    @property
    def operator_labels(self) -> dict[str, str]:
        """Those of its labels that operators have set; the others are its agent's."""
        return dict(self._message.overrides.labels)

    @property
    def operator_taints(self) -> list[str]:
        """Taints that operators have set, in addition to its agent's."""
        return list(self._message.overrides.taints)

    @property
    def status(self) -> Literal["up", "lost", "unknown"]:
        """Whether its session stands."""
        return _STATUSES.get(self._message.status, "unknown")

    @property
    def is_cordoned(self) -> bool:
        """Whether an operator took it out of placement."""
        return self._message.cordoned

    @property
    def is_draining(self) -> bool:
        """Whether everything is to go from it."""
        return self._message.restriction.HasField("drain")

    @property
    def is_quarantined(self) -> bool:
        """Whether it is kept away from work."""
        return self._message.restriction.HasField("quarantine")

    @property
    def maintenance_time(self) -> datetime | None:
        """When its provider will take it away; none when none is announced."""
        return moment(self._message.restriction.maintenance_time)

    @property
    def free_devices(self) -> int:
        """Devices that nothing runs on."""
        return self._message.free_devices

    @property
    def free_cpu(self) -> float:
        """CPUs that nothing asked for."""
        return self._message.free_cpu_milli / 1000

    @property
    def free_memory_bytes(self) -> int:
        """Bytes that nothing asked for."""
        return self._message.free_memory_bytes

    @property
    def update_time(self) -> datetime | None:
        """When its status changed last."""
        return moment(self._message.change_time)

    @property
    def job_ids(self) -> list[str]:
        """Jobs with workers here."""
        return list(self._message.job_ids)


class Tenant:
    """What a tenant has waiting, holds and has used, with the tenants below it where policy counts so."""

    def __init__(self, message: tenant_pb2.TenantUsage) -> None:
        self._message = message

    def to_message(self) -> tenant_pb2.TenantUsage:
        """All of it, as it was sent; not to be changed."""
        return self._message

    def __repr__(self) -> str:
        return f"<Tenant {self.name}: {self.pending_jobs} pending, {self.active_jobs} active>"

    @property
    def name(self) -> str:
        """As policy and job files have it."""
        return self._message.tenant

    @property
    def parent(self) -> str:
        """The tenant above it; empty on the first level."""
        return self._message.parent

    @property
    def weight(self) -> float:
        """Its share next to its siblings."""
        return self._message.weight_milli / 1000

    @property
    def pending_jobs(self) -> int:
        """Jobs that wait, for whatever reason."""
        return self._message.pending_jobs

    @property
    def gated_jobs(self) -> int:
        """Those of them that wait for another job or for a time."""
        return self._message.gated_jobs

    @property
    def pending_devices(self) -> float:
        """What the waiting jobs ask for."""
        return self._message.pending_devices_milli / 1000

    @property
    def active_jobs(self) -> int:
        """Jobs that hold devices."""
        return self._message.active_jobs

    @property
    def active_devices(self) -> float:
        """What those hold."""
        return self._message.active_devices_milli / 1000

    @property
    def fair_share(self) -> float:
        """Decayed use as a part of the fleet, divided by the weight; the smaller goes first."""
        return self._message.share_billionths / 1e9


@dataclass(frozen=True)
class Quantiles:
    """A moment that is not certain."""

    p10: datetime | None
    """One chance in ten before."""
    p50: datetime | None
    """As likely before as after."""
    p90: datetime | None
    """Nine chances in ten before."""
    basis: str
    """What it is derived from, one sentence."""


class Explanation:
    """Why a job waits, where it would go and when, with the numbers that the scheduler decides by."""

    def __init__(self, message: explanation_pb2.Explanation) -> None:
        self._message = message

    def to_message(self) -> explanation_pb2.Explanation:
        """All of it, with every number, as it was sent; not to be changed."""
        return self._message

    def __repr__(self) -> str:
        return f"<Explanation {self.reason}: {self.message}>"

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"would help: {remedy}" for remedy in self.remedies)])

    @property
    def reason(self) -> str:
        """Stable code; take one that you do not know for a reason to wait."""
        return self._message.reason

    @property
    def message(self) -> str:
        """The same as one sentence, with numbers."""
        return self._message.message

    @property
    def is_placeable(self) -> bool:
        """Whether it holds a place, or would get one now."""
        return self._message.HasField("placement")

    @property
    def region(self) -> str:
        """Of that place; empty without one."""
        return self._message.placement.region

    @property
    def cluster(self) -> str:
        """Of that place; empty without one."""
        return self._message.placement.cluster

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes of that place."""
        return [node.node_name for node in self._message.placement.nodes]

    @property
    def queue_position(self) -> int | None:
        """Requests that have their turn before it; none when it is not in line."""
        return self._message.queue_position.requests_before if self._message.HasField("queue_position") else None

    @property
    def blocking_job_ids(self) -> list[str]:
        """Gangs before it that room is kept for."""
        return [blocker.job_id for blocker in self._message.blocking_jobs]

    @property
    def start_time(self) -> Quantiles | None:
        """When it will start; none when nothing is known."""
        if not self._message.HasField("start"):
            return None
        start = self._message.start
        return Quantiles(moment(start.p10), moment(start.p50), moment(start.p90), start.basis)

    @property
    def expected_run_time(self) -> timedelta | None:
        """How long one attempt is expected to run."""
        return span(self._message.estimate.run_time)

    @property
    def remedies(self) -> list[str]:
        """What would let it start now, one sentence each; each was tried."""
        return [remedy.message for remedy in self._message.remedies]


_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Changed(Generic[_Item]):
    """Something was added or changed; before :class:`SyncEnd`: as it is at the beginning."""

    log_index: int
    resume_token: str
    """A later watch that is given this goes on right behind this event; empty before :class:`SyncEnd`."""
    item: _Item


@dataclass(frozen=True)
class Forgotten:
    """A finished job, a lost node or a tenant without anything left was dropped from the state."""

    log_index: int
    resume_token: str
    id: str


@dataclass(frozen=True)
class SyncEnd:
    """What there was at the beginning has all been delivered."""

    log_index: int
    resume_token: str


@dataclass(frozen=True)
class Bookmark:
    """Nothing changed up to here."""

    log_index: int
    resume_token: str


@dataclass(frozen=True)
class Restarted:
    """The place in the log was lost: what follows is a new sync; changes in between were not delivered."""

    log_index: int = 0
    resume_token: str = ""


WatchItem = Union[Changed[_Item], Forgotten, SyncEnd, Bookmark, Restarted]


@dataclass(frozen=True)
class TenantChanges:
    """What one round of decisions did to tenants; sums over tenants fit together after each."""

    changed: Sequence[Tenant]
    forgotten: Sequence[str]
    """Names of tenants of which nothing is left."""


@dataclass(frozen=True)
class Output:
    """A piece of a worker's output."""

    stream: str
    """``stdout`` or ``stderr``."""
    data: bytes
    dropped_bytes: int
    """Bytes right before ``data`` that its node did not keep."""


@dataclass(frozen=True)
class ServerInfo:
    """What one replica says of itself."""

    version: str
    api_versions: Sequence[str]
    record_format_max: int
    """Highest record format that it reads and writes."""
    replica_id: int
    region: str
    cluster_id: str
