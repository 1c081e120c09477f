"""Where a feed is, and which process writes for it: rows of one small table, of which the greatest
``place`` of each target counts.

A place is an epoch, a random number of the process that began it, and a counter. ClickHouse has no
comparison that is one step with a write. So a process appends what it knows under a new epoch, and
whoever has written under the greatest epoch owns the target: what an older process appends behind
that is never the greatest, whenever it arrives.
"""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
from msgspec import Struct, structs

from sinks.clickhouse.client import ClickHouseClient
from sinks.clickhouse.columns import DURABLE, format_type, quote_name, quote_text
from sinks.shared.merge import is_between, physical_name
from tailer.changes import Offset
from tailer.errors import ConfigError, OffsetError, TargetRefused, TransientError

_OFFSETS = "delta_tailer_offsets"
#: Of a table that the sink has made.
COMMENT = "delta-tailer"
#: Of a place: the counter, and that with the process's number.
_COUNTER_BITS, _EPOCH_BITS = 64, 96


class TableProgress(Struct, frozen=True):
    """What a row says. Without ``feed``, the target is nobody's. ``era`` begins whenever the offset
    is set. ``made`` is the id that the server gave the table; ``has_rows``: it was written, so it
    has rows, if only of what was deleted. ``columns`` are those that it has, as a schema of Arrow's
    with physical names, and ``key`` the physical names of the key. ``is_whole`` says that the
    snapshot has ended."""

    feed: str = ""
    mode: str = ""
    era: int = 0
    offset: str | None = None
    made: str | None = None
    has_rows: bool = False
    columns: str = ""
    key: tuple[str, ...] = ()
    is_whole: bool = False

    @property
    def at(self) -> Offset | None:
        """Return the offset."""
        return None if self.offset is None else Offset.from_json(json.loads(self.offset))

    def read_columns(self) -> pa.Schema:
        """Return the columns."""
        return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(self.columns))))


def write_columns(columns: pa.Schema) -> str:
    """Return columns as a progress has them: it is written behind each batch."""
    return base64.b64encode(zlib.compress(columns.serialize())).decode()


