"""How a client finds its cluster, and how patient it is."""

from __future__ import annotations

import os
import random
import re
import stat
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Iterator, Sequence

from ._time import Seconds, duration, milliseconds, seconds, timestamp, unix_ms
from ._trace import is_parent
from .errors import ConfigurationError
from .v1beta1 import common_pb2

# In the certificates of all replicas of a cluster with certificates, and of nobody else.
REPLICA_NAME = "replica.muster.internal"
# A gang of 16,384 workers with its placement has about 2 MiB.
ANSWER_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class Tls:
    """The files of a client with a certificate, as ``muster ca issue`` writes them.

    A client with a token has ``ca`` alone.
    """

    ca: str | os.PathLike[str]
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def read(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Authorities, key and certificate.

        Raises ConfigurationError when one cannot be read, or when there is a key without a certificate.
        """
        if (self.cert is None) != (self.key is None):
            raise ConfigurationError("cert and key are given together or not at all")
        found: list[bytes | None] = []
        for path in (self.ca, self.key, self.cert):
            try:
                found.append(None if path is None else Path(path).read_bytes())
            except OSError as error:
                raise ConfigurationError(f"{os.fspath(path or '')} cannot be read: {error}") from error
        return found[0] or b"", found[1], found[2]


@dataclass(frozen=True)
class Options:
    """How patient a client is. Times are :class:`~datetime.timedelta` or seconds."""

    deadline: Seconds = 30.0
    """Longest time of one call with all its repetitions; of a stream without any progress."""
    attempt_timeout: Seconds = 10.0
    """Longest time of one attempt; then another replica is asked."""
    pause_min: Seconds = 0.03
    """The first pause between two attempts; it doubles, with jitter."""
    pause_max: Seconds = 0.5
    """The longest pause."""
    traceparent: str = ""
    """The span that calls are a part of, as a ``traceparent`` of W3C Trace Context, where OpenTelemetry has no current one."""

    def __post_init__(self) -> None:
        if self.traceparent and not is_parent(self.traceparent):
            raise ConfigurationError("traceparent must be 00-, 32 and 16 hexadecimal digits, and 2 of flags, with - between them")


@dataclass
class Patience:
    """The time and pauses of one call."""

    options: Options
    attempts: int = 0
    begun: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.begun + seconds(self.options.deadline) - time.monotonic()

    def attempt_timeout(self) -> float:
        """Seconds for the attempt that begins now; counts it."""
        self.attempts += 1
        return max(0.001, min(seconds(self.options.attempt_timeout), self.left()))

    def pause(self, retry_after_s: float) -> float | None:
        """Seconds to wait before another attempt; none when there is no time for one."""
        doubled = seconds(self.options.pause_min) * 2.0 ** min(self.attempts - 1, 16)
        own = min(seconds(self.options.pause_max), doubled) * random.uniform(0.5, 1.0)
        # A server may ask for more patience than ours, within reason.
        pause = max(own, min(retry_after_s, 5.0))
        return pause if pause < self.left() else None


@dataclass(frozen=True)
class Read:
    """How current the state behind an answer has to be: :meth:`any`, :meth:`bounded`, :meth:`linearizable`,
    :meth:`at` or :meth:`at_log_index`.

    A client waits for what it has seen itself with each of the first three.
    """

    _is_linearizable: bool = False
    _max_staleness_ms: int = 0
    _at_ms: int = 0
    _at_log_index: int = 0
    min_log_index: int = 0
    """The answer is complete up to this position at least."""

    @classmethod
    def any(cls, *, min_log_index: int = 0) -> Read:
        """What the replica has applied, at once."""
        return cls(min_log_index=min_log_index)

    @classmethod
    def bounded(cls, max_staleness: Seconds, *, min_log_index: int = 0) -> Read:
        """Everything that was committed this long before the request arrived."""
        ms = milliseconds(max_staleness)
        if ms == 0:
            raise ConfigurationError("max_staleness must be above zero; linearizable() is the read that misses nothing")
        return cls(_max_staleness_ms=ms, min_log_index=min_log_index)

    @classmethod
    def linearizable(cls, *, min_log_index: int = 0) -> Read:
        """Everything that was committed before the request arrived."""
        return cls(_is_linearizable=True, min_log_index=min_log_index)

    @classmethod
    def at(cls, moment: datetime) -> Read:
        """The state as it was at a time of the past, from the archive of the log."""
        return cls(_at_ms=unix_ms(moment))

    @classmethod
    def at_log_index(cls, log_index: int) -> Read:
        """The state as it was behind one record of the log, from the archive of the log."""
        if log_index < 1:
            raise ConfigurationError("log_index must be above zero")
        return cls(_at_log_index=log_index)

    def to_message(self, seen_log_index: int = 0, generation: int = 0) -> common_pb2.ReadOptions:
        """For a request of a client that has seen this much."""
        if self._at_log_index:
            return common_pb2.ReadOptions(past=common_pb2.PastState(log_index=self._at_log_index))
        if self._at_ms:
            return common_pb2.ReadOptions(past=common_pb2.PastState(time=timestamp(self._at_ms)))
        message = common_pb2.ReadOptions(min_log_index=self.min_log_index)
        if seen_log_index > self.min_log_index:
            message.min_log_index, message.generation = seen_log_index, generation
        if self._is_linearizable:
            message.linearizable.SetInParent()
        elif self._max_staleness_ms:
            message.bounded.max_staleness.CopyFrom(duration(self._max_staleness_ms))
        else:
            message.any.SetInParent()
        return message


class Endpoints:
    """Addresses of replicas, and which one is asked next."""

    def __init__(self, addresses: str | Sequence[str] | None) -> None:
        if addresses is None:
            addresses = os.environ.get("MUSTER_ENDPOINTS", "")
        given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
        self.addresses = [_address(text) for text in given if text.strip()]
        if not self.addresses:
            raise ConfigurationError("no endpoint is given: pass some, or set MUSTER_ENDPOINTS=host:port,…")
        self._at = random.randrange(len(self.addresses))

    def current(self) -> str:
        """The one that is asked now."""
        return self.addresses[self._at]

    def rotate(self, failed: str) -> None:
        """Goes on to the next, unless another caller has done so since."""
        if self.current() == failed:
            self._at = (self._at + 1) % len(self.addresses)

    def follow(self, failed: str, hint: str) -> None:
        """Goes to the replica that another one named as the leader."""
        try:
            address = _address(hint)
        except ConfigurationError:
            return self.rotate(failed)
        if address not in self.addresses:
            # Bounded: a cluster has a handful, and a broken server must not grow this for ever.
            if len(self.addresses) >= 64:
                return self.rotate(failed)
            self.addresses.append(address)
        self._at = self.addresses.index(address)

    def __iter__(self) -> Iterator[str]:
        return iter(self.addresses)


def _address(text: str) -> str:
    address = text.strip()
    for scheme in ("http://", "https://"):
        address = address.removeprefix(scheme)
    address = address.rstrip("/")
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536) or "/" in address:
        raise ConfigurationError(f"{text!r} is no endpoint: it must be host:port")
    return address


def tls_from_environment(has_token: bool = False) -> Tls | None:
    """MUSTER_CA, MUSTER_CERT and MUSTER_KEY, which are given together or not at all; with a token MUSTER_CA is enough."""
    names = ("MUSTER_CA", "MUSTER_CERT", "MUSTER_KEY")
    found = {name: os.environ.get(name) or None for name in names}
    ca, cert, key = (found[name] for name in names)
    if ca is not None and cert is not None and key is not None:
        return Tls(ca=ca, cert=cert, key=key)
    if has_token and ca is not None and cert is None and key is None:
        return Tls(ca=ca)
    missing = [name for name, value in found.items() if value is None]
    if len(missing) < len(names):
        raise ConfigurationError(f"{', '.join(missing)} must be set too")
    return None


# `muster_`, the id, and the random digits, as `muster token create` prints it.
_TOKEN = re.compile("muster_[0-9a-f]{16}_[0-9a-f]{64}")
# A signed token of an issuer: three parts of digits of base64url.
_ISSUED = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_ISSUED_BYTES_MAX = 8192


def checked_token(text: str, where: str) -> str:
    """The secret of a token, or a token of an issuer, without the white space around it.

    Raises ConfigurationError, which never repeats the text, when it is none.
    """
    text = text.strip()
    is_issued = len(text) <= _ISSUED_BYTES_MAX and _ISSUED.fullmatch(text) is not None
    if _TOKEN.fullmatch(text) is None and not is_issued:
        raise ConfigurationError(
            f"{where} has no token: it is muster_, 16 hexadecimal digits, _, and 64 hexadecimal digits, or a signed token of an issuer"
        )
    return text


def token_from_environment() -> str | None:
    """The token in the file that MUSTER_TOKEN_FILE names, else that in MUSTER_TOKEN."""
    path = os.environ.get("MUSTER_TOKEN_FILE")
    if path:
        try:
            mode = os.stat(path).st_mode
            with open(path, encoding="ascii", errors="replace") as file:
                text = file.read(2 * _ISSUED_BYTES_MAX)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error
        if stat.S_ISREG(mode) and mode & 0o007:
            raise ConfigurationError(f"{path} is open to everybody; run chmod 600 on it")
        return checked_token(text, path)
    text = os.environ.get("MUSTER_TOKEN", "")
    return checked_token(text, "MUSTER_TOKEN") if text else None
