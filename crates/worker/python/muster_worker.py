"""What a program that runs under Muster can say and ask of the agent on its host.

One file, standard library only: copy it beside your program, or put its folder on PYTHONPATH.

    from muster_worker import Worker

    worker = Worker.from_env()
    for step in range(first, last):
        ...
        worker.step(step, seconds)
        if worker.notice():
            save(...)
            worker.checkpoint_committed(step)
            break

Outside of Muster every call does nothing, so a program needs no second path.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Mapping, Optional

__all__ = ["Notice", "NoteError", "Refused", "Unreachable", "Worker"]

#: Seconds that a committed checkpoint may take to be known to the cluster: longer than a change of leader.
COMMIT_MAX_S = 30.0
_STEP_MAX_S = 0.05
_AGAIN_S = 0.1
_ANSWER_BYTES_MAX = 4096
_NOTICE_BYTES_MAX = 64 << 10


class NoteError(Exception):
    """The cluster does not know of a checkpoint."""


class Refused(NoteError):
    """The agent or the cluster said no; it will not change its mind."""


class Unreachable(NoteError):
    """The agent could not be reached, or did not answer, in time."""


@dataclass(frozen=True)
class Notice:
    """A request to stop."""

    #: Seconds from the notice to SIGKILL.
    grace_s: float
    #: The same as a time of day, seconds since the Unix epoch.
    deadline_unix_s: float
    #: Why, in one word, such as "preempted" or "maintenance"; empty where it is not known.
    reason: str = ""


@dataclass(frozen=True)
class Worker:
    """This process, as the agent knows it. `job_id` is empty outside of Muster."""

    job_id: str = ""
    fencing_token: str = ""
    rank: int = 0
    socket_path: str = ""
    notice_file: str = ""
    #: Where the job keeps its checkpoints, the same for every attempt; empty when it has no such place.
    checkpoint_directory: str = ""
    #: Whether an earlier attempt of the job saved its work.
    resumes: bool = False

    @classmethod
    def from_env(cls, environment: Optional[Mapping[str, str]] = None) -> "Worker":
        """The worker that this process belongs to."""
        found = os.environ if environment is None else environment
        if not found.get("MUSTER_JOB_ID"):
            return cls()
        return cls(
            job_id=found["MUSTER_JOB_ID"],
            fencing_token=found["MUSTER_FENCING_TOKEN"],
            rank=int(found["MUSTER_RANK"]),
            socket_path=found.get("MUSTER_AGENT_SOCKET", ""),
            notice_file=found.get("MUSTER_NOTICE_FILE", ""),
            checkpoint_directory=found.get("MUSTER_CHECKPOINT_DIR", ""),
            resumes=found.get("MUSTER_RESUME") == "1",
        )

    def notice(self) -> Optional[Notice]:
        """Whether this process has to stop, and how long it may take."""
        if not self.notice_file:
            return None
        try:
            with open(self.notice_file, "rb") as file:
                told = json.loads(file.read(_NOTICE_BYTES_MAX))
            return Notice(
                told["grace_ms"] / 1000, told["deadline_unix_ms"] / 1000, told.get("reason") or ""
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def step(self, number: int, seconds: float = 0.0) -> None:
        """Says that a step is done. Waits for nobody; whether it was heard does not matter to the work."""
        if not self.socket_path:
            return
        try:
            self._ask({"step": {"number": number, "duration_ms": int(seconds * 1000)}}, _STEP_MAX_S)
        except (OSError, ValueError):
            # A heartbeat that is not heard is followed by another.
            pass

    def checkpoint_committed(self, step: int = 0, timeout_s: float = COMMIT_MAX_S) -> None:
        """Says that the work up to a step is saved, and waits until the cluster knows.

        Raises Refused when this attempt is not the current one any more, and Unreachable when nobody
        answered in time; it may then still become known.
        """
        self._ask_until_answered({"checkpoint_committed": {"step": step}}, timeout_s)

    def ready(self, timeout_s: float = COMMIT_MAX_S) -> None:
        """Says that this worker does what it was started for, and waits until the cluster knows.

        A job that has `readiness` in its file fails to start unless every worker reports that in time; to others it makes
        no difference. Raises as `checkpoint_committed` does.
        """
        self._ask_until_answered({"ready": {}}, timeout_s)

    def _ask_until_answered(self, said: dict[str, Any], timeout_s: float) -> None:
        if not self.job_id:
            return
        if not self.socket_path:
            raise Unreachable("the agent of this host takes no notes: MUSTER_AGENT_SOCKET is not set")
        end = time.monotonic() + timeout_s
        while True:
            left = end - time.monotonic()
            try:
                answer = self._ask(said, max(left, _AGAIN_S))
                break
            except (OSError, ValueError) as error:
                if left <= _AGAIN_S:
                    raise Unreachable(f"the agent did not answer within {timeout_s} s: {error}") from error
                time.sleep(_AGAIN_S)
        if answer.get("ok") is not True:
            raise Refused(str(answer.get("error", "the agent's answer is not understood")))

    def _ask(self, said: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        who = {"job_id": self.job_id, "fencing_token": self.fencing_token, "rank": self.rank}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(timeout_s)
            stream.connect(self.socket_path)
            stream.sendall(json.dumps({**who, **said}).encode() + b"\n")
            with stream.makefile("rb") as answers:
                answer = json.loads(answers.readline(_ANSWER_BYTES_MAX))
        if not isinstance(answer, dict):
            raise ValueError("the answer is no object")
        return answer
