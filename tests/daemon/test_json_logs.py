"""The log in JSON is what its schema says, docs/logs.schema.json."""

from __future__ import annotations

import ast
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema_rs
import pyarrow as pa
import pyarrow.parquet as pq

from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.ordered import SCHEMA, Setting, wait_for_count
from tests.support.programs import Program
from tests.support.source import called, python_files
from tools.docs_sections import log_schema


def log_lines(program: Program) -> list[dict[str, Any]]:
    """The log's lines. Python's own development mode says things too, of its slow steps."""
    return [json.loads(line) for line in list(program.errors) if line.startswith("{")]


def wait_for_event(program: Program, event: str) -> None:
    program.wait_until(lambda: any(line.get("event") == event for line in log_lines(program)))


def test_every_line_of_a_daemon_is_as_its_schema_says(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.daemon += 'log_format = "json"\nlog_level = "debug"\nprogress_s = 0.1\n'
    setting.table("orders")
    changing = setting.table("changing")
    setting.feed("orders")
    setting.feed("changing", 'on_schema_change = "pause"')
    setting.feed("gone")
    setting.feed("away", table="orders")
    setting.feeds["away"] = setting.feeds["away"].replace(
        'type = "jsonl"\npath = "away.jsonl"',
        f'type = "http"\nurl = "http://127.0.0.1:{free_port()}"',
    )
    setting.write()
    with setting.program() as program:
        wait_for_count(program, setting, 3)
        for event in ("following", "failed", "retrying", "progress", "trouble"):
            wait_for_event(program, event)
        changing.schema = pa.schema([*SCHEMA, ("name", pa.string())])
        changing.commit(changing.metadata(), changing.add([{"id": 4, "name": "d"}]))
        wait_for_event(program, "blocked")
        (tmp_path / "orders.jsonl").rename(tmp_path / "orders.jsonl.1")
        program.process.send_signal(signal.SIGHUP)
        wait_for_event(program, "rotated")
        wait_for_event(program, "reload")
        assert setting.order("orders", "pause")[0] == 202
        wait_for_event(program, "order")
        assert program.stop() == 1, "a feed has failed"
    lines = validated(program)
    assert lines[-1]["event"] == "ended"


def validated(program: Program) -> list[dict[str, Any]]:
    """The log's lines, each of which is as the schema says."""
    lines, schema = log_lines(program), jsonschema_rs.validator_for(log_schema())
    for line in lines:
        schema.validate(line)
    return lines


@contextmanager
def receiver() -> Iterator[str]:
    """A server that refuses the rows that come to /refuse, and does not answer to the others."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != "/refuse":
                ended.wait()
                return
            self.send_response(422)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


def wrong_text(folder: Path) -> None:
    """A table with a text that is not UTF-8."""
    table = TableBuilder(folder, pa.schema([*SCHEMA, ("text", pa.string())]), cdf=True)
    table.create()
    add = table.add([{"id": 1, "text": "x"}])
    texts = pa.array([b"\xff"], pa.binary()).view(pa.string())
    file = folder / add["add"]["path"]
    pq.write_table(pa.table({"id": [1], "text": texts}), file)
    add["add"]["size"] = file.stat().st_size
    table.commit(add)


def test_rarer_lines_are_as_the_schema_says(tmp_path: Path) -> None:
    setting, second = Setting(tmp_path), Setting(tmp_path)
    setting.daemon += 'log_format = "json"\nlog_level = "debug"\nstop_s = 1\n'
    second.daemon = setting.daemon
    setting.table("orders")
    setting.feed("orders")
    wrong_text(tmp_path / "words")
    setting.feed("words")
    setting.table("lake/a\tb")
    setting.feeds["lake"] = (
        '[feeds.lake]\ntable = "lake/*"\n[feeds.lake.sink]\ntype = "jsonl"\n'
        'path = "lake-{table}.jsonl"\n'
    )
    with receiver() as url:
        for name, more in (("refuse", 'on_reject = "park"'), ("still", "")):
            setting.feed(name, more, table="orders")
            setting.feeds[name] = setting.feeds[name].replace(
                f'type = "jsonl"\npath = "{name}.jsonl"',
                f'type = "http"\nurl = "{url}/{name}"\ntimeout_s = 600',
            )
        setting.write()
        with setting.program() as program:
            wait_for_count(program, setting, 3)
            for event in ("parked", "invalid_text", "refused"):
                wait_for_event(program, event)
            second.feeds, second.config = setting.feeds, tmp_path / "second.toml"
            second.write()
            with second.program() as other:
                wait_for_event(other, "standby")
                assert other.stop() == 0
            assert setting.order("orders", "pause")[0] == 202
            wait_for_event(program, "order")
            program.stop()
        (tmp_path / "state" / "words.offset.json").write_text("{")
        with setting.program() as again:
            wait_for_event(again, "paused")
            wait_for_event(again, "measure")  # where an offset is damaged
            again.stop()
    lines = [*validated(program), *validated(other), *validated(again)]
    assert any(line.get("event") == "given_up" for line in lines)


def logged_events() -> Iterator[str]:
    """The values of `event` that the code logs."""
    for file in python_files("tailer", "sinks"):
        for node in ast.walk(ast.parse(file.text)):
            match node:
                case ast.Call(args=[_, ast.Constant(value=str(event)), *_]) if called(node) in (
                    "log",
                    "log_event",
                ):
                    if file.module.startswith("tailer.daemon") and event.isidentifier():
                        yield event
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        match key, value:
                            case ast.Constant(value="event"), ast.Constant(value=str(event)):
                                yield event


def test_the_schema_has_the_events_that_are_logged_and_no_others() -> None:
    documented = [each["const"] for each in log_schema()["properties"]["event"]["oneOf"]]
    assert sorted(documented) == sorted(set(logged_events()))
