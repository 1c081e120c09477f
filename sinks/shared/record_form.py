"""The form of a feed's records: saved with its offset, so that a change of it is detected.

Readers count on one place, one format and one key. If the options differ from those of the records
before, the feed stops and says what that means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sinks.formats.parts import KEY_ENCODING
from tailer.changes import Offset
from tailer.errors import ConfigError

#: Options of a format that do not change the records, or that the sink fills in.
_BESIDE = (
    "name", "topic", "registry", "subject_name_strategy", "record_bytes_max", "table",
    "value_bytes_max", "on_oversize", "offload_to", "offload_options",
)  # fmt: skip
#: What a change of an option means to readers; of any other: :data:`_OTHERS`.
_PLACE = "the new one gets only later changes, and the old one nothing more"
_MEANING = {
    "topic": "the new topic gets only later changes, and the old one nothing more",
    "format": "readers find records of both formats in one place",
    "key": (
        "records of one row have other keys than before, may be in another partition out of order, "
        "and compaction keeps the old ones"
    ),
    "key_encoding": (
        "records of one row have other keys than before, may be in another partition out of order, "
        "and compaction keeps the old ones"
    ),
    "tombstones": "compaction removes deleted rows from now on, or keeps them from now on",
    "type": _PLACE,
    **dict.fromkeys(
        ("delivery_stream", "exchange", "path", "queue", "queue_url", "routing_key", "stream",
         "subject", "topic_arn"), _PLACE,
    ),
}  # fmt: skip
_NAMED = {"key_encoding": "the encoding of keys"}
_OTHERS = "records are of another form than those before"


def build_record_form(options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the form of records under the options of their format, and what else belongs to it:
    where they have keys, also how these become bytes."""
    of_format = {name: value for name, value in options.items() if name not in _BESIDE}
    keys = {"key_encoding": KEY_ENCODING} if options.get("key") else {}
    return {**more, **of_format, **keys}


def check_record_form(
    form: Mapping[str, Any], saved: Mapping[str, Any] | None, feed: str, at: Offset | None
) -> Mapping[str, Any]:
    """Return the form. Raises :class:`ConfigError`, naming what has changed and what it means, if
    that of the records before, ``saved``, is another one."""
    sentence = _describe_changes(saved, form, feed, at)
    if sentence is None:
        return form
    where = f" --from {at.version} --index {at.index}" if at is not None else ""
    raise ConfigError(
        f"{sentence}; change them back, or write the table again after `tailer offsets reset`, or "
        f"let the feed continue with these options: `tailer offsets set{where}`"
    )


def _describe_changes(
    before: Mapping[str, Any] | None, now: Mapping[str, Any], feed: str, at: Offset | None
) -> str | None:
    """Return what has changed of a form and what that means, as a sentence; None if nothing has.
    An option that an earlier or a later release does not have makes no difference."""
    before = before or {}
    names = [name for name in now if name in before]
    if before.get("type") != now.get("type") and {"type"} <= before.keys() & now.keys():
        names = ["type"]
    elif before.get("format") != now.get("format"):
        # The other options of a format are of another one then.
        names = [name for name in names if name in _MEANING and name != "tombstones"]
    changed = [name for name in names if before[name] != now[name]]
    if not changed:
        return None
    sentence = " and ".join(
        f"{_NAMED.get(n, n)} from {_format_value(before[n])} to {_format_value(now[n])}"
        for n in changed
    )
    meaning = "; ".join(dict.fromkeys(_MEANING.get(name, _OTHERS) for name in changed))
    where = "" if at is None else f" at version {at.version}, where feed {feed!r} resumes"
    who = "this release changes" if changed == ["key_encoding"] else "the sink's options change"
    return f"{who} {sentence}{where}: {meaning}"


def _format_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
