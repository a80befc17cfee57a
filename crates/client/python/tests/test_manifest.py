"""Job files and scripts: the same file gives the message that the command line sends, or is refused by both."""

from __future__ import annotations

import pickle
import random
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Iterator

import pytest
import yaml

import muster
from fake import CommandLine
from muster import _manifest
from muster.v1beta1 import job_pb2

EXAMPLES = Path(__file__).resolve().parents[4] / "ops" / "examples"
# Whose file leaves something to the planner of `muster submit`.
PLANNED = {"parallel.yaml"}
WORLDS = 300

WRONG = [
    "cpu: lots",
    "cpu: 0",
    "cpu: 1.0005",
    "cpu: -1",
    "memory: 4gi",
    "memory: 0.3",
    "memory: 99999999Ti",
    "memory: 5",
    "memory: 64Ki",
    "scratch: 200",
    "workers: 1.0",
    "workers: 4294967296",
    "wrokers: 4",
    "runTimeLimit: 5",
    "runTimeLimit: 1m1h",
    "runTimeLimit: 1.5h",
    "runTimeLimit: 0",
    "preemptible: yes",
    "accelerators: h100",
    "accelerators: h100:1.5",
    "accelerators: {count: 4}",
    "accelerators: {type: h100, types: {a100: 1.0}, count: 1}",
    "accelerators: {types: {h100: 0}, count: 1}",
    "slice: {shape: 4x4, count: 0}",
    "array: 0",
    "array: many",
    "array: 9-1",
    "array: 0-9:0",
    "array: 5%",
    "environment: [A]",
    "regions: eu",
    "regions: {a: b}",
    "topology: {required: rack, preferd: host}",
    "topology: {spread: {level: host, max: 0}}",
    "topology: {segments: {level: rack, workers: 2}}",
    "topology: {segments: [{level: row, workers: 2}]}",
    "topology: {segments: [{level: rack, workers: 0}]}",
    "topology: {segments: [{level: rack, workesr: 2}]}",
    "nodeSelector: {zone: {a: b}}",
    "nodeSelector: {zone: 1.5}",
    "nodes: [h1]",
    "nodes: {onyl: [h1]}",
    "nodes: {expressions: [{key: zone}]}",
    "nodes: {expressions: [{key: zone, in: [a], exists: true}]}",
    "nodes: {expressions: [{key: zone, exists: perhaps}]}",
    "after: [{jobb: job-1}]",
    "notBefore: tomorrow",
    "notBefore: 2027-01-31",
    "deadline: 1960-01-01T00:00:00Z",
    "deadline: 2039-01-31T18:00:00.123456Z",
    "deadline: 2039-01-31T18:00:61Z",
    "retry: {backoff: 5}",
    "checkpoint: {step: 0}",
    "notice: {httpPort: 70000000000}",
    "ulimits: {nofile: 9}",
    "binding: socket",
    "shell: zsh",
    "sharedMemory: much",
    "capacity: leased",
    "capacity: {purchases: [leased]}",
    "capacity: {after: 1h}",
    "capacity: {maxInterruptionsPerDay: often}",
    "ulimits: {coreSize: unlimited}",
    "affinity: [{to: job-1, level: row, rule: apart, required: true}]",
    "licences: {matlab: many}",
    "licences: [matlab]",
    "licences: {MATLAB: 2}",
    "licences: {matlab-: 2}",
    "affinity: [{to: job-1, level: host, rule: near, required: true}]",
    "affinity: [{to: job-1, level: host, rule: apart, weight: 0}]",
    "affinity: [{job: job-1}]",
    "notify: [{receiver: chat, events: [job_lost]}]",
    "notify: [{name: chat}]",
    "cpu: 1\n  cpu: 2",
    "groups: [{command: [x]}]",
    "cpu: [1]",
    "stopGrace: {a: b}",
]
RIGHT = [
    "cpu: 0.5",
    "cpu: '2'",
    "memory: 1.5Gi",
    "memory: 512MiB",
    "memory: 64G",
    "runTimeLimit: 1d2h3m4s5ms",
    "stopGrace: 0",
    "preemptible: false",
    "accelerators: ' h100 | a100 :8'",
    "accelerators: any:0.25",
    "accelerators: {type: any, count: 2}",
    "accelerators: {type: h100, count: 0.5}",
    "accelerators: {types: {h100: 1.0, a100: 0.45}, count: 8}",
    "array: 20",
    "array: 0-99:5,200,300-310%4",
    "array: 0-7",
    "array: 9,1",
    "array: 7-7%1",
    "environment: {A: 1, B: true, C: 1.10, D: '', E: 0x1f, F: 'null', G: 'muster-secret://token'}",
    "regions: [eu, us]",
    "regions: ~",
    "tier:",
    "topology: {required: block, preferred: rack, balanced: true}",
    "topology: {segmentWorkers: 1}",
    "workers: 32\n  topology: {segments: [{level: rack, workers: 16}, {level: host, workers: 4}]}",
    "topology: {spread: {level: host, maxWorkers: 2}}",
    "topology: {}",
    "nodeSelector: {zone: a, rack: [b, c], fast: true, number: 7}",
    "nodes: {expressions: [{key: zone, in: [a, b]}, {key: rack, notIn: r1}, {key: fast, exists: true}]}",
    "nodes: {expressions: [{key: slow, exists: false}, {key: gib, greater: 512}, {key: age, less: -3}]}",
    "nodes: {only: [h1, h2], exclude: [h3]}",
    "nodes: {}",
    "tolerations: [a, b]",
    "after: [job-1, {job: job-2, when: finished}]",
    "notBefore: 2027-01-31T18:00:00+02:00",
    "deadline: 2039-01-31t18:00:00.123Z",
    "datasets: [imagenet]",
    "launch: torchrun",
    "retry: {}",
    "retry: {limits: {application: 3, preempted: 0}, backoff: 0, maxBackoff: 5m, avoid: 1h}",
    "checkpoint: {directory: /shared/x, dataset: imagenet, step: 2s, save: 10s, interval: 5m}",
    "notice: {httpPort: 8080, httpPath: /stop}",
    "spareWorkers: 2",
    "preflight: off",
    'workdir: {digest: "sha256:' + "a1" * 32 + '"}',
    'artifacts: {paths: ["out/*.csv", model.pt], required: true}',
    "artifacts: {paths: [a]}",
    "ulimits: {openFiles: 65536, coreSize: 0, lockedMemory: 8Gi, stackSize: 64Mi}",
    "ulimits: {}",
    "binding: cores",
    "binding: numa\n  shell: login\n  memory: 16Gi\n  sharedMemory: 16Gi",
    "capacity: spot",
    "capacity: {purchases: [spot], fallback: {purchases: [on_demand], after: 30m}, maxInterruptionsPerDay: 0.5}",
    "affinity: [{to: job-1, level: host, rule: together, required: true}]",
    "affinity: [{to: array-1, level: rack, rule: apart, weight: 100}]",
    "affinity: [{jobs: 'app=cache,stage in (a,b)', level: region, rule: apart, required: true}]",
    "affinity: []",
    "licences: {matlab: 2, ansys: 1}",
    "licences: {}",
    "nice: -7",
    "nice: 100",
    "exclusive: true",
    "scratch: 200Gi",
    "readiness: {timeout: 10m}",
    "notify: [{receiver: chat, events: [job_failed, job_evicted]}]",
    "terminal: true",
    "booking: night",
    "slice: {shape: 4x4x8, count: 2}\n  accelerators: v5p",
    "slice: 4x4x4\n  accelerators: v5p:4",
    "container: {image: registry.example.org/a:1, pull: always, mounts: [{source: /a, target: /b, readOnly: true}]}",
    "memory: 4Gi\n  container: {image: a.example/b:1, sharedMemory: 1Gi, credentials: 'muster-secret://hub'}",
    "expectedRun: 90m\n  retry: {maxFailures: 0}",
    "workers: 8\n  minWorkers: 2",
]


