"""Headers and pages of servers of others: each text is a value of its kind, or None."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.network.http_answers import (
    ContentRange,
    Rounds,
    find_packing,
    make_answer_timeout,
    parse_content_range,
    parse_http_date,
    parse_natural,
    parse_retry_after,
    parse_strong_etag,
)

NEW_YEAR = "Mon, 01 Jan 2024 00:00:00 GMT"
NEW_YEAR_S = 1_704_067_200


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("", None), (None, None), ("120", 120.0), (" 7 ", 7.0), ("0", 0.0), ("inf", None),
        ("-1", None), ("x", None), ("\u00b2", None),
        ("1.5", None), ("999999999", 3600.0), ("9" * 18, 3600.0), ("9" * 5000, 3600.0),
        ("Thu, 01 Jan 2099 00:00:00 GMT", 3600.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0), ("Mon, 01 Jan 99999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2024 00:00:00 +9999", None), ("\x00", None),
    ],
)  # fmt: skip
def test_a_wait_is_a_number_of_seconds_or_a_date(text: str | None, wait: float | None) -> None:
    assert parse_retry_after(text, NEW_YEAR_S, 3600.0) == wait


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (NEW_YEAR, NEW_YEAR_S), ("Monday, 01-Jan-24 00:00:00 GMT", NEW_YEAR_S),
        ("Mon, 01 Jan 2024 00:00:00 -0000", NEW_YEAR_S),  # UTC, whatever the machine's zone
        ("Mon, 01 Jan 2024 01:00:00 +0100", NEW_YEAR_S),
        ("Mon, 01 Jan 2024 00:00:60 GMT", NEW_YEAR_S + 59),  # a leap second
        ("", None), ("yesterday", None), ("Mon, 32 Jan 2024 00:00:00 GMT", None),
        ("Mon, 01 Jan 1066 00:00:00 GMT", None), ("Wed, 31 Dec 1969 23:59:59 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 -2300", None), ("Mon, 01 Jan 2024 99:99:99 GMT", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999", None), (", , ,", None), ("0 0 0 0:0:0", None),
    ],
)  # fmt: skip
def test_a_date_is_one_between_1970_and_9999(text: str, seconds: int | None) -> None:
    assert parse_http_date(text) == seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bytes 0-3/4", ContentRange(0, 4, 4)), ("bytes 3-3/*", ContentRange(3, 4, None)),
        ("bytes */200", ContentRange(0, 0, 200)), ("", None), ("bytes 0-3", None),
        ("bytes 3-0/4", None), ("bytes 0-4/4", None), ("bytes 0-3/\u00b2", None),
        ("bytes \u0663-\u0664/9", None), ("bytes 0-3/-4", None), (f"bytes 0-3/{2**63}", None),
        (f"bytes {'9' * 5000}-{'9' * 5000}/9", None), ("octets 0-3/4", None),
        ("bytes \x00-3/4", None),
    ],
)  # fmt: skip
def test_a_range_is_of_bytes_that_can_be(text: str, found: ContentRange | None) -> None:
    assert parse_content_range(text) == found


@pytest.mark.parametrize("text", ['"a1"', '"d41d8cd98f00b204e9800998ecf8427e-12"', "0a1b", ' "a" '])
def test_an_etag_names_a_state(text: str) -> None:
    assert parse_strong_etag(text) == text.strip()


@pytest.mark.parametrize(
    "text", [None, "", '""', 'W/"a1"', '"a\x00b"', '"a\nb"', '"\u00e4"', '"\udc80"', '"a', 'w"']
)
def test_what_names_no_state_is_no_etag(text: str | None) -> None:
    assert parse_strong_etag(text) is None


def test_a_body_that_comes_as_it_is() -> None:
    assert [find_packing(text) for text in (None, "", "identity", "aws-chunked")] == [None] * 4
    assert find_packing(" GZIP") == "gzip"
    assert find_packing("\x1b[2J") == "\\x1b[2j"


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9 ,:+\-/*]{0,60}", fullmatch=True))
def test_no_text_raises(text: str) -> None:
    parse_content_range(text)
    parse_http_date(text)
    parse_natural(text)
    find_packing(text)
    parse_retry_after(text, 0.0, 60.0)
    parse_strong_etag(text)


def test_numbers_end_at_63_bits() -> None:
    assert parse_natural("9" * 19) is None
    assert parse_natural(str(2**63 - 1)) == 2**63 - 1
    assert parse_natural("\u0663") is None


def test_pages_lead_round_in_a_circle_where_a_token_or_nothing_new_repeats() -> None:
    rounds = Rounds()
    assert not rounds.add_token("a", empty=False)
    assert not rounds.add_token("b", empty=False)
    assert rounds.add_token("a", empty=False)
    idle = Rounds(idle_max=3)
    assert [idle.add_token(str(n), empty=True) for n in range(4)] == [False, False, False, True]


@pytest.mark.anyio
async def test_the_time_of_a_large_upload_is_not_that_of_the_answer() -> None:
    """A file of 128 MiB takes two minutes on a line of 8 Mbit/s."""
    size = 1024 * 1024

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(8):
            await reader.readexactly(size // 8)
            await asyncio.sleep(0.1)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    address = "http://127.0.0.1:{1}/file".format(*server.sockets[0].getsockname())
    bounded = [make_answer_timeout(0.2)]
    async with (
        server,
        aiohttp.ClientSession(middlewares=bounded) as http,
        http.put(address, data=bytes(size)) as response,
    ):
        assert response.status == 200
