"""Checkpoints of every kind, log compaction and log cleanup for a
:class:`~tests.tables.writer.TableWriter`.

"Checkpoints", "Log Compaction Files", "Metadata Cleanup".
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tailer.testing.checkpoint_files import (
    FILES_SCHEMA,
    V2_SCHEMA,
    write_checkpoint,
    write_hint,
)
from tailer.testing.table import Action, TableBuilder
from tests.tables.model import TableVersion

__all__ = ["CLASSIC_KINDS", "V2_KINDS", "LogUpkeep"]

CLASSIC_KINDS = ("classic", "multi-part")
#: Only for tables with the feature v2Checkpoint.
V2_KINDS = ("v2-json", "v2-parquet", "v2-classic-named")


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
        more: dict[str, Any] = {}
        if kind == "multi-part":
            parts = self.rng.choice([2, 3])
            more["parts"] = parts
            shares = _shares([*steering, *files], parts)
            paths = [
                write_checkpoint(
                    self.builder.log / f"{stem}.{i:010d}.{parts:010d}.parquet", [share]
                )
                for i, share in enumerate(shares, start=1)
            ]
            path = paths[0]
        elif kind == "classic":
            path = write_checkpoint(self.builder.log / f"{stem}.parquet", [[*steering, *files]])
        elif kind in V2_KINDS:
            path = self._v2_checkpoint(kind, stem, number, [*steering], files)
        else:
            raise ValueError(f"there is no checkpoint of kind {kind!r}")
        # Writers may leave the checksum out.
        size, checksum = len(steering) + len(files), self.rng.random() < 0.75
        write_hint(self.builder.log, number, size, checksum=checksum, **more)
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
        return write_checkpoint(self.builder.log / f"{stem}{unique}.parquet", [top], V2_SCHEMA)

    def _sidecar(self, files: Sequence[Action]) -> Action:
        path = self.builder.log / "_sidecars" / f"{self.unique()}.parquet"
        path.parent.mkdir(exist_ok=True)
        write_checkpoint(path, [files], FILES_SCHEMA)
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
