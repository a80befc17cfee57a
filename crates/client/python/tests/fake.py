"""A server that writes down what is submitted to it, to compare what different programs send."""

from __future__ import annotations

import os
import subprocess
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from muster.v1beta1 import job_pb2


class CommandLine:
    """`muster submit`, and the server that it submits to."""

    def __init__(self) -> None:
        program = os.environ.get("MUSTER_BIN")
        if not program:
            pytest.skip("MUSTER_BIN does not name a muster program")
        self._program = program
        # Of the last request: a client repeats a call whose answer is late.
        self._sent: list[job_pb2.Job] = []
        one = grpc.unary_unary_rpc_method_handler(
            self._submit,
            request_deserializer=job_pb2.SubmitJobRequest.FromString,
            response_serializer=job_pb2.SubmitJobResponse.SerializeToString,
        )
        several = grpc.unary_unary_rpc_method_handler(
            self._submit_all,
            request_deserializer=job_pb2.SubmitJobsRequest.FromString,
            response_serializer=job_pb2.SubmitJobsResponse.SerializeToString,
        )
        handlers = {"SubmitJob": one, "SubmitJobs": several}
        service = grpc.method_handlers_generic_handler("muster.v1beta1.JobService", handlers)
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((service,))
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _submit(self, request: job_pb2.SubmitJobRequest, context: object) -> job_pb2.SubmitJobResponse:
        self._sent = [request.job]
        return job_pb2.SubmitJobResponse()

    def _submit_all(self, request: job_pb2.SubmitJobsRequest, context: object) -> job_pb2.SubmitJobsResponse:
        self._sent = list(request.jobs)
        return job_pb2.SubmitJobsResponse()

    def close(self) -> None:
        self._server.stop(None).wait()

    def sent(self, file: Path, *arguments: str) -> list[job_pb2.Job]:
        """The messages that it sends for a file; none when it finds the file wrong."""
        self._sent = []
        endpoint = f"127.0.0.1:{self._port}"
        words = [self._program, "--endpoint", endpoint, "submit", "--validate-only", str(file), *arguments]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert (ended.returncode == 0) == bool(self._sent), ended.stderr
        return self._sent
