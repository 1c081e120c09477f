"""Wrong commands of every kind, and what is answered: one sentence that says what, where and what
to do, with a status, without a traceback and without a secret."""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.support.programs import run_tailer

SECRET = "topsecretvalue"  # it must not be shown
SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
JSONL = 'type = "jsonl"\npath = "out.jsonl"'
NOWHERE = "127.0.0.1:9"
OPTION = "--store-option"


@dataclass(frozen=True)
class Wrong:
    """A wrong command, its status, and what its answer says. ``config`` is the text of c.toml."""

    command: str
    status: int
    says: str
    config: str = ""

    def __str__(self) -> str:
        return self.command + (f" [{self.config.strip().splitlines()[-1]}]" if self.config else "")


def feed(more: str = "", *, sink: str = JSONL, table: str = "orders", daemon: str = "") -> str:
    """A configuration of one feed, with other lines, another sink, or another table."""
    top = f"[daemon]\n{daemon}\n" if daemon else ""
    return (
        f'{top}[feeds.orders]\ntable = "{table}"\nfrom = "earliest"\n{more}\n'
        f"[feeds.orders.sink]\n{sink}\n"
    )


def sink(kind: str, *lines: str) -> str:
    return feed(sink="\n".join([f'type = "{kind}"', *lines]))


ALL_COMMANDS = "tail, read, init, run, check, preview, verify, snapshot, history, sinks"
S3 = f"history s3://b/t {OPTION} region=us-east-1"
S3_KEY = f"{OPTION} access_key_id=A {OPTION} secret_access_key={SECRET}"
WITH_KEY = 'key = ["id"]'

