"""The ClickHouse sink: a copy of a table, or a log of its changes.

Rows are only ever inserted, and of those with the same key the engine keeps the one with the
greatest version: what is written again, or late, changes nothing. The offset is in a table of its
own, of which the newest row counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pyarrow as pa
from anyio.from_thread import BlockingPortal

from sinks.clickhouse.client import ERA_CHECK, FAULTS, ClickHouseClient
from sinks.clickhouse.columns import (
    DURABLE,
    NAMES,
    apply_step,
    format_column,
    format_step,
    quote_name,
    quote_text,
)
from sinks.clickhouse.copy import ClickHouseCopy, ClickHouseRepair
from sinks.clickhouse.progress import COMMENT, ProgressRows, write_columns
from sinks.clickhouse.rows import RowMaker
from sinks.messages.retry import retry_attempts
from sinks.messages.tls import CA_FILE
from sinks.shared.merge import find_steps, merge_columns, physical_name, with_physical_names
from sinks.shared.options import CREDENTIALS, make_timeout
from sinks.shared.record_form import check_record_form
from sinks.shared.row_versions import find_last_version
from tailer.changes import METADATA_FIELDS, ChangeBatch, Notice, Offset
from tailer.errors import ConfigError, TargetRefused
from tailer.network.backoff import Backoff
from tailer.secrets.urls import parse_url
from tailer.settings import OWN_PREFIX_SETTING, REQUIRED, Setting
from tailer.sink import Sink, SinkTraits
from tailer.sink.pulling import open_portal

SETTINGS: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "The server's HTTP interface, or the load balancer before it.",
        secret=True, form="an http:// or https:// URL",
        parse=partial(parse_url, schemes=("http", "https")),
    ),
    **CREDENTIALS,
    "database": Setting("text", "default", "The database, which must exist."),
    "table": Setting("text", "", "The table to write.", unset="the feed's name"),
    "mode": Setting(
        "text", "mirror", "Keep a copy of the table, or a log of its change events.",
        choices=("mirror", "log"),
    ),
    "key": Setting("texts", [], "Of a copy: the columns that identify a row."),
    "own_prefix": OWN_PREFIX_SETTING,
    "ca_file": CA_FILE,
    "timeout_s": make_timeout(60),
}  # fmt: skip
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.2, 10.0
_CONNECTIONS = 4


class ClickHouseSink(Sink):
    """A copy of a table, or a log, in ClickHouse: exactly once, as a reader with FINAL sees it."""

    faults = FAULTS
    settings = SETTINGS
    kind = "clickhouse"

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        self._is_log, key = options["mode"] == "log", tuple(options["key"])
        if self._is_log == bool(key):
            raise ConfigError(
                "option 'key' of sink 'clickhouse': "
                + ("a log has none" if self._is_log else "name the columns that identify a row")
            )
        self.client = ClickHouseClient(options, folder)
        self._given = options
        self._maker = RowMaker.of(key, options["own_prefix"])
        self.traits = SinkTraits(
            key_columns=key, spans=True, own=self._maker.own, keeps_offset=True,
            copies=not self._is_log,
        )  # fmt: skip
        self._progress = ProgressRows(self.client, "", "")
        self._table = ""
        self._begins = self._is_open = False
        #: The columns of the batches that the table fits, and the hash of its columns then.
        self._fitted: tuple[pa.Schema, str] | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> ClickHouseSink:
        """Create the sink. Options: :data:`SETTINGS`."""
        return cls(options, folder)

    @property
    def lacks_beginning(self) -> bool:  # type: ignore[override]
        """Whether a copy has just begun."""
        return not self._is_log and self._begins

    def check_columns(self, schema: pa.Schema) -> None:
        self._maker.list_columns(schema)

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form. ClickHouse has the offset, and a table may get another name."""
        return check_record_form({"type": self.kind, "mode": self._given["mode"]}, saved, feed, at)

    # Opening

    async def open(self, feed: str) -> Offset | None:
        await self.aclose()
        try:
            await self._look_at_table(feed)
            progress = self._progress
            progress.check_left()
            self._begins = not progress.now.feed
            await progress.claim(feed, self._given["mode"])
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise
        self._is_open, self._fitted = True, None
        return progress.now.at

    async def _look_at_table(self, feed: str) -> None:
        """Connect and read the progress. Raises :class:`TailerError` if it is not that of the
        table."""
        await self._load_progress(feed)
        self._progress.check(feed, self._given["mode"])

    async def _load_progress(self, feed: str) -> None:
        table = self._given["table"] or feed
        NAMES.check_table(table)
        await self.client.connect(_CONNECTIONS)
        self._progress = ProgressRows(self.client, self._given["database"], table)
        self._table = f"{quote_name(self._given['database'])}.{quote_name(table)}"
        await self._progress.load()

    async def look(self, feed: str) -> Offset | None:
        try:
            await self._look_at_table(feed)
            return self._progress.now.at
        finally:
            await self.client.aclose()

    async def aclose(self) -> None:
        self._is_open = False
        await self.client.aclose()

    # Writing

    async def write(self, batch: ChangeBatch) -> None:
        if not self._is_open:
            raise TargetRefused("the sink is not open")
        rows = None
        if batch.num_rows:
            era = self._progress.now.era
            rows = await anyio.to_thread.run_sync(self._maker.make_rows, batch, era)
        await self._retry(partial(self._write_rows, batch, rows))

    async def announce(self, notice: Notice) -> None:
        """Store a notice's offset."""
        if notice.kind != "heartbeat" and notice.next_offset != notice.offset:
            await self._retry(partial(self._move_offset, notice.next_offset))

    async def _retry(self, attempt: Callable[[], Awaitable[None]]) -> None:
        await retry_attempts(attempt, Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S))

    async def _write_rows(self, batch: ChangeBatch, rows: pa.Table | None) -> None:
        await self._progress.confirm()
        await self._fit_columns(batch)
        if rows is not None:
            self._check_snapshot(batch.next_offset)
            await self.client.insert_rows(self._table, rows)
        await self._save_offset(batch.next_offset, has_rows=rows is not None)

    async def _move_offset(self, then: Offset) -> None:
        await self._progress.confirm()
        await self._save_offset(then, has_rows=False)

    async def _save_offset(self, then: Offset, *, has_rows: bool) -> None:
        self._check_snapshot(then)
        progress = self._progress
        await progress.save(
            offset=str(then), is_whole=not then.snapshot, has_rows=progress.now.has_rows or has_rows
        )

    def _check_snapshot(self, then: Offset) -> None:
        if then.snapshot and self._progress.now.is_whole and not self._is_log:
            raise TargetRefused(
                f"{self._progress.where} has rows of before this snapshot, which may not be in the "
                "Delta table any more; `tailer offsets reset` creates the copy again"
            )

    async def _fit_columns(self, batch: ChangeBatch) -> None:
        """Have the table, with the batch's columns."""
        count = len(batch.rows.schema) - len(METADATA_FIELDS)
        schema = pa.schema([batch.rows.schema.field(i) for i in range(count)])
        maker, progress = self._maker, self._progress
        if self._fitted == (schema, progress.columns_hash):
            return
        new = with_physical_names(
            batch, maker.list_columns(schema), None if maker.key else maker.first,
            {maker.second: "delta-tailer.second"}
            | ({maker.first: "delta-tailer.first"} if maker.key else {}),
        )  # fmt: skip
        key = tuple(physical_name(new.field(name)) for name in maker.key if name in new.names)
        if progress.now.made is None:
            if progress.made is not None:  # of a process that was killed behind its creation
                progress.check_left()
                await self.client.run(f"DROP TABLE {self._table} SYNC")
            await self._create_table(self._table, new)
            await progress.load()
            await progress.save(made=progress.made, columns=write_columns(new), key=key)
        else:
            if progress.now.key != key:
                raise TargetRefused(
                    f"{progress.where} has the key {list(progress.now.key)} and not {list(key)}; "
                    "set the option 'key' back, or create the copy again with `tailer offsets "
                    "reset`"
                )
            types, required = await self._list_types(), maker.required
            old = progress.settle_columns(new, types, required, keep=self._is_log)
            await self._change_columns(old, new)
        self._fitted = schema, progress.columns_hash

    async def _create_table(self, name: str, columns: pa.Schema) -> None:
        """Create a table, if it is not there: the request may come twice."""
        of_engine, order = self._maker.engine
        named = ", ".join(map(quote_name, of_engine))
        defined = ", ".join(format_column(field, self._maker.required) for field in columns)
        if self._maker.key:  # what a process sends late that wrote the one before it is refused
            least = find_last_version(self._progress.now.era, -1)
            version = quote_name(self._maker.first)
            defined += f", CONSTRAINT {ERA_CHECK} CHECK {version} >= {max(least, 0)}"
        await self.client.run(
            f"CREATE TABLE IF NOT EXISTS {name} ({defined}) ENGINE = ReplacingMergeTree({named}) "
            f"ORDER BY ({', '.join(map(quote_name, order))}) {DURABLE} "
            f"COMMENT {quote_text(COMMENT)}"
        )

    async def _list_types(self) -> dict[str, str]:
        """Return the types of the columns that the table has."""
        database, table = quote_text(self._given["database"]), quote_text(self._progress.table)
        where = f"WHERE database = {database} AND table = {table}"
        rows = await self.client.ask(f"SELECT name, type FROM system.columns {where}")
        return {row["name"]: row["type"] for row in rows}

    async def _change_columns(self, old: pa.Schema, new: pa.Schema) -> None:
        """Change the table's columns, with each step in the progress behind it."""
        maker, columns = self._maker, list(old)
        for step in find_steps(old, new, keep=self._is_log):
            if step.column in maker.required or step.field.name in maker.required:
                raise TargetRefused(
                    f"{self._progress.where}: the column {step.column!r} is of the key or of ours, "
                    "which ClickHouse can't alter; `tailer offsets reset` creates the table again"
                )
            if (change := format_step(step, maker.required)) is not None:
                await self.client.run(f"ALTER TABLE {self._table} {change}")
            columns = apply_step(columns, step)
            await self._progress.save(columns=write_columns(pa.schema(columns)))
        after = write_columns(merge_columns(old, new) if self._is_log else new)
        if after != self._progress.now.columns:
            await self._progress.save(columns=after)

    # Besides

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:
        """Do what a feed does, with tables under other names, which are dropped."""
        name = f"{quote_name(self._given['database'])}.`delta_tailer_{uuid.uuid4().hex}`"
        try:
            await self._look_at_table(feed)
            columns = self._maker.list_columns(schema)
            try:
                await self._create_table(name, columns)
                extra = quote_name("_delta_tailer_rehearsal")
                for change in (f"ADD COLUMN {extra} UInt8", f"DROP COLUMN {extra}"):
                    await self.client.run(f"ALTER TABLE {name} {change}")
                await self.client.insert_rows(name, columns.empty_table().slice(0, 0))
            finally:
                with anyio.CancelScope(shield=True):
                    await self.client.run(f"DROP TABLE IF EXISTS {name}")
        finally:
            await self.client.aclose()

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset. None drops the table, which belongs to it."""
        mode = self._given["mode"]
        try:
            await self._load_progress(feed)
            progress = self._progress
            now = progress.now
            if offset is None:
                if now.feed and (now.feed, now.mode) != (feed, mode):
                    progress.check(feed, mode)
                if now.feed:
                    await self._drop_table(feed)
                return
            progress.check(feed, mode)
            if not self._is_log and now.made is None and offset.position > (0, 0):
                raise TargetRefused(
                    f"{progress.where} is no copy yet, and a copy can't start at version "
                    f"{offset.version}; restore it, or start over with `tailer offsets reset`"
                )
            self._check_snapshot(offset)
            await progress.claim(feed, mode)
            await progress.save(offset=str(offset), era=now.era + 1)
        finally:
            await self.client.aclose()

    async def _drop_table(self, feed: str) -> None:
        """Drop the table that the sink has made. What follows has row versions of a later era."""
        progress = self._progress
        before = progress.now
        if before.made is not None and progress.made == before.made:
            await self.client.run(f"DROP TABLE IF EXISTS {self._table} SYNC")
        progress.now = type(before)(era=before.era + 1)
        await progress.claim(feed, self._given["mode"])
        await progress.save(feed="", mode="")

    @contextmanager
    def read_mirror(self, feed: str) -> Iterator[ClickHouseCopy]:
        with self._open_blocking(feed) as portal:
            yield self._make_copy(portal)

    def _make_copy(self, portal: BlockingPortal) -> ClickHouseCopy:
        return ClickHouseCopy(portal, self.client, self._progress, self._maker, self._table)

    @contextmanager
    def repair_mirror(self, feed: str) -> Iterator[ClickHouseRepair]:
        with self._open_blocking(feed) as portal:
            copy, write = self._make_copy(portal), partial(self.client.insert_rows, self._table)
            yield ClickHouseRepair(portal, self._progress, copy, self._maker, write)

    @contextmanager
    def _open_blocking(self, feed: str) -> Iterator[BlockingPortal]:
        if self._is_log:
            raise TargetRefused(f"the sink of the feed {feed!r} keeps a log and not a copy")
        with open_portal(self.client.aclose, partial(self._look_at_table, feed)) as portal:
            yield portal
