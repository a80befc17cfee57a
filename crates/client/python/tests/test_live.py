"""Both clients against a cluster of real processes."""

from __future__ import annotations

import asyncio
import pickle
import threading
import uuid
from datetime import datetime, timedelta, timezone
from typing import Iterable, Iterator, TypeVar

import pytest

import muster
import muster.aio
from conftest import PATIENCE_S, Cluster, eventually

SHELL = ["/bin/sh", "-c"]
LINES = 150
PATIENCE = timedelta(seconds=PATIENCE_S)
WRITE = f"i=0; while [ $i -lt {LINES} ]; do echo out $i; echo err $i >&2; i=$((i + 1)); sleep 0.02; done"


def shell(name: str, script: str) -> muster.JobSpec:
    return muster.job(name, [*SHELL, script], cpu=0.1, memory="64Mi")


def lines(name: str) -> str:
    return "".join(f"{name} {i}\n" for i in range(LINES))


def test_a_job_from_submission_to_output(cluster: Cluster) -> None:
    with cluster.client() as client:
        begun = datetime.now(timezone.utc)
        spec = muster.job("hello", [*SHELL, "echo hello; echo $A >&2"], environment={"A": "b"})
        job = client.submit(spec)
        assert (job.name, job.phase) == ("hello", "pending")
        assert job.wait(PATIENCE, until="succeeded") is job
        assert job.phase == "succeeded" and job.has_ended
        pieces = list(job.logs())
        assert {(piece.stream, piece.data) for piece in pieces} == {("stdout", b"hello\n"), ("stderr", b"b\n")}
        assert b"".join(piece.data for piece in job.logs(stream="stderr")) == b"b\n"
        found = client.job(job.id, read=muster.Read.linearizable())
        assert (found.name, found.nodes, found.region) == ("hello", ["h1"], "region-1")
        assert found.create_time and found.start_time and found.end_time
        assert begun - timedelta(minutes=1) < found.create_time <= found.start_time <= found.end_time
        assert found.spec is not None and [v.value for v in found.spec.to_message().spec.groups[0].environment] == ["b"]
        assert [one.id for one in client.jobs(name_prefix="hello", phases=["succeeded"])] == [job.id]
        assert list(client.jobs(name_prefix="hello", phases=["failed"])) == []
        assert [node.name for node in client.nodes()] == ["h1"]
        assert client.seen_log_index >= found.log_index > 0


def test_a_job_file_is_submitted_planned_and_explained(cluster: Cluster) -> None:
    with cluster.client() as client:
        text = "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {name: FILE}\nspec:\n  command: [sleep, 600]\n  "
        spec = muster.JobSpec.from_yaml(text.replace("FILE", "file") + "cpu: 100m\n  accelerators: h100:1\n")
        plan = client.plan(spec)
        assert plan.is_placeable and plan.nodes == ["h1"], plan
        client.validate(spec)
        running = client.submit(spec).wait(PATIENCE, until="running")
        assert running.explain().nodes == ["h1"]
        waits = client.submit(muster.JobSpec.from_yaml(text.replace("FILE", "waits") + "accelerators: h100:4\n"))

        def is_explained() -> bool:
            found = waits.explain()
            return not found.is_placeable and bool(found.reason) and bool(found.message)

        eventually("it waits for what the other one holds", is_explained)
        tenants = {tenant.name: tenant for tenant in client.tenants()}
        assert tenants["default"].pending_jobs >= 1 and tenants["default"].active_devices >= 1.0
        [changes] = [
            item.item
            for item in until_synced(client.watch_tenants(["default"], timeout=PATIENCE))
            if isinstance(item, muster.Changed)
        ]
        assert changes.changed[0].name == "default"
        for job in (waits, running):
            job.cancel()
        done = muster.wait_all([waits, running], timeout=PATIENCE)
        assert [job.phase for job in done] == ["cancelled", "cancelled"]
        script = "#!/bin/sh\n#MUSTER cpu: 100m\necho $1 $MUSTER_RANK\n"
        ran = client.submit(muster.JobSpec.from_script(script, ["first"], name="scripted"))
        ran.wait(PATIENCE, until="succeeded")
        assert b"".join(piece.data for piece in ran.logs()) == b"first 0\n"


