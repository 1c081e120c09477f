"""The lines of an answer, in both response formats, as one kind of value: Delta's actions.

"API Response Format in Delta" wraps actions; "API Response Format in Parquet" has other objects,
which are translated. URLs change from answer to answer, so the actions name files by stable ids:
``data/`` and the file's id, ``dv/`` and the deletion vector file's id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from tailer.errors import TableError, UnsupportedTable
from tailer.sharing.model import EndOfStream, ResponseFormat, parse_ndjson_line


@dataclass(frozen=True, slots=True)
class ProtocolLine:
    """The table's protocol as a Delta action's value, from ``version`` on if the line has one."""

    protocol: dict[str, Any]
    version: int | None = None


@dataclass(frozen=True, slots=True)
class MetadataLine:
    """The table's metadata as a Delta action's value, from ``version`` on if the line has one."""

    metadata: dict[str, Any]
    version: int | None = None


@dataclass(frozen=True, slots=True)
class SharedFile:
    """One file of an answer, as a Delta action with stable paths, and its URLs.

    ``kind`` and ``action`` are the Delta action's; ``location`` and ``dv_location`` name the data
    file and its deletion vector file (None: there is none, or it is inline). ``version`` and
    ``timestamp_ms`` are those of the commit, if the answer has them; ``expires_ms`` is when the
    URLs expire (epoch ms).
    """

    kind: Literal["add", "remove", "cdc"]
    action: dict[str, Any]
    location: str
    url: str
    dv_location: str | None = None
    dv_url: str | None = None
    version: int | None = None
    timestamp_ms: int | None = None
    expires_ms: int | None = None


Line = ProtocolLine | MetadataLine | SharedFile | EndOfStream

#: The years 1 to 9999, in milliseconds: what Arrow and Python take as times.
_FIRST_MS, _END_MS = -62_135_596_800_000, 253_402_300_800_000
_KNOWN = ("protocol", "metaData", "file", "add", "cdf", "remove", "endStreamAction")
_KINDS: dict[str, Literal["add", "remove", "cdc"]] = {
    "file": "add",
    "add": "add",
    "remove": "remove",
    "cdf": "cdc",
}


def parse_line(line: bytes, form: ResponseFormat) -> Line | None:
    """Parse one line of an answer in a format; None for a blank or unknown one.

    Raises :class:`TableError` for a line that violates the format, and :class:`UnsupportedTable`
    for an unsupported protocol.
    """
    found = parse_ndjson_line(line, _KNOWN)
    if found is None:
        return None
    name, value = found
    if not isinstance(value, dict):
        raise TableError(f"the sharing server's {name} line is not an object")
    if name == "endStreamAction":
        return EndOfStream.from_json(value)
    if form == "delta":
        return _parse_delta_line(name, value)
    return _parse_parquet_line(name, value)


def _parse_whole(values: dict[str, Any], key: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    # JSON writers of other languages send longs as strings.
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise TableError(f"{key} in the sharing server's answer is not a whole number")
    if value < 0 and key in ("size", "version"):
        raise TableError(f"{key} in the sharing server's answer is negative")
    if key == "timestamp" and not _FIRST_MS <= value < _END_MS:
        raise TableError(f"{key} in the sharing server's answer is {value}, which is not a time")
    return value


def _require_text(values: dict[str, Any], key: str, name: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value:
        raise TableError(f"a {name} line of the sharing server's answer lacks its {key}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TableError(f"{key} of a {name} line has half a surrogate pair") from None
    return value


def _check_file_url(url: str) -> str:
    """Check a URL that will be fetched.

    A server must not make this process read local files.
    """
    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError:  # of an invalid IPv6 address
        scheme = ""
    if scheme not in ("https", "http"):
        raise TableError(
            "the sharing server gives a file without an https URL",
            hint="it is not followed",
        )
    return url


def _unwrap_value(value: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    inner = value.get(key)
    if not isinstance(inner, dict):
        raise TableError(
            f"the sharing server said delta format, and its {name} line has no {key}",
            hint="request the other format with the option response_format",
        )
    return inner


def _parse_delta_line(name: str, value: dict[str, Any]) -> Line | None:
    if name == "protocol":
        protocol = _unwrap_value(value, "deltaProtocol", name)
        return ProtocolLine(protocol, _parse_whole(value, "version"))
    if name == "metaData":
        return MetadataLine(
            _unwrap_value(value, "deltaMetadata", name), _parse_whole(value, "version")
        )
    if name != "file":
        raise TableError(
            f"the sharing server said delta format, and sent a line {name!r} of the parquet one",
            hint="request the other format with the option response_format",
        )
    single = _unwrap_value(value, "deltaSingleAction", name)
    actions = [(k, v) for k, v in single.items() if isinstance(v, dict)]
    if len(actions) != 1:
        raise TableError("a file line of the sharing server's answer has not one action")
    kind, action = actions[0]
    if kind not in ("add", "remove", "cdc"):
        return None
    return _parse_delta_file(kind, value, dict(action))  # type: ignore[arg-type]  # one of the three


def _parse_delta_file(
    kind: Literal["add", "remove", "cdc"], value: dict[str, Any], action: dict[str, Any]
) -> SharedFile:
    url = _check_file_url(_require_text(action, "path", kind))
    location = "data/" + _require_text(value, "id", "file")
    action["path"] = "data/" + quote(location[5:], safe="")
    action.setdefault("dataChange", kind != "cdc")
    size = _parse_whole(action, "size")
    if size is None:
        size = _parse_whole(value, "size")  # in the protocol's example it is beside the action
    if size is not None:
        action["size"] = size
    dv_location = dv_url = None
    dv = action.get("deletionVector")
    if isinstance(dv, dict) and dv.get("storageType") not in ("i", None):
        if dv.get("storageType") != "p":
            raise TableError("the sharing server names a deletion vector without its URL")
        dv_url = _check_file_url(_require_text(dv, "pathOrInlineDv", "deletion vector"))
        dv_id = value.get("deletionVectorFileId")
        dv_id = dv_id if isinstance(dv_id, str) and dv_id else _derive_name(dv_url)
        dv_location = f"dv/{dv_id}"
        action["deletionVector"] = {**dv, "pathOrInlineDv": "dv/" + quote(dv_id, safe="")}
    return SharedFile(
        kind, action, location, url, dv_location, dv_url,
        _parse_whole(value, "version"), _parse_whole(value, "timestamp"),
        _parse_whole(value, "expirationTimestamp"),
    )  # fmt: skip


def _derive_name(url: str) -> str:
    """Return a name for a file without an id: its URL without the parts that change."""
    parts = urlsplit(url)
    return blake2b(f"{parts.hostname}{parts.path}".encode(), digest_size=16).hexdigest()


def _parse_parquet_line(name: str, value: dict[str, Any]) -> Line:
    if "deltaProtocol" in value or "deltaMetadata" in value or "deltaSingleAction" in value:
        raise TableError(
            f"the sharing server said parquet format, and its {name} line is in delta format",
            hint="request the other format with the option response_format",
        )
    if name == "protocol":
        if _parse_whole(value, "minReaderVersion") != 1:
            raise UnsupportedTable(
                "the sharing server asks for a newer client: protocol version "
                f"{value.get('minReaderVersion')}, and 1 is known here",
                hint="install a newer delta-tailer",
            )
        # The format can express no more than this; writer version 4 has the change data feed.
        return ProtocolLine({"minReaderVersion": 1, "minWriterVersion": 4})
    if name == "metaData":
        return MetadataLine(_parse_parquet_metadata(value), _parse_whole(value, "version"))
    kind = _KINDS[name]
    location = "data/" + _require_text(value, "id", name)
    version, timestamp = _parse_whole(value, "version"), _parse_whole(value, "timestamp")
    action: dict[str, Any] = {
        "path": "data/" + quote(location[5:], safe=""),
        "partitionValues": value.get("partitionValues") or {},
        "size": _parse_whole(value, "size"),
        "dataChange": kind != "cdc",
    }
    if kind == "add":
        action["modificationTime"] = timestamp or 0
    elif kind == "remove":
        action |= {"deletionTimestamp": timestamp, "extendedFileMetadata": True}
    if value.get("stats") is not None:
        action["stats"] = value["stats"]
    return SharedFile(
        kind, action, location, _check_file_url(_require_text(value, "url", name)), None, None,
        version, timestamp, _parse_whole(value, "expirationTimestamp"),
    )  # fmt: skip


def _parse_parquet_metadata(value: dict[str, Any]) -> dict[str, Any]:
    keys = ("id", "name", "description", "format", "schemaString", "partitionColumns")
    metadata = {key: value[key] for key in keys if value.get(key) is not None}
    given = value.get("configuration")
    if isinstance(given, dict):
        # The protocol's example has the property without its prefix.
        metadata["configuration"] = {
            f"delta.{k}" if k == "enableChangeDataFeed" else k: v for k, v in given.items()
        }
    return metadata
