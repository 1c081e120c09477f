"""What a server that means harm says in the place of an answer, by its protocol."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from tests.support.link import Lie

#: What is a mistake of the configuration, by the sentence: a feed says so and stops.
MAY_STOP = {
    "any": ("a redirect in a ring",), "kafka": ("TLS",), "registry": (),
    # A table that was replaced or restored, and a URL whose server refuses it when it is new.
    "sharing": (
        "a redirect in a ring", "changes: another table", "version: another below all",
        "file: 403 with a page",
    ),
}  # fmt: skip
#: Left out where the client library bounds no answer; docs/reliability.md says what they can do.
_UNBOUNDED = {
    "mysql": ("a length of 2 GiB, and all bytes",), "kafka": ("garbage without end",),
    "nats": ("a length of 2 GiB, and all bytes", "garbage without end"),
}  # fmt: skip
_MIB = 1024 * 1024
_CHUNK = bytes(random.Random(7).randbytes(_MIB))
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_DEEP = 100_000
_DIGITS = 1_000_000


@dataclass(frozen=True)
class Protocol:
    """How the answers of a protocol look. ``open``: the beginning of one that never comes to its
    end, whatever follows; ``error``: an error with so long a text as follows; ``foreign``: the
    answer of another one."""

    open: bytes
    error: Callable[[bytes], bytes]
    #: Answers that look well, and are none to what was asked.
    wrong: Mapping[str, Lie]
    foreign: bytes = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    web: bool = False


def _postgres_error(text: bytes) -> bytes:
    fields = b"SFATAL\0VFATAL\0C53300\0M" + text + b"\0\0"
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields


def _mysql_error(text: bytes) -> bytes:
    body = b"\xff" + (1040).to_bytes(2, "little") + b"#08004" + text
    return len(body).to_bytes(3, "little") + b"\0" + body


def _kafka_error(text: bytes) -> bytes:
    """No error has a text there: an answer to a request that nobody has made."""
    return (len(text) + 4).to_bytes(4, "big") + b"\x7f\xff\xff\xff" + text


def _rabbitmq_error(text: bytes) -> bytes:
    """connection.close, whose text is short by its type; the rest is of no frame."""
    body = b"\0\x0a\0\x32\x01\x40" + bytes([255]) + text[:255] + b"\0\0\0\0"
    return b"\x01\0\0" + len(body).to_bytes(4, "big") + body + b"\xce" + text


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """A frame of HTTP/2, which carries gRPC."""
    head = len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + body


#: SETTINGS, without which nothing follows.
_BEGUN = _frame(4, 0, 0, b"")


def _grpc_error(text: bytes) -> bytes:
    """GOAWAY, whose text has no limit of its own but that of a frame."""
    return _BEGUN + _frame(7, 0, 0, bytes(4) + b"\0\0\0\x0b" + text)


def _header(name: bytes, value: bytes) -> bytes:
    """A header as HPACK writes it without a table."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


_GRPC = b"\x88" + _header(b"content-type", b"application/grpc")


def _web_error(text: bytes) -> bytes:
    head = b"HTTP/1.1 503 Busy\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
    return head % len(text) + text


def _whole(*parts: bytes) -> Lie:
    async def lie(_: bytes) -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return lie


async def _silence(_: bytes) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def _behind(start: bytes, then: Lie) -> Lie:
    async def lie(asked: bytes) -> AsyncIterator[bytes]:
        yield start
        async for part in then(asked):
            yield part

    return lie


async def _drops(_: bytes) -> AsyncIterator[bytes]:
    """A byte now and then, for ever: before any time-out between two of them."""
    while True:
        yield b"a"
        await asyncio.sleep(0.2)


async def _endless(_: bytes) -> AsyncIterator[bytes]:
    while True:
        yield _CHUNK


def _repeated(part: bytes) -> Lie:
    async def lie(_: bytes) -> AsyncIterator[bytes]:
        while True:
            yield part * 100

    return lie


@cache
def _bomb() -> bytes:
    """Two gigabytes, in two megabytes."""
    return gzip.compress(bytes(64 * _MIB), 9) * 32


def _json(body: bytes, more: bytes = b"", length: int | None = None) -> Lie:
    told = len(body) if length is None else length
    return _whole(_OK + more + b"Content-Length: %d\r\n\r\n" % told + body)


def _postgres(*messages: bytes) -> Lie:
    """Messages: a letter and a body."""
    return _whole(b"".join(m[:1] + (len(m) + 3).to_bytes(4, "big") + m[1:] for m in messages))


