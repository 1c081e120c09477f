"""The target table: who writes it, how far it is, and commits that say so.

Each commit has the protocol's transaction identifier ``delta-tailer/FEED`` with a growing version,
and in its commit info, under ``delta-tailer``, the offset behind it and what else is known of the
target. A process that finds another version there than its last one has been replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from tailer.changes import Offset
from tailer.errors import ConfigError, OffsetError, SinkRejected, TransientError

__all__ = ["Claim", "TargetTable"]

_INFO = "delta-tailer"
#: deltalake's words for errors that do not pass by themselves.
_FOR_GOOD = ("denied", "Forbidden", "Unauthorized", "InvalidAccessKey", "NoSuchBucket",
             "Read-only", "Not a directory")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claim:
    """What a commit says: ``number`` is the transaction's version, ``physical`` the columns' names
    in the source's files, ``key`` those of the key columns."""

    number: int
    mode: str
    offset: Offset | None
    key: list[str] | None = None
    physical: Mapping[str, str] = field(default_factory=dict)

    def next(self, **changes: Any) -> Claim:
        """Return the claim of the next commit."""
        return replace(self, number=self.number + 1, **changes)


class TargetTable:
    """One target table. All methods block."""

    def __init__(self, address: str, storage: Mapping[str, str]) -> None:
        self.address = address
        self._storage = dict(storage)
        self._app = ""
        self._table: DeltaTable | None = None
        self.claim: Claim | None = None

    @property
    def table(self) -> DeltaTable:
        """The table as of the last commit."""
        assert self._table is not None, "the table is there"
        return self._table

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Raise the package's errors as those of a sink."""
        try:
            yield
        except CommitFailedError as e:
            if "Concurrent transaction" in str(e):
                raise self._replaced() from e
            raise TransientError(f"{self.address}: another writer's commit conflicts ({e})") from e
        except (DeltaError, OSError) as e:
            if any(words in str(e) for words in _FOR_GOOD):
                raise SinkRejected(f"{self.address} can't be written ({e}); check it") from e
            raise TransientError(f"{self.address} can't be written now ({e})") from e

    def _replaced(self) -> ConfigError:
        return ConfigError(
            f"{self.address}: another process writes this table now; stop one of them"
        )

    def load(self, feed: str, mode: str) -> Claim | None:
        """Read what the table says of the feed; None if there is no table. Raises
        :class:`SinkRejected` for a table that this feed and mode did not make."""
        self._app = f"delta-tailer/{feed}"
        self._table = self.claim = None
        with self.failing():
            try:
                self._table = DeltaTable(self.address, storage_options=self._storage)
            except TableNotFoundError:
                return None
            number = self._table.transaction_version(self._app)
            if number is None:
                raise SinkRejected(
                    f"{self.address} is a table that the feed {feed!r} has not made, or its "
                    "transaction identifier was removed; name another one in the option 'path'"
                )
            self.claim = self._found(number)
        if self.claim.mode != mode:
            raise SinkRejected(
                f"{self.address} is a {self.claim.mode} and not a {mode}; name another one in the "
                "option 'path'"
            )
        return self.claim

    def _found(self, number: int) -> Claim:
        """Return what the commit with that number says."""
        for limit in (20, None):
            for entry in self.table.history(limit):
                info = json.loads(entry.get(_INFO) or "{}")
                if (info.get("app"), info.get("number")) == (self._app, number):
                    return self._claim(info)
        raise SinkRejected(
            f"{self.address}: the log no longer has the commit with the feed's offset (transaction "
            f"{number}); remove the table, then `tailer offsets reset` makes it again"
        )

    def _claim(self, info: Mapping[str, Any]) -> Claim:
        try:
            offset = None if info["offset"] is None else Offset.from_json(info["offset"])
            return Claim(info["number"], info["mode"], offset, info["key"], info["physical"])
        except (KeyError, OffsetError) as e:
            raise SinkRejected(f"{self.address}: the offset in its log is damaged ({e})") from e

    def refresh(self) -> None:
        """Read the commits of others. Raises :class:`ConfigError` if one of them has the table."""
        with self.failing():
            self.table.update_incremental()
            if self.claim is None or self.table.transaction_version(self._app) != self.claim.number:
                raise self._replaced()

    def properties(self, claim: Claim) -> CommitProperties:
        """Return what a commit has to say."""
        info = {
            "app": self._app,
            "number": claim.number,
            "mode": claim.mode,
            "offset": None if claim.offset is None else claim.offset.to_json(),
            "key": claim.key,
            "physical": dict(claim.physical),
        }
        return CommitProperties(
            custom_metadata={_INFO: json.dumps(info)},
            app_transactions=[Transaction(self._app, claim.number)],
        )

    def create(self, schema: pa.Schema, claim: Claim) -> None:
        """Create the table, without rows."""
        with self.failing():
            self._table = DeltaTable.create(
                self.address, schema, storage_options=self._storage,
                commit_properties=self.properties(claim),
            )  # fmt: skip
        self.claim = claim

    def append(self, rows: pa.Table, claim: Claim, *, merge_schema: bool = False) -> None:
        """Append rows, maybe none, in one commit."""
        with self.failing():
            write_deltalake(
                self.table, rows, mode="append", schema_mode="merge" if merge_schema else None,
                commit_properties=self.properties(claim),
            )  # fmt: skip
        self.claim = claim

    def rewrite(self, rows: pa.RecordBatchReader, claim: Claim) -> None:
        """Replace the table's rows and columns in one commit."""
        with self.failing():
            write_deltalake(
                self.table, rows, mode="overwrite", schema_mode="overwrite",
                commit_properties=self.properties(claim),
            )  # fmt: skip
        self.claim = claim

    def merge(self, source: pa.Table, key: list[str], gone: str, claim: Claim) -> None:
        """Delete the keys for which the column ``gone`` is true, and write the other rows, in one
        commit."""
        same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key)
        with self.failing():
            merger = self.table.merge(
                source, same, source_alias="s", target_alias="t",
                commit_properties=self.properties(claim),
            )  # fmt: skip
            merger.when_matched_delete(f"s.{gone}")
            merger.when_matched_update_all(f"NOT s.{gone}", except_cols=[gone])
            merger.when_not_matched_insert_all(f"NOT s.{gone}", except_cols=[gone])
            merger.execute()
        self.claim = claim


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
