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

from tailer.testing.table import TableBuilder, delta_schema
from tests.console.axe import barriers
from tests.console.browser import Page, browser_program, open_page
from tests.support.components import free_port, require
from tests.support.programs import started

pytestmark = pytest.mark.anyio
TOKEN = "correct horse"
#: Where the pictures are kept, if anyone wants to look at them.
PICTURES = os.environ.get("TAILER_PICTURES")
FOCUSED = "document.activeElement"
FEEDS = "[...document.querySelectorAll('#feeds .feed')]"
ROW = FEEDS + ".find(f => f.querySelector('b').textContent == {})"
PROBLEMS = "[...document.querySelectorAll('.problem')]"
PROBLEM = PROBLEMS + ".find(p => p.querySelector('.names').textContent.includes({}))"


def row(feed: str, what: str) -> str:
    return ROW.format(json.dumps(feed)) + what


def problem(feed: str, what: str) -> str:
    return PROBLEM.format(json.dumps(feed)) + what


def button(place: str, label: str) -> str:
    buttons = f"[...document.querySelectorAll('{place} button')]"
    return f"{buttons}.find(b => b.textContent == {json.dumps(label)})"


PAUSE = button("#detail", "Pause")


def is_shown(state: str) -> str:
    return f"document.querySelector('#detail .state').textContent == '{state}'"


def count_feeds(count: int) -> str:
    return f"document.querySelectorAll('#feeds .feed').length == {count}"


def is_state(feed: str, state: str) -> str:
    return row(feed, f"?.querySelector('.state').textContent == '{state}'")


def picture(name: str) -> Path | None:
    return Path(PICTURES, f"{name}.png") if PICTURES else None


COLUMNS = pa.schema([("id", pa.int64()), ("email", pa.string())])


class Night:
    """A daemon's feeds: many that are well, and three that fail, each in a way of its own. Those
    that are ``alike`` follow one table."""

    def __init__(self, folder: Path, *, well: int = 2, alike: int = 0) -> None:
        self.folder = folder
        self.tables: dict[str, TableBuilder] = {}
        self.config = folder / "tailer.toml"
        names = [f"orders{i}" for i in range(well)]
        for name in [*names, "asking", "away"]:
            table = TableBuilder(folder / name, COLUMNS, cdf=True)
            table.create()
            table.insert([{"id": 1, "email": "eve@example.org"}])
            self.tables[name] = table
        feeds = "".join(self._feed(name, "") for name in [*names, "gone"])
        feeds += self._feed("asking", 'on_schema_change = "pause"\n')
        feeds += "".join(self._feed(f"region{i:03}", "", "orders0") for i in range(alike))
        feeds += (
            '[feeds.away]\ntable = "away"\nfrom = "earliest"\n'
            '[feeds.away.sink]\ntype = "http"\nurl = "http://127.0.0.1:1/"\n'
        )
        self.text = feeds

    def _feed(self, name: str, more: str, table: str = "") -> str:
        return (
            f'[feeds.{name}]\ntable = "{table or name}"\nfrom = "earliest"\n{more}'
            f'mask = {{ email = "redact" }}\n'
            f'[feeds.{name}.sink]\ntype = "jsonl"\npath = "{name}.jsonl"\n'
        )

    @asynccontextmanager
    async def console(self, token: str = TOKEN) -> AsyncIterator[Page]:
        """The page of a daemon with these feeds."""
        require("Chromium", browser_program() is not None)
        port = free_port()
        daemon = f'[daemon]\nhttp = "127.0.0.1:{port}"\ntoken = "{token}"\n'
        self.config.write_text(daemon + self.text)
        with started("run", self.config) as program:
            await anyio.to_thread.run_sync(program.wait_for, (self.folder / "asking.jsonl").exists)
            asking, wider = self.tables["asking"], COLUMNS.append(pa.field("note", pa.string()))
            asking.commit(asking.metadata(schemaString=delta_schema(wider)))
            async with open_page(f"http://127.0.0.1:{port}/") as page:
                if token:
                    await sign_in(page, token)
                    page.complaints.clear()  # that the page had no token yet
                yield page


async def sign_in(page: Page, token: str) -> None:
    await page.until("!document.querySelector('#sign-in').hidden")
    await page.value("document.querySelector('#sign-in').click()")
    typed = f"document.querySelector('#token input').value = {json.dumps(token)}"
    await page.value(typed)
    await page.value("document.querySelector('#token button.primary').click()")
    await page.until("document.querySelector('#sign-in').hidden")


async def test_without_a_token_it_shows_every_feed_and_no_row_of_any(tmp_path: Path) -> None:
    night = Night(tmp_path)
    async with night.console("") as page:
        await page.until(is_state("orders0", "following"))
        await page.until(is_state("gone", "failed"))
        offset = "?.querySelector('[data-fact=offset]').textContent"
        assert await page.value(row("orders0", offset)) == "v2"
        # Live: a commit is seen without a reload.
        more = [{"id": 2, "email": "x"}]
        await anyio.to_thread.run_sync(night.tables["orders0"].insert, more)
        await page.until(row("orders0", f"{offset} == 'v3'"))
        # Without a token there is no control, and no row is kept.
        assert await page.value("document.querySelectorAll('main button').length") == 0
        answer = await page.value("fetch('api/v1/recent/orders0').then(a => a.json())")
        assert answer["rows"] == []
        assert page.complaints == []


