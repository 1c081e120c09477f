"""A Redis stream: each event as an entry, exactly once.

A piece is one call of a script, which Redis runs as a transaction: it checks that no newer process
has claimed the stream, adds the entries, and stores the offset after them. The command is made by
columns, in Redis' protocol (RESP), so no event is a Python object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha1
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import view_text
from sinks.formats.json_formats import keyed_settings
from sinks.messages.messages import Limits, Messages
from sinks.messages.sink import MessageSink
from sinks.messages.tls import is_distrusted
from sinks.shared.misread import find_misread_error
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
    local kept = redis.call('HGET', KEYS[2], 'feed')
    if kept and kept ~= ARGV[1] then return {kept, '', false, ''} end
    redis.call('HSET', KEYS[2], 'feed', ARGV[1])
    local epoch = redis.call('HINCRBY', KEYS[2], 'epoch', 1)
    local lost = redis.call('HGET', KEYS[2], 'written') and redis.call('EXISTS', KEYS[1]) == 0
    return {ARGV[1], tostring(epoch), redis.call('HGET', KEYS[2], 'offset'), lost and 'lost' or ''}
"""
#: A write: ARGV is epoch, the offset that Redis should have (or nothing), the new one, then
#: id and event of each entry. It is refused where Redis is not as this process has left it. What
#: can refuse an entry refuses the first one: a key of another type, memory, a server that may not
#: write.
_WRITE = """
    local stream, progress = KEYS[1], KEYS[2]
    local known = redis.call('HMGET', progress, 'epoch', 'offset', 'written')
    if not known[1] then return 'lost' end
    if known[1] ~= ARGV[1] and tonumber(known[1]) > tonumber(ARGV[1]) then return 'fenced' end
    if known[1] ~= ARGV[1] or (known[2] or '') ~= ARGV[2] then return 'earlier' end
    if known[3] and redis.call('EXISTS', stream) == 0 then return 'lost' end
    for i = 4, #ARGV, 2 do
        redis.call('XADD', stream, '*', 'id', ARGV[i], 'event', ARGV[i + 1])
    end
    redis.call('HSET', progress, 'offset', ARGV[3])
    if #ARGV > 3 then
        redis.call('HSET', progress, 'written', '1')
    end
    return 'written'
"""
#: What a write finds, that is not as this process has left it.
_FOUND = {
    b"lost": "{} or its offset is gone: Redis was emptied, or it is another server",
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
    "*without?any?password* *can't?run?this?command*",
    rows="*invalid?bulk?length* *proto-max-bulk-len* *string?exceeds?maximum*",
)
_DENIED = re.compile(r"NOAUTH|NOPERM|WRONGPASS|without any password|can't run this command")
TAG = re.compile(r"\{([^}]+)\}")
#: What Redis takes as one argument, by `proto-max-bulk-len`.
LIMITS = Limits(1 << 30, 1 << 31, message_bytes=512 * _MIB)


class RedisStream(MessageSink):
    """Events as entries of a Redis stream, exactly once."""

    faults = _FAULTS
    kind = "redis"
    places = ("stream",)
    keeps_offset = True
    piece_rows = 5000
    piece_bytes = 4 * _MIB

    #: What writes a piece.
    script: ClassVar[str] = _WRITE

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        return keyed_settings(format)

    def __init__(self, url: Url, given: Mapping[str, Any]) -> None:
        super().__init__(given["format"], self._format_options(given))
        try:
            import redis.asyncio
        except ImportError as e:
            raise ConfigError(
                f"the sink 'redis' needs redis ({e}): pip install 'delta-tailer[redis]'"
            ) from None
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

    def fill_option(self, name: str) -> str:
        return str(self.given[name]).replace("{feed}", self._feed)

    @property
    def _target(self) -> str:
        """What errors call the target."""
        return f"the stream {self.fill_option('stream')}"

    def _find_keys(self) -> tuple[str, str]:
        """Return the keys of the stream and of its progress, in one slot of a cluster."""
        stream = self.fill_option("stream")
        tag = TAG.search(stream)
        return stream, f"delta-tailer:{{{tag[1] if tag else stream}}}:{stream}"

    async def _connect(self) -> Offset | None:
        claim = ("EVAL", _CLAIM, 2, *self._find_keys(), self._feed)
        feed, epoch, offset, lost = await self._call_for_words(4, *claim)
        self._check_feed(feed)
        self._check_stream(lost=bool(lost))
        self._epoch, self._kept = epoch, offset or b""
        await self._call_command("SCRIPT LOAD", self.script)
        return self._parse_offset(offset)

    async def _look_at_target(self) -> Offset | None:
        stream, progress = self._find_keys()
        names = ("feed", "offset", "written")
        feed, offset, written = await self._call_for_words(3, "HMGET", progress, *names)
        self._check_feed(feed or self._feed.encode())
        self._check_stream(lost=bool(written) and not await self._call_command("EXISTS", stream))
        return self._parse_offset(offset)

    def _check_stream(self, *, lost: bool) -> None:
        if lost:
            raise TargetRefused(
                f"{self._location}: {self._target} is missing, with its unread entries, and its "
                "offset exists; restore it, or set with `tailer offsets set` or `reset` where the "
                "feed resumes"
            )

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
                f"{self._location}: the offset in {self._find_keys()[1]} is damaged ({e}); set it "
                "by `tailer offsets set`"
            ) from e

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset; the entries stay."""
        self._feed = feed
        try:
            found, *_ = await self._call_for_words(4, "EVAL", _CLAIM, 2, *self._find_keys(), feed)
            self._check_feed(found)
            await self._call_command("HDEL", self._find_keys()[1], "offset", "written")
            if offset is not None:
                await self._call_command("HSET", self._find_keys()[1], "offset", str(offset))
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        self._connection = None
        await self._pool.disconnect()

    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        messages.check_sizes(LIMITS)
        words = [messages.ids, messages.values.cast(pa.string())]
        await self._run_script((), format_words(words), 2 * len(messages), then)

    async def _save_offset(self, then: Offset) -> None:
        await self._run_script((), b"", 0, then)

    async def _run_script(
        self, more: tuple[Any, ...], words: bytes | memoryview, count: int, then: Offset
    ) -> None:
        """Run the script: ``more`` of its arguments, and ``count`` words."""
        sha = sha1(self.script.encode(), usedforsecurity=False).hexdigest()
        keys = self._find_keys()
        head = ("EVALSHA", sha, 2, *keys, self._epoch, self._kept, str(then), *more)
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
        """Raise the error of an answer that only a copy's script gives."""

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
