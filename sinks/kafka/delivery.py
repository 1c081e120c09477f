"""The form of a feed's records: saved with its progress, so that a change of it is detected.

Readers of a topic rely on one topic, one format and one key. If the options differ from those of
the earlier records, the feed stops and says what that means, unless ``accept_changes`` is set; the
new form is then saved, so that the option can be removed again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from sinks.kafka.options import KafkaOptions
from tailer.changes import Offset
from tailer.errors import ConfigError

__all__ = ["Delivery", "accepted", "delivery_of"]

#: The options that determine the form of records, by name; an option that is not set has its
#: default.
Delivery = dict[str, Any]

#: Options of a format that do not change the records, or that the sink fills in.
_BESIDE = ("name", "topic", "registry", "record_bytes_max", "table")

#: What a change of an option means to readers; of any other: :data:`_OTHERS`.
_MEANING = {
    "topic": "the new topic gets only what comes from now on, and the old one nothing more",
    "format": "readers of the topic find records of both formats in it",
    "key": (
        "records of one row have other keys than before, may be in another partition out of order, "
        "and compaction keeps the old ones"
    ),
    "tombstones": "compaction removes deleted rows from now on, or keeps them from now on",
}
_OTHERS = "records are of another form than those before"


def delivery_of(options: KafkaOptions, feed: str) -> Delivery:
    """Return the form of a feed's records under these options."""
    # {table} may be the name in the metadata; a change of that is not a change of options.
    table = options.encoder.get("table") or "{table}"
    topic = options.topic.replace("{feed}", feed).replace("{table}", table)
    of_format = {k: v for k, v in options.encoder.items() if k not in _BESIDE}
    return {"topic": topic, "format": options.format, **of_format}


def accepted(
    before: Mapping[str, Any] | None, options: KafkaOptions, feed: str, at: Offset | None
) -> bool:
    """Return whether the options give another delivery than ``before``, and it is accepted.

    Raises :class:`ConfigError`, naming what has changed and what it means, if it is not accepted.
    """
    now = delivery_of(options, feed)
    changes = {} if before is None else _changes(before, now)
    if not changes:
        return False
    told = " and ".join(
        f"{name} from {_shown(a)} to {_shown(b)}" for name, (a, b) in changes.items()
    )
    meaning = "; ".join(dict.fromkeys(_MEANING.get(name, _OTHERS) for name in changes))
    where = "" if at is None else f" at version {at.version}, where feed {feed!r} goes on"
    if not options.accept_changes:
        raise ConfigError(
            f"the sink's options change {told}{where}: {meaning}; change them back, give the feed "
            "another name to write the table again, or set accept_changes = true for one start"
        )
    logging.getLogger("tailer.kafka").warning(
        "feed %s: accepted: the sink's options change %s%s; take accept_changes out after this "
        "start",
        feed,
        told,
        where,
    )
    return True


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the options that differ. Those of a format are ignored if the format differs."""
    if before.get("format") != now["format"]:
        names = [name for name in ("topic", "format", "key") if name in before and name in now]
    else:
        # An option that an earlier or a later release does not have makes no difference.
        names = [name for name in now if name in before]
    return {n: (before[n], now[n]) for n in names if before[n] != now[n]}


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
