"""The client that waits: every call returns when it is answered."""

from __future__ import annotations

import threading
import time
from typing import Callable, Iterator, Sequence, TypeVar

import grpc

from ._attempts import (
    Attempts,
    Changed,
    Forgotten,
    Limit,
    Output,
    OutputPlace,
    Seen,
    WatchItem,
    WatchPlace,
    channel_options,
    credentials,
    new_request_id,
)
from .errors import NotFound
from .jobs import Until, reached
from .options import Endpoints, Options, Tls, tls_from_environment
from .v1 import cluster_pb2, cluster_pb2_grpc, common_pb2, fleet_pb2, fleet_pb2_grpc, job_pb2, job_pb2_grpc

_Answer = TypeVar("_Answer")


class Client:
    """A client of one cluster; may be used by several threads.

    Without ``endpoints`` those of MUSTER_ENDPOINTS, without ``tls`` the files that MUSTER_CA, MUSTER_CERT and
    MUSTER_KEY name, if they do. Mutations are repeated under one request id until their outcome is known, so
    each has one effect, also when the leader dies on the way.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] | None = None,
        *,
        tls: Tls | None = None,
        options: Options = Options(),
    ) -> None:
        self._endpoints = Endpoints(endpoints)
        self._tls = tls if tls is not None else tls_from_environment()
        self._credentials = None if self._tls is None else credentials(self._tls)
        self._options = options
        self._seen = Seen()
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections; streams that are open end with them."""
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()

    def submit(self, spec: job_pb2.JobSpec, *, request_id: str | None = None) -> list[str]:
        """Submits one job, or one array; durable on a quorum when it returns. The ids of its jobs."""
        request_id = new_request_id(request_id)
        request = job_pb2.SubmitJobRequest(request_id=request_id, spec=spec)
        answer = self._call("submit job", lambda link, t: _jobs(link).SubmitJob(request, timeout=t), request_id)
        self._seen.take(answer.freshness)
        return list(answer.job_ids)

    def submit_all(self, specs: Sequence[job_pb2.JobSpec], *, request_id: str | None = None) -> list[str]:
        """Submits several jobs, all or none; the ids in their order."""
        request_id = new_request_id(request_id)
        request = job_pb2.SubmitJobsRequest(request_id=request_id, specs=specs)
        answer = self._call("submit jobs", lambda link, t: _jobs(link).SubmitJobs(request, timeout=t), request_id)
        self._seen.take(answer.freshness)
        return list(answer.job_ids)

    def validate(self, spec: job_pb2.JobSpec) -> None:
        """Raises Refused when the cluster would refuse this job."""
        request = job_pb2.SubmitJobRequest(request_id=new_request_id(None), spec=spec, validate_only=True)
        self._call("validate job", lambda link, t: _jobs(link).SubmitJob(request, timeout=t))

    def cancel(self, job_id: str, *, request_id: str | None = None) -> job_pb2.Job:
        """Cancels a job: a waiting one at once, a running one after its workers have stopped."""
        request_id = new_request_id(request_id)
        request = job_pb2.CancelJobRequest(request_id=request_id, job_id=job_id)
        answer = self._call("cancel job", lambda link, t: _jobs(link).CancelJob(request, timeout=t), request_id)
        self._seen.take(answer.freshness)
        return answer.job

    def job(self, job_id: str) -> job_pb2.Job:
        """One job, with its placement and, while it waits, the reason."""
        request = job_pb2.GetJobRequest(job_id=job_id, read=self._seen.read())
        answer = self._read("get job", lambda link, t: _jobs(link).GetJob(request, timeout=t))
        self._seen.take(answer.freshness)
        return answer.job

    def jobs(
        self, *, phases: Sequence[job_pb2.JobPhase.ValueType] = (), tenant: str = "", name_prefix: str = ""
    ) -> Iterator[job_pb2.Job]:
        """Jobs, newest first, page by page."""
        request = job_pb2.ListJobsRequest(
            page_size=1_000, read=self._seen.read(), phases=phases, tenant=tenant, name_prefix=name_prefix
        )
        while True:
            page = self._read("list jobs", lambda link, t: _jobs(link).ListJobs(request, timeout=t))
            self._seen.take(page.freshness)
            yield from page.jobs
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def nodes(self) -> Iterator[fleet_pb2.Node]:
        """The nodes of the fleet by name, page by page."""
        request = fleet_pb2.ListNodesRequest(page_size=1_000, read=self._seen.read())
        while True:
            page = self._read("list nodes", lambda link, t: _fleet(link).ListNodes(request, timeout=t))
            self._seen.take(page.freshness)
            yield from page.nodes
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def status(self) -> cluster_pb2.GetStatusResponse:
        """How some replica stands."""
        request = cluster_pb2.GetStatusRequest()
        return self._read("get status", lambda link, t: _cluster(link).GetStatus(request, timeout=t))

    def commit_checkpoint(self, job_id: str, token: common_pb2.FencingToken) -> None:
        """Says that the work of a gang is saved: should it be stopped, only what comes after is lost."""
        request = job_pb2.CommitCheckpointRequest(job_id=job_id, token=token)
        answer = self._call("commit checkpoint", lambda link, t: _jobs(link).CommitCheckpoint(request, timeout=t))
        self._seen.take(answer.freshness)

    def watch(
        self,
        job_ids: Sequence[str] = (),
        *,
        tenant: str = "",
        resume_token: str = "",
        timeout_s: float | None = None,
    ) -> Iterator[WatchItem]:
        """Changes of jobs, each once and in log order, whatever happens to replicas.

        Raises TimeoutError after ``timeout_s``.
        """
        place = WatchPlace(job_ids, tenant, resume_token, self._seen)
        attempts = self._attempts("watch jobs", names_log_index=True)
        limit = Limit(timeout_s, "the watch has lasted as long as it may")
        while True:
            address = attempts.address()
            attempts.begin()
            stream = _jobs(self._channel(address)).WatchJobs(place.request(), timeout=limit.left())
            opening = place.opening()
            if opening is not None:
                yield opening
            try:
                for message in stream:
                    attempts.progress()
                    item = place.accept(message)
                    if item is not None:
                        yield item
                pause = attempts.ended(address)
            except grpc.RpcError as error:
                limit.left()
                failure = attempts.read(error)
                pause = 0.0 if place.lost(failure) else attempts.failed(address, failure)
            finally:
                stream.cancel()  # type: ignore[no-untyped-call]
            time.sleep(limit.pause(pause))

    def wait(self, job_id: str, *, until: Until = "finished", timeout_s: float | None = None) -> job_pb2.Job:
        """Waits until a job is so; the job then.

        Raises JobFailed when it has ended and will never be, TimeoutError after ``timeout_s``.
        """
        for item in self.watch([job_id], timeout_s=timeout_s):
            if isinstance(item, Changed) and item.job.id == job_id and reached(item.job, until):
                return item.job
            if isinstance(item, Forgotten) and item.job_id == job_id:
                break
        raise NotFound("wait for job", f"{job_id} is not kept any more", "JOB_NOT_FOUND", "MS-2001", "NOT_FOUND")

    def logs(
        self,
        job_id: str,
        *,
        rank: int = 0,
        follow: bool = False,
        previous: bool = False,
        stream: str = "",
        tail_bytes: int = 0,
    ) -> Iterator[Output]:
        """The output of one worker, both streams in the order in which they were written.

        With ``follow`` until the worker has ended; goes on over the loss of replicas and of its agent.
        """
        request = job_pb2.ReadLogsRequest(
            job_id=job_id, rank=rank, follow=follow, previous=previous, stream=stream, tail_bytes=tail_bytes
        )
        place = OutputPlace(request)
        attempts = self._attempts("read logs")
        while True:
            address = attempts.address()
            attempts.begin()
            pieces = _jobs(self._channel(address)).ReadLogs(place.request())
            try:
                for message in pieces:
                    attempts.progress()
                    piece = place.accept(message)
                    if piece is not None:
                        yield piece
                return
            except grpc.RpcError as error:
                pause = attempts.failed(address, place.again(attempts.read(error)))
            finally:
                pieces.cancel()  # type: ignore[no-untyped-call]
            time.sleep(pause)

    def _attempts(
        self, operation: str, request_id: str | None = None, *, names_log_index: bool = False
    ) -> Attempts:
        return Attempts(
            self._endpoints, self._options, operation, request_id=request_id, names_log_index=names_log_index
        )

    def _call(
        self,
        operation: str,
        send: Callable[[grpc.Channel, float], _Answer],
        request_id: str | None = None,
        *,
        names_log_index: bool = False,
    ) -> _Answer:
        attempts = self._attempts(operation, request_id, names_log_index=names_log_index)
        while True:
            address = attempts.address()
            try:
                return send(self._channel(address), attempts.timeout())
            except grpc.RpcError as error:
                pause = attempts.failed(address, attempts.read(error))
            time.sleep(pause)

    def _read(self, operation: str, send: Callable[[grpc.Channel, float], _Answer]) -> _Answer:
        return self._call(operation, send, names_log_index=True)

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                options = channel_options(self._tls)
                if self._credentials is None:
                    channel = grpc.insecure_channel(address, options=options)
                else:
                    channel = grpc.secure_channel(address, self._credentials, options=options)
                self._channels[address] = channel
            return channel


def _jobs(channel: grpc.Channel) -> job_pb2_grpc.JobServiceStub:
    return job_pb2_grpc.JobServiceStub(channel)


def _fleet(channel: grpc.Channel) -> fleet_pb2_grpc.FleetServiceStub:
    return fleet_pb2_grpc.FleetServiceStub(channel)


def _cluster(channel: grpc.Channel) -> cluster_pb2_grpc.ClusterServiceStub:
    return cluster_pb2_grpc.ClusterServiceStub(channel)