def _mysql(*bodies: bytes) -> Lie:
    """Packets, numbered as answers to a query are."""
    packets = enumerate(bodies, 1)
    return _whole(b"".join(len(b).to_bytes(3, "little") + bytes([n]) + b for n, b in packets))


def _kafka(body: bytes) -> Lie:
    """An answer to the very request, by its number."""

    async def lie(asked: bytes) -> AsyncIterator[bytes]:
        number = asked[8:12]
        yield (len(body) + 4).to_bytes(4, "big") + number + body
        await asyncio.Event().wait()

    return lie


def _page(status: int, body: bytes = b"<html><body>Sign in</body></html>") -> Lie:
    head = b"HTTP/1.1 %d No\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n"
    return _whole(head % (status, len(body)) + body)


def _registered(found: Lie) -> Lie:
    """An id of a schema, and what is found under the id."""
    given = _json(b'{"id": 7}')

    async def lie(asked: bytes) -> AsyncIterator[bytes]:
        async for part in (found if asked.startswith(b"GET ") else given)(asked):
            yield part

    return lie


_PROTOCOL = b'{"protocol": {"minReaderVersion": 1}}\n'
_FIELD = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


def _metadata(table: str, column: str = "id") -> bytes:
    schema = {"type": "struct", "fields": [{**_FIELD, "name": column}]}
    facts = {"id": table, "format": {"provider": "parquet"}, "partitionColumns": []}
    return json.dumps({"metaData": {**facts, "schemaString": json.dumps(schema)}}).encode() + b"\n"


def _added(version: int) -> bytes:
    facts = {"url": "https://files.example.org/f", "id": "f", "partitionValues": {}, "size": 9}
    added = {**facts, "timestamp": 1_700_000_000_000, "version": version}
    return json.dumps({"add": added}).encode() + b"\n"


def _shared(*lines: bytes, header: bytes = b"") -> Lie:
    """An answer of a sharing server."""
    return _json(b"".join(lines), b"Delta-Table-Version: 1\r\n" + header)


def _paged(token: Callable[[int], str], *lines: bytes) -> Lie:
    """An answer that says that another page follows."""
    numbers = itertools.count()
    said = b"delta-sharing-capabilities: responseformat=parquet;includeendstreamaction=true\r\n"

    async def lie(asked: bytes) -> AsyncIterator[bytes]:
        end = {"endStreamAction": {"nextPageToken": token(next(numbers))}}
        page = _shared(*lines, json.dumps(end).encode() + b"\n", header=said)
        async for part in page(asked):
            yield part

    return lie


def _refusal_of_sharing(status: int) -> Lie:
    return _shared(
        _PROTOCOL, _metadata("t"),
        b'{"endStreamAction": {"errorMessage": "no", "httpStatusErrorCode": %d}}\n' % status,
    )  # fmt: skip