_Item = TypeVar("_Item")


def until_synced(watch: Iterable[muster.WatchItem[_Item]]) -> Iterator[muster.WatchItem[_Item]]:
    for item in watch:
        if isinstance(item, muster.SyncEnd):
            return
        yield item


def test_arrays_and_many_jobs(cluster: Cluster) -> None:
    with cluster.client() as client:
        array = client.submit_array(
            muster.job("many", [*SHELL, "exit $((MUSTER_ARRAY_INDEX == 2))"], cpu=0.1, memory="64Mi", array=4)
        )
        assert [job.array_index for job in array] == [0, 1, 2, 3]
        ended = {job.array_index: job.phase for job in muster.as_completed(array, timeout=PATIENCE)}
        assert ended == {0: "succeeded", 1: "succeeded", 2: "failed", 3: "succeeded"}
        assert {job.phase for job in array} == {"succeeded", "failed"}, "the handles are those that were given"
        with pytest.raises(muster.JobFailed, match="exit code 1") as failed:
            muster.wait_all(array, until="succeeded", timeout=PATIENCE)
        assert failed.value.job_id == array[2].id
        pair = client.submit_all([shell("a", "true"), shell("b", "true")])
        assert [job.name for job in muster.wait_all(pair, until="succeeded", timeout=PATIENCE)] == ["a", "b"]
        assert muster.wait_all([]) == [] and list(muster.as_completed([])) == []
        stays = client.submit(shell("stays", "sleep 600"))
        with pytest.raises(muster.TimedOut):
            muster.wait_all([stays], timeout=0.3)
        stays.cancel()
        with pytest.raises(muster.ConfigurationError, match="submit_array submits it"):
            client.submit(muster.job("x", ["true"], array=2))
        with pytest.raises(muster.ConfigurationError, match="single job"):
            client.submit_array(shell("x", "true"))
        with pytest.raises(muster.NotFound):
            client.wait("job-fffffffff", timeout=PATIENCE)


def test_nodes_are_taken_out_and_put_back(cluster: Cluster) -> None:
    with cluster.client() as client:
        watch = client.watch_nodes(timeout=PATIENCE)
        assert [item.item.name for item in until_synced(watch) if isinstance(item, muster.Changed)] == ["h1"]
        token = watch.resume_token
        assert client.cordon_node("h1", reason="a fan").is_cordoned and client.node("h1").is_cordoned
        assert not client.uncordon_node("h1").is_cordoned
        assert client.drain_node("h1", stop_after=timedelta(hours=1), reason="a fan").is_draining
        assert not client.cancel_node_drain("h1").is_draining
        assert client.quarantine_node("h1", reason="a test").is_quarantined
        assert not client.release_node("h1").is_quarantined
        checked = client.set_node_labels("h1", labels={"pool": "research"}, validate_only=True)
        assert checked.operator_labels == {"pool": "research"} and client.node("h1").operator_labels == {}
        labelled = client.set_node_labels("h1", labels={"pool": "research"}, taints={"bring-up": True})
        assert labelled.labels["pool"] == "research" and labelled.operator_taints == ["bring-up"]
        plain = client.set_node_labels("h1", labels={"pool": None}, taints={"bring-up": False})
        assert "pool" not in plain.labels and plain.taints == []
        with pytest.raises(muster.Refused):
            client.set_node_labels("h1", labels={"isolation.user": "own"})
        # What happened since the token, by another watch.
        seen = []
        for item in client.watch_nodes(resume_token=token, timeout=PATIENCE):
            if isinstance(item, muster.Changed):
                seen.append((item.item.is_cordoned, item.item.is_draining, item.item.is_quarantined))
                if len(seen) == 6:
                    break
        assert seen == [
            (True, False, False),
            (False, False, False),
            (False, True, False),
            (False, False, False),
            (False, False, True),
            (False, False, False),
        ]
        with pytest.raises(muster.NotFound) as refused:
            client.node("nowhere")
        assert refused.value.reason == "NODE_NOT_FOUND"
        assert client.server_info().record_format_max > 0 and client.policy().freshness.log_index > 0


