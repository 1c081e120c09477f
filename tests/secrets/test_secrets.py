"""What this process knows to be secret is in nothing that it says."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from base64 import b64encode
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer import secrets
from tailer.errors import ConfigError, TableError, unexpected
from tailer.process.logs import ConsoleFormatter, set_up_logs
from tailer.secrets import forget_secrets, hide_secrets, keep_pair, keep_secrets
from tailer.settings import Setting, SettingTable

WORD = 'pa55/w%rd"\u00e4'


@given(st.text(st.characters(codec="utf-8"), min_size=6), st.text())
def test_a_secret_is_not_shown_however_it_is_written(word: str, around: str) -> None:
    keep_secrets([word])
    try:
        for form in (word, quote(word), quote(word, ""), quote_plus(word), json.dumps(word)[1:-1],
                     json.dumps(word, ensure_ascii=False)[1:-1], repr(word)[1:-1]):  # fmt: skip
            assert form not in hide_secrets(f"{around} {form} {around}") or form in "***"
    finally:
        forget_secrets([word])
    assert hide_secrets(word) == word


def test_a_pair_is_hidden_also_as_a_header_has_it() -> None:
    keep_pair("tailer", WORD)
    header = b64encode(f"tailer:{WORD}".encode()).decode()
    assert hide_secrets(f"tailer {WORD}; Basic {header}") == "tailer ***; Basic ***"
    keep_pair("postgres", "postgres")  # its name says nothing that is not known
    assert hide_secrets("user postgres") == "user postgres"


def test_the_longest_is_hidden_first() -> None:
    keep_secrets(["secret", "secret-and-more"])
    assert hide_secrets("secret-and-more, secret") == "***, ***"
    keep_secrets(["", "id", "short"])  # of which the words of a sentence have many
    assert hide_secrets("id short") == "id short"


def test_every_way_out_hides_them(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    table = SettingTable("sink 'x'", {
        "password": Setting("text", "", "", secret=True),
        "headers": Setting("table", {}, "", secret=True),
    })  # fmt: skip
    table.take(
        {"password": WORD, "headers": {"Authorization": "Bearer t0ken-1", "Accept": "a/json"}}
    )
    said = f"{WORD} and t0ken-1 of a/json"
    cut = "x" * 2600 + WORD + "x" * 5000  # where a long text loses its middle
    for error in (ConfigError(said), TableError(said, hint=WORD), unexpected(ValueError(said))):
        assert "*** and *** of a/json" in str(error)
        assert WORD not in str(error)
    assert "pa55" not in str(ConfigError(cut))
    for kind in ("console", "json"):
        logger = set_up_logs(kind, "info")
        try:
            raise ValueError(said)
        except ValueError:
            logger.exception("it %s", WORD, extra={"error": WORD})
        assert logging.lastResort is not None
        logging.lastResort.handle(logging.makeLogRecord({"msg": f"a library: {WORD}"}))
        shown = capsys.readouterr().err
        assert "a library: ***" in shown
        assert "Traceback" in shown
        assert "*** and *** of a/json" in shown
        assert "pa55" not in shown
        assert "t0ken" not in shown
    record = logging.LogRecord("x", logging.INFO, "", 0, WORD, None, None)
    assert ConsoleFormatter().format(record).endswith("***")
    caplog.clear()


def test_where_a_server_is_is_no_secret() -> None:
    """A URL of a sink may be one, with a token in its path; else messages need it."""
    table = SettingTable("sink 'x'", {"url": Setting("text", "", "", secret=True)})
    for url in ("https://example.org", "https://example.org/", "nats://h-and-more:4222"):
        table.take({"url": url})
        assert str(ConfigError(f"{url} is away")) == f"{url} is away"
    table.take({"url": "https://example.org/T0KEN"})
    assert str(ConfigError("https://example.org/T0KEN is away")) == "*** is away"


def test_a_traceback_of_the_command_hides_them() -> None:
    program = (
        "from importlib import import_module; from tailer.secrets import keep_secrets\n"
        "keep_secrets(['se-cret'])\n"
        "def fail(*_): raise ValueError('se-cret')\n"
        "main = import_module('tailer.cli.main'); main.main = fail; main.run()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert "ValueError: ***" in ended.stderr
    assert "Traceback" in ended.stderr


def test_what_is_known_is_of_one_test() -> None:
    assert secrets._forms == []