async def test_what_is_wrong_comes_first_with_what_to_do_and_the_order_that_mends_it(
    tmp_path: Path,
) -> None:
    night = Night(tmp_path)
    async with night.console() as page:
        await page.until(problem("gone", "?.querySelector('.state').textContent == 'failed'"))
        await page.until(problem("asking", "?.querySelector('.state').textContent == 'blocked'"))
        await page.until(problem("away", "?.querySelector('.state').textContent == 'retrying'"))
        order = "[...document.querySelectorAll('#feeds b')].slice(0, 3).map(b => b.textContent)"
        assert await page.value(order) == ["gone", "asking", "away"]
        error = await page.value(problem("gone", ".querySelector('.error').textContent"))
        assert "no Delta table there" in error
        # A server that is away needs no order: the feed goes on by itself.
        assert await page.value(problem("away", ".querySelectorAll('button').length")) == 0
        accept = problem("asking", ".querySelector('button.primary')")
        assert await page.value(f"{accept}.textContent") == "Accept schema and continue"
        await page.value(f"{accept}.click()")
        await page.until("document.querySelector('#ask').open")
        await page.value("document.querySelector('#ask button.primary').click()")
        await page.until(is_state("asking", "following"))
        await page.until(f"!{problem('asking', '')}")
        assert page.complaints == []


@pytest.mark.slow
async def test_a_feed_has_its_last_hour_its_masked_rows_and_the_orders_given(
    tmp_path: Path,
) -> None:
    night = Night(tmp_path)
    async with night.console() as page:
        await page.until(is_state("orders0", "following"))
        await page.value(row("orders0", ".click()"))
        await page.until("!document.querySelector('#detail').hidden")
        await page.until("document.querySelector('#rows').textContent.includes('insert')")
        rows = await page.value("document.querySelector('#rows').textContent")
        assert "eve" not in rows, "what the sink does not get, the page does not show"
        await page.until("document.querySelector('#strip rect.following') !== null")
        await page.until("document.querySelector('#states').textContent.includes('following')")
        # Asked again before the page has heard that the first question was put away.
        await page.value(
            f"{PAUSE}.click(); document.querySelector('#ask').close(); {PAUSE}.click()"
        )
        await page.until("document.querySelector('#ask').open")
        await page.value("document.querySelector('#ask button.primary').click()")
        await page.until("document.querySelector('#detail .state').textContent == 'paused'")
        await page.until("document.querySelector('#orders').textContent.includes('pause')")
        more = [{"id": 2, "email": "x"}]
        await anyio.to_thread.run_sync(night.tables["orders0"].insert, more)
        await page.until("document.querySelector('#unread').textContent.includes('v2')")
        await page.value(button("#detail", "Resume") + ".click()")
        await page.until("document.querySelector('#detail .state').textContent == 'following'")
        assert page.complaints == []


async def test_parked_rows_are_listed_delivered_and_dropped_after_a_question(
    tmp_path: Path,
) -> None:
    night = Night(tmp_path)
    (tmp_path / "parks").mkdir()
    table = TableBuilder(tmp_path / "parks" / "t", COLUMNS, cdf=True)
    table.create()
    table.insert([{"id": n, "email": "<b>x</b>" if n > 1 else "1"} for n in range(4)])
    night.text += (
        '[feeds.parks]\ntable = "parks/t"\nfrom = "earliest"\non_reject = "park"\n'
        'select = ["id", "email::int as n"]\n'
        '[feeds.parks.sink]\ntype = "jsonl"\npath = "parks.jsonl"\n'
    )
    parked = "document.querySelector('#parked')"
    count = f"{parked}.querySelectorAll('td:first-child').length"
    async with night.console() as page:
        await page.until(is_state("parks", "following"))
        await page.value(row("parks", ".click()"))
        await page.until(f"{count} == 2")
        shown = await page.value(f"{parked}.textContent")
        assert "v1" in shown
        assert "Could not convert string '<b>x</b>'" in shown
        assert "part-" in shown, "the file"
        deliver, drop = (button("#detail", f"{what} parked rows") for what in ("Deliver", "Drop"))
        assert await page.value(f"!{deliver} && !{drop}"), "the feed runs"
        await page.value(button("#detail", "Stop") + ".click()")
        await page.value("document.querySelector('#ask button.primary').click()")
        await page.until(f"{is_shown('stopped')} && !!{deliver}")
        await page.value(f"{deliver}.click()")
        await page.value("document.querySelector('#ask button.primary').click()")
        said = "document.querySelector('#toast').textContent"
        await page.until(f"{said}.startsWith('Deliver parked rows: 0 rows delivered, 2 still')")
        assert await page.value(count) == 2
        first = await page.value(f"{parked}.querySelector('tr:nth-child(2)').lastChild.textContent")
        await page.value(f"{drop}.click()")
        await page.value("document.querySelector('#ask button[value=cancel]').click()")
        await page.until("!document.querySelector('#ask').open")
        assert await page.value(count) == 2, "it was thought better of"
        await page.value(f"{drop}.click()")
        await page.value(f"document.querySelector('#ask input').value = {json.dumps(first)}")
        await page.value("document.querySelector('#ask button.primary').click()")
        await page.until(f"{said} == 'Drop parked rows: 1 rows dropped'")
        await page.until(f"{count} == 1")
        await page.value(f"{drop}.click()")
        await page.value("document.querySelector('#ask button.primary').click()")
        await page.until("document.querySelector('#parking').hidden")
        await page.until(f"!{drop}")
        orders = "document.querySelector('#orders').textContent"
        await page.until(f"{orders}.includes('drop-parked') && {orders}.includes('1 rows dropped')")
        assert page.complaints == []