def test_reads_are_as_fresh_as_asked(cluster: Cluster) -> None:
    with cluster.client() as client:
        job = client.submit(shell("fresh", "sleep 600"))
        for read in (muster.Read.any(), muster.Read.linearizable(), muster.Read.bounded(timedelta(minutes=1))):
            assert client.job(job.id, read=read).name == "fresh"
            assert client.reading(read).job(job.id).name == "fresh"
        with pytest.raises(muster.Refused) as refused:
            client.job(job.id, read=muster.Read.at_log_index(1))
        assert refused.value.reason in ("JOB_NOT_FOUND", "ARCHIVE_UNAVAILABLE")
        with cluster.client() as other:
            other.observe_log_index(client.seen_log_index)
            assert other.job(job.id).id == job.id
        job.cancel()


def test_a_watch_goes_on_in_another_process(cluster: Cluster) -> None:
    with cluster.client() as client:
        watch = client.watch(tenant="default", timeout=PATIENCE)
        for _ in until_synced(watch):
            pass
        first = client.submit(shell("first", "true"))
        for item in watch:
            if isinstance(item, muster.Changed) and item.item.id == first.id:
                break
        token = item.resume_token
        assert token and token == watch.resume_token
        killed = cluster.kill_leader()
        second = client.submit(shell("second", "true")).wait(PATIENCE)
        phases = []
        with cluster.client() as another:
            for item in another.watch(tenant="default", resume_token=token, timeout=PATIENCE):
                assert not isinstance(item, (muster.SyncEnd, muster.Restarted)), "it goes on, and does not begin"
                if isinstance(item, muster.Changed) and item.item.id == second.id:
                    phases.append(item.item.phase)
                    if item.item.has_ended:
                        break
        assert phases[0] == "pending" and phases[-1] == "succeeded"
        cluster.start(killed)


def test_refusals_are_told_apart(cluster: Cluster) -> None:
    with cluster.client() as client:
        with pytest.raises(muster.InvalidSpec) as refused:
            client.submit(muster.job("No Name", ["true"]))
        assert (refused.value.reason, refused.value.number) == ("INVALID_FIELD", "MS-1001")
        assert [violation.field for violation in refused.value.violations] == ["job.name"]
        assert pickle.loads(pickle.dumps(refused.value)).violations == refused.value.violations
        with pytest.raises(muster.InvalidSpec, match="NEVER_FITS"):
            client.validate(muster.job("giant", ["true"], workers=64, accelerators="h100:4"))
        with pytest.raises(muster.NotFound):
            client.job("job-fffffffff")
        with pytest.raises(muster.ConfigurationError):
            client.submit(muster.job("x", ["true"]), request_id="no uuid")
        with pytest.raises(muster.JobFailed, match="exit code 3"):
            client.submit(shell("fails", "exit 3")).wait(PATIENCE, until="succeeded")
        job = client.submit(shell("stays", "sleep 600")).wait(PATIENCE, until="running")
        with pytest.raises(TimeoutError):
            job.wait(timedelta(milliseconds=300))
        token = job.refresh().fencing_token
        assert token is not None
        client.commit_checkpoint(job.id, token)
        assert job.wait(PATIENCE, until="checkpointed").checkpoint_time is not None
        assert job.cancel().wait(PATIENCE).phase == "cancelled"
        with pytest.raises(muster.Conflict, match="FENCED"):
            client.commit_checkpoint(job.id, token)


def test_one_request_id_is_one_job(cluster: Cluster) -> None:
    with cluster.client() as client:
        request_id = str(uuid.uuid4())
        spec = shell("once", "true")
        first = client.submit(spec, request_id=request_id)
        assert client.submit(spec, request_id=request_id).id == first.id


