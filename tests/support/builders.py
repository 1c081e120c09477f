"""Builders of tables for programs that write them in every way that the protocol allows.

"Checkpoints", "Log Compaction Files", "Metadata Cleanup".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailer.testing.actions import Action
from tailer.testing.checkpoint_files import CLASSIC_SCHEMA, FILES_SCHEMA, V2_SCHEMA
from tailer.testing.table import TableBuilder

CLASSIC_KINDS = ("classic", "multi-part")
#: Only for tables with the feature v2Checkpoint.
V2_KINDS = ("v2-json", "v2-parquet", "v2-classic-named")

_FILE_KINDS = {"add", "remove"}
#: The features that a reader must support too, of those that tests use.
READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_FILES_MAX = 50_000
_written: dict[str, bytes] = {}


def features_protocol(features: Iterable[str]) -> Action:
    """Return the protocol action that names these table features."""
    writers = sorted(features)
    readers = sorted(READER_FEATURES & set(writers))
    fields: Action = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    if readers:
        fields["readerFeatures"] = readers
    return {"protocol": {**fields, "writerFeatures": writers}}


class VersatileBuilder(TableBuilder):
    """A builder that writes checkpoints of every kind and log compactions, and cleans up."""

    def checkpoint(
        self,
        version: int | None = None,
        *,
        kind: str = "classic",
        actions: Sequence[Action] | None = None,
        parts: int = 2,
        sidecars: int = 1,
        hint: bool = True,
        checksum: bool = True,
    ) -> Path:
        """Write the checkpoint of a version, and ``_last_checkpoint`` with ``hint``.

        ``kind`` is one of :data:`CLASSIC_KINDS` or :data:`V2_KINDS`, ``actions`` what it holds:
        by default what the commits from version 0 on say. A multi-part checkpoint has so many
        ``parts``, one of version 2 so many ``sidecars``; with 0 it holds the files itself.
        ``checksum`` is the hint's. Returns the (first) file's path.
        """
        number = self.version if version is None else version
        rows = self.in_checkpoint(self.reconciled(number) if actions is None else actions)
        stem, more = f"{number:020d}.checkpoint", {}
        if kind == "classic":
            path = self.put_log(f"{stem}.parquet", self.encode_actions(rows, CLASSIC_SCHEMA))
        elif kind == "multi-part":
            more = {"parts": parts}
            path = self._put_parts(stem, rows, parts)
        elif kind in V2_KINDS:
            path = self._put_v2(kind, stem, number, self._top(rows, sidecars))
        else:
            raise ValueError(f"there is no checkpoint of kind {kind!r}")
        if hint:
            self.hint(number, len(rows), checksum=checksum, **more)
        return path

    def _put_parts(self, stem: str, rows: list[Action], parts: int) -> Path:
        paths = [
            self.put_log(
                f"{stem}.{i:010d}.{parts:010d}.parquet",
                self.encode_actions(rows[i - 1 :: parts], CLASSIC_SCHEMA),
            )
            for i in range(1, parts + 1)
        ]
        return paths[0]

    def _top(self, rows: list[Action], sidecars: int) -> list[Action]:
        """Return the top level of a v2 checkpoint: all file actions are in sidecars, or none is."""
        if not sidecars:
            return rows
        files = [action for action in rows if _FILE_KINDS & action.keys()]
        steering = [action for action in rows if not _FILE_KINDS & action.keys()]
        return [*steering, *(self.sidecar(files[i::sidecars]) for i in range(sidecars))]

    def sidecar(self, files: Sequence[Action]) -> Action:
        """Write a sidecar of these file actions, and return its action."""
        name, data = f"{self.new_id()}.parquet", self.encode_actions(files, FILES_SCHEMA)
        self.put_log(f"_sidecars/{name}", data)
        return {"sidecar": {"path": name, "sizeInBytes": len(data), "modificationTime": 0}}

    def _put_v2(self, kind: str, stem: str, version: int, top: list[Action]) -> Path:
        rows = [{"checkpointMetadata": {"version": version}}, *top]
        if kind == "v2-json":
            data = self.encode_lines(rows)
            return self.put_log(f"{stem}.{self.new_id()}.json", data)
        middle = "" if kind == "v2-classic-named" else f".{self.new_id()}"
        return self.put_log(f"{stem}{middle}.parquet", self.encode_actions(rows, V2_SCHEMA))

    def compact_log(self, first: int, last: int | None = None) -> Path:
        """Write the log compaction of the versions ``first`` to ``last``, two at least: of each
        thing, the newest reference."""
        last = self.version if last is None else last
        rows = self.reconciled(last, first)
        return self.put_log(f"{first:020d}.{last:020d}.compacted.json", self.encode_lines(rows))

    def clean_log(self, before: int) -> None:
        """Remove what is older than a version, which a checkpoint holds."""
        for name in self.store.names("_delta_log"):
            first = name[:20]
            if first.isdigit() and int(first) < before:
                self.store.remove(f"_delta_log/{name}")


class RememberingBuilder(VersatileBuilder):
    """Bytes that were written once, by any builder of the process, are not made again."""

    def encode_rows(
        self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, **form: Any
    ) -> bytes:
        """See :class:`tailer.testing.table.TableBuilder`."""
        fields = [(f.name, f.type, f.metadata) for f in schema]
        make = super().encode_rows
        return _once(f"{fields} {rows} {form}", lambda: make(rows, schema, **form))

    def encode_actions(self, actions: Sequence[Action], schema: pa.Schema) -> bytes:
        """See :class:`tailer.testing.log_builder.LogBuilder`."""
        make = super().encode_actions
        if schema is not CLASSIC_SCHEMA:  # to tell others apart takes longer than to write
            return make(actions, schema)
        return _once(f"{actions}", lambda: make(actions, schema))


def _once(key: str, make: Callable[[], bytes]) -> bytes:
    found = _written.get(key)
    if found is None:
        if len(_written) > _FILES_MAX:
            _written.clear()
        found = _written[key] = make()
    return found
