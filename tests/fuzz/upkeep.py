"""The steps that keep a log short, and commit nothing: checkpoints, compactions, clean-up."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from hashlib import md5
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.actions import add_action, protocol_action
from tests.fuzz.model import START_MS, Action
from tests.fuzz.odd_json import line
from tests.fuzz.table import Table

__all__ = ["checkpoint", "checksum", "clean", "compact", "noise"]

_TEXTS = pa.map_(pa.string(), pa.string())
_DV = pa.struct({"storageType": pa.string(), "pathOrInlineDv": pa.string(), "offset": pa.int32(),
                 "sizeInBytes": pa.int32(), "cardinality": pa.int64()})  # fmt: skip
_FILE = {"path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(),
         "dataChange": pa.bool_(), "deletionVector": _DV, "baseRowId": pa.int64(),
         "defaultRowCommitVersion": pa.int64()}  # fmt: skip
_ADD = {**_FILE, "modificationTime": pa.int64(), "stats": pa.string(), "tags": _TEXTS}
_COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "add": _ADD,
    "remove": {**_FILE, "deletionTimestamp": pa.int64(), "extendedFileMetadata": pa.bool_()},
    "metaData": {
        "id": pa.string(), "name": pa.string(),
        "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
        "schemaString": pa.string(), "partitionColumns": pa.list_(pa.string()),
        "configuration": _TEXTS, "createdTime": pa.int64(),
    },
    "protocol": {
        "minReaderVersion": pa.int32(), "minWriterVersion": pa.int32(),
        "readerFeatures": pa.list_(pa.string()), "writerFeatures": pa.list_(pa.string()),
    },
    "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
    "domainMetadata": {
        "domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()
    },
    "checkpointMetadata": {"version": pa.int64(), "tags": _TEXTS},
    "sidecar": {
        "path": pa.string(), "sizeInBytes": pa.int64(), "modificationTime": pa.int64()
    },
}  # fmt: skip

_KINDS = ("classic", "parts")
_V2_KINDS = ("classic", "v2-json", "v2-parquet", "v2-classic")


def checkpoint(table: Table) -> None:
    """A checkpoint of one version, of a kind that the table allows."""
    version = table.rng.randint(table.cleaned, table.version)
    v2 = "v2Checkpoint" in table.state.features
    kind = table.rng.choice(_V2_KINDS if v2 else _KINDS)
    _write(table, version, kind)
    table.story[-1] += f" ({kind} of version {version})"


def _write(table: Table, version: int, kind: str) -> None:
    rng, stem = table.rng, f"_delta_log/{version:020d}.checkpoint"
    top, files = _actions(table, version)
    hint: dict[str, Any] = {"version": version, "size": len(top) + len(files)}
    if kind == "parts":
        count = rng.randint(2, 3)
        hint["parts"] = count
        shares = _shares([*top, *files], count)
        for i, share in enumerate(shares, start=1):
            name = f"{stem}.{i:010d}.{count:010d}.parquet"
            table.log[name] = _parquet(share, rng), START_MS
    elif kind == "classic":
        table.log[f"{stem}.parquet"] = _parquet([*top, *files], rng), START_MS
    else:
        top.append({"checkpointMetadata": {"version": version}})
        if rng.random() < 0.7:
            top += [_sidecar(table, share) for share in _shares(files, rng.randint(1, 3))]
        else:
            top += files
        rng.shuffle(top)
        if kind == "v2-json":
            text = "".join(line(a, rng, table.odd - {"no_end"}) + "\n" for a in top)
            table.log[f"{stem}.{table.uuid()}.json"] = text.encode(), START_MS
        else:
            middle = "" if kind == "v2-classic" else f".{table.uuid()}"
            table.log[f"{stem}{middle}.parquet"] = _parquet(top, rng), START_MS
    if rng.random() < 0.7:
        _write_hint(table, hint, sum("add" in a for a in files))


def _actions(table: Table, version: int) -> tuple[list[Action], list[Action]]:
    """What steers a version, and its file actions."""
    rng, at = table.rng, table.history[version]
    state = at["state"]
    top = [protocol_action(state), _of_version(table, version, "metaData")]
    top += at["transactions"].values()
    top += [d for d in at["domains"].values() if not d["domainMetadata"]["removed"]]
    files: list[Action] = []
    files += [add_action(table, file, data_change=False) for file in at["files"].values()]
    if rng.random() < 0.7:  # else they have expired
        removes = (found["remove"] for found in at["tombstones"].values())
        files += [{"remove": {**fields, "dataChange": False}} for fields in removes]
    rng.shuffle(files)
    return top, files


def _of_version(table: Table, version: int, kind: str) -> Action:
    """The last action of a kind up to a version."""
    found = (a for v in range(version, -1, -1) for a in table.actions[v] if kind in a)
    return next(found)


def _shares(actions: Sequence[Action], count: int) -> list[list[Action]]:
    return [list(actions[i::count]) for i in range(count)]


def _sidecar(table: Table, files: Sequence[Action]) -> Action:
    name = f"{table.uuid()}.parquet"
    data = _parquet(files, table.rng, ("add", "remove"))
    table.log[f"_delta_log/_sidecars/{name}"] = data, START_MS
    path = table.rng.choice([name, name, f"file:///memory/_delta_log/_sidecars/{name}"])
    return {"sidecar": {"path": path, "sizeInBytes": len(data), "modificationTime": START_MS}}


def _parquet(
    actions: Sequence[Action],
    rng: random.Random,
    names: Sequence[str] = tuple(_COLUMNS),
) -> bytes:
    """A checkpoint's file. Any column that no action needs may be missing."""
    kinds = {kind for action in actions for kind in action}
    columns = [n for n in names if n in kinds or rng.random() < 0.5] or [names[0]]
    if "checkpointMetadata" not in kinds:
        columns = [n for n in columns if n not in ("checkpointMetadata", "sidecar")]
    rng.shuffle(columns)
    arrays = []
    for name in columns:
        fields = dict(_COLUMNS[name])
        values = [action.get(name) for action in actions]
        if name == "add":
            values, fields = _statistics(values, fields, rng)
        for field in ("tags", "deletionVector", "baseRowId", "lastUpdated", "createdTime"):
            if (
                field in fields
                and rng.random() < 0.3
                and not any(v and v.get(field) is not None for v in values)
            ):
                del fields[field]
        arrays.append(pa.array(values, pa.struct(fields)))
    out = io.BytesIO()
    pq.write_table(
        pa.table(arrays, names=columns),
        out,
        row_group_size=rng.choice([2, 1000, 1000, 1000]),
        compression=rng.choice(["none", "snappy"]),
        store_schema=rng.random() < 0.5,
    )
    return out.getvalue()


