"""What needs no cluster."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

import muster
from muster._attempts import Attempts, OutputPlace, Seen, WatchPlace
from muster._judge import Verdict, judge
from muster.options import Endpoints, Options, tls_from_environment
from muster.v1 import common_pb2, job_pb2


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
def test_only_what_may_end_differently_is_repeated(
    reason: str, code: grpc.StatusCode, verdict: Verdict
) -> None:
    found = trailers(reason, code="MS-1") if reason else []
    failure = judge("test", code, "why", found, names_log_index=False)
    assert (failure.verdict, failure.refused.reason) == (verdict, reason)


def test_refusals_are_judged_as_the_table_says() -> None:
    lines = [line.split() for line in RETRIES.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 50
    for reason, code, carries, verdict in lines:
        extras = carries.split("+")
        metadata = {"leader_endpoint": "http://c:3"} if "leader" in extras else {}
        named = {"?": "OF_A_NEWER_SERVER", "-": ""}.get(reason, reason)
        found = trailers(named, 1 if "retry_info" in extras else 0, **metadata) if named else []
        failure = judge("t", grpc.StatusCode[code], "", found, names_log_index="position" in extras)
        assert failure.verdict.value == verdict, (reason, code, carries)


def test_a_position_that_is_not_reached_is_asked_for_elsewhere() -> None:
    found = trailers("RESUME_TOKEN_INVALID")
    code = grpc.StatusCode.UNAVAILABLE
    assert judge("test", code, "", found, names_log_index=True).verdict == Verdict.ROTATE
    assert judge("test", code, "", found, names_log_index=False).verdict == Verdict.FINAL


def test_the_leader_is_followed_and_damage_is_borne() -> None:
    endpoints = Endpoints("a:1,b:2")
    failure = judge("t", grpc.StatusCode.UNAVAILABLE, "", trailers("NOT_LEADER", leader_endpoint="http://c:3"), False)
    Attempts(endpoints, Options(), "t").failed(endpoints.current(), failure)
    assert endpoints.current() == "c:3"
    damaged = [("grpc-status-details-bin", b"\xff\xff\xff")]
    assert judge("t", grpc.StatusCode.UNAVAILABLE, "", damaged, False).verdict == Verdict.ROTATE


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


def test_nobody_there_ends_with_the_deadline_and_the_request_id() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    begun = time.monotonic()
    with muster.Client(address, options=muster.Options(deadline_s=0.5)) as client:
        with pytest.raises(muster.Unavailable) as failed:
            client.submit(muster.job("x", ["true"]))
    assert failed.value.request_id and failed.value.attempts > 1
    assert time.monotonic() - begun < 10


def test_jobs_are_described_like_files() -> None:
    spec = muster.job("train", ["python"], workers=2, accelerators="h100|a100:4", cpu=0.5, run_time_limit_s=60)
    group = spec.groups[0]
    assert [choice.type for choice in group.accelerators.choices] == ["h100", "a100"]
    assert (group.accelerators.count, group.cpu_milli, spec.run_time_limit_ms) == (4, 500, 60_000)
    shared = muster.job("x", ["y"], accelerators="any:0.25").groups[0].accelerators
    assert (len(shared.choices), shared.share_milli) == (0, 250)
    for bad in ["h100", "h100:", "h100:0", "h100:1.5", "h100:-1", "h100:65", "h100:x"]:
        with pytest.raises(muster.ConfigurationError):
            muster.job("x", ["y"], accelerators=bad)
    with pytest.raises(muster.ConfigurationError):
        muster.job("x", "echo hello")


def test_a_watch_that_lost_its_place_begins_again() -> None:
    place = WatchPlace(["job-1"], "", "", Seen())
    assert place.opening() is None
    place.accept(job_pb2.WatchJobsResponse(resume_token="t", log_index=7, bookmark=True))
    assert place.request().resume_token == "t" and place.opening() is None
    code = grpc.StatusCode.OUT_OF_RANGE
    assert place.lost(judge("w", code, "", trailers("RESUME_TOKEN_COMPACTED"), True))
    assert place.request().resume_token == ""
    assert place.opening() == muster.Restarted() and place.opening() is None


def test_output_goes_on_behind_what_was_read() -> None:
    place = OutputPlace(job_pb2.ReadLogsRequest(job_id="job-1", previous=True, tail_bytes=9))
    code = grpc.StatusCode.NOT_FOUND
    away = judge("r", code, "", trailers("LOGS_UNAVAILABLE"), False)
    assert place.again(away).verdict == Verdict.FINAL
    token = common_pb2.FencingToken(generation=1, log_index=7)
    piece = job_pb2.ReadLogsResponse(stream="stdout", data=b"x", position=12, dropped_bytes=3, token=token)
    assert place.accept(piece) == muster.Output("stdout", b"x", 3)
    request = place.request()
    assert (request.from_position, request.previous, request.tail_bytes, request.token) == (12, False, 0, token)
    assert place.again(away).verdict == Verdict.STAY
    assert place.accept(job_pb2.ReadLogsResponse()) is None