def document(lines: str, command: str = "command: [train, 300, 1.10, yes]") -> str:
    return f"apiVersion: muster.dev/v1\nkind: Job\nmetadata:\n  name: x\nspec:\n  {command}\n  {lines}\n"


@pytest.fixture(scope="module")
def command_line() -> Iterator[CommandLine]:
    found = CommandLine()
    yield found
    found.close()


def alike(ours: job_pb2.Job, theirs: job_pb2.Job) -> None:
    """Times like `+2h` count from the moment at which each of the two read the file."""
    for field in ("not_before", "deadline"):
        assert ours.spec.HasField(field) == theirs.spec.HasField(field)
        if ours.spec.HasField(field):
            assert abs(getattr(ours.spec, field).seconds - getattr(theirs.spec, field).seconds) < 120
            getattr(ours.spec, field).CopyFrom(getattr(theirs.spec, field))
    assert ours == theirs


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_examples_give_what_the_command_line_sends(name: str, command_line: CommandLine) -> None:
    path = EXAMPLES / name
    if name.endswith(".sh"):
        [theirs] = command_line.sent(path, "--epochs", "3")
        assert muster.JobSpec.from_script(path, ["--epochs", "3"]).to_message() == theirs
    elif name.endswith(".yaml") and "kind: Job" in path.read_text() and name not in PLANNED:
        ours = muster.JobSpec.all_from_yaml(path)
        theirs_all = command_line.sent(path)
        assert len(ours) == len(theirs_all) > 0
        for spec, theirs in zip(ours, theirs_all):
            alike(spec.to_message(), theirs)
    elif name in PLANNED:
        with pytest.raises(muster.InvalidJobFile, match="spec.parallel: is planned by"):
            muster.JobSpec.from_yaml(path)


