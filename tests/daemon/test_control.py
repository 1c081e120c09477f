"""The control API, reloading, patterns and lifecycle of a real daemon."""

from __future__ import annotations

import fcntl
import json
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.ordered import SCHEMA, TOKEN, Setting, wait_for_count, wait_for_state
from tests.support.programs import run_tailer


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_a_feed_is_paused_resumed_stopped_and_started(setting: Setting) -> None:
    table = setting.table("orders")
    setting.feed("orders")
    setting.feed("clock", table="orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == setting.ids("clock") == [0, 1, 2])
        for order, state, lease in (("pause", "paused", "held"), ("stop", "stopped", "none")):
            assert setting.order("orders", order) == (202, {"feed": "orders", "order": order})
            wait_for_state(program, setting, state)
            assert setting.status("orders")["lease"] == lease
            before = setting.ids("orders")
            table.insert([{"id": 10}])
            program.wait_for(lambda: len(setting.ids("clock")) > len(before))  # noqa: B023
            assert setting.ids("orders") == before
            assert setting.ask("GET", "/readyz")[0] == 200, "it rests because it is to"
            setting.order("orders", "resume" if order == "pause" else "start")
            wait_for_count(program, setting, len(before) + 1)
        # An event is in the file before it is counted.
        program.wait_for(lambda: setting.status("orders")["events"] == 5)
        status = setting.status("orders")
        assert (status["state"], status["lease"]) == ("following", "held")
        assert status["offset"]["version"] == 4
        assert program.stop() == 0


def test_control_needs_the_token(setting: Setting) -> None:
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        for token in (None, "", "wrong", TOKEN[:-1]):
            assert setting.ask("GET", "/api/v1/feeds", token=token)[0] == 401
            assert setting.ask("POST", "/api/v1/feeds/orders/stop", token=token)[0] == 401
        assert setting.ask("GET", "/api/v1/feeds")[0] == 200
        assert setting.order("nobody", "stop") == (404, {"error": "there is no feed 'nobody'"})
        assert setting.ask("GET", "/api/v1/feeds/nobody")[0] == 404
        assert setting.ask("POST", "/api/v1/feeds/orders/skip", "{")[0] == 400
        assert setting.ask("POST", "/api/v1/feeds/orders/skip", "[1]")[0] == 400
        assert setting.ask("POST", "/api/v1/feeds/orders/skip", b"\xff\xfe{")[0] == 400
        assert setting.ask("POST", "/api/v1/feeds/orders/skip", "[" * 60_000)[0] == 400
        assert setting.ask("POST", "/api/v1/feeds/orders/skip", " " * 70_000)[0] == 413
        assert setting.ask("GET", "/api/v1/feeds", token="\xff")[0] == 401
        for scheme in ("bearer", "BEARER", "bEaReR"):
            assert setting.ask("GET", "/api/v1/feeds", scheme=scheme)[0] == 200
        assert setting.ask("GET", "/api/v1/feeds", scheme="Basic")[0] == 401
        assert setting.order("orders", "skip", version=-1)[0] == 400
        # An event is in the file before its offset is saved.
        program.wait_for(lambda: setting.status("orders")["offset"]["version"] == 2)
        status, answer = setting.order("orders", "skip", version=1)
        assert status == 400
        assert "version 1 can't be skipped: the feed is at version 2" in answer["error"]
        assert setting.order("orders", "resnapshot", where="id +")[0] == 400
        status, answer = setting.order("orders", "resnapshot", where="nr = 1")
        assert status == 400
        assert "there is no column 'nr'" in answer["error"]
        assert TOKEN not in str(program)
        assert program.stop() == 0


def test_without_a_token_status_is_read_here_and_nothing_is_changed(setting: Setting) -> None:
    setting.daemon = ""
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        (feed,) = setting.ask("GET", "/api/v1/feeds", token=None)[1]["feeds"]
        assert feed["name"] == "orders"
        for host in ("localhost:1", "[::1]:1"):
            assert setting.ask("GET", "/api/v1/feeds", token=None, host=host)[0] == 200
        assert setting.ask("GET", "/api/v1/feeds", token=None, host="evil.example")[0] == 401
        status, answer = setting.ask("POST", "/api/v1/feeds/orders/stop", token=None)
        assert (status, answer["error"]) == (403, "control is off: no daemon.token is configured")
        assert program.stop() == 0


def test_the_token_may_lie_in_a_file(setting: Setting) -> None:
    (setting.folder / "secret").write_text(TOKEN + "\n")
    setting.daemon = 'token = "${file:secret}"\n'
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.status("orders")["state"] == "following")
        assert program.stop() == 0


