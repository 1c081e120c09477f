"""A naive reader of Delta tables, by the protocol's text: slow, small, and with no code of ours.

It replays every commit from version 0 with ``json``, reads whole files with pyarrow, and works on
rows as dictionaries by physical names. It knows no checkpoint, hint, compaction or statistics.
Where the text leaves a rule open, docs/derived-changes.md and tailer/plan/rules.py say what holds:
changes are relative to the files of the version before, a file that is removed and added with two
deletion vectors is their difference, and a table without a change feed has derived changes.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import re
import struct
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

Json = dict[str, Any]
Key = tuple[str, str]
_MAPPING = "delta.columnMapping"
_TRACKING = "delta.rowTracking.materializedRow"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class Change(NamedTuple):
    """A changed row. ``leaves`` says that its columns are those of the version before."""

    kind: str
    row: Json
    leaves: bool
    row_id: int | None = None


class State:
    """Protocol and metadata of one version."""

    def __init__(self, protocol: Json, metadata: Json) -> None:
        self.protocol, self.metadata = protocol, metadata
        self.properties: dict[str, str] = metadata["configuration"]
        self.mapping = "none"
        if self.supports("columnMapping", reader=2):
            self.mapping = self.properties.get(f"{_MAPPING}.mode", "none")
        fields = json.loads(metadata["schemaString"])["fields"]
        self.columns: list[Json] = [f for f in fields if f["type"] != "void"]
        names = {f["name"]: self.physical(f) for f in fields}
        self.partition_by = [names[n] for n in metadata["partitionColumns"]]

    def physical(self, field: Json) -> str:
        """The name of a column in files and partition values."""
        if self.mapping == "none":
            return str(field["name"])
        return str(field["metadata"][f"{_MAPPING}.physicalName"])

    def supports(self, feature: str, *, reader: int = 0, writer: int = 0) -> bool:
        """Whether the protocol has the feature, by its lists or by a legacy version."""
        kind, last = ("reader", 3) if reader else ("writer", 7)
        version = int(self.protocol[f"min{kind.capitalize()}Version"])
        if version == last:
            return feature in (self.protocol.get(f"{kind}Features") or ())
        return version == reader if reader else 0 < writer <= version

    def on(self, key: str, feature: str, writer: int = 0) -> bool:
        """Whether a property is true and its feature supported."""
        wanted = self.properties.get(key, "").lower() == "true"
        return wanted and self.supports(feature, writer=writer)

    @property
    def cdf(self) -> bool:
        return self.on("delta.enableChangeDataFeed", "changeDataFeed", 4)

    @property
    def tracked(self) -> bool:
        return self.on("delta.enableRowTracking", "rowTracking")

    @property
    def stamped(self) -> bool:
        key = "delta.enableInCommitTimestamps"
        return any(self.on(key, f"inCommitTimestamp{s}") for s in ("", "s"))

    def visible(self, row: Json) -> Json:
        """A stored row, less what these columns do not have; null for what it does not have."""
        return {
            p: _as(row.get(p), c["type"], self) for c in self.columns for p in (self.physical(c),)
        }

    def physical_row(self, row: Mapping[str, Any]) -> Json:
        """A row by the names that users see, by physical names."""
        return {
            self.physical(c): _by_physical(row[c["name"]], c["type"], self) for c in self.columns
        }


class Reference:
    """The table whose files these are: (bytes, modification time in ms) by location."""

    def __init__(self, files: Mapping[str, tuple[bytes, int]]) -> None:
        self._files = files
        self.commits: list[list[Json]] = []
        self.states: list[State] = []
        self.live: list[dict[Key, Json]] = []
        self.transactions: list[dict[str, int]] = []
        self.domains: list[dict[str, str]] = []
        self._read: dict[str, pa.Table] = {}
        while (name := f"_delta_log/{len(self.commits):020d}.json") in files:
            lines = files[name][0].decode().split("\n")
            self._replay([json.loads(line) for line in lines if line.strip()])

    def _replay(self, lines: list[Json]) -> None:
        actions = [{k: v for k, v in line.items() if v is not None} for line in lines]
        self.commits.append(actions)
        old = self.states[-1] if self.states else None
        protocol = next(iter(self._all("protocol")), old.protocol if old else {})
        metadata = next(iter(self._all("metaData")), old.metadata if old else {})
        same = old is not None and protocol is old.protocol and metadata is old.metadata
        self.states.append(old if old and same else State(protocol, metadata))
        live = dict(self.live[-1]) if self.live else {}
        for remove in self._all("remove"):
            live.pop(_key(remove), None)
        live.update({_key(add): add for add in self._all("add")})
        self.live.append(live)
        transactions = dict(self.transactions[-1]) if self.transactions else {}
        transactions.update({t["appId"]: int(t["version"]) for t in self._all("txn")})
        self.transactions.append(transactions)
        domains = dict(self.domains[-1]) if self.domains else {}
        for d in self._all("domainMetadata"):
            domains.pop(d["domain"], None)
            if not d["removed"]:
                domains[d["domain"]] = d["configuration"]
        self.domains.append(domains)

    def _all(self, kind: str, version: int = -1) -> list[Json]:
        return [action[kind] for action in self.commits[version] if kind in action]

    def timestamp(self, version: int, floor: int | None) -> int:
        """A commit's time in ms, ``floor`` being that of the version before."""
        state = self.states[version]
        since = int(state.properties.get("delta.inCommitTimestampEnablementVersion", 0))
        if state.stamped and version >= since:
            return int(self._all("commitInfo", version)[0]["inCommitTimestamp"])
        mtime = self._files[f"_delta_log/{version:020d}.json"][1]
        return mtime if floor is None else max(mtime, floor + 1)

    def rows(self, version: int) -> list[Json]:
        """The table's rows, with their stable ids under ``""``."""
        state = self.states[version]
        return [row for add in self.live[version].values() for _, row in self._live(add, state)]

    # Files

    def _live(self, add: Json, state: State) -> Iterator[tuple[int, Json]]:
        gone = self._vector(add.get("deletionVector"))
        rows = enumerate(self._stored(add, state))
        return ((i, row) for i, row in rows if i not in gone)

    def _stored(self, action: Json, state: State, *, cdc: bool = False) -> list[Json]:
        """All rows of a file, with partition values, stable row ids and versions."""
        table = self._parquet(_location(action["path"]))
        columns: dict[str, list[Any]] = {}
        texts = action.get("partitionValues") or {}
        for c in state.columns:
            physical = state.physical(c)
            if physical in state.partition_by:
                text = texts.get(physical) if cdc else texts[physical]
                columns[physical] = [_typed(text, c["type"])] * table.num_rows
            else:
                at = _find(table.schema, c, state)
                found = [None] * table.num_rows if at is None else table.column(at).to_pylist()
                kind = None if at is None else table.schema.field(at).type
                columns[physical] = [_stored_value(v, kind, c["type"], state) for v in found]
        if cdc:
            columns["_change_type"] = table.column("_change_type").to_pylist()
        elif action.get("baseRowId") is not None:
            count, names = range(table.num_rows), table.schema.names
            columns[""] = [int(action["baseRowId"]) + i for i in count]
            name = state.properties.get(f"{_TRACKING}IdColumnName")
            if name in names:
                own = table.column(name).to_pylist()
                columns[""] = [b if a is None else a for a, b in zip(own, columns[""], strict=True)]
        named = list(columns)
        if not named:
            return [{} for _ in range(table.num_rows)]
        return [dict(zip(named, v, strict=True)) for v in zip(*columns.values(), strict=True)]

    def _parquet(self, path: str) -> pa.Table:
        found = self._read.get(path)
        if found is None:
            data = io.BytesIO(self._files[path][0])
            file = pq.ParquetFile(data, coerce_int96_timestamp_unit="us")
            found = self._read[path] = file.read(use_threads=False)
        return found

    def _vector(self, dv: Json | None) -> set[int]:
        """The rows that a deletion vector deletes ("Deletion Vector Format")."""
        if dv is None:
            return set()
        text, size = dv["pathOrInlineDv"], int(dv["sizeInBytes"])
        if dv["storageType"] == "i":
            data = _z85(text)[:size]
        else:
            where = _location(text)
            if dv["storageType"] == "u":
                name = f"deletion_vector_{uuid.UUID(bytes=_z85(text[-20:]))}.bin"
                where = f"{text[:-20]}/{name}" if text[:-20] else name
            at = int(dv.get("offset") or 0) + 4
            data = self._files[where][0][at : at + size]
        found = set(_roaring(data))
        assert len(found) == int(dv["cardinality"])
        return found

    # Changes

    def changes(self, version: int) -> list[Change]:
        """A version's changes: cdc files, else files where there is a feed, else derived."""
        if self._all("cdc", version):
            state = self.states[version]
            return [
                Change(row.pop("_change_type"), row, leaves=False)
                for cdc in self._all("cdc", version)
                for row in self._stored(cdc, state, cdc=True)
            ]
        if self.states[version].cdf:
            return [c for _, c in self._moved(version, only_changes=True)]
        return self.derived(version)

    def _moved(self, version: int, *, only_changes: bool) -> list[tuple[Key, Change]]:
        """The rows that leave and come with a version's files, by what is live before it."""
        before = self.live[version - 1] if version else {}
        found: list[tuple[Key, Change]] = []
        sides: list[dict[str, tuple[Json, dict[int, Json]]]] = []
        for kind, state_at, present in (("remove", version - 1, True), ("add", version, False)):
            side = {}
            for action in self._all(kind, version):
                if (_key(action) in before) != present or (
                    only_changes and not action["dataChange"]
                ):
                    continue
                whole = before[_key(action)] if present else action
                rows = dict(self._live(whole, self.states[state_at]))
                side[_location(action["path"])] = whole, rows
            sides.append(side)
        for side, other, kind in ((sides[0], sides[1], "delete"), (sides[1], sides[0], "insert")):
            for path, (action, rows) in side.items():
                _, again = other.get(path, ({}, {}))
                found += [
                    (_key(action), Change(kind, row, kind == "delete", row.pop("", None)))
                    for i, row in rows.items()
                    if i not in again
                ]
        return found

    def derived(self, version: int) -> list[Change]:
        """The fewest changes that values and row ids allow."""
        if not any(a["dataChange"] for kind in ("add", "remove") for a in self._all(kind, version)):
            return []
        moved = [change for _, change in self._moved(version, only_changes=False)]
        before = self.states[version - 1] if version else None
        after = self.states[version]
        if {c.kind for c in moved} != {"insert", "delete"} or before is None:
            return moved
        if self._ids_hold(version, before, after, moved):
            return _by_ids(moved, after)
        left, came = (
            Counter(key(after.visible(c.row)) for c in moved if c.kind == kind)
            for kind in ("delete", "insert")
        )
        rest = {"delete": left - came, "insert": came - left}
        found = []
        for change in moved:
            value = key(after.visible(change.row))
            if rest[change.kind][value] > 0:
                rest[change.kind][value] -= 1
                found.append(change)
        return found

    def _ids_hold(self, version: int, before: State, after: State, moved: list[Change]) -> bool:
        info = next(iter(self._all("commitInfo", version)), {})
        kept = (info.get("tags") or {}).get("delta.rowTracking.preserved") == "true"
        return (
            kept and before.tracked and after.tracked and all(c.row_id is not None for c in moved)
        )


