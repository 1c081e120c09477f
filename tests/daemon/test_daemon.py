"""The daemon: many feeds in one process, restarts, signals, metrics and health over HTTP."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.programs import Program, run_tailer, started, whole_lines

SCHEMA = pa.schema([("id", pa.int64())])
Capture = pytest.CaptureFixture[str]


class Setting:
    """A table ``orders`` with three rows in version 1, and a configuration that follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A link, so that another table can take its place from one moment to the next.
        (folder / "real").mkdir()
        (folder / "orders").symlink_to("real")
        self.table = TableBuilder(folder / "orders", SCHEMA, cdf=True)
        self.table.create()
        self.table.insert([{"id": 1}, {"id": 2}, {"id": 3}])
        self.output = folder / "orders.jsonl"
        self.config = folder / "tailer.toml"
        self.configure()

    def configure(self, more: str = "", http: str = "", **options: Any) -> None:
        options = {"table": "orders", "from": "earliest", **options}
        lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
        self.config.write_text(
            f'[daemon]\nhttp = "{http}"\n[feeds.orders]\n'
            + "\n".join(lines)
            + '\n[feeds.orders.sink]\ntype = "jsonl"\npath = "orders.jsonl"\n'
            + more
        )

    def program(self) -> Any:
        return started("run", self.config)

    @property
    def ids(self) -> list[int]:
        return [json.loads(line)["id"] for line in whole_lines(self.output)]

    def wait_for(self, program: Program, count: int) -> None:
        """Wait for so many events in the output, and for their offset."""
        program.wait_for(lambda: len(self.ids) >= count)

    def offset(self, feed: str = "orders") -> dict[str, Any]:
        text = (self.folder / "state" / f"{feed}.offset.json").read_text()
        return json.loads(text)["offset"]  # type: ignore[no-any-return]  # JSON


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


# Running and ending


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_ends_the_daemon_behind_a_saved_batch(
    setting: Setting, number: signal.Signals
) -> None:
    setting.configure(batch_rows_max=1)
    setting.table.insert([{"id": i} for i in range(4, 400)])
    with setting.program() as program:
        setting.wait_for(program, 5)
        assert program.stop(number) == 0
    delivered, saved = len(setting.ids), setting.offset()
    # The offset is behind the last line exactly: nothing is written again.
    before = {0: 0, 1: 0, 2: 3, 3: 399}[saved["version"]]
    assert before + saved["index"] == delivered
    with setting.program() as program:
        setting.wait_for(program, 399)
        assert program.stop() == 0
    assert setting.ids == list(range(1, 400))


def test_commits_reach_the_sink_as_they_come(setting: Setting) -> None:
    with setting.program() as program:
        setting.wait_for(program, 3)
        setting.table.insert([{"id": 4}])
        setting.wait_for(program, 4)
        setting.table.commit()
        setting.table.insert([{"id": 5}])
        setting.wait_for(program, 5)
        assert program.stop() == 0
    assert setting.offset()["version"] == 5


def test_a_torn_commit_that_is_finished_goes_on(setting: Setting) -> None:
    whole = json.dumps(setting.table.add([{"id": 4}])) + "\n"
    with setting.program() as program:
        setting.wait_for(program, 3)
        setting.table.commit_path(2).write_text(whole[:50])
        program.wait_a_moment()
        setting.table.commit_path(2).write_text(whole)
        setting.wait_for(program, 4)
        assert program.stop() == 0
    assert setting.ids == [1, 2, 3, 4]


def test_feeds_do_not_stop_each_other(setting: Setting) -> None:
    setting.configure(
        '[feeds.broken]\ntable = "nowhere"\nfrom = "earliest"\n'
        '[feeds.broken.sink]\ntype = "jsonl"\npath = "broken.jsonl"\n'
    )
    with setting.program() as program:
        setting.wait_for(program, 3)
        program.wait_until(lambda: any("feed broken stopped" in e for e in program.errors))
        setting.table.insert([{"id": 4}])
        setting.wait_for(program, 4)
        assert program.stop() == 1, "one of them did fail"
    assert any(e.startswith("tailer: feed broken: ") for e in program.errors)


