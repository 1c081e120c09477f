"""Patterns whose storage stands still as the daemon starts, and what is known of them then."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry

from tailer.config.feeds import Config, load_config
from tailer.daemon import supervisor as supervising
from tailer.daemon.metrics import MetricFamilies
from tailer.daemon.supervisor import Supervisor
from tests.support.ordered import Setting
from tests.support.waiting import eventually_async

#: The test has failed if it has waited for so long.
DEADLINE_S = 60.0


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


@pytest.fixture
def silent(setting: Setting) -> Iterator[None]:
    """A feed ``orders``, and a pattern ``lake`` on a server that takes requests and never
    answers."""
    setting.table("orders")
    setting.feed("orders")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        setting.feed(
            "lake",
            f'store = {{endpoint_url = "{address}", access_key_id = "a", secret_access_key = "b"}}',
            table="s3://lake/*/",
            output="{table}.jsonl",
        )
        yield


def supervisor_of(setting: Setting) -> Supervisor:
    async def load() -> Config:
        return load_config(setting.config)

    families = MetricFamilies(CollectorRegistry())
    return Supervisor(
        load_config(setting.config), load, families, None, logging.getLogger("tailer")
    )


@pytest.mark.usefixtures("silent")
def test_a_pattern_is_not_ready_before_its_tables_were_looked_for(setting: Setting) -> None:
    """The feeds that are there are shown, and the daemon is not ready."""
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        waiting = {"status": "waiting", "feeds": {"lake": "its tables are looked for"}}
        assert setting.ask("GET", "/readyz") == (503, waiting)
        (shown,) = setting.ask("GET", "/api/v1/feeds")[1]["feeds"]
        assert shown["name"] == "orders"
        assert setting.ask("GET", "/api/v1/feeds/lake/x")[0] == 404
        assert program.stop() == 0


@pytest.mark.usefixtures("silent")
def test_feeds_are_watched_while_a_store_is_silent(setting: Setting) -> None:
    """Their states are remembered."""
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])

        def remembered() -> bool:
            assert setting.ask("GET", "/readyz")[1]["feeds"] == {
                "lake": "its tables are looked for"
            }
            return bool(setting.ask("GET", "/api/v1/recent/orders")[1]["states"])

        program.wait_for(remembered)
        assert program.stop() == 0


@pytest.mark.usefixtures("silent")
def test_a_silent_store_keeps_no_other_pattern_waiting(setting: Setting) -> None:
    setting.table("pond/one")
    setting.feed("pond", table="pond/*/", output="{table}.jsonl")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("one") == [0, 1, 2])
        ready = setting.ask("GET", "/readyz")[1]
        assert ready["feeds"] == {"lake": "its tables are looked for"}
        assert program.stop() == 0


@pytest.mark.usefixtures("silent")
def test_a_pattern_that_becomes_one_table_is_ready_with_it(setting: Setting) -> None:
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        assert setting.ask("GET", "/readyz")[0] == 503
        setting.table("one")
        setting.feed("lake", table="one", output="one.jsonl")
        assert setting.ask("POST", "/api/v1/reload")[0] == 200
        program.wait_for(lambda: setting.ids("one") == [0, 1, 2])
        program.wait_for(lambda: setting.ask("GET", "/readyz")[0] == 200)
        assert program.stop() == 0


@pytest.mark.anyio
@pytest.mark.usefixtures("silent")
async def test_nobody_waits_for_a_silent_store_after_the_first_seconds(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = supervisor_of(setting)
    monkeypatch.setattr(supervising, "_FIRST_ANSWER_S", 0.01)
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.run)
            await eventually_async(supervisor.list_statuses)
            await supervisor.wait_for_discovery()
            monkeypatch.setattr(supervising, "_FIRST_ANSWER_S", 10 * DEADLINE_S)
            await supervisor.wait_for_discovery()
            assert [status.name for status in supervisor.list_statuses()] == ["orders"]
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_tables_found_late_of_a_pattern_that_is_gone_are_not_followed(
    setting: Setting,
) -> None:
    """The configuration was read again while the storage was still being searched."""
    (setting.folder / "lake").mkdir()
    setting.feed("lake", table="lake/*/", output="{table}.jsonl")
    supervisor = supervisor_of(setting)
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.run)
            await supervisor.wait_for_discovery()
            pattern = supervisor.config.feeds["lake"]
            del setting.feeds["lake"]
            setting.table("orders")
            setting.feed("orders")
            await supervisor.reload_config()
            setting.table("lake/one")
            await supervisor._discover_pattern(pattern)  # as the search that began before
            assert [status.name for status in supervisor.list_statuses()] == ["orders"]
            tasks.cancel_scope.cancel()
