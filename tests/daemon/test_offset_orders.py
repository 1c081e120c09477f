"""The control API on where a feed is, with the offset in a file and in the database of a copy: it
is seen, the feed goes back, and a copy is read again."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.ordered import Setting, wait_for_state
from tests.support.programs import Program

REWIND = "/api/v1/feeds/orders/rewind"


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    setting = Setting(tmp_path)
    setting.table("orders").insert([{"id": 3}])
    return setting


def copied(setting: Setting) -> list[int]:
    with closing(sqlite3.connect(setting.folder / "copy.sqlite", isolation_level=None)) as lite:
        return [row[0] for row in lite.execute("SELECT id FROM orders ORDER BY id")]


def keep_copy(setting: Setting) -> None:
    """Have the feed keep a copy, whose database has the offset."""
    setting.feeds["orders"] = (
        '[feeds.orders]\ntable = "orders"\n[feeds.orders.sink]\ntype = "sqlite"\n'
        'path = "copy.sqlite"\nkey = ["id"]\n'
    )
    setting.write()


def wait_for_version(program: Program, setting: Setting, version: int) -> None:
    program.wait_for(lambda: setting.version("orders") == version)


@pytest.fixture(params=["file", "database"])
def kept(request: pytest.FixtureRequest, setting: Setting) -> str:
    """Where the offset of the feed is kept."""
    if request.param == "file":
        setting.feed("orders")
    else:
        keep_copy(setting)
    return str(request.param)


def test_a_feed_goes_back_and_no_wrong_order_moves_it(setting: Setting, kept: str) -> None:
    with setting.program() as program:
        wait_for_version(program, setting, 3)
        back = {"to": 1}
        status, answer = setting.ask("POST", REWIND, back)
        assert (status, "stop it first" in answer["error"]) == (400, True)
        setting.order("orders", "stop")
        wait_for_state(program, setting, "stopped")
        for token in (None, "", "wrong"):
            assert setting.ask("POST", REWIND, back, token=token)[0] == 401
            assert setting.ask("GET", "/api/v1/feeds/orders", token=token)[0] == 401
        assert setting.ask("GET", REWIND)[0] in (404, 405)
        assert setting.ask("PUT", REWIND, back)[0] == 405
        missing = setting.ask("POST", "/api/v1/feeds/nobody/rewind", back)
        assert missing == (404, {"error": "there is no feed 'nobody'"})
        for wrong in (None, "", "{", "[1]", "{}", '{"to": null}', '{"to": true}', '{"to": 1.5}',
                      '{"to": [1]}', '{"to": ""}', '{"to": "never"}', '{"to": -1}', '{"to": 3}',
                      '{"to": 99}', '{"to": 99999999999999999999}', b'{"to": "\xff"}'):  # fmt: skip
            status, answer = setting.ask("POST", REWIND, wrong)
            assert (status in (400, 409), bool(answer["error"])) == (True, True), (wrong, answer)
            assert setting.status("orders")["offset"]["version"] == 3, wrong
        assert setting.ask("POST", REWIND, back)[0] == 202
        assert setting.status("orders")["offset"]["version"] == 2
        if kept == "database":
            assert copied(setting) == [0, 1, 2]
        assert setting.order("orders", "start")[0] == 202
        wait_for_version(program, setting, 3)
        if kept == "file":
            assert setting.ids("orders") == [0, 1, 2, 3, 3]
        else:
            assert copied(setting) == [0, 1, 2, 3]
        assert program.stop() == 0


def test_without_a_token_no_feed_goes_back(setting: Setting) -> None:
    setting.daemon = ""
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ask("GET", "/api/v1/feeds/orders", token=None)[0] == 200)
        assert setting.ask("POST", REWIND, {"to": 1}, token=None)[0] == 403
        assert program.stop() == 0


def test_a_resnapshot_of_a_copy_removes_rows_beside_its_stream(setting: Setting) -> None:
    keep_copy(setting)
    with setting.program() as program:
        wait_for_version(program, setting, 3)
        with closing(sqlite3.connect(setting.folder / "copy.sqlite", isolation_level=None)) as lite:
            lite.execute("DELETE FROM orders WHERE id = 1")
            lite.execute("INSERT INTO orders VALUES (70), (80)")
        assert setting.order("orders", "resnapshot", where="id BETWEEN 50 AND 75")[0] == 202
        program.wait_for(lambda: setting.status("orders")["resnapshots"] == 0)
        assert copied(setting) == [0, 2, 3, 80]
        assert setting.order("orders", "resnapshot")[0] == 202
        program.wait_for(lambda: setting.status("orders")["resnapshots"] == 0)
        assert copied(setting) == [0, 1, 2, 3]
        assert json.dumps(setting.status("orders")["snapshot"]) == "null"
        assert program.stop() == 0


def test_a_stopped_feed_is_put_at_another_place(setting: Setting, kept: str) -> None:
    with setting.program() as program:
        wait_for_version(program, setting, 3)
        status, answer = setting.order("orders", "set-offset", **{"from": 2})
        assert (status, "stop it first" in answer["error"]) == (400, True)
        setting.order("orders", "stop")
        wait_for_state(program, setting, "stopped")
        wrongs: list[dict[str, Any]] = [{}, {"from": None}, {"from": True}, {"from": [1]},
            {"from": 99}, {"from": "never"}, {"from": 2, "index": -1}, {"from": 2, "index": "1"},
            {"from": 2, "index": True}, {"from": 2, "index": 2**64}]  # fmt: skip
        for wrong in wrongs:
            status, answer = setting.order("orders", "set-offset", **wrong)
            assert (status in (400, 409), bool(answer["error"])) == (True, True), (wrong, answer)
            assert setting.status("orders")["offset"]["version"] == 3, wrong
        assert setting.order("orders", "set-offset", **{"from": 2})[0] == 202
        assert setting.status("orders")["offset"]["version"] == 2
        if kept == "file":
            assert setting.order("orders", "start")[0] == 202
            wait_for_version(program, setting, 3)
            assert setting.ids("orders") == [0, 1, 2, 3, 3]
            setting.order("orders", "stop")
            wait_for_state(program, setting, "stopped")
            assert setting.order("orders", "reset-offset")[0] == 202
            assert setting.status("orders")["offset"] is None
            assert setting.order("orders", "start")[0] == 202
            wait_for_version(program, setting, 3)
            assert setting.ids("orders") == [0, 1, 2, 3, 3, 0, 1, 2, 3]
        assert program.stop() == 0
