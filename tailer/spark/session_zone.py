"""The time zone of times without one: on Spark, that of the session.

Python's own datetimes without a zone are local times, as PySpark's rows have them. A text without
a zone is in the session's zone, as Spark reads it. Spark tells a source's processes its options and
no setting, so the zone travels in their environment, from where the source is registered.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tailer.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VARIABLE = "TAILER_SESSION_TIMEZONE"
#: Zones that Java names by their distance from UTC.
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")


def tell_session_zone() -> None:
    """Let the processes of a source that is being registered know the active session's zone."""
    context, session = SparkContext._active_spark_context, SparkSession.getActiveSession()  # noqa: SLF001
    if context is not None and session is not None:
        context.environment[_VARIABLE] = zone_of(session)


def zone_of(session: SparkSession) -> str:
    """Return the name of a session's zone."""
    return str(session.conf.get("spark.sql.session.timeZone"))


def as_time(value: Any, zone: str | None = None) -> str:
    """Return a time as text in UTC. ``zone`` is the session's, for texts and dates without one;
    None: that of the session that registered the source, otherwise this process's.

    Raises ValueError for a text that is no time.
    """
    if isinstance(value, dt.datetime):
        moment = value.astimezone()  # without a zone it is a local time
    else:
        moment = dt.datetime.fromisoformat(str(value).strip())
        if moment.tzinfo is None:
            name = os.environ.get(_VARIABLE) if zone is None else zone
            moment = (
                moment.astimezone() if name is None else moment.replace(tzinfo=_parse_zone(name))
            )
    return moment.astimezone(dt.UTC).isoformat()


def _parse_zone(name: str) -> dt.tzinfo:
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        hours, minutes, seconds = (int(part or 0) for part in offset.groups()[1:])
        distance = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return dt.timezone(distance if offset[1] == "+" else -distance)
    try:
        return dt.UTC if name == "Z" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(
            f"the session's time zone {name!r} is not known to Python; write the time with its "
            "distance from UTC, as 2026-01-31T12:00:00+01:00"
        ) from None
