"""The calls and streams of the API as values, which both kinds of client carry out, each in its own way.

Nothing in here waits or sends. A :class:`Call` says what to send and what to make of the answer, a :class:`Stream`
where it is and how it goes on after a loss; the clients differ only in how they wait.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, Callable, Generic, Iterable, Mapping, Sequence, TypeVar

from google.protobuf.message import Message

from . import _trace as trace
from ._attempts import Attempts, new_request_id
from ._closed import OUTPUT_STREAMS, TIERS
from ._features import required_features
from ._judge import Failure, Verdict
from ._time import Seconds, duration, milliseconds, seconds
from .errors import ConfigurationError, JobFailed, NotFound, TimedOut
from .options import Endpoints, Options, Read, Tls, checked_token, tls_from_environment, token_from_environment
from .spec import JobSpec
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
    OutputStream,
    PHASES,
    Phase,
    Restarted,
    ServerInfo,
    SyncEnd,
    Tenant,
    TenantChanges,
    Until,
    WatchItem,
)
from .v1beta1 import (
    booking_pb2,
    cluster_pb2,
    common_pb2,
    fleet_pb2,
    job_pb2,
    policy_pb2,
    quota_pb2,
    schedule_pb2,
    tenant_pb2,
)

Answer = TypeVar("Answer")
Result = TypeVar("Result")
JobT = TypeVar("JobT", bound=JobView)

_JOBS, _FLEET, _QUEUES = "/muster.v1beta1.JobService/", "/muster.v1beta1.FleetService/", "/muster.v1beta1.TenantService/"
_CLUSTER, _POLICY = "/muster.v1beta1.ClusterService/", "/muster.v1beta1.PolicyService/"
_QUOTA = "/muster.v1beta1.QuotaService/"
_BOOKINGS = "/muster.v1beta1.BookingService/"
_SCHEDULES = "/muster.v1beta1.ScheduleService/"
# A watch and a list take as many ids; of more jobs, everything is watched and the others are left out here.
WATCHED_IDS_MAX = 1_000
_PAGE = 1_000
# How soon arrays with members that are not created are looked at again: at first, and after looks that found nothing new.
_LOOK_MIN_S, _LOOK_MAX_S = 0.25, 5.0
# How long the present state may take to be shown to a wait that also looks at arrays; then twice as long.
_SYNC_S = 60.0


def call_metadata(call: Call[Any], traceparent: str) -> tuple[tuple[str, str], ...] | None:
    """The metadata of a call: its span, and what it requires."""
    named: tuple[tuple[str, str], ...] = trace.metadata(traceparent) or ()
    if call.required:
        # A tuple: gRPC takes no other sequence in each of its releases.
        named = (*named, ("muster-required-features", call.required))
    return named or None


def _phases(phases: Iterable[Phase]) -> list[job_pb2.JobPhase.ValueType]:
    numbers = {word: number for number, word in PHASES.items()}
    wanted = list(phases)
    unknown = [word for word in wanted if word not in numbers]
    if unknown:
        raise ConfigurationError(f"{unknown[0]!r} is no phase of a job: {', '.join(numbers)}")
    return [job_pb2.JobPhase.ValueType(numbers[word]) for word in wanted]


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One request, and what its answer means."""

    operation: str
    path: str
    request: Message
    answer: Callable[[bytes], Any]
    """Reads the bytes of the answer."""
    result: Callable[[Any], Result]
    request_id: str | None = None
    timeout: Seconds | None = None
    required: str = ""
    """Features that the replica has to know, between commas."""


@dataclass(frozen=True)
class Page(Generic[Result]):
    """A part of a list."""

    items: Sequence[Result]
    next: Call[Page[Result]] | None


class Seen:
    """The highest position of the log that any answer named: reads wait for it on whichever replica."""

    def __init__(self) -> None:
        self.log_index = 0
        self.generation = 0

    def take(self, log_index: int, generation: int = 0) -> None:
        """Of an answer. One of a later generation of the cluster counts alone: what was seen before may be lost."""
        if generation > self.generation:
            self.generation, self.log_index = generation, log_index
        elif generation in (0, self.generation):
            self.log_index = max(self.log_index, log_index)


