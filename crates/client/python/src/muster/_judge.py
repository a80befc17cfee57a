"""What a failed attempt means: an answer, or another attempt, and where."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Iterable, Sequence

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from .errors import Refused, Violation, kind_of

_DOMAIN = "muster.dev"
_DETAILS = "grpc-status-details-bin"
_RETRY_AFTER_MAX_S = 86_400.0

# Refusals that may end differently: at the same replica a moment later, or at another one.
_STAY = {"OVERLOADED", "OUTCOME_UNKNOWN", "STORAGE_FULL", "CLUSTER_RECOVERING"}
_ROTATE = {
    "CLUSTER_NOT_READY",
    "DIVERGED",
    "LOG_INDEX_NOT_REACHED",
    "READ_UNCONFIRMED",
    "REPLICA_STOPPING",
    "REQUEST_TIMEOUT",
    "TOO_STALE",
    "TRAFFIC_REFUSED",
}
# These end a call, though they say when things may be different, or that another replica may know better.
_FINAL = {
    "STATE_FULL",
    "MEMBERSHIP_BUSY",
    "REPLICA_NOT_CAUGHT_UP",
    "WORKER_NOT_STARTED",
    "OUTPUT_NOT_FOUND",
    "LOGS_UNAVAILABLE",
}
_BROKEN = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}


class Verdict(Enum):
    """What to do about a failed attempt."""

    FINAL = "final"
    STAY = "stay"
    WAIT = "wait"
    """As STAY, for as long as it takes: what is waited for depends on the job and not on a replica."""
    ROTATE = "rotate"
    FOLLOW = "follow"


@dataclass(frozen=True)
class Failure:
    """One failed attempt."""

    verdict: Verdict
    refused: Refused
    leader: str
    retry_after_s: float


def judge(
    operation: str,
    code: grpc.StatusCode,
    message: str,
    trailers: Iterable[tuple[str, str | bytes]],
) -> Failure:
    """Reads a status."""
    reason, number, metadata, violations, retry_after_s = "", "", {}, [], 0.0
    for detail in _details(trailers):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == _DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
                number = metadata.pop("code", "")
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            if detail.Unpack(bad):
                violations = [Violation(v.field, v.description) for v in bad.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            if detail.Unpack(retry):
                delay = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
                # What a broken proxy sends must not overflow what it is turned into.
                retry_after_s = min(max(delay, 0.0), _RETRY_AFTER_MAX_S)
    refused = kind_of(reason, code.name)(
        operation,
        message,
        reason=reason,
        number=number,
        grpc_code=code.name,
        violations=violations,
        metadata=metadata,
        retry_delay=timedelta(seconds=retry_after_s) if retry_after_s > 0 else None,
    )
    leader = metadata.get("leader_endpoint", "")
    return Failure(_verdict(refused, code, leader, retry_after_s), refused, leader, retry_after_s)


def _verdict(refused: Refused, code: grpc.StatusCode, leader: str, retry_after_s: float) -> Verdict:
    reason = refused.reason
    if reason == "NOT_LEADER":
        return Verdict.FOLLOW if leader else Verdict.ROTATE
    if reason in _STAY:
        return Verdict.STAY
    if reason in _ROTATE:
        return Verdict.ROTATE
    if reason in _FINAL:
        return Verdict.FINAL
    if reason:
        # A newer server gave it: what it says of repeating is all that is known.
        if retry_after_s > 0:
            return Verdict.STAY
        return Verdict.ROTATE if code == grpc.StatusCode.UNAVAILABLE else Verdict.FINAL
    # Statuses of proxies and of broken connections: ours always carry a reason.
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) or code in _BROKEN:
        return Verdict.ROTATE
    return Verdict.STAY if code == grpc.StatusCode.RESOURCE_EXHAUSTED else Verdict.FINAL


def _details(trailers: Iterable[tuple[str, str | bytes]]) -> Sequence[any_pb2.Any]:
    for key, value in trailers:
        if key == _DETAILS and isinstance(value, bytes):
            status = status_pb2.Status()
            try:
                status.ParseFromString(value)
            except Exception:  # noqa: BLE001 - what a broken proxy sends is no reason to fail otherwise
                return ()
            return list(status.details)
    return ()