WRONG = [
    # Words and options
    Wrong("tial orders", 2, f"no command 'tial' (did you mean 'tail'?); they are {ALL_COMMANDS}"),
    Wrong("tail orders --form 1", 2, "--form 1 (did you mean '--from'?)"),
    Wrong("tail", 2, "the following arguments are required: TABLE"),
    Wrong("read orders --from 0", 2, "the following arguments are required: --output"),
    Wrong("history orders --limit ten", 2, "'ten' is not a whole number, 0 or greater"),
    Wrong("tail orders --writer-timezone Mars/Base", 2, "'Mars/Base' is not an IANA time zone"),
    Wrong("tail orders --change-source cdc", 2, "choose from"),
    Wrong("sinks kafak", 2, "no sink of type 'kafak' (did you mean 'kafka'?); installed are: "),
    Wrong("completion fish", 2, "choose from"),
    Wrong("share token lists c.toml bob", 2, "no action 'lists' (did you mean 'list'?); type"),
    Wrong("share token list", 2, "a CONFIG.toml missing; type share token new|revoke|list CONFIG"),
    # Tables
    Wrong("tail ordres", 1, "no ordres in {folder}; did you mean {folder}/orders?"),
    Wrong("tail empty", 1, "the folder has nothing in it, and no _delta_log; type the folder of"),
    Wrong("tail file.txt", 1, "it is a file; type the folder of a Delta table"),
    Wrong("history orders/_delta_log", 1, "it is the log of the table {folder}/orders; type"),
    Wrong("history c.toml", 1, "by its name a configuration; type `tailer run ", feed()),
    Wrong("tail newer --from earliest", 1, "feature 'teleportation', which is not known here; "),
    Wrong(
        "read plain --from 0 --output - --change-source cdf", 1,
        "the change data feed was not enabled, so this version has no change data; use",
    ),
    Wrong("history hdfs://n/t", 2, "no store for 'hdfs://n/t': a local path is read, az://, "),
    Wrong("history s3:/b/t", 2, "'s3:/b/t' lacks a slash; type s3://b/t"),
    # Versions, times and columns
    Wrong("read orders --from 99 --output -", 1, "the starting version is 99, and the newest is 2"),
    Wrong("read orders --from 2 --to 1 --output -", 2, "before it starts at 2; exchange the two"),
    Wrong("read orders --from 2026-13-45 --output -", 2, "'2026-13-45' is not a version or a time"),
    Wrong("read orders --from 2036-01-01 --output -", 1, "at or after 2036-01-01T00:00:00Z; its"),
    Wrong("snapshot orders --to 1999-01-01", 1, "at or before 1999-01-01T00:00:00Z; ask for a lat"),
    Wrong("tail orders --from soon", 2, "the start is 'soon', and must be latest, earliest, "),
    Wrong(
        "read orders --from 0 --output - --select amuont", 2,
        "no column 'amuont' (did you mean 'amount'?); it has id, amount",
    ),
    Wrong("read orders --from 0 --output x.csv", 2, "'x.csv' must end in .arrow, .parquet, .jsonl"),
    Wrong("snapshot orders --output no/x.jsonl", 2, "(No such file or directory); make the folder"),
    # Stores, catalogs and shares
    Wrong(S3, 2, "S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a"),
    Wrong(f"history orders {OPTION} region=x", 2, "is a local table, and takes no option 'region'"),
    Wrong(f"{S3} {OPTION} endpoint=http://x", 2, "is not known (here it is 'endpoint_url')"),
    Wrong(
        f"{S3} {S3_KEY} {OPTION} endpoint_url=http://{NOWHERE}", 1,
        "the server can't be reached: check endpoint_url, and the network",
    ),
    Wrong("history az://c/t", 2, "Account must be specified; set account_name, or AZURE_STO"),
    Wrong(
        f"history az://c/t {OPTION} account_name=a {OPTION} account_key={SECRET}!", 2,
        "account_key is the key in base64 that the portal shows",
    ),
    Wrong("history uc://main.orders", 2, "write it as uc://catalog.schema.table"),
    Wrong(
        f"history uc://m.s.o {OPTION} endpoint=http://{NOWHERE} {OPTION} token={SECRET}", 1,
        f"nothing listens at {NOWHERE}; check the option 'endpoint', and that the server runs",
    ),
    Wrong("shares nothing.share", 2, "(No such file or directory); check its path"),
    Wrong("shares file.txt", 2, "the profile file.txt is not JSON"),
    Wrong("shares good.share", 1, f"nothing listens at {NOWHERE}; check the profile's endpoint"),
    Wrong("shares god.share", 2, "check its path (did you mean 'good.share'?)"),
    Wrong("shares old.share", 2, "expired at 2020-01-01T00:00:00+00:00; ask the provider"),
    Wrong("shares good.share --ca-file file.txt", 2, "file.txt is no PEM file of certificates"),
    # Configurations
    Wrong("run orders", 2, "orders is a table, and not a configuration: `tailer tail orders`"),
    Wrong("run c.tml", 2, "can't be read (No such file or directory); check its path (did you "),
    Wrong("run empty", 2, "(Is a directory); it is a folder: name a file"),
    Wrong("run c.toml", 2, "Invalid value (at line 2, column 9); a text stands in quotes",
          "[feeds.orders]\ntable = orders\n"),
    Wrong("check c.toml", 2, "(at line 2, column 16); the text of this line lacks its closing",
          '[feeds.orders]\ntable = "orders\n'),
    Wrong("check c.toml", 2, "feeds.orders.form is not known (did you mean 'from'?)",
          feed("form = 1")),
    Wrong("check c.toml", 2, "filter is not known (here it is 'where')", feed('filter = "id > 1"')),
    Wrong("check c.toml", 2, "is 'big', and must be a whole number of bytes, greater than 0",
          feed('batch_bytes_max = "big"')),
    Wrong("check c.toml", 2, "feeds.orders.sink is missing; describe it as [feeds.orders.sink]",
          '[feeds.orders]\ntable = "orders"\n'),
    Wrong("check c.toml", 2, "environment variable NO_SUCH_VARIABLE is not set",
          feed(table="${NO_SUCH_VARIABLE}")),
    Wrong("check c.toml", 2, "names 'idd' (did you mean 'id'?), and the table's columns are: id",
          feed('key = ["idd"]')),
    Wrong("check c.toml", 2, "mask_key is missing, by which masks are hashed",
          feed('mask = { amount = "hash" }')),
    Wrong("check c.toml", 2, "where is not understood: syntax error at its end",
          feed('where = "id >"')),
    Wrong("check c.toml", 1, "no ordres in {folder}; did you mean {folder}/orders?",
          feed(table="ordres")),
    Wrong("run c.toml", 2, "daemon.http is '127.0.0.1:99999', and must be host:port",
          feed(daemon='http = "127.0.0.1:99999"')),
    Wrong("run c.toml", 2, "(Name or service not known); name an address of this machine",
          feed(daemon='http = "host.invalid:8080"')),
    Wrong("run c.toml", 1, "(Address already in use); start again when it is free, or name another",
          feed(daemon='http = "{taken}"')),
    # Sinks
    Wrong("check c.toml", 2, "'paht' of sink 'jsonl' is not known (did you mean 'path'?)",
          sink("jsonl", 'paht = "x"')),
    Wrong("check c.toml", 1, "empty is a folder; name a file in it",
          sink("jsonl", 'path = "empty"')),
    Wrong("check c.toml", 1, "orders is a table that the feed 'orders' has not made",
          sink("delta", 'path = "orders"', WITH_KEY)),
    Wrong("check c.toml", 1, "PostgreSQL/127.0.0.1/d: nothing listens there; check the option",
          sink("postgres", f'dsn = "postgres://u:{SECRET}@{NOWHERE}/d"', 'table = "x"', WITH_KEY)),
    Wrong("check c.toml", 1, "MySQL/127.0.0.1/d: nothing listens there; check the option 'url'",
          sink("mysql", f'url = "mysql://u:{SECRET}@{NOWHERE}/d"', 'table = "x"', WITH_KEY)),
    Wrong("check c.toml", 1, f"Redis at {NOWHERE}: nothing listens there; check the option 'url'",
          sink("redis", f'url = "redis://:{SECRET}@{NOWHERE}/0"', 'stream = "x"')),
    Wrong("check c.toml", 1, f"NATS at {NOWHERE}: nothing listens there; check the option 'serv",
          sink("nats", f'servers = ["nats://{NOWHERE}"]', 'subject = "x"', 'stream = "x"')),
    Wrong("check c.toml", 1, f"RabbitMQ at {NOWHERE}: nothing listens there; check the option",
          sink("rabbitmq", f'url = "amqp://u:{SECRET}@{NOWHERE}"', 'queue = "x"')),
    Wrong("check c.toml", 1, "Pub/Sub topic orders: nothing listens there; check the option 'endp",
          sink("pubsub", 'topic = "projects/lake/topics/orders"',
               f'endpoint_url = "http://{NOWHERE}"')),
    Wrong("check c.toml", 1, f"nothing listens at {NOWHERE}; check the option 'url'",
          sink("http", f'url = "http://{NOWHERE}/"')),
    Wrong("check c.toml", 1, "has answered for 10 s: nothing listens there; check the option 'boot",
          sink("kafka", f'bootstrap_servers = "{NOWHERE}"', 'topic = "orders"')),
    # Offsets and copies
    Wrong("offsets show c.toml ordres", 2, "c.toml has no feed 'ordres'; it has orders", feed()),
    Wrong("offsets set c.toml orders", 2, "needs --from WHERE, the next version to read", feed()),
    Wrong("offsets set c.toml orders --from 99", 1, "is version 99, and the newest is 2;", feed()),
    Wrong("offsets import c.toml orders --checkpoint empty", 1,
          "the checkpoint has no committed batch; give the checkpointLocation", feed()),
    Wrong("verify c.toml orders", 2, "keeps no copy that can be read back; `tailer verify", feed()),
    Wrong("init orders --sink jsonl --output c.toml", 2, "is there already; name another", feed()),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and with much that is none."""
    folder = tmp_path_factory.mktemp("wrong")
    for name, cdf in (("orders", True), ("plain", False)):
        table = TableBuilder(folder / name, SCHEMA, cdf=cdf)
        table.create()
        for number in (1, 2):
            table.insert([{"id": number, "amount": 0.5}])
    newer = TableBuilder(folder / "newer", SCHEMA)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {key: ["teleportation"] for key in ("readerFeatures", "writerFeatures")}
    newer.commit({"protocol": protocol | features}, newer.metadata())
    (folder / "empty").mkdir()
    (folder / "file.txt").write_text("hello\n")
    profile = {
        "shareCredentialsVersion": 1, "endpoint": f"https://{NOWHERE}/", "bearerToken": SECRET,
    }  # fmt: skip
    (folder / "good.share").write_text(json.dumps(profile))
    old = profile | {"expirationTime": "2020-01-01T00:00:00Z"}
    (folder / "old.share").write_text(json.dumps(old))
    return folder


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    """An address at which something listens already."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def answer_to(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[Any, str, str]:
    """Status, output and errors of a command: of a daemon as a program, of others here."""
    if words[0] == "run":
        ended = run_tailer(*words, cwd=Path.cwd())
        return ended.returncode, ended.stdout, ended.stderr
    try:
        status: Any = main(words)
    except SystemExit as e:
        status = e.code
    return status, *capfd.readouterr()


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_command_is_answered_in_one_sentence(
    wrong: Wrong,
    folder: Path,
    taken: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in [each for each in os.environ if each.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (folder / "c.toml").write_text(wrong.config.replace("{taken}", taken) or feed())
    monkeypatch.chdir(folder)
    status, output, errors = answer_to(shlex.split(wrong.command), capfd)
    assert status == wrong.status, errors
    of_feeds = wrong.command.startswith("check ") and wrong.status == 1
    *before, answer = (output if of_feeds else errors).strip().splitlines()
    assert wrong.says.replace("{folder}", str(folder)) in answer
    assert answer.startswith(("tailer: ", "orders: ", "tailer "))
    assert all(line.startswith(("usage: ", " ")) for line in before), "one sentence, and its usage"
    assert SECRET not in errors + output


def test_the_offset_of_another_table_is_told(folder: Path) -> None:
    config = folder / "moved.toml"
    config.write_text(feed())
    given = run_tailer("offsets", "set", config, "orders", "--from", "1", cwd=folder)
    assert given.returncode == 0
    config.write_text(feed(table="plain"))
    ended = run_tailer("check", config, cwd=folder)
    assert ended.returncode == 1
    (answer,) = (ended.stdout + ended.stderr).strip().splitlines()
    assert "/plain: the offset is of table " in answer
    assert "if it was replaced on purpose, reset the offset with `tailer offsets reset`" in answer