def test_a_leader_is_killed_under_everything(cluster: Cluster) -> None:
    with cluster.client() as client:
        writing = client.submit(shell("writes", WRITE)).wait(PATIENCE, until="running")
        seen: dict[str, str] = {"stdout": "", "stderr": ""}

        def follow() -> None:
            for piece in writing.logs(follow=True):
                assert piece.dropped_bytes == 0
                seen[piece.stream] += piece.data.decode()

        submitted: list[str] = []
        stop = threading.Event()

        def submit() -> None:
            while not stop.is_set():
                submitted.append(client.submit(shell("survives", "true")).id)

        changes: dict[str, list[int]] = {}

        def watch() -> None:
            for item in client.watch(timeout=PATIENCE):
                if isinstance(item, muster.Changed) and item.item.name == "survives":
                    changes.setdefault(item.item.id, []).append(item.log_index)
                    if stop.is_set() and all(one in changes for one in submitted):
                        return

        threads = [threading.Thread(target=work) for work in (follow, submit, watch)]
        for thread in threads:
            thread.start()
        eventually("jobs are submitted and seen", lambda: len(submitted) > 3 and len(changes) > 3)
        killed = cluster.kill_leader()
        before = len(submitted)
        eventually("jobs are taken after the leader is gone", lambda: len(submitted) >= before + 5)
        stop.set()
        threads[1].join(PATIENCE_S)
        # The watch ends with a change that comes after.
        submitted.append(client.submit(shell("survives", "true")).id)
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
        options = muster.Options(attempt_timeout=4.0)
        async with muster.aio.Client(cluster.clients, options=options) as client:
            jobs = await asyncio.gather(*(client.submit(shell("amany", "echo $MUSTER_JOB_ID")) for _ in range(20)))
            await muster.aio.wait_all(jobs, until="succeeded", timeout=PATIENCE)
            assert {job.phase for job in jobs} == {"succeeded"}
            finished = [job.id async for job in muster.aio.as_completed(jobs, timeout=PATIENCE)]
            assert sorted(finished) == sorted(job.id for job in jobs)
            said = b"".join([piece.data async for piece in jobs[0].logs()]).decode()
            assert said == f"{jobs[0].id}\n"
            assert len([job async for job in client.jobs(name_prefix="amany")]) == 20
            assert [node.name async for node in client.nodes()] == ["h1"]
            assert "default" in [tenant.name async for tenant in client.tenants()]
            assert (await client.plan(shell("planned", "true"))).nodes == ["h1"]
            writing = await (await client.submit(shell("awrites", WRITE))).wait(PATIENCE, until="running")

            async def follow() -> dict[str, str]:
                seen = {"stdout": "", "stderr": ""}
                async for piece in writing.logs(follow=True):
                    seen[piece.stream] += piece.data.decode()
                return seen

            following = asyncio.create_task(follow())
            killed = await asyncio.to_thread(cluster.kill_leader)
            after = await client.submit(shell("after", "true"))
            await after.wait(PATIENCE, until="succeeded")
            assert await following == {"stdout": lines("out"), "stderr": lines("err")}
            cluster.start(killed)
            with pytest.raises(muster.NotFound):
                await client.job("job-fffffffff")
            stays = await (await client.submit(shell("astays", "sleep 600"))).wait(PATIENCE, until="running")
            with pytest.raises(muster.TimedOut):
                await stays.wait(0.3)
            assert (await stays.explain()).nodes == ["h1"]
            await stays.cancel()
            with pytest.raises(muster.JobFailed):
                await stays.wait(PATIENCE, until="checkpointed")
            assert (await stays.refresh()).phase == "cancelled"

    asyncio.run(asyncio.wait_for(work(), 3 * PATIENCE_S))


def test_certificates(secure_cluster: Cluster) -> None:
    with secure_cluster.client() as client:
        job = client.submit(shell("secret", "echo secret")).wait(PATIENCE, until="succeeded")
        assert b"".join(piece.data for piece in job.logs()) == b"secret\n"
        with pytest.raises(muster.PermissionDenied):
            client.cordon_node("h1")
    impatient = muster.Options(deadline=timedelta(seconds=2), attempt_timeout=1.0)
    with muster.Client(secure_cluster.clients, options=impatient) as plain:
        with pytest.raises(muster.Unavailable):
            plain.job(job.id)
    # Another authority is not believed, on either side.
    other = Cluster(secure_cluster.program, secure=True)
    try:
        with muster.Client(secure_cluster.clients, tls=other.tls(), options=impatient) as stranger:
            with pytest.raises(muster.Unavailable):
                stranger.job(job.id)
    finally:
        other.close()
