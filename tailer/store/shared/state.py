"""Protocol and metadata of a shared table over its versions, as its server's answers give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailer.delta.actions import Metadata, Protocol
from tailer.delta.features import FEATURES
from tailer.delta.parsing import build_action
from tailer.delta.snapshot import TableState
from tailer.errors import TableError, TransientError
from tailer.sharing.answers import MetadataLine, ProtocolLine

_FEED = "delta.enableChangeDataFeed"
#: Most characters of all the states in one answer, which are kept in memory.
_CHARACTERS_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SharedState:
    """The values of a protocol and a metaData action."""

    protocol: dict[str, Any]
    metadata: dict[str, Any]

    def make_actions(self, before: SharedState | None) -> list[dict[str, Any]]:
        """Return the actions that lead here from the state before; None: there was none."""
        found: list[dict[str, Any]] = []
        if before is None or before.protocol != self.protocol:
            found.append({"protocol": self.protocol})
        if before is None or before.metadata != self.metadata:
            found.append({"metaData": self.metadata})
        return found

    def partition_keys(self) -> set[str]:
        """Return the partition columns, by the names that partition values have them under.

        Raises :class:`UnsupportedTable` or :class:`CorruptLog` for a state that can't be read.
        """
        protocol = build_action("protocol", self.protocol)
        metadata = build_action("metaData", self.metadata)
        if not isinstance(protocol, Protocol) or not isinstance(metadata, Metadata):
            return set()
        state = TableState.from_actions(protocol, metadata)
        return {state.physical_name(f) for f in state.partition_fields()}

    @property
    def created_ms(self) -> int:
        """When the table was made, in epoch ms; 0: not known."""
        created = self.metadata.get("createdTime")
        return created if isinstance(created, int) and not isinstance(created, bool) else 0

    def with_feed(self) -> SharedState:
        """Return the state, with the feed enabled, of a version whose change data feed exists.

        Not every server sends the table's properties, and the reader of a log goes by them.
        """
        configuration = self.metadata.get("configuration") or {}
        metadata, protocol = self.metadata, self.protocol
        if feed_enabled(metadata) is not True:
            metadata = {**metadata, "configuration": {**configuration, _FEED: "true"}}
        if protocol.get("minWriterVersion") == 7:
            features = protocol.get("writerFeatures") or []
            if "changeDataFeed" not in features:
                protocol = {**protocol, "writerFeatures": [*features, "changeDataFeed"]}
        elif int(protocol.get("minWriterVersion") or 0) < 4:
            protocol = {**protocol, "minWriterVersion": 4}
        return SharedState(protocol, metadata)


def feed_enabled(metadata: dict[str, Any]) -> bool | None:
    """Return whether the properties enable a change data feed; None if they are missing."""
    configuration = metadata.get("configuration")
    if not isinstance(configuration, dict):
        return None
    return str(configuration.get(_FEED, "")).lower() == "true"


class Timeline:
    """The states from version ``first`` on, as one answer gives them.

    The first metadata counts from ``first``, whatever version it is stamped with; a later one from
    its stamped version on. A protocol counts for all versions unless it is stamped.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.protocols: dict[int, dict[str, Any]] = {}
        self.metadata: dict[int, dict[str, Any]] = {}
        self._characters = 0

    def add_line(self, line: ProtocolLine | MetadataLine) -> None:
        """Process one line, in the answer's order.

        Raises :class:`TableError` for a line that is not a state, and for more of them than a table
        can have.
        """
        values = line.protocol if isinstance(line, ProtocolLine) else line.metadata
        self._characters += len(str(values))
        if self._characters > _CHARACTERS_MAX:
            raise TableError("the sharing server's answer has too much metadata to be a table's")
        if isinstance(line, ProtocolLine):
            _check_kind(line.protocol, "minReaderVersion", int)
            self.protocols[self._counts_from(line.version, self.protocols)] = line.protocol
        else:
            _check_kind(line.metadata, "id", str)
            _check_kind(line.metadata, "schemaString", str)
            self.metadata[self._counts_from(line.version, self.metadata)] = line.metadata

    def _counts_from(self, version: int | None, known: dict[int, dict[str, Any]]) -> int:
        return self.first if version is None or not known else max(version, self.first)

    @property
    def is_complete(self) -> bool:
        """Whether both are known of the first version."""
        return bool(self.protocols and self.metadata)

    @property
    def changes_unstamped(self) -> bool:
        """Whether the metadata changes on the way, and nothing says whether the protocol does."""
        return len(self.metadata) > 1 and len(self.protocols) == 1

    def find_state(self, version: int) -> SharedState:
        """Return the state after a version. Raises :class:`TransientError` if the answer lacks it:
        no table of the server's is like that."""
        if not self.is_complete:
            lacking = "metaData" if self.protocols else "protocol"
            raise TransientError(f"the sharing server's answer has no {lacking} line")
        protocol = max((v for v in self.protocols if v <= version), default=self.first)
        metadata = max((v for v in self.metadata if v <= version), default=self.first)
        return SharedState(self.protocols[protocol], self.metadata[metadata])

    def widen_protocols(self, protocol: dict[str, Any]) -> None:
        """Extend every protocol by the features of ``protocol``."""
        self.protocols = {v: _merge_protocols(p, protocol) for v, p in self.protocols.items()}

    def feed_at(self, version: int) -> bool | None:
        """Return whether the change data feed is on after a version; None if that is unknown."""
        return feed_enabled(self.find_state(version).metadata)

    def first_with_feed(self, *, on: bool, last: int) -> int | None:
        """Return the first version, up to ``last``, after which the feed is on, or off."""
        versions = sorted({self.first, *(v for v in self.metadata if v <= last)})
        return next((v for v in versions if (self.feed_at(v) is True) is on), None)


def _check_kind(values: dict[str, Any], key: str, kind: type) -> None:
    if not isinstance(values.get(key), kind):
        raise TableError(f"{key} is missing in the sharing server's answer")


def _list_features(protocol: dict[str, Any], *, readers: bool) -> set[str]:
    """Return the features that a protocol supports, by its lists or by its legacy versions."""
    kind, last = ("Reader", 3) if readers else ("Writer", 7)
    version = int(protocol.get(f"min{kind}Version") or 0)
    if version == last:
        return set(protocol.get(f"{kind.lower()}Features") or ())
    return {
        f.name
        for f in FEATURES.values()
        if (since := f.legacy_reader if readers else f.legacy_writer) is not None
        and since <= version
    }


def _merge_protocols(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Return the protocol that supports the features of both.

    The protocol decides which of a table's properties count, and protocols grow. With a later
    schema and an earlier protocol, a reader would ignore the column mapping.
    """
    if a == b:
        return a
    readers = _list_features(a, readers=True) | _list_features(b, readers=True)
    writers = _list_features(a, readers=False) | _list_features(b, readers=False)
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(readers),
        "writerFeatures": sorted(writers | readers),
    }
