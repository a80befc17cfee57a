"""The repetitions of one call, and the places of streams: what both kinds of client do alike.

Nothing in here waits or sends; the clients do, each in its own way.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Callable, Sequence

import grpc

from ._judge import Failure, Verdict, judge
from .errors import ConfigurationError, Refused, Unavailable
from .options import ANSWER_BYTES_MAX, REPLICA_NAME, Endpoints, Options, Patience, Tls
from .v1 import common_pb2, job_pb2


def channel_options(tls: Tls | None) -> list[tuple[str, int | str]]:
    """For gRPC: a replica that is gone is noticed and tried again soon; answers may be large."""
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.keepalive_time_ms", 5_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # Retries are ours: theirs know nothing of leaders.
        ("grpc.enable_retries", 0),
    ]
    if tls is not None:
        options.append(("grpc.ssl_target_name_override", REPLICA_NAME))
    return options


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Of the files; they are read anew with every client."""
    ca, key, cert = tls.read()
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


def new_request_id(given: str | None) -> str:
    """The caller's, or one of this call's own."""
    if given is None:
        return str(uuid.uuid4())
    try:
        return str(uuid.UUID(given))
    except ValueError as error:
        raise ConfigurationError(f"{given!r} is no request id: it must be a UUID") from error


class Seen:
    """The highest position of the log that any answer named: reads wait for it on whichever replica."""

    def __init__(self) -> None:
        self.log_index = 0

    def take(self, freshness: common_pb2.Freshness) -> None:
        """Of an answer."""
        self.log_index = max(self.log_index, freshness.log_index)

    def read(self) -> common_pb2.ReadOptions:
        """For a request."""
        return common_pb2.ReadOptions(min_log_index=self.log_index)


class Attempts:
    """One call, until it is answered."""

    def __init__(
        self,
        endpoints: Endpoints,
        options: Options,
        operation: str,
        *,
        request_id: str | None = None,
        names_log_index: bool = False,
    ) -> None:
        self._endpoints = endpoints
        self._options = options
        self._operation = operation
        self._request_id = request_id
        self._names_log_index = names_log_index
        self._patience = Patience(options)

    def address(self) -> str:
        """Whom to ask now."""
        return self._endpoints.current()

    def timeout(self) -> float:
        """Seconds for the attempt that begins now."""
        return self._patience.attempt_timeout()

    def progress(self) -> None:
        """A stream has brought something: its patience begins anew."""
        self._patience = Patience(self._options)

    def begin(self) -> None:
        """A stream is opened, without a time of its own."""
        self._patience.attempts += 1

    def read(self, error: grpc.RpcError) -> Failure:
        """What an error says."""
        code, message, trailers = status_of(error)
        return judge(self._operation, code, message, trailers, self._names_log_index)

    def failed(self, address: str, failure: Failure) -> float:
        """Seconds to wait before the next attempt.

        Raises Refused when the answer is no, Unavailable when there is no time for another attempt.
        """
        if failure.verdict == Verdict.FINAL:
            raise failure.refused
        if failure.verdict == Verdict.ROTATE:
            self._endpoints.rotate(address)
        elif failure.verdict == Verdict.FOLLOW:
            self._endpoints.follow(address, failure.leader)
        pause = self._patience.pause(failure.retry_after_s)
        if pause is None:
            last = f"{address}: {failure.refused.reason or failure.refused.grpc_code}: {failure.refused.message}"
            attempts, waited = self._patience.attempts, self._options.deadline_s
            raise Unavailable(self._operation, attempts, waited, last, self._request_id)
        return pause

    def ended(self, address: str) -> float:
        """The same of a stream that ended without a word: its replica stops."""
        refused = Refused(self._operation, "the stream ended", grpc_code="UNAVAILABLE")
        return self.failed(address, Failure(Verdict.ROTATE, refused, "", 0.0))


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, Sequence[tuple[str, str | bytes]]]:
    """Code, sentence and trailers of either kind of error."""
    code: Callable[[], grpc.StatusCode | None] | None = getattr(error, "code", None)
    details: Callable[[], str | None] | None = getattr(error, "details", None)
    trailing = getattr(error, "trailing_metadata", None)
    found = code() if code is not None else None
    said = details() if details is not None else None
    trailers = (trailing() if trailing is not None else None) or ()
    return found or grpc.StatusCode.UNKNOWN, said or str(error), [(key, value) for key, value in trailers]


