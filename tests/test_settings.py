"""Settings: what a declaration allows, and what the errors say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tailer.errors import ConfigError
from tailer.setting_fields import declared, settings_of
from tailer.settings import REQUIRED, Setting, SettingTable, options_table, zone_name

SETTINGS = {
    "address": Setting("text", REQUIRED, "Where it is.", elsewhere=("url", "endpoint")),
    "rows_max": Setting("whole", 10, "Most rows.", unit="rows"),
    "size": Setting("whole", 2**20, "Memory.", unit="bytes", least=2**16, most=2**30),
    "parts": Setting("whole", -1, "Partitions.", also=(-1,)),
    "wait_s": Setting("number", 0.5, "Pause.", unit="seconds", least=0),
    "mode": Setting("text", "a", "How.", choices=("a", "b")),
    "on": Setting("flag", False, "Whether."),
    "key": Setting("texts", [], "Columns."),
    "zone": Setting("text", "UTC", "Zone.", form="a time zone", parse=zone_name),
    "password": Setting("text", None, "Password.", secret=True),
}
TABLE = SettingTable(
    "sink 'x'",
    SETTINGS,
    answers={"acks": "it always acknowledges; leave it out"},
)
TEXTS = SettingTable("the source", SETTINGS, text=True, spelling=str.lower, renames=True)
GIVEN = {"address": "here"}


def test_what_is_not_given_has_its_default() -> None:
    assert TABLE.take(GIVEN) == {
        "address": "here", "rows_max": 10, "size": 2**20, "parts": -1, "wait_s": 0.5, "mode": "a",
        "on": False, "key": [], "zone": "UTC", "password": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"rows_max": 1}, {"rows_max": 1}),
        ({"wait_s": 0}, {"wait_s": 0.0}),
        ({"size": 2**30}, {"size": 2**30}),
        ({"key": ["a", "a"]}, {"key": ["a", "a"]}),
        ({"password": ""}, {"password": None}),
    ],
    ids=str,
)
def test_what_is_allowed_is_taken(given: dict[str, Any], taken: dict[str, Any]) -> None:
    assert TABLE.take({**GIVEN, **given}).items() >= taken.items()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows_max": 0}, "is 0, and must be a whole number of rows, greater than 0"),
        ({"rows_max": 1.0}, "is 1.0, and must be a whole number"),
        ({"rows_max": True}, "is True, and must be a whole number"),
        ({"rows_max": "1"}, "is '1', and must be a whole number"),
        ({"rows_max": 2**63}, "is 9223372036854775808, and must be"),
        ({"rows_max": None}, "is None, and must be"),
        ({"size": 1}, "of bytes, from 65536 to 1073741824 (1 GiB)"),
        ({"size": 2**30 + 1}, "is 1073741825, and must be"),
        ({"parts": 0}, "is 0, and must be a whole number, greater than 0, or -1"),
        ({"wait_s": -0.1}, "is -0.1, and must be a number of seconds, 0 or greater"),
        ({"wait_s": float("inf")}, "is inf, and must be"),
        ({"wait_s": float("nan")}, "is nan, and must be"),
        ({"mode": "c"}, "is 'c', and must be one of a, b"),
        ({"mode": ["a"]}, "is ['a'], and must be one of a, b"),
        ({"on": "true"}, "is 'true', and must be true or false"),
        ({"key": "a"}, "is 'a', and must be a list of strings"),
        ({"key": ["a", 1]}, "is ['a', 1], and must be a list of strings"),
        ({"zone": "Mars/Base"}, "is 'Mars/Base', and must be a time zone"),
        ({"address": ""}, "is '', and must be a string"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TABLE.take({**GIVEN, **given})
    assert str(refused.value).startswith(f"option {next(iter(given))!r} of sink 'x' is ")
    assert said in str(refused.value)


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        TABLE.take({**GIVEN, "password": ["hush"]})
    assert str(refused.value) == "option 'password' of sink 'x' must be a string"


def test_a_required_option_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^option 'address' of sink 'x' is missing, and must be"):
        TABLE.take({})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rowsmax", "is not known (did you mean 'rows_max'?); known are address, key, mode,"),
        ("endpoint", "is not known (here it is 'address'); known are"),
        ("acks", "is not known: it always acknowledges; leave it out"),
        ("xyz", "is not known; known are"),
    ],
)
def test_an_unknown_name_gets_a_remedy(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TABLE.take({**GIVEN, name: "hush"})
    assert str(refused.value).startswith(f"option {name!r} of sink 'x' {said}")
    assert "hush" not in str(refused.value)


def test_other_names_and_spellings_may_be_taken() -> None:
    assert TEXTS.take({"URL": "here"})["address"] == "here"
    with pytest.raises(ConfigError, match="option 'url' of the source is the same as 'address'"):
        TEXTS.take({"address": "here", "url": "there"})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rows_max", "7", 7), ("rows_max", " 1k ", 1024), ("size", "1m", 2**20),
        ("size", "64 KB", 2**16), ("parts", "-1", -1), ("wait_s", "1.5", 1.5), ("wait_s", "2", 2.0),
        ("on", "True", True), ("on", "no", False), ("key", "a, b,", ["a", "b"]),
        ("key", '["a,b"]', ["a,b"]), ("mode", "b", "b"),
    ],
)  # fmt: skip
def test_a_value_may_be_its_text_where_all_are(name: str, text: str, value: Any) -> None:
    assert TEXTS.take({**GIVEN, name: text})[name] == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("rows_max", "1x"), ("rows_max", "0"), ("rows_max", ""), ("parts", "1k"),
     ("wait_s", "soon"), ("wait_s", "nan"),
     ("on", "perhaps"), ("key", '["a"'), ("key", "[1]"), ("size", "2g")],
)  # fmt: skip
def test_a_text_that_is_no_value_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"option '{name}' of the source is .*, and must be"):
        TEXTS.take({**GIVEN, name: text})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    address: str = declared(SETTINGS["address"])
    mode: str = declared(SETTINGS["mode"])
    password: str | None = declared(SETTINGS["password"])
    extra: dict[str, str] = declared(Setting("table", {}, "More."))
    made: list[str] = field(default_factory=list)


def test_a_dataclass_declares_its_fields() -> None:
    settings = settings_of(_Options)
    assert [*settings] == ["address", "mode", "password", "extra"]
    options = _Options(**SettingTable("x", settings).take({**GIVEN, "password": "hush"}))
    assert (options.mode, options.password, options.extra) == ("a", "hush", {})
    assert "hush" not in repr(options)
    with pytest.raises(TypeError, match="address"):
        _Options()


def test_a_table_for_the_documentation() -> None:
    *_, rows, size, _, wait, mode, on, key, _, password = options_table(SETTINGS)
    assert rows == "| `rows_max` | a whole number of rows, greater than 0 | 10 | Most rows. |"
    assert "| 1048576 (1 MiB) |" in size
    assert "| 0.5 |" in wait
    assert "| one of a, b | `a` |" in mode
    assert "| true or false | false |" in on
    assert "| a list of strings |  |" in key
    assert password == "| `password` | a string |  | Password. |"
    assert "| a string | required |" in next(
        line for line in options_table(SETTINGS) if "address" in line
    )


def test_advanced_options_stand_in_a_table_of_their_own() -> None:
    rare = Setting("whole", 1, "Rarely.", advanced=True)
    lines = list(options_table({"rare": rare, "mode": SETTINGS["mode"]}))
    apart = lines.index("Advanced:")
    assert [line for line in lines[:apart] if "`mode`" in line]
    assert [line for line in lines[apart:] if "`rare`" in line]
    assert "Advanced:" not in options_table({"mode": SETTINGS["mode"]})
