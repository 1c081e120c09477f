"""A Redis stream: each event as an entry, exactly once.

A piece is one call of a script, which Redis runs as a transaction: it checks that no newer process
has claimed the stream, adds the entries, and stores the offset after them. The command is made by
columns, in Redis' protocol (RESP), so no event is a Python object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha1
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import view_text
from sinks.formats.json_formats import keyed_settings
from sinks.messages.messages import Messages, RequestLimits, parse_limit
from sinks.messages.sink import MessageSink
from sinks.messages.tls import is_distrusted
from sinks.shared.misread import find_misread_error
from sinks.shared.options import naming_extra
from sinks.shared.routes import Targets
from tailer.changes import Offset
from tailer.errors import (
    ConfigError,
    OffsetError,
    TailerError,
    TargetRefused,
    TransientError,
    unexpected,
)
from tailer.native.rowbytes import Column, join_parts, whole_numbers
from tailer.network.reach import explain_unreached
from tailer.secrets.urls import Url
from tailer.settings import Setting
from tailer.sink import FaultTable

_MIB = 1024**2
#: A claim: from now on, older processes can't write. A stream of another feed is refused.
_CLAIM = """
    local kept = redis.call('HGET', KEYS[1], 'feed')
    if kept and kept ~= ARGV[1] then return {kept, '', false} end
    redis.call('HSET', KEYS[1], 'feed', ARGV[1])
    local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
    return {ARGV[1], tostring(epoch), redis.call('HGET', KEYS[1], 'offset')}
"""
#: Whether a stream that was written to is gone, or was made again, with fewer entries than were
#: ever added to it. A server before Redis 7 does not count them, and an account may not ask.
_IS_GONE = """
    local function count_added(stream)
        local info = redis.pcall('XINFO', 'STREAM', stream)
        for i = 1, #info, 2 do
            if info[i] == 'entries-added' then return info[i + 1] end
        end
    end
    local function is_gone(stream, field)
        local seen = redis.call('HGET', KEYS[1], field)
        if not seen then return false end
        if redis.call('EXISTS', stream) == 0 then return true end
        return (count_added(stream) or math.huge) < tonumber(seen)
    end
"""
#: How many streams are gone: ARGV are the fields that say that they were written to.
_COUNT_GONE = """
    local gone = 0
    for i = 2, #KEYS do
        if is_gone(KEYS[i], ARGV[i - 1]) then gone = gone + 1 end
    end
    return gone