class Limit:
    """The time of a whole wait; none for no limit."""

    def __init__(self, timeout: Seconds | None, what: str) -> None:
        self._end = None if timeout is None else time.monotonic() + seconds(timeout)
        self._what = what

    def left(self) -> float | None:
        """Seconds; raises TimedOut when there are none."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimedOut(self._what)
        return left

    def pause(self, pause_s: float) -> float:
        """A pause, cut to the time that is left."""
        left = self.left()
        return pause_s if left is None else min(pause_s, left)


class Stream(Generic[Result]):
    """Answers that go on, across the loss of replicas."""

    operation: str
    path: str
    answer: Callable[[bytes], Any]
    limit: Limit
    ends = False
    """Whether the end of the answers is the end, and not a replica that stops."""

    def request(self) -> Message:
        """What is still wanted."""
        raise NotImplementedError

    def opening(self) -> Result | None:
        """To be delivered before what comes now."""
        return None

    def patience(self) -> float | None:
        """Seconds that the stream that is opened now may last; none for no limit."""
        return self.limit.left()

    def reopens(self) -> bool:
        """Whether to open the stream again now, because it was opened with another patience."""
        return False

    def accept(self, message: Any) -> Result | None:
        """Takes in a message; none for one that only a newer version understands."""
        raise NotImplementedError

    def judge(self, failure: Failure) -> Failure | None:
        """A failure, judged by what has been read; none when the stream begins again at once."""
        return failure


class Watch(Stream[WatchItem[Result]]):
    """Changes, each once and in log order.

    One with ``look_s`` does not stay silent for longer than that many seconds: it repeats where it is as a bookmark.
    """

    def __init__(
        self,
        what: tuple[str, str, Callable[[bytes], Any]],
        request: Any,
        item: Callable[[Any], Result],
        resume_token: str,
        timeout: Seconds | None,
        seen: Seen,
        look_s: float | None = None,
    ) -> None:
        self.operation, self.path, self.answer = what
        self._look_s, self._sync_s, self._log_index = look_s, _SYNC_S, 0
        self._is_silent = self._is_syncing = False
        self.limit = Limit(timeout, f"{self.operation}: the watch has lasted as long as it may")
        self._request = request
        self._item = item
        self._seen = seen
        self._delivered = bool(resume_token)
        self.resume_token = resume_token
        """A later watch that is given this goes on right behind the last event that was delivered."""

    def request(self) -> Message:
        self._request.resume_token = self.resume_token
        request: Message = self._request
        return request

    def patience(self) -> float | None:
        left = self.limit.left()
        if self._look_s is None:
            return left
        # Without a token the present state is shown first, which starts over whenever it is cut off.
        self._is_syncing = not self.resume_token
        own = self._look_s if self.resume_token else self._sync_s
        self._sync_s *= 1 if self.resume_token else 2
        return own if left is None else min(own, left)

    def reopens(self) -> bool:
        is_synced = self._is_syncing and bool(self.resume_token)
        self._is_syncing = self._is_syncing and not is_synced
        return is_synced

    def opening(self) -> WatchItem[Result] | None:
        is_silent, self._is_silent = self._is_silent, False
        if self.resume_token and is_silent:
            return Bookmark(self._log_index, self.resume_token)
        if self.resume_token or not self._delivered:
            return None
        self._delivered = False
        return Restarted()

    def accept(self, message: Any) -> WatchItem[Result] | None:
        if message.resume_token:
            self.resume_token = message.resume_token
        index, token = message.log_index, message.resume_token
        self._seen.take(index)
        self._log_index = index
        self._delivered = True
        event = message.WhichOneof("event")
        if event == "changed":
            return Changed(index, token, self._item(message.changed))
        if event == "sync_end":
            return SyncEnd(index, token)
        if event == "bookmark":
            return Bookmark(index, token)
        if event == "forgotten":
            return Forgotten(index, token, message.forgotten)
        return None

    def judge(self, failure: Failure) -> Failure | None:
        # Its own time was up, and not that of the caller, who has looked at that before.
        if self._look_s is not None and failure.refused.grpc_code == "DEADLINE_EXCEEDED" and not failure.refused.reason:
            self._is_silent = True
            return None
        # What lies behind the token is kept nowhere any more: begin again with the present state.
        if failure.refused.reason == "RESUME_TOKEN_COMPACTED" and self.resume_token:
            self.resume_token = ""
            self._delivered = True
            return None
        return failure


class Logs(Stream[Output]):
    """Output of a worker, from where a reader is."""

    ends = True

    def __init__(self, request: job_pb2.ReadLogsRequest, timeout: Seconds | None = None) -> None:
        self.operation, self.path = "read logs", _JOBS + "ReadLogs"
        self.answer = job_pb2.ReadLogsResponse.FromString
        self.limit = Limit(timeout, "read logs: the output was followed for as long as it may")
        self._request = request
        self._begun = False

    def request(self) -> job_pb2.ReadLogsRequest:
        return self._request

    def accept(self, message: job_pb2.ReadLogsResponse) -> Output | None:
        self._begun = self._begun or bool(message.data)
        if message.position > 0 and message.HasField("token"):
            self._request.token.CopyFrom(message.token)
            self._request.from_position = message.position
            self._request.previous = False
            self._request.tail_bytes = 0
        if not message.data and not message.dropped_bytes:
            return None
        return Output(OUTPUT_STREAMS.word(message.stream), message.data, message.dropped_bytes)

    def judge(self, failure: Failure) -> Failure:
        begun = self._begun or self._request.from_position > 0
        # Who follows a worker waits for its start, however long the job waits.
        if self._request.follow and failure.refused.reason == "WORKER_NOT_STARTED":
            return dataclasses.replace(failure, verdict=Verdict.WAIT, leader="")
        if begun and not self._request.HasField("token"):
            return dataclasses.replace(failure, verdict=Verdict.FINAL, leader="")
        # Once there was output, its node may be back soon.
        if begun and failure.refused.reason == "LOGS_UNAVAILABLE":
            return dataclasses.replace(failure, verdict=Verdict.STAY, leader="")
        return failure


class Waiting(Generic[JobT]):
    """Jobs that are waited for: which of them are where they are wanted, as a watch goes on.

    A watch does not tell of members of arrays that are not created, nor that such a member has ended with its array.
    ``arrays`` says of which array a job is a member, as far as that is known before the watch shows it. An array with
    members that the watch may be silent about is looked at: when none is left to be created, they are listed by their ids.
    """

    def __init__(
        self,
        job_ids: Iterable[str],
        until: Until,
        seen: Seen,
        *,
        ends_count: bool = False,
        arrays: Mapping[str, str] | None = None,
    ) -> None:
        self.left = dict.fromkeys(job_ids)
        self._array_of = {job_id: array for job_id, array in (arrays or {}).items() if array and job_id in self.left}
        self._until = until
        self._ends_count = ends_count
        # A replica that has not applied this yet may not know the jobs either.
        self._known_since = seen.log_index
        self._begin()
        # Members whose jobs are not kept any more; the array still knows how they ended.
        self._forgotten: dict[str, None] = {}
        self._looks: dict[str, _Look] = {}

    def _begin(self) -> None:
        """What the watch has not shown yet: single jobs, and members that may not be created, by their array."""
        self._is_synced = False
        self._unshown: dict[str, None] = {}
        self._uncreated: dict[str, dict[str, None]] = {}
        for job_id in self.left:
            array = self._array_of.get(job_id, "")
            (self._uncreated.setdefault(array, {}) if array else self._unshown)[job_id] = None

    def watched(self) -> tuple[list[str], str]:
        """Ids for the watch, or the one array that all of the jobs are of; neither for everything."""
        if len(self.left) <= WATCHED_IDS_MAX:
            return list(self.left), ""
        arrays = {self._array_of.get(job_id, "") for job_id in self.left}
        return [], arrays.pop() if len(arrays) == 1 else ""

    def accept(self, item: WatchItem[JobT]) -> JobT | None:
        """The job that is there now. Raises JobFailed, or NotFound for one that is not kept any more."""
        if isinstance(item, Changed):
            return self._shown(item.item) if item.item.id in self.left else None
        if isinstance(item, Restarted):
            self._begin()
        elif isinstance(item, Forgotten) and item.id in self.left:
            if item.id not in self._array_of:
                raise _gone(item.id)
            self._forgotten[item.id] = None
        elif isinstance(item, (SyncEnd, Bookmark)) and item.log_index >= self._known_since:
            self._is_synced = True
            # Everything up to there has been shown, but for members that are not created.
            missing = next(iter(self._unshown), None)
            if missing is not None:
                raise _gone(missing)
        return None

    def due(self) -> list[str]:
        """Arrays to be looked at now; none before the watch has shown the members that are jobs."""
        if not self._is_synced:
            return []
        now = time.monotonic()
        wanted = dict.fromkeys(array for array, members in self._uncreated.items() if members)
        wanted.update(dict.fromkeys(self._array_of[job_id] for job_id in self._forgotten))
        self._looks = {array: self._looks.get(array, _Look()) for array in wanted}
        return [array for array, look in self._looks.items() if look.at <= now]

    def looked_at(self, array_id: str, array: Array | None) -> list[list[str]]:
        """Takes in an array as it is, none for one that is not kept; the ids of jobs that have to be listed now."""
        counts = None if array is None else array.counts
        look = self._looks[array_id]
        look.took(counts)
        members = [job_id for job_id in self._forgotten if self._array_of[job_id] == array_id]
        # One that ends by itself before it is created is told by the watch; with its array, none is left to be created.
        if counts is None or counts["uncreated"] == 0:
            members += self._uncreated.get(array_id, {})
        return [members[at : at + WATCHED_IDS_MAX] for at in range(0, len(members), WATCHED_IDS_MAX)]

    def listed(self, job_ids: Iterable[str], jobs: Iterable[JobT]) -> list[JobT]:
        """Takes in jobs that were listed by these ids; those of them that are there now."""
        found = {job.id: job for job in jobs}
        there = []
        for job_id in job_ids:
            if job_id not in self.left:
                continue
            if job_id not in found:
                raise _gone(job_id)
            self._forgotten.pop(job_id, None)
            job = self._shown(found[job_id])
            there += [job] if job is not None else []
        return there

    def _shown(self, job: JobT) -> JobT | None:
        self._unshown.pop(job.id, None)
        array = job.array_id
        if array:
            self._array_of[job.id] = array
            members = self._uncreated.setdefault(array, {})
            if _may_be_uncreated(job):
                members[job.id] = None
            else:
                members.pop(job.id, None)
        try:
            if not job.has_reached(self._until):
                return None
        except JobFailed:
            if not self._ends_count:
                raise
        del self.left[job.id]
        self._forgotten.pop(job.id, None)
        return job


class _Look:
    """When an array is looked at next."""

    def __init__(self) -> None:
        self.at = 0.0
        self._pause_s = _LOOK_MIN_S
        self._counts: dict[str, int] | None = None

    def took(self, counts: dict[str, int] | None) -> None:
        """Sooner while its members move."""
        self._pause_s = _LOOK_MIN_S if counts != self._counts else min(self._pause_s * 2, _LOOK_MAX_S)
        self._counts = counts
        self.at = time.monotonic() + self._pause_s


def _may_be_uncreated(job: JobView) -> bool:
    status = job.to_message().status
    return job.phase == "pending" and status.attempt == 0 and not status.eligible


def _gone(job_id: str) -> NotFound:
    message = f"{job_id} is not kept any more, or never was"
    return NotFound("wait for job", message, reason="JOB_NOT_FOUND", number="MS-2001", grpc_code="NOT_FOUND")


class Core(Generic[JobT]):
    """What a client knows, and every call that it can make."""

    def __init__(
        self,
        endpoints: str | Sequence[str] | None,
        tls: Tls | None,
        token: str | None,
        options: Options,
        read: Read,
        job: Callable[[job_pb2.Job], JobT],
    ) -> None:
        self.endpoints = Endpoints(endpoints)
        self.token = token_from_environment() if token is None else checked_token(token, "token")
        self.tls = tls if tls is not None else tls_from_environment(self.token is not None)
        self.options = options
        self.read = read
        self.seen = Seen()
        self.job_of = job

    def attempts(self, call: Call[Any]) -> Attempts:
        """The repetitions of a call."""
        options = self.options
        if call.timeout is not None:
            options = dataclasses.replace(options, deadline=call.timeout)
        return Attempts(self.endpoints, options, call.operation, request_id=call.request_id)

    def streaming(self, stream: Stream[Any]) -> Attempts:
        """The repetitions of a stream."""
        return Attempts(self.endpoints, self.options, stream.operation)

    def finish(self, call: Call[Result], answer: Any) -> Result:
        """What an answer means."""
        freshness = getattr(answer, "freshness", None)
        if freshness is not None:
            self.seen.take(freshness.log_index, freshness.generation)
        return call.result(answer)

    def reading(self, read: Read | None) -> common_pb2.ReadOptions:
        """For a request."""
        return (read or self.read).to_message(self.seen.log_index, self.seen.generation)

    # Jobs.

    def submit(self, spec: JobSpec, request_id: str | None, timeout: Seconds | None) -> Call[JobT]:
        if spec.array_size:
            raise ConfigurationError("this is an array of jobs; submit_array submits it")
        return self._submit(spec, request_id, timeout, lambda answer: self._submitted([spec], answer.job_ids)[0])

    def submit_array(self, spec: JobSpec, request_id: str | None, timeout: Seconds | None) -> Call[list[JobT]]:
        if not spec.array_size:
            raise ConfigurationError("this is a single job; submit submits it")
        return self._submit(spec, request_id, timeout, lambda answer: self._submitted([spec], answer.job_ids))

    def submit_all(self, specs: Sequence[JobSpec], request_id: str | None, timeout: Seconds | None) -> Call[list[JobT]]:
        request_id = new_request_id(request_id)
        request = job_pb2.SubmitJobsRequest(request_id=request_id, jobs=[spec.to_message() for spec in specs])
        parse = job_pb2.SubmitJobsResponse.FromString
        return Call(
            "submit jobs", _JOBS + "SubmitJobs", request, parse,
            lambda answer: self._submitted(specs, answer.job_ids), request_id, timeout=timeout,
            required=required_features(request.jobs),
        )  # fmt: skip

    def validate(self, spec: JobSpec, timeout: Seconds | None) -> Call[None]:
        request = job_pb2.SubmitJobRequest(request_id=new_request_id(None), job=spec.to_message(), validate_only=True)
        parse = job_pb2.SubmitJobResponse.FromString
        required = required_features([request.job])
        return Call("validate job", _JOBS + "SubmitJob", request, parse, _nothing, timeout=timeout, required=required)

    def _submit(
        self, spec: JobSpec, request_id: str | None, timeout: Seconds | None, result: Callable[[Any], Result]
    ) -> Call[Result]:
        request_id = new_request_id(request_id)
        request = job_pb2.SubmitJobRequest(request_id=request_id, job=spec.to_message())
        parse = job_pb2.SubmitJobResponse.FromString
        required = required_features([request.job])
        return Call(
            "submit job", _JOBS + "SubmitJob", request, parse, result, request_id, timeout=timeout, required=required
        )

    def _submitted(self, specs: Sequence[JobSpec], job_ids: Sequence[str]) -> list[JobT]:
        found, rest = [], iter(job_ids)
        for spec in specs:
            array_id, indices = "", spec.array_indices
            for ordinal, index in enumerate(indices or (0,)):
                status = job_pb2.JobStatus(
                    phase=job_pb2.JOB_PHASE_PENDING, tier=TIERS.number(spec.tier or "standard"),
                    changed_at_index=self.seen.log_index,
                )  # fmt: skip
                job = job_pb2.Job(id=next(rest), name=spec.name, tenant=spec.tenant or "default", status=status)
                if indices:
                    # An array has the number of its first job.
                    array_id = array_id or job.id.replace("job-", "array-", 1)
                    place = job_pb2.ArrayMember(array_id=array_id, index=index, size=len(indices), ordinal=ordinal)
                    job.array.CopyFrom(place)
                found.append(self.job_of(job))
        return found

    def cancel(self, job_id: str, request_id: str | None, timeout: Seconds | None) -> Call[JobT]:
        request_id = new_request_id(request_id)
        request = job_pb2.CancelJobRequest(request_id=request_id, job_id=job_id)
        parse = job_pb2.CancelJobResponse.FromString
        result = lambda answer: self.job_of(answer.job)  # noqa: E731
        return Call("cancel job", _JOBS + "CancelJob", request, parse, result, request_id, timeout=timeout)

    def control(
        self, control: Control, selector: JobSelector, dry_run: bool, request_id: str | None, timeout: Seconds | None
    ) -> Call[Controlled]:
        request_id = new_request_id(request_id)
        name = f"{control.capitalize()}Jobs"
        narrowed = job_pb2.JobFilter(
            job_ids=selector.job_ids, array_id=selector.array_id, tenant=selector.tenant,
            name_prefix=selector.name_prefix, label_selector=selector.labels, creator=selector.creator,
            mine=selector.mine, phases=_phases(selector.phases),
        )  # fmt: skip
        message = job_pb2.JobSelector(filter=narrowed, all=selector.all_jobs, after_job_id=selector.after_job_id)
        request = getattr(job_pb2, f"{name}Request")(request_id=request_id, selector=message, validate_only=dry_run)
        parse = getattr(job_pb2, f"{name}Response").FromString
        result = lambda a: Controlled(  # noqa: E731
            a.job_count, a.remaining_count, a.passed_over_count, list(a.job_ids), a.last_job_id
        )
        return Call(f"{control} jobs", _JOBS + name, request, parse, result, request_id, timeout=timeout)

    def update(
        self, job_id: str, job: job_pb2.Job, fields: Sequence[str], etag: str, request_id: str | None,
        timeout: Seconds | None,
    ) -> Call[JobT]:  # fmt: skip
        request_id = new_request_id(request_id)
        request = job_pb2.UpdateJobRequest(request_id=request_id, job_id=job_id, job=job, etag=etag)
        request.update_mask.paths.extend(fields)
        parse = job_pb2.UpdateJobResponse.FromString
        result = lambda answer: self.job_of(answer.job)  # noqa: E731
        return Call("update job", _JOBS + "UpdateJob", request, parse, result, request_id, timeout=timeout)

    def to_front(self, job_id: str, request_id: str | None, timeout: Seconds | None) -> Call[JobT]:
        request_id = new_request_id(request_id)
        request = job_pb2.UpdateJobRequest(request_id=request_id, job_id=job_id, move_to_front=True)
        parse = job_pb2.UpdateJobResponse.FromString
        result = lambda answer: self.job_of(answer.job)  # noqa: E731
        return Call("move job", _JOBS + "UpdateJob", request, parse, result, request_id, timeout=timeout)

    def set_throttle(
        self, array_id: str, throttle: int | None, request_id: str | None, timeout: Seconds | None
    ) -> Call[Array]:
        request_id = new_request_id(request_id)
        array = job_pb2.JobArray(throttle=throttle)
        job = job_pb2.Job(spec=job_pb2.JobSpec(array=array))
        request = job_pb2.UpdateJobRequest(request_id=request_id, job_id=array_id, job=job)
        request.update_mask.paths.append("spec.array.throttle")
        parse = job_pb2.UpdateJobResponse.FromString
        result = lambda answer: Array(answer.array)  # noqa: E731
        return Call("set throttle", _JOBS + "UpdateJob", request, parse, result, request_id, timeout=timeout)

    def job(self, job_id: str, read: Read | None, timeout: Seconds | None) -> Call[JobT]:
        request = job_pb2.GetJobRequest(job_id=job_id, read=self.reading(read))
        return self._get(
            "get job", _JOBS + "GetJob", request, job_pb2.GetJobResponse, lambda a: self.job_of(a.job), timeout
        )

    def array(self, array_id: str, read: Read | None, timeout: Seconds | None) -> Call[Array]:
        request = job_pb2.GetArrayRequest(array_id=array_id, read=self.reading(read))
        answer = job_pb2.GetArrayResponse
        return self._get("get array", _JOBS + "GetArray", request, answer, lambda a: Array(a.array), timeout)

    def arrays(
        self, phases: Iterable[Phase], tenant: str, name_prefix: str, selector: str, creator: str, mine: bool,
        read: Read | None, timeout: Seconds | None,
    ) -> Call[Page[Array]]:  # fmt: skip
        narrowed = job_pb2.JobFilter(
            tenant=tenant, name_prefix=name_prefix, phases=_phases(phases), label_selector=selector, creator=creator,
            mine=mine,
        )  # fmt: skip
        return self._arrays(narrowed, read, timeout)

    def array_counts(self, array_id: str, timeout: Seconds | None) -> Call[Page[Array]]:
        """One array without its indices, which costs the replica far less than the whole."""
        return self._arrays(job_pb2.JobFilter(array_id=array_id), None, timeout)

    def _arrays(
        self, narrowed: job_pb2.JobFilter, read: Read | None, timeout: Seconds | None
    ) -> Call[Page[Array]]:
        request = job_pb2.ListArraysRequest(page_size=_PAGE, read=self.reading(read), filter=narrowed)
        what = ("list arrays", _JOBS + "ListArrays", job_pb2.ListArraysResponse)
        return self._list(what, request, lambda page: [Array(array) for array in page.arrays], timeout)

    def jobs_named(self, job_ids: Iterable[str], timeout: Seconds | None) -> Call[Page[JobT]]:
        """These jobs, members of arrays that are not created among them."""
        request = job_pb2.ListJobsRequest(
            page_size=_PAGE, read=self.reading(None), filter=job_pb2.JobFilter(job_ids=job_ids)
        )
        what = ("list jobs", _JOBS + "ListJobs", job_pb2.ListJobsResponse)
        return self._list(what, request, lambda page: [self.job_of(job) for job in page.jobs], timeout)

    def jobs(
        self, phases: Iterable[Phase], tenant: str, name_prefix: str, selector: str, creator: str, mine: bool,
        read: Read | None, timeout: Seconds | None,
    ) -> Call[Page[JobT]]:  # fmt: skip
        narrowed = job_pb2.JobFilter(
            tenant=tenant, name_prefix=name_prefix,
            phases=_phases(phases),
            label_selector=selector, creator=creator, mine=mine,
        )  # fmt: skip
        request = job_pb2.ListJobsRequest(page_size=_PAGE, read=self.reading(read), filter=narrowed)
        what = ("list jobs", _JOBS + "ListJobs", job_pb2.ListJobsResponse)
        return self._list(what, request, lambda page: [self.job_of(job) for job in page.jobs], timeout)

    def plan(self, spec: JobSpec, read: Read | None, timeout: Seconds | None) -> Call[Explanation]:
        request = job_pb2.PlanJobRequest(job=spec.to_message(), read=self.reading(read))
        answer = job_pb2.PlanJobResponse
        call = self._get("plan job", _JOBS + "PlanJob", request, answer, lambda a: Explanation(a.explanation), timeout)
        return dataclasses.replace(call, required=required_features([request.job]))

    def explain(self, job_id: str, read: Read | None, timeout: Seconds | None) -> Call[Explanation]:
        request = job_pb2.ExplainJobRequest(job_id=job_id, read=self.reading(read))
        answer = job_pb2.ExplainJobResponse
        return self._get(
            "explain job", _JOBS + "ExplainJob", request, answer, lambda a: Explanation(a.explanation), timeout
        )

    def commit_checkpoint(self, job_id: str, token: common_pb2.FencingToken, timeout: Seconds | None) -> Call[None]:
        request = job_pb2.CommitCheckpointRequest(job_id=job_id, token=token)
        parse = job_pb2.CommitCheckpointResponse.FromString
        return Call("commit checkpoint", _JOBS + "CommitCheckpoint", request, parse, _nothing, timeout=timeout)

    def watch(
        self, job_ids: Iterable[str], tenant: str, selector: str, resume_token: str, timeout: Seconds | None
    ) -> Watch[JobT]:
        narrowed = job_pb2.JobFilter(job_ids=job_ids, tenant=tenant, label_selector=selector)
        request = job_pb2.WatchJobsRequest(filter=narrowed)
        what = ("watch jobs", _JOBS + "WatchJobs", job_pb2.WatchJobsResponse.FromString)
        return Watch(what, request, self.job_of, resume_token, timeout, self.seen)

    def watch_waiting(self, waiting: Waiting[JobT], timeout: Seconds | None) -> Watch[JobT]:
        """For a wait, which looks at arrays between the items."""
        job_ids, array_id = waiting.watched()
        request = job_pb2.WatchJobsRequest(filter=job_pb2.JobFilter(job_ids=job_ids, array_id=array_id))
        what = ("watch jobs", _JOBS + "WatchJobs", job_pb2.WatchJobsResponse.FromString)
        return Watch(what, request, self.job_of, "", timeout, self.seen, _LOOK_MAX_S)

    def logs(
        self, job_id: str, rank: int, follow: bool, previous: bool, stream: OutputStream | None, tail_bytes: int,
        timeout: Seconds | None,
    ) -> Logs:  # fmt: skip
        request = job_pb2.ReadLogsRequest(
            job_id=job_id, rank=rank, follow=follow, previous=previous, tail_bytes=tail_bytes
        )
        if stream is not None:
            request.stream = OUTPUT_STREAMS.number(stream)
        return Logs(request, timeout)

    # Nodes, tenants, policy and the replicas themselves.

    def node(self, name: str, read: Read | None, timeout: Seconds | None) -> Call[Node]:
        request = fleet_pb2.GetNodeRequest(node=name, read=self.reading(read))
        return self._get(
            "get node", _FLEET + "GetNode", request, fleet_pb2.GetNodeResponse, lambda a: Node(a.node), timeout
        )

    def nodes(self, region: str, read: Read | None, timeout: Seconds | None) -> Call[Page[Node]]:
        request = fleet_pb2.ListNodesRequest(page_size=_PAGE, read=self.reading(read), region=region)
        what = ("list nodes", _FLEET + "ListNodes", fleet_pb2.ListNodesResponse)
        return self._list(what, request, lambda page: [Node(node) for node in page.nodes], timeout)

    def watch_nodes(self, region: str, resume_token: str, timeout: Seconds | None) -> Watch[Node]:
        request = fleet_pb2.WatchNodesRequest(region=region)
        what = ("watch nodes", _FLEET + "WatchNodes", fleet_pb2.WatchNodesResponse.FromString)
        return Watch(what, request, Node, resume_token, timeout, self.seen)

    def change_node(
        self, verb: str, name: str, request_id: str | None, timeout: Seconds | None, **more: Any
    ) -> Call[Node]:
        """``verb`` is that of the call, as in ``CordonNode``."""
        request_id = new_request_id(request_id)
        request = getattr(fleet_pb2, f"{verb}Request")(request_id=request_id, node=name, **more)
        parse = getattr(fleet_pb2, f"{verb}Response").FromString
        result = lambda answer: Node(answer.node)  # noqa: E731
        return Call(_words(verb), _FLEET + verb, request, parse, result, request_id, timeout=timeout)

    def drain_node(
        self, name: str, stop_after: Seconds | None, reason: str, request_id: str | None, timeout: Seconds | None
    ) -> Call[Node]:
        more: dict[str, Any] = {"reason": reason}
        if stop_after is not None:
            more["stop_after"] = duration(milliseconds(stop_after))
        return self.change_node("DrainNode", name, request_id, timeout, **more)

    def set_node_labels(
        self,
        name: str,
        labels: Mapping[str, str | None],
        taints: Mapping[str, bool],
        validate_only: bool,
        request_id: str | None,
        timeout: Seconds | None,
    ) -> Call[Node]:
        more = {
            "set_labels": {key: value for key, value in labels.items() if value is not None},
            "remove_labels": [key for key, value in labels.items() if value is None],
            "set_taints": [key for key, is_set in taints.items() if is_set],
            "remove_taints": [key for key, is_set in taints.items() if not is_set],
            "validate_only": validate_only,
        }
        return self.change_node("SetNodeLabels", name, request_id, timeout, **more)

    def tenants(self, read: Read | None, timeout: Seconds | None) -> Call[Page[Tenant]]:
        request = tenant_pb2.ListTenantsRequest(page_size=_PAGE, read=self.reading(read))
        what = ("list tenants", _QUEUES + "ListTenants", tenant_pb2.ListTenantsResponse)
        return self._list(what, request, lambda page: [Tenant(usage) for usage in page.tenants], timeout)

    def licences(self, read: Read | None, timeout: Seconds | None) -> Call[list[tenant_pb2.Licence]]:
        request = tenant_pb2.ListLicencesRequest(read=self.reading(read))
        answer = tenant_pb2.ListLicencesResponse
        path = _QUEUES + "ListLicences"
        return self._get("list licences", path, request, answer, lambda a: list(a.licences), timeout)

    def watch_tenants(self, names: Iterable[str], resume_token: str, timeout: Seconds | None) -> Watch[TenantChanges]:
        request = tenant_pb2.WatchTenantsRequest(tenants=names)
        what = ("watch tenants", _QUEUES + "WatchTenants", tenant_pb2.WatchTenantsResponse.FromString)

        def item(changes: tenant_pb2.TenantChanges) -> TenantChanges:
            return TenantChanges([Tenant(usage) for usage in changes.changed], list(changes.forgotten))

        return Watch(what, request, item, resume_token, timeout, self.seen)

    def policy(self, read: Read | None, timeout: Seconds | None) -> Call[policy_pb2.GetPolicyResponse]:
        request = policy_pb2.GetPolicyRequest(read=self.reading(read))
        return self._get("get policy", _POLICY + "GetPolicy", request, policy_pb2.GetPolicyResponse, _all, timeout)

    def quota_grants(
        self, tenant: str, include_over: bool, read: Read | None, timeout: Seconds | None
    ) -> Call[list[quota_pb2.QuotaGrant]]:
        request = quota_pb2.ListQuotaGrantsRequest(tenant=tenant, include_over=include_over, read=self.reading(read))
        path, answer = _QUOTA + "ListQuotaGrants", quota_pb2.ListQuotaGrantsResponse
        return self._get("list quota grants", path, request, answer, lambda a: list(a.grants), timeout)

    def ask_quota(
        self,
        verb: str,
        grant: quota_pb2.QuotaGrant,
        validate_only: bool,
        request_id: str | None,
        timeout: Seconds | None,
    ) -> Call[quota_pb2.QuotaGrant]:
        """``verb`` is that of the call, as in ``RequestQuota``."""
        request_id = new_request_id(request_id)
        message = getattr(quota_pb2, f"{verb}Request")
        request = message(request_id=request_id, grant=grant, validate_only=validate_only)
        parse = getattr(quota_pb2, f"{verb}Response").FromString
        result = lambda answer: answer.grant  # noqa: E731
        return Call(_words(verb), _QUOTA + verb, request, parse, result, request_id, timeout=timeout)

    def answer_quota(
        self, number: int, approve: bool, reason: str, request_id: str | None, timeout: Seconds | None
    ) -> Call[quota_pb2.QuotaGrant]:
        request_id = new_request_id(request_id)
        request = quota_pb2.AnswerQuotaRequest(request_id=request_id, id=number, approve=approve, reason=reason)
        parse = quota_pb2.AnswerQuotaResponse.FromString
        result = lambda answer: answer.grant  # noqa: E731
        return Call("answer quota", _QUOTA + "AnswerQuota", request, parse, result, request_id, timeout=timeout)

    def create_booking(
        self, name: str, spec: booking_pb2.BookingSpec, request_id: str | None, timeout: Seconds | None
    ) -> Call[booking_pb2.Booking]:
        request_id = new_request_id(request_id)
        request = booking_pb2.CreateBookingRequest(request_id=request_id, name=name, spec=spec)
        parse = booking_pb2.CreateBookingResponse.FromString
        result = lambda answer: answer.booking  # noqa: E731
        path = _BOOKINGS + "CreateBooking"
        return Call("create booking", path, request, parse, result, request_id, timeout=timeout)

    def plan_booking(
        self, name: str, spec: booking_pb2.BookingSpec, timeout: Seconds | None
    ) -> Call[booking_pb2.PlanBookingResponse]:
        request = booking_pb2.PlanBookingRequest(name=name, spec=spec, read=self.reading(None))
        answer = booking_pb2.PlanBookingResponse
        return self._get("plan booking", _BOOKINGS + "PlanBooking", request, answer, _all, timeout)

    def booking(self, name: str, read: Read | None, timeout: Seconds | None) -> Call[booking_pb2.Booking]:
        request = booking_pb2.GetBookingRequest(name=name, read=self.reading(read))
        answer = booking_pb2.GetBookingResponse
        return self._get("get booking", _BOOKINGS + "GetBooking", request, answer, lambda a: a.booking, timeout)

    def bookings(self, read: Read | None, timeout: Seconds | None) -> Call[list[booking_pb2.Booking]]:
        request = booking_pb2.ListBookingsRequest(read=self.reading(read))
        answer = booking_pb2.ListBookingsResponse
        path = _BOOKINGS + "ListBookings"
        return self._get("list bookings", path, request, answer, lambda a: list(a.bookings), timeout)

    def capacity(self, read: Read | None, timeout: Seconds | None) -> Call[list[fleet_pb2.Capacity]]:
        request = fleet_pb2.ListCapacityRequest(read=self.reading(read))
        answer = fleet_pb2.ListCapacityResponse
        return self._get("list capacity", _FLEET + "ListCapacity", request, answer, lambda a: list(a.capacity), timeout)

    def holds(self, read: Read | None, timeout: Seconds | None) -> Call[list[fleet_pb2.FleetHold]]:
        request = fleet_pb2.ListFleetHoldsRequest(read=self.reading(read))
        answer = fleet_pb2.ListFleetHoldsResponse
        return self._get("list holds", _FLEET + "ListFleetHolds", request, answer, lambda a: list(a.holds), timeout)

    def set_hold(
        self, request: fleet_pb2.SetFleetHoldRequest, request_id: str | None, timeout: Seconds | None
    ) -> Call[fleet_pb2.FleetHold]:
        request_id = new_request_id(request_id)
        asked = fleet_pb2.SetFleetHoldRequest()
        asked.CopyFrom(request)
        asked.request_id = request_id
        parse = fleet_pb2.SetFleetHoldResponse.FromString
        result = lambda answer: answer.hold  # noqa: E731
        return Call("set hold", _FLEET + "SetFleetHold", asked, parse, result, request_id, timeout=timeout)

    def delete_booking(self, name: str, request_id: str | None, timeout: Seconds | None) -> Call[None]:
        request_id = new_request_id(request_id)
        request = booking_pb2.DeleteBookingRequest(request_id=request_id, name=name)
        parse = booking_pb2.DeleteBookingResponse.FromString
        result = lambda answer: None  # noqa: E731
        path = _BOOKINGS + "DeleteBooking"
        return Call("delete booking", path, request, parse, result, request_id, timeout=timeout)
    # Schedules.

    def set_schedule(
        self, schedule: schedule_pb2.Schedule, is_new: bool, request_id: str | None, timeout: Seconds | None
    ) -> Call[schedule_pb2.Schedule]:
        request_id = new_request_id(request_id)
        name = "CreateSchedule" if is_new else "UpdateSchedule"
        request = getattr(schedule_pb2, f"{name}Request")(request_id=request_id, schedule=schedule)
        parse = getattr(schedule_pb2, f"{name}Response").FromString
        operation = "create schedule" if is_new else "update schedule"
        result = lambda answer: answer.schedule  # noqa: E731
        required = required_features([schedule.job])
        return Call(operation, _SCHEDULES + name, request, parse, result, request_id, timeout=timeout, required=required)

    def change_schedule(
        self, change: str, name: str, tenant: str, reason: str, request_id: str | None, timeout: Seconds | None
    ) -> Call[None]:
        request_id = new_request_id(request_id)
        said = {"reason": reason} if change == "Suspend" else {}
        kind = getattr(schedule_pb2, f"{change}ScheduleRequest")
        request = kind(request_id=request_id, tenant=tenant, name=name, **said)
        parse = getattr(schedule_pb2, f"{change}ScheduleResponse").FromString
        operation, path = f"{change.lower()} schedule", f"{_SCHEDULES}{change}Schedule"
        return Call(operation, path, request, parse, _nothing, request_id, timeout=timeout)

    def run_schedule(self, name: str, tenant: str, request_id: str | None, timeout: Seconds | None) -> Call[str]:
        request_id = new_request_id(request_id)
        request = schedule_pb2.RunScheduleRequest(request_id=request_id, tenant=tenant, name=name)
        parse = schedule_pb2.RunScheduleResponse.FromString
        result = lambda answer: answer.job_id  # noqa: E731
        return Call("run schedule", _SCHEDULES + "RunSchedule", request, parse, result, request_id, timeout=timeout)

    def schedule(
        self, name: str, tenant: str, read: Read | None, timeout: Seconds | None
    ) -> Call[schedule_pb2.Schedule]:
        request = schedule_pb2.GetScheduleRequest(tenant=tenant, name=name, read=self.reading(read))
        result = lambda answer: answer.schedule  # noqa: E731
        path, answer = _SCHEDULES + "GetSchedule", schedule_pb2.GetScheduleResponse
        return self._get("get schedule", path, request, answer, result, timeout)

    def schedules(
        self, tenant: str, read: Read | None, timeout: Seconds | None
    ) -> Call[list[schedule_pb2.Schedule]]:
        request = schedule_pb2.ListSchedulesRequest(tenant=tenant, read=self.reading(read))
        result = lambda answer: list(answer.schedules)  # noqa: E731
        path, answer = _SCHEDULES + "ListSchedules", schedule_pb2.ListSchedulesResponse
        return self._get("list schedules", path, request, answer, result, timeout)

    def status(self, timeout: Seconds | None) -> Call[cluster_pb2.GetStatusResponse]:
        # Without what was seen: how far a replica lags is part of its answer.
        request = cluster_pb2.GetStatusRequest()
        return self._get("get status", _CLUSTER + "GetStatus", request, cluster_pb2.GetStatusResponse, _all, timeout)

    def server_info(self, timeout: Seconds | None) -> Call[ServerInfo]:
        def result(answer: cluster_pb2.GetServerInfoResponse) -> ServerInfo:
            return ServerInfo(
                answer.version,
                tuple(answer.api_versions),
                answer.max_record_format,
                answer.replica_id,
                answer.region,
                answer.cluster_id,
            )

        request, answer = cluster_pb2.GetServerInfoRequest(), cluster_pb2.GetServerInfoResponse
        return self._get("get server info", _CLUSTER + "GetServerInfo", request, answer, result, timeout)

    def _get(
        self,
        operation: str,
        path: str,
        request: Message,
        answer: Any,
        result: Callable[[Any], Result],
        timeout: Seconds | None,
    ) -> Call[Result]:
        return Call(operation, path, request, answer.FromString, result, timeout=timeout)

    def _list(
        self,
        what: tuple[str, str, Any],
        request: Any,
        items: Callable[[Any], Sequence[Result]],
        timeout: Seconds | None,
    ) -> Call[Page[Result]]:
        operation, path, answer = what

        def result(page: Any) -> Page[Result]:
            if not page.next_page_token:
                return Page(items(page), None)
            following = type(request)()
            following.CopyFrom(request)
            following.page_token = page.next_page_token
            return Page(items(page), self._list(what, following, items, timeout))

        return Call(operation, path, request, answer.FromString, result, timeout=timeout)


def _nothing(_: Any) -> None:
    return None


def _all(answer: Any) -> Any:
    return answer


def _words(verb: str) -> str:
    return "".join(f" {c.lower()}" if c.isupper() else c for c in verb).strip()
