"""The REST API as clients see it: statuses, headers, pages and lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.share_server.serving import DELTA, Served, place, served, token
from tests.support.programs import run_tailer

ID = pa.schema([("id", pa.int64()), ("part", pa.string())])
T = "Sales.EU.Orders"
V = "sales.eu.vectors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rest")


def numbered(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": n} for n in range(start, start + count)]


@pytest.fixture(scope="module")
def orders(folder: Path) -> TableBuilder:
    """Five versions, a second apart: two inserts, a delete by cdc, an OPTIMIZE-like commit, a
    schema change."""
    table = TableBuilder(folder / "orders", ID, cdf=True, partition_by=["part"])
    table.create(timestamp_ms=1_700_000_000_000)
    a = table.add(numbered(4), partition={"part": "a"})
    b = table.add(numbered(4, 4), partition={"part": "b"})
    table.commit(a, b, timestamp_ms=1_700_000_001_000)
    c = table.add(numbered(3, 5), partition={"part": "b"})
    gone = table.cdc([{"id": 4, "_change_type": "delete"}], partition={"part": "b"})
    bare = table.remove(b, partitionValues=None, size=None)  # as some writers leave it
    table.commit(bare, c, gone, timestamp_ms=1_700_000_002_000)
    d = table.add(numbered(2, 20), partition={"part": "c"})
    bounds = {"minValues": {"id": 20}, "maxValues": {"id": 21}, "nullCount": {"id": 0}}
    d["add"]["stats"] = json.dumps({"numRecords": 2, **bounds})
    table.commit(
        table.metadata(description="renewed"),
        d,
        timestamp_ms=1_700_000_003_000,
    )
    return table


@pytest.fixture(scope="module")
def vectors(folder: Path) -> TableBuilder:
    """A table with deletion vectors, in a file and inline."""
    table = TableBuilder(folder / "vectors", ID.remove(1), cdf=True)
    features = {"readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors", "changeDataFeed"]}  # fmt: skip
    table.commit(table.protocol(3, 7, **features), table.metadata())
    first = table.add(numbered(10))
    table.commit(first)
    table.commit(*table.delete_rows(first, [1, 3]))
    return table


@pytest.fixture(scope="module")
def server(folder: Path, orders: TableBuilder, vectors: TableBuilder) -> Iterator[Served]:
    closed = TableBuilder(folder / "closed", ID)
    closed.create()
    tables = {
        T: orders.folder,
        "Sales.EU.vectors": vectors.folder,
        "Sales.US.Orders": orders.folder,
        "other.x.secret": orders.folder,
    }
    with served(folder, tables, recipients={"alice": ["sales"], "bob": ["other"]}) as running:
        yield running


def items(server: Served, path: str) -> list[str]:
    reply = server.get(path)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    return [item["name"] for item in reply.json.get("items", [])]


def test_lists_have_what_is_granted_and_names_have_no_case(server: Served) -> None:
    assert items(server, "/shares") == ["Sales"]
    assert items(server, "/shares/SALES/schemas") == ["EU", "US"]
    assert items(server, "/shares/sales/schemas/eu/tables") == ["Orders", "vectors"]
    everything = server.get("/shares/sALES/all-tables").json["items"]
    names = [(t["share"], t["schema"], t["name"]) for t in everything]
    assert names == [
        ("Sales", "EU", "Orders"),
        ("Sales", "EU", "vectors"),
        ("Sales", "US", "Orders"),
    ]
    assert len({t["id"] for t in everything}) == 3
    assert server.get("/shares/sales").json["share"]["name"] == "Sales"


def test_pages_end_and_a_page_may_be_empty(server: Served) -> None:
    seen, following = [], ""
    while True:
        page = server.get(f"/shares/sales/all-tables?maxResults=2{following}").json
        seen += [(t["schema"], t["name"]) for t in page["items"]]
        if not page.get("nextPageToken"):
            break
        following = f"&pageToken={page['nextPageToken']}"
    assert seen == [("EU", "Orders"), ("EU", "vectors"), ("US", "Orders")]
    empty = server.get("/shares/sales/all-tables?maxResults=0").json
    assert empty["items"] == []
    rest = server.get(f"/shares/sales/all-tables?pageToken={empty['nextPageToken']}").json
    assert len(rest["items"]) == 3


@pytest.mark.parametrize("size", ["-1", "x", "2147483648", "1.5", "%D9%A1"])
def test_a_page_size_that_is_none_is_refused(server: Served, size: str) -> None:
    reply = server.get(f"/shares?maxResults={size}")
    assert (reply.status, reply.code) == (400, "INVALID_PARAMETER_VALUE")


def test_a_page_token_is_good_for_its_own_list_alone(server: Served) -> None:
    made = server.get("/shares/sales/schemas?maxResults=1").json["nextPageToken"]
    assert server.get(f"/shares/sales/schemas?pageToken={made}").status == 200
    for path in ("/shares/sales/all-tables", "/shares", "/shares/sales/schemas/eu/tables"):
        assert server.get(f"{path}?pageToken={made}").code == "INVALID_PARAMETER_VALUE"
    for forged in (made[:-2] + "AA", "x" + made, made.split(".")[0], "a.b", "%00"):
        assert server.get(f"/shares/sales/schemas?pageToken={forged}").status == 400


def test_versions(server: Served) -> None:
    where = place(T)
    reply = server.get(f"{where}/version")
    assert (reply.status, reply.headers["delta-table-version"], reply.body) == (200, "3", b"")
    head = server.get(where, method="HEAD")
    assert (head.status, head.headers["delta-table-version"]) == (200, "3")
    for time, version in (
        ("1970-01-01T00:00:00Z", "0"), ("2023-11-14T22:13:20Z", "0"),
        ("2023-11-14T22:13:20.001Z", "1"), ("2023-11-14T22:13:23Z", "3"),
    ):  # fmt: skip
        reply = server.get(f"{where}/version?startingTimestamp={time}")
        assert reply.headers["delta-table-version"] == version
    for time in ("2030-01-01T00:00:00Z", "yesterday", "99999-01-01"):
        assert server.get(f"{where}/version?startingTimestamp={time}").status == 400


PARQUET = "responseformat=parquet"


@pytest.mark.parametrize(
    ("table", "asked", "form"),
    [
        (T, "", "parquet"), (T, PARQUET, "parquet"), (T, "ResponseFormat=DELTA", "delta"),
        (T, "responseformat=delta,parquet", "parquet"), (T, "readerfeatures=x", "parquet"),
        (T, "responseformat=Parquet,Delta;readerfeatures=deletionvectors", "parquet"),
        (T, "nonsense;=;a=b=c", "parquet"),
        ("sales.eu.vectors", "responseformat=delta;READERFEATURES=DeletionVectors", "delta"),
        (V, "responseformat=parquet,delta;readerfeatures=deletionvectors", "delta"),
        ("sales.eu.vectors", "", None), ("sales.eu.vectors", PARQUET, None),
        ("sales.eu.vectors", "responseformat=delta", None),
        ("sales.eu.vectors", "responseformat=delta;readerfeatures=columnmapping", None),
    ],
)  # fmt: skip
def test_the_matrix_of_formats(server: Served, table: str, asked: str, form: str | None) -> None:
    where = place(table)
    for reply in (
        server.get(f"{where}/metadata", asked),
        server.query(table, asked),
        server.get(f"{where}/changes?startingVersion=0", asked),
    ):
        if form is None:
            assert (reply.status, reply.code) == (400, "UNSUPPORTED_OPERATION")
            assert "deletionvectors" in reply.json["message"] or "parquet" in reply.json["message"]
            continue
        assert reply.status == 200
        assert reply.headers["content-type"] == "application/x-ndjson; charset=utf-8"
        assert reply.headers["delta-sharing-capabilities"] == f"responseformat={form}"
        first, second = reply.lines[:2]
        assert ("deltaProtocol" in first["protocol"]) is (form == "delta")
        assert ("deltaMetadata" in second["metaData"]) is (form == "delta")


def test_a_plain_query_has_the_current_files(server: Served) -> None:
    reply = server.query(T)
    assert reply.headers["delta-table-version"] == "3"
    protocol, metadata, *files = reply.lines
    assert protocol == {"protocol": {"minReaderVersion": 1}}
    assert metadata["metaData"]["partitionColumns"] == ["part"]
    assert "version" not in metadata["metaData"]
    assert sorted(f["file"]["partitionValues"]["part"] for f in files) == ["a", "b", "c"]
    for line in files:
        file = line["file"]
        assert {"url", "id", "partitionValues", "size", "stats", "expirationTimestamp"} == set(file)
        got = server.get(file["url"])
        assert (got.status, len(got.body)) == (200, file["size"])
        assert got.body[:4] == b"PAR1"


def test_ids_stay_and_urls_are_bound_to_their_answer(server: Served) -> None:
    one, other = (
        {f["file"]["id"]: f["file"]["url"] for f in server.query(T).lines[2:]} for _ in range(2)
    )
    assert one.keys() == other.keys()
    delta = server.query(T, "responseformat=delta").lines[2:]
    assert {f["file"]["id"] for f in delta} == one.keys()


def test_time_travel(server: Served) -> None:
    bodies: list[dict[str, Any]] = [{"version": 1}, {"timestamp": "2023-11-14T22:13:21.5Z"}]
    for body in bodies:
        reply = server.query(T, **body)
        assert reply.headers["delta-table-version"] == "1"
        metadata, *files = reply.lines[1:]
        assert metadata["metaData"]["version"] == 1
        assert {(f["file"]["version"], f["file"]["timestamp"]) for f in files} == {
            (1, 1_700_000_001_000)
        }
        assert len(files) == 2
    wrong: list[dict[str, Any]] = [
        {"version": 4},
        {"version": -1},
        {"version": "1"},
        {"version": True},
        {"timestamp": "1999-01-01T00:00:00Z"},
        {"timestamp": 5},
        {"version": 1, "timestamp": "2023-11-14T22:13:21.5Z"},
        {"version": 1, "startingVersion": 1},
        {"startingVersion": 3, "endingVersion": 2},
        {"limitHint": -1},
    ]
    for body in wrong:
        assert server.query(T, **body).code == "INVALID_PARAMETER_VALUE", body


def leaf(name: str, value: str, kind: str = "string") -> dict[str, Any]:
    column = {"op": "column", "name": name, "valueType": kind}
    literal = {"op": "literal", "value": value, "valueType": kind}
    return {"op": "equal", "children": [column, literal]}


def test_hints_leave_out_files_before_the_limit_does(server: Served) -> None:
    def parts(**body: Any) -> list[str]:
        return [f["file"]["partitionValues"]["part"] for f in server.query(T, **body).lines[2:]]

    def hint(sign: str, name: str, value: str, kind: str = "long") -> str:
        return json.dumps({**leaf(name, value, kind), "op": sign})

    assert parts(jsonPredicateHints=hint("equal", "PART", "b", "string")) == ["b"]
    assert "c" not in parts(jsonPredicateHints=hint("lessThan", "id", "20"))
    assert "c" in parts(jsonPredicateHints=hint("lessThan", "id", "21"))
    assert len(parts(limitHint=1)) == 1
    assert parts(limitHint=0) == []
    # Not all rows of a file that may match are sure to: they do not count towards the limit.
    assert len(parts(jsonPredicateHints=hint("greaterThan", "id", "20"), limitHint=1)) == 3
    assert parts(jsonPredicateHints=hint("greaterThan", "id", "0"), limitHint=1)[-1] == "c"
    assert len(parts(predicateHints=["part = 'b'"], limitHint=1)) == 3
    some = parts(jsonPredicateHints=hint("greaterThanOrEqual", "part", "b", "string"), limitHint=1)
    assert some in (["b"], ["c"])


def test_rule_27_an_end_without_a_start_is_not_used(server: Served) -> None:
    reply = server.query(T, endingVersion=1)
    assert (reply.status, reply.headers["delta-table-version"]) == (200, "3")
    assert len(reply.lines) == 5


def test_rule_31_a_tree_with_an_unknown_column_or_type_is_skipped_whole(server: Served) -> None:
    known = leaf("part", "b")
    for other in (leaf("nowhere", "x"), leaf("id", "1", "binary")):
        for tree in ({"op": "and", "children": [known, other]}, {"op": "not", "children": [other]}):
            text = json.dumps(tree)
            assert len(server.query(T, jsonPredicateHints=text).lines) == 5
            # What was skipped may let fewer rows pass than a file has: no file fills the limit.
            assert len(server.query(T, jsonPredicateHints=text, limitHint=1).lines) == 5
    tree = {"op": "and", "children": [known, leaf("PART", "b")]}
    assert len(server.query(T, jsonPredicateHints=json.dumps(tree)).lines) == 3


@pytest.mark.parametrize(
    "hints",
    [
        {"jsonPredicateHints": "{"}, {"jsonPredicateHints": '{"op":"equal"}'},
        {"jsonPredicateHints": 5}, {"jsonPredicateHints": "[" * 100_000},
        {"predicateHints": "part = 'b'"}, {"predicateHints": [5, None, {}]},
        {"predicateHints": {"a": 1}}, {"predicateHints": ["part ="]}, {"unknown": [1]},
    ],
)  # fmt: skip
def test_malformed_hints_filter_nothing(server: Served, hints: dict[str, Any]) -> None:
    reply = server.query(T, **hints)
    assert (reply.status, len(reply.lines)) == (200, 5)


@pytest.mark.parametrize("body", [b"{", b"[]", b"5", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_a_malformed_body_is_refused(server: Served, body: bytes) -> None:
    reply = server.get(f"{place(T)}/query", method="POST", body=body)
    assert (reply.status, reply.code) == (400, "MALFORMED_REQUEST")


def test_a_huge_body_is_refused(server: Served) -> None:
    reply = server.get(f"{place(T)}/query", method="POST", body=b" " * 2_000_000)
    assert (reply.status, reply.code) == (413, "MALFORMED_REQUEST")


def kinds(lines: list[Any]) -> list[tuple[str, int | None]]:
    """(kind, version) of lines in the parquet format."""
    found = [next(iter(line.items())) for line in lines]
    return [(kind, values.get("version")) for kind, values in found]


def test_changes(server: Served) -> None:
    reply = server.get(f"{place(T)}/changes?startingVersion=1&endingVersion=2")
    assert reply.headers["delta-table-version"] == "1"
    assert kinds(reply.lines) == [
        ("protocol", None),
        ("metaData", None),
        ("add", 1),
        ("add", 1),
        ("cdf", 2),
    ]
    assert {line["add"]["timestamp"] for line in reply.lines[2:4]} == {1_700_000_001_000}
    by_time = server.get(
        f"{place(T)}/changes?startingTimestamp=2023-11-14T22:13:20.5Z"
        "&endingTimestamp=2023-11-14T22:13:22.9Z"
    )
    assert kinds(by_time.lines) == kinds(reply.lines)


def test_changes_count_against_the_files_that_are_there(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", ID.remove(1), cdf=True)
    table.create()
    first, never = table.add(numbered(2)), table.add(numbered(3))
    table.commit(first)
    table.commit(first, table.remove(never))
    table.commit(table.remove(first), table.remove(table.add(numbered(4))))
    table.commit(table.remove(first), table.add(numbered(1)))
    with served(tmp_path, {"s.x.t": table.folder}) as running:
        for ranges in (["1"], ["1&endingVersion=2", "3&endingVersion=4"], ["2"], ["4"]):
            found = []
            for asked in ranges:
                lines = running.get(f"{place('s.x.t')}/changes?startingVersion={asked}").lines
                found += kinds([n for n in lines if not n.keys() & {"protocol", "metaData"}])
            all_changes = [("add", 1), ("remove", 3), ("add", 4)]
            start = int(ranges[0][0])
            assert found == [(kind, version) for kind, version in all_changes if version >= start]


def test_historical_metadata(server: Served) -> None:
    for flag in ("true", "True"):
        path = f"{place(T)}/changes?startingVersion=1&includeHistoricalMetadata={flag}"
        lines = server.get(path).lines
        assert [v for kind, v in kinds(lines) if kind == "metaData"] == [1, 3]
        assert "description" not in lines[1]["metaData"]
    lines = server.get(f"{place(T)}/changes?startingVersion=1").lines
    assert [line["metaData"]["description"] for line in lines if "metaData" in line] == ["renewed"]


@pytest.mark.parametrize(
    "query",
    [
        "", "endingVersion=2", "startingVersion=4", "startingVersion=2&endingVersion=1",
        "startingVersion=-1", "startingVersion=x", "startingVersion=99999999999999999999",
        "startingVersion=1&startingTimestamp=2023-01-01", "startingTimestamp=never",
        "startingVersion=1&endingVersion=2&endingTimestamp=2023-01-01",
        "startingTimestamp=2040-01-01T00:00:00Z", "startingVersion=0&endingTimestamp=1999-01-01",
    ],
)  # fmt: skip
def test_a_range_that_is_none_is_refused(server: Served, query: str) -> None:
    reply = server.get(f"{place(T)}/changes?{query}")
    assert (reply.status, reply.code) == (400, "INVALID_PARAMETER_VALUE")


def test_an_end_behind_the_newest_version_is_a_hint(server: Served) -> None:
    for reply in (
        server.get(f"{place(T)}/changes?startingVersion=3&endingVersion=100"),
        server.query(T, startingVersion=3, endingVersion=100),
    ):
        assert kinds(reply.lines)[-1] == ("add", 3)


def test_a_stream_gets_files_and_metadata_but_no_cdc(server: Served) -> None:
    reply = server.query(T, startingVersion=1)
    assert reply.headers["delta-table-version"] == "1"
    assert kinds(reply.lines) == [
        ("protocol", None), ("metaData", 1), ("add", 1), ("add", 1), ("remove", 2), ("add", 2),
        ("metaData", 3), ("add", 3),
    ]  # fmt: skip
    (gone,) = (line["remove"] for line in reply.lines if "remove" in line)
    assert (gone["partitionValues"], gone["size"] > 0) == ({"part": "b"}, True)
    ended = server.query(T, startingVersion=1, endingVersion=1)
    assert kinds(ended.lines)[2:] == [("add", 1), ("add", 1)]


def test_deletion_vectors_travel_by_url(server: Served, vectors: TableBuilder) -> None:
    lines = server.query("sales.eu.vectors", DELTA).lines
    file = lines[2]["file"]
    action = file["deltaSingleAction"]["add"]
    dv = action["deletionVector"]
    assert dv["storageType"] == "p"
    assert dv["cardinality"] == 2
    raw = server.get(dv["pathOrInlineDv"])
    assert raw.status == 200
    (stored,) = vectors.folder.glob("**/deletion_vector_*.bin")
    assert raw.body == stored.read_bytes()
    assert file["deletionVectorFileId"] != file["id"]
    assert server.get(action["path"]).body[:4] == b"PAR1"
    # An add and a remove of one file are paired by their paths.
    changes = server.get(f"{place('sales.eu.vectors')}/changes?startingVersion=2", DELTA).lines[2:]
    paths = {next(iter(c["file"]["deltaSingleAction"].values()))["path"] for c in changes}
    assert (len(changes), len(paths)) == (2, 1)


def test_the_end_of_a_stream_is_told_to_those_who_ask(server: Served) -> None:
    asked = "responseformat=parquet;includeendstreamaction=true"
    reply = server.query(T, asked, includeRefreshToken=True)
    assert reply.headers["delta-sharing-capabilities"].endswith("includeendstreamaction=true")
    end = reply.lines[-1]["endStreamAction"]
    assert end["minUrlExpirationTimestamp"] == reply.lines[2]["file"]["expirationTimestamp"]
    again = server.query(T, asked, refreshToken=end["refreshToken"])
    assert [f["file"]["id"] for f in again.lines[2:-1]] == [
        f["file"]["id"] for f in reply.lines[2:-1]
    ]
    assert again.headers["delta-table-version"] == "3"
    for wrong in ("x", end["refreshToken"][:-3] + "AAA"):
        assert server.query(T, asked, refreshToken=wrong).status == 400
    assert server.query("sales.us.orders", asked, refreshToken=end["refreshToken"]).status == 400
    changes = server.get(f"{place(T)}/changes?startingVersion=0", asked)
    assert "endStreamAction" in changes.lines[-1]
    assert "endStreamAction" not in server.query(T).lines[-1]


def test_metadata_has_two_lines_whatever_is_asked(server: Served) -> None:
    asked = "responseformat=delta;includeendstreamaction=true"
    reply = server.get(f"{place(T)}/metadata", asked)
    assert [next(iter(line)) for line in reply.lines] == ["protocol", "metaData"]
    assert reply.headers["delta-sharing-capabilities"] == "responseformat=delta"


def test_metadata_of_another_version(server: Served) -> None:
    where = f"{place(T)}/metadata"
    for query in ("version=1", "timestamp=2023-11-14T22:13:21.5Z"):
        reply = server.get(f"{where}?{query}")
        assert reply.headers["delta-table-version"] == "1"
        assert reply.lines[1]["metaData"]["version"] == 1
        assert "description" not in reply.lines[1]["metaData"]
    for query in ("version=4", "version=x", "version=1&timestamp=2024-01-01", "timestamp=never"):
        assert server.get(f"{where}?{query}").code == "INVALID_PARAMETER_VALUE"


def test_temporary_credentials_are_refused_by_name(server: Served) -> None:
    reply = server.get(f"{place(T)}/temporary-table-credentials", method="POST", body=b"{}")
    assert (reply.status, reply.code) == (400, "UNSUPPORTED_OPERATION")


def test_health_metrics_and_description_need_no_token(server: Served) -> None:
    root = server.url.removesuffix("/delta-sharing")
    for path, needle in (
        (f"{root}/healthz", b"ok"), (f"{root}/metrics", b"tailer_share_requests_total"),
        (f"{server.url}/openapi.json", b'"openapi"'),
    ):  # fmt: skip
        reply = server.get(path, headers={"Authorization": ""})
        assert reply.status == 200
        assert needle in reply.body


def test_tokens_come_and_go_without_a_restart(server: Served) -> None:
    def command(*words: str) -> str:
        done = run_tailer("share", "token", *words)
        done.check_returncode()
        return done.stdout

    made = json.loads(token(server.config, "bob", "--expires-in", "never"))
    assert "expirationTime" not in made
    bob = made["bearerToken"]
    assert [s["name"] for s in server.get("/shares", bearer=bob).json["items"]] == ["other"]
    listed = command("list", str(server.config), "bob")
    assert listed.startswith("bob\t")
    assert bob.split("_", 2)[2] not in listed
    command("revoke", str(server.config), "bob")
    assert server.get("/shares", bearer=bob).status == 401
    assert command("list", str(server.config), "bob") == ""
    assert server.get("/shares").status == 200