def _statistics(
    values: list[Any], fields: dict[str, pa.DataType], rng: random.Random
) -> tuple[list[Any], dict[str, pa.DataType]]:
    """Now and then with statistics as a struct in place of the text, or beside it."""
    draw = rng.random()
    if draw < 0.6:
        return values, fields
    fields["stats_parsed"] = pa.struct({"numRecords": pa.int64()})
    found: list[Any] = []
    for add in values:
        if add is not None:
            text = add.get("stats")
            records = json.loads(text).get("numRecords") if text else None
            parsed = {"stats_parsed": None if records is None else {"numRecords": records}}
            kept = {k: v for k, v in add.items() if k != "stats"} if draw < 0.8 else add
            found.append({**kept, **parsed})
        else:
            found.append(None)
    if draw < 0.8:
        del fields["stats"]
    return found, fields


def _write_hint(table: Table, hint: dict[str, Any], adds: int) -> None:
    rng = table.rng
    if rng.random() < 0.5:
        hint["numOfAddFiles"] = adds
    if rng.random() < 0.3:
        hint["tags"] = {"a b": "é/"}
    if rng.random() < 0.5:
        hint["checksum"] = md5(_canonical(hint).encode(), usedforsecurity=False).hexdigest()
    table.log["_delta_log/_last_checkpoint"] = json.dumps(hint).encode(), START_MS


