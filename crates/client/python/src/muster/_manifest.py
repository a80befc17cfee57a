"""Job files and scripts, read as the command line reads them: the same file gives the same message.

YAML is taken as a tree of texts with their lines, so ``1.10`` stays what was written, and every mistake is
named with its line. The tests compare what comes out with what ``muster submit`` sends.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, Callable, Iterator, Mapping, Sequence, TypeVar

import yaml
from google.protobuf.duration_pb2 import Duration
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from . import _quantity as quantity
from ._closed import (
    AFFINITY_LEVELS,
    AFFINITY_RULES,
    COMMAND_SHELLS,
    CPU_BINDINGS,
    DEPENDENCY_RULES,
    FAILURE_CLASSES,
    LAUNCH_FORMS,
    LEVELS,
    NOTIFICATION_EVENTS,
    PREFLIGHTS,
    PULL_RULES,
    PURCHASES,
    TIERS,
    ClosedSet,
)
from ._time import duration, timestamp
from .errors import InvalidJobFile, Problem
from .v1beta1 import common_pb2, job_pb2

API_VERSION = "muster.dev/v1"
FILE_BYTES_MAX = 4 << 20
# A label of nodes that have the store of files.
_STORE_LABEL = "files.store"
_PROBLEMS_MAX = 100
# Aliases let a small file stand for a document without end. The API takes far fewer values than this.
_VALUES_MAX = 1_000_000
_NULL = "tag:yaml.org,2002:null"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"

# What the API takes as a name.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
_NAME_RULE = "must be 1 to 63 lower-case letters, digits, '-', '_' or '.', starting and ending with a letter or digit"

# What stands before the name of a secret where a variable has a value.
_SECRET = "muster-secret://"

METADATA = ("name", "tenant", "labels", "annotations")
_GROUP = (
    *("workers", "minWorkers", "slice", "command", "environment", "accelerators", "cpu", "memory"),
    "container",
)
_SPEC = (
    *("tier", "regions", "groups", "runTimeLimit", "stopGrace"),
    *("workingDirectory", "array", "topology", "nodeSelector", "nodes", "tolerations", "preemptible", "after"),
    "notBefore",
    *("deadline", "expectedRun", "datasets", "launch", "retry", "checkpoint", "notice", "spareWorkers", "preflight"),
    *("workdir", "artifacts", "booking", "ulimits", "binding", "shell", "sharedMemory", "capacity", "affinity"),
    *("licences", "nice", "exclusive", "scratch", "readiness", "terminal", "notify", "parallel", *_GROUP),
)
_Value = TypeVar("_Value")


def nodes_of(text: str) -> list[Node]:
    """The documents of a file, as trees."""
    if len(text.encode()) > FILE_BYTES_MAX:
        raise InvalidJobFile([Problem(None, "", f"the file is larger than {FILE_BYTES_MAX >> 20} MiB")])
    try:
        return [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise InvalidJobFile([Problem(line, "", str(error.problem or error.context)[:300])]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidJobFile([Problem(None, "", f"the file is not YAML: {str(error)[:300]}")]) from None


class Reader:
    """Reads one document and remembers its problems."""

    def __init__(self, now_ms: int) -> None:
        self.problems: list[Problem] = []
        self._now_ms = now_ms
        self._values = 0

    def done(self, job: job_pb2.Job) -> job_pb2.Job:
        """The message, when nothing is wrong."""
        if self.problems:
            raise InvalidJobFile(self.problems[:_PROBLEMS_MAX])
        return job

    def document(self, node: Node) -> job_pb2.Job:
        """``apiVersion``, ``kind``, ``metadata`` and ``spec``; ``status`` is of a job that was shown, and not read."""
        found = self.fields(node, "", ("apiVersion", "kind", "metadata", "spec", "status"))
        for field, expected in (("apiVersion", API_VERSION), ("kind", "Job")):
            given = found.get(field)
            if given is None:
                self.problem(None, field, f"must be given: {expected}")
            elif self.text(given, field) != expected:
                self.problem(given, field, f'must be {expected}, got "{self.text(given, field)[:80]}"')
        metadata = self.fields(found.get("metadata"), "metadata", METADATA)
        if found.get("spec") is None:
            self.problem(None, "spec", "must be given")
        job = job_pb2.Job(spec=self.spec(found.get("spec")))
        self.metadata(metadata, job)
        return job

    def metadata(self, at: Mapping[str, Node], job: job_pb2.Job) -> None:
        """What stands under ``metadata``, into the message."""
        job.name = self.text(at.get("name"), "metadata.name")
        job.tenant = self.text(at.get("tenant"), "metadata.tenant")
        for field, texts in (("labels", job.labels), ("annotations", job.annotations)):
            for key, value in self.pairs(at.get(field), f"metadata.{field}"):
                texts[key] = self.text(value, f"metadata.{field}.{key[:80]}")

    def spec(self, node: Node | None) -> job_pb2.JobSpec:
        """What stands under ``spec``."""
        at = self.fields(node, "spec", _SPEC)
        given = {name: found for name, found in at.items() if name in _GROUP}
        if "groups" in at:
            for name, found in given.items():
                self.problem(found, f"spec.{name}", "belongs into each of spec.groups when there are groups")
            listed = self.items(at["groups"], "spec.groups")
            groups = [self.group(path, self.fields(found, path, ("name", *_GROUP))) for path, found in listed]
        else:
            groups = [self.group("spec", given)]
        if "parallel" in at:
            self.problem(at["parallel"], "spec.parallel", "is planned by `muster submit`; state the workers here")
        time_ms = quantity.time_ms(self._now_ms)
        array = self.value(at, "spec.array", quantity.array)
        if array is not None and array[:2] == (0, ""):
            self.problem(at["array"], "spec.array", "must be above zero; leave it out for a single job")
        spec = job_pb2.JobSpec(
            tier=self.word(at.get("tier"), "spec.tier", TIERS),
            groups=groups,
            regions=self.texts(at.get("regions"), "spec.regions"),
            working_directory=self.text(at.get("workingDirectory"), "spec.workingDirectory"),
            tolerations=self.texts(at.get("tolerations"), "spec.tolerations"),
            dependencies=self.dependencies(at.get("after")),
            datasets=self.texts(at.get("datasets"), "spec.datasets"),
            launch=self.word(at.get("launch"), "spec.launch", LAUNCH_FORMS),
            spare_workers=self.value(at, "spec.spareWorkers", quantity.count) or 0,
            preflight=self.word(at.get("preflight"), "spec.preflight", PREFLIGHTS),
            terminal=self.value(at, "spec.terminal", quantity.flag) or False,
            booking=self.text(at.get("booking"), "spec.booking"),
            affinity=self.affinity(at.get("affinity")),
            licences=self.licences(at.get("licences")),
            nice=self.value(at, "spec.nice", quantity.nice) or 0,
            exclusive=bool(self.value(at, "spec.exclusive", quantity.flag)),
            scratch_bytes=self.positive(at, "spec.scratch", quantity.worker_bytes, "for no directory"),
            notify=self.notify(at.get("notify")),
        )
        if array is not None:
            size, indices, throttle = array
            spec.array.CopyFrom(job_pb2.JobArray(size=size, indices=indices, throttle=throttle))
        for field, target in (("notBefore", spec.not_before), ("deadline", spec.deadline)):
            ms = self.value(at, f"spec.{field}", time_ms)
            if ms is not None:
                target.CopyFrom(timestamp(ms))
        self.span(spec.run_time_limit, self.positive(at, "spec.runTimeLimit", quantity.duration_ms, "for no limit"))
        advice = "for what was learned"
        self.span(spec.expected_run, self.positive(at, "spec.expectedRun", quantity.duration_ms, advice))
        stop_grace = self.value(at, "spec.stopGrace", quantity.duration_ms)
        if stop_grace is not None:
            spec.stop_grace.CopyFrom(duration(stop_grace))
        preemptible = self.value(at, "spec.preemptible", quantity.flag)
        if preemptible is not None:
            spec.preemptible = preemptible
        if "topology" in at:
            spec.topology.CopyFrom(self.topology(at["topology"]))
        for label, values in self.pairs(at.get("nodeSelector"), "spec.nodeSelector"):
            spec.node_selector[label].values.extend(self.label_values(values, f"spec.nodeSelector.{label[:80]}"))
        if "nodes" in at:
            spec.nodes.CopyFrom(self.nodes(at["nodes"]))
        self.rules(at, spec)
        return spec

    def group(self, path: str, at: Mapping[str, Node]) -> job_pb2.TaskGroup:
        """Workers that run the same command."""
        workers = self.value(at, f"{path}.workers", quantity.workers)
        if "slice" in at and workers == 0:
            advice = "must be above zero; leave it out: the slice says how many there are"
            self.problem(at["workers"], f"{path}.workers", advice)
        environment = [
            _variable(name, self.text(value, f"{path}.environment.{name[:80]}"))
            for name, value in self.pairs(at.get("environment"), f"{path}.environment")
        ]
        group = job_pb2.TaskGroup(
            name=self.text(at.get("name"), f"{path}.name"),
            workers=int("slice" not in at) if workers is None else workers,
            min_workers=self.positive(
                at, f"{path}.minWorkers", quantity.workers, "for a gang that never changes its size"
            ),
            **self.runtime(at, path),
            environment=sorted(environment, key=lambda variable: variable.name),
        )
        resources = job_pb2.Resources(
            cpu_milli=self.positive(at, f"{path}.cpu", quantity.cpu_milli, "for one CPU"),
            memory_bytes=self.positive(at, f"{path}.memory", quantity.worker_bytes, "for 1Gi"),
        )
        if "slice" in at:
            group.slice.CopyFrom(self.slice(at["slice"], f"{path}.slice"))
        if "accelerators" in at:
            found = self.accelerators(at["accelerators"], f"{path}.accelerators", "slice" in at)
            resources.accelerators.CopyFrom(found)
        if resources != job_pb2.Resources():
            group.resources.CopyFrom(resources)
        return group

    def runtime(self, at: Mapping[str, Node], path: str) -> dict[str, Any]:
        """A command as a process of the host, or in the root directory of an image."""
        command = self.command(at.get("command"), f"{path}.command")
        if "container" not in at:
            return {"process": job_pb2.ProcessRuntime(command=command)}
        path = f"{path}.container"
        known = ("image", "pull", "mounts", "sharedMemory", "credentials")
        image = self.fields(at["container"], path, known)
        mounts = []
        for place, node in self.items(image.get("mounts"), f"{path}.mounts"):
            mount = self.fields(node, place, ("source", "target", "readOnly"))
            mounts.append(
                job_pb2.ContainerMount(
                    source=self.text(mount.get("source"), f"{place}.source"),
                    target=self.text(mount.get("target"), f"{place}.target"),
                    read_only=self.value(mount, f"{place}.readOnly", quantity.flag) or False,
                )
            )
        container = job_pb2.ContainerRuntime(
            image=self.text(image.get("image"), f"{path}.image"),
            command=command,
            pull=self.word(image.get("pull"), f"{path}.pull", PULL_RULES),
            mounts=mounts,
            shared_memory_bytes=self.positive(
                image, f"{path}.sharedMemory", quantity.memory_bytes, "for that of the gang"
            ),
            credentials=self.secret(image.get("credentials"), f"{path}.credentials"),
        )
        return {"container": container}

    def secret(self, node: Node | None, path: str) -> str:
        """The name of a secret, from a value like ``muster-secret://NAME``."""
        value = self.text(node, path)
        if node is not None and value and (not value.startswith(_SECRET) or value == _SECRET):
            # What stands here may be the secret itself, and is not repeated.
            self.problem(node, path, f"must be a reference like {_SECRET}NAME, never the credentials themselves")
            return ""
        return value[len(_SECRET) :]

    def command(self, node: Node | None, path: str) -> list[str]:
        """A list of words."""
        if isinstance(node, ScalarNode):
            words = ", ".join(node.value.split()[:4])[:80]
            self.problem(node, path, f"must be a list of words, like [{words}]; no shell reads it")
            return []
        return self.texts(node, path)

    def accelerators(self, node: Node, path: str, has_slice: bool) -> common_pb2.AcceleratorRequest:
        """``h100:4``, ``h100|a100:1``, ``any:0.25``, or a mapping of type or types and count."""
        request = common_pb2.AcceleratorRequest()
        if isinstance(node, ScalarNode):
            kinds, colon, amount = node.value.partition(":")
            try:
                if colon or not has_slice:
                    _set_amount(request, quantity.devices(amount.strip()))
            except ValueError:
                advice = f'must be a type and a count, like h100:4, h100|a100:1 or any:0.25, got "{node.value[:80]}"'
                self.problem(node, path, advice)
                return request
            if kinds.strip() != "any":
                choices = (common_pb2.AcceleratorChoice(type=kind.strip()) for kind in kinds.strip().split("|"))
                request.choices.extend(choices)
            return request
        at = self.fields(node, path, ("type", "types", "count"))
        counted = self.value(at, f"{path}.count", quantity.devices)
        if counted is not None:
            _set_amount(request, counted)
        if ("type" in at) == ("types" in at):
            advice = "must have either type or types, like types: {h100: 1.0, a100: 0.45}"
            self.problem(node, path, advice)
        elif "type" in at:
            kind = self.text(at["type"], f"{path}.type")
            if kind != "any":
                request.choices.add(type=kind.strip())
        else:
            for kind, throughput in sorted(self.pairs(at["types"], f"{path}.types")):
                field = f"{path}.types.{kind[:80]}"
                read = quantity.throughput_milli
                milli = self.positive({kind: throughput}, field, read, "if it cannot be used", key=kind)
                request.choices.add(type=kind.strip(), throughput_milli=milli)
        return request

    def slice(self, node: Node, path: str) -> job_pb2.SliceRequest:
        """``4x4x8``, or a mapping of shape and count."""
        if isinstance(node, ScalarNode):
            return job_pb2.SliceRequest(shape=node.value)
        at = self.fields(node, path, ("shape", "count"))
        shape = self.text(at.get("shape"), f"{path}.shape")
        return job_pb2.SliceRequest(
            shape=shape, count=self.positive(at, f"{path}.count", quantity.count, "for one slice")
        )

    def topology(self, node: Node) -> job_pb2.TopologyRule:
        """How close together the workers have to be."""
        path = "spec.topology"
        at = self.fields(node, path, ("required", "preferred", "balanced", "segmentWorkers", "segments", "spread"))
        rule = job_pb2.TopologyRule(
            required=self.word(at.get("required"), f"{path}.required", LEVELS),
            preferred=self.word(at.get("preferred"), f"{path}.preferred", LEVELS),
            balanced=self.value(at, f"{path}.balanced", quantity.flag) or False,
            segment_workers=self.positive(at, f"{path}.segmentWorkers", quantity.count, "for no segments"),
        )
        for field, segment in self.items(at.get("segments"), f"{path}.segments"):
            found = self.fields(segment, field, ("level", "workers"))
            rule.segments.add(
                level=self.word(found.get("level"), f"{field}.level", LEVELS),
                workers=self.positive(found, f"{field}.workers", quantity.count, "with the segment"),
            )
        if "spread" in at:
            spread = self.fields(at["spread"], f"{path}.spread", ("level", "maxWorkers"))
            rule.spread.level = self.word(spread.get("level"), f"{path}.spread.level", LEVELS)
            field = f"{path}.spread.maxWorkers"
            rule.spread.max_workers = self.positive(spread, field, quantity.count, "with the spread")
            rule.spread.SetInParent()
        return rule

    def nodes(self, node: Node) -> common_pb2.NodeRequirements:
        """Tests of labels, the only nodes, and nodes that are excluded."""
        path = "spec.nodes"
        at = self.fields(node, path, ("expressions", "only", "exclude"))
        tests = self.items(at.get("expressions"), f"{path}.expressions")
        return common_pb2.NodeRequirements(
            expressions=[self.node_expression(found, field) for field, found in tests],
            only=self.texts(at.get("only"), f"{path}.only"),
            exclude=self.texts(at.get("exclude"), f"{path}.exclude"),
        )

    def node_expression(self, node: Node, path: str) -> common_pb2.NodeExpression:
        """A test of a label: the field that is given says which."""
        at = self.fields(node, path, ("key", "in", "notIn", "exists", "greater", "less"))
        tests: list[tuple[Any, list[str]]] = []
        for field, operator in (("in", common_pb2.NODE_OPERATOR_IN), ("notIn", common_pb2.NODE_OPERATOR_NOT_IN)):
            if field in at:
                tests.append((operator, self.label_values(at[field], f"{path}.{field}")))
        if "exists" in at:
            exists = self.value(at, f"{path}.exists", quantity.flag)
            operator = common_pb2.NODE_OPERATOR_EXISTS if exists else common_pb2.NODE_OPERATOR_DOES_NOT_EXIST
            tests.append((operator, []))
        for field, operator in (("greater", common_pb2.NODE_OPERATOR_GREATER), ("less", common_pb2.NODE_OPERATOR_LESS)):
            if field in at:
                tests.append((operator, [self.text(at[field], f"{path}.{field}")]))
        if len(tests) != 1:
            advice = "must have one of in, notIn, exists, greater and less, like {key: zone, in: [a, b]}"
            self.problem(node, path, advice)
        operator, values = tests[-1] if tests else (common_pb2.NODE_OPERATOR_EXISTS, [])
        return common_pb2.NodeExpression(key=self.text(at.get("key"), f"{path}.key"), operator=operator, values=values)

    def label_values(self, node: Node, path: str) -> list[str]:
        """A text, or a list of texts."""
        if isinstance(node, SequenceNode):
            return [self.text(found, field) for field, found in self.items(node, path)]
        if isinstance(node, ScalarNode) and node.style is None and node.tag == _FLOAT:
            self.problem(node, path, "must be a text, or a list of texts; numbers with a point in quotes")
        return [self.text(node, path)]

    def dependencies(self, node: Node | None) -> list[job_pb2.Dependency]:
        """Ids of jobs and arrays, names of other jobs of the file, or mappings of one of them and when."""
        found = []
        for path, after in self.items(node, "spec.after"):
            if isinstance(after, ScalarNode):
                ids = {"array-": "array_id", "job-": "job_id"}
                field = next((field for start, field in ids.items() if after.value.startswith(start)), "job_name")
                found.append(job_pb2.Dependency(**{field: after.value}))
                continue
            at = self.fields(after, path, ("job", "when", "array", "byMember", "name"))
            job_id = self.text(at.get("job"), f"{path}.job")
            rule = self.word(at.get("when"), f"{path}.when", DEPENDENCY_RULES)
            array_id = self.text(at.get("array"), f"{path}.array")
            by_member = self.value(at, f"{path}.byMember", quantity.flag) or False
            job_name = self.text(at.get("name"), f"{path}.name")
            found.append(
                job_pb2.Dependency(
                    job_id=job_id, rule=rule, array_id=array_id, by_member=by_member, job_name=job_name
                )
            )
        return found

    def licences(self, node: Node | None) -> list[job_pb2.LicenceRequest]:
        """How many of each counted resource, by name."""
        found = []
        for name, value in self.pairs(node, "spec.licences"):
            # Here, because the message has a list, in which a place says nothing about the file.
            if not _NAME.fullmatch(name):
                self.problem(value, f"spec.licences.{name[:80]}", _NAME_RULE)
            count = self.value({name: value}, f"spec.licences.{name[:80]}", quantity.count, key=name) or 0
            found.append(job_pb2.LicenceRequest(name=name, count=count))
        return sorted(found, key=lambda asked: asked.name)

    def affinity(self, node: Node | None) -> list[job_pb2.JobAffinity]:
        """Where other jobs are, to be with or away from them."""
        found = []
        for path, entry in self.items(node, "spec.affinity"):
            at = self.fields(entry, path, ("to", "jobs", "level", "rule", "required", "weight"))
            to = self.text(at.get("to"), f"{path}.to")
            ids = {"array-": "array_id", "job-": "job_id"}
            field = next((field for start, field in ids.items() if to.startswith(start)), "job_name")
            message = job_pb2.JobAffinity(
                label_selector=self.text(at.get("jobs"), f"{path}.jobs"),
                level=self.word(at.get("level"), f"{path}.level", AFFINITY_LEVELS),
                rule=self.word(at.get("rule"), f"{path}.rule", AFFINITY_RULES),
                required=self.value(at, f"{path}.required", quantity.flag) or False,
                weight=self.positive(at, f"{path}.weight", quantity.count, "with `required: true`"),
            )
            setattr(message, field, to)
            found.append(message)
        return found

    def notify(self, node: Node | None) -> list[job_pb2.JobNotification]:
        """Receivers of the policy that are told of what happens to the job."""
        found = []
        for path, entry in self.items(node, "spec.notify"):
            at = self.fields(entry, path, ("receiver", "events"))
            listed = self.items(at.get("events"), f"{path}.events")
            events = [self.word(event, field, NOTIFICATION_EVENTS) for field, event in listed]
            receiver = self.text(at.get("receiver"), f"{path}.receiver")
            found.append(job_pb2.JobNotification(receiver=receiver, events=events))
        return found

    def rules(self, at: Mapping[str, Node], spec: job_pb2.JobSpec) -> None:
        """What becomes of a job when it fails, how it saves its work, and how it is told to stop, into the message."""
        if "retry" in at:
            spec.retry.SetInParent()
            names = ("maxFailures", "limits", "backoff", "maxBackoff", "avoid")
            retry, rule = self.fields(at["retry"], "spec.retry", names), spec.retry
            rule.max_failures = self.value(retry, "spec.retry.maxFailures", quantity.count) or 0
            for name, retries in self.pairs(retry.get("limits"), "spec.retry.limits"):
                field = f"spec.retry.limits.{name[:80]}"
                count = self.value({name: retries}, field, quantity.count, key=name) or 0
                number = FAILURE_CLASSES.number(name)
                if number is None:
                    advice = f"has classes {FAILURE_CLASSES.words()}, not {name[:80]!r}"
                    self.problem(retries, "spec.retry.limits", advice)
                else:
                    rule.limits.add(failure_class=number, retries=count)
            for field, target in (("backoff", rule.backoff), ("maxBackoff", rule.max_backoff), ("avoid", rule.avoid)):
                ms = self.value(retry, f"spec.retry.{field}", quantity.duration_ms)
                if ms is not None:
                    target.CopyFrom(duration(ms))
        if "checkpoint" in at:
            spec.checkpoint.SetInParent()
            path = "spec.checkpoint"
            rules = self.fields(at["checkpoint"], path, ("directory", "dataset", "step", "save", "interval"))
            spec.checkpoint.directory = self.text(rules.get("directory"), f"{path}.directory")
            spec.checkpoint.dataset = self.text(rules.get("dataset"), f"{path}.dataset")
            for field in ("step", "save", "interval"):
                ms = self.positive(rules, f"{path}.{field}", quantity.duration_ms, "when it is not known")
                self.span(getattr(spec.checkpoint, field), ms)
        if "notice" in at:
            spec.notice.SetInParent()
            notice = self.fields(at["notice"], "spec.notice", ("httpPort", "httpPath"))
            port = self.positive(notice, "spec.notice.httpPort", quantity.count, "with the notice")
            spec.notice.http_port = port
            spec.notice.http_path = self.text(notice.get("httpPath"), "spec.notice.httpPath")
        if "workdir" in at:
            spec.workdir.SetInParent()
            files = self.fields(at["workdir"], "spec.workdir", ("digest",))
            spec.workdir.digest = self.text(files.get("digest"), "spec.workdir.digest")
        if "artifacts" in at:
            spec.artifacts.SetInParent()
            rules = self.fields(at["artifacts"], "spec.artifacts", ("paths", "required"))
            spec.artifacts.paths.extend(self.texts(rules.get("paths"), "spec.artifacts.paths"))
            spec.artifacts.required = bool(self.value(rules, "spec.artifacts.required", quantity.flag))
            # Other nodes could not keep any, as `muster submit` sees to it as well.
            if _STORE_LABEL not in spec.node_selector:
                spec.node_selector[_STORE_LABEL].values.append("yes")
        if "ulimits" in at:
            spec.ulimits.SetInParent()
            self.ulimits(at["ulimits"], spec.ulimits)
        if {"binding", "shell", "sharedMemory"} & at.keys():
            spec.host.binding = self.word(at.get("binding"), "spec.binding", CPU_BINDINGS)
            spec.host.shell = self.word(at.get("shell"), "spec.shell", COMMAND_SHELLS)
            spec.host.shared_memory_bytes = self.value(at, "spec.sharedMemory", quantity.memory_bytes) or 0
        if "capacity" in at:
            spec.capacity.SetInParent()
            self.capacity(at["capacity"], spec.capacity)
        if "readiness" in at:
            spec.readiness.SetInParent()
            readiness = self.fields(at["readiness"], "spec.readiness", ("timeout",))
            timeout = self.value(readiness, "spec.readiness.timeout", quantity.duration_ms)
            if timeout is not None:
                spec.readiness.timeout.CopyFrom(duration(timeout))

    def capacity(self, at: Node, capacity: job_pb2.CapacityRules) -> None:
        """Reads how nodes may have been bought."""
        path = "spec.capacity"
        if isinstance(at, ScalarNode):
            purchase = self.word(at, path, PURCHASES)
            capacity.purchases.extend([purchase] if purchase else [])
            return
        asked = self.fields(at, path, ("purchases", "fallback", "maxInterruptionsPerDay"))
        capacity.purchases.extend(self.purchases(asked.get("purchases"), f"{path}.purchases"))
        if "fallback" in asked:
            capacity.fallback.SetInParent()
            fallback = self.fields(asked["fallback"], f"{path}.fallback", ("purchases", "after"))
            named = self.purchases(fallback.get("purchases"), f"{path}.fallback.purchases")
            capacity.fallback.purchases.extend(named)
            after = self.value(fallback, f"{path}.fallback.after", quantity.duration_ms)
            if after is not None:
                capacity.fallback.after.CopyFrom(duration(after))
        most = self.value(asked, f"{path}.maxInterruptionsPerDay", quantity.milli_small)
        if most is not None:
            capacity.max_interruptions_per_day_milli = most

    def purchases(self, node: Node | None, path: str) -> list[Any]:
        """A list of ways in which nodes are bought."""
        return [self.word(found, field, PURCHASES) for field, found in self.items(node, path)]

    def ulimits(self, at: Node, ulimits: job_pb2.Ulimits) -> None:
        """Reads what the processes of workers may take."""
        path = "spec.ulimits"
        asked = self.fields(at, path, ("openFiles", "coreSize", "lockedMemory", "stackSize"))
        open_files = self.value(asked, f"{path}.openFiles", quantity.count)
        if open_files is not None:
            ulimits.open_files = open_files
        sizes = (("coreSize", "core_bytes"), ("lockedMemory", "locked_bytes"), ("stackSize", "stack_bytes"))
        for name, attribute in sizes:
            size = self.value(asked, f"{path}.{name}", quantity.memory_bytes)
            if size is not None:
                setattr(ulimits, attribute, size)

    @staticmethod
    def span(target: Duration, ms: int) -> None:
        """Sets a span, which zero leaves out."""
        if ms:
            target.CopyFrom(duration(ms))

    def problem(self, node: Node | None, field: str, description: str) -> None:
        """Remembers a mistake."""
        if len(self.problems) <= _PROBLEMS_MAX:
            line = None if node is None or node.start_mark is None else node.start_mark.line + 1
            self.problems.append(Problem(line, field, description))

    def pairs(self, node: Node | None, path: str) -> Iterator[tuple[str, Node]]:
        """Keys and values of a mapping whose keys are the user's own."""
        if node is None or _is_null(node):
            return
        if not isinstance(node, MappingNode):
            self.problem(node, path, "must be a mapping")
            return
        self._visit(node)
        seen = set()
        for key, value in node.value:
            name = key.value if isinstance(key, ScalarNode) else None
            if name is None or name in seen:
                self.problem(key, path, "has a key that is no text" if name is None else f"gives {name[:80]} twice")
                continue
            seen.add(name)
            yield name, value

    def fields(self, node: Node | None, path: str, known: Sequence[str]) -> dict[str, Node]:
        """Values of a mapping by their names; without those that are null."""
        found = {}
        for name, value in self.pairs(node, path):
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                advice = f"did you mean {near[0]}? " if near else ""
                text = f"unknown field; {advice}(known here: {', '.join(known)})"
                self.problem(value, f"{path}.{name[:80]}" if path else name[:80], text)
            elif not _is_null(value):
                found[name] = value
        return found

    def items(self, node: Node | None, path: str) -> list[tuple[str, Node]]:
        """Values of a list, with their paths."""
        if node is None or _is_null(node):
            return []
        if not isinstance(node, SequenceNode):
            self.problem(node, path, "must be a list")
            return []
        self._visit(node)
        return [(f"{path}[{at}]", found) for at, found in enumerate(node.value)]

    def _visit(self, node: MappingNode | SequenceNode) -> None:
        self._values += len(node.value)
        if self._values > _VALUES_MAX:
            raise InvalidJobFile([Problem(None, "", f"the file has more than {_VALUES_MAX} values")])

    def text(self, node: Node | None, path: str) -> str:
        """A scalar, as it is written."""
        if node is None:
            return ""
        if not isinstance(node, ScalarNode):
            self.problem(node, path, "must be a text")
            return ""
        return str(node.value)

    def word(self, node: Node | None, path: str, known: ClosedSet) -> Any:
        """The number of a word of a closed set; zero when none is given."""
        text = self.text(node, path)
        number = known.number(text)
        if number is None and text:
            self.problem(node, path, f"must be one of {known.words()}, got {text[:80]!r}")
        return number or 0

    def texts(self, node: Node | None, path: str) -> list[str]:
        """A list of scalars."""
        return [self.text(found, field) for field, found in self.items(node, path)]

    def value(
        self, at: Mapping[str, Node], path: str, read: Callable[[str], _Value], *, key: str | None = None
    ) -> _Value | None:
        """A quantity; none when it is not given, or wrong."""
        node = at.get(path.rpartition(".")[2] if key is None else key)
        if node is None:
            return None
        text = self.text(node, path)
        try:
            return read(text) if isinstance(node, ScalarNode) else None
        except ValueError as error:
            self.problem(node, path, str(error))
            return None

    def positive(
        self, at: Mapping[str, Node], path: str, read: Callable[[str], int], advice: str, *, key: str | None = None
    ) -> int:
        """A quantity above zero: zero means "the default" in the message, and in a file is a mistake."""
        value = self.value(at, path, read, key=key)
        if value == 0:
            node = at[path.rpartition(".")[2] if key is None else key]
            self.problem(node, path, f"must be above zero; leave it out {advice}")
        return value or 0


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and node.tag == _NULL


def _variable(name: str, value: str) -> job_pb2.EnvVar:
    """A variable with a value, or with a reference to a secret."""
    if value.startswith(_SECRET):
        return job_pb2.EnvVar(name=name, secret_ref=value[len(_SECRET) :])
    return job_pb2.EnvVar(name=name, value=value)


def _set_amount(request: common_pb2.AcceleratorRequest, amount: tuple[int | None, int]) -> None:
    whole, milli = amount
    if whole is not None:
        request.count = whole
    else:
        request.share_milli = milli
