"""Closed sets: words in files and at the surface, enums on the wire."""

from __future__ import annotations

from typing import Any

from .v1beta1 import common_pb2, job_pb2, policy_pb2


class ClosedSet:
    """The words of an enum of the protocol, which are the names of its values without that of the set."""

    def __init__(self, enum: Any) -> None:
        names = {number: name for name, number in enum.items()}
        prefix = names[0].removesuffix("UNSPECIFIED")
        self._words: dict[int, str] = {number: name[len(prefix) :].lower() for number, name in names.items() if number}

    def number(self, word: str) -> Any:
        """Of a word; none when there is no such word."""
        return next((number for number, known in self._words.items() if known == word), None)

    def word(self, number: int) -> str:
        """Of a number; empty for zero, ``unknown`` for one of a newer server."""
        return self._words.get(number, "unknown" if number else "")

    def words(self) -> str:
        """All of them, for a sentence."""
        return ", ".join(self._words.values())


AFFINITY_LEVELS = ClosedSet(job_pb2.AffinityLevel)
AFFINITY_RULES = ClosedSet(job_pb2.AffinityRule)
TIERS = ClosedSet(common_pb2.Tier)
LAUNCH_FORMS = ClosedSet(job_pb2.LaunchForm)
PREFLIGHTS = ClosedSet(job_pb2.Preflight)
CPU_BINDINGS = ClosedSet(job_pb2.CpuBinding)
COMMAND_SHELLS = ClosedSet(job_pb2.CommandShell)
PURCHASES = ClosedSet(policy_pb2.Purchase)
PULL_RULES = ClosedSet(job_pb2.PullRule)
FAILURE_CLASSES = ClosedSet(job_pb2.FailureClass)
LEVELS = ClosedSet(job_pb2.TopologyLevel)
DEPENDENCY_RULES = ClosedSet(job_pb2.DependencyRule)
NOTIFICATION_EVENTS = ClosedSet(common_pb2.NotificationEvent)
OUTPUT_STREAMS = ClosedSet(job_pb2.OutputStream)