def _canonical(hint: dict[str, Any]) -> str:
    leaves = []
    for key, found in hint.items():
        if isinstance(found, dict):
            leaves += [
                (f'"{key}"+"{quote(k, safe="")}"', f'"{quote(v, safe="")}"')
                for k, v in found.items()
            ]
        else:
            leaves.append((f'"{key}"', str(found)))
    return ",".join(f"{k}={v}" for k, v in sorted(leaves, key=lambda leaf: leaf[0].encode()))


def compact(table: Table) -> None:
    """A compaction of two versions or more: of each thing, the newest reference."""
    rng = table.rng
    if table.version - table.cleaned < 1:
        return
    first = rng.randint(table.cleaned, table.version - 1)
    last = rng.randint(first + 1, table.version)
    found: dict[tuple[str, ...], Action] = {}
    for version in range(first, last + 1):
        for action in table.actions[version]:
            ((kind, fields),) = action.items()
            if kind in ("add", "remove"):
                found.pop(_key(fields), None)
                found[_key(fields)] = action
            elif kind in ("protocol", "metaData"):
                found[kind,] = action
            elif kind in ("txn", "domainMetadata"):
                found[kind, fields.get("appId") or fields["domain"]] = action
    actions = list(found.values())
    rng.shuffle(actions)
    text = "".join(line(a, rng, table.odd) + "\n" for a in actions)
    name = f"_delta_log/{first:020d}.{last:020d}.compacted.json"
    table.log[name] = text.encode(), START_MS
    table.story[-1] += f" (versions {first} to {last})"


def _key(fields: dict[str, Any]) -> tuple[str, ...]:
    """The key of a logical file, however its path is spelled."""
    dv = fields.get("deletionVector") or {}
    path = fields["path"].replace("%70art-", "part-").replace("%3D", "=")
    return path.replace("file:///", "file:/"), str(dv.get("pathOrInlineDv")), str(dv.get("offset"))


def checksum(table: Table) -> None:
    """A version checksum file."""
    version = table.rng.randint(table.cleaned, table.version)
    at = table.history[version]
    document = {
        "tableSizeBytes": sum(f.action["size"] for f in at["files"].values()),
        "numFiles": len(at["files"]),
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": _of_version(table, version, "metaData")["metaData"],
        "protocol": protocol_action(at["state"])["protocol"],
    }
    if table.rng.random() < 0.3:
        document["inCommitTimestampOpt"] = START_MS
    table.log[f"_delta_log/{version:020d}.crc"] = json.dumps(document).encode(), START_MS


def clean(table: Table) -> None:
    """Write a checkpoint, and remove what is older; its own commit may go as well."""
    if table.version - table.cleaned < 1:
        return
    v2 = "v2Checkpoint" in table.state.features
    version = table.rng.randint(table.cleaned + 1, table.version)
    _write(table, version, table.rng.choice(_V2_KINDS if v2 else _KINDS))
    table.cleaned = version + (version < table.version and table.rng.random() < 0.3)
    for name in list(table.log):
        number = name.removeprefix("_delta_log/")[:20]
        if not number.isdigit():
            continue
        compacted = name.endswith("compacted.json")
        if int(number) < version or (compacted and int(number) <= version):
            del table.log[name]
    table.buildable = version
    table.story[-1] += f" (before version {version})"


def noise(table: Table) -> None:
    """Files in the log's folder that are none of its own."""
    version = table.version
    names = [
        f".{version:020d}.json.crc",
        f"{version:020d}.json.tmp",
        "_commits/x.json",
        f"{version + 1:020d}.checkpoint.parquet.tmp",
        f"{version:020d}.checkpoint.0000000001.0000000002.parquet",
    ]
    # A part of a real checkpoint stays as it is.
    table.log.setdefault("_delta_log/" + table.rng.choice(names), (b"not of the log", START_MS))
