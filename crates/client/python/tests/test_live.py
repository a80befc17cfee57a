"""Both clients against a cluster of real processes."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid

import pytest

import muster
import muster.aio
from conftest import PATIENCE_S, Cluster

SHELL = ["/bin/sh", "-c"]
LINES = 150
WRITE = f"i=0; while [ $i -lt {LINES} ]; do echo out $i; echo err $i >&2; i=$((i + 1)); sleep 0.02; done"


def shell(name: str, script: str) -> muster.JobSpec:
    return muster.job(name, [*SHELL, script], cpu=0.1, memory_bytes=64 << 20)


def lines(name: str) -> str:
    return "".join(f"{name} {i}\n" for i in range(LINES))


def test_a_job_from_submission_to_output(cluster: Cluster) -> None:
    with cluster.client() as client:
        [job_id] = client.submit(muster.job("hello", [*SHELL, "echo hello; echo $A >&2"], environment={"A": "b"}))
        job = client.wait(job_id, until="succeeded", timeout_s=PATIENCE_S)
        assert muster.phase(job) == "succeeded" and muster.has_ended(job)
        pieces = list(client.logs(job_id))
        assert {(piece.stream, piece.data) for piece in pieces} == {("stdout", b"hello\n"), ("stderr", b"b\n")}
        assert b"".join(piece.data for piece in client.logs(job_id, stream="stderr")) == b"b\n"
        assert client.job(job_id).name == "hello"
        assert [found.id for found in client.jobs(name_prefix="hello")] == [job_id]
        assert [node.description.name for node in client.nodes()] == ["h1"]


def test_refusals_are_told_apart(cluster: Cluster) -> None:
    with cluster.client() as client:
        with pytest.raises(muster.Refused) as refused:
            client.submit(muster.job("No Name", ["true"]))
        assert (refused.value.reason, refused.value.number) == ("INVALID_FIELD", "MS-1001")
        assert [violation.field for violation in refused.value.violations] == ["spec.name"]
        with pytest.raises(muster.Refused, match="NEVER_FITS"):
            client.validate(muster.job("giant", ["true"], workers=64, accelerators="h100:4"))
        with pytest.raises(muster.NotFound):
            client.job("job-fffffffff")
        with pytest.raises(muster.ConfigurationError):
            client.submit(muster.job("x", ["true"]), request_id="no uuid")
        [job_id] = client.submit(shell("fails", "exit 3"))
        with pytest.raises(muster.JobFailed, match="exit code 3"):
            client.wait(job_id, until="succeeded", timeout_s=PATIENCE_S)
        [job_id] = client.submit(shell("stays", "sleep 600"))
        client.wait(job_id, until="running", timeout_s=PATIENCE_S)
        with pytest.raises(TimeoutError):
            client.wait(job_id, timeout_s=0.3)
        token = client.job(job_id).placement.token
        client.commit_checkpoint(job_id, token)
        assert client.wait(job_id, until="checkpointed", timeout_s=PATIENCE_S).checkpointed_at_ms > 0
        client.cancel(job_id)
        assert muster.phase(client.wait(job_id, timeout_s=PATIENCE_S)) == "cancelled"


def test_one_request_id_is_one_job(cluster: Cluster) -> None:
    with cluster.client() as client:
        request_id = str(uuid.uuid4())
        spec = shell("once", "true")
        first = client.submit(spec, request_id=request_id)
        assert client.submit(spec, request_id=request_id) == first
        assert len(client.submit_all([spec, spec])) == 2


def test_a_leader_is_killed_under_everything(cluster: Cluster) -> None:
    with cluster.client() as client:
        [writing] = client.submit(shell("writes", WRITE))
        client.wait(writing, until="running", timeout_s=PATIENCE_S)
        seen: dict[str, str] = {"stdout": "", "stderr": ""}

        def follow() -> None:
            for piece in client.logs(writing, follow=True):
                assert piece.dropped_bytes == 0
                seen[piece.stream] += piece.data.decode()

        submitted: list[str] = []
        stop = threading.Event()

        def submit() -> None:
            while not stop.is_set():
                submitted.extend(client.submit(shell("survives", "true")))

        changes: dict[str, list[int]] = {}

        def watch() -> None:
            for item in client.watch(timeout_s=PATIENCE_S):
                if isinstance(item, muster.Changed) and item.job.name == "survives":
                    changes.setdefault(item.job.id, []).append(item.log_index)
                    if stop.is_set() and all(one in changes for one in submitted):
                        return

        threads = [threading.Thread(target=work) for work in (follow, submit, watch)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        killed = cluster.kill_leader()
        before = len(submitted)
        end = time.monotonic() + PATIENCE_S
        while len(submitted) < before + 5:
            assert time.monotonic() < end, "nothing is accepted after the leader is gone"
            time.sleep(0.05)
        stop.set()
        threads[1].join(PATIENCE_S)
        # The watch ends with a change that comes after.
        submitted.extend(client.submit(shell("survives", "true")))
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert seen == {"stdout": lines("out"), "stderr": lines("err")}
        assert len(submitted) == len(set(submitted))
        known = {job.id for job in client.jobs(name_prefix="survives")}
        assert known == set(submitted), "lost, or done twice"
        for indexes in changes.values():
            assert indexes == sorted(indexes)
        cluster.start(killed)


def test_asyncio(cluster: Cluster) -> None:
    async def work() -> None:
        options = muster.Options(attempt_timeout_s=4.0)
        async with muster.aio.Client(cluster.clients, options=options) as client:
            ids = await asyncio.gather(*(client.submit(shell("many", "echo $MUSTER_JOB_ID")) for _ in range(20)))
            jobs = await asyncio.gather(*(client.wait(one, timeout_s=PATIENCE_S) for [one] in ids))
            assert {muster.phase(job) for job in jobs} == {"succeeded"}
            [job_id] = ids[0]
            assert b"".join([piece.data async for piece in client.logs(job_id)]).decode() == f"{job_id}\n"
            assert len([job async for job in client.jobs(name_prefix="many")]) == 20
            assert [node.description.name async for node in client.nodes()] == ["h1"]
            [writing] = await client.submit(shell("awrites", WRITE))
            await client.wait(writing, until="running", timeout_s=PATIENCE_S)

            async def follow() -> dict[str, str]:
                seen = {"stdout": "", "stderr": ""}
                async for piece in client.logs(writing, follow=True):
                    seen[piece.stream] += piece.data.decode()
                return seen

            following = asyncio.create_task(follow())
            killed = await asyncio.to_thread(cluster.kill_leader)
            [after] = await client.submit(shell("after", "true"))
            await client.wait(after, until="succeeded", timeout_s=PATIENCE_S)
            assert await following == {"stdout": lines("out"), "stderr": lines("err")}
            cluster.start(killed)
            with pytest.raises(muster.NotFound):
                await client.job("job-fffffffff")
            [stays] = await client.submit(shell("astays", "sleep 600"))
            await client.wait(stays, until="running", timeout_s=PATIENCE_S)
            with pytest.raises(TimeoutError):
                await client.wait(stays, timeout_s=0.3)
            await client.cancel(stays)
            with pytest.raises(muster.JobFailed):
                await client.wait(stays, until="checkpointed", timeout_s=PATIENCE_S)

    asyncio.run(asyncio.wait_for(work(), 3 * PATIENCE_S))


def test_certificates(secure_cluster: Cluster) -> None:
    with secure_cluster.client() as client:
        [job_id] = client.submit(shell("secret", "echo secret"))
        client.wait(job_id, until="succeeded", timeout_s=PATIENCE_S)
        assert b"".join(piece.data for piece in client.logs(job_id)) == b"secret\n"
    impatient = muster.Options(deadline_s=2.0, attempt_timeout_s=1.0)
    with muster.Client(secure_cluster.clients, options=impatient) as plain:
        with pytest.raises(muster.Unavailable):
            plain.job(job_id)
    # Another authority is not believed, on either side.
    other = Cluster(secure_cluster.program, secure=True)
    try:
        with muster.Client(secure_cluster.clients, tls=other.tls(), options=impatient) as stranger:
            with pytest.raises(muster.Unavailable):
                stranger.job(job_id)
    finally:
        other.close()
