"""A copy of a table in Redis: a string of JSON for each key, exactly once.

A piece is one call of a script, as for a stream: it checks that no newer process has claimed the
copy, that the keys are there which should be, and no others; then it writes, with the offset.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from anyio.from_thread import BlockingPortal

from sinks.formats.json import json_objects, json_values
from sinks.formats.parts import encode_naming_corrupt_file, table_name
from sinks.messages.messages import Messages
from sinks.redis.stream import LIMITS, TAG, RedisStream, format_words
from sinks.shared.delivery import check_form
from sinks.shared.json_copy import add_columns, find_column
from sinks.shared.key_ids import find_ids, find_ids_of_texts
from sinks.shared.merge import KeyOrder, check_key
from tailer.changes import COMMIT_VERSION, METADATA_FIELDS, ChangeBatch, Offset
from tailer.errors import ConfigError, SinkRejected, TargetRefused, TransientError
from tailer.secrets.urls import Url
from tailer.sink import SinkTraits
from tailer.sink.encoder import Records
from tailer.sink.pulling import open_portal, pull_batches

#: A write: ARGV is epoch, the offset that Redis should have (or nothing), the new one, whether keys
#: are checked, then, for each key of Redis, whether it should be there (+ or -), and its new value,
#: empty if it goes.
_MERGE = """
    local known = redis.call('HMGET', KEYS[1], 'epoch', 'offset')
    if not known[1] then return 'lost' end
    if known[1] ~= ARGV[1] and tonumber(known[1]) > tonumber(ARGV[1]) then return 'fenced' end
    if known[1] ~= ARGV[1] or (known[2] or '') ~= ARGV[2] then return 'earlier' end
    if ARGV[4] == '1' then
        for i = 5, #ARGV, 3 do
            local kind = redis.call('TYPE', ARGV[i]).ok
            if kind ~= 'string' and kind ~= 'none' then return '!' .. ARGV[i] end
            local there = kind == 'string' and '+' or '-'
            if there ~= ARGV[i + 1] then return there .. ARGV[i] end
        end
    end
    for i = 5, #ARGV, 3 do
        if ARGV[i + 2] == '' then redis.call('DEL', ARGV[i])
        else redis.call('SET', ARGV[i], ARGV[i + 2]) end
    end
    redis.call('HSET', KEYS[1], 'offset', ARGV[3])
    return 'written'
"""
#: A repair: the same of keys and values, if the offset is the one that is expected.
_REPAIR = """
    if (redis.call('HGET', KEYS[1], 'offset') or '') ~= ARGV[1] then return 'overtaken' end
    for i = 2, #ARGV, 2 do
        if ARGV[i + 1] == '' then redis.call('DEL', ARGV[i])
        else redis.call('SET', ARGV[i], ARGV[i + 1]) end
    end
    return 'written'
"""
#: How many bytes keys of Redis have.
_SIZES = """
    local sizes = {}
    for i = 1, #KEYS do
        local size = redis.pcall('STRLEN', KEYS[i])
        sizes[i] = type(size) == 'number' and size or 0
    end
    return sizes
