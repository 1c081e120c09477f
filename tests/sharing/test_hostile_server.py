"""A sharing server that means harm: what it says is refused by a sentence, within bounds."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import ConfigError, TableError, TailerError, TransientError
from tailer.log.table import TableLog
from tailer.sharing.answers import MetadataLine, ProtocolLine, parse_line
from tailer.sharing.auth import Authorization
from tailer.sharing.client import SharingClient
from tailer.sharing.model import Table
from tailer.sharing.profile import leads_here, load_profile, parse_profile
from tailer.sharing.query import TableQuery
from tailer.store.https import FileRange
from tailer.store.shared.links import Origin
from tailer.store.shared.ranges import CommitRange
from tailer.store.shared.state import Timeline
from tests.sharing.lying import Reply, asking, files_at, lying, saying
from tests.sharing.reference_server import serving
from tests.sharing.shared import NAME, orders, shared_store

pytestmark = pytest.mark.anyio
TABLE = Table("table", "schema", "share")
PROTOCOL = b'{"protocol":{"minReaderVersion":1}}\n'


async def lines_of(client: SharingClient) -> int:
    async with (
        client.send_query(TABLE, TableQuery()) as answer,
        aclosing(answer.parse_lines()) as lines,
    ):
        return len([line async for line in lines])


# Answers


async def endless(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + PROTOCOL)
    while True:
        writer.write(b" " * 65_535 + b"\n")
        await writer.drain()


async def endless_line(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(b" " * 65_536)
        await writer.drain()


async def test_an_answer_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lying(endless) as (url, _), asking(url, answer_bytes_max=1_000_000) as client:
        with pytest.raises(TableError, match="exceeds 1000000 bytes"):
            await lines_of(client)
    monkeypatch.setattr("tailer.sharing.http.LINE_BYTES_MAX", 1_000_000)
    async with lying(endless_line) as (url, _), asking(url) as client:
        with pytest.raises(TableError, match="a line of the sharing server's answer exceeds"):
            await lines_of(client)
    monkeypatch.setattr("tailer.sharing.client._PAGE_BYTES_MAX", 1_000_000)
    async with lying(endless_line) as (url, _), asking(url) as client:
        with pytest.raises(TransientError, match="too large"):
            [share async for share in client.list_shares()]


async def test_an_answer_that_unpacks_to_too_much_is_left() -> None:
    bomb = gzip.compress(PROTOCOL + (b" " * 65_535 + b"\n") * 3000)
    packed = saying(bomb, "Content-Encoding: gzip")
    async with lying(packed) as (url, _), asking(url, answer_bytes_max=50_000_000) as client:
        with pytest.raises(TableError, match="exceeds 50000000 bytes"):
            await lines_of(client)


@pytest.mark.parametrize(
    "reply",
    [
        saying(PROTOCOL, length=10_000), saying(PROTOCOL[:-10]), saying(b"x", length=-1),
        saying(b"not packed", "Content-Encoding: gzip"),
        saying(b"x", "Transfer-Encoding: chunked"),
        saying(b"", status="999 Nothing"), saying(b"", status="101 Switching"),
        saying(b"", "X: " + "a" * 100_000),
    ],
)  # fmt: skip
async def test_lies_about_the_length_are_errors_that_may_heal_or_not(reply: Reply) -> None:
    async with lying(reply) as (url, _), asking(url) as client:
        with pytest.raises((TransientError, TableError)):
            await lines_of(client)


async def test_a_deep_line_is_refused_by_a_sentence() -> None:
    deep = PROTOCOL + b'{"file":' * 200_000
    async with lying(saying(deep)) as (url, _), asking(url) as client:
        with pytest.raises(TransientError, match="line of the sharing server's answer is not JSON"):
            await lines_of(client)


async def test_headers_that_a_server_repeats_are_not_shown() -> None:
    """Also those of a token that its own token endpoint has made."""

    async def echo(head: bytes, writer: asyncio.StreamWriter) -> None:
        said = json.dumps({"errorCode": "X", "message": f"bad request: {head.decode()}"}).encode()
        await saying(said, status="401 No")(head, writer)

    async with lying(echo) as (url, seen), asking(url) as client:
        with pytest.raises(TableError, match=r"bad request: .*Authorization: Bearer \*\*\*") as e:
            await lines_of(client)
        assert b"s3cret" in seen[0]
        assert "s3cret" not in str(e.value)


@pytest.mark.parametrize("moment", [2**63 - 1, -(2**63), 253_402_300_800_000])
def test_a_time_that_is_none_is_the_server_s(moment: int) -> None:
    line = {"file": {"url": "https://h/f", "id": "1", "partitionValues": {}, "size": 1,
                     "timestamp": moment}}  # fmt: skip
    with pytest.raises(TableError, match=f"timestamp in .* is {moment}, which is not a time"):
        parse_line(json.dumps(line).encode(), "parquet")


@pytest.mark.parametrize("version", ["\u00b2", "-1", "9" * 19, "1e3", "", "\u0661"])
async def test_a_version_that_is_none_is_named(version: str) -> None:
    reply = saying(b"", f"Delta-Table-Version: {version}")
    async with lying(reply) as (url, _), asking(url) as client:
        with pytest.raises(TransientError, match="no header Delta-Table-Version"):
            await client.find_version(TABLE)


@pytest.mark.parametrize("tokens", ["abab", "aa"])
async def test_pages_that_lead_round_in_a_circle_are_left(tokens: str) -> None:
    made = iter(tokens * 1000)

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"items": [{"name": "s"}], "nextPageToken": next(made)}).encode()
        await saying(body)(b"", writer)

    async with lying(reply) as (url, seen), asking(url) as client:
        with pytest.raises(TransientError, match="form a loop"):
            [share async for share in client.list_shares()]
    assert len(seen) <= 3


async def test_empty_pages_without_end_are_left() -> None:
    number = 0

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        number += 1
        end = {"endStreamAction": {"nextPageToken": str(number)}}
        body = json.dumps({"nextPageToken": str(number)}).encode()
        if b"/query" in _:
            body = json.dumps(end).encode() + b"\n"
        said = "delta-sharing-capabilities: responseformat=parquet;includeendstreamaction=true"
        await saying(body, said)(b"", writer)

    async with lying(reply) as (url, seen), asking(url) as client:
        with pytest.raises(TransientError, match="form a loop"):
            [share async for share in client.list_shares()]
        with pytest.raises(TransientError, match="form a loop"):
            await lines_of(client)
    assert len(seen) < 300


async def test_metadata_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailer.store.shared.state._CHARACTERS_MAX", 10_000)
    timeline = Timeline(0)
    values = {"id": "x", "schemaString": "s" * 3000}
    for version in range(3):
        timeline.add_line(MetadataLine(values, version))
    with pytest.raises(TableError, match="too much metadata"):
        timeline.add_line(MetadataLine(values, 3))


async def test_another_version_than_the_one_asked_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({NAME: orders(tmp_path / "orders").folder}) as server:
        store = shared_store(server.profile(tmp_path))
        log = TableLog(store)
        await log.latest_version()
        original = server.query

        def wrong(table: Any, capabilities: str, body: dict[str, Any]) -> Any:
            return original(table, capabilities, {**body, "version": 2})

        monkeypatch.setattr(server, "query", wrong)
        with pytest.raises(TableError, match="asked for version 1, and answers with version 2"):
            [add async for add in log.live_files(await log.load_snapshot(1))]
        await store.aclose()


def test_an_answer_that_is_of_no_table_may_heal() -> None:
    for lines, lacking in (([], "protocol"), ([ProtocolLine({"minReaderVersion": 1})], "metaData")):
        timeline = Timeline(0)
        for line in lines:
            timeline.add_line(line)
        with pytest.raises(TransientError, match=f"has no {lacking} line"):
            timeline.find_state(0)


@pytest.mark.parametrize(
    ("version", "said"), [(3, "version 3, and version 4 and later"), (None, "lacks its version")]
)
async def test_a_file_of_no_version_that_was_asked_for_may_heal(
    tmp_path: Path, version: int | None, said: str
) -> None:
    added = {"url": "https://h/f", "id": "1", "partitionValues": {}, "size": 4, "timestamp": 1}
    more = {} if version is None else {"version": version}
    line = parse_line(json.dumps({"add": {**added, **more}}).encode(), "parquet")
    assert line is not None
    span = CommitRange(Origin("changes", 4, 6), tmp_path, Timeline(4), last=6)
    with pytest.raises(TransientError, match=said):
        await span.add_line(line, None)  # type: ignore[arg-type]  # no line gets there


async def test_a_page_with_401_is_not_the_server_s_word_on_the_token() -> None:
    body = b"<html>Sign in</html>"
    async with lying(saying(body, status="401 No")) as (url, _), asking(url) as client:
        with pytest.raises(TransientError, match="answered 401 with a page; check the profile"):
            await lines_of(client)


# Lines

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["https://h/f", "p", "i", "u", -1, 2**70, "-5", "--5", "\u00b2", "1"])
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from([
            "add", "remove", "cdc", "path", "url", "id", "size", "version", "timestamp", "stats",
            "expirationTimestamp", "deletionVector", "deletionVectorFileId", "storageType",
            "pathOrInlineDv", "partitionValues", "deltaSingleAction", "deltaProtocol",
            "deltaMetadata", "minReaderVersion", "configuration", "nextPageToken", "errorMessage",
        ]),
        inner, max_size=6,
    ),
    max_leaves=12,
)  # fmt: skip
KINDS = st.sampled_from(["file", "add", "cdf", "remove", "protocol", "metaData", "endStreamAction"])


@given(KINDS, JSON, st.sampled_from(["parquet", "delta"]))
def test_no_line_is_anything_but_a_line_or_an_error_with_a_sentence(
    kind: str, value: Any, form: Any
) -> None:
    try:
        parse_line(json.dumps({kind: value}).encode(), form)
    except TailerError as e:
        assert str(e)  # noqa: PT017 - most lines are no error, and may be none


@pytest.mark.parametrize(
    ("line", "form", "words"),
    [
        ({"add": {"id": "1", "url": "https://h/f", "size": -1}}, "parquet", "size in .* negative"),
        ({"add": {"id": "1", "url": "https://h/f", "version": -1}}, "parquet", "is negative"),
        ({"add": {"id": "1", "url": "https://h/f", "size": "--5"}}, "parquet", "whole number"),
        ({"add": {"id": "1", "url": "https://h/f", "size": "\u00b2"}}, "parquet", "whole number"),
        ({"add": {"id": "1", "url": "https://h/f", "timestamp": 2**63}}, "parquet", "whole number"),
        ({"file": {"id": "1", "deltaSingleAction": {"add": {"path": "https://h/f", "size": -7}}}},
         "delta", "negative"),
        ({"file": {"id": "1", "expirationTimestamp": 10**30,
                   "deltaSingleAction": {"add": {"path": "https://h/f"}}}},
         "delta", "whole number"),
        ({"file": {"id": "1", "deletionVectorFileId": "\ud800",
                   "deltaSingleAction": {"add": {"path": "https://h/f"}}}}, "delta", "JSON"),
        ({"add": {"id": "1", "url": "https://h/f", "partitionValues": {"p": "\udfff"}}},
         "parquet", "JSON"),
    ],
)  # fmt: skip
def test_numbers_and_texts_that_are_none(line: dict[str, Any], form: Any, words: str) -> None:
    with pytest.raises(TableError, match=words):
        parse_line(json.dumps(line).encode(), form)


@pytest.mark.parametrize(
    "name", ["..", "../../../../etc/passwd", "/etc/passwd", "a\\..\\b", "%2e%2e"]
)
async def test_a_files_id_is_a_name_and_no_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "etc").mkdir()
    line = {"file": {"id": name, "url": "https://h/f", "partitionValues": {}, "size": 4}}
    found = parse_line(json.dumps(line).encode(), "parquet")
    assert found is not None
    with serving({NAME: orders(tmp_path / "orders").folder}) as server:
        store = shared_store(server.profile(tmp_path))
        for where in (f"data/{name}", name, f"dv/{name}"):
            with pytest.raises(FileNotFoundError):
                await store.open(where, None)
            with pytest.raises(FileNotFoundError):
                await store.read(where)
        await store.aclose()


# Files


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/f", "https://127.0.0.1:9/f", "https://localhost/f", "https://[::1]/f",
     "https://169.254.169.254/latest/meta-data", "https://[fe80::1]/f", "https://0.0.0.0/f",
     "https://127.1/f", "https://2130706433/f", "https://0x7f000001/f", "https://a.localhost./f",
     "https://[::ffff:127.0.0.1]/f", "https://[::ffff:169.254.169.254]/f", "http://h/f",
     "ftp://h/f", "https://user:pw@h/f", "https://h/f\r\nX-Evil: 1", "https://h/a b"],
)  # fmt: skip
async def test_a_url_that_leads_here_or_nowhere_is_not_followed(url: str) -> None:
    async with files_at(url, local=False) as files:
        with pytest.raises((TableError, ConfigError)):
            await files.read("data/f", 0, 4)


async def test_who_allows_plain_http_is_not_led_here_either() -> None:
    async with lying(saying(b"abcd")) as (url, seen):
        async with files_at(url + "/f", local=False, http=True) as files:
            with pytest.raises(TableError, match="leads to this machine"):
                await files.read("data/f", 0, 4)
        assert not seen


@pytest.mark.parametrize(
    "location",
    ["https://user:pw@h/f", "ftp://h/f", "file:///etc/passwd", "http://example.org/f", "", "//"],
)
async def test_a_redirect_is_held_to_the_rules_of_urls(location: str) -> None:
    reply = saying(b"", f"Location: {location}", status="302 Found")
    async with lying(reply) as (url, seen), files_at(url + "/f") as files:
        with pytest.raises((TableError, ConfigError)):
            await files.read("data/f", 0, 4)
        assert len(seen) <= 3
        assert not any(b"uthorization" in request for request in seen)


def test_what_leads_here() -> None:
    for url in (
        "https://example.org/",
        "https://10.0.0.1/",
        "https://[2001:db8::1]/",
        "https://[x/",
    ):
        assert not leads_here(url)
    assert leads_here("http://127.0.0.1:8080/delta-sharing")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (saying(b"abcd", "Content-Range: bytes 0-3/4", "Content-Encoding: gzip",
                status="206 Partial Content"), "packed by 'gzip'"),
        (saying(gzip.compress(b"a" * 1000), "Content-Encoding: gzip"), "packed by 'gzip'"),
        (saying(b"abcd", "Content-Range: bytes 0-3/\u00b2", status="206 Partial Content"),
         "without saying of how much"),
        (saying(b"abcd", "Content-Range: bytes 0-3/-4", status="206 Partial Content"),
         "without saying of how much"),
        (saying(b"abcd", "Content-Range: bytes 0-3/100", status="206 Partial Content"), "4 of 100"),
        (saying(b"abcd", f"Content-Range: bytes 0-3/{2**62}", status="206 Partial Content"),
         "too many to be read at once"),
        (saying(b"", status="204 No Content"), "answered 204"),
        (saying(b"", length=2**60), "does not serve ranges"),
    ],
)  # fmt: skip
async def test_a_file_that_is_not_what_its_headers_say(reply: Reply, words: str) -> None:
    async with lying(reply) as (url, _), files_at(url + "/f") as files:
        with pytest.raises((TableError, TransientError), match=words):
            await files.read("data/f", 0, None)


@pytest.mark.parametrize("status", ["200 OK", "401 Unauthorized", "403 Forbidden"])
async def test_a_page_in_a_files_place_may_heal(status: str) -> None:
    """A file's server may say in a page that a URL has expired; a proxy says it of each."""
    page = "Content-Type: text/html; charset=utf-8"
    reply = saying(b"<html>Sign in</html>", page, status=status)
    async with lying(reply) as (url, _), files_at(url + "/f") as files:
        with pytest.raises(TransientError, match="a page came in the file's place; check"):
            await files.read("data/f", 0, 4)


