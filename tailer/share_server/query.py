"""The answers of a table's endpoints: versions, metadata, and files of a snapshot.

The parameters are checked and the version is found before the first byte is sent; the lines then
stream as they are found.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.to_thread

from tailer.delta.actions import LONG_MAX
from tailer.delta.predicates import EVERY_ROW, FileFacts
from tailer.delta.snapshot import Snapshot
from tailer.errors import ConfigError, CorruptLog, TailerError
from tailer.log.times import parse_timestamp, version_at_or_after, version_at_or_before
from tailer.share_server.hints import Hints, parse_hints
from tailer.share_server.lines import LineWriter, choose_format
from tailer.share_server.refusals import Refusal, invalid_parameter, refusal_of
from tailer.share_server.signing import Forged, Signer
from tailer.share_server.tables import SharedTable
from tailer.sharing.model import Capabilities, EndOfStream, ResponseFormat, encode_ndjson_line

_INT32_MAX = 2**31 - 1
_REFRESHED_MS_MAX = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class Links:
    """A recipient's access to a table's files in one answer, all until the same time.

    ``now_ms`` and ``expires_ms`` are in epoch ms. ``url`` makes the URL of a location. One time for
    a whole answer keeps the URL of a file the same wherever it occurs: a reader pairs an add with a
    remove by it.
    """

    signer: Signer
    recipient: str
    now_ms: int
    expires_ms: int
    url: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer about a table. ``version`` goes into the header, ``chunks`` are whole lines.

    ``head`` lines are known already. With ``hold`` nothing is sent before the first chunks are
    found: an error of the table is then a status, and not a broken stream.
    """

    version: int
    form: ResponseFormat
    end_of_stream: bool
    head: bytes
    chunks: AsyncGenerator[bytes, None] | None = None
    hold: bool = False


@dataclass(frozen=True, slots=True)
class QueryBody:
    """The body of /query, checked ("Request Body")."""

    version: int | None = None
    timestamp: str | None = None
    starting_version: int | None = None
    ending_version: int | None = None
    limit: int | None = None
    hints: Hints = field(default_factory=Hints)
    include_refresh_token: bool = False
    refresh_token: str | None = None

    @classmethod
    def from_json(cls, body: Any) -> QueryBody:
        """Parse a body. Raises a :class:`Refusal` if it is malformed; bad hints are ignored."""
        if not isinstance(body, Mapping):
            raise Refusal(400, "MALFORMED_REQUEST", "the body must be a JSON object")
        refresh = body.get("refreshToken")
        timestamp = body.get("timestamp")
        if not isinstance(timestamp, str | None) or not isinstance(refresh, str | None):
            raise invalid_parameter("timestamp and refreshToken must be strings")
        parsed = cls(
            version=_parse_count(body, "version"),
            timestamp=timestamp,
            starting_version=_parse_count(body, "startingVersion"),
            ending_version=_parse_count(body, "endingVersion"),
            limit=_parse_count(body, "limitHint", _INT32_MAX),
            hints=parse_hints(body.get("predicateHints"), body.get("jsonPredicateHints")),
            include_refresh_token=body.get("includeRefreshToken") is True,
            refresh_token=refresh,
        )
        parsed.check_exclusive()
        return parsed

    def check_exclusive(self) -> None:
        """Refuse parameters that exclude each other."""
        exclusive = [
            name
            for name, value in (
                ("version", self.version),
                ("timestamp", self.timestamp),
                ("startingVersion", self.starting_version),
                ("refreshToken", self.refresh_token),
            )
            if value is not None
        ]
        if len(exclusive) > 1:
            raise invalid_parameter(f"{' and '.join(exclusive)} exclude each other")
        # Without a start, the end is not used.
        start, end = self.starting_version, self.ending_version
        if start is not None and end is not None and end < start:
            raise invalid_parameter("endingVersion is before startingVersion")


def _parse_count(body: Mapping[str, Any], key: str, largest: int = LONG_MAX) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise invalid_parameter(f"{key} must be a number of 0 or more")
    return value


