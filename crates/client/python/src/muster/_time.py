"""Times: `datetime` and `timedelta` at the surface, integers on the wire."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Union

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


def span(ms: int) -> timedelta | None:
    """Of a message; none for 0, which there says nothing."""
    return timedelta(milliseconds=ms) if ms else None


def moment(ms: int) -> datetime | None:
    """Of a message, in UTC; none for 0, and for what no calendar has."""
    try:
        return EPOCH + timedelta(milliseconds=ms) if ms else None
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
