"""The log in JSON is what its schema says, docs/logs.schema.json."""

from __future__ import annotations

import ast
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pyarrow as pa

from tests.docs_sections import log_schema
from tests.support.components import free_port
from tests.support.ordered import SCHEMA, Setting, wait_for_count
from tests.support.programs import Program
from tests.support.source import called, python_files


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
    lines = log_lines(program)
    schema = jsonschema_rs.validator_for(log_schema())
    for line in lines:
        schema.validate(line)
    assert lines[-1]["event"] == "ended"


def logged_events() -> Iterator[str]:
    """The values of `event` that the code logs."""
    for file in python_files("tailer", "sinks"):
        for node in ast.walk(ast.parse(file.text)):
            match node:
                case ast.Call(args=[_, ast.Constant(value=str(event)), *_]) if (
                    called(node) == "log"
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