def test_a_new_schema_waits_for_a_resume(setting: Setting) -> None:
    table = setting.table("orders")
    setting.feed("orders", 'on_schema_change = "pause"')
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        table.schema = pa.schema([*SCHEMA, ("country", pa.string())])
        table.commit(table.metadata(), table.add([{"id": 3, "country": "DE"}]))
        program.wait_for(lambda: setting.status("orders")["state"] == "blocked")
        assert "added country" in setting.status("orders")["last_error"]
        code, answer = setting.ask("GET", "/readyz")
        assert code == 503, "it waits for somebody"
        assert "added country" in answer["feeds"]["orders"]
        setting.order("orders", "pause")
        assert setting.status("orders")["state"] == "paused"
        assert setting.ask("GET", "/readyz")[0] == 200, "it rests by order"
        setting.order("orders", "start")
        program.wait_for(lambda: setting.status("orders")["state"] == "blocked")
        assert setting.ids("orders") == [0, 1, 2], "a start accepts nothing"
        setting.order("orders", "resume", by="anna, INC-12\x1b[2J")
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2, 3])
        assert program.stop() == 0
    said = [line for line in program.errors if "feed orders " in line]
    assert any("order resume by anna, INC-12\\x1b[2J at 127.0.0.1: done" in line for line in said)
    assert any("accepts the schema of version 2" in line for line in said)
    for order in ("pause", "start"):
        assert any(f"order {order} by 127.0.0.1: done" in line for line in said)


def test_an_order_that_is_none_is_answered_in_json(setting: Setting) -> None:
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        code, answer = setting.order("orders", "pauze")
        assert code == 405
        assert "no POST of 'pauze'; orders are pause, resume" in answer["error"]
        assert setting.ask("GET", "/api/v2/feeds")[1]["error"]
        assert program.stop() == 0


def test_an_order_that_is_refused_is_in_the_log_too(setting: Setting) -> None:
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        assert setting.order("orders", "skip", version=5000)[0] == 400
        assert program.stop() == 0
    assert any(
        'order skip {"version": 5000} by 127.0.0.1: refused' in line for line in program.errors
    )


def test_a_version_that_stops_a_feed_is_skipped(setting: Setting) -> None:
    table = setting.table("orders")
    other = setting.table("other")
    setting.feed("orders")
    setting.feed("other")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        add = table.add([{"id": 3}])
        (table.folder / add["add"]["path"]).unlink()
        table.commit(add)
        table.insert([{"id": 4}])
        program.wait_for(lambda: setting.status("orders")["state"] == "failed")
        assert "the data file is gone" in setting.status("orders")["last_error"]
        assert setting.ask("GET", "/readyz")[0] == 503
        assert setting.order("orders", "skip", version=2)[0] == 202
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2, 4])
        assert [n["_notice"] for n in setting.lines("orders") if "_notice" in n] == [
            "skipped_version"
        ]
        other.insert([{"id": 3}])
        program.wait_for(lambda: setting.ids("other") == [0, 1, 2, 3])
        assert program.stop() == 0


def test_a_table_is_read_again_while_changes_go_on(setting: Setting) -> None:
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        assert setting.order("orders", "resnapshot")[0] == 202
        program.wait_for(lambda: len(setting.ids("orders")) == 6)
        program.wait_for(lambda: setting.status("orders")["resnapshots"] == 0)
        table.insert([{"id": 3}])
        program.wait_for(lambda: setting.ids("orders")[6:] == [3])
        kinds = [n["_notice"] for n in setting.lines("orders") if "_notice" in n]
        assert kinds == ["snapshot_begin", "snapshot_end"]
        assert program.stop() == 0


@pytest.mark.parametrize("by_signal", [False, True])
def test_the_configuration_is_read_again(setting: Setting, *, by_signal: bool) -> None:
    for name in ("same", "gone", "changed", "new"):
        setting.table(name)
    for name in ("same", "gone", "changed"):
        setting.feed(name)
    with setting.program() as program:
        program.wait_for(lambda: all(setting.ids(n) for n in ("same", "gone", "changed")))
        del setting.feeds["gone"]
        setting.feed("changed", "batch_rows_max = 1")
        setting.feed("new")
        if by_signal:
            program.process.send_signal(signal.SIGHUP)
        else:
            status, said = setting.ask("POST", "/api/v1/reload")
            assert (status, said) == (
                200,
                {"started": ["new"], "stopped": ["gone"], "restarted": ["changed"]},
            )
        program.wait_for(lambda: setting.ids("new") == [0, 1, 2])
        names = {feed["name"] for feed in setting.ask("GET", "/api/v1/feeds")[1]["feeds"]}
        assert names == {"same", "changed", "new"}
        assert setting.ids("changed") == [0, 1, 2], "it went on from its offset"
        assert sum("feed same following" in e for e in program.errors) == 1, "left alone"

        setting.feed("new", "batch_rows_max = 0")
        if by_signal:
            program.process.send_signal(signal.SIGHUP)
            program.wait_until(lambda: any("batch_rows_max is 0" in e for e in program.errors))
        else:
            status, said = setting.ask("POST", "/api/v1/reload")
            assert status == 400
            assert "feeds.new.batch_rows_max is 0" in said["error"]
        assert setting.status("new")["state"] == "following", "a mistake changes nothing"
        assert program.stop() == 0


