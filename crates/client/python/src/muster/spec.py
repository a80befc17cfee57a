"""Describing jobs: from job files, from scripts, or in Python."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Mapping, Sequence, Union

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from . import _quantity as quantity
from ._manifest import FILE_BYTES_MAX, Reader, nodes_of
from ._script import read_script
from ._closed import TIERS
from ._time import Seconds, milliseconds, unix_ms
from .errors import ConfigurationError, InvalidJobFile, Problem
from .v1beta1 import job_pb2

PathLike = Union[str, "os.PathLike[str]"]


class JobSpec:
    """What a job is to be: read from a file, or made by :func:`job`."""

    __slots__ = ("_message",)

    def __init__(self, message: job_pb2.Job | None = None) -> None:
        self._message = job_pb2.Job()
        if message is not None:
            self._message.CopyFrom(message)

    @classmethod
    def from_message(cls, message: job_pb2.Job) -> JobSpec:
        """Of the message that is sent; a copy."""
        return cls(message)

    def to_message(self) -> job_pb2.Job:
        """The message that is sent; a copy."""
        return JobSpec(self._message)._message

    @classmethod
    def from_yaml(cls, source: PathLike, *, now: datetime | None = None) -> JobSpec:
        """A job file with one job: its path, or its text (which has more than one line).

        ``now`` is what times like ``+2h`` count from. Raises InvalidJobFile with every mistake and its line.
        """
        found = cls.all_from_yaml(source, now=now)
        if len(found) != 1:
            raise InvalidJobFile([Problem(None, "", f"the file holds {len(found)} jobs; all_from_yaml reads several")])
        return found[0]

    @classmethod
    def all_from_yaml(cls, source: PathLike, *, now: datetime | None = None) -> list[JobSpec]:
        """The same for a file with several documents, in their order."""
        reader = Reader(_now_ms(now))
        messages = [reader.document(node) for node in nodes_of(_text(source))]
        if not messages:
            raise InvalidJobFile([Problem(None, "", "the file holds no job (expected kind: Job)")])
        return [cls(reader.done(message)) for message in messages]

    @classmethod
    def from_script(
        cls, source: PathLike, arguments: Sequence[str] = (), *, name: str = "", now: datetime | None = None
    ) -> JobSpec:
        """A script with ``#MUSTER key: value`` lines: its path, or its text. It travels with the job.

        ``name`` is what the job is called when no line says; of a path, its file name.
        """
        script = _text(source)
        called = name or ("script" if _is_text(source) else os.fspath(source))
        return cls(read_script(script, called, list(arguments), _now_ms(now)))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, now: datetime | None = None) -> JobSpec:
        """The same shape as a job file, in Python; datetimes and timedeltas may stand for times."""
        reader = Reader(_now_ms(now))
        return cls(reader.done(reader.document(_node(document))))

    def replace(
        self,
        *,
        name: str | None = None,
        tenant: str | None = None,
        tier: str | None = None,
        regions: Sequence[str] | None = None,
        hold: bool | None = None,
    ) -> JobSpec:
        """Another one that differs in this, as with the options of ``muster submit``; with ``hold`` it starts once it is released."""
        changed = JobSpec(self._message)
        message = changed._message
        message.name = message.name if name is None else name
        message.tenant = message.tenant if tenant is None else tenant
        if tier is not None:
            number = TIERS.number(tier)
            if number is None:
                raise ConfigurationError(f"tier must be one of {TIERS.words()}, got {tier!r}")
            message.spec.tier = number
        if regions is not None:
            message.spec.regions[:] = regions
        if hold is not None:
            message.hold = hold
        return changed

    @property
    def name(self) -> str:
        """Need not be unique."""
        return self._message.name

    @property
    def tenant(self) -> str:
        """Who it is for; empty means ``default``."""
        return self._message.tenant

    @property
    def labels(self) -> dict[str, str]:
        """What jobs are selected by."""
        return dict(self._message.labels)

    @property
    def annotations(self) -> dict[str, str]:
        """Texts of other programs, which Muster keeps and never reads."""
        return dict(self._message.annotations)

    @property
    def tier(self) -> str:
        """Empty means ``standard``."""
        return TIERS.word(self._message.spec.tier)

    @property
    def array_size(self) -> int:
        """Jobs of the array; 0 for a single job."""
        return len(self.array_indices)

    @property
    def array_indices(self) -> list[int]:
        """The indices of the array's members, ascending; empty for a single job."""
        array = self._message.spec.array
        if array.indices:
            return [index for part in quantity.index_ranges(array.indices) or () for index in part]
        return list(range(array.size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobSpec) and self._message == other._message

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<JobSpec {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, (self._message.SerializeToString(deterministic=True),)


def _from_bytes(data: bytes) -> JobSpec:
    return JobSpec(job_pb2.Job.FromString(data))


def job(
    name: str,
    command: Sequence[str],
    *,
    workers: int | None = None,
    min_workers: int | None = None,
    accelerators: str | None = None,
    slice: str | Mapping[str, Any] | None = None,
    cpu: float | str | None = None,
    memory: int | str | None = None,
    environment: Mapping[str, str] | None = None,
    tenant: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    tier: str = "",
    regions: Sequence[str] = (),
    node_selector: Mapping[str, str | Sequence[str]] | None = None,
    nodes: Mapping[str, Any] | None = None,
    tolerations: Sequence[str] = (),
    topology: Mapping[str, Any] | None = None,
    array: int | str | None = None,
    after: Sequence[str | Mapping[str, str | bool]] = (),
    not_before: datetime | timedelta | None = None,
    deadline: datetime | timedelta | None = None,
    expected_run: Seconds | None = None,
    run_time_limit: Seconds | None = None,
    stop_grace: Seconds | None = None,
    max_failures: int | None = None,
    retry: Mapping[str, Any] | None = None,
    checkpoint_directory: str = "",
    checkpoint: Mapping[str, Any] | None = None,
    working_directory: str = "",
    datasets: Sequence[str] = (),
    launch: str = "",
    preemptible: bool | None = None,
    spare_workers: int | None = None,
    container: Mapping[str, Any] | None = None,
    workdir: str = "",
    booking: str = "",
    artifacts: Sequence[str] = (),
    ulimits: Mapping[str, Any] | None = None,
    binding: str = "",
    shell: str = "",
    shared_memory: int | str | None = None,
    capacity: str | Mapping[str, Any] | None = None,
    affinity: Sequence[Mapping[str, Any]] = (),
    licences: Mapping[str, int] | None = None,
    nice: int | None = None,
    exclusive: bool | None = None,
    scratch: int | str | None = None,
    readiness: Mapping[str, Any] | None = None,
    terminal: bool = False,
    notify: Sequence[Mapping[str, Any]] = (),
) -> JobSpec:
    """A job of one group of workers, in the words of job files.

    ``accelerators`` is a type and a count per worker (``h100:8``, ``h100|a100:1``, ``any:0.25``), ``memory`` bytes
    or ``4Gi``. A variable whose value is ``muster-secret://NAME`` has the content of a file on its host. ``container`` (``{"image": "registry.example.org/train:1"}``) runs the command in the root directory of an image; an empty command is then the image's own. ``workdir`` is the digest of a directory that `muster submit --workdir` has sent to the store of nodes; select these with ``node_selector={"files.store": "yes"}``. ``artifacts`` are paths of files that `muster artifacts get` brings back. ``nodes`` has ``only``, ``exclude`` and ``expressions`` like ``{"key": "zone", "in": ["a", "b"]}``. ``ulimits`` (``{"openFiles": 65536, "coreSize": 0, "lockedMemory": "8Gi", "stackSize": "64Mi"}``) bounds each process of its workers. ``binding`` (``"numa"`` or ``"cores"``) keeps each worker on processors near its devices, ``shell="login"`` runs the command by a login shell with the host's environment modules, and ``shared_memory`` is the size of a ``/dev/shm`` that each worker has for itself. ``capacity`` says how its nodes may have been bought: ``"spot"``, or ``{"purchases": ["spot"], "fallback": {"purchases": ["on_demand"], "after": "30m"}, "maxInterruptionsPerDay": 0.5}``. ``affinity`` has up to 8 entries like ``{"jobs": "app=cache", "level": "rack", "rule": "together", "required": True}`` or ``{"to": "job-3f0", "level": "host", "rule": "apart", "weight": 50}``: where the workers lie with respect to those of other jobs. ``licences`` (``{"matlab": 2}``) are counted by the policy and held by the job as a whole. ``notify`` has up to 8 entries like ``{"receiver": "vision-chat", "events": ["job_failed"]}``: receivers of the policy that are told of it. ``booking`` names the booking on whose nodes alone it runs. ``nice`` orders it among the waiting jobs of its tenant and tier, from -100 to 100, the lower first. ``exclusive`` gives each worker a host without accelerators to itself. ``scratch`` (``"200Gi"``) is the size of a directory that each worker has for itself on a local disk, which ``MUSTER_SCRATCH`` names. ``readiness`` (``{"timeout": "10m"}``) ends an attempt whose workers do not say in that time that they are ready. ``terminal`` gives each worker a terminal, which `muster attach` shows. ``labels`` are for selecting jobs, ``annotations`` for other programs. ``not_before`` and ``deadline`` are times with a zone, or lengths of time from now.
    """
    if isinstance(command, str):
        raise ConfigurationError("command must be a list of words; no shell reads it")
    given: dict[str, Any] = {
        "command": list(command),
        "workers": workers,
        "minWorkers": min_workers,
        "accelerators": accelerators,
        "slice": slice,
        "cpu": cpu,
        "memory": memory,
        "environment": environment,
        "tier": tier,
        "regions": list(regions),
        "nodeSelector": node_selector,
        "nodes": nodes,
        "tolerations": list(tolerations),
        "topology": topology,
        "array": array,
        "after": list(after),
        "notBefore": _when(not_before),
        "deadline": _when(deadline),
        "expectedRun": _length(expected_run),
        "runTimeLimit": _length(run_time_limit),
        "stopGrace": _length(stop_grace),
        "retry": _with(retry, "maxFailures", max_failures),
        "checkpoint": _with(checkpoint, "directory", checkpoint_directory or None),
        "workingDirectory": working_directory,
        "datasets": list(datasets),
        "launch": launch,
        "preemptible": preemptible,
        "spareWorkers": spare_workers,
        "container": container,
        "workdir": {"digest": workdir} if workdir else None,
        "booking": booking,
        "artifacts": {"paths": list(artifacts)} if artifacts else None,
        "ulimits": ulimits,
        "binding": binding,
        "shell": shell,
        "sharedMemory": shared_memory,
        "capacity": capacity,
        "affinity": list(affinity),
        "licences": licences,
        "nice": nice,
        "exclusive": exclusive,
        "scratch": scratch,
        "readiness": readiness,
        "terminal": terminal or None,
        "notify": list(notify),
    }
    spec = {field: value for field, value in given.items() if value is not None and value != "" and value != []}
    metadata = {"name": name, "tenant": tenant, "labels": labels, "annotations": annotations}
    return JobSpec.from_dict({"apiVersion": "muster.dev/v1", "kind": "Job", "metadata": metadata, "spec": spec})


def _with(fields: Mapping[str, Any] | None, name: str, value: Any) -> Mapping[str, Any] | None:
    return fields if value is None else {**(fields or {}), name: value}


def _length(value: Seconds | None) -> str | None:
    return None if value is None else f"{milliseconds(value)}ms"


def _when(value: datetime | timedelta | None) -> str | datetime | None:
    return f"+{milliseconds(value)}ms" if isinstance(value, timedelta) else value


def _now_ms(now: datetime | None) -> int:
    return time.time_ns() // 1_000_000 if now is None else unix_ms(now)


def _is_text(source: PathLike) -> bool:
    return isinstance(source, str) and "\n" in source


def _text(source: PathLike) -> str:
    if isinstance(source, str) and _is_text(source):
        return source
    path = Path(source)
    try:
        with path.open("rb") as file:
            # One byte more than is allowed shows that there is more than is allowed.
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidJobFile([Problem(None, "", f"the file is larger than {FILE_BYTES_MAX >> 20} MiB")])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise InvalidJobFile([Problem(line, "", "the file is not UTF-8 text")]) from None


def _node(value: Any) -> Node:
    """A tree as YAML would give it."""
    if isinstance(value, Mapping):
        return MappingNode("map", [(_node(str(key)), _node(found)) for key, found in value.items()])
    if isinstance(value, (list, tuple)):
        return SequenceNode("seq", [_node(found) for found in value])
    if value is None:
        return ScalarNode("tag:yaml.org,2002:null", "null")
    if isinstance(value, bool):
        return ScalarNode("bool", "true" if value else "false")
    if isinstance(value, timedelta):
        return ScalarNode("str", f"{milliseconds(value)}ms")
    if isinstance(value, datetime):
        unix_ms(value)
        return ScalarNode("str", value.isoformat(timespec="milliseconds"))
    if isinstance(value, (str, int)):
        return ScalarNode("str", str(value))
    if isinstance(value, float):
        return ScalarNode("str", f"{value:.10f}".rstrip("0").rstrip("."))
    raise ConfigurationError(f"a {type(value).__name__} cannot stand in a job file: {value!r}")
