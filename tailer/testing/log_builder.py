"""The log of a table for tests: commits, classic checkpoints and checksums.

"Delta Log Entries", "Checkpoints", "Version Checksum File".
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from tailer.testing.actions import Action
from tailer.testing.checkpoint_files import (
    CLASSIC_SCHEMA,
    checksum_document,
    hint_document,
    write_checkpoint,
)
from tailer.testing.table_files import FolderFiles, TableFiles

__all__ = ["LogBuilder"]


class LogBuilder:
    """Writes one table's log into ``folder``: a folder, created if necessary, or other files.

    A subclass may spell the same otherwise: :meth:`encode_lines` and :meth:`encode_actions` make
    the bytes. ``new_id`` gives the UUIDs in the names of files.
    """

    new_id: Callable[[], uuid.UUID] = staticmethod(uuid.uuid4)

    def __init__(self, folder: Path | TableFiles) -> None:
        self.store: TableFiles = FolderFiles(folder) if isinstance(folder, Path) else folder
        #: The table's root; only in a local folder is it more than a name.
        self.folder = folder if isinstance(folder, Path) else Path()
        self.log = self.folder / "_delta_log"
        if isinstance(folder, Path):
            self.log.mkdir(parents=True, exist_ok=True)

    # How it is spelled

    def encode_lines(self, actions: Sequence[Action]) -> bytes:
        """Return actions as lines of JSON."""
        return "".join(json.dumps(action) + "\n" for action in actions).encode()

    def encode_actions(self, actions: Sequence[Action], schema: pa.Schema) -> bytes:
        """Return actions as a Parquet file of a checkpoint."""
        out = io.BytesIO()
        write_checkpoint(out, [actions], schema)
        return out.getvalue()

    def put_log(self, name: str, data: bytes) -> Path:
        """Write a file of the log, and return its path."""
        self.store.put(f"_delta_log/{name}", data)
        return self.log / name

    # Commits

    def commit_path(self, version: int) -> Path:
        """Return the commit file of a version."""
        return self.log / f"{version:020d}.json"

    @property
    def version(self) -> int:
        """Return the newest version; -1 before the first."""
        stems = (n[:-5] for n in self.store.names("_delta_log") if n.endswith(".json"))
        return max((int(stem) for stem in stems if stem.isdigit()), default=-1)

    def commit(
        self, *actions: Action, version: int | None = None, timestamp_ms: int | None = None
    ) -> int:
        """Commit these actions as the next version, or as ``version``; return the version.
        Without actions it is a commit that changes nothing.

        ``timestamp_ms`` becomes the commit file's modification time. The file appears whole, and
        only if it does not exist: otherwise raises FileExistsError.
        """
        version = self.version + 1 if version is None else version
        data = self.encode_lines(actions or [{"commitInfo": {}}])
        location = f"_delta_log/{version:020d}.json"
        self.store.put(location, data, mtime_ms=timestamp_ms, new=True)
        return version

    def version_actions(self, version: int) -> list[Action]:
        """Return the actions of one commit."""
        data = self.store.read(f"_delta_log/{version:020d}.json")
        return [json.loads(line) for line in data.splitlines()]

    def actions(self, last: int | None = None) -> list[Action]:
        """Return all actions of the log's commits up to a version, oldest first."""
        versions = range((self.version if last is None else last) + 1)
        return [action for version in versions for action in self.version_actions(version)]

    def reconciled(self, version: int, first: int = 0) -> list[Action]:
        """Return the actions in effect at a version ("Action Reconciliation"), with tombstones;
        of the commits from ``first`` on."""
        effective: dict[tuple[str, ...], Action] = {}
        for number in range(first, version + 1):
            for action in self.version_actions(number):
                key = _find_action_key(action)
                effective.pop(key, None)
                effective[key] = action
        return [action for key, action in effective.items() if key]

    # Checkpoints

    def checkpoint(self, version: int | None = None, *, hint: bool = True) -> Path:
        """Write the classic checkpoint of a version, and ``_last_checkpoint`` with ``hint``.

        Needs the commits from version 0 on. Returns the checkpoint's path.
        """
        number = self.version if version is None else version
        rows = self.in_checkpoint(self.reconciled(number))
        data = self.encode_actions(rows, CLASSIC_SCHEMA)
        path = self.put_log(f"{number:020d}.checkpoint.parquet", data)
        if hint:
            self.hint(number, len(rows))
        return path

    @staticmethod
    def in_checkpoint(actions: Sequence[Action]) -> list[Action]:
        """Return the actions as a checkpoint has them: file actions change no data, and a domain
        that was removed is not in it."""
        rows: list[Action] = []
        for action in actions:
            ((kind, fields),) = action.items()
            if kind in ("add", "remove"):
                rows.append({kind: {**fields, "dataChange": False}})
            elif not (kind == "domainMetadata" and fields.get("removed")):
                rows.append(action)
        return rows

    def hint(self, version: int, size: int, *, checksum: bool = True, **more: Any) -> Path:
        """Write ``_last_checkpoint`` for a checkpoint of ``size`` actions."""
        document = hint_document(version, size, checksum=checksum, **more)
        return self.put_log("_last_checkpoint", json.dumps(document).encode())

    # Other files, and what goes

    def checksum(self, version: int | None = None, **fields: Any) -> Path:
        """Write the version checksum of a version (``.crc``); ``fields`` replace some of it.

        Needs the commits from version 0 on. Returns its path.
        """
        version = self.version if version is None else version
        rows = self.in_checkpoint(self.reconciled(version))
        actions = {next(iter(a)): a for a in rows}
        sizes = [a["add"]["size"] for a in rows if "add" in a]
        document = {
            **checksum_document(actions["protocol"], actions["metaData"], sizes),
            "setTransactions": [a["txn"] for a in rows if "txn" in a],
            "domainMetadata": [a["domainMetadata"] for a in rows if "domainMetadata" in a],
            **fields,
        }
        return self.put_log(f"{version:020d}.crc", json.dumps(document).encode())


def _find_action_key(action: Action) -> tuple[str, ...]:
    """Return what an action is about; nothing, if it does not last."""
    ((kind, fields),) = action.items()
    if kind in ("add", "remove"):
        vector = fields.get("deletionVector") or {}
        path = unquote(fields["path"]).replace("file:///", "file:/")
        return "file", path, str(vector.get("pathOrInlineDv")), str(vector.get("offset"))
    if kind in ("protocol", "metaData"):
        return (kind,)
    if kind in ("txn", "domainMetadata"):
        return kind, fields["appId" if kind == "txn" else "domain"]
    return ()
