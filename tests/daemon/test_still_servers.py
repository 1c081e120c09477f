"""Servers that stand still: they take connections and say nothing. No feed waits for them without
a word, and a signal ends the daemon."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.programs import Program, started
from tests.support.servers import Server

SCHEMA = pa.schema([("id", pa.int64())])
KINDS = ("clickhouse", "mysql", "nats", "postgres", "pubsub", "rabbitmq", "redis", "search")


class Still:
    """A table, a feed of it to a server of each kind, and the daemon's answers."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder
        self.table = TableBuilder(folder / "orders", SCHEMA, cdf=True)
        self.table.create()
        self.http = free_port()
        own = {
            "search": "opensearch",
            **{k: k for k in ("clickhouse", "mysql", "postgres", "pubsub")},
        }
        names = {kind: own.get(kind, f"{kind}_server") for kind in KINDS}
        self.servers: dict[str, Server] = {
            kind: request.getfixturevalue(name) for kind, name in names.items()
        }
        self.sinks = {kind: self._sink(kind, f"t{uuid.uuid4().hex}") for kind in KINDS}

    def _sink(self, kind: str, name: str) -> dict[str, Any]:
        server: Any = self.servers[kind]
        if kind == "mysql":
            return {"url": server.url(server.database()), "tls": False, "key": ["id"]}
        if kind == "postgres":
            dsn = server.dsn(connect_timeout="2")
            return {"dsn": dsn, "schema": server.schema(), "key": ["id"]}
        if kind == "clickhouse":
            return {"url": server.url, "database": server.database(), "key": ["id"]}
        if kind == "search":
            return {"url": server.url, "index": name, "key": ["id"]}
        if kind == "pubsub":
            return dict(server.options(name))
        if kind == "redis":
            return {"url": server.url(), "stream": name}
        if kind == "nats":
            return {"servers": [server.url()], "stream": name, "subject": name}
        return {"url": server.url(), "queue": name, "queue_type": "classic"}

    def config(self, timeout_s: float, stop_s: float) -> Path:
        lines = ["[daemon]", f'http = "127.0.0.1:{self.http}"', f"stop_s = {stop_s}"]
        for kind, options in self.sinks.items():
            lines += [f"[feeds.{kind}]", 'table = "orders"', 'from = "snapshot"', "retry_max_s = 1",
                      f"[feeds.{kind}.sink]", f'type = "{kind}"']  # fmt: skip
            given = {**options, "timeout_s": timeout_s}
            lines += [f"{name} = {json.dumps(value)}" for name, value in given.items()]
        file = self.folder / "tailer.toml"
        file.write_text("\n".join(lines))
        return file

    def ask(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}") as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.load(e)
        except urllib.error.URLError:
            raise ConnectionError(path) from None  # it does not listen yet

    def feeds(self) -> dict[str, dict[str, Any]]:
        return {feed["name"]: feed for feed in self.ask("/api/v1/feeds")[1]["feeds"]}

    def have_followed(self) -> bool:
        """Whether all feeds have delivered all versions."""
        return all(
            feed["state"] == "following" and feed["offset"]["version"] == self.table.version + 1
            for feed in self.feeds().values()
        )

    def write(self) -> bool:
        """Whether all feeds have a batch that is not written yet."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        queues = [line for line in lines if line.startswith("tailer_queue_batches{")]
        return len(queues) == len(KINDS) and all(float(line.split()[-1]) >= 1 for line in queues)

    def stand_still(self) -> ExitStack:
        stack = ExitStack()
        for server in self.servers.values():
            stack.enter_context(server.still())
        return stack


@pytest.mark.needs("clickhouse", "opensearch", "pubsub")
def test_what_waits_for_a_still_server_says_so_and_ends(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    still = Still(tmp_path, request)
    still.table.insert([{"id": 1}])
    with started("run", still.config(timeout_s=1, stop_s=30)) as program:
        program.wait_for(still.have_followed)
        with still.stand_still():
            still.table.insert([{"id": 2}])
            program.wait_for(lambda: all(
                feed["state"] == "retrying" and feed["last_error"]
                for feed in still.feeds().values()))  # fmt: skip
            status, answer = still.ask("/readyz")
            assert status == 503
            assert all(kind in json.dumps(answer) for kind in KINDS)
            for kind in KINDS:
                assert any(f"feed {kind} tries again: " in line for line in program.errors), kind
        program.wait_for(still.have_followed)
        assert still.ask("/readyz")[0] == 200
        assert program.stop() == 0


@pytest.mark.needs("clickhouse", "opensearch", "pubsub")
def test_a_signal_ends_a_daemon_whose_servers_stand_still(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also while threads are in the calls of clients, which nothing cancels."""
    still = Still(tmp_path, request)
    still.table.insert([{"id": 1}])
    with started("run", still.config(timeout_s=600, stop_s=1), dev=False) as program:
        program.wait_for(still.have_followed)
        with still.stand_still():
            still.table.insert([{"id": 2}])
            program.wait_for(still.write)
            program.wait_a_moment()
            assert program.stop() == 0
        assert _given_up(program) == set(KINDS)
    with started("run", still.config(timeout_s=600, stop_s=30)) as program:
        program.wait_for(still.have_followed)
        assert program.stop() == 0


def _given_up(program: Program) -> set[str]:
    lines = [line for line in program.errors if "has not ended for 1 s (stop_s)" in line]
    return {kind for kind in KINDS if any(f"feed {kind} has not" in line for line in lines)}