"""
#: A write: ARGV is epoch, the offset that Redis should have (or nothing), the new one, the fields
#: that say of each stream (KEYS, behind the progress) that it was written to, and how many entries
#: it had been given by then; after that stream, id and event of each entry. It is refused where
#: Redis is not as this process has left it. What refuses an entry refuses the first one of a stream
#: (a key of another type, memory, a server that may not write, a last id that nothing follows):
#: those of other streams are removed again.
_WRITE = """
    local progress, streams = KEYS[1], #KEYS - 1
    local known = redis.call('HMGET', progress, 'epoch', 'offset')
    if not known[1] then return 'lost' end
    if known[1] ~= ARGV[1] and tonumber(known[1]) > tonumber(ARGV[1]) then return 'fenced' end
    if known[1] ~= ARGV[1] or (known[2] or '') ~= ARGV[2] then return 'earlier' end
    for i = 1, streams do
        local stream = KEYS[i + 1]
        if is_gone(stream, ARGV[i + 3]) then return 'lost' end
        if streams > 1 then
            local kind = redis.call('TYPE', stream).ok
            if kind ~= 'stream' and kind ~= 'none' then return '!' .. stream end
        end
    end
    local added = {}
    for i = streams + 4, #ARGV, 3 do
        local stream = KEYS[tonumber(ARGV[i]) + 1]
        local id = redis.pcall('XADD', stream, '*', 'id', ARGV[i + 1], 'event', ARGV[i + 2])
        if type(id) == 'table' then
            for _, entry in ipairs(added) do redis.call('XDEL', entry[1], entry[2]) end
            return redis.error_reply(id.err)
        end
        added[#added + 1] = {stream, id}
    end
    redis.call('HSET', progress, 'offset', ARGV[3])
    if #ARGV > streams + 3 then
        for i = 1, streams do
            redis.call('HSET', progress, ARGV[i + 3], count_added(KEYS[i + 1]) or 1)
        end
    end
    return 'written'
"""
#: What a write finds, that is not as this process has left it.
_FOUND = {
    b"lost": "{} or its offset is gone, or it was made again: Redis was emptied, or it is another "
    "server",
    b"earlier": "the offset of {} is not the one that was written last: Redis has an earlier state "
    "again",
}
#: An answer has a few words and an offset; a server that sends more than this is none.
_ANSWER_BYTES_MAX = 16 * _MIB
_ELEMENT_BYTES = 64  # about what an element of a list takes beside its bytes
#: By the client's class of the error, or the server's words. What is not here passes: a server that
#: loads, is full, read-only or without its replicas.
_FAULTS = FaultTable(
    for_good="AuthenticationError AuthenticationWrongNumberOfArgsError NoPermissionError "
    "*NOAUTH* *NOPERM* *WRONGPASS* *WRONGTYPE* *unknown?command* *DB?index* "
    "*without?any?password* *can't?run?this?command* *last?possible?ID*",
    rows="*invalid?bulk?length* *proto-max-bulk-len* *string?exceeds?maximum*",
)
_DENIED = re.compile(r"NOAUTH|NOPERM|WRONGPASS|without any password|can't run this command")
#: Braces in a value would change the slot of a cluster.
_NOT_IN_STREAMS = re.compile(r"[\x00-\x1f{}]+")
TAG = re.compile(r"\{([^}]+)\}")
#: The field that says that a stream was written to; behind it, which one, where there are several.
_WRITTEN = "written"
#: What Redis takes as one argument, unless `proto-max-bulk-len` is another one; and at least.
_VALUE_BYTES, _VALUE_BYTES_MIN = 512 * _MIB, _MIB
_REMEDY = "increase proto-max-bulk-len of the server, "


class RedisStream(MessageSink):
    """Events as entries of a Redis stream, exactly once."""

    faults = _FAULTS
    kind = "redis"
    places = ("stream",)
    place_bytes_max = 512
    routed: ClassVar[tuple[str, re.Pattern[str]] | None] = ("stream", _NOT_IN_STREAMS)
    keeps_offset = True
    piece_rows = 5000
    piece_bytes = 4 * _MIB

    #: What writes a piece.
    script: ClassVar[str] = _IS_GONE + _WRITE
    #: What a value may have, if the server takes it.
    _value_bytes_max: ClassVar[int] = _VALUE_BYTES

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        return keyed_settings(format)

    def __init__(self, url: Url, given: Mapping[str, Any]) -> None:
        super().__init__(given["format"], self._format_options(given))
        with naming_extra("redis", "redis"):
            import redis.asyncio
        self._exceptions: Any = redis.exceptions
        try:
            self._pool: Any = redis.asyncio.ConnectionPool.from_url(
                url.to_text(), socket_timeout=given["timeout_s"]
            )
            self._pool.connection_class = _bound_connections(redis, self._pool.connection_class)
        except (ValueError, TypeError):
            # Its message may show the password.
            raise ConfigError(
                "option 'url' of sink 'redis' is not a URL of redis-py; see docs/sinks/redis.md"
            ) from None
        self._location = f"Redis at {url.path if url.scheme == 'unix' else url.host_port(6379)}"
        self.given = given
        self._connection: Any = None
        self._epoch = self._kept = b""
        self._streams = Targets()
        self._taken_bytes: int | None = None  # what the server takes, once it was asked

    @property
    def targets(self) -> int:
        return len(self._streams)

    @property
    def _stream(self) -> str:
        """The stream's key; with a star for each column in it."""
        return self.place

    @property
    def _target(self) -> str:
        """What errors call the target."""
        return f"the stream {self._stream}"

    @property
    def _progress(self) -> str:
        """The key of the progress, in one slot of a cluster with the stream."""
        tag = TAG.search(self._stream)
        return f"delta-tailer:{{{tag[1] if tag else self._stream}}}:{self._stream}"

    async def _connect(self) -> Offset | None:
        claim = ("EVAL", _CLAIM, 1, self._progress, self._feed)
        feed, epoch, offset = await self._call_for_words(3, *claim)
        self._check_feed(feed)
        await self._check_streams()
        self._epoch, self._kept, self._taken_bytes = epoch, offset or b"", None
        await self._call_command("SCRIPT LOAD", self.script)
        return self._parse_offset(offset)

    async def _look_at_target(self) -> Offset | None:
        feed, offset = await self._call_for_words(2, "HMGET", self._progress, "feed", "offset")
        self._check_feed(feed or self._feed.encode())
        await self._check_streams()
        return self._parse_offset(offset)

    async def _check_streams(self) -> None:
        """Raise :class:`TargetRefused` if a stream that was written to is gone."""
        fields = await self._list_written()
        streams = [field.partition(b":")[2] or self._stream.encode() for field in fields]
        for stream in streams if self.route else ():
            self._streams.add(stream.decode(errors="replace"), "the stream")
        keys = (1 + len(streams), self._progress, *streams, *fields)
        if streams and await self._call_command("EVAL", _IS_GONE + _COUNT_GONE, *keys) != 0:
            raise TargetRefused(
                f"{self._location}: {self._target} is missing or was made again, without its "
                "unread entries, and its offset exists; restore it, or set with `tailer offsets "
                "set` or `reset` where the feed resumes"
            )

    async def _list_written(self) -> list[bytes]:
        """Return the fields that say that a stream was written to."""
        if self.route is None:
            found = await self._call_command("HGET", self._progress, _WRITTEN)
            return [] if found is None else [_WRITTEN.encode()]
        fields = await self._call_command("HKEYS", self._progress)
        if not isinstance(fields, list) or not all(isinstance(field, bytes) for field in fields):
            raise self._make_answer_error(fields, "the names of fields")
        return [field for field in fields if field.startswith(f"{_WRITTEN}:".encode())]

    def _check_feed(self, feed: bytes) -> None:
        if feed != self._feed.encode():
            raise ConfigError(
                f"{self._location}: {self._target} is written by the feed {feed.decode()!r}; name "
                f"another in the option {self.places[0]!r}"
            )

    def _parse_offset(self, offset: bytes | None) -> Offset | None:
        try:
            return None if offset is None else Offset.from_json(json.loads(offset))
        except (ValueError, OffsetError) as e:
            raise ConfigError(
                f"{self._location}: the offset in {self._progress} is damaged ({e}); set it "
                "by `tailer offsets set`"
            ) from e

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset; the entries stay."""
        self._feed = feed
        try:
            found, *_ = await self._call_for_words(3, "EVAL", _CLAIM, 1, self._progress, feed)
            self._check_feed(found)
            written = await self._list_written()
            await self._call_command("HDEL", self._progress, "offset", *written)
            if offset is not None:
                await self._call_command("HSET", self._progress, "offset", str(offset))
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        self._connection = None
        await self._pool.disconnect()

    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        await self._check_sizes(messages)
        if messages.places is None:
            streams, fields = [self._stream], [_WRITTEN]
            numbers = pa.repeat("1", len(messages))
        else:
            coded = messages.places.dictionary_decode().dictionary_encode()
            streams = coded.dictionary.to_pylist()
            for stream in streams:
                self._streams.add(stream, "the stream")
            fields = [f"{_WRITTEN}:{stream}" for stream in streams]
            numbers = pc.add(coded.indices, 1).cast(pa.string())
        words = format_words([numbers, messages.ids, messages.values.cast(pa.string())])
        await self._run_script(tuple(fields), words, 3 * len(messages), then, streams)

    async def _check_sizes(self, messages: Messages) -> None:
        """Raise :class:`RowsRefused` for a value that is too large: the server would end the
        connection, most often before its answer is read."""
        most, remedy = self._value_bytes_max, ""
        if pc.max(pc.binary_length(messages.values)).as_py() > _VALUE_BYTES_MIN:
            if self._taken_bytes is None:
                self._taken_bytes = await self._ask_taken_bytes()
            if self._taken_bytes < most:
                most, remedy = self._taken_bytes, _REMEDY
        messages.check_sizes(RequestLimits(1 << 30, 1 << 31, message_bytes=most, remedy=remedy))

    async def _ask_taken_bytes(self) -> int:
        """Return what the server takes as one argument; the default, if the account may not ask."""
        found: Any = []
        with suppress(ConfigError, TargetRefused):
            found = await self._call_command("CONFIG GET", "proto-max-bulk-len")
        words = list(found.values()) if isinstance(found, dict) else found
        limit = words[-1] if isinstance(words, list) and words else None
        return parse_limit(limit, _VALUE_BYTES, _VALUE_BYTES_MIN)

    async def _save_offset(self, then: Offset) -> None:
        streams = [self._stream] if self.route is None else []
        await self._run_script((_WRITTEN,) * len(streams), b"", 0, then, streams)

    async def _run_script(
        self,
        more: tuple[Any, ...],
        words: bytes | memoryview,
        count: int,
        then: Offset,
        streams: Sequence[str] = (),
    ) -> None:
        """Run the script: ``more`` of its arguments, and ``count`` words."""
        sha = sha1(self.script.encode(), usedforsecurity=False).hexdigest()
        keys = (len(streams) + 1, self._progress, *streams)
        head = ("EVALSHA", sha, *keys, self._epoch, self._kept, str(then), *more)
        found = await self._send_command([_format_command(head, len(head) + count), words])
        if isinstance(found, bytes) and found in _FOUND:
            what = _FOUND[found].format(self._target)
            raise TransientError(
                f"{self._location}: {what}; the feed restarts from the state found there"
            )
        if found == b"fenced":
            raise ConfigError(
                f"{self._location}: another process writes {self._target} now; stop one of them"
            )
        if found != b"written":
            self._check_answer(found)
            raise self._make_answer_error(found, "the word written")
        self._kept = str(then).encode()

    def _check_answer(self, found: object) -> None:
        """Raise the error that the script names by a key."""
        if isinstance(found, bytes) and found[:1] == b"!":
            name = found[1:].decode(errors="replace")
            raise TargetRefused(
                f"{self._location}: the key {name!r} is no stream; remove it, or name other "
                "streams in the option 'stream'"
            )

    async def _call_for_words(self, count: int, *command: Any) -> list[Any]:
        """Return the answer to a command: a list of ``count`` strings or nils."""
        answer = await self._call_command(*command)
        whole = isinstance(answer, list) and len(answer) == count
        if not whole or not all(word is None or isinstance(word, bytes) for word in answer):
            raise self._make_answer_error(answer, f"a list of {count} strings or nils")
        return list(answer)

    def _make_answer_error(self, answer: object, expected: str) -> TransientError:
        return TransientError(f"{self._location}: expected {expected}, got {answer!r}")

    async def _call_command(self, *command: Any) -> Any:
        words = (*command[0].split(), *command[1:])
        return await self._send_command([_format_command(words, len(words))])

    async def _send_command(self, command: list[bytes | memoryview]) -> Any:
        """Return the answer to a command. It is sent once: a lost answer does not say whether it
        was carried out."""
        try:
            if self._connection is None:
                self._connection = await self._pool.get_connection()
            # From Python 3.12 on, a transport never comes to the end of an empty last piece.
            pieces = [piece for piece in command if len(piece)]
            await self._connection.send_packed_command(pieces, check_health=False)
            return await self._connection.read_response()
        except Exception as e:
            self._connection = None
            await self._pool.disconnect()
            raise self._to_tailer_error(e) from e

    def _to_tailer_error(self, e: Exception) -> TailerError:
        known = self._exceptions
        what = f"{self._location}: {' '.join(str(e).split())}"
        if not isinstance(e, known.RedisError | OSError):
            return find_misread_error(self._location, e) or unexpected(e)
        if isinstance(e, known.AuthenticationError | known.NoPermissionError) or (
            isinstance(e, known.ResponseError) and _DENIED.search(str(e))
        ):
            return ConfigError(f"{what}; check the user and the password in the option 'url'")
        if is_distrusted(e):
            return ConfigError(f"{what}; name the authorities by `?ssl_ca_certs=FILE` in 'url'")
        if (no_way := explain_unreached(self._location, e, "the option 'url'")) is not None:
            return no_way
        # Of its own classes each has a meaning; the others have the server's words.
        return self.faults.error(
            str(e) if type(e) is known.ResponseError else type(e).__name__, what
        )


def _bound_connections(redis: Any, connection_class: Any) -> Any:
    """Return a class of connections that take no answer without end: redis-py reads as many bytes
    as a server says."""

    class Bounded(connection_class):  # type: ignore[misc]  # a class of a library without types
        def set_parser(self, parser_class: Any) -> None:
            """See redis-py. Only its own parsers, not hiredis, ask for each line by itself."""
            if not hasattr(parser_class, "_readline"):
                newer = str(self.protocol) == "3"
                own = redis._parsers  # noqa: SLF001  # they are not public
                parser_class = own._AsyncRESP3Parser if newer else own._AsyncRESP2Parser  # noqa: SLF001
            super().set_parser(_bound_parser(redis, parser_class))

    return Bounded


@cache
def _bound_parser(redis: Any, parser_class: Any) -> Any:
    class Bounded(parser_class):  # type: ignore[misc]  # a class of a library without types
        async def read_response(self, *arguments: Any, **named: Any) -> Any:
            self._left = _ANSWER_BYTES_MAX
            return await super().read_response(*arguments, **named)

        async def _read(self, length: int) -> bytes:
            self._count_bytes(length)
            return bytes(await super()._read(length))

        async def _readline(self) -> bytes:
            self._count_bytes(_ELEMENT_BYTES)
            return bytes(await super()._readline())

        def _count_bytes(self, length: int) -> None:
            self._left -= length
            if self._left < 0:
                raise redis.InvalidResponse(f"an answer of more than {_ANSWER_BYTES_MAX} bytes")

    return Bounded


def _format_command(words: tuple[Any, ...], count: int) -> bytes:
    """Return the first words of a command of ``count`` words."""
    parts = [f"*{count}\r\n".encode()]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def format_words(columns: Sequence[pa.StringArray]) -> memoryview:
    """Return the texts of each row, one after the other, as words of a command."""
    parts: list[Column] = []
    for array in columns:
        parts += ["$", whole_numbers(pc.binary_length(array)), "\r\n", array, "\r\n"]
    return memoryview(view_text(join_parts(parts, len(columns[0])))).cast("B")