def _by_ids(moved: list[Change], after: State) -> list[Change]:
    old, new = ({c.row_id: c for c in moved if c.kind == k} for k in ("delete", "insert"))
    found = []
    for row_id in {**old, **new}:
        left, came = old.get(row_id), new.get(row_id)
        if left is None or came is None:
            found.append(left or came or moved[0])
        elif key(after.visible(left.row)) != key(after.visible(came.row)):
            found.append(left._replace(kind="update_preimage"))
            found.append(came._replace(kind="update_postimage"))
    return found


def key(value: Any) -> Any:
    """A value that is equal where rows are: NaN is NaN, 0.0 is -0.0, maps have no order."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return tuple((k, key(v)) for k, v in sorted(value.items()))
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return frozenset((key(k), key(v)) for k, v in value)
        return tuple(key(v) for v in value)
    return value


def _key(action: Json) -> Key:
    dv = action.get("deletionVector")
    if dv is None:
        return _location(action["path"]), ""
    at = "" if dv.get("offset") is None else f"@{int(dv['offset'])}"
    return _location(action["path"]), f"{dv['storageType']}{dv['pathOrInlineDv']}{at}"


def _location(path: str) -> str:
    return unquote(re.sub(r"^file:(//)?", "", path))


# Values


def _find(schema: Any, column: Json, state: State) -> int | None:
    """The place of a column among a file's fields ("Reader Requirements for Column Mapping")."""
    for i, field in enumerate(schema):
        if state.mapping == "id":
            number = (field.metadata or {}).get(b"PARQUET:field_id")
            if number is not None and int(number) == column["metadata"][f"{_MAPPING}.id"]:
                return i
        elif field.name == state.physical(column):
            return i
    return None