async def test_a_part_of_a_file_may_be_called_a_page() -> None:
    """Some servers give each file that they do not know the type of a page."""

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        head = "HTTP/1.1 206 Partial Content\r\nContent-Type: text/html\r\n"
        head += "Content-Length: 4\r\nContent-Range: bytes 0-3/4\r\n\r\n"
        writer.write(head.encode() + b"PAR1")

    async with lying(reply) as (url, _), files_at(url + "/f") as files:
        assert (await files.read("data/f", 0, 4)).data == b"PAR1"


async def test_bytes_without_range_or_length_may_heal() -> None:
    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n")

    async with lying(reply) as (url, _), files_at(url + "/f") as files:
        with pytest.raises(TransientError, match="without a range or a length"):
            await files.read("data/f", 0, 4)


async def test_more_bytes_than_were_asked_for_are_not_taken() -> None:
    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/100\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with lying(reply) as (url, _), files_at(url + "/f") as files:
        assert await files.read("data/f", 0, 4) == FileRange(b"xxxx", 100, "")


async def a_byte_at_a_time(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n")
    for _pause in range(200):  # ends at last, as a test without the limit would not
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_a_body_that_comes_a_byte_at_a_time_is_a_passing_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailer.network.http_answers._PATIENCE_S", 0.1)
    async with lying(a_byte_at_a_time) as (url, _), asking(url) as client:
        with pytest.raises(TransientError, match="in 0 s are too few"):
            await lines_of(client)
        with pytest.raises(TransientError, match="in 0 s are too few"):
            [share async for share in client.list_shares()]
    async with lying(a_byte_at_a_time) as (url, _), files_at(url + "/f") as files:
        with pytest.raises(TransientError, match="in 0 s are too few"):
            await files.read("data/f", 0, None)


# Tokens


async def test_a_token_that_comes_in_pieces_is_taken_and_a_redirect_is_not() -> None:
    body = b'{"access_token": "bought", "expires_in": 60}'

    async def pieces(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for byte in body:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.001)

    oauth = {
        "shareCredentialsVersion": 2, "type": "oauth_client_credentials",
        "endpoint": "https://h", "clientId": "me", "clientSecret": "s3cret",
    }  # fmt: skip

    async def header(client: SharingClient, url: str) -> str:
        profile = parse_profile(json.dumps({**oauth, "tokenEndpoint": url}))
        return await Authorization(profile, lambda: 0.0).make_header(
            client.sessions.open_api_session()
        )

    async with asking("http://127.0.0.1:1") as client:
        async with lying(pieces) as (url, _):
            assert await header(client, url) == "Bearer bought"
        for reply in (
            saying(b"", "Location: https://elsewhere.example.org/", status="307 Moved"),
            saying(b'{"access_token": "a\\r\\nX-Evil: 1"}'), saying(b"[" * 1_000_000),
            saying(b'{"access_token": 5}'), saying(b'{"access_token": "a", "expires_in": "x"}'),
        ):  # fmt: skip
            async with lying(reply) as (url, seen):
                with pytest.raises(ConfigError) as caught:
                    await header(client, url)
                assert len(seen) == 1
                assert "s3cret" not in str(caught.value)


async def test_an_error_in_pieces_is_shown_whole(tmp_path: Path) -> None:
    body = json.dumps({"errorCode": "NO", "message": "not today"}).encode()

    async def pieces(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 400 Bad\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for byte in body:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.001)

    async with lying(pieces) as (url, _), asking(url) as client:
        with pytest.raises(TableError, match="NO: not today"):
            await client.find_version(TABLE)
    file = tmp_path / "x.share"
    file.write_text("{}")
    with pytest.raises(ConfigError):
        load_profile(str(file))
