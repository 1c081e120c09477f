"""What is said of servers that no connection reaches."""

from __future__ import annotations

import errno
import socket

import aiohttp
import anyio
import pytest

from tailer.network.reach import explain_unreached
from tests.support.components import free_port

pytestmark = pytest.mark.anyio
REMEDY = "check the option 'url', and that the server runs"


def said(e: BaseException) -> str | None:
    error = explain_unreached("Redis at x", e, "the option 'url'")
    return None if error is None else str(error)


async def test_the_address_is_named_where_nothing_listens() -> None:
    port = free_port()
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError) as refused:
            await session.get(f"http://127.0.0.1:{port}/")
    assert said(refused.value) == f"Redis at x: nothing listens at 127.0.0.1:{port}; {REMEDY}"


async def test_an_error_that_a_library_wraps_is_found() -> None:
    wrapped = RuntimeError("it does not work")
    with pytest.raises(OSError, match="attempts") as refused:
        await anyio.connect_tcp("127.0.0.1", free_port())
    wrapped.__cause__ = refused.value
    assert said(wrapped) == f"Redis at x: nothing listens there; {REMEDY}"


async def test_an_unknown_name_is_told_from_a_resolver_that_is_away() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert said(unknown) == (
        "Redis at x: this machine's DNS does not know the name; check the option 'url'"
    )
    assert said(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")) is None


@pytest.mark.parametrize(
    "words",
    [
        "[Errno -2] Name or service not known",
        "[Errno -2] Name does not resolve",
        "address lookup failed for db.invalid:443: Domain name not found",
    ],
    ids=["glibc", "musl", "c-ares"],
)
async def test_an_unknown_name_is_known_by_the_words_alone(words: str) -> None:
    by_psycopg = RuntimeError(f"failed to resolve host 'db.invalid': {words}")
    assert said(by_psycopg) == (
        "Redis at x: this machine's DNS does not know the name; check the option 'url'"
    )


async def test_other_errors_are_left_to_the_caller() -> None:
    assert said(TimeoutError(errno.ETIMEDOUT, "Connection timed out")) is None
    assert said(ValueError("WRONGTYPE")) is None
