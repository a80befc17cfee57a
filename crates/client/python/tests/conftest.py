"""Real clusters for the tests: three replicas and an agent, of the `muster` program that MUSTER_BIN names."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Callable, Iterator

import pytest

import muster

# Generous: the machine may be busy.
PATIENCE_S = 60.0
TIMES = """
[parameters]
lease_ttl = "3s"
lease_margin = "1s"
heartbeat_interval = "500ms"

[timing]
heartbeat_interval = "100ms"
election_timeout_min = "250ms"
election_timeout_max = "500ms"
"""


def _free_port(host: str) -> int:
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def eventually(what: str, look: Callable[[], bool]) -> None:
    """Looks until it is so."""
    end = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.05)


class Cluster:
    """Three replicas and one agent with four accelerators; `secure` with certificates."""

    def __init__(self, program: str, secure: bool = False) -> None:
        self.program = program
        self.secure = secure
        self.folder = Path(tempfile.mkdtemp(prefix="muster-python-"))
        self.id = uuid.uuid4().hex
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        block = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
        hosts = [f"{block}.{at}" for at in range(1, 4)]
        self.clients = [f"{host}:{_free_port(host)}" for host in hosts]
        self.peers = [f"{host}:{_free_port(host)}" for host in hosts]
        if secure:
            self.command("ca", "init", str(self.folder / "ca"), "--cluster-id", self.id)
        for at in range(3):
            self._configure_replica(at)
        self._configure_agent(f"{block}.9")

    def command(self, *words: str) -> None:
        """Runs a command that has to succeed."""
        subprocess.run([self.program, *words], check=True, stdout=subprocess.DEVNULL)

    def issue(self, kind: str, name: str) -> Path:
        """A certificate, in a folder of its own."""
        folder = self.folder / f"tls-{kind}-{name}"
        if not folder.exists():
            whose = ["--all-tenants"] if kind == "client" else []
            self.command("ca", "issue", str(self.folder / "ca"), kind, name, *whose, "--out", str(folder))
        return folder

    def _tls(self, kind: str, name: str) -> str:
        if not self.secure:
            return ""
        folder = self.issue(kind, name)
        return f'\n[tls]\nca = "{folder}/ca.crt"\ncert = "{folder}/tls.crt"\nkey = "{folder}/tls.key"\n'

    def _configure_replica(self, at: int) -> None:
        home = self.folder / f"replica-{at + 1}"
        home.mkdir()
        scheme = "https" if self.secure else "http"
        members = "".join(
            f'\n[[members]]\nid = {n + 1}\nregion = "region-{n + 1}"\n'
            f'peer_endpoint = "{scheme}://{self.peers[n]}"\nclient_endpoint = "{scheme}://{self.clients[n]}"\n'
            for n in range(3)
        )
        head = (
            f'cluster_id = "{self.id}"\nreplica_id = {at + 1}\ndata_dir = "{home}/data"\n'
            f'client_listen = "{self.clients[at]}"\npeer_listen = "{self.peers[at]}"\n'
        )
        (home / "server.toml").write_text(head + TIMES + self._tls("replica", str(at + 1)) + members)

    def _configure_agent(self, address: str) -> None:
        home = self.folder / "agent"
        home.mkdir()
        text = (
            f'state_dir = "{home}/state"\nendpoints = {self.clients!r}\n'.replace("'", '"')
            + self._tls("agent", "h1")
            + f'\n[node]\nname = "h1"\nregion = "region-1"\ncluster = "c"\naddress = "{address}"\n'
            "cpu = 16\nmemory = '64Gi'\n"
            'accelerators = { type = "h100", count = 4 }\n'
        )
        (home / "agent.toml").write_text(text)

    def start(self, name: str, *more: str) -> None:
        """Starts a replica or the agent."""
        home = self.folder / name
        kind = "agent" if name == "agent" else "server"
        with (home / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [self.program, kind, "--config", str(home / f"{kind}.toml"), *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "MUSTER_DIE_WITH_PARENT": "1"},
            )

    def found(self) -> None:
        """Starts everything for the first time, until the node is up."""
        for at in range(3):
            self.start(f"replica-{at + 1}", "--bootstrap")
        self.start("agent")
        with self.client() as client:
            eventually("the node is up", lambda: any(node.name == "h1" for node in client.nodes()))

    def tls(self) -> muster.Tls | None:
        """What a user shows."""
        if not self.secure:
            return None
        folder = self.issue("client", "ada")
        return muster.Tls(ca=folder / "ca.crt", cert=folder / "tls.crt", key=folder / "tls.key")

    def client(self) -> muster.Client:
        """Of all replicas."""
        return muster.Client(self.clients, tls=self.tls(), options=muster.Options(deadline=PATIENCE_S, attempt_timeout=4.0))

    def kill_leader(self) -> str:
        """SIGKILL; the name of the replica."""
        with self.client() as client:
            leader = 0

            def known() -> bool:
                nonlocal leader
                leader = client.status().freshness.leader_id
                return leader > 0

            eventually("a leader is known", known)
        name = f"replica-{leader}"
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes.pop(name).wait()
        return name

    def close(self) -> None:
        """Ends everything, the workers too, and removes the folder."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        mark = str(self.folder).encode()
        for _ in range(20):
            found = [pid for pid in map(_pid, Path("/proc").iterdir()) if pid and _names(pid, mark)]
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not found:
                break
        shutil.rmtree(self.folder, ignore_errors=True)


def _pid(path: Path) -> int:
    return int(path.name) if path.name.isdigit() else 0


def _names(pid: int, mark: bytes) -> bool:
    if pid == os.getpid():
        return False
    for file in ("cmdline", "environ"):
        try:
            if mark in Path(f"/proc/{pid}/{file}").read_bytes():
                return True
        except OSError:
            pass
    return False


def _cluster(secure: bool) -> Iterator[Cluster]:
    program = os.environ.get("MUSTER_BIN")
    if not program:
        pytest.skip("MUSTER_BIN does not name a muster program")
    cluster = Cluster(program, secure)
    try:
        cluster.found()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """In plaintext."""
    yield from _cluster(secure=False)


@pytest.fixture
def secure_cluster() -> Iterator[Cluster]:
    """With certificates at both ends."""
    yield from _cluster(secure=True)
