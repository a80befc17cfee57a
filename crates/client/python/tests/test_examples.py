"""The example in each language, through the loss of the leader.

The Python one always; others by the programs that MUSTER_EXAMPLES names, separated by colons.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from conftest import PATIENCE_S, Cluster, eventually

PYTHON = Path(__file__).resolve().parents[1] / "examples" / "job.py"
OTHERS = [found for found in os.environ.get("MUSTER_EXAMPLES", "").split(":") if found]


def said(process: subprocess.Popen[str], what: str) -> str:
    """The rest of the next line that it prints."""
    assert process.stdout is not None and process.stderr is not None
    first, _, rest = process.stdout.readline().strip().partition(" ")
    assert first == what, process.stderr.read()
    return rest


@pytest.mark.parametrize(
    "program", [[sys.executable, str(PYTHON)], *([found] for found in OTHERS)], ids=lambda p: p[-1]
)
def test_an_example_survives_the_loss_of_the_leader(program: list[str], cluster: Cluster) -> None:
    gate = cluster.folder / f"gate-{abs(hash(program[-1]))}"
    # It prints nothing before the leader is gone.
    script = f'while [ ! -e "{gate}" ]; do sleep 0.1; done; echo released; sleep 600'
    environment = {**os.environ, "MUSTER_ENDPOINTS": ",".join(cluster.clients)}
    with subprocess.Popen(
        [*program, "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            job_id = said(process, "submitted")
            said(process, "explained")
            killed = cluster.kill_leader()
            gate.touch()
            rest, errors = process.communicate(timeout=2 * PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, rest) == (0, "printed released\nended cancelled\n"), errors
    with cluster.client() as client:
        assert [job.id for job in client.jobs(name_prefix="example") if job.id == job_id] == [job_id]
        assert client.job(job_id).phase == "cancelled"
        cluster.start(killed)
        replicas = len(cluster.clients)

        def whole() -> bool:
            answers = [replica for replica in client.status().replicas if replica.client_endpoint]
            return len(answers) == replicas and client.server_info().replica_id > 0

        eventually("the cluster is whole again", whole)
    with cluster.client() as client:
        # One submission, however often it was sent.
        assert len(list(client.jobs(name_prefix="example", read=muster.Read.linearizable()))) == CREATED.add(job_id)


class _Created:
    """Jobs that examples have submitted to the cluster of this module."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def add(self, job_id: str) -> int:
        self._ids.add(job_id)
        return len(self._ids)


CREATED = _Created()
