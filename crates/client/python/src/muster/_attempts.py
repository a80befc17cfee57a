"""The repetitions of one call: what both kinds of client do alike.

Nothing in here waits or sends; the clients do, each in its own way.
"""

from __future__ import annotations

import logging
import uuid
from datetime import timedelta
from typing import Callable, Sequence

import grpc

from ._judge import Failure, Verdict, judge
from ._time import seconds
from .errors import ConfigurationError, Refused, Unavailable
from .options import ANSWER_BYTES_MAX, REPLICA_NAME, Endpoints, Options, Patience, Tls

_LOG = logging.getLogger("muster")


def channel_options(tls: Tls | None) -> list[tuple[str, int | str]]:
    """For gRPC: a replica that is gone is noticed and tried again soon; answers may be large."""
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 50),
        # Despite its name also how long a connection may take to be made: a region may be far away.
        ("grpc.min_reconnect_backoff_ms", 3_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.keepalive_time_ms", 5_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # Retries are ours: theirs know nothing of leaders.
        ("grpc.enable_retries", 0),
    ]
    if tls is not None:
        options.append(("grpc.ssl_target_name_override", REPLICA_NAME))
    return options


def credentials(tls: Tls | None, token: str | None) -> grpc.ChannelCredentials | None:
    """Of the files, which are read again with every client, and of the token; none for plaintext."""
    if tls is None:
        if token is not None:
            raise ConfigurationError("a token is sent over TLS only: set MUSTER_CA, or pass tls=Tls(ca=…)")
        return None
    ca, key, cert = tls.read()
    if cert is None and token is None:
        raise ConfigurationError("a client shows a certificate or a token: give cert and key, or a token")
    own = grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)
    if token is None:
        return own
    return grpc.composite_channel_credentials(own, grpc.access_token_call_credentials(token))


def new_request_id(given: str | None) -> str:
    """The caller's, or one of this call's own."""
    if given is None:
        return str(uuid.uuid4())
    try:
        return str(uuid.UUID(given))
    except ValueError as error:
        raise ConfigurationError(f"{given!r} is no request id: it must be a UUID") from error


class Attempts:
    """One call, until it is answered."""

    def __init__(
        self,
        endpoints: Endpoints,
        options: Options,
        operation: str,
        *,
        request_id: str | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._options = options
        self._operation = operation
        self._request_id = request_id
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
        return judge(self._operation, code, message, trailers)

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
        elif failure.verdict == Verdict.WAIT:
            self.progress()
        pause = self._patience.pause(failure.retry_after_s)
        if pause is None:
            last = f"{address}: {failure.refused.reason or failure.refused.grpc_code}: {failure.refused.message}"
            waited = timedelta(seconds=seconds(self._options.deadline))
            refused = failure.refused
            raise Unavailable(
                self._operation, self._patience.attempts, waited, last, self._request_id, refused.retry_delay
            ) from refused
        _LOG.debug("%s at %s: %s; %s", self._operation, address, failure.refused, failure.verdict.value)
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
