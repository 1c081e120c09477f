"""Partition values: strings in the log, typed values in rows ("Partition Value Serialization").

An empty string is null for every type. A timestamp without a zone is in the zone of the table's
writer, which the log does not record: it is a setting, and never the zone of this process.

CONVERT TO DELTA takes texts from the names of folders as they are, such as `yes` for a boolean and
`2024-06` for a date. So each text that Spark casts to a value is that value here; one that Spark
casts to null is refused, as CONVERT TO DELTA does.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from tailer.delta.arrow_types import arrow_type
from tailer.delta.char import char_length
from tailer.delta.types import DataType, PrimitiveType
from tailer.errors import CorruptLog

_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
#: Numbers as writers spell them. Python would accept more: "1_0", and digits of any script.
_INTEGER = r"([+-]?[0-9]+)(?:\.[0-9]*)?|([+-]?)\.[0-9]+"
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
#: As Java's Double.valueOf takes it, with a letter for the type.
_FLOAT = rf"({_NUMBER})[fFdD]?"
_NOT_FINITE = r"([+-]?(?:NaN|Infinity)|(?i:nan|[+-]?inf(?:inity)?))"
_BOOLEANS = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}
#: What Java's trim() takes away.
_BLANKS = "".join(map(chr, range(ord(" ") + 1)))
#: What is missing of a date is its first month or day; its time is not looked at.
_DATE = r"(?as)([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?"
_TIMESTAMP = (
    r"(?a)([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?"
    r"\s*(Z|UTC|[+-](?:\d{4}|\d{1,2}(?::\d{2})?))?)?)?)?)?)?"
)
#: Java has no zone that is farther from UTC.
_OFFSET_MAX = dt.timedelta(hours=18)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY_US = 86_400_000_000
_CYCLE_DAYS = 146_097


def find_partition_text(
    values: Mapping[str, str | None], column: str, named: str, *, absent_is_null: bool = False
) -> str | None:
    """Return the log's value of a partition column, which is named as in the files; ``named`` is
    the name that users know.

    ``absent_is_null`` is for cdc files, where early writers left nulls out. Raises
    :class:`CorruptLog` if an action has no entry for the column, not even a null: every row would
    silently become null ("Add File": a map from partition column to value).
    """
    if column in values:
        return values[column]
    other = next((name for name in values if name.lower() == column.lower()), None)
    if absent_is_null and other is None:
        return None
    in_log = "" if column == named else f", which is {column!r} there"
    spelled = "" if other is None else f", only one for {other!r}"
    raise CorruptLog(
        f"the file's action in the log has no partition value for the column {named!r}{in_log}"
        f"{spelled}",
        hint="its writer must name every partition column as the schema does, also with a null; "
        "rewrite the file, or skip this version",
    )


def parse_partition_value(
    text: str | None, data_type: DataType, writer_timezone: str = "UTC", *, exact: bool = False
) -> pa.Scalar:
    """Return the typed value of one partition column of one file.

    ``text`` is the log's value, None or "" for null. ``writer_timezone`` is an IANA name, for
    timestamps without a zone. Raises :class:`CorruptLog` if the text is not a value of the type;
    with ``exact`` also if the text has more decimal places than the type.
    """
    target = arrow_type(data_type)
    if text is None or text == "":
        return pa.scalar(None, target)
    if not isinstance(data_type, PrimitiveType):
        raise CorruptLog("a partition column is of a nested type, which no writer allows")
    try:
        value = _parse_value(text, data_type.name, target, writer_timezone)
        if exact:
            _check_exact(text, data_type.name, value)
        return pa.scalar(value, target)
    except (ValueError, ArithmeticError, OverflowError, pa.ArrowException) as e:
        raise CorruptLog(f"the partition value {text!r} is not a {data_type.name} ({e})") from None


def _check_exact(text: str, name: str, value: object) -> None:
    """Raise ValueError if a whole number was cut or a decimal rounded."""
    may_differ = name in _INTEGERS or isinstance(value, decimal.Decimal)
    if may_differ and decimal.Decimal(text.strip(_BLANKS)) != value:
        raise ValueError(f"it has more decimal places than {name}")


def _parse_value(text: str, name: str, target: pa.DataType, zone: str) -> object:
    if name == "string":
        return text
    length = char_length(PrimitiveType(name))
    if length is not None:
        return text.ljust(length)
    if name in _INTEGERS:
        return _parse_integer(text)
    if name in ("float", "double"):
        match = _match_number(text, _FLOAT, _NOT_FINITE)
        return float(match[1])
    if name == "boolean":
        return _parse_boolean(text)
    if name == "date":
        return _parse_date(text)
    if name == "timestamp":
        return _parse_microseconds(text, zone)
    if name == "timestamp_ntz":
        return _parse_microseconds(text, None)
    if name == "binary":
        return text.encode()
    if pa.types.is_decimal(target):
        return _round_to_scale(decimal.Decimal(_match_number(text, _NUMBER)[0]), target.scale)
    raise ValueError("no partition column can be of that type")


def _match_number(text: str, *forms: str) -> re.Match[str]:
    """Match the text without surrounding blanks with one of these forms.

    Raises ValueError if it has none of them.
    """
    stripped = text.strip(_BLANKS)
    for form in forms:
        match = re.fullmatch(form, stripped)
        if match is not None:
            return match
    raise ValueError("not a number as the protocol spells it")


def _parse_integer(text: str) -> int:
    """Return the whole part of a number: what is behind its point does not count."""
    return int(_match_number(text, _INTEGER)[1] or 0)


def _round_to_scale(value: decimal.Decimal, scale: int) -> decimal.Decimal:
    context = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)
    return value.quantize(decimal.Decimal(1).scaleb(-scale), context=context)


def _parse_boolean(text: str) -> bool:
    found = _BOOLEANS.get(text.strip(_BLANKS).lower())
    if found is None:
        raise ValueError("neither true nor false")
    return found


def _match_time(text: str, form: str) -> re.Match[str]:
    match = re.fullmatch(form, text.strip(_BLANKS))
    if match is None:
        raise ValueError("not year-month-day, with or without hour:minute:second")
    return match


class _Day(NamedTuple):
    """A day: ``more_days`` after ``date``.

    Dates may have years beyond those of Python. The calendar repeats itself, weekdays included,
    every 400 years, so such a day is computed from its equivalent within Python's years.
    """

    date: dt.date
    more_days: int


def _parse_day(match: re.Match[str]) -> _Day:
    year = int(match[1])
    cycles = (year - 9600) // 400 if year > 9999 else min(0, (year - 1) // 400)
    date = dt.date(year - 400 * cycles, int(match[2] or 1), int(match[3] or 1))
    return _Day(date, cycles * _CYCLE_DAYS)


def _parse_date(text: str) -> int:
    day, more = _parse_day(_match_time(text, _DATE))
    return day.toordinal() - _EPOCH.toordinal() + more


def _parse_microseconds(text: str, zone: str | None) -> int:
    """Return microseconds since the epoch.

    A wall-clock time without offset is read in ``zone``, or as if in UTC if the type has no zone.
    """
    match = _match_time(text, _TIMESTAMP)
    offset = _parse_offset(match[8])
    day, more = _parse_day(match)
    wall = dt.datetime(
        day.year, day.month, day.day,
        int(match[4] or 0), int(match[5] or 0), int(match[6] or 0),
        int((match[7] or "0").ljust(6, "0")[:6]), tzinfo=dt.UTC,
    )  # fmt: skip
    since = wall - _EPOCH
    if zone is not None and offset is None:
        from zoneinfo import ZoneInfo  # on demand: few tables are partitioned by times

        zone_of_writer = dt.UTC if zone == "UTC" else ZoneInfo(zone)
        since = wall.replace(tzinfo=zone_of_writer) - _EPOCH
    elif zone is not None and offset is not None:
        since -= offset
    return since // dt.timedelta(microseconds=1) + more * _DAY_US


def _parse_offset(text: str | None) -> dt.timedelta | None:
    """Return how far a zone is from UTC. Raises ValueError if there is no such zone."""
    if text is None:
        return None
    if text in ("Z", "UTC"):
        return dt.timedelta()
    hours, minutes = int(text[1:3].rstrip(":")), int(text[3:].lstrip(":") or 0)
    offset = dt.timedelta(hours=hours, minutes=minutes)
    if minutes > 59 or offset > _OFFSET_MAX:
        raise ValueError("no such time zone")
    return -offset if text[0] == "-" else offset