def test_relative_paths_are_relative_to_the_file(setting: Setting, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with started("run", setting.config) as program:
        setting.wait_for(program, 3)
        program.stop()
    assert sorted(f.name for f in (tmp_path / "state").iterdir()) == [
        "orders.offset.json",
        "orders.offset.lock",
    ]


# What stops a feed: status 1, one sentence, nothing lost


def gap(setting: Setting) -> str:
    setting.table.commit(version=3)
    return r"version 2, 0+2\.json: the commit is missing, though version 3 exists"


def missing_file(setting: Setting) -> str:
    add = setting.table.add([{"id": 4}])
    (setting.table.folder / add["add"]["path"]).unlink()
    setting.table.commit(add)
    return rf"version 2, {add['add']['path']}: the data file is gone"


def corrupt_vector(setting: Setting) -> str:
    features = {
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "changeDataFeed"],
    }
    first = next(a for a in setting.table.actions() if "add" in a)
    actions = setting.table.delete_rows(first, [0])
    setting.table.commit(setting.table.protocol(3, 7, **features), *actions)
    (file,) = setting.table.folder.glob("deletion_vector_*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 255
    file.write_bytes(data)
    return rf"version 2, {file.name}: .*CRC-32"


def longer_table(setting: Setting) -> str:
    old = setting.table
    new = TableBuilder(setting.folder / "other", SCHEMA)
    new.create()
    for version in range(1, 7):
        new.insert([{"id": 100 + version}])
    link = setting.folder / "link"
    link.symlink_to("other")
    link.rename(old.folder)
    return rf"version 2: the table was replaced .* {old.table_id} and is {new.table_id}"


def shorter_table(setting: Setting) -> str:
    old = setting.table
    new = TableBuilder(setting.folder / "other", SCHEMA)
    new.create()
    link = setting.folder / "link"
    link.symlink_to("other")
    link.rename(old.folder)
    return rf"version 2: the table was replaced .* {old.table_id} and is {new.table_id}"


def older_copy(setting: Setting) -> str:
    setting.table.commit_path(1).unlink()
    return r"version 2: the table went back to version 0"


@pytest.mark.parametrize(
    "damage", [gap, missing_file, corrupt_vector, longer_table, shorter_table, older_copy]
)
def test_a_feed_that_can_t_go_on_says_why_and_keeps_its_offset(
    setting: Setting, damage: Callable[[Setting], str]
) -> None:
    setting.configure(poll_max_s=0.05)
    with setting.program() as program:
        setting.wait_for(program, 3)
        program.wait_a_moment()
        sentence = damage(setting)
        assert program.wait() == 1
    (line,) = [e for e in program.errors if e.startswith("tailer: ")]
    folder = re.escape(str(setting.table.folder))
    assert re.match(f"tailer: feed orders: {folder}, {sentence}", line), line
    assert setting.ids == [1, 2, 3]
    assert (setting.offset()["version"], setting.offset()["index"]) == (2, 0)


def run_in_process(setting: Setting, capsys: Capture) -> str:
    assert main(["run", str(setting.config)]) == 1
    (line,) = [e for e in capsys.readouterr().err.splitlines() if e.startswith("tailer: ")]
    return line


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
@pytest.mark.parametrize("replace", [longer_table, shorter_table, older_copy])
def test_a_replaced_table_is_noticed_at_the_next_start_too(
    setting: Setting, capsys: Capture, replace: Callable[[Setting], str], kind: str
) -> None:
    """By a check as well, and also where the sink keeps the offset."""
    setting.table.insert([{"id": 4}])
    if kind == "sqlite":
        text = setting.config.read_text()
        changed = text.replace('type = "jsonl"', 'type = "sqlite"\nmode = "log"')
        setting.config.write_text(changed.replace("orders.jsonl", "orders.sqlite"))
    with setting.program() as program:
        program.wait_for((setting.folder / "state" / "orders.offset.json").exists)
        program.wait_for(lambda: setting.offset()["version"] == 3)
        assert program.stop() == 0
    wanted = f"the offset is of table {setting.table.table_id}"
    if replace is older_copy:
        setting.table.commit_path(2).unlink()
        wanted = "version 2: the table went back to version 0"
    replace(setting)
    line = run_in_process(setting, capsys)
    assert wanted in line
    assert "reset the offset" in line
    assert main(["check", str(setting.config)]) == 1
    assert wanted in capsys.readouterr().out


def test_a_damaged_offset_file_stops_the_feed(setting: Setting, capsys: Capture) -> None:
    file = setting.folder / "state" / "orders.offset.json"
    file.parent.mkdir()
    file.write_text('{"version": 1}')
    line = run_in_process(setting, capsys)
    assert str(file) in line
    assert "damaged" in line
    assert setting.ids == []
    assert file.read_text() == '{"version": 1}', "it is left for its operator to see"


def test_a_second_process_stands_by_and_takes_over(setting: Setting) -> None:
    with setting.program() as first, setting.program() as second:
        first.wait_until(lambda: any("following" in e for e in first.errors + second.errors))
        owner, other = (first, second) if any("following" in e for e in first.errors) else (
            second, first,
        )  # fmt: skip
        other.wait_until(lambda: any("waiting as a standby" in e for e in other.errors))
        setting.wait_for(owner, 3)
        assert owner.stop() == 0
        other.wait_until(lambda: any("following" in e for e in other.errors))
        setting.table.insert([{"id": 4}])
        setting.wait_for(other, 4)
        assert other.stop() == 0
    assert setting.ids == [1, 2, 3, 4]


def test_a_start_beyond_the_end_stops_the_feed(setting: Setting, capsys: Capture) -> None:
    setting.configure(**{"from": "9"})
    assert "the start is version 9, and the newest is 1" in run_in_process(setting, capsys)


# Offsets by hand


def test_offsets_are_shown_set_and_reset(setting: Setting, capsys: Capture) -> None:
    def offsets(action: str, *more: str) -> str:
        assert main(["offsets", action, str(setting.config), "orders", *more]) == 0
        return capsys.readouterr().out.strip()

    assert offsets("show") == "none"
    offsets("set", "--from", "1", "--index", "2")
    shown = json.loads(offsets("show"))
    assert (shown["version"], shown["index"]) == (1, 2)
    assert shown["table_id"] == setting.table.table_id
    with setting.program() as program:
        setting.wait_for(program, 1)
        assert program.stop() == 0
    assert setting.ids == [3]
    offsets("reset")
    assert offsets("show") == "none"


def test_a_damaged_offset_can_be_set_anew(setting: Setting, capsys: Capture) -> None:
    file = setting.folder / "state" / "orders.offset.json"
    file.parent.mkdir()
    file.write_text("{")
    command = [str(setting.config), "orders"]
    assert main(["offsets", "show", *command]) == 1
    assert "or set it with `tailer offsets set`" in capsys.readouterr().err
    assert main(["offsets", "set", *command, "--from", "2"]) == 0
    assert setting.offset()["version"] == 2
    file.write_text("{")
    assert main(["offsets", "reset", *command]) == 0
    assert not file.exists()


def test_offsets_are_not_changed_under_a_running_daemon(setting: Setting, capsys: Capture) -> None:
    with setting.program() as program:
        setting.wait_for(program, 3)
        for action in (["reset"], ["set", "--from", "0"]):
            command = ["offsets", action[0], str(setting.config), "orders", *action[1:]]
            assert main(command) == 1
            assert "holds the offset of feed 'orders'" in capsys.readouterr().err
        assert program.stop() == 0


def test_offsets_of_an_unknown_feed_are_a_mistake(setting: Setting, capsys: Capture) -> None:
    assert main(["offsets", "show", str(setting.config), "none"]) == 2
    assert "no feed 'none'; it has orders" in capsys.readouterr().err
    assert main(["offsets", "set", str(setting.config), "orders"]) == 2
    assert "--from" in capsys.readouterr().err


# check


def test_check_says_where_each_feed_would_start(setting: Setting, capsys: Capture) -> None:
    assert main(["check", str(setting.config)]) == 0
    line = capsys.readouterr().out
    assert line.startswith("orders: ok, ")
    assert "from version 0, index 0 (earliest)" in line
    assert setting.ids == []
    with setting.program() as program:
        setting.wait_for(program, 3)
        assert program.stop() == 0
    assert main(["check", str(setting.config)]) == 0
    assert "from version 2, index 0 (saved offset)" in capsys.readouterr().out


def test_check_names_every_feed_that_would_fail(setting: Setting, capsys: Capture) -> None:
    setting.configure(
        '[feeds.broken]\ntable = "nowhere"\n'
        '[feeds.broken.sink]\ntype = "jsonl"\npath = "broken.jsonl"\n'
    )
    assert main(["check", str(setting.config)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("orders: ok, ")
    assert second.startswith("broken: ")
    assert "no Delta table there" in second


def test_the_offset_is_not_set_beyond_the_table(setting: Setting, capsys: Capture) -> None:
    arguments = ["offsets", "set", str(setting.config), "orders", "--from"]
    assert main([*arguments, "99"]) == 1
    assert "the start is version 99, and the newest is 1; start at latest to wait" in (
        capsys.readouterr().err
    )
    assert main([*arguments, "2"]) == 0


def test_check_says_that_a_pattern_finds_nothing(setting: Setting, capsys: Capture) -> None:
    lake = f'[feeds.lake]\ntable = "{setting.folder}/none/*"\n[feeds.lake.sink]\n'
    (setting.folder / "none").mkdir()
    setting.configure(f'{lake}type = "jsonl"\npath = "{{table}}.jsonl"\n')
    assert main(["check", str(setting.config)]) == 1
    assert "lake: no table matches" in capsys.readouterr().out
    setting.configure(f'{lake.replace("*", "**")}type = "jsonl"\npath = "x"\n')
    assert main(["check", str(setting.config)]) == 2
    assert "a * stands for one folder's name" in capsys.readouterr().err


def test_check_goes_on_after_a_mistake(setting: Setting, capsys: Capture) -> None:
    setting.configure(
        f'[feeds.wrong]\ntable = "{setting.folder / "orders"}"\nselect = ["nope"]\n'
        '[feeds.wrong.sink]\ntype = "jsonl"\npath = "wrong.jsonl"\n'
        f'[feeds.copy]\ntable = "{setting.folder / "orders"}"\n'
        '[feeds.copy.sink]\ntype = "sqlite"\npath = "copy.db"\n'
    )
    assert main(["check", str(setting.config)]) == 2
    printed = capsys.readouterr()
    assert "feeds.wrong.select names no column 'nope'" in printed.err
    first, second = printed.out.splitlines()
    assert first.startswith("orders: ok, ")
    assert second.startswith("copy: the copy is kept by row ids, but row tracking is not enabled")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('spill_folder = "nowhere"', "not a folder that this user may write to; make it"),
        ('[feeds.orders.sink]\nformat = "debezium"\nkey = ["nope"]', ".sink.key names 'nope', and"),
    ],
)
def test_check_names_what_only_a_later_version_would_meet(
    setting: Setting, capsys: Capture, line: str, sentence: str
) -> None:
    text = setting.config.read_text()
    place, _, more = line.rpartition("]\n") if line.startswith("[") else ("[feeds.orders", "", line)
    setting.config.write_text(text.replace(f"{place}]\n", f"{place}]\n{more}\n"))
    assert main(["check", str(setting.config)]) == 2
    assert sentence in capsys.readouterr().err


# HTTP


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=150) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def test_metrics_and_health_are_served(setting: Setting) -> None:
    port = free_port()
    setting.configure(http=f"127.0.0.1:{port}")
    setting.table.commit(setting.table.cdc([{"id": 1, "_change_type": "delete"}]))
    with setting.program() as program:
        setting.wait_for(program, 4)
        # An event is in the file before it is counted.
        delivered = 'tailer_commit_to_delivery_seconds_count{feed="orders"} 3.0'
        program.wait_for(lambda: delivered in get(port, "/metrics")[1])
        assert get(port, "/healthz") == (200, '{"status": "ok"}')
        assert get(port, "/readyz") == (200, '{"status": "ready", "feeds": {}}')
        status, text = get(port, "/metrics")
        assert status == 200
        for line in (
            'tailer_events_total{change_type="insert",feed="orders",origin="files"} 3.0',
            'tailer_events_total{change_type="delete",feed="orders",origin="cdf"} 1.0',
            'tailer_versions_total{feed="orders"} 3.0',
            'tailer_offset_version{feed="orders"} 3.0',
            'tailer_lag_versions{feed="orders"} 0.0',
            'tailer_lag_seconds{feed="orders"} 0.0',
        ):
            assert line in text.splitlines()
        assert get(port, "/secret")[0] == 404
        assert program.stop() == 0