BUGGY = """
from tailer.sink import Sink

class Buggy(Sink):
    @classmethod
    def from_options(cls, options, folder):
        raise RuntimeError("no such thing")
"""


@pytest.mark.parametrize("pattern", [False, True])
def test_a_reload_that_fails_in_whatever_way_changes_nothing(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, pattern: bool
) -> None:
    """A sink of somebody else's has a bug; one of ours has a URL that is none."""
    plugin = tmp_path / "plugin"
    (plugin / "buggy-1.dist-info").mkdir(parents=True)
    (plugin / "buggy_sink.py").write_text(BUGGY)
    (plugin / "buggy-1.dist-info" / "METADATA").write_text("Name: buggy\nVersion: 1\n")
    (plugin / "buggy-1.dist-info" / "entry_points.txt").write_text(
        "[tailer.sinks]\nbuggy = buggy_sink:Buggy\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(plugin))
    table = setting.table("orders")
    setting.table("lake/one")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        more = 'table = "lake/*/"' if pattern else 'table = "lake/one"'
        for kind, option, said in (
            ("buggy", "", "unexpected error RuntimeError: no such thing; this is a bug"),
            (
                "rabbitmq",
                'url = "amqp://me:12345/pass-word@h/"',
                "'url' of sink 'rabbitmq' must be",
            ),
        ):
            sink = f'[feeds.more.sink]\ntype = "{kind}"\n{option}\n'
            setting.feeds["more"] = f'[feeds.more]\n{more}\nfrom = "earliest"\n{sink}'
            setting.write()
            status, answer = setting.ask("POST", "/api/v1/reload")
            if not pattern:
                assert status in (400, 409)
                assert said in answer["error"]
            program.process.send_signal(signal.SIGHUP)
            program.wait_until(lambda said=said: any(said in e for e in program.errors))
        assert any("no such thing" in line for line in program.errors)
        table.insert([{"id": 3}])
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2, 3])
        assert [feed["name"] for feed in setting.ask("GET", "/api/v1/feeds")[1]["feeds"]] == [
            "orders"
        ]
        assert program.stop() == 0
        assert "pass-word" not in str(program.errors)


def test_a_reload_leaves_the_state_where_it_is(setting: Setting) -> None:
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        setting.state = "elsewhere"
        setting.feed("orders", "batch_rows_max = 1")
        assert setting.ask("POST", "/api/v1/reload")[1]["restarted"] == ["orders"]
        table.insert([{"id": 3}])
        program.wait_for(lambda: 3 in setting.ids("orders"))
        assert setting.ids("orders") == [0, 1, 2, 3], "it went on from its offset"
        assert any("daemon.state has changed" in e for e in program.errors)
        assert program.stop() == 0
    assert not (setting.folder / "elsewhere").exists()


def test_a_paused_feed_knows_after_a_restart_what_it_may_lose(setting: Setting) -> None:
    """Its offset is looked up: it says how far it is behind, and when VACUUM may pass it."""
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        wait_for_count(program, setting, 3)
        assert setting.order("orders", "pause")[0] == 202
        program.wait_for(lambda: setting.version("orders") == 2)
        assert program.stop() == 0
    add = table.add([{"id": 3}])
    table.commit(add)
    table.commit(table.remove(add))
    with setting.program() as program:
        program.wait_for(lambda: setting.status("orders")["lag_versions"] == 2)
        program.wait_for(lambda: setting.status("orders")["seconds_to_loss"] is not None)
        status = setting.status("orders")
        assert (status["state"], status["offset"]["version"]) == ("paused", 2)
        assert status["lag_bytes"] > 0
        assert status["lag_rows"] is None, "its remove has no statistics"
        assert b'tailer_time_to_data_loss_seconds{cause="data",feed="orders"} +Inf' not in (
            setting.metrics()
        )
        assert program.stop() == 0
        assert "behind by 2 versions, " in program.errors[-1]
    assert setting.ids("orders") == [0, 1, 2]