def parse_timestamp_parameter(text: str) -> int:
    """Parse a timestamp parameter to epoch ms ("Timestamp Format"). Raises a :class:`Refusal`."""
    try:
        return parse_timestamp(text)
    except (ConfigError, OverflowError) as e:
        raise invalid_parameter(str(e)) from None


async def find_version(table: SharedTable, starting_timestamp: str | None) -> int:
    """Return the current version, or the first one at or after a time ("Query Table Version")."""
    if starting_timestamp is None:
        return await table.latest_version()
    if not (table.config.history or table.config.cdf):
        raise _make_history_refusal("startingTimestamp")
    return await version_at_or_after(table.log, parse_timestamp_parameter(starting_timestamp))


def _make_history_refusal(what: str) -> Refusal:
    return invalid_parameter(f"{what} needs a table whose history is shared, and this one's is not")


def may_be_read(table: SharedTable, where: str) -> bool:
    """Return whether a location is among this table's permitted folders.

    The log may name any location.
    """
    if ".." in where.split("/"):
        return False
    if not where.startswith("/") and "://" not in where:
        return True
    roots = (table.store.root, *table.config.also)
    return any(where.startswith(root.rstrip("/") + "/") for root in roots)


def make_line_writer(
    table: SharedTable, links: Links, form: ResponseFormat, *, versioned: bool
) -> LineWriter:
    """Return a writer of lines whose URLs name only files of the table."""

    def url(where: str) -> str:
        if not may_be_read(table, where):
            raise CorruptLog("a file lies outside of the folders that are shared", path=where)
        return links.url(where)

    return LineWriter(form, table.store.root, url, links.expires_ms, versioned, table.config.cdf)


async def answer_metadata(
    table: SharedTable,
    version: int | None,
    timestamp: str | None,
    asked: Capabilities,
    links: Links,
) -> QueryResult:
    """Answer with protocol and metadata ("Query Table Metadata").

    They are the current version's, unless another one is requested, as newer clients do. The answer
    is two lines, and never a third.
    """
    travelled = await _find_travelled_version(table, version, timestamp)
    travels = travelled is not None
    at = await table.latest_version() if travelled is None else travelled
    state = (await table.load_snapshot(at)).state
    form = choose_format(asked, state)
    writer = make_line_writer(table, links, form, versioned=travels)
    head = writer.make_protocol_line(state.protocol) + writer.make_metadata_line(
        state, at, await table.log.read_checksum(at)
    )
    return QueryResult(at, form, end_of_stream=False, head=head)


async def _find_travelled_version(
    table: SharedTable, version: int | None, timestamp: str | None
) -> int | None:
    """Return the version that ``version`` or ``timestamp`` name; None if neither is given."""
    if version is None and timestamp is None:
        return None
    if not table.config.history:
        raise _make_history_refusal("version or timestamp")
    if version is not None and timestamp is not None:
        raise invalid_parameter("version and timestamp exclude each other")
    newest = await table.latest_version()
    if version is None:
        version = await version_at_or_before(table.log, parse_timestamp_parameter(timestamp or ""))
    if version > newest:
        raise invalid_parameter(f"there is no version {version}: the newest is {newest}")
    return version


async def answer_query(
    table: SharedTable, body: QueryBody, asked: Capabilities, links: Links
) -> QueryResult:
    """Answer with the files of a snapshot ("Read Data from a Table", without startingVersion)."""
    travelled = await _find_travelled_version(table, body.version, body.timestamp)
    travels = travelled is not None
    first_ms = links.now_ms
    if travelled is not None:
        version = travelled
    elif body.refresh_token is not None:
        version, first_ms = _open_refresh_token(table, body.refresh_token, links)
    else:
        version = await table.latest_version()
    snapshot = await table.load_snapshot(version)
    state = snapshot.state
    form = choose_format(asked, state)
    timestamp_ms = await table.find_timestamp(version, snapshot) if travels else 0
    writer = make_line_writer(table, links, form, versioned=travels)
    head = writer.make_protocol_line(state.protocol)
    head += writer.make_metadata_line(state, version, await table.log.read_checksum(version))
    refresh = None
    if body.include_refresh_token:
        refresh = _make_refresh_token(table, version, first_ms, links)
    files = _make_file_lines(table, snapshot, body, writer, timestamp_ms)
    return QueryResult(
        version, form, asked.end_of_stream, head, _add_end(asked, links, files, refresh)
    )