def _stored_value(value: Any, stored: Any, kind: Any, state: State) -> Any:
    """A file's value as one of the column's type, structs by physical names."""
    if value is None:
        return None
    if isinstance(kind, str):
        return _as(value, kind, state)
    if kind["type"] == "array":
        return [_stored_value(v, stored.value_type, kind["elementType"], state) for v in value]
    if kind["type"] == "map":
        return [(k, _stored_value(v, stored.item_type, kind["valueType"], state)) for k, v in value]
    fields = [stored.field(i) for i in range(stored.num_fields)]
    found: Json = {}
    for f in kind["fields"]:
        at = _find(fields, f, state)
        inner = None if at is None else value[fields[at].name]
        kept = None if at is None else _stored_value(inner, fields[at].type, f["type"], state)
        found[state.physical(f)] = kept
    return found


def _as(value: Any, kind: Any, state: State) -> Any:
    """A value, structs by physical names, in a type that is the same or wider."""
    if value is None:
        return None
    if isinstance(kind, str):
        if kind in ("timestamp", "timestamp_ntz") and not isinstance(value, dt.datetime):
            return dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001 - it has none
        if kind == "timestamp" and value.tzinfo is None:
            return value.replace(tzinfo=dt.UTC)
        return float(value) if kind == "double" else value
    if kind["type"] == "array":
        return [_as(v, kind["elementType"], state) for v in value]
    if kind["type"] == "map":
        return [(k, _as(v, kind["valueType"], state)) for k, v in value]
    named = ((state.physical(f), f["type"]) for f in kind["fields"])
    return {name: _as(value.get(name), inner, state) for name, inner in named}


