"""The console in a real browser, over a real daemon."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.console.browser import Page, browser_program, open_page
from tests.support.components import free_port, require
from tests.support.programs import started

pytestmark = pytest.mark.anyio
TOKEN = "correct horse"
#: Where the pictures are kept, if anyone wants to look at them.
PICTURES = os.environ.get("TAILER_PICTURES")
CARD = "[...document.querySelectorAll('.feed')].find(f => f.querySelector('h2').textContent == {})"


def card(feed: str, what: str) -> str:
    return CARD.format(json.dumps(feed)) + what


def button(feed: str, label: str) -> str:
    wanted = f".find(b => b.textContent == {json.dumps(label)})"
    buttons = card(feed, "?.querySelectorAll('button') ?? []")
    return f"[...{buttons}]{wanted}"


def picture(name: str) -> Path | None:
    return Path(PICTURES, f"{name}.png") if PICTURES else None


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, TableBuilder]:
    made = {}
    for name in ("orders", "customers"):
        table = TableBuilder(tmp_path / name, pa.schema([("id", pa.int64())]), cdf=True)
        table.create()
        table.insert([{"id": 1}])
        made[name] = table
    return made


@asynccontextmanager
async def console(folder: Path, token: str) -> AsyncIterator[Page]:
    """The page of a daemon with the feeds ``orders``, ``customers`` and one without a table."""
    require("Chromium", browser_program() is not None)
    port = free_port()
    feeds = "".join(
        f'[feeds.{name}]\ntable = "{name}"\nfrom = "earliest"\n'
        f'[feeds.{name}.sink]\ntype = "jsonl"\npath = "{name}.jsonl"\n'
        for name in ("orders", "customers", "gone")
    )
    config = folder / "tailer.toml"
    config.write_text(f'[daemon]\nhttp = "127.0.0.1:{port}"\ntoken = "{token}"\n{feeds}')
    with started("run", config) as daemon:
        await anyio.to_thread.run_sync(daemon.wait_for, (folder / "orders.jsonl").exists)
        async with open_page(f"http://127.0.0.1:{port}/") as page:
            yield page


async def sign_in(page: Page, token: str) -> None:
    await page.until("!document.querySelector('#sign-in').hidden")
    await page.value("document.querySelector('#sign-in').click()")
    typed = f"document.querySelector('#token input').value = {json.dumps(token)}"
    await page.value(typed)
    await page.value("document.querySelector('#token button.primary').click()")


async def test_it_shows_every_feed_and_what_became_of_it(
    tables: dict[str, TableBuilder], tmp_path: Path
) -> None:
    assert tables
    async with console(tmp_path, "") as page:
        await page.until(card("orders", "?.querySelector('.state').textContent == 'following'"))
        await page.until(card("gone", "?.querySelector('.state').textContent == 'failed'"))
        wrong = await page.value(card("gone", ".querySelector('.error').textContent"))
        assert "no Delta table there" in wrong
        offset = "?.querySelector('[data-fact=offset]').textContent"
        assert await page.value(card("orders", offset)) == "v2"
        # Live: a commit is seen without a reload.
        await anyio.to_thread.run_sync(tables["orders"].insert, [{"id": 2}])
        await page.until(card("orders", f"{offset} == 'v3'"))
        # Without a token there is no control.
        assert await page.value("document.querySelectorAll('.feed button').length") == 0
        assert page.complaints == []


async def test_its_buttons_do_what_they_say_and_ask_before(
    tables: dict[str, TableBuilder], tmp_path: Path
) -> None:
    assert tables
    async with console(tmp_path, TOKEN) as page:
        await page.until("document.querySelector('#summary').textContent == 'a token is needed'")
        assert await page.value("document.querySelectorAll('.feed').length") == 0
        await sign_in(page, "wrong")
        await page.until(
            "document.querySelector('#summary').textContent == 'that token was refused'"
        )
        await sign_in(page, TOKEN)
        await page.until(card("orders", "?.querySelector('.state').textContent == 'following'"))
        await page.value(button("orders", "Pause") + ".click()")
        await page.until("document.querySelector('#ask').open")
        await page.value("document.querySelector('#ask button.primary').click()")
        await page.until(card("orders", "?.querySelector('.state').textContent == 'paused'"))
        await page.until(f"{button('orders', 'Resume')} !== undefined")
        await page.value(button("orders", "Resume") + ".click()")
        await page.until(card("orders", "?.querySelector('.state').textContent == 'following'"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
async def test_it_fits_the_window_in_light_and_dark(
    tables: dict[str, TableBuilder],
    tmp_path: Path,
    width: int,
    dark: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    assert tables
    async with console(tmp_path, TOKEN) as page:
        await sign_in(page, TOKEN)
        await page.until("document.querySelectorAll('.feed').length == 3")
        await page.until(card("gone", "?.querySelector('.state').textContent == 'failed'"))
        await page.look(width, dark=dark, picture=picture(f"{width}-{'dark' if dark else 'light'}"))
        assert await page.value("document.documentElement.scrollWidth") <= width
        ground = await page.value("getComputedStyle(document.body).backgroundColor")
        ink = await page.value("getComputedStyle(document.body).color")
        assert (brightness(ground) < brightness(ink)) is dark


def brightness(colour: str) -> int:
    return sum(int(part) for part in colour[4:-1].split(","))