@pytest.mark.needs("axe-core")
@pytest.mark.slow
async def test_500_feeds_are_used_by_keyboard_alone(tmp_path: Path) -> None:
    night = Night(tmp_path, well=1, alike=496)
    async with night.console() as page:
        for feed, state in (("gone", "failed"), ("asking", "blocked"), ("away", "retrying")):
            await page.until(is_state(feed, state))
        # Every control is reached by Tab in the order of the page, and the focus is seen.
        await page.call("Page.reload")  # the token stays, and the focus is nowhere
        await page.until(count_feeds(500))
        reached: list[str] = []
        while "A row feed" not in reached and len(reached) < 20:
            await page.press("Tab")
            reached.append(await page.value(f"`${{{FOCUSED}.tagName}} ${{{FOCUSED}.className}}`"))
            assert await page.value(f"getComputedStyle({FOCUSED}).outlineStyle") != "none"
        link, order = "A ", "BUTTON primary"
        problems = [link, order, link, order, link]
        assert reached == [link, *problems, "INPUT ", "SELECT ", "A row feed"]
        assert await barriers(page) == []
        await page.press("j", "k", "j")
        await page.until(f"document.querySelectorAll('#feeds .feed')[1] === {FOCUSED}")
        # A search, the feed that it finds, an order that is thought better of, and one given.
        await page.press("/", *"REGION123", "Enter")
        await page.until(f"{FOCUSED}.querySelector('b')?.textContent == 'region123'")
        await page.press("Enter")
        await page.until(f"{FOCUSED} === document.querySelector('#detail h2')")
        await page.press("Tab", "Enter")
        await page.until(f"document.querySelector('#ask').open && !!{FOCUSED}.closest('#ask')")
        await page.press("Escape")
        await page.until(f"!document.querySelector('#ask').open && {PAUSE} === {FOCUSED}")
        await page.press("Enter", "Tab")
        await page.until(f"{FOCUSED} === document.querySelector('#ask .primary')")
        await page.press("Enter")
        await page.until(is_shown("paused"))
        await page.until(f"{button('#detail', 'Resume')} === {FOCUSED}")
        await page.press("Enter")
        await page.until(f"({is_shown('following')}) || ({is_shown('starting')})")
        # Escape goes back to where one was, then ends the search; "?" says so.
        await page.press("Escape")
        await page.until(f"{FOCUSED}.querySelector('b')?.textContent == 'region123'")
        await page.press("Escape")
        await page.until(count_feeds(500))
        await page.press("?")
        await page.until("document.querySelector('#help').open")
        await page.press("Escape")
        await page.until("!document.querySelector('#help').open")
        await page.value("document.querySelector('#filter').value = 'failed'")
        await page.value("document.querySelector('#filter').dispatchEvent(new Event('change'))")
        await page.until(count_feeds(1))
        assert page.complaints == []


@pytest.mark.needs("axe-core")
async def test_it_fits_every_window_in_light_and_dark(tmp_path: Path) -> None:
    night = Night(tmp_path, well=27 if PICTURES else 4)
    async with night.console() as page:
        for state, feed in (("failed", "gone"), ("blocked", "asking"), ("retrying", "away")):
            await page.until(is_state(feed, state))
        for what in ("overview", "detail"):
            if what == "detail":
                await page.value(row("asking", ".click()"))
                await page.until("!document.querySelector('#detail').hidden")
                await page.until("document.querySelector('#rows').textContent.includes('insert')")
            for width in (360, 1280):
                for dark in (False, True):
                    name = f"{what}-{width}-{'dark' if dark else 'light'}"
                    await page.look(width, dark=dark, picture=picture(name))
                    assert await page.value("document.documentElement.scrollWidth") <= width
                    ground = await page.value("getComputedStyle(document.body).backgroundColor")
                    ink = await page.value("getComputedStyle(document.body).color")
                    assert (brightness(ground) < brightness(ink)) is dark
                    assert await barriers(page) == []
        dialogs = [f"document.querySelector('#{name}').showModal()" for name in ("token", "help")]
        for ask in (f"{PAUSE}.click()", *dialogs):
            await page.value(ask)
            assert await barriers(page) == []
            await page.press("Escape")


def brightness(colour: str) -> int:
    return sum(int(part) for part in colour[4:-1].split(","))