def test_a_feed_whose_sink_is_away_from_the_start_is_measured_too(setting: Setting) -> None:
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.version("orders") == 2)
        assert program.stop() == 0
    table.insert([{"id": 3}])
    with (setting.folder / "orders.jsonl").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with setting.program() as program:
            wait_for_state(program, setting, "retrying")
            program.wait_for(lambda: setting.status("orders")["lag_versions"] == 1)
            assert setting.ask("GET", "/readyz", token=None)[0] == 503
            assert program.stop() == 0


def test_a_table_that_comes_later_is_followed_by_order(setting: Setting) -> None:
    setting.table("others")
    setting.feed("orders")
    setting.feed("others")
    with setting.program() as program:
        wait_for_state(program, setting, "failed")
        assert "no Delta table there" in setting.status("orders")["last_error"]
        setting.table("orders")
        assert setting.order("orders", "start")[0] == 202
        wait_for_count(program, setting, 3)
        assert program.stop() == 0


def test_log_lines_may_be_json(setting: Setting) -> None:
    setting.daemon += 'log_format = "json"\n'
    setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        assert program.stop() == 0
    # Python's own development mode says things too, of its slow steps.
    lines = [json.loads(line) for line in program.errors if line.startswith("{")]
    (line,) = (line for line in lines if line.get("event") == "following")
    assert (line["feed"], line["level"]) == ("orders", "info")
    assert {"time", "message"} <= line.keys()


CHECKS = {
    'select = ["idd"]': "feeds.orders.select names no column 'idd' (did you mean 'id'?); it has",
    'key = ["nr"]': "feeds.orders.key names 'nr', and the table's columns are: id",
    'mask = {mail = "drop"}': "feeds.orders.mask names no column 'mail'; it has id",
    "where = 'nr = 1'": "there is no column 'nr', which 'nr = 1' needs",
}


@pytest.mark.parametrize("line", CHECKS)
def test_check_finds_names_that_the_table_does_not_have(setting: Setting, line: str) -> None:
    setting.table("orders")
    setting.feed("orders", line)
    done = run_tailer("check", setting.config)
    assert done.returncode == 2
    assert CHECKS[line] in done.stderr


def test_check_says_where_a_feed_would_start(setting: Setting) -> None:
    setting.table("orders")
    setting.feed("orders")
    done = run_tailer("check", setting.config)
    assert "from version 0, index 0 (earliest)" in done.stdout
    assert run_tailer(
        "offsets", "set", setting.config, "orders", "--from", "2"
    ).returncode == 0  # fmt: skip
    done = run_tailer("check", setting.config)
    assert "from version 2, index 0 (saved" in done.stdout


def test_a_feed_goes_back_to_a_version_when_it_is_stopped(setting: Setting) -> None:
    setting.table("orders").insert([{"id": 3}])
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2, 3])
        back = json.dumps({"to": 1, "by": "anna"})
        status, answer = setting.ask("POST", "/api/v1/feeds/orders/rewind", back)
        assert (status, "stop it first" in answer["error"]) == (400, True)
        setting.order("orders", "stop")
        wait_for_state(program, setting, "stopped")
        for wrong in ("{}", '{"to": true}', '{"to": "never"}', '{"to": 99}'):
            assert setting.ask("POST", "/api/v1/feeds/orders/rewind", wrong)[0] in (400, 409)
        (lock,) = setting.folder.rglob("orders.offset.lock")
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            status, answer = setting.ask("POST", "/api/v1/feeds/orders/rewind", back)
            assert status == 409, answer
            assert "only one may use it" in answer["error"]
        assert setting.ask("POST", "/api/v1/feeds/orders/rewind", back)[0] == 202
        assert setting.status("orders")["offset"]["version"] == 2
        program.wait_for(lambda: "rewind" in str(program) and "anna" in str(program))
        assert setting.order("orders", "start")[0] == 202
        wait_for_count(program, setting, 5)
        assert setting.ids("orders") == [0, 1, 2, 3, 3]
        assert program.stop() == 0


def test_what_was_ordered_again_is_stopped(setting: Setting) -> None:
    table = setting.table("orders")
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        status, answer = setting.order("orders", "stop-resnapshot")
        assert (status, "is in no resnapshot" in answer["error"]) == (400, True)
        setting.order("orders", "pause")
        wait_for_state(program, setting, "paused")
        for where in ("id = 1", "id = 2"):
            assert setting.order("orders", "resnapshot", where=where)[0] == 202
        assert [one["where"] for one in setting.status("orders")["orders"]["resnapshots"]] == [
            "id = 1", "id = 2",
        ]  # fmt: skip
        assert setting.order("orders", "stop-resnapshot")[0] == 202
        assert setting.status("orders")["resnapshots"] == 0
        setting.order("orders", "resume")
        table.insert([{"id": 3}])
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2, 3])
        assert program.stop() == 0