class ProgressRows:
    """The rows of one target: a table of this name in this database."""

    def __init__(self, client: ClickHouseClient, database: str, table: str) -> None:
        self._client = client
        self._database = database
        self.table = table
        self.where = f"{client.location}: the table {table!r}"
        self._offsets = f"{quote_name(database)}.{quote_name(_OFFSETS)}"
        #: The progress, the place of its row, and that of this process since it has claimed.
        self.now = TableProgress()
        self._place = self._mine = 0
        #: Id and number of rows of the table itself, None if it is not there.
        self.made: str | None = None
        self.rows = 0
        #: Changes with the names and types of its columns.
        self.columns_hash = ""
        #: Whether the table is one that a process has made and never written.
        self.is_left = False

    async def load(self) -> TableProgress:
        """Read the newest row, and look at the table."""
        database, table = quote_text(self._database), quote_text(self.table)
        tables = f"FROM system.tables WHERE database = {database} AND name ="
        made = (
            "(SELECT groupArray([toString(uuid), toString(ifNull(total_rows, 0)), comment]) "
            f"{tables} {table}) AS made, "
            "(SELECT toString(cityHash64(arraySort(groupArray((name, type))))) "
            f"FROM system.columns WHERE database = {database} AND table = {table}) AS columns_hash"
        )
        names = f"SELECT count() AS found {tables} {quote_text(_OFFSETS)}"
        if self._mine or (await self._ask(names))["found"]:
            query = (
                f"SELECT toString(max(place)) AS newest, argMax(progress, place) AS said, {made} "
                f"FROM {self._offsets} WHERE `table` = {table}"
            )
        else:
            query = f"SELECT '0' AS newest, '' AS said, {made}"
        found = await self._ask(query)
        try:
            there = found["made"][0] if found["made"] else (None, 0, "")
            self.made, self.rows = there[0], int(there[1])
            self.columns_hash = str(found["columns_hash"])
            self.is_left = not self.rows and there[2] == COMMENT
            self._place = int(found["newest"])
            self.now = msgspec.json.decode(found["said"] or "{}", type=TableProgress)
            self.now.at  # noqa: B018  # it can be read
        except (LookupError, TypeError, ValueError, msgspec.MsgspecError, OffsetError) as e:
            raise ConfigError(
                f"{self._client.location}: the newest row of {_OFFSETS} for {self.table!r} is "
                f"damaged ({e!r}); delete its rows, and the table, to start over"
            ) from e
        return self.now

    def settle_columns(
        self, new: pa.Schema, types: Mapping[str, str], required: Sequence[str], *, keep: bool
    ) -> pa.Schema:
        """Return the columns that the table has, whose ``types`` are given by its names, on their
        way to those of a version: a process may have been killed behind a step, before it was
        stored. Raises :class:`TargetRefused` for what somebody else has done to them."""
        old = self.now.read_columns()
        wanted = {physical_name(field): field for field in new}
        between = [
            name for name in types
            if name not in old.names and name not in new.names and is_between(name)
        ]  # fmt: skip
        settled = []
        for field in old:
            to = wanted.get(physical_name(field))
            names = [field.name, *([to.name] if to is not None else []), *between]
            name = next((n for n in names if n in types and n not in {*old.names} - {field.name}),
                        None)  # fmt: skip
            if name is None and (to is not None or keep):
                raise self._refuse_columns(field.name)
            if name is None:  # it was dropped
                continue
            if name in between:
                between.remove(name)
            allowed = [field, *([to] if to is not None else [])]
            fits = [one for one in allowed if format_type(one, required) == types[name]]
            if not fits:
                raise self._refuse_columns(field.name)
            settled.append(field.with_name(name).with_type(fits[0].type))
        return pa.schema(settled)

    def _refuse_columns(self, name: str) -> TargetRefused:
        return TargetRefused(
            f"{self.where}: the column {name!r} is missing or of another type: somebody else has "
            "changed it; change it back, or start over with `tailer offsets reset`"
        )

    async def _ask(self, query: str) -> dict[str, Any]:
        rows = await self._client.ask(query)
        if len(rows) != 1:
            raise TransientError(f"{self._client.location}: {len(rows)} rows, and not one")
        return rows[0]

    def check(self, feed: str, mode: str) -> None:
        """Raise :class:`ConfigError` for a table of another feed or mode, and
        :class:`TargetRefused` for one that is not the one that the feed has written."""
        if self.now.feed and (self.now.feed, self.now.mode) != (feed, mode):
            raise ConfigError(
                f"{self.where} is written by the feed {self.now.feed!r} as a {self.now.mode}; name "
                "another one in the option 'table'"
            )
        if self.now.made is not None:
            if self.made is None:
                what = "is missing"
            elif self.made != self.now.made:
                what = "was dropped and made again"
            elif self.now.has_rows and not self.rows:
                what = "was emptied"
            else:
                return
            raise TargetRefused(
                f"{self.where} {what} since the feed wrote to it; restore it, or start over with "
                "`tailer offsets reset`"
            )

    def check_left(self) -> None:
        """Raise :class:`TargetRefused` for a table that no process of ours has made and left."""
        if self.now.made is None and self.made is not None and not self.is_left:
            raise TargetRefused(
                f"{self.where} is there already, and the sink makes its own; name another one in "
                "the option 'table', or drop this one"
            )

    async def claim(self, feed: str, mode: str) -> None:
        """Make this process the one that writes, of what :meth:`load` has found."""
        await self._client.run(
            f"CREATE TABLE IF NOT EXISTS {self._offsets} (`table` String, place UInt128, progress "
            f"String) ENGINE = ReplacingMergeTree(place) ORDER BY `table` {DURABLE}"
        )
        epoch = (self._place >> _EPOCH_BITS) + 1
        token = secrets.randbits(_EPOCH_BITS - _COUNTER_BITS)
        self._mine = epoch << _EPOCH_BITS | token << _COUNTER_BITS
        self._place = self._mine
        self.now = structs.replace(self.now, feed=feed, mode=mode)
        await self.save()
        await self.confirm()

    async def save(self, **changes: Any) -> None:
        """Append a row. If another process has claimed the target meanwhile, it changes nothing."""
        self.now = structs.replace(self.now, **changes)
        self._place += 1
        row = {"table": self.table, "place": str(self._place)}
        row["progress"] = msgspec.json.encode(self.now).decode()
        statement = f"INSERT INTO {self._offsets} FORMAT JSONEachRow"
        await self._client.insert(statement, json.dumps(row).encode())

    async def confirm(self) -> None:
        """Raise :class:`ConfigError` if another process has claimed the target, and as
        :meth:`check` does for a table that has changed."""
        before = self.now
        now = await self.load()
        if not self._place:
            raise TargetRefused(
                f"{self.where}: its offset was removed from {_OFFSETS}; restore it, or start "
                "over with `tailer offsets reset`"
            )
        if self._place >> _COUNTER_BITS != self._mine >> _COUNTER_BITS:
            self._refuse()
        self.check(before.feed, before.mode)
        assert now.feed == before.feed, "it is ours"

    def _refuse(self) -> NoReturn:
        raise ConfigError(f"{self.where} is written by another process now; stop one of them")
