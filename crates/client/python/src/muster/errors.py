"""Why a call did not succeed, in the terms a program decides by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Sequence


@dataclass(frozen=True)
class Violation:
    """A field of a request that breaks a rule."""

    field: str
    """As in the message, for example ``spec.groups[0].workers``."""
    description: str
    """What is wrong and what would be right."""


class MusterError(Exception):
    """What every error of this package is."""


class ConfigurationError(MusterError):
    """The client was told too little, or what cannot be used."""


class Unavailable(MusterError):
    """No definite answer within the deadline.

    A mutation may have been done. Repeating it with the same ``request_id`` tells, and does it once.
    """

    def __init__(self, operation: str, attempts: int, waited_s: float, last: str, request_id: str | None) -> None:
        self.operation = operation
        self.attempts = attempts
        self.waited_s = waited_s
        self.last = last
        """How the last attempt failed."""
        self.request_id = request_id
        """Of a mutation."""
        said = f"{operation}: no definite answer within {waited_s:g} s ({attempts} attempts): {last}"
        super().__init__(said if request_id is None else f"{said} (request id {request_id})")


@dataclass
class Refused(MusterError):
    """The answer is no; repeating the call unchanged would not help."""

    operation: str
    message: str
    """One sentence for people."""
    reason: str = ""
    """Stable name, for example ``NEVER_FITS``; empty when the status is not the cluster's own."""
    number: str = ""
    """Stable number, for example ``MS-1002``."""
    grpc_code: str = ""
    """Name of the gRPC status, for example ``NOT_FOUND``."""
    violations: Sequence[Violation] = ()
    """Of ``INVALID_FIELD``."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Facts for programs: what would help, by name."""

    def __str__(self) -> str:
        code = " ".join(part for part in (self.number, self.reason or self.grpc_code) if part)
        fields = "".join(f"\n  {found.field}: {found.description}" for found in self.violations)
        return f"{self.operation} was refused: {code}: {self.message}{fields}"


class NotFound(Refused):
    """There is no such job or node."""


class JobFailed(MusterError):
    """A job that was waited for ended otherwise than hoped."""

    def __init__(self, job_id: str, phase: str, detail: str) -> None:
        self.job_id = job_id
        self.phase = phase
        """``failed`` or ``cancelled``."""
        self.detail = detail
        """Why, one sentence."""
        super().__init__(f"{job_id} {phase}: {detail}")
