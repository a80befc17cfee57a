"""How a client finds its cluster, and how patient it is."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Sequence

from .errors import ConfigurationError

# In the certificates of all replicas of a cluster with certificates, and of nobody else.
REPLICA_NAME = "replica.muster.internal"
# A gang of 16,384 workers with its placement has about 2 MiB.
ANSWER_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class Tls:
    """The files of a client with a certificate, as ``muster ca issue`` writes them."""

    ca: str | os.PathLike[str]
    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Authorities, key and certificate.

        Raises ConfigurationError when one cannot be read.
        """
        found = []
        for path in (self.ca, self.key, self.cert):
            try:
                found.append(Path(path).read_bytes())
            except OSError as error:
                raise ConfigurationError(f"{os.fspath(path)} cannot be read: {error}") from error
        return found[0], found[1], found[2]


@dataclass(frozen=True)
class Options:
    """Times in seconds."""

    deadline_s: float = 30.0
    """Longest time of one call with all its repetitions; of a stream without any progress."""
    attempt_timeout_s: float = 10.0
    """Longest time of one attempt; then another replica is asked."""
    pause_min_s: float = 0.03
    """The first pause between two attempts; it doubles, with jitter."""
    pause_max_s: float = 0.5
    """The longest pause."""


@dataclass
class Patience:
    """The time and pauses of one call."""

    options: Options
    attempts: int = 0
    begun: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.begun + self.options.deadline_s - time.monotonic()

    def attempt_timeout(self) -> float:
        """Seconds for the attempt that begins now; counts it."""
        self.attempts += 1
        return max(0.001, min(self.options.attempt_timeout_s, self.left()))

    def pause(self, retry_after_s: float) -> float | None:
        """Seconds to wait before another attempt; none when there is no time for one."""
        doubled = self.options.pause_min_s * 2.0 ** min(self.attempts - 1, 16)
        own = min(self.options.pause_max_s, doubled) * random.uniform(0.5, 1.0)
        # A server may ask for more patience than ours, within reason.
        pause = max(own, min(retry_after_s, 5.0))
        return pause if pause < self.left() else None


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


def tls_from_environment() -> Tls | None:
    """MUSTER_CA, MUSTER_CERT and MUSTER_KEY, which are given together or not at all."""
    names = ("MUSTER_CA", "MUSTER_CERT", "MUSTER_KEY")
    found = {name: os.environ.get(name) or None for name in names}
    ca, cert, key = (found[name] for name in names)
    if ca is not None and cert is not None and key is not None:
        return Tls(ca=ca, cert=cert, key=key)
    missing = [name for name, value in found.items() if value is None]
    if len(missing) < len(names):
        raise ConfigurationError(f"{', '.join(missing)} must be set too")
    return None
