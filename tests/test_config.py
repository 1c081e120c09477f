"""``CONFIG.toml``: what it means, and that every mistake is one line that says where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.cli import main
from tailer.config import Config, load_config
from tailer.errors import ConfigError
from tailer.history import parse_timestamp

SINK = '[feeds.orders.sink]\ntype = "jsonl"\npath = "orders.jsonl"\n'
SMALLEST = '[feeds.orders]\ntable = "orders"\n' + SINK


def load(folder: Path, text: str, **environment: str) -> Config:
    path = folder / "tailer.toml"
    path.write_text(text)
    return load_config(path, environment)


def test_the_smallest_file_has_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST)
    assert config.http == ("127.0.0.1", 9464)
    assert config.state == tmp_path / "state"
    feed = config.feeds["orders"]
    assert (feed.table, feed.start, feed.sink_type) == ("orders", "latest", "jsonl")
    assert feed.sink_options == {"path": "orders.jsonl"}
    assert feed.options.change_source == "auto"
    assert feed.options.decode.batch_rows_max == 65_536


def test_every_key_reaches_its_place(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [daemon]
        http = "[::1]:0"
        state = "/var/lib/tailer"
        [feeds."orders.eu"]
        table = "/data/orders"
        from = 12
        change_source = "cdf"
        batch_rows_max = 1
        batch_bytes_max = 2
        writer_timezone = "Europe/Berlin"
        torn_commit_max_s = 0.5
        poll_min_s = 1
        poll_max_s = 2.5
        retry_min_s = 3
        retry_max_s = 4
        [feeds."orders.eu".sink]
        type = "jsonl"
        path = "-"
        ids = false
        """,
    )
    assert config.http == ("::1", 0)
    assert config.state == Path("/var/lib/tailer")
    feed = config.feeds["orders.eu"]
    assert (feed.start, feed.torn_commit_max_s) == ("12", 0.5)
    options = feed.options
    assert options.change_source == "cdf"
    assert (options.decode.batch_rows_max, options.decode.batch_bytes_max) == (1, 2)
    assert options.decode.writer_timezone == "Europe/Berlin"
    assert (options.follow.poll_min_s, options.follow.poll_max_s) == (1.0, 2.5)
    assert (options.retry.pause_min_s, options.retry.pause_max_s) == (3.0, 4.0)
    assert feed.sink_options == {"path": "-", "ids": False}


def test_http_can_be_off(tmp_path: Path) -> None:
    assert load(tmp_path, '[daemon]\nhttp = ""\n' + SMALLEST).http is None


def test_variables_come_from_the_environment(tmp_path: Path) -> None:
    text = SMALLEST.replace('"orders"', '"/data/${STAGE}/${NAME}"')
    config = load(tmp_path, text, STAGE="prod", NAME="orders")
    assert config.feeds["orders"].table == "/data/prod/orders"


def feed_with(line: str) -> str:
    return f'[feeds.orders]\ntable = "orders"\n{line}\n{SINK}'


