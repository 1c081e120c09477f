"""The official Python client against the reference server: what it makes of the server's answers
is what the table has, so the server is a good judge of our own client."""

from __future__ import annotations

import datetime as dt
import json
import math
import urllib.request
from pathlib import Path
from typing import Any

import anyio
import pytest

from tailer.changes import Offset
from tailer.log.table import TableLog
from tailer.store.local import LocalStore
from tests.sharing.official import call_official, official_python
from tests.sharing.reference_server import ReferenceServer, serving
from tests.sharing.shared import NAME, golden_table, orders, read_store

RECORDED = Path(__file__).parent / "official_requests.json"
CHANGES = "load_table_changes_as_pandas"


@pytest.fixture(scope="session")
def official() -> Path:
    return official_python()


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without regard to their order, the frame's floats and the columns that only we have."""
    found = []
    for row in rows:
        kept = {k: v for k, v in row.items() if k not in ("_event_id", "_commit_timestamp")}
        found.append(json.dumps(_plain(kept), sort_keys=True, default=str))
    return sorted(found)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {k: _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
        case int() if not isinstance(value, bool):
            return float(value)
        case float() if math.isnan(value):
            return None
        case dt.date():
            return float((value - dt.date(1970, 1, 1)).days * 86_400_000)
    return value


def own(table: Path, first: int | Offset, last: int) -> list[dict[str, Any]]:
    return anyio.run(read_store, LocalStore(str(table)), first, last)


def newest(table: Path) -> int:
    return anyio.run(TableLog(LocalStore(str(table))).latest_version)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("cdf_write_shapes", (False, True)),
        pytest.param("cdf_partitioned", (False, True), marks=pytest.mark.slow),
        pytest.param("cdf_dv", (True,), marks=pytest.mark.slow),
        ("mapping_name_cdf", (True,)),
    ],
)
def test_the_official_client_reads_what_the_table_has(
    official: Path, name: str, formats: tuple[bool, ...], tmp_path: Path
) -> None:
    table = golden_table(name, tmp_path)
    last = newest(table)
    with serving({NAME: table}) as server:
        url = f"{server.profile(tmp_path)}#share.schema.table"
        # The schema before a rename is not the last one, and the client reads all in one.
        first = last if "mapping" in name else 0
        arguments = {"url": url, "starting_version": first, "ending_version": last}
        calls = [
            {"function": function, "arguments": {**given, "use_delta_format": form}}
            for form in formats
            for function, given in ((CHANGES, arguments), ("load_as_pandas", {"url": url}))
        ]
        answers = call_official(official, calls)
    changes = comparable(own(table, first, last))
    snapshot = comparable(
        [{k: v for k, v in row.items() if not k.startswith("_c")}
         for row in own(table, Offset(last, snapshot=True), last)]
    )  # fmt: skip
    for call, answer in zip(calls, answers, strict=True):
        assert "error" not in answer, (call, answer)
        expected = changes if call["function"] == CHANGES else snapshot
        assert comparable(answer["result"]) == expected, call


def shape(server: ReferenceServer) -> list[dict[str, Any]]:
    """The requests that came, as they are kept beside this file."""
    return [
        {
            "method": r.method,
            "path": r.path,
            "query": r.query,
            "capabilities": r.capabilities,
            "body": r.body,
        }
        for r in server.requests
    ]


@pytest.mark.timeout(600)
def test_its_requests_are_the_recorded_ones(official: Path, tmp_path: Path) -> None:
    """Recorded so that other servers can be asked the same without the client itself."""
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        profile = str(server.profile(tmp_path))
        url = f"{profile}#share.schema.table"
        time = "2026-01-01T00:01:00Z"
        ranged = {"url": url, "starting_version": 1, "ending_version": 2}
        timed = {"url": url, "starting_timestamp": time, "ending_timestamp": "2026-01-01T00:02:00Z"}
        answers = call_official(
            official,
            [
                {"profile": profile, "function": "list_all_tables"},
                {"function": "get_table_version", "arguments": {"url": url}},
                {
                    "function": "get_table_version",
                    "arguments": {"url": url, "starting_timestamp": time},
                },
                {"function": "get_table_metadata", "arguments": {"url": url}},
                {"function": "load_as_pandas", "arguments": {"url": url, "limit": 1}},
                {"function": "load_as_pandas", "arguments": {"url": url, "version": 1}},
                {"function": "load_as_pandas", "arguments": {"url": url, "timestamp": time}},
                {"function": CHANGES, "arguments": {**ranged, "use_delta_format": False}},
                {"function": CHANGES, "arguments": {**ranged, "use_delta_format": True}},
                {"function": CHANGES, "arguments": {**timed, "use_delta_format": False}},
            ],
        )
        assert [a for a in answers if "error" in a] == []
        assert answers[0]["result"] == [list(NAME)]
        assert [a["result"] for a in answers[1:3]] == [3, 1]
        assert [len(a["result"]) for a in answers[4:]] == [1, 1, 1, 2, 2, 2]
        assert shape(server) == json.loads(RECORDED.read_text())


def test_the_recorded_requests_are_answered(tmp_path: Path) -> None:
    """By a server that this project's own can be put in the place of."""
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        for recorded in json.loads(RECORDED.read_text()):
            query = "&".join(f"{k}={v}" for k, v in recorded["query"].items())
            body = None if recorded["body"] is None else json.dumps(recorded["body"]).encode()
            headers = {"Authorization": f"Bearer {server.token}"}
            if recorded["capabilities"]:
                headers["delta-sharing-capabilities"] = recorded["capabilities"]
            url = server.endpoint + recorded["path"] + (f"?{query}" if query else "")
            request = urllib.request.Request(  # noqa: S310 - of our own server
                url, data=body, headers=headers, method=recorded["method"]
            )
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                assert answer.status == 200
                if not recorded["path"].endswith(("/shares", "/all-tables")):
                    assert answer.headers["Delta-Table-Version"].isdigit()
        assert len(shape(server)) == len(json.loads(RECORDED.read_text()))
