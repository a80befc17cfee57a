"""What needs no cluster."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import pickle
import re
import socket
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

import muster
import muster.aio
from muster import _features, _trace as trace, worker
from muster._agent import Worker as AgentWorker
from muster._attempts import Attempts
from muster._core import Call, Logs, Seen, Waiting, Watch, call_metadata
from muster._features import required_features
from muster._judge import Verdict, judge
from muster._time import duration, timestamp
from muster.options import Endpoints, Options, tls_from_environment, token_from_environment
from muster.v1beta1 import common_pb2, fleet_pb2, job_pb2, schedule_pb2


RETRIES = Path(__file__).resolve().parents[4] / "proto" / "retries.txt"


def trailers(reason: str, retry_after_s: int = 0, **metadata: str) -> list[tuple[str, str | bytes]]:
    details = [any_pb2.Any()]
    details[0].Pack(error_details_pb2.ErrorInfo(reason=reason, domain="muster.dev", metadata=metadata))
    if retry_after_s:
        details.append(any_pb2.Any())
        details[1].Pack(error_details_pb2.RetryInfo(retry_delay={"seconds": retry_after_s}))
    status = status_pb2.Status(details=details)
    return [("grpc-status-details-bin", status.SerializeToString())]


@pytest.mark.parametrize(
    ("reason", "code", "verdict"),
    [
        ("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED, Verdict.STAY),
        ("OUTCOME_UNKNOWN", grpc.StatusCode.UNAVAILABLE, Verdict.STAY),
        ("NOT_LEADER", grpc.StatusCode.UNAVAILABLE, Verdict.ROTATE),
        ("DIVERGED", grpc.StatusCode.UNAVAILABLE, Verdict.ROTATE),
        ("INVALID_FIELD", grpc.StatusCode.INVALID_ARGUMENT, Verdict.FINAL),
        ("OF_A_NEWER_SERVER", grpc.StatusCode.UNAVAILABLE, Verdict.ROTATE),
        ("OF_A_NEWER_SERVER", grpc.StatusCode.INTERNAL, Verdict.FINAL),
        ("", grpc.StatusCode.UNAVAILABLE, Verdict.ROTATE),
        ("", grpc.StatusCode.UNIMPLEMENTED, Verdict.FINAL),
    ],
)
def test_only_what_may_end_differently_is_repeated(reason: str, code: grpc.StatusCode, verdict: Verdict) -> None:
    found = trailers(reason, code="MS-1") if reason else []
    failure = judge("test", code, "why", found)
    assert (failure.verdict, failure.refused.reason) == (verdict, reason)


def test_refusals_are_judged_as_the_table_says() -> None:
    lines = [line.split() for line in RETRIES.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 50
    for reason, code, carries, verdict in lines:
        extras = carries.split("+")
        metadata = {"leader_endpoint": "http://c:3"} if "leader" in extras else {}
        named = {"?": "OF_A_NEWER_SERVER", "-": ""}.get(reason, reason)
        found = trailers(named, 1 if "retry_info" in extras else 0, **metadata) if named else []
        failure = judge("t", grpc.StatusCode[code], "", found)
        assert failure.verdict.value == verdict, (reason, code, carries)


def test_a_position_that_is_not_reached_is_asked_for_elsewhere() -> None:
    found = trailers("LOG_INDEX_NOT_REACHED", 1)
    assert judge("test", grpc.StatusCode.UNAVAILABLE, "", found).verdict == Verdict.ROTATE


def test_the_leader_is_followed_and_damage_is_borne() -> None:
    endpoints = Endpoints("a:1,b:2")
    failure = judge("t", grpc.StatusCode.UNAVAILABLE, "", trailers("NOT_LEADER", leader_endpoint="http://c:3"))
    Attempts(endpoints, Options(), "t").failed(endpoints.current(), failure)
    assert endpoints.current() == "c:3"
    damaged = [("grpc-status-details-bin", b"\xff\xff\xff")]
    assert judge("t", grpc.StatusCode.UNAVAILABLE, "", damaged).verdict == Verdict.ROTATE


@pytest.mark.parametrize("bad", ["", ",", "host", "host:", "host:0", "host:70000", "host:1/x", ":1"])
def test_bad_endpoints_are_named(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_ENDPOINTS", raising=False)
    with pytest.raises(muster.ConfigurationError):
        muster.Client(bad)


def test_endpoints_and_certificates_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_ENDPOINTS", "http://a:1, b:2")
    assert sorted(Endpoints(None)) == ["a:1", "b:2"]
    for name in ("MUSTER_CA", "MUSTER_CERT", "MUSTER_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert tls_from_environment() is None
    monkeypatch.setenv("MUSTER_CA", "ca.crt")
    with pytest.raises(muster.ConfigurationError, match="MUSTER_CERT, MUSTER_KEY"):
        tls_from_environment()
    with pytest.raises(muster.ConfigurationError, match="cannot be read"):
        muster.Client("a:1", tls=muster.Tls(tmp_path / "a", tmp_path / "b", tmp_path / "c"))


def test_a_token_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MUSTER_CA", "MUSTER_CERT", "MUSTER_KEY", "MUSTER_TOKEN", "MUSTER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert token_from_environment() is None
    token = "muster_" + "0" * 16 + "_" + "a" * 64
    monkeypatch.setenv("MUSTER_TOKEN", token + "\n")
    assert token_from_environment() == token
    monkeypatch.setenv("MUSTER_CA", "ca.crt")
    assert tls_from_environment(has_token=True) == muster.Tls("ca.crt")
    monkeypatch.delenv("MUSTER_CA")
    with pytest.raises(muster.ConfigurationError, match="over TLS only"):
        muster.Client("a:1")
    issued = "eyJhbGciOiJFZERTQSJ9.e30.c2ln"
    monkeypatch.setenv("MUSTER_TOKEN", issued)
    assert token_from_environment() == issued, "a signed token of an issuer"
    long = "a" * 8_192 + ".b.c"
    for wrong in ("muster-", token[:-1], token + "0", token.upper(), "Bearer " + token, "a.b", issued + "=", long):
        monkeypatch.setenv("MUSTER_TOKEN", wrong)
        with pytest.raises(muster.ConfigurationError, match="MUSTER_TOKEN has no token") as told:
            token_from_environment()
        assert wrong not in str(told.value), "no message repeats a secret"
    file = tmp_path / "token"
    file.write_text(token + "\n")
    file.chmod(0o600)
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(file))
    assert token_from_environment() == token, "the file comes before the variable"
    file.chmod(0o644)
    with pytest.raises(muster.ConfigurationError, match="open to everybody"):
        token_from_environment()
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(muster.ConfigurationError, match="cannot be read"):
        token_from_environment()


def test_nobody_there_ends_with_the_deadline_and_the_request_id() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    begun = time.monotonic()
    with muster.Client(address, options=muster.Options(deadline=0.5)) as client:
        with pytest.raises(muster.Unavailable) as failed:
            client.submit(muster.job("x", ["true"]))
        with pytest.raises(muster.Unavailable, match="within 0.1 s"):
            client.submit(muster.job("x", ["true"]), timeout=timedelta(milliseconds=100))
    assert failed.value.request_id and failed.value.attempts > 1
    assert failed.value.waited == timedelta(seconds=0.5)
    assert time.monotonic() - begun < 10


def test_a_watch_that_lost_its_place_begins_again() -> None:
    what = ("watch jobs", "/x", job_pb2.WatchJobsResponse.FromString)
    seen = Seen()
    request = job_pb2.WatchJobsRequest(filter=job_pb2.JobFilter(job_ids=["job-1"]))
    place: Watch[str] = Watch(what, request, lambda job: job.id, "", None, seen)
    assert place.opening() is None
    item = place.accept(job_pb2.WatchJobsResponse(resume_token="t", log_index=7, bookmark=common_pb2.Bookmark()))
    assert item == muster.Bookmark(7, "t") and seen.log_index == 7
    assert place.resume_token == "t" and place.opening() is None
    code = grpc.StatusCode.OUT_OF_RANGE
    assert place.judge(judge("w", code, "", trailers("RESUME_TOKEN_COMPACTED"))) is None
    assert place.resume_token == ""
    assert place.opening() == muster.Restarted() and place.opening() is None
    changed = place.accept(job_pb2.WatchJobsResponse(log_index=9, changed=job_pb2.Job(id="job-1")))
    assert changed == muster.Changed(9, "", "job-1")


def test_what_was_seen_of_an_earlier_generation_is_forgotten() -> None:
    seen = Seen()

    def after(log_index: int, generation: int) -> tuple[int, int]:
        seen.take(log_index, generation)
        return seen.generation, seen.log_index

    assert after(900, 1) == (1, 900)
    assert after(800, 1) == (1, 900)
    assert after(950, 0) == (1, 950), "of a watch, or told by another process"
    # Rebuilt from a backup: the log is shorter.
    assert after(500, 2) == (2, 500)
    assert after(990, 1) == (2, 500), "it is late"
    assert after(501, 2) == (2, 501)
    asked = muster.Read.any().to_message(seen.log_index, seen.generation)
    assert (asked.min_log_index, asked.generation) == (501, 2)


def test_a_job_that_a_watch_passes_without_showing_it_is_not_there() -> None:
    seen = Seen()
    seen.take(9)
    waiting: Waiting[muster.Job] = Waiting(["job-1"], "finished", seen)
    assert waiting.accept(muster.SyncEnd(7, "t")) is None, "the replica has not applied all that the client knows of"
    assert waiting.accept(muster.Bookmark(8, "t")) is None
    with pytest.raises(muster.NotFound):
        waiting.accept(muster.Bookmark(9, "t"))


def test_output_goes_on_behind_what_was_read() -> None:
    place = Logs(job_pb2.ReadLogsRequest(job_id="job-1", previous=True, tail_bytes=9))
    code = grpc.StatusCode.NOT_FOUND
    away = judge("r", code, "", trailers("LOGS_UNAVAILABLE"))
    assert place.judge(away).verdict == Verdict.FINAL
    token = common_pb2.FencingToken(generation=1, log_index=7)
    piece = job_pb2.ReadLogsResponse(stream=job_pb2.OUTPUT_STREAM_STDOUT, data=b"x", position=12, dropped_bytes=3, token=token)
    assert place.accept(piece) == muster.Output("stdout", b"x", 3)
    request = place.request()
    assert (request.from_position, request.previous, request.tail_bytes, request.token) == (12, False, 0, token)
    assert place.judge(away).verdict == Verdict.STAY
    assert place.accept(job_pb2.ReadLogsResponse()) is None


def test_output_that_is_followed_waits_for_the_start_of_its_worker() -> None:
    early = judge("r", grpc.StatusCode.UNAVAILABLE, "", trailers("WORKER_NOT_STARTED"))
    assert Logs(job_pb2.ReadLogsRequest(job_id="job-1", follow=True)).judge(early).verdict == Verdict.WAIT
    assert Logs(job_pb2.ReadLogsRequest(job_id="job-1")).judge(early).verdict == Verdict.FINAL


def test_what_is_asked_of_jobs_says_of_which() -> None:
    client = muster.Client("127.0.0.1:1")
    selector = muster.JobSelector(labels="team=a", phases=["pending"], mine=True)
    call = client._core.control("hold", selector, True, None, None)
    assert (call.operation, call.path) == ("hold jobs", "/muster.v1beta1.JobService/HoldJobs")
    assert isinstance(call.request, job_pb2.HoldJobsRequest) and call.request.validate_only
    assert call.request.selector.filter.label_selector == "team=a" and call.request.selector.filter.mine
    assert list(call.request.selector.filter.phases) == [job_pb2.JOB_PHASE_PENDING]
    answer = job_pb2.HoldJobsResponse(job_count=2, remaining_count=1, passed_over_count=3, job_ids=["job-1", "job-2"])
    assert call.result(call.answer(answer.SerializeToString())) == muster.Controlled(2, 1, 3, ["job-1", "job-2"])
    changed = job_pb2.Job(labels={"team": "b"})
    update = client._core.update("job-1", changed, ["labels", "spec.deadline"], "1-7", None, None)
    assert isinstance(update.request, job_pb2.UpdateJobRequest)
    assert list(update.request.update_mask.paths) == ["labels", "spec.deadline"] and update.request.etag == "1-7"
    moved = client._core.to_front("job-1", None, None)
    assert isinstance(moved.request, job_pb2.UpdateJobRequest) and moved.request.move_to_front
    assert muster.job("a", ["run"], nice=-7, exclusive=True).replace(hold=True).to_message().hold
    for throttle in (7, None):
        change = client._core.set_throttle("array-1", throttle, None, None)
        assert isinstance(change.request, job_pb2.UpdateJobRequest) and change.request.job_id == "array-1"
        assert list(change.request.update_mask.paths) == ["spec.array.throttle"]
        array = change.request.job.spec.array
        assert (array.throttle if array.HasField("throttle") else None) == throttle
    answered = job_pb2.UpdateJobResponse(array=job_pb2.Array(id="array-1"))
    assert change.result(change.answer(answered.SerializeToString())).id == "array-1"
    with pytest.raises(muster.ConfigurationError):
        client._core.control("hold", muster.JobSelector(phases=["idle"]), True, None, None)  # type: ignore[list-item]


def test_schedules_are_made_and_controlled_by_their_messages() -> None:
    client = muster.Client("replica:7401")
    schedule = schedule_pb2.Schedule(name="nightly", cron="0 6 * * 1-5", time_zone="Europe/Berlin")
    for is_new, kind in ((True, schedule_pb2.CreateScheduleRequest), (False, schedule_pb2.UpdateScheduleRequest)):
        call = client._core.set_schedule(schedule, is_new, None, None)
        assert isinstance(call.request, kind) and call.request.schedule == schedule and call.request.request_id
    for change, reason in (("Suspend", "why"), ("Resume", ""), ("Delete", "")):
        changed = client._core.change_schedule(change, "nightly", "research", reason, None, None)
        assert changed.path.endswith(f"/{change}Schedule")
        assert getattr(changed.request, "reason", "") == reason
    run = client._core.run_schedule("nightly", "research", None, None)
    answer = schedule_pb2.RunScheduleResponse(job_id="job-1")
    assert run.result(run.answer(answer.SerializeToString())) == "job-1"


ERRORS = [
    muster.ConfigurationError("why"),
    muster.TimedOut("long"),
    muster.Unavailable("submit job", 3, timedelta(seconds=30), "a:1: silence", "id", timedelta(seconds=2)),
    muster.JobFailed("job-1", "failed", "APPLICATION_FAILED", "exit code 3"),
    muster.InvalidJobFile([muster.Problem(3, "spec.cpu", "must be more")]),
    muster.Conflict(
        "cancel job",
        "it is over",
        reason="JOB_FINISHED",
        number="MS-2002",
        grpc_code="FAILED_PRECONDITION",
        violations=[muster.Violation("a", "b")],
        metadata={"phase": "failed"},
        retry_delay=timedelta(seconds=1),
    ),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_exceptions_cross_processes(error: muster.MusterError) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = pickle.loads(pickle.dumps(error, protocol))
        assert type(found) is type(error) and found.__dict__ == error.__dict__ and str(found) == str(error)
    assert len({error, error}) == 1, "an exception can be hashed"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(type(error), match=re.escape(str(error))):
            pool.submit(_throw, error).result(60)


def _throw(error: muster.MusterError) -> None:
    raise error


@pytest.mark.parametrize(
    ("reason", "code", "kind"),
    [
        ("INVALID_FIELD", "INVALID_ARGUMENT", muster.InvalidSpec),
        ("NEVER_FITS", "FAILED_PRECONDITION", muster.InvalidSpec),
        ("JOB_NOT_FOUND", "NOT_FOUND", muster.NotFound),
        ("RIGHT_MISSING", "PERMISSION_DENIED", muster.PermissionDenied),
        ("POLICY_CHANGED", "ABORTED", muster.Conflict),
        ("REQUEST_ID_REUSED", "INVALID_ARGUMENT", muster.Conflict),
        ("BOOKING_EXISTS", "ALREADY_EXISTS", muster.Conflict),
        ("TENANT_LIMIT", "RESOURCE_EXHAUSTED", muster.QuotaExceeded),
        ("OF_A_NEWER_SERVER", "ABORTED", muster.Conflict),
        ("OF_A_NEWER_SERVER", "INTERNAL", muster.Refused),
    ],
)
def test_refusals_have_a_kind(reason: str, code: str, kind: type[muster.Refused]) -> None:
    found = trailers(reason, 3, code="MS-9", needed="2")
    refused = judge("t", grpc.StatusCode[code], "why", found).refused
    assert type(refused) is kind
    assert (refused.reason, refused.number, refused.metadata) == (reason, "MS-9", {"needed": "2"})
    assert refused.retry_delay == timedelta(seconds=3)


def test_a_delay_beyond_measure_is_cut() -> None:
    found = trailers("OVERLOADED", 315_576_000_000)
    failure = judge("t", grpc.StatusCode.RESOURCE_EXHAUSTED, "", found)
    assert failure.refused.retry_delay == timedelta(days=1)


def test_reads_are_what_is_asked_for() -> None:
    bounded = muster.Read.bounded(timedelta(seconds=2)).to_message(7)
    assert bounded == common_pb2.ReadOptions(
        bounded=common_pb2.BoundedState(max_staleness=duration(2_000)), min_log_index=7
    )
    latest = muster.Read.linearizable(min_log_index=9).to_message(7)
    assert (latest.WhichOneof("state"), latest.min_log_index) == ("linearizable", 9)
    assert muster.Read.any().to_message(7) == common_pb2.ReadOptions(any=common_pb2.AnyState(), min_log_index=7)
    past = muster.Read.at(datetime(2027, 1, 1, tzinfo=timezone.utc)).to_message(7)
    assert past == common_pb2.ReadOptions(past=common_pb2.PastState(time=timestamp(1_798_761_600_000))), "the past waits for nothing"
    assert muster.Read.at_log_index(3).to_message(7) == common_pb2.ReadOptions(past=common_pb2.PastState(log_index=3))
    for length in (0, -1, 0.0001):
        with pytest.raises(muster.ConfigurationError):
            muster.Read.bounded(length)
    with pytest.raises(muster.ConfigurationError, match="no time zone"):
        muster.Read.at(datetime(2027, 1, 1))


def test_a_job_has_datetimes() -> None:
    job = muster.JobView(job_pb2.Job(id="job-1", status=job_pb2.JobStatus(create_time=timestamp(1_798_761_600_123), phase=job_pb2.JOB_PHASE_RUNNING)))
    assert job.create_time == datetime(2027, 1, 1, 0, 0, 0, 123_000, timezone.utc)
    assert (job.start_time, job.expected_run_time, job.array_index, job.fencing_token) == (None, None, None, None)
    assert muster.JobView(job_pb2.Job(status=job_pb2.JobStatus(create_time=timestamp((1 << 63) - 1)))).create_time is None, "no calendar has it"
    assert muster.JobView(job_pb2.Job(status=job_pb2.JobStatus(phase=99))).phase == "unknown"  # type: ignore[arg-type]


def surface(of: object) -> dict[str, str]:
    """Public names with their parameters."""
    found = {}
    for name, member in inspect.getmembers(of, inspect.isfunction):
        if not name.startswith("_"):
            parameters = inspect.signature(member).parameters.values()
            found[name.replace("aclose", "close")] = ", ".join(str(one) for one in parameters)
    return found


def test_labels_go_into_the_message_and_come_back() -> None:
    spec = muster.job("a", ["x"], labels={"team": "vision", "v": "1.10"}, annotations={"note": "a\nb"})
    assert spec.labels == {"team": "vision", "v": "1.10"} and spec.annotations == {"note": "a\nb"}
    text = "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {name: a, labels: {v: 1.10}}\nspec: {command: [x]}\n"
    shown = muster.JobSpec.from_yaml(text + "status: {phase: running}\n")
    assert shown.labels == {"v": "1.10"} and shown == muster.JobSpec.from_yaml(text)
    script = "#!/bin/sh\n#MUSTER labels: {team: vision}\ntrue\n"
    assert muster.JobSpec.from_script(script).labels == {"team": "vision"}
    with pytest.raises(muster.InvalidJobFile, match="twice"):
        muster.JobSpec.from_yaml(text.replace("{v: 1.10}", "{v: 1.10, v: 2}"))
    job = muster.JobView(job_pb2.Job(labels={"team": "vision"}, creator="tenant/vision/ada", etag="1-7"))
    assert (job.labels, job.creator, job.etag) == ({"team": "vision"}, "tenant/vision/ada", "1-7")


def test_both_clients_have_the_same_calls() -> None:
    for blocking, awaited in (
        (muster.Client, muster.aio.Client),
        (muster.Job, muster.aio.Job),
        (muster.Watching, muster.aio.Watching),
    ):
        assert surface(blocking) == surface(awaited)
    for name in ("as_completed", "wait_all"):
        assert str(inspect.signature(getattr(muster, name)).parameters) == str(
            inspect.signature(getattr(muster.aio, name)).parameters
        )


def test_a_replica_far_away_is_reached() -> None:
    """Its first bytes take longer than any in one region do."""
    listing = grpc.unary_unary_rpc_method_handler(
        lambda request, context: fleet_pb2.ListNodesResponse(),
        request_deserializer=fleet_pb2.ListNodesRequest.FromString,
        response_serializer=fleet_pb2.ListNodesResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    service = grpc.method_handlers_generic_handler("muster.v1beta1.FleetService", {"ListNodes": listing})
    server.add_generic_rpc_handlers((service,))
    behind = server.add_insecure_port("127.0.0.1:0")
    server.start()
    stop = threading.Event()

    def carry(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
        with source, sink:
            try:
                while data := source.recv(1 << 16):
                    stop.wait(delay_s)
                    sink.sendall(data)
            except OSError:
                pass

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", behind))
            for source, sink, delay_s in ((near, far, 0.0), (far, near, 1.2)):
                threading.Thread(target=carry, args=(source, sink, delay_s), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=[listener], daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with muster.Client(address, options=muster.Options(deadline=15, attempt_timeout=8)) as client:
            assert list(client.nodes()) == []
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
    server.stop(None).wait()


def test_a_worker_knows_where_it_is(tmp_path: Path) -> None:
    outside = worker.current({})
    assert (outside.job_id, outside.rank, outside.world_size, outside.array_index) == ("", 0, 1, None)
    outside.step(1)
    outside.checkpoint_committed(1)
    outside.ready()
    socket_path = tmp_path / "agent.sock"
    inside = worker.current(
        {
            "MUSTER_JOB_ID": "job-7",
            "MUSTER_FENCING_TOKEN": "1.42",
            "MUSTER_RANK": "3",
            "MUSTER_WORLD_SIZE": "8",
            "MUSTER_ATTEMPT": "2",
            "MUSTER_ARRAY_INDEX": "5",
            "MUSTER_RESUME": "1",
            "MUSTER_CHECKPOINT_SAVED_AT_MS": "1798761600000",
            "MUSTER_STOP_GRACE_MS": "1500",
            "MUSTER_AGENT_SOCKET": str(socket_path),
        }
    )
    assert (inside.rank, inside.world_size, inside.attempt, inside.array_index) == (3, 8, 2, 5)
    assert inside.resumes and inside.last_checkpoint_time == datetime(2027, 1, 1, tzinfo=timezone.utc)
    assert inside.stop_grace == timedelta(milliseconds=1500)
    with pytest.raises(worker.Unreachable):
        inside.checkpoint_committed(1, timeout=timedelta(milliseconds=50))
    asked = []

    def agent(listener: socket.socket) -> None:
        for answer in (b'{"ok":true}\n', b'{"error":"old"}\n', b'{"ok":true}\n'):
            stream, _ = listener.accept()
            with stream, stream.makefile("rb") as lines:
                asked.append(json.loads(lines.readline()))
                stream.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        serving = threading.Thread(target=agent, args=[listener])
        serving.start()
        inside.checkpoint_committed(12)
        with pytest.raises(worker.Refused, match="old"):
            inside.checkpoint_committed(13)
        inside.ready()
        serving.join(60)
    who = {"job_id": "job-7", "fencing_token": "1.42", "rank": 3}
    assert asked[0] == {**who, "checkpoint_committed": {"step": 12}}
    assert asked[2] == {**who, "ready": {}}


def test_a_worker_says_all_that_the_file_it_stands_on_can_say() -> None:
    of_the_file = {name for name in vars(AgentWorker) if not name.startswith("_")}
    # What the environment says is asked by other names, or not needed by programs.
    internal = {"from_env", "fencing_token", "socket_path", "notice_file"}
    assert of_the_file - internal <= set(dir(worker.Worker))


def test_calls_are_a_part_of_a_span() -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert muster.Options(traceparent=parent).traceparent == parent
    for wrong in ("x", parent.upper(), parent[:-1], "00-" + "0" * 32 + parent[35:]):
        with pytest.raises(muster.ConfigurationError, match="traceparent"):
            muster.Options(traceparent=wrong)
    assert trace.metadata("") is None
    assert trace.metadata(parent) == (("traceparent", parent),)


def test_a_job_that_is_submitted_again_is_a_part_of_another_span() -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    given = job_pb2.JobSpec(trace_parent=parent, working_directory="/work")
    shown = muster.JobView(job_pb2.Job(name="train", spec=given))
    again = shown.spec
    assert again is not None
    assert (again.to_message().spec.trace_parent, again.to_message().spec.working_directory) == ("", "/work")
    assert shown.to_message().spec.trace_parent == parent, "what was shown is not changed"


def test_the_current_span_of_opentelemetry_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    current = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"

    class Propagate:
        @staticmethod
        def inject(carrier: dict[str, str]) -> None:
            carrier.update(traceparent=current, tracestate="v=1", baggage="user=7")

    monkeypatch.setattr(trace, "_propagate", Propagate)
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert trace.metadata(given) == (("traceparent", current), ("tracestate", "v=1"))


def test_both_clients_know_the_same_features() -> None:
    text = (RETRIES.parents[1] / "crates" / "wire" / "src" / "features.rs").read_text()
    rust = set(re.findall(r', "([a-z-]+)"\),', text))
    python = set(re.findall(r'"((?:job|container)-[a-z-]+)"', Path(_features.__file__).read_text()))
    assert rust == python and len(rust) > 15


def test_what_a_job_needs_is_required_of_the_replica() -> None:
    plain = muster.job("a", ["x"]).to_message()
    files = muster.job("a", ["x"], workdir="sha256:" + "0" * 64, nodes={"exclude": ["h1"]}).to_message()
    assert required_features([plain]) == ""
    assert required_features([plain, files, files]) == "job-nodes,job-workdir"
    nested = muster.job("a", ["x"], workers=4, topology={"segments": [{"level": "rack", "workers": 2}]}).to_message()
    assert required_features([nested]) == "job-segments"
    calls = [Call("submit job", "/", files, bytes, bytes, required=required) for required in ("", "job-nodes")]
    assert call_metadata(calls[0], "") is None
    assert call_metadata(calls[1], "") == (("muster-required-features", "job-nodes"),)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert call_metadata(calls[1], parent) == (("traceparent", parent), ("muster-required-features", "job-nodes"))
