"""``CONFIG.toml``: what it means, and that every mistake is one line that says where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.cli.main import main
from tailer.config.feeds import Config, load_config
from tailer.config.settings import DAEMON, FEED
from tailer.errors import ConfigError
from tailer.log.times import parse_timestamp
from tailer.settings import REQUIRED, Kind

SINK = '[feeds.orders.sink]\ntype = "jsonl"\npath = "orders.jsonl"\n'
SMALLEST = '[feeds.orders]\ntable = "orders"\n' + SINK


def load(folder: Path, text: str, **environment: str) -> Config:
    path = folder / "tailer.toml"
    path.write_text(text)
    return load_config(path, environment)


def test_options_of_s3_are_for_tables_on_s3_alone(tmp_path: Path) -> None:
    for table, options in (("S3://lake/t", {"region": "r"}), ("s3_export/t", {})):
        config = load(
            tmp_path, '[store.s3]\nregion = "r"\n' + SMALLEST.replace('orders"\n', f'{table}"\n', 1)
        )
        assert config.feeds["orders"].store == options


def test_the_smallest_file_has_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST)
    assert config.http == ("127.0.0.1", 9464)
    assert config.state == tmp_path / "state"
    feed = config.feeds["orders"]
    assert (feed.table, feed.start, feed.sink.type) == ("orders", None, "jsonl")
    assert feed.sink.options == {"path": "orders.jsonl"}
    assert feed.options.change_source == "auto"
    assert feed.options.decode.batch_rows_max == 131_072


def test_every_key_reaches_its_place(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [daemon]
        http = "[::1]:0"
        state = "/var/lib/tailer"
        lock_folder = "run"
        [feeds."orders.eu"]
        table = "/data/orders"
        from = 12
        change_source = "cdf"
        batch_rows_max = 1
        batch_bytes_max = 2
        writer_timezone = "Europe/Berlin"
        poll_max_s = 2.5
        retry_max_s = 4
        [feeds."orders.eu".sink]
        type = "jsonl"
        path = "-"
        ids = "none"
        """,
    )
    assert config.http == ("::1", 0)
    assert config.state == Path("/var/lib/tailer")
    assert config.lock_folder == tmp_path / "run"
    feed = config.feeds["orders.eu"]
    assert feed.start == "12"
    options = feed.options
    assert options.change_source == "cdf"
    assert (options.decode.batch_rows_max, options.decode.batch_bytes_max) == (1, 2)
    assert options.decode.writer_timezone == "Europe/Berlin"
    assert options.follow.poll_max_s == 2.5
    assert options.retry.pause_max_s == 4.0
    assert feed.sink.options == {"path": "-", "ids": "none"}


def test_http_can_be_off(tmp_path: Path) -> None:
    assert load(tmp_path, '[daemon]\nhttp = ""\n' + SMALLEST).http is None


def test_variables_come_from_the_environment(tmp_path: Path) -> None:
    text = SMALLEST.replace('"orders"', '"/data/${STAGE}/${NAME}"')
    config = load(tmp_path, text, STAGE="prod", NAME="orders")
    assert config.feeds["orders"].table == "/data/prod/orders"


def test_a_secret_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "stage").write_text("prod $HOME\r\n")
    (tmp_path / "two").write_text("a\nb\n\n")
    text = SMALLEST.replace('"orders"', '"/data/${file:stage}/${file:' + f"{tmp_path}/two" + '}"')
    assert load(tmp_path, text).feeds["orders"].table == "/data/prod $HOME/a\nb"


def test_a_path_that_only_looks_like_a_variable_s_is_a_path(tmp_path: Path) -> None:
    text = SMALLEST.replace('"orders"', '"$tables/orders"')
    assert load(tmp_path, text).feeds["orders"].table == "$tables/orders"


def test_every_feed_s_mistake_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tailer.toml"
    path.write_text(
        "".join(
            f'[feeds.{name}]\ntable = "x"\n{line}\n'
            f'[feeds.{name}.sink]\ntype = "jsonl"\npath = "x"\n'
            for name, line in (("a", "tabble = 1"), ("b", ""), ("c", 'from = "never"'))
        )
    )
    for command in ("run", "check"):
        assert main([command, str(path)]) == 2
        first, second = capsys.readouterr().err.splitlines()
        assert first.startswith(f"tailer: {path}: feeds.a.tabble is not known")
        assert second.startswith(f"tailer: {path}: feeds.c.from is 'never'")


def test_a_table_in_place_of_a_configuration_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "orders" / "_delta_log").mkdir(parents=True)
    assert main(["run", str(tmp_path / "orders")]) == 2
    assert f"tailer tail {tmp_path}/orders" in capsys.readouterr().err


def feed_with(line: str) -> str:
    return f'[feeds.orders]\ntable = "orders"\n{line}\n{SINK}'


