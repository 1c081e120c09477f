"""Version checksum files, ``<version>.crc``: a writer's counts after its commit.

They are optional, and only hints: a file that can't be read, or whose counts contradict each other,
is ignored.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from tailer.delta.actions import LONG_MAX, Metadata, Protocol
from tailer.delta.parsing import build_action
from tailer.errors import CorruptLog


class VersionChecksum(Struct, frozen=True):
    """A version's sums: the live files' size in bytes and their number, protocol and metadata.

    ``transaction_id`` is the ``txnId`` of the commit's commitInfo, if the writer gives it.
    """

    table_size_bytes: int
    num_files: int
    protocol: Protocol
    metadata: Metadata
    transaction_id: str | None = None


def parse_checksum(data: bytes) -> VersionChecksum:
    """Parse the content of a version checksum file.

    Raises :class:`CorruptLog` if it is not a JSON object, names a key twice, has a count that is
    missing or negative, or not exactly one protocol and one metaData, or has actions that can't be
    read.
    """
    try:
        document = json.loads(data, object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError) as e:
        raise CorruptLog(f"the version checksum can't be read ({e})") from None
    if not isinstance(document, dict):
        raise CorruptLog("the version checksum is not a JSON object")
    size, files = (_parse_count(document, name) for name in ("tableSizeBytes", "numFiles"))
    if [_parse_count(document, name) for name in ("numMetadata", "numProtocol")] != [1, 1]:
        raise CorruptLog("the version checksum is not of one protocol and one metaData")
    protocol = build_action("protocol", document.get("protocol"))
    metadata = build_action("metaData", document.get("metadata"))
    if not (isinstance(protocol, Protocol) and isinstance(metadata, Metadata)):
        raise CorruptLog("the version checksum lacks its protocol or metadata")
    if files == 0 and size > 0:
        raise CorruptLog("the version checksum has bytes in no file")
    transaction = document.get("txnId")
    if not isinstance(transaction, str | None):
        raise CorruptLog("the version checksum's txnId is not a text")
    return VersionChecksum(size, files, protocol, metadata, transaction)


def _parse_count(document: dict[str, object], name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LONG_MAX:
        raise CorruptLog(f"{name} of the version checksum is not a count")
    return value


def refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, Any]:
    """Return the members of a JSON object. Raises ValueError for a key that it names twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it names a key twice")
    return found
