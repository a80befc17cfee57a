"""Scripts with directives: ``#MUSTER key: value`` says what a job file says under ``spec``."""

from __future__ import annotations

from typing import Sequence

from yaml.nodes import Node

from ._manifest import METADATA, Reader, nodes_of
from .errors import InvalidJobFile, Problem
from .v1beta1 import job_pb2

_DIRECTIVE = "#MUSTER"
_WORD_BYTES_MAX = 4_096
_SCRIPT_BYTES_MAX = 32 * 1_024 - 4 * 1_024
_NAME_MAX = 63
# Puts the script together from its parts, in a file that is gone before the script begins, and becomes its
# interpreter. It is the text that the command line sends, to the letter.
_START = """i=$1 a=$2 n=$3; shift 3
f=$(mktemp "${TMPDIR:-/tmp}/muster-script.XXXXXX") || exit 126
while [ "$n" -gt 0 ]; do printf %s "$1"; shift; n=$((n - 1)); done > "$f" || { rm -f "$f"; exit 126; }
exec 3< "$f"; rm -f "$f"
if [ -n "$a" ]; then exec "$i" "$a" /dev/fd/3 "$@"; fi
exec "$i" /dev/fd/3 "$@\""""


def read_script(script: str, name: str, arguments: Sequence[str], now_ms: int) -> job_pb2.Job:
    """The job that runs a script, whose text travels with it."""
    problems: list[Problem] = []
    metadata_text, spec_text = _directives(script, problems)
    if len(script.encode()) > _SCRIPT_BYTES_MAX:
        advice = f"the script is larger than {_SCRIPT_BYTES_MAX} bytes; put it where the nodes can read it"
        problems.append(Problem(None, "", advice))
    command = _command(script, name, arguments, problems)
    if problems:
        raise InvalidJobFile(problems)
    reader = Reader(now_ms)
    metadata = reader.fields(_only(metadata_text), "metadata", METADATA)
    spec_node = _only(spec_text)
    job = job_pb2.Job(spec=reader.spec(spec_node))
    if any(key == "command" for key, _ in Reader(now_ms).pairs(spec_node, "spec")):
        reader.problem(spec_node, "command", "must be left out: the script is the command")
    reader.metadata(metadata, job)
    job.name = job.name or _name_of(name)
    for group in job.spec.groups:
        runtime = group.container if group.HasField("container") else group.process
        if not runtime.command:
            runtime.command.extend(command)
    return reader.done(job)


def _directives(script: str, problems: list[Problem]) -> tuple[str, str]:
    """Two mappings whose lines are those of the script."""
    metadata, spec, commands = [], [], False
    for number, line in enumerate(_lines(script), 1):
        in_metadata = in_spec = ""
        wrong = ""
        if line.startswith(_DIRECTIVE):
            rest = line[len(_DIRECTIVE) :]
            if commands:
                wrong = "comes after the first command, where directives are not looked for; move it up"
            elif rest.startswith(" "):
                of_job = rest[1:].startswith(tuple(f"{field}:" for field in METADATA))
                in_metadata, in_spec = (rest[1:], "") if of_job else ("", rest[1:])
            elif rest:
                wrong = "must be followed by a space and `key: value`, as in a job file"
        elif line.lstrip().upper().startswith(_DIRECTIVE) and not commands:
            wrong = "must stand at the beginning of its line, in capitals"
        else:
            commands = commands or bool(line.strip() and not line.lstrip().startswith("#"))
        if wrong:
            problems.append(Problem(number, _DIRECTIVE, wrong))
        metadata.append(in_metadata)
        spec.append(in_spec)
    return "\n".join(metadata), "\n".join(spec)


def _lines(text: str) -> list[str]:
    # Not `splitlines`, which also ends lines at form feeds and the like.
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _only(text: str) -> Node | None:
    found = nodes_of(text) if text.strip() else []
    return found[0] if found else None


def _command(script: str, name: str, arguments: Sequence[str], problems: list[Problem]) -> list[str]:
    first = (_lines(script) or [""])[0]
    shebang = first.removeprefix("#!").strip() if first.startswith("#!") else ""
    at = min((found for found in (shebang.find(" "), shebang.find("\t")) if found >= 0), default=len(shebang))
    interpreter, argument = shebang[:at], shebang[at + 1 :].strip()
    if not interpreter.startswith("/"):
        description = "must name an interpreter by its absolute path, like #!/bin/bash"
        problems.append(Problem(1, "#!", description))
        return []
    parts = _parts(script)
    return ["/bin/sh", "-c", _START, name, interpreter, argument, str(len(parts)), *parts, *arguments]


def _parts(script: str) -> list[str]:
    """The text in words that a command may have, cut between characters."""
    data, parts = script.encode(), []
    while data:
        end = min(len(data), _WORD_BYTES_MAX)
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        parts.append(data[:end].decode())
        data = data[end:]
    return parts


def _name_of(file: str) -> str:
    stem = file.rsplit("/", 1)[-1].split(".", 1)[0]
    letters = (c.lower() if c.isascii() and c.isalnum() else "-" for c in stem[:_NAME_MAX])
    return "".join(letters).strip("-") or "script"
