"""A copy of a table in Redis: a string of JSON for each key, exactly once.

A piece is one call of a script, as for a stream: it checks that no newer process has claimed the
copy, that the keys are there which should be, and no others; then it writes, with the offset.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sinks.messages.json_mirror import JsonMirror
from sinks.messages.messages import Messages
from sinks.redis.stream import TAG, RedisStream, format_words
from sinks.shared.json_copy import add_columns
from tailer.changes import METADATA_FIELDS, ChangeBatch, Offset
from tailer.errors import TargetRefused
from tailer.secrets.urls import Url

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
_GLOB = re.compile(r"([*?\[\]\\])")


class RedisMirror(JsonMirror, RedisStream):
    """A copy of a table by key."""

    places = ("prefix",)
    routed = None
    script = _MERGE
    _value_bytes_max = _ANSWER_BYTES

    def __init__(self, url: Url, given: Mapping[str, Any]) -> None:
        key = self._find_key(given)
        super().__init__(url, given)
        self._set_key(key)
        #: The schema whose columns are stored.
        self._noted: pa.Schema | None = None
        self._begins = False

    @property
    def _target(self) -> str:
        return f"the copy under {self.fill_option('prefix')}"

    @property
    def lacks_beginning(self) -> bool:  # type: ignore[override]
        """Whether a copy has just begun."""
        return self._begins

    @property
    def _progress(self) -> str:
        prefix = self.fill_option("prefix")
        tag = TAG.search(prefix)
        return f"delta-tailer:{{{tag[1] if tag else prefix}}}:{prefix}mirror"

    async def _check_streams(self) -> None:
        """Do nothing: a copy has none."""

    async def _list_written(self) -> list[bytes]:
        return []

    async def _connect(self) -> Offset | None:
        offset, self._noted = await super()._connect(), None
        progress = self._progress
        begun = offset is not None or await self._call_command("HEXISTS", progress, "empty")
        self._begins = not begun
        if self._begins:
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

    def name_keys(
        self, keys: pa.Table, find_ids: Callable[[pa.Table], pa.StringArray]
    ) -> pa.StringArray:
        return pc.binary_join_element_wise(self.fill_option("prefix"), find_ids(keys), "")

    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        await self._check_sizes(messages)
        assert messages.keys is not None, "a copy's messages have them"
        await self._note_columns(messages.batch)
        words = [messages.ids, messages.keys.cast(pa.string()), messages.values.cast(pa.string())]
        checked = "0" if self._replaces_rows(messages.batch) else "1"
        await self._run_script((checked,), format_words(words), 3 * len(messages), then)

    async def _note_columns(self, batch: ChangeBatch) -> None:
        """Store what columns the rows have. Raises as of :func:`add_columns`."""
        schema = pa.schema(list(batch.rows.schema)[: -len(METADATA_FIELDS)])
        if self._noted is not None and self._noted.equals(schema):
            return
        progress = self._progress
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
            name = found[1:].decode(errors="replace")
            raise self._make_key_error(self._location, name, there=found[:1] == b"+")

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
            await self._call_command("HDEL", self._progress, "offset", "empty")
            async with aclosing(self.scan_rows()) as pages:
                async for found in pages:
                    if found:
                        await self._call_command("UNLINK", *found)
            # The number of the last process stays: one that stood still meanwhile has an older one.
            await self._call_command("HDEL", self._progress, "feed", "columns")
        finally:
            await self._disconnect()

    async def write_rows(
        self, names: pa.StringArray, values: pa.StringArray, expected: Offset | None
    ) -> bool:
        pairs = zip(names.to_pylist(), values.to_pylist(), strict=True)
        words = [word for pair in pairs for word in pair]
        offset = "" if expected is None else str(expected)
        command = ("EVAL", _REPAIR, 1, self._progress, offset, *words)
        return bool(await self._call_command(*command) == b"written")

    # Reading

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