def _by_physical(value: Any, kind: Any, state: State) -> Any:
    """A value with its structs by physical names; so far by those that users see."""
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "array":
        return [_by_physical(v, kind["elementType"], state) for v in value]
    if kind["type"] == "map":
        return [(k, _by_physical(v, kind["valueType"], state)) for k, v in value]
    named = ((state.physical(f), f) for f in kind["fields"])
    return {p: _by_physical(value[f["name"]], f["type"], state) for p, f in named}


def _typed(text: str | None, kind: str) -> Any:
    """A partition value ("Partition Value Serialization")."""
    if text is None or text == "":
        return None
    match kind:
        case "string":
            return text
        case "binary":
            return text.encode()
        case "boolean":
            return text == "true"
        case "date":
            return dt.date.fromisoformat(text)
        case "float" | "double":
            found = float(text)
            return struct.unpack("f", struct.pack("f", found))[0] if kind == "float" else found
        case "timestamp" | "timestamp_ntz":
            whole, _, fraction = text.removesuffix("Z").partition(".")
            time = dt.datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0")))
            return time.replace(tzinfo=dt.UTC) if kind == "timestamp" else time
    return Decimal(text) if kind.startswith("decimal") else int(text)


# Deletion vectors


def _z85(text: str) -> bytes:
    out = b""
    for at in range(0, len(text), 5):
        value = 0
        for char in text[at : at + 5]:
            value = value * 85 + _Z85.index(char)
        out += value.to_bytes(4, "big")
    return out


def _roaring(data: bytes) -> Iterator[int]:
    """The members of a 64-bit roaring bitmap, after the magic number."""
    assert struct.unpack_from("<i", data)[0] == 1681511377
    (buckets,), at = struct.unpack_from("<Q", data, 4), 12
    for _ in range(buckets):
        (high,) = struct.unpack_from("<I", data, at)
        at += 4
        (cookie,) = struct.unpack_from("<I", data, at)
        at += 4
        if cookie & 0xFFFF == 12347:  # some containers are runs
            count = (cookie >> 16) + 1
            runs = int.from_bytes(data[at : at + (count + 7) // 8], "little")
            at += (count + 7) // 8
        else:
            (count,), runs, at = struct.unpack_from("<I", data, at), 0, at + 4
        heads = [struct.unpack_from("<HH", data, at + 4 * i) for i in range(count)]
        at += 4 * count
        at += 0 if cookie & 0xFFFF == 12347 and count < 4 else 4 * count  # offsets
        for i, (middle, less_one) in enumerate(heads):
            base = (high << 32) + (middle << 16)
            if runs >> i & 1:
                (n,) = struct.unpack_from("<H", data, at)
                for first, more in struct.iter_unpack("<HH", data[at + 2 : at + 2 + 4 * n]):
                    yield from range(base + first, base + first + more + 1)
                at += 2 + 4 * n
            else:  # the histories have no file of 4096 rows, so no container is a bitmap
                assert less_one < 4096
                yield from (
                    base + v
                    for (v,) in struct.iter_unpack("<H", data[at : at + 2 * (less_one + 1)])
                )
                at += 2 * (less_one + 1)
