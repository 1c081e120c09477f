"""A real REST catalog, which is gone, stands still, or answers what is not so."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tailer.errors import ConfigError, TailerError, TargetRefused, TransientError
from tests.sinks.iceberg.conftest import KEY, held
from tests.support.components import free_port
from tests.support.iceberg import Lake
from tests.support.iceberg_rest import RestCatalog
from tests.support.sinks import rows, write
from tests.support.web_front import WebFront, running_front

pytestmark = [pytest.mark.anyio, pytest.mark.needs("iceberg-rest")]

FIRST, SECOND = rows((1, "a")), rows((2, "b"), version=2)
BOTH = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


class Between(WebFront):
    """Somebody between the catalog and the sink. Requests whose path ends with ``of`` are answered
    with ``said``, a status and what it says, or cut off; and before that, they are done if they
    are ``passed``."""

    def __init__(self, upstream: str) -> None:
        self.upstream, self.port = upstream, free_port()
        self.of, self.passed = "", True
        self.said: tuple[int, str] | None = None
        #: The name that the last request gave itself.
        self.who = ""

    @contextmanager
    def lying(self, of: str, said: tuple[int, str] | None, *, passed: bool) -> Iterator[None]:
        """Do so within the block."""
        self.of, self.said, self.passed = of, said, passed
        yield
        self.of = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.who = request.headers.get("X-Who", "")
        body, lies = await request.read(), bool(self.of) and request.method == "POST"
        lies = lies and request.path.endswith(self.of)
        status, found = 200, b""
        if self.passed or not lies:
            sent = {"Content-Type": "application/json"}
            url = f"{self.upstream}{request.path_qs}"
            async with self.session.request(request.method, url, data=body, headers=sent) as made:
                status, found = made.status, await made.read()
        if not lies:
            return web.Response(status=status, body=found, content_type="application/json")
        if self.said is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(status=self.said[0], text=self.said[1])


def say(status: int, kind: str) -> tuple[int, str]:
    """An answer as the specification of catalogs has it."""
    return status, f'{{"error": {{"message": "no", "type": "{kind}", "code": {status}}}}}'


@pytest.fixture
def lake(tmp_path: Path, rest_catalog: RestCatalog) -> Lake:
    return Lake(tmp_path, rest_catalog.url, f"lake{tmp_path.name}".lower())


async def test_names_of_properties_have_dots(lake: Lake) -> None:
    """As TOML has them, too, where they make tables of it."""
    with running_front(Between(lake.url)) as front:
        for spelt in ('header.X-Who = "me"', '"header.X-Who" = "me"', "header.X-Who = true"):
            text = f'catalog = {{type = "rest", uri = "{front.url}", {spelt}}}'
            await lake.make_sink(key=KEY, **tomllib.loads(text)).open("orders")
            assert front.who == ("true" if "true" in spelt else "me")


@pytest.mark.parametrize("more", [{"a": ["b"]}, {"a.b": "c", "a": {"b": "c"}}, {"a": {"b": None}}])
def test_properties_that_nothing_can_have_are_refused(lake: Lake, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="option 'catalog' of sink 'iceberg'"):
        lake.make_sink(key=KEY, catalog={"type": "rest", **more})


async def test_a_catalog_that_is_gone_is_waited_for(lake: Lake, rest_catalog: RestCatalog) -> None:
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    await sink.write(FIRST)
    rest_catalog.stop()
    try:
        with pytest.raises(TransientError, match="ConnectionError"):
            await sink.write(SECOND)
        await sink.aclose()
        with pytest.raises(TransientError, match="ConnectionError"):
            await sink.open("orders")
    finally:
        rest_catalog.start()
    assert await sink.open("orders") == FIRST.next_offset
    await sink.write(SECOND)
    await sink.aclose()
    assert held(lake) == BOTH


async def test_what_a_catalog_does_that_stood_still_is_done_once(
    lake: Lake, rest_catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that it was sent meanwhile may come before or behind the next process."""
    sink = lake.make_sink(key=KEY, catalog={**lake.properties, "token": "s3cret"})
    await sink.open("orders")
    await sink.write(FIRST)
    with rest_catalog.still():
        monkeypatch.setattr("sinks.iceberg.patches.READ_TIMEOUT_S", 0.5)
        with pytest.raises(TransientError, match=r"\(ReadTimeout: "):
            await sink.write(SECOND)
        await sink.aclose()
        with pytest.raises(TransientError, match=r"\(ReadTimeout: ") as said:
            await sink.open("orders")
        assert "s3cret" not in str(said.value)
    monkeypatch.undo()
    while True:  # a claim may meet that commit
        try:
            at = await sink.open("orders")
            if at == FIRST.next_offset:
                await sink.write(SECOND)
            break
        except (ConfigError, TransientError):
            await sink.aclose()
    await sink.aclose()
    assert await lake.make_sink(key=KEY).look("orders") == SECOND.next_offset
    assert held(lake) == BOTH


