"""Arrays: waits for members that a watch does not tell of, and which members are in a phase."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from pathlib import Path
from typing import Any, Callable, Iterator

import grpc
import pytest

import muster
import muster.aio
from muster import _core
from muster.v1beta1 import common_pb2, job_pb2

PENDING, SUCCEEDED = job_pb2.JOB_PHASE_PENDING, job_pb2.JOB_PHASE_SUCCEEDED
FAILED, CANCELLED = job_pb2.JOB_PHASE_FAILED, job_pb2.JOB_PHASE_CANCELLED
# A wait that does not end is a failure, and not the end of the test run.
LIMIT_S = 20.0


def member(ordinal: int, phase: job_pb2.JobPhase.ValueType, *, attempt: int = 0) -> job_pb2.Job:
    """Of `array-1`, which has the ids from `job-1` on."""
    place = job_pb2.ArrayMember(array_id="array-1", index=ordinal, size=2_000, ordinal=ordinal)
    status = job_pb2.JobStatus(phase=phase, attempt=attempt, eligible=attempt > 0)
    return job_pb2.Job(id=f"job-{ordinal + 1}", name="sweep", array=place, status=status)


class Server:
    """A watch that shows what there is and is silent from then on; an array whose members are created, or end, at a look."""

    def __init__(self) -> None:
        self.rows: list[job_pb2.Job] = []
        self.events: list[job_pb2.WatchJobsResponse] = []
        # What each look at the array finds; the last one stays.
        self.counts: list[job_pb2.ArrayCounts | None] = []
        self.ended: dict[str, job_pb2.Job] = {}
        self.watches: list[job_pb2.WatchJobsRequest] = []
        self.lists: list[job_pb2.ListJobsRequest] = []
        self.array_lists: list[job_pb2.ListArraysRequest] = []
        self._closed = threading.Event()
        calls: dict[str, tuple[Callable[..., Any], Any, Any]] = {
            "ListArrays": (self._list_arrays, job_pb2.ListArraysRequest, job_pb2.ListArraysResponse),
            "ListJobs": (self._list_jobs, job_pb2.ListJobsRequest, job_pb2.ListJobsResponse),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=request.FromString, response_serializer=response.SerializeToString
            )
            for name, (call, request, response) in calls.items()
        }
        handlers["WatchJobs"] = grpc.unary_stream_rpc_method_handler(
            self._watch,
            request_deserializer=job_pb2.WatchJobsRequest.FromString,
            response_serializer=job_pb2.WatchJobsResponse.SerializeToString,
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        service = grpc.method_handlers_generic_handler("muster.v1beta1.JobService", handlers)
        self._server.add_generic_rpc_handlers((service,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._closed.set()
        self._server.stop(None).wait()

    def _watch(self, request: job_pb2.WatchJobsRequest, context: grpc.ServicerContext) -> Iterator[job_pb2.WatchJobsResponse]:
        copied = job_pb2.WatchJobsRequest()
        copied.CopyFrom(request)
        self.watches.append(copied)
        if not request.resume_token:
            wanted = set(request.filter.job_ids)
            for row in self.rows:
                if not wanted or row.id in wanted:
                    yield job_pb2.WatchJobsResponse(log_index=7, changed=row)
            yield job_pb2.WatchJobsResponse(resume_token="t", log_index=7, sync_end=common_pb2.SyncEnd())
        if request.resume_token == "t":
            yield from self.events
        over = threading.Event()
        context.add_callback(over.set)
        while not over.wait(0.02) and not self._closed.is_set():
            pass

    def _list_arrays(self, request: job_pb2.ListArraysRequest, _: object) -> job_pb2.ListArraysResponse:
        self.array_lists.append(request)
        counts = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        if counts is None:
            return job_pb2.ListArraysResponse()
        return job_pb2.ListArraysResponse(arrays=[job_pb2.Array(id="array-1", name="sweep", size=2_000, counts=counts)])

    def _list_jobs(self, request: job_pb2.ListJobsRequest, _: object) -> job_pb2.ListJobsResponse:
        self.lists.append(request)
        found = [self.ended[job_id] for job_id in request.filter.job_ids if job_id in self.ended]
        # A page may be shorter than was asked for.
        at = int(request.page_token or 0)
        following = str(at + 600) if at + 600 < len(found) else ""
        return job_pb2.ListJobsResponse(jobs=found[at : at + 600], next_page_token=following)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # As long as a silent watch may keep a wait from looking.
    monkeypatch.setattr(_core, "_LOOK_MAX_S", 0.3)
    fake = Server()
    try:
        yield fake
    finally:
        fake.close()


def finished(server: Server, count: int, kind: str, until: muster.Until = "finished") -> list[str]:
    """Phases of the first members, when all of them have ended, as either client waits for them."""
    messages = [member(ordinal, PENDING) for ordinal in range(count)]
    if kind == "blocking":
        with muster.Client(server.address) as client:
            return [job.phase for job in muster.wait_all([muster.Job(one, client) for one in messages], until=until, timeout=LIMIT_S)]

    async def waited() -> list[str]:
        async with muster.aio.Client(server.address) as client:
            jobs = [muster.aio.Job(one, client) for one in messages]
            return [job.phase async for job in muster.aio.as_completed(jobs, until=until, timeout=LIMIT_S)]

    return asyncio.run(waited())


BOTH = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


@BOTH
def test_members_of_a_large_array_are_waited_for_before_they_are_created(server: Server, kind: str) -> None:
    server.rows = [member(ordinal, SUCCEEDED, attempt=1) for ordinal in range(300)]
    server.counts = [
        job_pb2.ArrayCounts(uncreated=1_200, succeeded=300),
        job_pb2.ArrayCounts(uncreated=1_200, succeeded=300),
        job_pb2.ArrayCounts(cancelled=1_200, succeeded=300),
    ]
    server.ended = {f"job-{n + 1}": member(n, CANCELLED) for n in range(300, 1_500)}
    phases = finished(server, 1_500, kind)
    assert (phases.count("succeeded"), phases.count("cancelled")) == (300, 1_200)
    assert {watch.filter.array_id for watch in server.watches} == {"array-1"}
    assert {request.filter.array_id for request in server.array_lists} == {"array-1"}
    assert max(len(request.filter.job_ids) for request in server.lists) == 1_000


@BOTH
def test_members_that_end_with_their_array_are_found(server: Server, kind: str) -> None:
    server.rows = [member(0, SUCCEEDED, attempt=1), member(1, PENDING), member(2, PENDING)]
    server.counts = [job_pb2.ArrayCounts(uncreated=2, succeeded=1), job_pb2.ArrayCounts(failed=2, succeeded=1)]
    server.ended = {f"job-{n + 1}": member(n, FAILED) for n in (1, 2)}
    if kind == "asyncio":
        assert finished(server, 3, kind) == ["succeeded", "failed", "failed"]
        return
    with pytest.raises(muster.JobFailed, match="job-2"):
        finished(server, 3, kind, "succeeded")
    with muster.Client(server.address) as client:
        assert client.wait("job-3", timeout=LIMIT_S).phase == "failed"


def test_a_member_whose_job_is_not_kept_is_as_its_array_says(server: Server) -> None:
    server.rows = [member(0, PENDING, attempt=1)]
    server.events = [job_pb2.WatchJobsResponse(resume_token="u", log_index=9, forgotten="job-1")]
    server.counts = [job_pb2.ArrayCounts(uncreated=9, succeeded=1)]
    server.ended = {"job-1": member(0, SUCCEEDED)}
    assert finished(server, 1, "blocking") == ["succeeded"]


@BOTH
def test_members_of_an_array_that_is_not_kept_are_not_found(server: Server, kind: str) -> None:
    server.counts = [None]
    with pytest.raises(muster.NotFound, match="job-1 "):
        finished(server, 1, kind)


def test_a_wait_for_members_ends_with_its_time(server: Server) -> None:
    server.rows = [member(0, PENDING)]
    server.counts = [job_pb2.ArrayCounts(uncreated=1)]
    with muster.Client(server.address) as client, pytest.raises(muster.TimedOut):
        client.wait("job-1", timeout=1.0)
    assert len(server.watches) > 1, "a silent watch does not keep the array from being looked at"


def state(phase: job_pb2.JobPhase.ValueType, indices: str, *, created: bool = True, complete: bool = True) -> job_pb2.ArrayState:
    return job_pb2.ArrayState(phase=phase, created=created, count=3, indices=indices, complete=complete)


def test_indices_are_one_text_for_a_job_file() -> None:
    states = [state(PENDING, "4-8:2,100", created=False), state(PENDING, "3-7:2,9"), state(FAILED, "7-7")]
    array = muster.Array(job_pb2.Array(id="array-1", states=states))
    assert array.indices("pending") == "3-9,100"
    assert array.indices("failed") == "7-7"
    assert array.indices("succeeded") == ""
    for phase in ("pending", "failed"):
        assert muster.job("again", ["x"], array=array.indices(phase)).array_size > 0
    assert muster.job("again", ["x"], array="7-7").array_indices == [7]


def test_indices_that_are_cut_are_not_given_as_all() -> None:
    array = muster.Array(job_pb2.Array(id="array-1", states=[state(FAILED, "1,3", complete=False), state(PENDING, "2-2")]))
    assert array.indices("pending") == "2-2"
    with pytest.raises(muster.IncompleteIndices, match="array-1"):
        array.indices("failed")
    alternating = ",".join(str(index * index) for index in range(200))
    others = ",".join(str(index * index + 60_000) for index in range(200))
    array = muster.Array(
        job_pb2.Array(id="array-1", states=[state(PENDING, alternating), state(PENDING, others, created=False)])
    )
    with pytest.raises(muster.IncompleteIndices, match="more than an array takes"):
        array.indices("pending")


def test_an_array_of_a_list_has_no_indices() -> None:
    array = muster.Array(job_pb2.Array(id="array-1", counts=job_pb2.ArrayCounts(failed=2)))
    assert array.indices("succeeded") == ""
    with pytest.raises(muster.IncompleteIndices, match="array\\('array-1'\\)"):
        array.indices("failed")


def test_arrays_are_listed_by_who_submitted_them(server: Server) -> None:
    server.counts = [job_pb2.ArrayCounts(uncreated=1)]
    with muster.Client(server.address) as client:
        assert [array.id for array in client.arrays(mine=True, phases=["pending", "running"])] == ["array-1"]
        assert [array.id for array in client.arrays(creator="tenant/vision/ada")] == ["array-1"]
    mine, creator = (request.filter for request in server.array_lists)
    assert mine.mine and list(mine.phases) == [PENDING, job_pb2.JOB_PHASE_RUNNING]
    assert creator.creator == "tenant/vision/ada"


def test_jobs_of_one_file_wait_for_each_other_by_name() -> None:
    file = Path(__file__).resolve().parents[4] / "ops" / "examples" / "pipeline.yaml"
    specs = muster.JobSpec.all_from_yaml(file)
    named = {spec.name: [on.job_name for on in spec.to_message().spec.dependencies] for spec in specs}
    assert named == {"prepare": [], "train": ["prepare"], "evaluate": ["train"]}
    assert [spec.array_size for spec in specs] == [0, 4, 0]
    with muster.Client("127.0.0.1:1") as client:
        call = client._core.submit_all(specs, None, None)
    assert [job.name for job in call.request.jobs] == list(named), "one request, so that names have a meaning"  # type: ignore[attr-defined]