_WRONG: Mapping[str, Mapping[str, Lie]] = {
    "pubsub": {
        "success before the request": _behind(
            _BEGUN + _frame(1, 5, 1, _GRPC + _header(b"grpc-status", b"0")), _silence
        ),
        "a page before the request": _behind(
            _BEGUN + _frame(1, 5, 1, b"\x88" + _header(b"content-type", b"text/html")), _silence
        ),
    },
    "postgres": {
        "no rows": _postgres(b"CSELECT 0\0", b"ZI"),
        "rows of no columns": _postgres(b"D\0\x05\0\0\0\x01a", b"CSELECT 1\0", b"ZI"),
        "the server wants a password in plain text": _postgres(b"R\0\0\0\x03"),
    },
    "mysql": {
        "no rows": _mysql(b"\0\0\0\x02\0\0\0"),
        "a column count of 2^63": _mysql(b"\xfe" + b"\xff" * 7 + b"\x7f"),
        "columns without their ends": _mysql(b"\x01", b"\x03def\xfe" + b"\xff" * 7 + b"\x7f"),
        "the server wants a local file": _mysql(b"\xfb/etc/passwd"),
    },
    "redis": {
        "OK": _repeated(b"+OK\r\n"),
        "no list": _behind(b":1\r\n" * 100, _silence),
        "a list of too few": _behind(b"*1\r\n:1\r\n" * 100, _silence),
        "a list of 2^31": _behind(b"*2147483647\r\n", _repeated(b":1\r\n")),
        "lists nested 100,000 deep": _behind(b"*1\r\n" * _DEEP, _silence),
        "a number of a million digits": _behind(b":" + b"9" * _DIGITS + b"\r\n", _silence),
        "no number": _behind(b"*x\r\n$y\r\n", _silence),
        "pushed messages for ever": _repeated(b">1\r\n+x\r\n"),
    },
    "nats": {
        "OK": _repeated(b"+OK\r\n"),
        "INFO for ever": _repeated(b'INFO {"max_payload": "x"}\r\n'),
        "a message that nobody asked for": _behind(b"MSG a 9 2\r\n{}\r\n", _silence),
        "an odd error": _behind(b"-ERR\r\n-ERR 'x'\r\n", _silence),
    },
    "rabbitmq": {
        "another version": _whole(b"AMQP\0\x01\x00\x00"),
        "heartbeats for ever": _repeated(b"\x08\0\0\0\0\0\0\xce"),
        "a frame without its end": _behind(b"\x01\0\0\0\0\0\x04\0\x0a\0\x0a\0", _silence),
        "a method that is none": _behind(b"\x01\0\0\0\0\0\x04\x7f\xff\x7f\xff\xce", _silence),
        "an answer of another channel": _behind(
            b"\x01\x7f\xff\0\0\0\x04\0\x14\0\x0b\xce", _silence
        ),
    },
    "kafka": {
        "nothing": _kafka(b""),
        "zeros": _kafka(bytes(512)),
        "a list of 2^31": _kafka(b"\0\0\0\0" + b"\x7f\xff\xff\xff" * 8),
        "a compact list of 2^31": _kafka(b"\0\0" + b"\xff\xff\xff\xff\x07" * 8),
        "all ones": _kafka(b"\xff" * 512),
        "a length of less than nothing": _behind(b"\xff\xff\xff\xff", _silence),
        "lengths of nothing": _repeated(b"\0\0\0\0"),
    },
    "http": {},
    "sharing": {
        **{f"changes: {status} with a page": _page(status) for status in (401, 404)},
        "changes: a line cut in the middle": _shared(_PROTOCOL, _metadata("t")[:-20]),
        "changes: no protocol": _shared(_added(2**62)),
        "changes: no metadata": _shared(_PROTOCOL, _added(2**62)),
        "changes: a version below all": _shared(_PROTOCOL, _added(0)),
        "changes: another table": _shared(_PROTOCOL, _metadata("another")),
        "changes: pages in a ring": _paged(lambda _: "a", _PROTOCOL),
        "changes: pages without end": _paged(str, _PROTOCOL),
        "changes: broken off": _refusal_of_sharing(500),
        "version: another below all": _whole(
            b"HTTP/1.1 200 OK\r\nDelta-Table-Version: 0\r\nContent-Length: 0\r\n\r\n"
        ),
        **{f"file: {status} with a page": _page(status) for status in (200, 403)},
        "file: fewer bytes than it says": _json(b"PAR1", length=9000),
        "file: bytes without end": _behind(
            _OK + b"Transfer-Encoding: chunked\r\n\r\n",
            _repeated(b"1000\r\n" + b"a" * 4096 + b"\r\n"),
        ),
    },
    "registry": {
        **{f"{status} with a page": _page(status) for status in (400, 401, 403, 404, 409, 422)},
        "403 with another's JSON": _page(403, b'{"message": "Forbidden"}'),
        "an id that is no number": _json(b'{"id": "7"}'),
        "an id below nothing": _json(b'{"id": -7}'),
        "an id of 2^40": _json(b'{"id": 1099511627776}'),
        "an id, whatever is asked": _json(b'{"id": 7}'),
        "an id of another schema": _registered(_json(b'{"schema": "\\"string\\""}')),
        "an id of a schema nested 100,000 deep": _registered(
            _json(b'{"schema": "' + b"[" * _DEEP + b'"}')
        ),
        "an id of no schema": _registered(_page(404, b'{"error_code": 40403, "message": "no"}')),
    },
}  # fmt: skip