def _make_refresh_token(table: SharedTable, version: int, first_ms: int, links: Links) -> str:
    """Return a token for the same version's files, valid for twice as long as their URLs.

    Each use gives another one, but all of them expire a week after the first: a reader is done by
    then, and old versions need the table's history to be shared.
    """
    until_ms = 2 * links.expires_ms - links.now_ms
    until_ms = min(until_ms, first_ms + _REFRESHED_MS_MAX)
    return links.signer.make_token(
        "refresh", [*table.config.key, links.recipient, version, first_ms, until_ms]
    )


def _open_refresh_token(table: SharedTable, token: str, links: Links) -> tuple[int, int]:
    """Return (version, time of the first answer) that a refresh token requests again."""
    try:
        *key, recipient, version, first_ms, until_ms = links.signer.open_token("refresh", token)
    except (Forged, ValueError):
        raise invalid_parameter("the refreshToken was not issued by this server") from None
    if tuple(key) != table.config.key or recipient != links.recipient:
        raise invalid_parameter("the refreshToken belongs to another table")
    if links.now_ms >= until_ms:
        raise invalid_parameter("the refreshToken has expired; ask for the table without it")
    return int(version), int(first_ms)


async def _make_file_lines(
    table: SharedTable, snapshot: Snapshot, body: QueryBody, writer: LineWriter, timestamp_ms: int
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of the snapshot's files, in chunks."""
    selection = _Selection(snapshot, body, writer, timestamp_ms)
    async with aclosing(table.list_live_files(snapshot)) as batches:
        if selection.is_full():
            return
        async for batch in batches:
            chunk = await anyio.to_thread.run_sync(partial(selection.make_lines, batch))
            if chunk:
                yield chunk
            if selection.is_full():
                return


@dataclass(slots=True)
class _Selection:
    """The selection of a snapshot's files to send: hints first, then the limit."""

    snapshot: Snapshot
    body: QueryBody
    writer: LineWriter
    timestamp_ms: int
    rows: int = field(default=0)
    hints: Hints = field(init=False)

    def __post_init__(self) -> None:
        names = {f.name.lower() for f in self.snapshot.state.schema}
        self.hints = self.body.hints.for_columns(names)

    def is_full(self) -> bool:
        return self.body.limit is not None and self.rows >= self.body.limit

    def make_lines(self, batch: list[dict[str, Any]]) -> bytes:
        lines = []
        for action in batch:
            facts = FileFacts(self.snapshot.state, action)
            may = facts.evaluate(self.hints.tree) if self.hints.tree is not None else EVERY_ROW
            if not may.true:
                continue
            lines.append(
                self.writer.make_file_line(
                    "add", action, self.snapshot.version, self.timestamp_ms, snapshot=True
                )
            )
            # Rows count towards the limit only if all of them are certain to match, which they
            # never are if a hint was not understood.
            if self.body.limit is not None and self.hints.whole and may.certain:
                self.rows += facts.num_rows
            if self.is_full():
                break
        return b"".join(lines)


def make_broken_end(error: TailerError | Refusal) -> EndOfStream:
    """Return the end of an answer that breaks off: the reason, and its HTTP status."""
    refusal = error if isinstance(error, Refusal) else refusal_of(error)
    return EndOfStream(error=refusal.body.message, error_status=refusal.status)


async def _add_end(
    asked: Capabilities,
    links: Links,
    chunks: AsyncGenerator[bytes, None],
    refresh_token: str | None,
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks, then the end-of-stream action if the client supports it.

    The action confirms that the chunks are whole, or gives the reason why they are not.
    """
    end = EndOfStream(refresh_token, None, links.expires_ms)
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
    except (TailerError, Refusal) as e:
        if not asked.end_of_stream:
            raise
        end = make_broken_end(e)
    if asked.end_of_stream:
        yield encode_ndjson_line(end.to_json())
