"""The client against the reference server: lists, versions, answers, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tailer.errors import TableError, TransientError, UnsupportedTable
from tailer.sharing.answers import Line, MetadataLine, ProtocolLine, SharedFile, parse_line
from tailer.sharing.client import ClientOptions, SharingClient
from tailer.sharing.http import SharingRefused, format_timestamp
from tailer.sharing.model import ResponseFormat, Table
from tailer.sharing.profile import load_profile
from tailer.sharing.query import TableQuery
from tests.sharing.reference_server import ReferenceServer, serving
from tests.sharing.shared import NAME, orders

pytestmark = pytest.mark.anyio
TABLE = Table("table", "schema", "share")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReferenceServer]:
    table = orders(tmp_path / "orders")
    names = [NAME, *(("share", f"schema{n % 3}", f"t{n}") for n in range(7)), ("other", "x", "y")]
    with serving(dict.fromkeys(names, table.folder)) as running:
        yield running


@asynccontextmanager
async def client_of(
    server: ReferenceServer, tmp_path: Path, **options: Any
) -> AsyncIterator[SharingClient]:
    profile = load_profile(str(server.profile(tmp_path)))
    client = SharingClient(profile, lambda: 0.0, ClientOptions(**options))
    try:
        yield client
    finally:
        await client.aclose()


async def lines_of(client: SharingClient, query: TableQuery | None = None) -> list[Line]:
    async with (
        client.send_query(TABLE, query or TableQuery()) as answer,
        aclosing(answer.parse_lines()) as lines,
    ):
        return [line async for line in lines]


# Lists


@pytest.mark.parametrize("page_size", [None, 1, 2, 7, 100])
@pytest.mark.parametrize("quirk", ["none", "omit_items", "empty_token"])
async def test_lists_are_whole_however_they_are_paged(
    server: ReferenceServer, tmp_path: Path, page_size: int | None, quirk: str
) -> None:
    if quirk != "none":
        setattr(server.faults, quirk, True)
    async with client_of(server, tmp_path, max_results=page_size) as client:
        assert [s.name async for s in client.list_shares()] == ["other", "share"]
        assert [t.name async for t in client.list_all_tables("SHARE")] == [
            "table", *(f"t{n}" for n in range(7))
        ]  # fmt: skip
        schemas = [s.name async for s in client.list_schemas("share")]
        assert schemas == ["schema", "schema0", "schema1", "schema2"]
        assert [t.name async for t in client.list_tables("share", "Schema1")] == ["t1", "t4"]
        assert [t.name async for t in client.list_tables("share", "nothing")] == []
        assert (await client.load_share("Share")).name == "Share"


async def test_a_page_of_no_results_leads_on(server: ReferenceServer, tmp_path: Path) -> None:
    async with client_of(server, tmp_path) as client:
        empty = await client.load_page("/shares", 0)
        assert empty.items == ()
        assert empty.next_page_token == "0"
        following = await client.load_page("/shares", 1, empty.next_page_token)
        assert [item["name"] for item in following.items] == ["other"]


async def test_pages_that_go_round_are_left(server: ReferenceServer, tmp_path: Path) -> None:
    async with client_of(server, tmp_path, max_results=0) as client:
        with pytest.raises(TransientError, match="form a loop"):
            [s async for s in client.list_shares()]


# Versions


async def test_the_version_is_had_by_get_and_by_head_where_there_is_no_get(
    server: ReferenceServer, tmp_path: Path
) -> None:
    async with client_of(server, tmp_path) as client:
        assert await client.find_version(TABLE) == 3
        server.faults.only_head = True
        assert await client.find_version(TABLE) == 3
        assert [r.method for r in server.requests] == ["GET", "GET", "HEAD"]
        with pytest.raises(SharingRefused, match="404"):
            await client.find_version(Table("none", "schema", "share"))


async def test_a_version_is_found_by_its_time(server: ReferenceServer, tmp_path: Path) -> None:
    async with client_of(server, tmp_path) as client:
        minute = 1_767_225_600_000
        assert await client.find_version(TABLE, format_timestamp(0)) == 0
        assert await client.find_version(TABLE, format_timestamp(minute + 60_000)) == 1
        assert await client.find_version(TABLE, format_timestamp(minute + 60_001)) == 2
        with pytest.raises(SharingRefused, match="400"):
            await client.find_version(TABLE, format_timestamp(minute * 2))
        assert server.requests[-2].query == {"startingTimestamp": "2026-01-01T00:01:00.001Z"}


async def test_a_table_is_found_in_any_case(server: ReferenceServer, tmp_path: Path) -> None:
    async with client_of(server, tmp_path) as client:
        assert await client.find_version(Table("TABLE", "Schema", "SHARE")) == 3


# Errors


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {"Retry-After": "7"}, 7.0),
        (503, {"Retry-After": "Thu, 01 Jan 1970 00:00:09 GMT"}, 9.0),
        (503, {"Retry-After": "soon"}, None),
        (500, {}, None),
    ],
)
async def test_what_may_heal_is_transient_and_says_when_to_come_back(
    server: ReferenceServer,
    tmp_path: Path,
    status: int,
    headers: dict[str, str],
    wait: float | None,
) -> None:
    server.faults.refuse.append(("version", status, headers))
    async with client_of(server, tmp_path) as client:
        with pytest.raises(TransientError, match=rf"answered {status} \(TOLD: as told\)") as caught:
            await client.find_version(TABLE)
        assert caught.value.retry_after_s == wait
        assert await client.find_version(TABLE) == 3
    assert len(server.requests) == 2, "only a feed tries again"


@pytest.mark.parametrize("status", [400, 403, 404])
async def test_what_will_not_heal_is_refused_with_the_servers_words(
    server: ReferenceServer, tmp_path: Path, status: int
) -> None:
    server.faults.refuse.append(("metadata", status, {}))
    async with client_of(server, tmp_path) as client:
        with pytest.raises(SharingRefused, match="TOLD: as told") as caught:
            async with client.request_metadata(TABLE):
                pass
        assert caught.value.status == status


async def test_a_token_that_is_not_known_names_the_profile(
    server: ReferenceServer, tmp_path: Path
) -> None:
    server.token = "another"
    profile = server.profile(tmp_path, bearerToken="s3cret", expirationTime="2099-01-01T00:00:00Z")
    client = SharingClient(load_profile(str(profile)), lambda: 0.0)
    with pytest.raises(
        SharingRefused, match=r"test\.share; its token ends at 2099-01-01"
    ) as caught:
        await client.find_version(TABLE)
    await client.aclose()
    assert "s3cret" not in str(caught.value)


async def test_a_redirect_takes_no_token_elsewhere(server: ReferenceServer, tmp_path: Path) -> None:
    server.faults.refuse.append(("version", 307, {"Location": server.endpoint + "/shares"}))
    async with client_of(server, tmp_path) as client:
        with pytest.raises(SharingRefused, match="tokens are not sent elsewhere"):
            await client.find_version(TABLE)
    assert len(server.requests) == 1


async def test_no_server_is_transient(tmp_path: Path) -> None:
    with serving({}) as gone:
        profile = gone.profile(tmp_path)
    client = SharingClient(load_profile(str(profile)), lambda: 0.0)
    with pytest.raises(TransientError, match="GET /shares"):
        [s async for s in client.list_shares()]
    await client.aclose()


# Answers


async def test_both_formats_give_the_same_actions(server: ReferenceServer, tmp_path: Path) -> None:
    found: dict[str, list[Line]] = {}
    forms: tuple[ResponseFormat, ...] = ("delta", "parquet")
    for form in forms:
        async with client_of(server, tmp_path, response_format=form) as client:
            found[form] = await lines_of(client, TableQuery(starting_version=0))
    kinds = [type(line) for line in found["delta"]]
    assert kinds == [ProtocolLine, MetadataLine, SharedFile, SharedFile, SharedFile]
    for delta, parquet in zip(found["delta"][2:], found["parquet"][2:], strict=True):
        assert isinstance(delta, SharedFile)
        assert isinstance(parquet, SharedFile)
        assert (delta.kind, delta.location, delta.version, delta.timestamp_ms) == (
            parquet.kind, parquet.location, parquet.version, parquet.timestamp_ms
        )  # fmt: skip
        for key in ("path", "size", "partitionValues", "dataChange", "stats"):
            assert delta.action.get(key) == parquet.action.get(key), key
        assert delta.url not in json.dumps(delta.action)


async def test_every_question_about_a_table_says_what_we_can_read(
    server: ReferenceServer, tmp_path: Path
) -> None:
    async with client_of(server, tmp_path) as client:
        await lines_of(client)
        async with (
            client.request_metadata(TABLE),
            client.request_changes(TABLE, starting_version=0),
        ):
            pass
    assert {request.path.rpartition("/")[2] for request in server.requests} == {
        "metadata",
        "query",
        "changes",
    }
    for request in server.requests:
        assert request.capabilities.startswith("responseformat=delta,parquet;readerfeatures=")
        # The metadata has two lines always.
        ends = request.capabilities.endswith(";includeendstreamaction=true")
        assert ends is not request.path.endswith("/metadata")


@pytest.mark.parametrize(
    ("asked", "fault", "format_found"),
    [
        ("auto", "none", "parquet"),
        ("delta", "none", "delta"),
        ("parquet", "none", "parquet"),
        ("delta", "only_parquet", "parquet"),
        ("auto", "only_parquet", "parquet"),
        ("auto", "only_delta", "delta"),
        ("parquet", "only_delta", "parquet was requested"),
        ("delta", "wrong_format", "said parquet format"),
        ("auto", "wrong_format", "said delta format"),
    ],
)
async def test_the_matrix_of_response_formats(
    server: ReferenceServer, tmp_path: Path, asked: Any, fault: str, format_found: str
) -> None:
    if fault != "none":
        setattr(server.faults, fault, True)
    async with client_of(server, tmp_path, response_format=asked) as client:
        if format_found in ("parquet", "delta"):
            async with client.send_query(TABLE, TableQuery()) as answer:
                assert answer.form == format_found
                assert answer.version == 3
                async with aclosing(answer.parse_lines()) as lines:
                    assert len([line async for line in lines]) == 5
        else:
            with pytest.raises(TableError, match=format_found):
                await lines_of(client)


@pytest.mark.parametrize("end_of_stream", ["promised", "unknown"])
@pytest.mark.parametrize(("lines", "cut"), [(3, "connection"), (3, "line"), (0, "connection")])
async def test_an_answer_that_is_cut_short_is_transient(
    server: ReferenceServer, tmp_path: Path, lines: int, cut: str, end_of_stream: str
) -> None:
    server.faults.end_of_stream = end_of_stream == "promised"
    server.faults.cut_after_lines = lines
    server.faults.cut_connection = cut == "connection"
    server.faults.cut_within_line = cut == "line"
    async with client_of(server, tmp_path) as client:
        with pytest.raises(TransientError):
            await lines_of(client)


async def test_an_answer_without_the_end_that_it_promises_is_transient(
    server: ReferenceServer, tmp_path: Path
) -> None:
    async with client_of(server, tmp_path) as client:
        server.faults.omit_end = True
        with pytest.raises(TransientError, match="end-of-stream action"):
            await lines_of(client)
        server.faults.end_of_stream = False  # then none is promised
        assert len(await lines_of(client)) == 5


@pytest.mark.parametrize(
    ("status", "kind"), [(None, TransientError), (503, TransientError), (400, SharingRefused)]
)
async def test_an_answer_that_breaks_off_says_whether_to_come_back(
    server: ReferenceServer, tmp_path: Path, status: int | None, kind: type[Exception]
) -> None:
    server.faults.end_error = {"errorMessage": "no more"}
    if status is not None:
        server.faults.end_error["httpStatusErrorCode"] = status
    async with client_of(server, tmp_path) as client:
        with pytest.raises(kind, match="broke off: no more"):
            await lines_of(client)


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_the_pages_of_an_answer_are_one_answer(
    server: ReferenceServer, tmp_path: Path, size: int
) -> None:
    async with client_of(server, tmp_path) as client:
        whole = await lines_of(client)
        server.faults.files_per_page = size
        paged = await lines_of(client)
        assert [getattr(line, "location", None) for line in paged] == [
            getattr(line, "location", None) for line in whole
        ]
        async with (
            client.request_changes(TABLE, starting_version=0) as answer,
            aclosing(answer.parse_lines()) as lines,
        ):
            assert len([line async for line in lines]) == 5


@pytest.mark.parametrize(
    ("line", "form", "words"),
    [
        ({"file": {"id": "1", "url": "file:///etc/passwd"}}, "parquet", "not followed"),
        ({"file": {"id": "1", "url": "https://[/x"}}, "parquet", "not followed"),
        ({"file": {"id": "1", "url": "/etc/passwd"}}, "parquet", "not followed"),
        ({"file": {"url": "https://h/f"}}, "parquet", "lacks its id"),
        ({"file": {"id": "1", "url": "https://h/f", "size": "x"}}, "parquet", "size in"),
        ({"protocol": {"minReaderVersion": 2}}, "parquet", "newer client"),
        ({"add": {"id": "1"}}, "delta", "of the parquet one"),
        (
            {"file": {"id": "1", "deltaSingleAction": {"add": {"path": "file:/etc/passwd"}}}},
            "delta",
            "not followed",
        ),
        (
            {"file": {"id": "1", "deltaSingleAction": {"add": {
                "path": "https://h/f", "deletionVector": {"storageType": "u"}}}}},
            "delta",
            "without its URL",
        ),
    ],
)  # fmt: skip
def test_a_line_that_may_not_be_followed_is_refused(
    line: dict[str, Any], form: ResponseFormat, words: str
) -> None:
    with pytest.raises(TableError, match=words) as caught:
        parse_line(json.dumps(line).encode(), form)
    assert isinstance(caught.value, UnsupportedTable) == ("newer client" in words)


def test_a_deletion_vector_keeps_its_offset_and_takes_its_files_id() -> None:
    dv = {"storageType": "p", "pathOrInlineDv": "https://h/dv.bin?sig=1", "offset": 5,
          "sizeInBytes": 40, "cardinality": 2}  # fmt: skip
    add = {"path": "https://h/f?sig=1", "partitionValues": {}, "deletionVector": dv}
    file = {
        "id": "a b/c",
        "size": 7,
        "deletionVectorFileId": "d",
        "deltaSingleAction": {"add": add},
    }
    found = parse_line(json.dumps({"file": file}).encode(), "delta")
    assert isinstance(found, SharedFile)
    assert (found.location, found.dv_location) == ("data/a b/c", "dv/d")
    assert found.action["path"] == "data/a%20b%2Fc"
    assert found.action["size"] == 7
    assert found.action["deletionVector"] == {**dv, "pathOrInlineDv": "dv/d"}
    del file["deletionVectorFileId"]
    again = parse_line(json.dumps({"file": file}).replace("sig=1", "sig=2").encode(), "delta")
    once = parse_line(json.dumps({"file": file}).encode(), "delta")
    assert isinstance(again, SharedFile)
    assert isinstance(once, SharedFile)
    assert again.dv_location == once.dv_location, "the URL's signature is no part of its name"
    inline = {**dv, "storageType": "i", "pathOrInlineDv": "^Bg9^0rr91"}
    file["deltaSingleAction"] = {"add": {**add, "deletionVector": inline}}
    untouched = parse_line(json.dumps({"file": file}).encode(), "delta")
    assert isinstance(untouched, SharedFile)
    assert untouched.action["deletionVector"] == inline
    assert untouched.dv_location is None
