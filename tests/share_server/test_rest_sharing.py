"""What is shared of a table: its history, its feed, and its commits as they are made."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tailer.testing.table import TableBuilder
from tests.share_server.serving import place, served

ID = pa.schema([("id", pa.int64())])


def test_a_table_that_shares_no_history_and_no_feed(tmp_path: Path) -> None:
    orders = TableBuilder(tmp_path / "orders", ID, cdf=True)
    orders.create()
    with served(tmp_path, {"s.x.t": orders.folder}, open_tables=False) as server:
        for body in ({"version": 0}, {"timestamp": "2024-01-01T00:00:00Z"}, {"startingVersion": 0}):
            assert server.query("s.x.t", **body).code == "INVALID_PARAMETER_VALUE"
        assert server.get(f"{place('s.x.t')}/changes?startingVersion=0").status == 400
        assert server.get(f"{place('s.x.t')}/version?startingTimestamp=2020-01-01").status == 400
        assert server.get(f"{place('s.x.t')}/metadata?version=0").status == 400
        reply = server.query("s.x.t")
        assert reply.status == 200
        # A feed that is not shared is not announced.
        assert reply.lines[1]["metaData"]["configuration"] == {}


def test_versions_without_a_feed_are_a_status_and_not_a_broken_stream(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "plain", ID, cdf=False)
    table.create()
    table.insert([{"id": 1}])
    with served(tmp_path, {"s.x.t": table.folder}) as server:
        reply = server.get(f"{place('s.x.t')}/changes?startingVersion=0")
        assert (reply.status, reply.code) == (400, "INVALID_PARAMETER_VALUE")
        assert "change data feed" in reply.json["message"]
        assert str(tmp_path) not in reply.body.decode()


def test_what_a_commit_repeats_is_sent_once(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", ID, cdf=True)
    table.create()
    first = table.add([{"id": 1}])
    table.commit(first, first)
    gone, added = table.remove(first), table.add([{"id": 2}])
    table.commit(added, gone, gone, added)
    with served(tmp_path, {"s.x.t": table.folder}) as server:
        for version, kinds in ((1, ["add"]), (2, ["remove", "add"])):
            asked = f"startingVersion={version}&endingVersion={version}"
            lines = server.get(f"{place('s.x.t')}/changes?{asked}").lines
            assert [kind for line in lines[2:] for kind in line] == kinds
            assert len(server.query("s.x.t", version=version).lines) == 3


def test_commits_are_seen_as_they_are_made(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "live", ID, cdf=True)
    table.create()
    with served(tmp_path, {"s.x.t": table.folder}) as server:
        for count in range(3):
            assert len(server.query("s.x.t").lines) == 2 + count
            version = table.insert([{"id": 1}])
            reply = server.get(f"{place('s.x.t')}/version")
            assert reply.headers["delta-table-version"] == str(version)