#: Those that a feed speaks, with a length of two gigabytes where a length is.
PROTOCOLS: Mapping[str, Protocol] = {
    "postgres": Protocol(b"D\x7f\xff\xff\xff", _postgres_error, _WRONG["postgres"]),
    "mysql": Protocol(b"\xff\xff\xff\1", _mysql_error, _WRONG["mysql"]),
    "redis": Protocol(b"$2147483647\r\n", lambda text: b"-ERR " + text + b"\r\n", _WRONG["redis"]),
    "nats": Protocol(
        b"MSG a 1 2147483647\r\n", lambda text: b"-ERR '" + text + b"'\r\n", _WRONG["nats"]
    ),
    "rabbitmq": Protocol(b"\x01\0\x01\x7f\xff\xff\xff", _rabbitmq_error, _WRONG["rabbitmq"]),
    "kafka": Protocol(b"\x7f\xff\xff\xff", _kafka_error, _WRONG["kafka"]),
    "pubsub": Protocol(
        _BEGUN + _frame(1, 4, 1, _GRPC) + _frame(0, 0, 1, b"\0\x7f\xff\xff\xff"),
        _grpc_error, _WRONG["pubsub"],
    ),
    "http": Protocol(
        _OK + b"Content-Length: 2147483647\r\n\r\n", _web_error, _WRONG["http"], web=True,
        foreign=b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    ),
}  # fmt: skip
#: Those by HTTP that have answers of their own.
PROTOCOLS = {
    **PROTOCOLS,
    **{name: replace(PROTOCOLS["http"], wrong=_WRONG[name]) for name in ("registry", "sharing")},
}


def _all_protocols(of: Protocol) -> Iterator[tuple[str, Lie]]:
    yield "silence", _silence
    yield "the end at once", _whole()
    yield "garbage", _whole(_CHUNK[:4096])
    yield "garbage, then silence", _behind(_CHUNK[:4096], _silence)
    yield "garbage without end", _endless
    yield "another protocol", _behind(of.foreign, _silence)
    yield "TLS", _behind(b"\x15\x03\x03\x00\x02\x02\x28", _silence)
    yield "half an answer", _whole(of.open[:-1])
    yield "a length of 2 GiB, then silence", _behind(of.open, _silence)
    yield "a length of 2 GiB, then the end", _whole(of.open + _CHUNK[:4096])
    yield "a length of 2 GiB, and all bytes", _behind(of.open, _endless)
    yield "a byte now and then, for ever", _behind(of.open, _drops)
    yield "a text of error of a megabyte", _behind(of.error(b"sorry " * 170_000), _silence)
    yield from of.wrong.items()


def _web() -> Iterator[tuple[str, Lie]]:
    error = json.dumps({"error": "internal", "message": "no"}).encode()
    yield "200 with an error as its body", _json(error)
    yield "200 with a page", _json(b"<html><body>Sign in</body></html>")
    yield "200 with nothing", _json(b"")
    yield "200 with half of its JSON", _json(b'{"items": [{"name": "a')
    yield "200 with fewer bytes than it says", _json(b"[]", length=4096)
    yield "200 with more bytes than it says", _json(b'{"a": [] }' * 99, length=2)
    yield "no length that is one", _whole(_OK + b"Content-Length: -1\r\n\r\n[]")
    yield "a length of 2^80", _whole(_OK + b"Content-Length: %d\r\n\r\n[]" % 2**80)
    yield "JSON nested 100,000 deep", _json(b"[" * _DEEP + b"]" * _DEEP)
    yield "a number of a million digits", _json(b'{"version": ' + b"9" * _DIGITS + b"}")
    yield "headers without end", _behind(_OK, _repeated(b"X-Header: abcdefghijklmnop\r\n"))
    yield "a header without end", _behind(_OK + b"X: ", _repeated(b"a" * 1000))
    yield "100 Continue for ever", _repeated(b"HTTP/1.1 100 Continue\r\n\r\n")
    yield (
        "a chunk of 2^64",
        _behind(_OK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n", _endless),
    )
    yield (
        "chunks without end",
        _behind(
            _OK + b"Transfer-Encoding: chunked\r\n\r\n",
            _repeated(b"1000\r\n" + b"a" * 4096 + b"\r\n"),
        ),
    )
    yield (
        "JSON without end",
        _behind(
            _OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n",
            _repeated(b"10\r\n[{},{},{},{},{}],\r\n"),
        ),
    )
    yield "a bomb of gzip", _json(_bomb(), b"Content-Encoding: gzip\r\n")
    yield (
        "a redirect in a ring",
        _whole(b"HTTP/1.1 307 Moved\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n"),
    )


def passing_lies(protocol: str) -> dict[str, Lie]:
    """Those behind which a feed tries again."""
    stops = MAY_STOP.get(protocol, MAY_STOP["any"])
    return {name: lie for name, lie in lies_of(protocol).items() if name not in stops}


def lies_of(protocol: str) -> dict[str, Lie]:
    """What is said in a protocol, by name."""
    of = PROTOCOLS[protocol]
    lies = {**dict(_all_protocols(of)), **(dict(_web()) if of.web else {})}
    return {name: lies[name] for name in lies if name not in _UNBOUNDED.get(protocol, ())}
