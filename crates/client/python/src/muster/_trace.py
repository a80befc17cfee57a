"""The span that calls are a part of, by W3C Trace Context."""

from __future__ import annotations

import importlib
import re
from typing import Any

_HEADERS = ("traceparent", "tracestate")
_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

# Programs that record traces have it; nothing is installed for it here.
try:
    _propagate: Any = importlib.import_module("opentelemetry.propagate")
except ImportError:
    _propagate = None


def is_parent(text: str) -> bool:
    """Whether a text names a span."""
    return _PARENT.fullmatch(text) is not None


def metadata(given: str) -> tuple[tuple[str, str], ...] | None:
    """The metadata of a call: the current span of OpenTelemetry, where the program records one, else the one that is given."""
    carrier: dict[str, str] = {}
    if _propagate is not None:
        _propagate.inject(carrier)
    if not is_parent(carrier.get("traceparent", "")):
        carrier = {"traceparent": given} if given else {}
    # A tuple: gRPC takes no other sequence in each of its releases.
    return tuple((name, carrier[name]) for name in _HEADERS if carrier.get(name)) or None