def test_a_feed_that_stopped_is_not_ready_and_the_process_is_healthy(setting: Setting) -> None:
    port = free_port()
    setting.configure(
        '[feeds.broken]\ntable = "nowhere"\nfrom = "earliest"\n'
        '[feeds.broken.sink]\ntype = "jsonl"\npath = "broken.jsonl"\n',
        http=f"127.0.0.1:{port}",
    )
    with setting.program() as program:
        setting.wait_for(program, 3)
        program.wait_until(lambda: any("feed broken stopped" in e for e in program.errors))
        status, text = get(port, "/readyz")
        assert status == 503
        assert "no Delta table there" in json.loads(text)["feeds"]["broken"]
        assert "orders" not in json.loads(text)["feeds"]
        assert get(port, "/healthz")[0] == 200
        assert 'tailer_errors_total{family="table",feed="broken"} 1.0' in get(port, "/metrics")[1]
        program.stop()


def test_the_log_names_the_address_also_where_the_port_is_chosen(setting: Setting) -> None:
    setting.configure(http="127.0.0.1:0")
    with setting.program() as program:
        program.wait_until(lambda: any("health checks at" in line for line in program.errors))
        (line,) = (line for line in program.errors if "health checks at" in line)
        assert get(int(line.rpartition(":")[2]), "/healthz")[0] == 200
        assert program.stop() == 0


def test_an_address_that_is_taken_is_none_of_the_configuration_s_mistakes(
    setting: Setting,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        setting.configure(http=f"127.0.0.1:{port}")
        done = run_tailer("run", setting.config)
    assert done.returncode == 1, "with 2 a service manager would not start it again"
    lines = [line for line in done.stderr.splitlines() if line.startswith("tailer: ")]
    assert lines == [line for line in done.stderr.splitlines() if "Traceback" not in line]
    assert f"daemon.http: 127.0.0.1:{port} can't be served" in lines[0]