@dataclass(frozen=True)
class Changed:
    """A job was added or changed; before :class:`SyncEnd`: a job as it is at the beginning."""

    log_index: int
    job: job_pb2.Job


@dataclass(frozen=True)
class SyncEnd:
    """The jobs as they were at the beginning have all been delivered."""

    log_index: int


@dataclass(frozen=True)
class Bookmark:
    """Nothing changed up to here."""

    log_index: int


@dataclass(frozen=True)
class Forgotten:
    """A finished job was dropped from the state."""

    log_index: int
    job_id: str


@dataclass(frozen=True)
class Restarted:
    """The place in the log was lost: what follows is a new sync; changes in between were not delivered."""


WatchItem = Changed | SyncEnd | Bookmark | Forgotten | Restarted


class WatchPlace:
    """Where a watch is in the log."""

    def __init__(self, job_ids: Sequence[str], tenant: str, resume_token: str, seen: Seen) -> None:
        self._job_ids = list(job_ids)
        self._tenant = tenant
        self._seen = seen
        self._delivered = bool(resume_token)
        self.resume_token = resume_token

    def request(self) -> job_pb2.WatchJobsRequest:
        """What is still wanted."""
        return job_pb2.WatchJobsRequest(
            resume_token=self.resume_token, job_ids=self._job_ids, tenant=self._tenant
        )

    def opening(self) -> Restarted | None:
        """To be delivered before what a stream brings that is opened now."""
        if self.resume_token or not self._delivered:
            return None
        self._delivered = False
        return Restarted()

    def accept(self, message: job_pb2.WatchJobsResponse) -> WatchItem | None:
        """Takes in a message; none for one that only a newer version understands."""
        if message.resume_token:
            self.resume_token = message.resume_token
        index = message.log_index
        self._seen.log_index = max(self._seen.log_index, index)
        self._delivered = True
        event = message.WhichOneof("event")
        if event == "changed":
            return Changed(index, message.changed)
        if event == "sync_end":
            return SyncEnd(index)
        if event == "bookmark":
            return Bookmark(index)
        if event == "forgotten":
            return Forgotten(index, message.forgotten)
        return None

    def lost(self, failure: Failure) -> bool:
        """Whether the place is not kept any more anywhere, so that the watch begins again."""
        lost = failure.refused.reason == "RESUME_TOKEN_COMPACTED" and bool(self.resume_token)
        if lost:
            self.resume_token = ""
            self._delivered = True
        return lost


@dataclass(frozen=True)
class Output:
    """A piece of a worker's output."""

    stream: str
    """``stdout`` or ``stderr``."""
    data: bytes
    dropped_bytes: int
    """Bytes right before ``data`` that its node did not keep."""


class OutputPlace:
    """Where a reader is in a worker's output."""

    def __init__(self, request: job_pb2.ReadLogsRequest) -> None:
        self._request = request
        self._begun = False

    def request(self) -> job_pb2.ReadLogsRequest:
        """What is still wanted."""
        return self._request

    def accept(self, message: job_pb2.ReadLogsResponse) -> Output | None:
        """Takes in a piece; none for the last one, which only says that there is no more."""
        self._begun = self._begun or bool(message.data)
        if message.position > 0 and message.HasField("token"):
            self._request.token.CopyFrom(message.token)
            self._request.from_position = message.position
            self._request.previous = False
            self._request.tail_bytes = 0
        if not message.data and not message.dropped_bytes:
            return None
        return Output(message.stream, message.data, message.dropped_bytes)

    def again(self, failure: Failure) -> Failure:
        """A failure, judged by what has been read: once there was output, its node may be back soon."""
        begun = self._begun or self._request.from_position > 0
        if begun and not self._request.HasField("token"):
            return Failure(Verdict.FINAL, failure.refused, "", 0.0)
        if begun and failure.refused.reason == "LOGS_UNAVAILABLE":
            return Failure(Verdict.STAY, failure.refused, "", failure.retry_after_s)
        return failure


class Limit:
    """The time of a whole wait; none for no limit."""

    def __init__(self, timeout_s: float | None, what: str) -> None:
        self._end = None if timeout_s is None else time.monotonic() + timeout_s
        self._what = what

    def left(self) -> float | None:
        """Seconds; raises TimeoutError when there are none."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(self._what)
        return left

    def pause(self, pause_s: float) -> float:
        """A pause, cut to the time that is left."""
        left = self.left()
        return pause_s if left is None else min(pause_s, left)

