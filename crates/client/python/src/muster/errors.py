"""Why a call did not succeed, in the terms a program decides by.

Every exception can be pickled, so it crosses process pools and the queues of test runners unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Mapping, Sequence


@dataclass(frozen=True)
class Violation:
    """A field of a request that breaks a rule."""

    field: str
    """As in the message, for example ``spec.groups[0].workers``."""
    description: str
    """What is wrong and what would be right."""


@dataclass(frozen=True)
class Problem:
    """A mistake in a job file."""

    line: int | None
    """From 1; none where the place is not known."""
    field: str
    """As in the file, for example ``spec.groups[0].cpu``; empty for the file as a whole."""
    description: str
    """What is wrong and what would be right."""

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}{self.field}: {self.description}" if self.field else f"{place}{self.description}"


class MusterError(Exception):
    """The base of every error of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The usual way calls the class with `args`, which is the text alone.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[MusterError], arguments: tuple[Any, ...], state: dict[str, Any]) -> MusterError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


class ConfigurationError(MusterError):
    """The client lacks something, or has something that cannot be used."""


class InvalidJobFile(ConfigurationError):
    """A job file, a script or a description that cannot be read as a job; names every mistake."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"the job file has {len(self.problems)} problem(s){lines}")


class IncompleteIndices(MusterError):
    """Which members of an array are in a phase is not known in full here."""


class TimedOut(MusterError, TimeoutError):
    """The time of a wait or of a watch is over; what was waited for may still happen."""


class Unavailable(MusterError):
    """No definite answer within the deadline.

    A mutation may have been done. The same call with the same ``request_id`` tells, and has one effect.
    """

    def __init__(
        self,
        operation: str,
        attempts: int,
        waited: timedelta,
        last: str,
        request_id: str | None = None,
        retry_delay: timedelta | None = None,
    ) -> None:
        self.operation = operation
        self.attempts = attempts
        self.waited = waited
        self.last = last
        """How the last attempt failed."""
        self.request_id = request_id
        """Of a mutation."""
        self.retry_delay = retry_delay
        """How long the last replica asked to wait; none where it did not."""
        text = f"{operation}: no definite answer within {waited.total_seconds():g} s ({attempts} attempts): {last}"
        super().__init__(text if request_id is None else f"{text} (request id {request_id})")


class Refused(MusterError):
    """The answer is no; the same call would be refused again. Its subclasses say what kind of no."""

    def __init__(
        self,
        operation: str,
        message: str,
        *,
        reason: str = "",
        number: str = "",
        grpc_code: str = "",
        violations: Sequence[Violation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_delay: timedelta | None = None,
    ) -> None:
        self.operation = operation
        self.message = message
        """One sentence for people."""
        self.reason = reason
        """Stable name, for example ``NEVER_FITS``; empty when the status is not the cluster's own."""
        self.number = number
        """Stable number, for example ``MS-1002``."""
        self.grpc_code = grpc_code
        """Name of the gRPC status, for example ``NOT_FOUND``."""
        self.violations = tuple(violations)
        """Of ``INVALID_FIELD``."""
        self.metadata = dict(metadata or {})
        """Facts for programs: what would help, by name."""
        self.retry_delay = retry_delay
        """When another attempt may have another answer; none where the cluster does not say."""
        code = " ".join(part for part in (number, reason or grpc_code) if part)
        fields = "".join(f"\n  {found.field}: {found.description}" for found in self.violations)
        super().__init__(f"{operation} was refused: {code}: {message}{fields}")


class InvalidSpec(Refused):
    """The request breaks a rule (``violations``), or no fleet could ever hold the job."""


class NotFound(Refused):
    """There is no such job, node or replica."""


class PermissionDenied(Refused):
    """The certificate or the rights of the tenant do not allow it."""


class Conflict(Refused):
    """The state does not allow it now: finished, in use, changed by another, held by another."""


class QuotaExceeded(Refused):
    """A limit is reached: of a tenant, of a message, of the state."""


_BY_REASON: dict[str, type[Refused]] = {
    "NEVER_FITS": InvalidSpec,
    "FEATURE_UNKNOWN": InvalidSpec,
    "DEADLINE_UNMEETABLE": InvalidSpec,
    "REQUEST_ID_REUSED": Conflict,
}
_BY_CODE: dict[str, type[Refused]] = {
    "INVALID_ARGUMENT": InvalidSpec,
    "NOT_FOUND": NotFound,
    "PERMISSION_DENIED": PermissionDenied,
    "UNAUTHENTICATED": PermissionDenied,
    "FAILED_PRECONDITION": Conflict,
    "ABORTED": Conflict,
    "ALREADY_EXISTS": Conflict,
    "RESOURCE_EXHAUSTED": QuotaExceeded,
}


def kind_of(reason: str, grpc_code: str) -> type[Refused]:
    """The class of a refusal; a reason that is not known goes by its code."""
    return _BY_REASON.get(reason) or _BY_CODE.get(grpc_code, Refused)


class JobFailed(MusterError):
    """A job that was waited for ended otherwise than hoped."""

    def __init__(self, job_id: str, phase: str, reason: str, message: str) -> None:
        self.job_id = job_id
        self.phase = phase
        """``failed`` or ``cancelled``."""
        self.reason = reason
        """Stable code."""
        self.message = message
        """Why, one sentence."""
        super().__init__(f"{job_id} {phase}: {message}")
