"""The commands of the sinks' pages, run as they stand there, while the daemon runs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.support.aws import Aws
from tests.support.clickhouse import ClickHouse
from tests.support.components import free_port, require
from tests.support.extent import rest_slow
from tests.support.mysql import Mysql
from tests.support.opensearch import OpenSearch
from tests.support.postgres import PASSWORD, Postgres
from tests.support.programs import run_tailer, started
from tests.support.pubsub import Pubsub
from tests.support.source import ROOT
from tests.support.waiting import eventually

Edit = Callable[[str], str]
#: A file, a folder, a database, a queue, a service and a program beside the daemon.
QUICK = {"files", "http", "kinesis", "postgres", "redis", "sqlite"}
SINKS = {found.name for found in entry_points(group="tailer.sinks")}


def on(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """What puts this server's names in the place of those of the page."""
    require("psql", shutil.which("psql") is not None)
    # What the page leaves to libpq's environment.
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(server.port))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGUSER", "tester")
    schema = server.schema()

    def edit(text: str) -> str:
        text = text.replace("host=db.example.org user=tailer dbname=lake", "dbname=postgres")
        return text.replace("public", schema).replace("psql lake", "psql postgres")

    return edit


def on_this_machine() -> Edit:
    """What puts a free port in the place of the page's, and files where they are."""
    port = str(free_port())
    return lambda text: text.replace("8080", port).replace("docs/", f"{ROOT}/docs/")


@contextmanager
def in_shell(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a shell does with lines that set a variable, or start a program beside it."""
    beside = []
    for line in lines:
        if line.startswith("export "):
            name = line.split()[1].partition("=")[0]
            command = ["bash", "-c", f"{line}; printenv {name}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            monkeypatch.setenv(name, done.stdout.strip())
        else:
            command = ["bash", "-c", line.rstrip("& ").replace("python", sys.executable, 1)]
            beside.append(subprocess.Popen(command))
    try:
        yield
    finally:
        for program in beside:
            program.kill()
            program.wait()


def edits(sink: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Edit:
    """What puts the test's server in the place of the page's."""
    here = on_this_machine()
    url: Callable[[], str] | None = None
    match sink:
        case "postgres":
            return on(request.getfixturevalue("postgres"), monkeypatch)
        case "search":
            engine: OpenSearch = request.getfixturevalue("opensearch")
            engine.call("DELETE", "/orders")
            engine.call("DELETE", "/delta-tailer/_doc/orders")
            return lambda text: text.replace("http://127.0.0.1:9200", engine.url)
        case "iceberg":
            return lambda text: text.replace("/srv/lake", str(request.getfixturevalue("tmp_path")))
        case "clickhouse":
            house: ClickHouse = request.getfixturevalue("clickhouse")
            own = {"lake": house.database(), "http://127.0.0.1:8123": house.url}
            return lambda text: re.sub("|".join(own), lambda found: own[found[0]], text)
        case "redis" | "nats" | "rabbitmq":
            url = request.getfixturevalue(f"{sink}_server").url
        case "firehose" | "kinesis" | "sns" | "sqs":
            aws: Aws = request.getfixturevalue("aws")
            aws.options(sink, "orders")
            monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
            return here
        case "pubsub":
            server: Pubsub = request.getfixturevalue("pubsub")
            server.topic("orders")
            server.subscription("orders")
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
            return here
        case "mysql":
            maria: Mysql = request.getfixturevalue("mysql")
            url = partial(maria.url, maria.database())
    if url is None:
        return here if sink == "http" else str
    real = url()
    address = real.partition("//")[0] + '//[^" ]*'
    return lambda text: here(re.sub(address, lambda _: real, text))


@pytest.mark.needs("moto", "opensearch", "clickhouse", "pubsub")
@pytest.mark.parametrize("sink", rest_slow(sorted(SINKS - {"jsonl", "kafka"}), *QUICK))
def test_the_page_s_commands_do_what_it_says(
    sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    page = (ROOT / "docs" / "sinks" / f"{sink}.md").read_text(encoding="utf-8")
    edit = edits(sink, monkeypatch, request)
    config, *_ = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    lines = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
    of_shell = [line for line in lines if line.startswith("export ") or line.endswith("&")]
    commands = [shlex.split(edit(line), comments=True) for line in lines if line not in of_shell]
    monkeypatch.chdir(tmp_path)
    Path("tailer.toml").write_text(edit(config))
    schema = pa.schema([("order_id", pa.int64()), ("country", pa.string())])
    table = TableBuilder(tmp_path / "orders", schema, cdf=True)
    table.create()
    table.commit(table.add([{"order_id": 4711, "country": "DE"}]))
    (check,) = (command for command in commands if command[:2] == ["tailer", "check"])
    (run,) = (command for command in commands if command[:2] == ["tailer", "run"])
    with ExitStack() as stack:
        stack.enter_context(in_shell([edit(line) for line in of_shell], monkeypatch))
        # What is started beside it may not listen yet.
        checks = (run_tailer(*check[1:]) for _ in range(20 if of_shell else 1))
        done = next((done for done in checks if not done.returncode), None)
        assert done is not None, run_tailer(*check[1:]).stderr
        program = stack.enter_context(started(*run[1:]))

        def output(command: list[str]) -> str:
            # A database's file may be locked just then.
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.stdout

        def verified(command: list[str]) -> bool:
            return run_tailer(*command).returncode == 0

        readers: list[list[str]] = []
        for name, *rest in (c for c in commands if c not in (check, run)):
            if name == "tailer":
                assert rest[0] == "verify"
                eventually(partial(verified, rest), why=lambda: program)
            elif name != "pip":
                readers.append([sys.executable if name == "python" else name, *rest])
                eventually(lambda: "DE" in output(readers[-1]), why=lambda: program)
        eventually(lambda: "4711" in output(readers[0]), why=lambda: program)
        table.commit(table.add([{"order_id": 815, "country": "FR"}]))
        eventually(lambda: "815" in output(readers[0]), why=lambda: program)
        assert program.stop() == 0
