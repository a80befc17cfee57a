"""What a program says and asks inside of a job, through the agent of its host.

>>> from muster import worker
>>> here = worker.current()
>>> for step in range(300):  # doctest: +SKIP
...     here.step(step, 0.8)
...     if here.notice():
...         save(here.checkpoint_directory)
...         here.checkpoint_committed(step)
...         break

Outside of Muster the calls do nothing, and a worker is rank 0 of 1. The file that this stands on has no
dependencies and can be copied beside a program.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Mapping

from ._time import Seconds, moment, seconds, timestamp
from ._agent import COMMIT_MAX_S, NoteError, Notice, Refused, Unreachable
from ._agent import Worker as _AgentWorker

__all__ = ["NoteError", "Notice", "Refused", "Unreachable", "Worker", "current"]


@dataclass(frozen=True)
class Worker:
    """This process, as the agent knows it."""

    _agent: _AgentWorker
    _environment: Mapping[str, str]

    @property
    def job_id(self) -> str:
        """``job-…``; empty outside of Muster."""
        return self._agent.job_id

    @property
    def rank(self) -> int:
        """Its place in the gang, from 0."""
        return self._agent.rank

    @property
    def world_size(self) -> int:
        """Workers of the gang."""
        return self._number("MUSTER_WORLD_SIZE", 1)

    @property
    def local_rank(self) -> int:
        """Its place among the workers of its gang on its node."""
        return self._number("MUSTER_LOCAL_RANK", 0)

    @property
    def attempt(self) -> int:
        """Placements of the job so far, from 1."""
        return self._number("MUSTER_ATTEMPT", 1)

    @property
    def array_index(self) -> int | None:
        """Its job's place in an array; none outside of one."""
        return self._number("MUSTER_ARRAY_INDEX", 0) if "MUSTER_ARRAY_INDEX" in self._environment else None

    @property
    def checkpoint_directory(self) -> str:
        """Where the job keeps its checkpoints, the same for every attempt; empty when it has no such place."""
        return self._agent.checkpoint_directory

    @property
    def resumes(self) -> bool:
        """Whether an earlier attempt of the job saved its work."""
        return self._agent.resumes

    @property
    def last_checkpoint_time(self) -> datetime | None:
        """When that was."""
        return moment(timestamp(self._number("MUSTER_CHECKPOINT_SAVED_AT_MS", 0)))

    @property
    def stop_grace(self) -> timedelta:
        """From SIGTERM to SIGKILL."""
        return timedelta(milliseconds=self._number("MUSTER_STOP_GRACE_MS", 30_000))

    def notice(self) -> Notice | None:
        """Whether this process has to stop, and how long it may take."""
        return self._agent.notice()

    def step(self, number: int, duration: Seconds = 0.0) -> None:
        """Says that a step is done. Waits for nobody; whether it was heard does not matter to the work."""
        self._agent.step(number, seconds(duration))

    def checkpoint_committed(self, step: int = 0, *, timeout: Seconds = COMMIT_MAX_S) -> None:
        """Says that the work up to a step is saved, and waits until the cluster knows.

        Raises Refused when this attempt is not the current one any more, and Unreachable when nobody
        answered in time; it may then still become known.
        """
        self._agent.checkpoint_committed(step, seconds(timeout))

    def ready(self, *, timeout: Seconds = COMMIT_MAX_S) -> None:
        """Says that this worker does what it was started for, and waits until the cluster knows.

        A job with ``readiness`` fails to start unless every worker says that in time; to others it makes no
        difference. Raises as :meth:`checkpoint_committed` does.
        """
        self._agent.ready(seconds(timeout))

    def _number(self, name: str, default: int) -> int:
        text = self._environment.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else default


def current(environment: Mapping[str, str] | None = None) -> Worker:
    """The worker that this process belongs to."""
    found = dict(os.environ if environment is None else environment)
    return Worker(_AgentWorker.from_env(found), found)