@pytest.mark.parametrize("lines", RIGHT)
def test_what_is_right_gives_the_same_message(lines: str, command_line: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(document(lines))
    [theirs] = command_line.sent(file)
    alike(muster.JobSpec.from_yaml(file).to_message(), theirs)
    assert muster.JobSpec.from_yaml(file.read_text()) == muster.JobSpec.from_yaml(file)


@pytest.mark.parametrize("lines", WRONG)
def test_what_is_wrong_is_refused_with_its_line(lines: str, command_line: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(document(lines))
    assert command_line.sent(file) == []
    with pytest.raises(muster.InvalidJobFile) as refused:
        muster.JobSpec.from_yaml(file)
    assert all(problem.line is None or 6 <= problem.line <= 8 for problem in refused.value.problems)


def world(draw: random.Random) -> dict[str, Any]:
    """A job file that is right, of whatever fields."""

    def span() -> str:
        return f"{draw.randrange(1, 9)}{draw.choice(['s', 'm', 'h'])}{draw.randrange(1, 999)}ms"

    group: dict[str, Any] = {
        "command": [draw.choice(["a", "1.10", "0x10", "yes", "null", "é", "a b"]) for _ in range(3)],
        "workers": draw.randrange(1, 9),
        "accelerators": draw.choice(["h100:8", "any:0.5", "a|b:1", {"type": "t", "count": 3}]),
        "cpu": draw.choice(["500m", "2", "0.25"]),
        "memory": draw.choice(["1.5Gi", "64G", "1048576"]),
        "environment": {f"V{at}": draw.choice(["1", "1.0", "x: y", "'q'", "true"]) for at in range(3)},
    }
    fields: dict[str, Any] = {
        "tier": draw.choice(["free", "batch", "standard"]),
        "regions": ["eu-1", "us-2"][: draw.randrange(3)],
        "runTimeLimit": span(),
        "stopGrace": "10s",
        "workingDirectory": "/work",
        "array": draw.randrange(1, 9),
        "topology": draw.choice([{"required": "rack"}, {"preferred": "block", "balanced": True}]),
        "nodeSelector": {"zone": draw.choice(["a", ["b", "c"]])},
        "nodes": draw.choice([{"only": ["h1"], "exclude": ["h2"]}, {"expressions": [{"key": "gib", "greater": 7}]}]),
        "tolerations": ["t"],
        "preemptible": draw.choice([True, False]),
        "after": draw.choice([["job-1"], [{"job": "job-2", "when": "finished"}]]),
        "expectedRun": span(),
        "datasets": ["d"],
        "retry": {"maxFailures": draw.randrange(5), "limits": {"application": draw.randrange(4)}, "backoff": "2s"},
        "checkpoint": {"directory": "/shared/x", "step": "1s", "save": "2s", "interval": "1m"},
        "notice": {"httpPort": draw.randrange(1, 65536)},
        "ulimits": {"openFiles": draw.randrange(64, 9000), "stackSize": "64Mi"},
        "affinity": [{"jobs": "app=cache", "level": draw.choice(["host", "region"]), "rule": "apart", "weight": 7}],
        "notify": [{"receiver": "chat", "events": draw.choice([["job_failed"], ["job_started", "job_retried"]])}],
        "preflight": draw.choice(["on", "off", "default"]),
        "nice": draw.randrange(0, 101),
        "readiness": {"timeout": span()},
    }
    spec = {name: value for name, value in fields.items() if draw.random() < 0.4}
    if draw.random() < 0.3:
        spec["groups"] = [{"name": name, **group} for name in ("one", "two")]
    else:
        spec.update((name, value) for name, value in group.items() if name == "command" or draw.random() < 0.6)
    return {"apiVersion": "muster.dev/v1", "kind": "Job", "metadata": {"name": "x", "tenant": "t"}, "spec": spec}


def test_every_field_of_job_files_is_among_what_is_compared() -> None:
    draw = random.Random(7)
    specs = [yaml.safe_load(document(lines))["spec"] for lines in RIGHT]
    specs += [world(draw)["spec"] for _ in range(WORLDS)]
    compared = {field for spec in specs for field in spec}
    # Planned by `muster submit` alone.
    assert set(_manifest._SPEC) - compared == {"parallel"}


def test_generated_files_give_the_same_messages(command_line: CommandLine, tmp_path: Path) -> None:
    draw = random.Random(7)
    worlds = [world(draw) for _ in range(WORLDS)]
    file = tmp_path / "jobs.yaml"
    file.write_text("---\n".join(yaml.safe_dump(found, allow_unicode=True, sort_keys=False) for found in worlds))
    ours = muster.JobSpec.all_from_yaml(file)
    theirs = command_line.sent(file)
    assert len(ours) == len(theirs) == WORLDS
    for spec, sent, found in zip(ours, theirs, worlds):
        assert spec.to_message() == sent, found
        assert muster.JobSpec.from_dict(found) == spec
        assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\necho\n#MUSTER cpu: 1\n", "line 3: #MUSTER: comes after the first command"),
        ("#!/bin/sh\n#MUSTERcpu: 1\n", "line 2: #MUSTER: must be followed by a space"),
        ("#!/bin/sh\n #MUSTER cpu: 1\n", "line 2: #MUSTER: must stand at the beginning"),
        ("#!/bin/sh\n#muster cpu: 1\n", "line 2: #MUSTER: must stand at the beginning"),
        ("#!/bin/sh\n#MUSTER command: [x]\n", "must be left out"),
        ("#!/bin/sh\n#MUSTER cpu: lots\n", "line 2: spec.cpu"),
        ("#!bash\n", "line 1: #!: must name an interpreter"),
        ("#!/bin/sh\n" + "x" * 30_000, "put it where the nodes can read it"),
    ],
)
def test_wrong_scripts_are_refused(script: str, said: str, command_line: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(script)
    assert command_line.sent(file) == []
    with pytest.raises(muster.InvalidJobFile, match=said.replace("(", r"\(")):
        muster.JobSpec.from_script(file)


def test_scripts_of_every_kind(command_line: CommandLine, tmp_path: Path) -> None:
    padding = "# é padding beyond one word of a command\n" * 200
    scripts = {
        "My job.v2.sh": "#!/bin/bash\n# trains\n#MUSTER tenant: vision\n#MUSTER workers: 4\n"
        '#MUSTER environment:\n#MUSTER   A: "1"\n\n#MUSTER accelerators: h100:8\necho $1\n',
        "plain": "#!/bin/sh\ntrue\n",
        "long.py": f"#!/usr/bin/env  python3\n#MUSTER name: long\n{padding}print()",
        "windows.sh": "#!/bin/sh -e\r\n#MUSTER cpu: 2\r\ntrue\r\n",
    }
    for name, text in scripts.items():
        file = tmp_path / name
        file.write_bytes(text.encode())
        [theirs] = command_line.sent(file, "x y", "--flag")
        assert muster.JobSpec.from_script(file, ["x y", "--flag"]).to_message() == theirs, name


def test_jobs_in_python_are_those_of_files() -> None:
    now = datetime(2027, 1, 31, 18, tzinfo=timezone.utc)
    text = document(
        "workers: 2\n  accelerators: h100|a100:4\n  cpu: 500m\n  memory: 4Gi\n  runTimeLimit: 90s\n"
        "  topology: {required: rack}\n  after: [job-1]\n  notBefore: 2027-01-31T18:00:00Z\n  preemptible: false\n"
        "  retry: {limits: {application: 2}, backoff: 2s}\n  nodeSelector: {zone: [a, b]}\n"
        "  nodes: {exclude: [h1], expressions: [{key: gib, greater: 512}]}",
        "command: [python]",
    )
    made = muster.job(
        "x",
        ["python"],
        workers=2,
        accelerators="h100|a100:4",
        cpu=0.5,
        memory="4Gi",
        run_time_limit=timedelta(seconds=90),
        topology={"required": "rack"},
        after=["job-1"],
        not_before=now,
        preemptible=False,
        retry={"limits": {"application": 2}, "backoff": timedelta(seconds=2)},
        node_selector={"zone": ["a", "b"]},
        nodes={"exclude": ["h1"], "expressions": [{"key": "gib", "greater": 512}]},
    )
    assert made == muster.JobSpec.from_yaml(text)
    assert muster.job("x", ["y"], run_time_limit=90).to_message().spec.run_time_limit.seconds == 90
    assert made.replace(name="z", regions=["eu"]).name == "z" and made.name == "x"
    for bad in ({"accelerators": "h100"}, {"cpu": 0.00001}, {"array": 0}):
        with pytest.raises(muster.InvalidJobFile):
            muster.job("x", ["y"], **bad)
    with pytest.raises(muster.ConfigurationError, match="no shell reads it"):
        muster.job("x", "echo hello")
    with pytest.raises(muster.ConfigurationError, match="no time zone"):
        muster.job("x", ["y"], deadline=datetime(2027, 1, 1))


@pytest.mark.parametrize(
    "text", ["", "\n", "a: [\n", "- x\n", "\t\n", "a: &a [*a]\n", "{a: b}: c\n", "\x00\n", "? [x]\n"]
)
def test_no_text_does_anything_but_be_refused(text: str) -> None:
    for read in (muster.JobSpec.all_from_yaml, muster.JobSpec.from_script):
        with pytest.raises(muster.ConfigurationError):
            read(text + "\n")


def test_aliases_do_not_blow_a_file_up() -> None:
    words = ", ".join(["w"] * 5_000)
    groups = ", ".join(["*g"] * 5_000)
    text = f"apiVersion: muster.dev/v1\nkind: Job\nspec:\n  groups: [&g {{command: [{words}]}}, {groups}]\n"
    begun = time.monotonic()
    with pytest.raises(muster.InvalidJobFile, match="more than 1000000 values"):
        muster.JobSpec.from_yaml(text)
    assert time.monotonic() - begun < 60


def test_random_damage_is_refused_and_nothing_else() -> None:
    draw, texts = random.Random(11), [document(lines) for lines in RIGHT]
    for _ in range(2_000):
        text = draw.choice(texts)
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice("{}[]:&*!|>%@`'\"\\\t#-?,0 \n") + text[at + draw.randrange(3) :]
        try:
            muster.JobSpec.all_from_yaml(text + "\n")
        except muster.InvalidJobFile as refused:
            assert refused.problems
