"""Times: `datetime` and `timedelta` at the surface, `Timestamp` and `Duration` on the wire."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Union

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from .errors import ConfigurationError

Seconds = Union[timedelta, float, int]
"""A length of time: a :class:`~datetime.timedelta`, or seconds."""

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def seconds(value: Seconds) -> float:
    """As gRPC and the clock take it."""
    found = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= found < 1e10:
        raise ConfigurationError(f"{value!r} is no length of time")
    return found


def milliseconds(value: Seconds) -> int:
    """Whole milliseconds, exactly: what is left over of one is no answer to guess."""
    length = value if isinstance(value, timedelta) else timedelta(seconds=seconds(value))
    whole, rest = divmod(length, _MILLISECOND)
    if whole < 0 or rest:
        raise ConfigurationError(f"{value!r} must be a whole number of milliseconds, from 0")
    return whole


def timestamp(ms: int) -> Timestamp:
    """For a message, of milliseconds since 1970."""
    return Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def duration(ms: int) -> Duration:
    """For a message, of milliseconds."""
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def span(message: Duration) -> timedelta | None:
    """Of a message; none when it is absent or zero."""
    try:
        return timedelta(seconds=message.seconds, microseconds=message.nanos // 1_000) or None
    except OverflowError:
        return None


def moment(message: Timestamp) -> datetime | None:
    """Of a message, in UTC; none when it is absent, and for what no calendar has."""
    if not message.seconds and not message.nanos:
        return None
    try:
        return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1_000)
    except OverflowError:
        return None


def unix_ms(value: datetime) -> int:
    """For a message. A time without a zone would mean another moment on every machine."""
    if value.tzinfo is None or value.utcoffset() is None:
        raise ConfigurationError(f"{value!r} has no time zone; use datetime.now(timezone.utc) or the like")
    ms = (value - EPOCH) // _MILLISECOND
    if ms <= 0:
        raise ConfigurationError(f"{value!r} is not after 1970")
    return ms
