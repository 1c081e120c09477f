"""The search sink: a copy of a table, or a log of its changes, in OpenSearch or Elasticsearch.

A copy has a document for each key, with an external version: a write that comes again or late
changes nothing. So requests need no order, and what a crash repeats is settled. The offset is in
a document of its own, which only the process can write that has claimed it last.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from anyio.from_thread import BlockingPortal
from msgspec import Struct

from sinks.formats.json import view_text
from sinks.messages.in_flight import send_requests
from sinks.messages.messages import Messages, RequestLimits
from sinks.messages.retry import retry_attempts
from sinks.messages.sink import MessageSink
from sinks.messages.tls import CA_FILE
from sinks.search.client import FAULTS, SearchClient, read_error
from sinks.search.copy import SearchCopy, SearchRepair, check_shards, list_hits
from sinks.search.documents import SEQ, make_copy_actions, make_log_actions, make_removals
from sinks.search.mapping import check_names, make_index, map_schema
from sinks.search.progress import ProgressDocument
from sinks.shared.json_copy import add_columns
from sinks.shared.options import CREDENTIALS, make_timeout
from sinks.shared.record_form import check_record_form
from sinks.shared.row_versions import find_last_version
from tailer.changes import METADATA_FIELDS, ChangeBatch, Offset
from tailer.errors import ConfigError, TargetRefused, TransientError
from tailer.network.backoff import Backoff
from tailer.network.clock import steady_now
from tailer.secrets.urls import parse_url
from tailer.settings import REQUIRED, Setting
from tailer.sink import OwnNames, SinkTraits
from tailer.sink.encoder import Records
from tailer.sink.own_names import NO_NAMES
from tailer.sink.pulling import open_portal

_MIB = 1024**2
SETTINGS: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "The engine, or the load balancer before it.", secret=True,
        form="an http:// or https:// URL", parse=partial(parse_url, schemes=("http", "https")),
    ),
    **CREDENTIALS,
    "index": Setting(
        "text", "{feed}", "The index, or an alias of one; `{feed}` is replaced by the feed's name.",
    ),
    "mode": Setting(
        "text", "mirror", "Keep a copy of the table, a document a key, or a log of its change "
        "events.", choices=("mirror", "log"),
    ),
    "key": Setting("texts", [], "Of a copy: the columns that identify a row."),
    "ca_file": CA_FILE,
    "timeout_s": make_timeout(60),
}  # fmt: skip
#: What an engine takes by itself is 100 MiB.
_LIMITS = RequestLimits(5000, 8 * _MIB, message_bytes=95 * _MIB)
#: The documents of an index of ours say so in its mappings.
_META = {"delta-tailer": True}
#: The index with the offsets of all feeds.
_OFFSETS = "delta-tailer"
_IN_FLIGHT = 4
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.2, 10.0
#: An engine forgets what it has deleted after a minute (`index.gc_deletes`). A process that stood
#: still for longer asks whether it is still the one that writes.
_CONFIRM_S = 20.0
_BAD_INDEX = re.compile(r'[A-Z\\/*?"<>| ,#:]|^[-_+.]|^$')
_CONFLICT, _GONE = 409, 404
_ITEMS = "errors,items.*.status,items.*.error,error"


class _Index(Struct, frozen=True):
    """An index that is there: its name, which an alias has not, the id that the engine gave it, and
    whether it is one of ours."""

    name: str
    made: str
    is_ours: bool


class SearchSink(MessageSink):
    """A copy of a table, or a log, in a search engine: exactly once."""

    faults = FAULTS
    settings = SETTINGS
    kind = "search"
    places = ("index",)
    keeps_offset = True

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        super().__init__("rows", {"ids": True})
        self._is_log, self.key = options["mode"] == "log", tuple(options["key"])
        if self._is_log == bool(self.key):
            raise ConfigError(
                "option 'key' of sink 'search': "
                + ("a log has none" if self._is_log else "name the columns that identify a row")
            )
        self.client = SearchClient(options, folder)
        self.given = options
        own = OwnNames.of("_event_id", "_origin", "_row_id", SEQ) if self._is_log else NO_NAMES
        self.traits = SinkTraits(
            key_columns=self.key, spans=True, own=own, keeps_offset=True, copies=not self._is_log
        )
        self._document = self._make_document()
        self._read_from = ""
        #: The schema whose fields the index has.
        self._mapped: pa.Schema | None = None
        self._confirmed_at = 0.0

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> SearchSink:
        """Create the sink. Options: :data:`SETTINGS`."""
        return cls(options, folder)

    def _make_document(self) -> ProgressDocument:
        return ProgressDocument(self.client, _OFFSETS, self.place)

    @property
    def lacks_beginning(self) -> bool:  # type: ignore[override]
        """Whether a copy has just begun."""
        now = self._document.now
        return not self._is_log and now is not None and now.epoch == 1

    def check_columns(self, schema: pa.Schema) -> None:
        check_names(schema)

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form. The engine has the offset, and an index may get another name."""
        self._feed, self.written_before = feed, bool(saved)
        return check_record_form({"type": self.kind, "mode": self.given["mode"]}, saved, feed, at)

    def preview(self, feed: str, batch: ChangeBatch) -> Iterator[tuple[str, Records]]:
        if not self._is_log:
            raise NotImplementedError
        return super().preview(feed, batch)

    # Opening

    async def _connect(self) -> Offset | None:
        index = await self._look_at_index()
        document, begins = self._document, self._document.now
        made = None if begins is None else begins.made
        if made is None and index is not None and not self._is_log:
            await self._check_empty(index)
            made = index.made
        await document.claim(self._feed, self.given["mode"], made)
        self._mapped, self._confirmed_at = None, steady_now()
        return None if document.now is None else document.now.offset

    async def _check_empty(self, index: _Index) -> None:
        path = quote(index.name, "")
        await self.client.call("POST", f"{path}/_refresh")
        count = await self.client.call("GET", f"{path}/_count")
        check_shards(self.client, (count or {}).get("_shards", {}))
        if count is not None and count.get("count") != 0:
            raise TargetRefused(
                f"{self._where}: it has documents already, and a copy begins empty; name another "
                "one in the option 'index', or empty this one by `tailer offsets reset`"
            )

    async def _look_at_target(self) -> Offset | None:
        await self._look_at_index()
        return None if self._document.now is None else self._document.now.offset

    async def _look_at_index(self) -> _Index | None:
        """Connect, load the progress and return the index. Raises :class:`TailerError` if they do
        not belong together."""
        if (bad := _BAD_INDEX.search(self.place)) is not None:
            raise ConfigError(
                f"option 'index' of sink 'search': {self.place!r} can't be a name, for {bad[0]!r}; "
                "it has small letters, digits, - and _, and begins with a letter or a digit"
            )
        await self.client.connect(_IN_FLIGHT)
        self._document = self._make_document()
        index, now = await self._find_index(), await self._document.load()
        self._document.check(self._feed, self.given["mode"])
        if now is not None and now.made is not None:
            self._check_made(index, now.made)
        # An alias may have a filter, and hide documents.
        self._read_from = self.place if index is None else index.name
        return index

    @property
    def _where(self) -> str:
        return f"{self.client.location}: the index {self.place!r}"

    async def _find_index(self) -> _Index | None:
        wanted = "*.settings.index.uuid,*.mappings._meta,error"
        found = await self.client.call("GET", quote(self.place, ""), filter_path=wanted)
        if found is None:
            return None
        if len(found) > 1:
            raise ConfigError(f"{self._where} is an alias of several; name one of them")
        try:
            [(name, index)] = found.items()
            made, meta = index["settings"]["index"]["uuid"], index.get("mappings", {})
            return _Index(name, str(made), "delta-tailer" in meta.get("_meta", {}))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise TransientError(f"{self._where}: an answer without its uuid") from e

    def _check_made(self, index: _Index | None, made: str) -> None:
        if index is None or index.made != made:
            what = "is missing" if index is None else "was deleted and made again"
            raise TargetRefused(
                f"{self._where} {what} since the feed wrote to it; restore it, or start over with "
                "`tailer offsets reset`"
            )

    async def _disconnect(self) -> None:
        await self.client.aclose()

    # Writing

    def _make_messages(self, batch: ChangeBatch) -> Messages:
        if self._is_log:
            return make_log_actions(batch)
        assert self._document.now is not None, "the sink is open"
        return make_copy_actions(batch, self.key, self._document.now.era)

    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        await self._map_columns(messages.batch)
        await send_requests(messages, _LIMITS, _IN_FLIGHT, self._send_request, self._note_taken)
        await self._save_offset(then)

    async def _save_offset(self, then: Offset) -> None:
        now = self._document.now
        if now is not None and now.made is not None:
            # An engine makes an index that is gone again, for the next request.
            self._check_made(await self._find_index(), now.made)
        if then.snapshot and now is not None and now.is_whole and not self._is_log:
            raise TargetRefused(
                f"{self._where} has rows of before this snapshot, which may not be in the table "
                "any more; `tailer offsets reset` creates the copy again"
            )
        await self._document.save(offset=then, is_whole=not then.snapshot)
        self._confirmed_at = steady_now()

    async def _map_columns(self, batch: ChangeBatch) -> None:
        """Have the index, with the batch's columns."""
        count = len(batch.rows.schema) - (0 if self._is_log else len(METADATA_FIELDS))
        schema = pa.schema([batch.rows.schema.field(i) for i in range(count)])
        if self._mapped is not None and self._mapped.equals(schema):
            return
        now, path = self._document.now, quote(self.place, "")
        assert now is not None, "the sink is open"
        fields = now.fields
        if not self._is_log:
            fields = add_columns(batch, schema, now.fields, self._where)
        index = await self._find_index()
        if index is None:
            await self.client.create_index(self.place, make_index(schema, _META))
            index = await self._find_index()
        elif index.is_ours:
            await self.client.call("PUT", f"{path}/_mapping", {"properties": map_schema(schema)})
        if now.made is not None or index is None:
            self._check_made(index, now.made or "")
        if index is not None and (index.made, fields) != (now.made, now.fields):
            await self._document.save(made=index.made, fields=fields)
        self._mapped = schema

    async def _send_request(self, request: Messages) -> None:
        body = bytes(memoryview(view_text(request.values)))

        async def attempt() -> None:
            if steady_now() > self._confirmed_at + _CONFIRM_S:
                await self._document.confirm()
                self._confirmed_at = steady_now()
            refused, _ = await self._send_bulk(body, len(request))
            for place, kind, reason in refused:
                version, name = request.versions[place].as_py(), request.ids[place].as_py()
                what = f"table {request.table}, version {version}: the document {name!r}"
                raise self.client.make_error(kind, f"{what}: {reason}", has_rows=True)

        await retry_attempts(attempt, Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S))

    async def _send_bulk(self, body: bytes, count: int) -> tuple[list[tuple[int, str, str]], bool]:
        """Send actions; return place, type and reason of those that were refused, what heals first,
        and whether a document was there in a later version."""
        path = f"{quote(self.place, '')}/_bulk"
        found = await self.client.call("POST", path, body, absent=(), filter_path=_ITEMS)
        items = None if found is None else found.get("items")
        if not isinstance(items, list) or len(items) != count:
            raise TransientError(f"{self._where}: an answer for other than {count} documents")
        refused, conflicts = [], False
        for place, item in enumerate(items):
            try:
                [answer] = item.values()
                status, error = int(answer["status"]), answer.get("error")
            except (KeyError, TypeError, ValueError, AttributeError) as e:
                raise TransientError(f"{self._where}: an answer without a status") from e
            if status == _CONFLICT:
                conflicts = True
            elif not 200 <= status < 300 and (status != _GONE or error is not None):
                kind, reason = read_error(error)
                refused.append((place, kind or str(status), f"{kind}: {reason}"))
        refused.sort(key=lambda each: FAULTS.verdict(each[1]) != "passing")
        return refused, conflicts

    # Besides

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:
        """Make the index under another name, and a document of offsets, and remove both."""
        self._feed = feed
        check_names(schema)
        name = f"{self.place}-rehearsal-{uuid.uuid4().hex[:8]}"
        try:
            index = await self._look_at_index()
            probe = ProgressDocument(self.client, _OFFSETS, name)
            await probe.claim(feed, self.given["mode"], None)
            await probe.remove()
            if index is None:
                await self.client.create_index(name, make_index(schema, _META))
                await self.client.call("DELETE", quote(name, ""))
        finally:
            await self._disconnect()

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset. None removes the documents, which belong to it."""
        self._feed = feed
        try:
            if offset is None:
                await self._remove_all()
                return
            await self._look_at_index()
            now = self._document.now
            lacks = now is None or now.made is None
            if not self._is_log and lacks and offset.position > (0, 0):
                raise TargetRefused(
                    f"{self._where} is no copy yet, and a copy can't start at version "
                    f"{offset.version}; restore it, or start over with `tailer offsets reset`"
                )
            if offset.snapshot and not self._is_log and now is not None and now.is_whole:
                raise TargetRefused(
                    f"{self._where} has rows already, and a snapshot begins without any; `tailer "
                    "offsets reset` creates the copy again"
                )
            await self._document.claim(feed, self.given["mode"], None if now is None else now.made)
            await self._document.begin_era(offset=offset)
        finally:
            await self._disconnect()

    async def _remove_all(self) -> None:
        await self.client.connect(1)
        document = self._document = self._make_document()
        now, index = await document.load(), await self._find_index()
        document.check(self._feed, self.given["mode"])
        if now is None:
            return
        if index is None or index.is_ours:
            if index is not None:
                await self.client.call("DELETE", quote(self.place, ""))
            await document.remove()
            return
        # Its mappings are its owner's. What was deleted has versions of an earlier era. If this is
        # interrupted, the index is not empty, and no copy begins there.
        now = await document.begin_era(offset=None, made=None, fields={}, is_whole=False)
        version = find_last_version(now.era, 0)
        async with aclosing(list_hits(self.client, index.name)) as pages:
            async for hits in pages:
                ids = pa.array([hit.id for hit in hits], pa.string())
                await self._write_repair(make_removals(ids, [version] * len(ids)))

    @contextmanager
    def read_mirror(self, feed: str) -> Iterator[SearchCopy]:
        with self._open_blocking(feed) as portal:
            yield self._make_copy(portal)

    def _make_copy(self, portal: BlockingPortal) -> SearchCopy:
        return SearchCopy(portal, self.client, self._document, self._read_from, self.key)

    @contextmanager
    def repair_mirror(self, feed: str) -> Iterator[SearchRepair]:
        with self._open_blocking(feed) as portal:
            copy = self._make_copy(portal)
            yield SearchRepair(portal, self._document, copy, self._write_repair)

    @contextmanager
    def _open_blocking(self, feed: str) -> Iterator[BlockingPortal]:
        self._feed = feed
        if self._is_log:
            raise TargetRefused(f"{self._where} is a log and not a copy")
        with open_portal(self._disconnect, self._look_at_index) as portal:
            yield portal

    async def _write_repair(self, actions: list[bytes]) -> bool:
        """Send actions; return whether a document has a later version than that of its action."""
        refused, conflicts = await self._send_bulk(b"".join(actions), len(actions))
        for _, kind, reason in refused:
            raise self.client.make_error(kind, reason, has_rows=True)
        return conflicts
