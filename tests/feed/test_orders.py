"""Orders of the control API outlive the process that was given them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.s3.fixture import Bucket
from tests.support.ordered import Setting, wait_for_count, wait_for_state
from tests.support.programs import run_tailer


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def on_s3(setting: Setting, bucket: Bucket) -> None:
    """Keep the state there; an owner that was killed is seen to be dead, and not waited for."""
    options = "".join(f"{key} = {json.dumps(value)}\n" for key, value in bucket.options.items())
    setting.state = bucket.address("state")
    setting.daemon += f"[store.s3]\n{options}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", ["local", pytest.param("s3", marks=pytest.mark.needs("s3"))])
def test_orders_outlive_a_kill(
    setting: Setting, state: str, request: pytest.FixtureRequest
) -> None:
    if state == "s3":
        on_s3(setting, request.getfixturevalue("bucket"))
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        wait_for_count(program, setting, 3)
        assert setting.order("orders", "skip", version=3)[0] == 202
        assert setting.order("orders", "pause")[0] == 202
        assert setting.order("orders", "resnapshot", where=None)[0] == 202
        program.process.kill()
        program.wait()
    for number in (10, 11, 12):
        table.insert([{"id": number}])
    with setting.program() as program:
        program.wait_for(lambda: setting.status("orders")["state"] == "paused")
        found = setting.status("orders")
        assert found["orders"] == {
            "paused": True, "skips": [3], "resnapshots": [{"where": None}],
        }  # fmt: skip
        assert (found["lease"], found["resnapshots"]) == ("held", 1)
        assert b'tailer_feed_state{feed="orders",state="paused"} 1.0' in setting.metrics()
        program.wait_until(lambda: any("paused by an order" in e for e in program.errors))
        assert setting.ids("orders") == [0, 1, 2]
        shown = run_tailer("offsets", "show", setting.config, "orders")
        assert '"paused": true' in shown.stderr
        assert setting.order("orders", "resume")[0] == 202
        program.wait_for(lambda: setting.version("orders") == 5)
        program.wait_for(lambda: setting.status("orders")["orders"] == {})
        program.process.kill()
        program.wait()
    notices = Counter(n["_notice"] for n in setting.lines("orders") if "_notice" in n)
    assert notices == {"snapshot_begin": 1, "snapshot_end": 1, "skipped_version": 1}
    ids = setting.ids("orders")
    assert Counter(ids[3:])[10] >= 1
    table.insert([{"id": 13}])
    with setting.program() as program:
        program.wait_for(lambda: 13 in setting.ids("orders"))
        assert setting.ids("orders") == [*ids, 13], "nothing is done twice"
        assert program.stop() == 0


@pytest.mark.timeout(180)
def test_a_skip_can_be_taken_back(setting: Setting) -> None:
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        wait_for_count(program, setting, 3)
        for version in (2, 3):
            assert setting.order("orders", "skip", version=version)[0] == 202
        assert setting.status("orders")["orders"] == {"skips": [2, 3]}, "they wait for them"
        assert setting.order("orders", "unskip", version=2)[0] == 202
        status, answer = setting.order("orders", "unskip", version=2)
        assert status == 400
        assert answer["error"].endswith("has no skip; the versions that have one: 3")
        assert setting.order("orders", "unskip", version="2")[0] == 400
        assert program.stop() == 0
    for number in (3, 4, 5):
        table.insert([{"id": number}])
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2, 3, 5])
        program.wait_for(lambda: setting.status("orders")["orders"] == {})
        status, answer = setting.order("orders", "unskip", version=3)
        assert status == 400
        assert answer["error"].endswith("the versions that have one: none")
        assert program.stop() == 0


@pytest.mark.timeout(180)
def test_a_skip_takes_only_versions_that_can_come(setting: Setting) -> None:
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        wait_for_count(program, setting, 3)
        program.wait_for(lambda: setting.version("orders") == 2)
        for version, why in (
            (1, "the feed is at version 2"),
            (1_002, "the table's newest version is 1"),
            (10**30, "no version is greater than"),
        ):
            status, answer = setting.order("orders", "skip", version=version)
            assert status == 400
            assert f"version {version} can't be skipped: {why}" in answer["error"]
        assert setting.order("orders", "skip", version=1_001)[0] == 202
        assert setting.order("orders", "stop")[0] == 202
        program.wait_for(lambda: setting.status("orders")["state"] == "stopped")
        assert setting.order("orders", "skip", version=1)[0] == 400
        assert program.stop() == 0


def test_a_reset_keeps_a_pause_and_forgets_what_else_was_ordered(setting: Setting) -> None:
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        wait_for_count(program, setting, 3)
        setting.order("orders", "skip", version=7)
        setting.order("orders", "pause")
        assert program.stop() == 0
    assert run_tailer("offsets", "reset", setting.config, "orders").returncode == 0
    table.insert([{"id": 3}])
    with setting.program() as program:
        wait_for_state(program, setting, "paused")
        assert setting.status("orders")["orders"] == {"paused": True}
        setting.order("orders", "resume")
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2, 0, 1, 2, 3])
        assert program.stop() == 0


def test_an_order_that_cannot_be_kept_says_so(setting: Setting) -> None:
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        wait_for_count(program, setting, 3)
        wait_for_state(program, setting, "following")
        (setting.folder / "state" / "orders.offset.tmp").unlink(missing_ok=True)
        (setting.folder / "state" / "orders.offset.tmp").mkdir()
        status, answer = setting.order("orders", "pause")
        assert status == 503
        assert "not kept for a restart" in answer["error"]
        wait_for_state(program, setting, "paused")
        (setting.folder / "state" / "orders.offset.tmp").rmdir()
        assert setting.order("orders", "pause")[0] == 202
        assert program.stop() == 0
