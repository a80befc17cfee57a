"""Generates `muster.v1beta1` from the protocol when the package is built.

By hand, for work in the source tree: `python build_stubs.py`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "src"
TARGET = SOURCE / "muster" / "v1beta1"
PROTOCOL = HERE.parents[2] / "proto"
# What speaks to an agent is one file without dependencies, which programs can also copy.
AGENT = HERE.parents[1] / "worker" / "python" / "muster_worker.py"


def generate() -> None:
    """Writes messages, services and their types; an unpacked source distribution brings them along."""
    files = sorted(PROTOCOL.glob("muster/v1beta1/*.proto"))
    if not files:
        if (TARGET / "job_pb2.py").is_file():
            return
        raise SystemExit(f"there is no protocol in {PROTOCOL}, and nothing generated in {TARGET}")
    shutil.copyfile(AGENT, SOURCE / "muster" / "_agent.py")
    import grpc_tools  # type: ignore[import-untyped]
    from grpc_tools import protoc

    TARGET.mkdir(parents=True, exist_ok=True)
    for old in TARGET.glob("*_pb2*"):
        old.unlink()
    outputs = ["python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out"]
    # `google/protobuf`: moments and spans.
    common = Path(grpc_tools.__file__).parent / "_proto"
    paths = [f"--proto_path={PROTOCOL}", f"--proto_path={common}"]
    arguments = ["protoc", *paths, *(f"--{name}={SOURCE}" for name in outputs)]
    # The plug-ins of the same environment, whatever the path says.
    for plugin in ("protoc-gen-mypy", "protoc-gen-mypy_grpc"):
        path = Path(sys.executable).parent / plugin
        if path.is_file():
            arguments.append(f"--plugin={plugin}={path}")
    code = protoc.main([*arguments, *map(str, files)])
    if code != 0:
        raise SystemExit(f"protoc ended with code {code}")
    (TARGET / "__init__.py").write_text('"""Messages and services, generated from the protocol."""\n')


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:
    pass
else:

    class StubsHook(BuildHookInterface):  # type: ignore[type-arg,misc]
        """Runs the generator in front of every build."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            generate()


if __name__ == "__main__":
    generate()
