"""A running `tailer share`, and plain requests to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.components import free_port
from tests.support.programs import Program, run_tailer, started, whole_lines
from tests.support.waiting import PATIENCE_S

DELTA = "responseformat=delta;readerfeatures=deletionvectors,columnmapping,timestampntz"


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its headers in lower case, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def code(self) -> str:
        """The error code of the protocol's error body, which has these two fields and no other."""
        assert set(self.json) == {"errorCode", "message"}
        assert self.headers["content-type"].startswith("application/json")
        return str(self.json["errorCode"])


def ask(
    url: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Reply:
    """One request, sent as it stands: no path is put in order on the way."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    try:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, found, answer.read())
    finally:
        connection.close()


@dataclass
class Served:
    """A server and one recipient's profile."""

    config: Path
    url: str
    profile: Path
    program: Program

    @property
    def bearer(self) -> str:
        return str(json.loads(self.profile.read_text())["bearerToken"])

    @property
    def state(self) -> Path:
        return self.config.parent / "share-state"

    def get(self, path: str, capabilities: str = "", **more: Any) -> Reply:
        """A request below the prefix, with the recipient's token if no other is given."""
        headers = {"Authorization": f"Bearer {more.pop('bearer', self.bearer)}"}
        if capabilities:
            headers["delta-sharing-capabilities"] = capabilities
        body = more.pop("json", None)
        data = more.pop("body", None if body is None else json.dumps(body).encode())
        url = path if path.startswith("http") else f"{self.url}{path}"
        return ask(url, more.pop("method", "GET"), headers | more.pop("headers", {}), data)

    def query(self, table: str, capabilities: str = "", **body: Any) -> Reply:
        """/query of `share.schema.table`."""
        return self.get(f"{place(table)}/query", capabilities, method="POST", json=body)

    def audit(self) -> list[dict[str, Any]]:
        """The audit log so far."""
        return [json.loads(x) for x in whole_lines(self.state / "audit.jsonl")]


def place(table: str) -> str:
    """The path of `share.schema.table`."""
    share, schema, name = table.split(".")
    return f"/shares/{share}/schemas/{schema}/tables/{name}"


def configuration(
    tables: Mapping[str, Path | str],
    share: str,
    recipients: Mapping[str, list[str]],
    *,
    open_tables: bool = True,
    store: str = "",
    table_settings: str = "",
) -> str:
    """CONFIG.toml with tables by `share.schema.table`, each with history and feed if `open`."""
    lines = ["[share]", share]
    for name, grants in recipients.items():
        lines += [f"[recipients.{name}]", f"grants = {json.dumps(grants)}"]
    for name, location in tables.items():
        share_name, schema, table = name.split(".")
        lines += [
            f"[shares.{share_name}.schemas.{schema}.tables.{table}]",
            f"location = {json.dumps(str(location))}",
            f"history = {str(open_tables).lower()}",
            f"cdf = {str(open_tables).lower()}",
            table_settings,
            *(
                [f"[shares.{share_name}.schemas.{schema}.tables.{table}.store]", store]
                * bool(store)
            ),
        ]
    return "\n".join([*lines, ""])


def token(config: Path, recipient: str, *options: str) -> str:
    """The profile that `tailer share token new` prints."""
    made = run_tailer("share", "token", "new", config, recipient, *options)
    made.check_returncode()
    return made.stdout


@contextmanager
def served(
    folder: Path,
    tables: Mapping[str, Path | str],
    *,
    share: str = "",
    recipients: Mapping[str, list[str]] | None = None,
    open_tables: bool = True,
    dev: bool = True,
    store: str = "",
    table: str = "",
) -> Iterator[Served]:
    """A server of some tables, with the recipient `alice`, who is granted every share unless
    `recipients` say otherwise."""
    everything = {"alice": sorted({name.split(".")[0] for name in tables})}
    recipients = recipients or everything
    port = free_port()
    url = f"http://127.0.0.1:{port}/delta-sharing"
    settings = f'address = "127.0.0.1:{port}"\npublic_url = "{url}"\n{share}'
    config = folder / "share.toml"
    text = configuration(
        tables, settings, recipients, open_tables=open_tables, store=store, table_settings=table
    )
    config.write_text(text)
    profile = folder / "alice.share"
    profile.write_text(token(config, "alice"))
    with started("share", config, dev=dev) as program:
        program.wait_until(lambda: any("sharing " in line for line in program.errors))
        yield Served(config, url, profile, program)
        assert program.stop() == 0, str(program)
    assert not any("Traceback" in line for line in program.errors), str(program)