@pytest.mark.parametrize(
    "said",
    [say(500, "X"), say(503, "X"), (502, "<html>"), (504, ""), (200, "<html>"), (200, "{}"), None],
    ids=["500", "503", "502", "504", "a page", "nothing", "cut off"],
)
@pytest.mark.parametrize("mode", ["mirror", pytest.param("log", marks=pytest.mark.slow)])
async def test_a_commit_whose_answer_is_lost_is_found(
    lake: Lake, mode: str, said: tuple[int, str] | None
) -> None:
    """Also the making of the table."""
    with running_front(Between(lake.url)) as front:
        catalog = {"type": "rest", "uri": front.url}
        key = {"key": KEY} if mode == "mirror" else {}
        sink = lake.make_sink(mode=mode, catalog=catalog, **key)
        assert await sink.open("orders") is None
        with front.lying("/tables", said, passed=True), pytest.raises(TransientError):
            await sink.write(FIRST)
        await sink.aclose()
        assert await sink.open("orders") is None
        await sink.write(FIRST)
        with front.lying("/orders", said, passed=True), pytest.raises(TransientError):
            await sink.write(SECOND)
        await sink.aclose()
        assert await sink.open("orders") == SECOND.next_offset
        await sink.aclose()
    assert [(row["id"], row["name"]) for row in held(lake)] == [(1, "a"), (2, "b")]


async def test_a_commit_that_is_answered_with_a_conflict_is_found_at_once(lake: Lake) -> None:
    """As where somebody between sends it twice."""
    with running_front(Between(lake.url)) as front:
        sink = lake.make_sink(key=KEY, catalog={"type": "rest", "uri": front.url})
        await sink.open("orders")
        await sink.write(FIRST)
        with front.lying("/orders", say(409, "CommitFailedException"), passed=True):
            await sink.write(SECOND)
        await sink.aclose()
    assert held(lake) == BOTH


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (say(403, "ForbiddenException"), TargetRefused),
        (say(401, "NotAuthorizedException"), TargetRefused),
        (say(400, "ValidationException"), TransientError),
        (say(419, "AuthenticationTimeoutException"), TransientError),
        (say(429, "TooManyRequests"), TransientError),
        (say(503, "SlowDownException"), TransientError),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
async def test_a_catalog_that_takes_no_commits(
    lake: Lake, said: tuple[int, str], kind: type[TailerError]
) -> None:
    with running_front(Between(lake.url)) as front:
        sink = lake.make_sink(key=KEY, catalog={"type": "rest", "uri": front.url})
        await write(sink, FIRST)
        await sink.open("orders")
        with front.lying("/orders", said, passed=False), pytest.raises(kind):
            await sink.write(SECOND)
        await sink.aclose()
        assert await sink.open("orders") == FIRST.next_offset
        await sink.write(SECOND)
        await sink.aclose()
    assert held(lake) == BOTH
