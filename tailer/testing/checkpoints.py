"""Checkpoints of every kind, log compaction and log cleanup for a
:class:`~tailer.testing.writer.TableWriter`.

"Checkpoints", "Log Compaction Files", "Metadata Cleanup".
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.testing.model import TableVersion
from tailer.testing.table import Action, TableBuilder

__all__ = ["CLASSIC_KINDS", "V2_KINDS", "LogUpkeep"]

CLASSIC_KINDS = ("classic", "multi-part")
#: Only for tables with the feature v2Checkpoint.
V2_KINDS = ("v2-json", "v2-parquet", "v2-classic-named")

_STRINGS = pa.map_(pa.string(), pa.string())
_FILE = [
    ("path", pa.string()),
    ("partitionValues", _STRINGS),
    ("size", pa.int64()),
    ("dataChange", pa.bool_()),
    ("baseRowId", pa.int64()),
    ("defaultRowCommitVersion", pa.int64()),
    (
        "deletionVector",
        pa.struct(
            [
                ("storageType", pa.string()),
                ("pathOrInlineDv", pa.string()),
                ("offset", pa.int32()),
                ("sizeInBytes", pa.int32()),
                ("cardinality", pa.int64()),
            ]
        ),
    ),
]
_ADD = pa.struct([*_FILE, ("modificationTime", pa.int64()), ("stats", pa.string())])
_REMOVE = pa.struct(
    [*_FILE, ("deletionTimestamp", pa.int64()), ("extendedFileMetadata", pa.bool_())]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _STRINGS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _STRINGS),
        ("createdTime", pa.int64()),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
_DOMAIN = pa.struct(
    [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_SIDECAR = pa.struct(
    [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]
)
_FILES_SCHEMA = pa.schema([("add", _ADD), ("remove", _REMOVE)])
_CLASSIC_SCHEMA = pa.schema(
    [
        *_FILES_SCHEMA,
        ("metaData", _METADATA),
        ("protocol", _PROTOCOL),
        ("domainMetadata", _DOMAIN),
        ("txn", _TXN),
    ]
)
_V2_SCHEMA = pa.schema(
    [
        *_CLASSIC_SCHEMA,
        ("checkpointMetadata", pa.struct([("version", pa.int64())])),
        ("sidecar", _SIDECAR),
    ]
)


class LogUpkeep:
    """The part of a writer that keeps the log short. None of it changes the table."""

    present: TableVersion
    versions: dict[int, TableVersion]
    builder: TableBuilder
    rng: random.Random
    unique: Callable[[], str]

    def checkpoint(self, kind: str = "classic", version: int | None = None) -> Path:
        """Write a checkpoint of a version (None: the newest), and ``_last_checkpoint``.

        ``kind`` is one of :data:`CLASSIC_KINDS` or :data:`V2_KINDS`. Returns its (first) file.
        """
        number = self.present.version if version is None else version
        steering, files = _checkpoint_actions(self.versions[number])
        stem = f"{number:020d}.checkpoint"
        hint: dict[str, Any] = {"version": number, "size": len(steering) + len(files)}
        if kind == "multi-part":
            parts = self.rng.choice([2, 3])
            hint["parts"] = parts
            shares = _shares([*steering, *files], parts)
            paths = [
                _write_parquet(
                    self.builder.log / f"{stem}.{i:010d}.{parts:010d}.parquet",
                    share,
                    _CLASSIC_SCHEMA,
                )
                for i, share in enumerate(shares, start=1)
            ]
            path = paths[0]
        elif kind == "classic":
            path = _write_parquet(
                self.builder.log / f"{stem}.parquet", [*steering, *files], _CLASSIC_SCHEMA
            )
        elif kind in V2_KINDS:
            path = self._v2_checkpoint(kind, stem, number, [*steering], files)
        else:
            raise ValueError(f"there is no checkpoint of kind {kind!r}")
        (self.builder.log / "_last_checkpoint").write_text(json.dumps(hint))
        return path

    def _v2_checkpoint(
        self, kind: str, stem: str, number: int, steering: list[Action], files: list[Action]
    ) -> Path:
        top: list[Action] = [{"checkpointMetadata": {"version": number}}, *steering]
        # All file actions are in sidecars, or none is.
        if self.rng.random() < 0.75:
            top += [self._sidecar(share) for share in _shares(files, self.rng.choice([1, 2]))]
        else:
            top += files
        if kind == "v2-json":
            path = self.builder.log / f"{stem}.{self.unique()}.json"
            path.write_text("".join(json.dumps(action) + "\n" for action in top))
            return path
        unique = "" if kind == "v2-classic-named" else f".{self.unique()}"
        return _write_parquet(self.builder.log / f"{stem}{unique}.parquet", top, _V2_SCHEMA)

    def _sidecar(self, files: Sequence[Action]) -> Action:
        path = self.builder.log / "_sidecars" / f"{self.unique()}.parquet"
        path.parent.mkdir(exist_ok=True)
        _write_parquet(path, files, _FILES_SCHEMA)
        size = path.stat().st_size
        return {"sidecar": {"path": path.name, "sizeInBytes": size, "modificationTime": 0}}

    def compact_log(self, first: int) -> Path:
        """Write the log compaction of the versions ``first`` to the newest; two at least."""
        last = self.present.version
        found: dict[tuple[str, ...], Action] = {}
        for version in range(first, last + 1):
            for line in self.builder.commit_path(version).read_text().splitlines():
                action: Action = json.loads(line)
                ((kind, fields),) = action.items()
                if kind in ("add", "remove"):
                    key = (fields["path"], json.dumps(fields.get("deletionVector")))
                elif kind in ("commitInfo", "cdc"):
                    continue
                else:
                    key = (kind, str(fields.get("domain", "")))
                found[key] = action
        path = self.builder.log / f"{first:020d}.{last:020d}.compacted.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in found.values()))
        return path

    def clean_log(self) -> int:
        """Remove all that is older than the newest checkpoint. Returns its version, the oldest
        that can still be built; with no checkpoint nothing is removed, and it is 0."""
        log = self.builder.log
        newest = max((int(f.name[:20]) for f in log.glob("*.checkpoint.*")), default=0)
        for file in log.glob("*.*"):
            if file.name[:20].isdigit() and int(file.name[:20]) < newest:
                file.unlink()
        return newest


def _checkpoint_actions(version: TableVersion) -> tuple[list[Action], list[Action]]:
    """What steers, and the file actions, which say dataChange=false in a checkpoint."""
    steering = [version.protocol(), version.metadata()]
    domain = version.domain()
    if domain is not None:
        steering.append(domain)
    files = [file.add(data_change=False) for file in version.files.values()]
    removes = (action["remove"] for action in version.tombstones.values())
    files += [{"remove": {**fields, "dataChange": False}} for fields in removes]
    return steering, files


def _shares(actions: Sequence[Action], parts: int) -> list[list[Action]]:
    return [list(actions[i::parts]) for i in range(parts)]


def _write_parquet(path: Path, actions: Sequence[Action], schema: pa.Schema) -> Path:
    table = pa.Table.from_pylist([*actions], schema=schema)
    pq.write_table(table, path, compression="snappy")
    return path
