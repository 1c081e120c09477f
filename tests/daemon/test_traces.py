"""The way of a batch as OpenTelemetry spans, told to a receiver of OTLP over HTTP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.components import require
from tests.support.ordered import Setting
from tests.support.pages import blocks
from tests.support.programs import run_tailer


class Receiver(ThreadingHTTPServer):
    """Keeps the spans that it is sent, decoded."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.services: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.services |= {
                each.value.string_value
                for each in resource.resource.attributes
                if each.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # its name there
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    require("opentelemetry", find_spec("opentelemetry") is not None)
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_each_batch_is_a_trace_of_its_read_write_and_saved_offset(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = (each for each in blocks("docs/metrics.md", "") if "OTEL" in each.text)
    variable, *command = block.lines[-1].split()
    assert command == ["tailer", "run", "tailer.toml"]
    name, _, url = variable.partition("=")
    monkeypatch.setenv(name, url.replace("4318", str(receiver.server_port)))
    setting = Setting(tmp_path)
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        table.insert([{"id": 3}])
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2, 3])
        assert program.stop() == 0  # what is not sent yet is sent at the end
    assert receiver.services == {"delta-tailer"}
    traces = [span for span in receiver.spans if span.name == "batch"]
    assert sum(attributes(batch)["tailer.rows"] for batch in traces) == 4
    assert {attributes(batch)["tailer.feed"] for batch in traces} == {"orders"}
    assert attributes(traces[-1])["tailer.version"] == 2
    assert attributes(traces[-1])["tailer.next_version"] == 3
    for batch in traces:
        parts = [span for span in receiver.spans if span.parent_span_id == batch.span_id]
        assert [span.name for span in parts] == ["read", "write", "save offset"]
        assert {span.trace_id for span in parts} == {batch.trace_id}
        read, write, save = parts
        assert batch.start_time_unix_nano == read.start_time_unix_nano
        assert read.start_time_unix_nano <= read.end_time_unix_nano <= write.start_time_unix_nano
        assert write.start_time_unix_nano < write.end_time_unix_nano == save.start_time_unix_nano
        assert save.start_time_unix_nano < save.end_time_unix_nano == batch.end_time_unix_nano


def test_without_an_endpoint_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    program = (
        "import os, sys; os.environ.pop('OTEL_EXPORTER_OTLP_ENDPOINT', None)\n"
        "from pathlib import Path\n"
        "from tailer.config.feeds import load_config\n"
        "from tailer.daemon.assembly import assemble_feed\n"
        "config = load_config(Path(sys.argv[1]))\n"
        "assemble_feed(config, config.feeds['orders'])\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    setting = Setting(tmp_path)
    setting.table("orders")
    setting.feed("orders")
    subprocess.run([sys.executable, "-c", program, setting.config], check=True)


def test_who_asks_for_traces_without_the_package_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module of this name that is not the package, found before it.
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "opentelemetry.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    setting = Setting(tmp_path)
    setting.table("orders")
    setting.feed("orders")
    done = run_tailer("run", setting.config)
    assert done.returncode == 2
    assert "pip install 'delta-tailer[otel]', or unset it" in done.stderr
