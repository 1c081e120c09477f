"""Parked rows over the control API: listed, and delivered or dropped by order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ordered import Setting, wait_for_state


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_what_a_stopped_feed_has_parked_is_delivered_or_dropped(setting: Setting) -> None:
    setting.table("orders", 6)
    select = "select = [\"id\", \"if(id % 2 = 1, 'x', '1')::int as n\"]"
    setting.feed("orders", f'on_reject = "park"\n{select}')
    one = "/api/v1/feeds/orders/"
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 2, 4])
        program.wait_for(lambda: (setting.status("orders")["parked"] or {}).get("rows") == 3)
        held = setting.status("orders")["parked"]
        (file,) = setting.folder.rglob("orders.parked.jsonl")
        assert held == {"rows": 3, "bytes": file.stat().st_size, "bytes_max": 1024**3}
        assert f'tailer_parked_bytes{{feed="orders"}} {float(held["bytes"])}' in (
            setting.metrics().decode()
        )
        rows = setting.ask("GET", "/api/v1/parked/orders")[1]["rows"]
        assert [row["version"] for row in rows] == [1, 1, 1]
        assert all(row["file"].endswith(".parquet") and row["at"] for row in rows)
        assert all("Could not convert string 'x'" in row["reason"] for row in rows)
        assert setting.ask("GET", "/api/v1/parked/nobody")[0] == 404
        assert setting.ask("GET", "/api/v1/parked/orders", token=None)[0] == 401
        status, answer = setting.order("orders", "drop-parked")
        assert (status, "stop it first" in answer["error"]) == (400, True)
        setting.order("orders", "stop")
        wait_for_state(program, setting, "stopped")
        for wrong in ("[]", '"x"', "[1]", '["nowhere"]'):
            body = f'{{"ids": {wrong}}}'
            assert setting.ask("POST", f"{one}drop-parked", body)[0] == 400
            assert setting.ask("POST", f"{one}replay-parked", body)[0] == 400
        status, answer = setting.ask("POST", f"{one}replay-parked", {"by": "anna"})
        assert status == 202
        assert answer["outcome"].startswith("0 rows delivered, 3 still refused: ")
        assert setting.order("orders", "drop-parked", ids=[rows[0]["id"]])[1] == {
            "feed": "orders", "order": "drop-parked", "outcome": "1 rows dropped",
        }  # fmt: skip
        assert setting.status("orders")["parked"]["rows"] == 2
        program.wait_for(lambda: "replay-parked by anna" in str(program))
        setting.feed("orders", 'on_reject = "park"\nselect = ["id", "id::int as n"]')
        assert setting.ask("POST", "/api/v1/reload")[0] == 200
        wait_for_state(program, setting, "following")
        setting.order("orders", "stop")
        wait_for_state(program, setting, "stopped")
        status, answer = setting.order("orders", "replay-parked")
        assert (status, answer["outcome"]) == (202, "2 rows delivered")
        assert sorted(setting.ids("orders")) == [0, 2, 3, 4, 5]
        assert setting.status("orders")["parked"]["rows"] == 0
        assert setting.order("orders", "start")[0] == 202
        wait_for_state(program, setting, "following")
        assert program.stop() == 0


def test_a_feed_that_parks_nothing_in_a_file_says_so(setting: Setting) -> None:
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        assert setting.status("orders")["parked"] is None
        assert b"tailer_parked_bytes{" not in setting.metrics()
        status, answer = setting.ask("GET", "/api/v1/parked/orders")
        assert (status, "parks no rows" in answer["error"]) == (400, True)
        assert program.stop() == 0