MISTAKES = {
    "no feeds": ("[daemon]\n", "feeds is missing"),
    "empty feeds": ("[feeds]\n", "feeds is empty"),
    "unknown table": (SMALLEST + "[sinks]\n", "sinks is not known; known are daemon, feeds, store"),
    "unknown daemon key": (
        "[daemon]\nport = 1\n" + SMALLEST,
        "daemon.port is not known; known are http, log_format,",
    ),
    "unknown feed key": (feed_with("tavle = 1"), "feeds.orders.tavle is not known; known are"),
    "no table": ("[feeds.orders]\n" + SINK, "feeds.orders.table is missing"),
    "no sink": ('[feeds.orders]\ntable = "orders"\n', "feeds.orders.sink must be a table"),
    "no sink type": (
        '[feeds.orders]\ntable = "orders"\n[feeds.orders.sink]\n',
        "feeds.orders.sink.type is missing",
    ),
    "table is a number": ("[feeds.orders]\ntable = 1\n" + SINK, "feeds.orders.table is 1, and"),
    "feed is no table": ("[feeds]\norders = 1\n", "feeds.orders must be a table"),
    "daemon is no table": ("daemon = 1\n" + SMALLEST, "daemon is 1, and must be a"),
    "unknown source": (
        feed_with('change_source = "magic"'),
        "feeds.orders.change_source is 'magic', and must be one of auto, cdf, derived",
    ),
    "rows below one": (
        feed_with("batch_rows_max = 0"),
        "batch_rows_max is 0, and must be a whole number, greater than 0",
    ),
    "rows as text": (
        feed_with('batch_rows_max = "9"'),
        "batch_rows_max is '9', and must be a whole number",
    ),
    "rows as a flag": (feed_with("batch_rows_max = true"), "batch_rows_max is True, and must be"),
    "negative seconds": (
        feed_with("poll_max_s = -1"),
        "poll_max_s is -1, and must be a number, greater than 0",
    ),
    "no such zone": (
        feed_with('writer_timezone = "Mars/Base"'),
        "feeds.orders.writer_timezone is 'Mars/Base', not a time zone's name",
    ),
    "address without port": (
        '[daemon]\nhttp = "localhost"\n' + SMALLEST,
        "daemon.http is 'localhost', and must be host:port",
    ),
    "port too high": ('[daemon]\nhttp = "::1:65536"\n' + SMALLEST, "must be host:port"),
    "variable that is not set": (
        SMALLEST.replace('"orders"', '"${NOWHERE}"'),
        "the environment variable NOWHERE is not set",
    ),
    "not TOML": ("[feeds", "is not TOML"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_file_and_key(
    tmp_path: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, sentence = MISTAKES[mistake]
    path = tmp_path / "tailer.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_config(path, {})
    for command in ("run", "check"):
        assert main([command, str(path)]) == 2
        printed = capsys.readouterr()
        (line,) = printed.err.splitlines()
        assert line.startswith(f"tailer: {path}")
        assert sentence in line
        assert printed.out == ""


SINK_MISTAKES = {
    "unknown type": ('type = "carrier-pigeon"', "no sink of type 'carrier-pigeon'; installed are"),
    "no path": ('type = "jsonl"', "needs the option 'path'"),
    "unknown option": ('type = "jsonl"\npath = "x"\npaht = 1', "has no option 'paht'; allowed are"),
    "wrong kind": ('type = "jsonl"\npath = 7', "option 'path' of sink 'jsonl' is 7, not a str"),
    "no flag": ('type = "jsonl"\npath = "x"\nids = 1', "option 'ids' of sink 'jsonl' is 1, not a"),
}


@pytest.mark.parametrize("mistake", SINK_MISTAKES)
def test_a_mistake_in_a_sink_is_one_line_too(
    tmp_path: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, sentence = SINK_MISTAKES[mistake]
    path = tmp_path / "tailer.toml"
    path.write_text(
        f'[daemon]\nhttp = ""\n[feeds.orders]\ntable = "x"\n[feeds.orders.sink]\n{text}\n'
    )
    assert main(["run", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tailer: {path}: feeds.orders.sink: ")
    assert sentence in line


def test_a_start_may_be_a_time_of_toml(tmp_path: Path) -> None:
    text = feed_with("from = 2026-01-31T12:00:00+01:00")
    assert parse_timestamp(load(tmp_path, text).feeds["orders"].start) == 1_769_857_200_000


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tmp_path / "none.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tailer: {tmp_path / 'none.toml'} can't be read")


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_start_that_means_nothing_is_a_mistake(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tailer.toml"
    path.write_text('[daemon]\nhttp = ""\n' + feed_with('from = "yesterday"'))
    assert main([command, str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tailer: {path}: feeds.orders.from")
    assert "'yesterday'" in line