MISTAKES = {
    "no feeds": ("[daemon]\n", "feeds is missing"),
    "empty feeds": ("[feeds]\n", "feeds is empty"),
    "unknown table": (
        SMALLEST + "[x]\n",
        "x is not known; known are catalogs, daemon, feeds, store",
    ),
    "unknown daemon key": (
        "[daemon]\nport = 1\n" + SMALLEST,
        "daemon.port is not known; known are http, lease_s,",
    ),
    "unknown feed key": (
        feed_with("tavle = 1"),
        "feeds.orders.tavle is not known (did you mean 'table'?)",
    ),
    "unknown feed keys": (
        feed_with("tavle = 1\nform = 1\nx = 1"),
        "feeds.orders.tavle is not known (did you mean 'table'?), nor is 'form' or 'x'",
    ),
    "no table": ("[feeds.orders]\n" + SINK, "feeds.orders.table is missing"),
    "no sink": ('[feeds.orders]\ntable = "orders"\n', "feeds.orders.sink is missing"),
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
        "batch_rows_max is 0, and must be a whole number of rows, greater than 0",
    ),
    "rows as text": (
        feed_with('batch_rows_max = "9"'),
        "batch_rows_max is '9', and must be a whole number",
    ),
    "rows as a flag": (feed_with("batch_rows_max = true"), "batch_rows_max is True, and must be"),
    "negative seconds": (
        feed_with("poll_max_s = -1"),
        "poll_max_s is -1, and must be a number of seconds, greater than 0",
    ),
    "endless seconds": (feed_with("poll_max_s = inf"), "poll_max_s is inf, and must be a number"),
    "too great for any machine": (
        feed_with(f"batch_bytes_max = {2**63}"),
        "batch_bytes_max is 9223372036854775808, and must be a whole number",
    ),
    "too little to compare with": (
        feed_with("diff_memory_bytes_max = 1000000"),
        "diff_memory_bytes_max is 1000000, and must be a whole number of bytes, 67108864 (64",
    ),
    "no such start": (
        feed_with('from = "12x"'),
        "feeds.orders.from is '12x', and must be latest, earliest, snapshot, a version or a time",
    ),
    "no such zone": (
        feed_with('writer_timezone = "Mars/Base"'),
        "feeds.orders.writer_timezone is 'Mars/Base', and must be an IANA time zone name",
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
    "a byte-order mark": ("\ufeff" + SMALLEST, "UTF-8 with a byte-order mark; save it as UTF-8"),
    "another reference": (
        SMALLEST.replace('"orders"', '"${vault:x}"'),
        "${vault:x} is not known; ${NAME} is an environment variable",
    ),
    "a file that is not there": (
        SMALLEST.replace('"orders"', '"${file:nowhere}"'),
        "${file:nowhere} can't be read",
    ),
    "a path of a shell": (
        SMALLEST.replace('"orders"', '"$HOME/orders"'),
        "write ${HOME} for $HOME",
    ),
    "an address with a scheme": (
        f'[daemon]\nhttp = "http://127.0.0.1:9464"\n{SMALLEST}',
        "must be host:port",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_file_and_key(
    tmp_path: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, sentence = MISTAKES[mistake]
    path = tmp_path / "tailer.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_config(path, {"HOME": "/home"})
    for command in ("run", "check"):
        assert main([command, str(path)]) == 2
        printed = capsys.readouterr()
        (line,) = printed.err.splitlines()
        assert line.startswith(f"tailer: {path}")
        assert sentence in line
        assert printed.out == ""


SINK_MISTAKES = {
    "unknown type": ('type = "carrier-pigeon"', "no sink of type 'carrier-pigeon'; installed are"),
    "no path": (
        'type = "jsonl"',
        "option 'path' of sink 'jsonl' is missing, and must be a file or -",
    ),
    "unknown option": (
        'type = "jsonl"\npath = "x"\npaht = 1',
        "option 'paht' of sink 'jsonl' is not known (did you mean 'path'?); known are",
    ),
    "wrong kind": ('type = "jsonl"\npath = 7', "option 'path' of sink 'jsonl' is 7, and must be"),
    "no flag": (
        'type = "jsonl"\npath = "x"\nids = 1',
        "option 'ids' of sink 'jsonl' is 1, and must",
    ),
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
    assert parse_timestamp(str(load(tmp_path, text).feeds["orders"].start)) == 1_769_857_200_000


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


# Every key


def with_value(table: str, key: str, value: str) -> str:
    """A file in which one key has this value."""
    if table == "daemon":
        return f"[daemon]\n{key} = {value}\n{SMALLEST}"
    lines = {"table": '"orders"', key: value}
    head = "".join(f"{k} = {v}\n" for k, v in lines.items())
    return f"[feeds.orders]\n{head}" + ("" if key == "sink" else SINK)


WRONG: dict[Kind, list[str]] = {
    "text": ["1", "true", "['a']"],
    "whole": ["'1'", "1.5", "true", "0", "-1", "nan"],
    "number": ["'1'", "true", "-0.5", "nan", "[]"],
    "flag": ["'true'", "1", "0"],
    "texts": ["'a'", "[1]", "[['a']]", "{}"],
    "table": ["'a'", "1", "['a']"],
    "any": ["'soon'", "-1", "true", "{}"],
}
EVERY_MISTAKE = [
    (table, key, value)
    for table, settings in (("daemon", DAEMON), ("feeds.orders", FEED))
    for key, setting in settings.items()
    for value in [*WRONG[setting.kind], *(["'no such choice'"] if setting.choices else [])]
]


@pytest.mark.parametrize(("table", "key", "value"), EVERY_MISTAKE)
def test_every_key_s_mistakes_name_file_key_and_what_is_allowed(
    tmp_path: Path, table: str, key: str, value: str
) -> None:
    setting = (DAEMON if table == "daemon" else FEED)[key]
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, with_value(table, key, value))
    sentence = str(refused.value)
    said = "" if setting.secret else "is "
    assert sentence.startswith(f"{tmp_path / 'tailer.toml'}: {table}.{key} {said}")
    assert "\n" not in sentence
    assert f"must be {setting.allowed()}" in sentence


def test_every_default_is_allowed(tmp_path: Path) -> None:
    for settings in (DAEMON, FEED):
        for setting in settings.values():
            if setting.default is not REQUIRED:
                setting.value(setting.default)  # ValueError if it is not
    load(tmp_path, SMALLEST)


MORE_MISTAKES = {
    "unknown store": ("[store.gcs]\n" + SMALLEST, "did you mean 'gs'?); known are az, gs, s3"),
    "name with a slash": ('[feeds."a/b"]\ntable = "x"\n',
                          "feeds has the name 'a/b'; it must not be empty or hold a /"),
    "deprecated": (feed_with("ignore_changes = true"), "deprecated this option; set operations"),
    "empty state": ("[daemon]\nstate = ''\n" + SMALLEST,
                    "daemon.state is empty, and must be a folder or s3://bucket/prefix"),
    "empty table": ("[feeds.orders]\ntable = ''\n", "feeds.orders.table is '', and must be"),
    "unknown option of S3": ("[store.s3]\narea = 'x'\n" + SMALLEST,
                             "store.s3: option 'area' of the S3 store is not known; known are "),
    "bad option of S3": ("[store.s3]\nrequests_max = 0\n" + SMALLEST,
                         "store.s3: option 'requests_max' of the S3 store is 0, and must be a"),
    "bad where": (feed_with("where = 'a +'"), "feeds.orders.where is not understood: syntax error"),
    "bad mask": (feed_with("mask = {a = 'hide'}"),
                 "feeds.orders.mask.a is 'hide', and must be one of drop, redact, hash"),
    "no mask key": (feed_with("mask = {a = 'hash'}"),
                    "feeds.orders.mask_key is missing, by which masks are hashed"),
    "sink without type": ("[feeds.orders]\ntable='x'\n[feeds.orders.sink]\ntype = 1\n",
                          "feeds.orders.sink.type is 1, and must be a string"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MORE_MISTAKES)
def test_what_contradicts_itself_is_one_line_too(tmp_path: Path, mistake: str) -> None:
    text, sentence = MORE_MISTAKES[mistake]
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'tailer.toml'}: ")
    assert sentence in str(refused.value)


STORE_MISTAKES = {
    "option of a local table": ("[feeds.orders.store]\nregion = 'x'\n", "takes no option 'region'"),
    "parked on S3": ("[daemon]\nstate = 's3://bucket/state'\n", "feeds.orders.park is missing"),
}


@pytest.mark.parametrize("mistake", STORE_MISTAKES)
def test_what_only_the_parts_know_is_refused_before_anything_starts(
    tmp_path: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more, sentence = STORE_MISTAKES[mistake]
    path = tmp_path / "tailer.toml"
    path.write_text(feed_with('on_reject = "park"') + more)
    for command in ("run", "check"):
        assert main([command, str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"tailer: {path}: feeds.orders")
        assert sentence in line


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    text = "[daemon]\ntoken = 'geheim'\n" + feed_with(
        "mask = {a = 'hash'}\nmask_key = 'geheim geheim geheim'"
    ).replace('path = "orders.jsonl"', "password = 'geheim'")
    assert "geheim" not in repr(load(tmp_path, text + "[store.s3]\nprofile = 'geheim'\n"))


def test_what_the_sharing_server_reads_may_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tailer.toml"
    path.write_text(
        '[share]\nsigning_key = "${NOT_SET_HERE}"\n[recipients.ann]\ngrants = ["s"]\n'
        '[shares.s.schemas.x.tables.t]\nlocation = "t"\n'
        '[feeds.t]\ntable = "t"\n[feeds.t.sink]\ntype = "jsonl"\npath = "-"\n'
    )
    assert set(load_config(path, {}).feeds) == {"t"}


def test_folders_of_a_shallow_clone_are_the_store_s(tmp_path: Path) -> None:
    path = tmp_path / "tailer.toml"
    path.write_text(feed_with('also = ["source", "/lake/source", "s3://lake/source"]'))
    (feed,) = load_config(path).feeds.values()
    assert feed.store == {"also": [str(tmp_path / "source"), "/lake/source", "s3://lake/source"]}
