"""The client that waits: every call returns when it is answered."""

from __future__ import annotations

import threading
import time
from typing import Any, Generator, Iterator, Generic, Iterable, Mapping, Sequence, TypeVar

import grpc

from . import _trace as trace
from ._attempts import channel_options, credentials
from ._core import Call, Core, Limit, Page, Result, Stream, Waiting, Watch, call_metadata
from ._time import Seconds
from .errors import ConfigurationError
from .options import Options, Read, Tls
from .spec import JobSpec
from .types import (
    Array,
    Control,
    Controlled,
    Explanation,
    JobSelector,
    JobView,
    Node,
    Output,
    OutputStream,
    Phase,
    ServerInfo,
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

_Item = TypeVar("_Item")


class Client:
    """A client of one cluster; may be used by several threads.

    Without ``endpoints`` those of MUSTER_ENDPOINTS, without ``tls`` the files that MUSTER_CA, MUSTER_CERT and
    MUSTER_KEY name, if they do, without ``token`` the bearer token of MUSTER_TOKEN_FILE or MUSTER_TOKEN, if there is
    one: it is sent over TLS only, and takes the place of a certificate. Mutations are repeated under one request id until their outcome is known, so
    each has one effect, also when the leader dies on the way. ``timeout`` of a call is the time of all its
    repetitions, in seconds or as a timedelta; without one it is that of ``options``.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] | None = None,
        *,
        tls: Tls | None = None,
        token: str | None = None,
        options: Options = Options(),
        read: Read = Read.any(),
    ) -> None:
        self._core: Core[Job] = Core(endpoints, tls, token, options, read, lambda message: Job(message, self))
        self._channels = _Channels(self._core.tls, self._core.token)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections, also of clients made by :meth:`reading`; streams that are open end with them."""
        self._channels.close()

    def reading(self, read: Read) -> Client:
        """The same client, with the same connections and memory, whose reads are answered like this."""
        core = self._core
        other = Client(core.endpoints.addresses, tls=core.tls, token=core.token, options=core.options, read=read)
        other._channels, other._core.endpoints, other._core.seen = self._channels, self._core.endpoints, self._core.seen
        return other

    @property
    def seen_log_index(self) -> int:
        """The highest position of the log that any answer named; reads wait for it."""
        return self._core.seen.log_index

    def observe_log_index(self, log_index: int) -> None:
        """Makes later reads wait for a position, for example one that another process was told."""
        self._core.seen.take(log_index)

    def submit(self, spec: JobSpec, *, request_id: str | None = None, timeout: Seconds | None = None) -> Job:
        """Submits one job; durable on a quorum when it returns."""
        return self._run(self._core.submit(spec, request_id, timeout))

    def submit_array(self, spec: JobSpec, *, request_id: str | None = None, timeout: Seconds | None = None) -> Jobs:
        """Submits an array; its jobs in the order of their indexes."""
        return self._run(self._core.submit_array(spec, request_id, timeout))

    def submit_all(
        self, specs: Sequence[JobSpec], *, request_id: str | None = None, timeout: Seconds | None = None
    ) -> Jobs:
        """Submits several jobs, all or none; in their order, arrays expanded."""
        return self._run(self._core.submit_all(specs, request_id, timeout))

    def validate(self, spec: JobSpec, *, timeout: Seconds | None = None) -> None:
        """Raises Refused when the cluster would refuse this job."""
        return self._run(self._core.validate(spec, timeout))

    def plan(self, spec: JobSpec, *, read: Read | None = None, timeout: Seconds | None = None) -> Explanation:
        """What would become of a job if it were submitted now, and why. Changes nothing."""
        return self._run(self._core.plan(spec, read, timeout))

    def explain(self, job_id: str, *, read: Read | None = None, timeout: Seconds | None = None) -> Explanation:
        """Why a job waits, what stands before it and when it will start; or where it is."""
        return self._run(self._core.explain(job_id, read, timeout))

    def cancel(self, job_id: str, *, request_id: str | None = None, timeout: Seconds | None = None) -> Job:
        """Cancels a job: a waiting one at once, a running one after its workers have stopped."""
        return self._run(self._core.cancel(job_id, request_id, timeout))

    def control(
        self,
        control: Control,
        selector: JobSelector,
        *,
        dry_run: bool = False,
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> Controlled:
        """Cancels, holds, releases, requeues or suspends the jobs that a selector finds, at most 1,000 with one call."""
        return self._run(self._core.control(control, selector, dry_run, request_id, timeout))

    def update(
        self,
        job_id: str,
        job: job_pb2.Job,
        fields: Sequence[str],
        *,
        etag: str = "",
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> Job:
        """Changes these fields of a job to what they are in ``job``, such as ``labels`` and ``spec.deadline``; with an etag only if it is as it was then."""
        return self._run(self._core.update(job_id, job, fields, etag, request_id, timeout))

    def to_front(self, job_id: str, *, request_id: str | None = None, timeout: Seconds | None = None) -> Job:
        """Moves a waiting job before the others of its tenant and tier; jobs of other tenants wait no longer for that."""
        return self._run(self._core.to_front(job_id, request_id, timeout))

    def set_throttle(
        self, array_id: str, throttle: int | None, *, request_id: str | None = None, timeout: Seconds | None = None
    ) -> Array:
        """Changes how many members of an array may be unfinished at a time; ``None`` for no limit. None that runs is stopped."""
        return self._run(self._core.set_throttle(array_id, throttle, request_id, timeout))

    def job(self, job_id: str, *, read: Read | None = None, timeout: Seconds | None = None) -> Job:
        """One job, with its placement and, while it waits, the reason."""
        return self._run(self._core.job(job_id, read, timeout))

    def array(self, array_id: str, *, read: Read | None = None, timeout: Seconds | None = None) -> Array:
        """One array, with its members by phase."""
        return self._run(self._core.array(array_id, read, timeout))

    def arrays(
        self,
        *,
        phases: Iterable[Phase] = (),
        tenant: str = "",
        name_prefix: str = "",
        selector: str = "",
        creator: str = "",
        mine: bool = False,
        read: Read | None = None,
        timeout: Seconds | None = None,
    ) -> Iterator[Array]:
        """Arrays, newest first, with how far their members have come; ``phases`` are those of a member of each."""
        yield from self._pages(self._core.arrays(phases, tenant, name_prefix, selector, creator, mine, read, timeout))

    def jobs(
        self,
        *,
        phases: Iterable[Phase] = (),
        tenant: str = "",
        name_prefix: str = "",
        selector: str = "",
        creator: str = "",
        mine: bool = False,
        read: Read | None = None,
        timeout: Seconds | None = None,
    ) -> Iterator[Job]:
        """Jobs, newest first, page by page.

        ``selector`` is of labels, such as ``team=vision,stage in (train,eval),!debug``; ``mine`` are those that the
        principal of this client submitted.
        """
        call = self._core.jobs(phases, tenant, name_prefix, selector, creator, mine, read, timeout)
        yield from self._pages(call)

    def commit_checkpoint(self, job_id: str, token: common_pb2.FencingToken, *, timeout: Seconds | None = None) -> None:
        """Says that the work of a gang is saved. Inside of a worker, :mod:`muster.worker` does it through the agent."""
        return self._run(self._core.commit_checkpoint(job_id, token, timeout))

    def watch(
        self,
        job_ids: Iterable[str] = (),
        *,
        tenant: str = "",
        selector: str = "",
        resume_token: str = "",
        timeout: Seconds | None = None,
    ) -> Watching[Job]:
        """Changes of jobs, each once and in log order, whatever happens to replicas; TimedOut after ``timeout``."""
        return Watching(self, self._core.watch(job_ids, tenant, selector, resume_token, timeout))

    def logs(
        self,
        job_id: str,
        *,
        rank: int = 0,
        follow: bool = False,
        previous: bool = False,
        stream: OutputStream | None = None,
        tail_bytes: int = 0,
        timeout: Seconds | None = None,
    ) -> Iterator[Output]:
        """The output of one worker, both streams in the order in which they were written.

        With ``follow`` until the worker has ended; goes on over the loss of replicas and of its agent.
        """
        yield from self._follow(self._core.logs(job_id, rank, follow, previous, stream, tail_bytes, timeout))

    def node(self, name: str, *, read: Read | None = None, timeout: Seconds | None = None) -> Node:
        """One node."""
        return self._run(self._core.node(name, read, timeout))

    def nodes(self, *, region: str = "", read: Read | None = None, timeout: Seconds | None = None) -> Iterator[Node]:
        """The nodes of the fleet by name, page by page."""
        yield from self._pages(self._core.nodes(region, read, timeout))

    def watch_nodes(
        self, *, region: str = "", resume_token: str = "", timeout: Seconds | None = None
    ) -> Watching[Node]:
        """Nodes that register, are lost, taken out of placement, put back or forgotten."""
        return Watching(self, self._core.watch_nodes(region, resume_token, timeout))

    def cordon_node(
        self, name: str, *, reason: str = "", request_id: str | None = None, timeout: Seconds | None = None
    ) -> Node:
        """Takes a node out of placement; what runs there stays. ``reason`` is for people."""
        return self._run(self._core.change_node("CordonNode", name, request_id, timeout, reason=reason))

    def uncordon_node(self, name: str, *, request_id: str | None = None, timeout: Seconds | None = None) -> Node:
        """Puts a cordoned node back into placement."""
        return self._run(self._core.change_node("UncordonNode", name, request_id, timeout))

    def cancel_node_drain(self, name: str, *, request_id: str | None = None, timeout: Seconds | None = None) -> Node:
        """Ends a drain: the node takes work again."""
        return self._run(self._core.change_node("CancelNodeDrain", name, request_id, timeout))

    def release_node(self, name: str, *, request_id: str | None = None, timeout: Seconds | None = None) -> Node:
        """Ends a quarantine: the node takes work again."""
        return self._run(self._core.change_node("ReleaseNode", name, request_id, timeout))

    def drain_node(
        self,
        name: str,
        *,
        stop_after: Seconds | None = None,
        reason: str = "",
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> Node:
        """Empties a node; what is still there after ``stop_after`` is stopped. ``reason`` is for people."""
        return self._run(self._core.drain_node(name, stop_after, reason, request_id, timeout))

    def quarantine_node(
        self, name: str, *, reason: str, request_id: str | None = None, timeout: Seconds | None = None
    ) -> Node:
        """Keeps a node away from work; what runs there goes on."""
        return self._run(self._core.change_node("QuarantineNode", name, request_id, timeout, reason=reason))

    def set_node_labels(
        self,
        name: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        taints: Mapping[str, bool] | None = None,
        validate_only: bool = False,
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> Node:
        """Sets labels and taints of a node; None and False take back what operators had set.

        With ``validate_only`` nothing changes, and the answer is the node as it would be.
        """
        call = self._core.set_node_labels(name, labels or {}, taints or {}, validate_only, request_id, timeout)
        return self._run(call)

    def tenants(self, *, read: Read | None = None, timeout: Seconds | None = None) -> Iterator[Tenant]:
        """What each tenant has waiting, holds and has used; by name."""
        yield from self._pages(self._core.tenants(read, timeout))

    def watch_tenants(
        self, names: Iterable[str] = (), *, resume_token: str = "", timeout: Seconds | None = None
    ) -> Watching[TenantChanges]:
        """Changes of tenants: what one round of decisions does comes as one event."""
        return Watching(self, self._core.watch_tenants(names, resume_token, timeout))

    def policy(self, *, read: Read | None = None, timeout: Seconds | None = None) -> policy_pb2.GetPolicyResponse:
        """The policy in force, as its message."""
        return self._run(self._core.policy(read, timeout))

    def quota_grants(
        self, tenant: str = "", *, include_over: bool = False, read: Read | None = None, timeout: Seconds | None = None
    ) -> list[quota_pb2.QuotaGrant]:
        """Requests for quota and grants in force; with ``include_over`` also those that are over."""
        return self._run(self._core.quota_grants(tenant, include_over, read, timeout))

    def request_quota(
        self,
        grant: quota_pb2.QuotaGrant,
        *,
        validate_only: bool = False,
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> quota_pb2.QuotaGrant:
        """Asks for more quota for a tenant; with ``validate_only`` shows what it would displace."""
        return self._run(self._core.ask_quota("RequestQuota", grant, validate_only, request_id, timeout))

    def grant_quota(
        self,
        grant: quota_pb2.QuotaGrant,
        *,
        validate_only: bool = False,
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> quota_pb2.QuotaGrant:
        """Grants quota to a tenant; with ``validate_only`` shows what it would displace."""
        return self._run(self._core.ask_quota("GrantQuota", grant, validate_only, request_id, timeout))

    def answer_quota(
        self, number: int, *, approve: bool, reason: str, request_id: str | None = None, timeout: Seconds | None = None
    ) -> quota_pb2.QuotaGrant:
        """Approves or denies a request for quota; a grant in force that is denied ends at once."""
        return self._run(self._core.answer_quota(number, approve, reason, request_id, timeout))

    def create_booking(
        self,
        name: str,
        spec: booking_pb2.BookingSpec,
        *,
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> booking_pb2.Booking:
        """Sets nodes aside for a tenant; the answer says which."""
        return self._run(self._core.create_booking(name, spec, request_id, timeout))

    def plan_booking(
        self, name: str, spec: booking_pb2.BookingSpec, *, timeout: Seconds | None = None
    ) -> booking_pb2.PlanBookingResponse:
        """Which nodes a booking would get, and what it would cost others; nothing is changed."""
        return self._run(self._core.plan_booking(name, spec, timeout))

    def booking(
        self, name: str, *, read: Read | None = None, timeout: Seconds | None = None
    ) -> booking_pb2.Booking:
        """One booking."""
        return self._run(self._core.booking(name, read, timeout))

    def bookings(
        self, *, read: Read | None = None, timeout: Seconds | None = None
    ) -> list[booking_pb2.Booking]:
        """All bookings that are not over, by name."""
        return self._run(self._core.bookings(read, timeout))

    def capacity(
        self, *, read: Read | None = None, timeout: Seconds | None = None
    ) -> list[fleet_pb2.Capacity]:
        """What there is of each type of accelerator in each region, by how it was bought."""
        return self._run(self._core.capacity(read, timeout))

    def licences(
        self, *, read: Read | None = None, timeout: Seconds | None = None
    ) -> list[tenant_pb2.Licence]:
        """What the policy counts and no node has: how many there are, who holds them, and which job is next."""
        return self._run(self._core.licences(read, timeout))

    def holds(
        self, *, read: Read | None = None, timeout: Seconds | None = None
    ) -> list[fleet_pb2.FleetHold]:
        """What operators hold: regions, clusters and tenants."""
        return self._run(self._core.holds(read, timeout))

    def set_hold(
        self,
        request: fleet_pb2.SetFleetHoldRequest,
        *,
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> fleet_pb2.FleetHold:
        """Holds a region, a cluster or a tenant, or with ``held=False`` releases it."""
        return self._run(self._core.set_hold(request, request_id, timeout))

    def delete_booking(self, name: str, *, request_id: str | None = None, timeout: Seconds | None = None) -> None:
        """Gives a booking up: its nodes are open to everybody again."""
        self._run(self._core.delete_booking(name, request_id, timeout))

    def create_schedule(
        self, schedule: schedule_pb2.Schedule, *, request_id: str | None = None, timeout: Seconds | None = None
    ) -> schedule_pb2.Schedule:
        """Has a job submitted again and again; ``schedule.job`` is that of ``JobSpec.to_message``."""
        return self._run(self._core.set_schedule(schedule, True, request_id, timeout))

    def update_schedule(
        self, schedule: schedule_pb2.Schedule, *, request_id: str | None = None, timeout: Seconds | None = None
    ) -> schedule_pb2.Schedule:
        """Changes a schedule, all of it; who does is its owner from then on."""
        return self._run(self._core.set_schedule(schedule, False, request_id, timeout))

    def schedule(
        self, name: str, *, tenant: str = "", read: Read | None = None, timeout: Seconds | None = None
    ) -> schedule_pb2.Schedule:
        """One schedule, with its newest runs."""
        return self._run(self._core.schedule(name, tenant, read, timeout))

    def schedules(
        self, *, tenant: str = "", read: Read | None = None, timeout: Seconds | None = None
    ) -> list[schedule_pb2.Schedule]:
        """The schedules of the tenants that the caller acts for, without their jobs and runs."""
        return self._run(self._core.schedules(tenant, read, timeout))

    def run_schedule(
        self, name: str, *, tenant: str = "", request_id: str | None = None, timeout: Seconds | None = None
    ) -> str:
        """Makes one job of a schedule now; its id."""
        return self._run(self._core.run_schedule(name, tenant, request_id, timeout))

    def suspend_schedule(
        self,
        name: str,
        *,
        tenant: str = "",
        reason: str = "",
        request_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        """Has a schedule make no jobs until it is resumed."""
        self._run(self._core.change_schedule("Suspend", name, tenant, reason, request_id, timeout))

    def resume_schedule(
        self, name: str, *, tenant: str = "", request_id: str | None = None, timeout: Seconds | None = None
    ) -> None:
        """Has a suspended schedule make jobs again, from its next moment on."""
        self._run(self._core.change_schedule("Resume", name, tenant, "", request_id, timeout))

    def delete_schedule(
        self, name: str, *, tenant: str = "", request_id: str | None = None, timeout: Seconds | None = None
    ) -> None:
        """Deletes a schedule; its jobs stay."""
        self._run(self._core.change_schedule("Delete", name, tenant, "", request_id, timeout))

    def status(self, *, timeout: Seconds | None = None) -> cluster_pb2.GetStatusResponse:
        """How some replica stands."""
        return self._run(self._core.status(timeout))

    def server_info(self, *, timeout: Seconds | None = None) -> ServerInfo:
        """Versions that one replica speaks."""
        return self._run(self._core.server_info(timeout))

    def wait(self, job_id: str, *, until: Until = "finished", timeout: Seconds | None = None) -> Job:
        """Waits until a job is so; the job then.

        Raises JobFailed when it has ended and will never be, TimedOut after ``timeout``.
        """
        waiting: Waiting[Job] = Waiting([job_id], until, self._core.seen)
        completed = self._completed(waiting, timeout)
        try:
            for there in completed:
                return there
        finally:
            completed.close()
        raise AssertionError("a watch goes on until it raises")

    def _completed(self, waiting: Waiting[Job], timeout: Seconds | None) -> Generator[Job, None, None]:
        if not waiting.left:
            return
        following = self._core.watch_waiting(waiting, timeout)
        watch = Watching(self, following)
        try:
            for item in watch:
                there = waiting.accept(item)
                if there is not None:
                    yield there
                for array_id in waiting.due():
                    for job in self._looked_at(waiting, array_id, following.limit):
                        yield job
                if not waiting.left:
                    return
        finally:
            watch.close()

    def _looked_at(self, waiting: Waiting[Job], array_id: str, limit: Limit) -> Iterator[Job]:
        """Members of an array that a watch does not tell of, and that are there now."""
        page = self._run(self._core.array_counts(array_id, limit.left()))
        for job_ids in waiting.looked_at(array_id, next(iter(page.items), None)):
            named = self._core.jobs_named(job_ids, limit.left())
            listed = [job for job in self._pages(named)]
            for job in waiting.listed(job_ids, listed):
                yield job

    def _run(self, call: Call[Result]) -> Result:
        attempts = self._core.attempts(call)
        while True:
            address = attempts.address()
            send = self._channels.at(address).unary_unary(
                call.path, request_serializer=_serialize, response_deserializer=call.answer
            )
            try:
                metadata = call_metadata(call, self._core.options.traceparent)
                answer = send(call.request, timeout=attempts.timeout(), metadata=metadata)
            except grpc.RpcError as error:
                pause = attempts.failed(address, attempts.read(error))
            else:
                return self._core.finish(call, answer)
            time.sleep(pause)

    def _pages(self, call: Call[Page[_Item]]) -> Iterator[_Item]:
        following: Call[Page[_Item]] | None = call
        while following is not None:
            page = self._run(following)
            for item in page.items:
                yield item
            following = page.next

    def _follow(self, stream: Stream[_Item]) -> Iterator[_Item]:
        attempts = self._core.streaming(stream)
        while True:
            address = attempts.address()
            attempts.begin()
            open_stream = self._channels.at(address).unary_stream(
                stream.path, request_serializer=_serialize, response_deserializer=stream.answer
            )
            metadata = trace.metadata(self._core.options.traceparent)
            answers = open_stream(stream.request(), timeout=stream.patience(), metadata=metadata)
            try:
                opening = stream.opening()
                if opening is not None:
                    yield opening
                for message in answers:
                    attempts.progress()
                    item = stream.accept(message)
                    if item is not None:
                        yield item
                    if stream.reopens():
                        pause = 0.0
                        break
                else:
                    if stream.ends:
                        return
                    pause = attempts.ended(address)
            except grpc.RpcError as error:
                stream.limit.left()
                failure = stream.judge(attempts.read(error))
                pause = 0.0 if failure is None else attempts.failed(address, failure)
            finally:
                answers.cancel()  # type: ignore[no-untyped-call]
            time.sleep(stream.limit.pause(pause))


class Job(JobView):
    """A job and what can be done about it. Its properties are as of the last call that read it."""

    def __init__(self, message: job_pb2.Job, client: Client) -> None:
        super().__init__(message)
        self._client = client

    def refresh(self, *, read: Read | None = None, timeout: Seconds | None = None) -> Job:
        """Reads it anew; itself."""
        self._message = (self._client.job(self.id, read=read, timeout=timeout))._message
        return self

    def wait(self, timeout: Seconds | None = None, *, until: Until = "finished") -> Job:
        """Waits until it is so; itself then. JobFailed when it will never be, TimedOut after ``timeout``."""
        self._message = (self._client.wait(self.id, until=until, timeout=timeout))._message
        return self

    def cancel(self, *, request_id: str | None = None, timeout: Seconds | None = None) -> Job:
        """Cancels it: at once while it waits, else after its workers have stopped; itself."""
        self._message = (self._client.cancel(self.id, request_id=request_id, timeout=timeout))._message
        return self

    def explain(self, *, read: Read | None = None, timeout: Seconds | None = None) -> Explanation:
        """Why it waits, what stands before it and when it will start; or where it is."""
        return self._client.explain(self.id, read=read, timeout=timeout)

    def logs(
        self,
        *,
        rank: int = 0,
        follow: bool = False,
        previous: bool = False,
        stream: OutputStream | None = None,
        tail_bytes: int = 0,
        timeout: Seconds | None = None,
    ) -> Iterator[Output]:
        """The output of one of its workers, as :meth:`Client.logs`."""
        return self._client.logs(
            self.id, rank=rank, follow=follow, previous=previous, stream=stream, tail_bytes=tail_bytes, timeout=timeout
        )

    def watch(self, *, resume_token: str = "", timeout: Seconds | None = None) -> Watching[Job]:
        """Its changes."""
        return self._client.watch([self.id], resume_token=resume_token, timeout=timeout)


class Watching(Iterator[WatchItem[_Item]], Generic[_Item]):
    """A watch that goes on; :attr:`resume_token` takes it up again, in another process if need be."""

    def __init__(self, client: Client, watch: Watch[_Item]) -> None:
        self._watch = watch
        self._items = client._follow(watch)

    @property
    def resume_token(self) -> str:
        """Of the last event that was delivered; empty before the present state is complete."""
        return self._watch.resume_token

    def __next__(self) -> WatchItem[_Item]:
        return self._items.__next__()

    def close(self) -> None:
        """Ends it."""
        self._items.close()  # type: ignore[attr-defined]


Jobs = list[Job]


def as_completed(jobs: Iterable[Job], *, until: Until = "finished", timeout: Seconds | None = None) -> Iterator[Job]:
    """Each job when it is so, or has ended otherwise: look at its phase. TimedOut after ``timeout``."""
    handles = {job.id: job for job in jobs}
    if not handles:
        return
    client = _client_of(handles.values())
    arrays = {job.id: job.array_id for job in handles.values()}
    waiting: Waiting[Job] = Waiting(handles, until, client._core.seen, ends_count=True, arrays=arrays)
    for there in client._completed(waiting, timeout):
        handles[there.id]._message = there._message
        yield handles[there.id]


def wait_all(jobs: Iterable[Job], *, until: Until = "finished", timeout: Seconds | None = None) -> Jobs:
    """Waits until every job is so; the jobs in their order.

    Raises JobFailed when one has ended and will never be, TimedOut after ``timeout``.
    """
    handles = list(jobs)
    if handles:
        client = _client_of(handles)
        arrays = {job.id: job.array_id for job in handles}
        waiting: Waiting[Job] = Waiting(arrays, until, client._core.seen, arrays=arrays)
        latest = {}
        for there in client._completed(waiting, timeout):
            latest[there.id] = there._message
        for job in handles:
            job._message = latest[job.id]
    return handles


def _client_of(jobs: Iterable[Job]) -> Client:
    clients = {id(job._client._core.seen): job._client for job in jobs}
    if len(clients) > 1:
        raise ConfigurationError("the jobs are of several clients; wait for those of each by themselves")
    return next(iter(clients.values()))


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


class _Channels:
    """One connection to each replica, made when it is first needed."""

    def __init__(self, tls: Tls | None, token: str | None) -> None:
        self._tls = tls
        self._credentials = credentials(tls, token)
        self._open: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()

    def at(self, address: str) -> grpc.Channel:
        """To one address."""
        with self._lock:
            channel = self._open.get(address)
            if channel is None:
                options = channel_options(self._tls)
                if self._credentials is None:
                    channel = grpc.insecure_channel(address, options=options)
                else:
                    channel = grpc.secure_channel(address, self._credentials, options=options)
                self._open[address] = channel
            return channel

    def close(self) -> None:
        """Ends all."""
        with self._lock:
            channels, self._open = list(self._open.values()), {}
        for channel in channels:
            channel.close()
