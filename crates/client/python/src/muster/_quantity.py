"""Durations, times, CPUs, memory and devices as job files write them: exact, or refused.

Each function raises ValueError with a text that goes on behind the name of the field.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Callable, Iterable, Sequence

_TEXT_MAX = 64
_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_NICE_MAX = 100
# The longest `Duration`, and the last `Timestamp`.
_SPAN_MS_MAX = 315_576_000_000_000
_MOMENT_MS_MAX = 253_402_207_200_999
_MEMORY = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_MEMORY.update({"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40})
_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m(?!s))?(?:([0-9]+)s)?(?:([0-9]+)ms)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _refuse(expected: str, text: str) -> ValueError:
    return ValueError(f'must be {expected}, got "{text[:40]}"')


def _whole(text: str, limit: int = _U64) -> int | None:
    if not text or len(text) > _TEXT_MAX or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if value <= limit else None


def _scaled(text: str, scale: int, limit: int = _U64) -> int | None:
    units, point, fraction = text.partition(".")
    if not point:
        whole = _whole(units)
        value = None if whole is None else whole * scale
    else:
        whole, parts = _whole(units), _whole(fraction)
        if whole is None or parts is None or len(fraction) > 10:
            return None
        value, rest = divmod((whole * 10 ** len(fraction) + parts) * scale, 10 ** len(fraction))
        if rest:
            return None
    return value if value is not None and value <= limit else None


def duration_ms(text: str) -> int:
    """``90s``, ``2h`` or ``1h30m``; ``0`` needs no unit."""
    if text == "0":
        return 0
    found = _DURATION.fullmatch(text) if 0 < len(text) <= _TEXT_MAX else None
    parts = [] if found is None else [int(part or 0) for part in found.groups()]
    total = sum(part * unit for part, unit in zip(parts, _UNITS_MS))
    if not parts or total > _SPAN_MS_MAX:
        raise _refuse("a duration like 90s, 2h or 1h30m (units: d, h, m, s, ms)", text)
    return total


def cpu_milli(text: str) -> int:
    """``2``, ``0.5`` or ``500m``."""
    value = _whole(text[:-1]) if text.endswith("m") else _scaled(text, 1_000)
    if value is None:
        raise _refuse("CPUs like 2, 0.5 or 500m", text)
    return value


def memory_bytes(text: str) -> int:
    """``4Gi``, ``512MiB``, ``64G`` or a plain number."""
    number = text[: len(text) - len(text.lstrip("0123456789."))]
    scale = _MEMORY.get(text[len(number) :].removesuffix("B"))
    value = None if scale is None else _scaled(number, scale)
    if value is None:
        raise _refuse("memory like 4Gi, 512Mi or 64G (units: Ki, Mi, Gi, Ti, k, M, G, T)", text)
    return value


# Workers of one gang, at most.
GANG_WORKERS_MAX = 16_384
# Bytes of memory or scratch of one worker, at least: less is a number whose unit was forgotten.
_WORKER_BYTES_MIN = 1 << 20


def worker_bytes(text: str) -> int:
    """What :func:`memory_bytes` reads; zero is left to the field."""
    value = memory_bytes(text)
    if 0 < value < _WORKER_BYTES_MIN:
        advice = f" bytes; give it a unit, like {int(text)}Gi" if text.isdecimal() else ""
        raise ValueError(f"must be 1Mi or more, got {text}{advice}")
    return value


def workers(text: str) -> int:
    """Workers of a group; which numbers are right is judged with the rest of the job."""
    value = _whole(text, _U32)
    if value is None:
        raise _refuse(f"a whole number from 1 to {GANG_WORKERS_MAX}", text)
    return value


def count(text: str) -> int:
    """A number that fits into 32 bits."""
    value = _whole(text, _U32)
    if value is None:
        raise _refuse("at most 4294967295" if _whole(text) is not None else "a whole number, 0 or more", text)
    return value


# Ranges of one array, at most.
ARRAY_RANGES_MAX = 256
_ARRAY = "a number of members like 100, or indices like 0-99:5,200,300-310, and may end in %N, the \
number that may be unfinished at a time"


def nice(text: str) -> int:
    """A nice value."""
    value = _whole(text[1:] if text[:1] in ("-", "+") else text, _NICE_MAX)
    if value is None:
        raise _refuse("a whole number from -100 to 100", text)
    return -value if text[:1] == "-" else value


def array(text: str) -> tuple[int, str, int | None]:
    """Size or indices of an array, and its throttle."""
    members, found, rest = text.strip().partition("%")
    throttle = _whole(rest.strip(), _U32) if found else None
    members = members.strip()
    size = _whole(members, _U32)
    if found and throttle is None:
        raise _refuse(_ARRAY, text)
    if size is not None:
        return size, "", throttle
    ranges = index_ranges(members)
    if ranges is None:
        raise _refuse(_ARRAY, text)
    if len(ranges) == 1 and ranges[0].start == 0 and (ranges[0].step == 1 or len(ranges[0]) == 1):
        return len(ranges[0]), "", throttle
    return 0, ",".join(_shown(indices) for indices in ranges), throttle


def index_ranges(text: str) -> list[range] | None:
    """The indices of an array, ascending; none when the text lists none."""
    found = []
    for part in text.split(","):
        ends, stepped, step_text = part.partition(":")
        first_text, ranged, last_text = ends.partition("-")
        first, step = _whole(first_text.strip(), _U32), _whole(step_text.strip(), _U32) if stepped else 1
        last = _whole(last_text.strip(), _U32) if ranged else first
        if first is None or last is None or not step or last < first:
            return None
        found.append(range(first, last + 1, step))
    return sorted(found, key=lambda indices: (indices.start, indices.stop, indices.step))


def ranges_of(numbers: Iterable[int]) -> list[range]:
    """Ranges that have exactly these numbers, which are ascending."""
    runs: list[tuple[int, int, int]] = []
    for number in numbers:
        first, last, step = runs[-1] if runs else (0, -1, 0)
        # Two numbers make any step; the third has to keep it.
        if runs and (first == last or number - last == step):
            runs[-1] = (first, number, number - last)
        else:
            runs.append((number, number, 1))
    found = []
    for first, last, step in runs:
        # Two numbers far apart are clearer by themselves.
        is_pair = step > 1 and last - first == step
        found += [range(first, first + 1), range(last, last + 1)] if is_pair else [range(first, last + 1, step)]
    return found


def indices_text(ranges: Sequence[range]) -> str:
    """Ranges as ``array`` takes them: one number by itself would be a number of members."""
    if len(ranges) == 1 and len(ranges[0]) == 1:
        return f"{ranges[0].start}-{ranges[0].start}"
    return ",".join(_shown(indices) for indices in ranges)


def _shown(indices: range) -> str:
    last = indices[-1]
    if len(indices) == 1:
        return str(last)
    return f"{indices.start}-{last}" + (f":{indices.step}" if indices.step > 1 else "")


def flag(text: str) -> bool:
    """``true`` or ``false``."""
    if text not in ("true", "false"):
        raise _refuse("true or false", text)
    return text == "true"


def devices(text: str) -> tuple[int | None, int]:
    """Whole devices, or thousandths of one that is shared."""
    whole = _whole(text, _U32)
    if whole is not None:
        return whole, 0
    milli = None if _whole(text) is not None else _scaled(text, 1_000, 999)
    if milli is None:
        raise _refuse("a whole number of devices, or a share of one like 0.25", text)
    return None, milli


def throughput_milli(text: str) -> int:
    """``1.0`` or ``0.45``."""
    value = _scaled(text, 1_000, _U32)
    if value is None:
        raise _refuse("a number like 1.0 or 0.45, against the type the job was written for", text)
    return value


def milli_small(text: str) -> int:
    """``2`` or ``0.5``."""
    value = _scaled(text, 1_000, _U32)
    if value is None:
        raise _refuse("a number like 2 or 0.5, with at most three decimals", text)
    return value


def time_ms(now_ms: int) -> Callable[[str], int]:
    """A reader of RFC 3339, and of ``+2h`` for two hours from now."""

    def read(text: str) -> int:
        value = _time_ms(text, now_ms) if len(text) <= _TEXT_MAX else None
        if value is None or not 0 < value <= _MOMENT_MS_MAX:
            raise _refuse("a time like 2027-01-31T18:00:00Z, with at most three decimals, or +2h for two hours from now", text)
        return value

    return read


def _time_ms(text: str, now_ms: int) -> int | None:
    if text.startswith("+"):
        try:
            return now_ms + duration_ms(text[1:])
        except ValueError:
            return None
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(found[at]) for at in range(1, 7))
    nanos = int((found[7] or "").ljust(9, "0"))
    if second > 60 or nanos % 1_000_000:
        return None
    try:
        # A leap second is the second before it.
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc)
        if found[9]:
            away = timedelta(hours=int(found[10]), minutes=int(found[11]))
            moment = moment - away if found[9] == "+" else moment + away
    except (ValueError, OverflowError):
        return None
    return (moment - _EPOCH) // timedelta(milliseconds=1) + nanos // 1_000_000