"""
_SCANNED = 2000
#: What an answer may have is 16 MiB, and so a row that is to be read back.
_ANSWER_BYTES = 12 * 1024**2
_LIMITS = replace(LIMITS, message_bytes=_ANSWER_BYTES)
_GLOB = re.compile(r"([*?\[\]\\])")


class RedisMirror(RedisStream):
    """A copy of a table by key."""

    places = ("prefix",)
    script = _MERGE
    #: A version may take a key from a row behind the one that gets it: a batch is one piece.
    piece_rows = piece_bytes = 1 << 40

    def __init__(self, url: Url, given: Mapping[str, Any]) -> None:
        if given["format"] != "rows":
            raise ConfigError("option 'format' of sink 'redis': a copy's rows are JSON objects")
        if given["value_bytes_max"]:
            raise ConfigError("option 'value_bytes_max' of sink 'redis': a copy has whole rows")
        super().__init__(url, given)
        self.key = tuple(given["key"])
        if not self.key:
            raise ConfigError(
                "option 'key' of sink 'redis': name the columns that identify a row of the copy"
            )
        #: The schema whose columns are stored.
        self._noted: pa.Schema | None = None
        self.traits = SinkTraits(key_columns=self.key, spans=True, keeps_offset=True, copies=True)

    @property
    def _target(self) -> str:
        return f"the copy under {self.fill_option('prefix')}"

    @property
    def lacks_beginning(self) -> bool:  # type: ignore[override]
        """Whether a copy has just begun."""
        return self._epoch == b"1"

    def delivery(
        self, feed: str, kept: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form. Redis has the offset, and keys may get another prefix."""
        self._feed, self.written_before = feed, bool(kept)
        return check_form({"type": self.kind, "mode": "mirror"}, kept, feed, at)

    def preview(self, feed: str, batch: ChangeBatch) -> Iterator[tuple[str, Records]]:
        raise NotImplementedError

    def _find_keys(self) -> tuple[str, str]:
        """Return the key of the progress, twice: there is none that is always there."""
        prefix = self.fill_option("prefix")
        tag = TAG.search(prefix)
        progress = f"delta-tailer:{{{tag[1] if tag else prefix}}}:{prefix}mirror"
        return progress, progress

    async def _connect(self) -> Offset | None:
        offset, self._noted = await super()._connect(), None
        progress = self._find_keys()[1]
        if offset is None and not await self._call_command("HEXISTS", progress, "empty"):
            async with aclosing(self.scan_rows()) as pages:
                async for found in pages:
                    if found:
                        raise TargetRefused(
                            f"{self._location}: {self._target} has rows already, and a copy begins "
                            "empty; remove them by `tailer offsets reset`, or name another prefix "
                            "in the option 'prefix'"
                        )
            await self._call_command("HSET", progress, "empty", "was")
        return offset

    # Writing

    def _make_messages(self, batch: ChangeBatch) -> Messages:
        rows = batch.rows.select(batch.rows.schema.names[: -len(METADATA_FIELDS)])
        check_key(batch, rows, self.key)
        keys = pa.table(rows).select(list(self.key))
        turns = KeyOrder(batch, keys)
        turns.check_turns(batch)
        last = pc.invert(turns.followed)
        order, stays = turns.order.filter(last), turns.comes.filter(last)
        values = self.format_rows(batch).take(order)
        values = pc.if_else(stays, values, pa.scalar("")).cast(pa.binary())
        expected = pc.if_else(turns.comes.filter(turns.first), "-", "+").cast(pa.binary())
        versions = batch.rows.column(COMMIT_VERSION).take(order)
        names = self.name_keys(find_ids(keys.take(order)))
        return Messages(batch, values, names, versions, table_name(batch, ""), expected)

    def format_rows(self, batch: ChangeBatch) -> pa.StringArray:
        """Return the data columns of each row as JSON."""
        count = batch.rows.num_columns - len(METADATA_FIELDS)
        names = batch.rows.schema.names[:count]
        return encode_naming_corrupt_file(
            lambda part: json_objects(names, part.rows.columns[:count]), batch
        )

    def name_keys(self, ids: pa.StringArray) -> pa.StringArray:
        return pc.binary_join_element_wise(self.fill_option("prefix"), ids, "")

    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        messages.check_sizes(_LIMITS)
        assert messages.keys is not None, "a copy's messages have them"
        await self._note_columns(messages.batch)
        # Rows that are read again while the copy is there replace those of their keys.
        again = messages.batch.offset.snapshot and self._at is not None and not self._at.snapshot
        words = [messages.ids, messages.keys.cast(pa.string()), messages.values.cast(pa.string())]
        checked = "0" if again else "1"
        await self._run_script((checked,), format_words(words), 3 * len(messages), then)

    async def _note_columns(self, batch: ChangeBatch) -> None:
        """Store what columns the rows have. Raises as of :func:`add_columns`."""
        schema = pa.schema(list(batch.rows.schema)[: -len(METADATA_FIELDS)])
        if self._noted is not None and self._noted.equals(schema):
            return
        progress = self._find_keys()[0]
        kept = await self._call_command("HGET", progress, "columns")
        had = json.loads(kept) if isinstance(kept, bytes) else {}
        found = add_columns(batch, schema, had, f"{self._location}: {self._target}")
        if found != had:
            await self._call_command("HSET", progress, "columns", json.dumps(found))
        self._noted = schema

    def _check_answer(self, found: object) -> None:
        if isinstance(found, bytes) and found[:1] == b"!":
            name = found[1:].decode(errors="replace")
            raise TargetRefused(
                f"{self._location}: the key {name!r} is no string, so another program's; name "
                "another prefix in the option 'prefix'"
            )
        if isinstance(found, bytes) and found[:1] in (b"+", b"-"):
            does = "comes, and is there" if found[:1] == b"+" else "leaves, and is not there"
            raise SinkRejected(
                f"{self._location}: the key {found[1:].decode(errors='replace')!r} {does}: the key "
                "columns do not identify a row, or another program or an eviction has changed the "
                "copy; `tailer verify --repair` sets it right"
            )

    async def _save_offset(self, then: Offset) -> None:
        await self._run_script(("0",), b"", 0, then)

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset. None removes the rows, which belong to it."""
        self._feed = feed
        try:
            now = await self._look_at_target()
            if offset is not None:
                if now is None and offset.position > (0, 0):
                    raise TargetRefused(
                        f"{self._location}: {self._target} is no copy yet, and a copy can't start "
                        f"at version {offset.version}; start over with `tailer offsets reset`"
                    )
                await super().set_offset(feed, offset)
                return
            # If this is interrupted, there are rows left, and no copy begins there.
            await self._call_command("HDEL", self._find_keys()[1], "offset", "empty")
            async with aclosing(self.scan_rows()) as pages:
                async for found in pages:
                    if found:
                        await self._call_command("UNLINK", *found)
            await self._call_command("DEL", self._find_keys()[1])
        finally:
            await self._disconnect()

    async def write_rows(
        self, ids: pa.StringArray, values: pa.StringArray, expected: Offset | None
    ) -> bool:
        """Set rows, or remove those whose value is empty; return whether the offset was the
        expected one, without which nothing is written."""
        names = self.name_keys(ids).to_pylist()
        words = [word for pair in zip(names, values.to_pylist(), strict=True) for word in pair]
        offset = "" if expected is None else str(expected)
        command = ("EVAL", _REPAIR, 1, self._find_keys()[0], offset, *words)
        return bool(await self._call_command(*command) == b"written")

    # Reading

    async def find_offset(self) -> Offset | None:
        """Return the offset that Redis has."""
        return await self._look_at_target()

    async def scan_rows(self) -> AsyncGenerator[dict[bytes, dict[str, msgspec.Raw]], None]:
        """Yield the rows by their keys of Redis, each once or twice. A key whose value is no row of
        that key belongs to somebody else."""
        pattern = _GLOB.sub(r"\\\1", self.fill_option("prefix")) + "*"
        cursor = b"0"
        while True:
            answer = await self._call_command(
                "SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED, "TYPE", "string"
            )
            if not isinstance(answer, list) or len(answer) != 2:
                raise self._make_answer_error(answer, "a cursor and keys")
            cursor, names = answer
            for some in await self._group_names(names):
                yield self._keep_rows(some, await self._call_command("MGET", *some))
            if cursor == b"0":
                return

    async def _group_names(self, names: Sequence[bytes]) -> list[list[bytes]]:
        """Return the names in groups whose values make one answer."""
        sizes = await self._call_command("EVAL", _SIZES, len(names), *names) if names else []
        groups: list[list[bytes]] = []
        left = 0
        for name, size in zip(names, sizes, strict=True):
            if not groups or size > left:
                groups.append([])
                left = _ANSWER_BYTES
            groups[-1].append(name)
            left -= size
        return groups

    def _keep_rows(
        self, names: Sequence[bytes], values: Sequence[bytes | None]
    ) -> dict[bytes, dict[str, msgspec.Raw]]:
        parsed = {}
        for name, value in zip(names, values, strict=True):
            try:
                row = msgspec.json.decode(value or b"", type=dict[str, msgspec.Raw])
            except msgspec.DecodeError:
                continue
            if all(column in row for column in self.key):
                parsed[name] = row
        texts, rows = [pa.field(n, pa.string()) for n in self.key], list(parsed.values())
        keys = pa.table([find_column(rows, field) for field in texts], names=list(self.key))
        wanted = self.name_keys(find_ids_of_texts(keys)).cast(pa.binary()).to_pylist()
        return {n: row for (n, row), w in zip(parsed.items(), wanted, strict=True) if n == w}

    @contextmanager
    def read_mirror(self, feed: str) -> Iterator[RedisCopy]:
        with self._open_blocking(feed) as portal:
            yield RedisCopy(portal, self, portal.call(self.find_offset))

    @contextmanager
    def repair_mirror(self, feed: str) -> Iterator[RedisRepair]:
        with self._open_blocking(feed) as portal:
            yield RedisRepair(portal, self)

    @contextmanager
    def _open_blocking(self, feed: str) -> Iterator[BlockingPortal]:
        self._feed = feed
        with open_portal(self._disconnect) as portal:
            yield portal


class RedisCopy:
    """See :class:`tailer.sink.MirrorCopy`. Values are compared as JSON."""

    def __init__(self, portal: BlockingPortal, sink: RedisMirror, offset: Offset | None) -> None:
        self.offset = offset
        self.key = sink.key
        self.at: int | None = None
        self._portal = portal
        self._sink = sink

    def as_held(self, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG002  # the same for all
        return json_values(column)

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        seen = set[bytes]()
        for found in pull_batches(self._portal, self._sink.scan_rows()):
            rows = [row for name, row in found.items() if name not in seen]
            seen.update(found)
            columns = [find_column(rows, field) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)
        if self._portal.call(self._sink.find_offset) != self.offset:
            raise TransientError("the feed has written the copy meanwhile; verify it again")


class RedisRepair:
    """See :class:`tailer.sink.MirrorRepair`."""

    def __init__(self, portal: BlockingPortal, sink: RedisMirror) -> None:
        self._portal = portal
        self._sink = sink
        self.offset: Offset | None = portal.call(sink.find_offset)

    def reload(self) -> bool:
        before, self.offset = self.offset, self._portal.call(self._sink.find_offset)
        return self.offset != before

    def replace(self, batch: ChangeBatch) -> None:
        rows = pa.table(batch.rows.select(list(self._sink.key)))
        values = self._sink.format_rows(batch)
        self._write(find_ids(rows), values)

    def remove(self, keys: pa.Table) -> None:
        ids = find_ids_of_texts(keys.select(list(self._sink.key)))
        self._write(ids, pa.array([""] * len(ids), pa.string()))

    def _write(self, ids: pa.StringArray, values: pa.StringArray) -> None:
        if not self._portal.call(self._sink.write_rows, ids, values, self.offset):
            raise TransientError("the feed has written the copy meanwhile; repair it again")
