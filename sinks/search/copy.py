"""A copy in a search engine, read back for `tailer verify`, and set right for `--repair`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import anyio
import msgspec
import pyarrow as pa
from anyio.from_thread import BlockingPortal

from sinks.formats.json import json_values
from sinks.messages.messages import Messages
from sinks.search.client import SearchClient
from sinks.search.documents import make_removals, make_repair_actions
from sinks.search.progress import ProgressDocument
from sinks.shared.json_copy import find_column
from sinks.shared.key_ids import find_ids_of_texts
from sinks.shared.row_versions import find_last_version, find_table_version
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TailerError, TargetRefused, TransientError
from tailer.sink.pulling import pull_batches

_PAGE_ROWS_MAX, _PAGE_BYTES = 2000, 8 * 1024**2
#: How much larger documents are than the files that have them, compressed.
_PACKED = 4
#: How long a feed may take between its documents and their offset, in seconds.
_SETTLE_S = 5.0
_KEPT = "2m"


class Hit(msgspec.Struct, rename={"id": "_id", "version": "_version", "source": "_source"}):
    """A document."""

    id: str
    version: int
    source: dict[str, msgspec.Raw] = {}  # an index may keep none


class _Hits(msgspec.Struct):
    hits: list[Hit]


class _Page(msgspec.Struct, rename={"scroll": "_scroll_id"}):
    scroll: str
    hits: _Hits
    timed_out: bool = False
    shards: Mapping[str, Any] = msgspec.field(name="_shards", default_factory=dict)


async def list_hits(client: SearchClient, index: str) -> AsyncGenerator[list[Hit], None]:
    """Yield the documents of an index as it is now."""
    path = quote(index, "")
    await client.call("POST", f"{path}/_refresh")
    # Of chosen columns the engine would write the numbers in its own way.
    size = await _find_page_rows(client, path)
    query = {"size": size, "sort": ["_doc"], "version": True}
    page = await _ask_page(client, f"{path}/_search", query, scroll=_KEPT)
    try:
        while page.hits.hits:
            yield page.hits.hits
            more = {"scroll": _KEPT, "scroll_id": page.scroll}
            page = await _ask_page(client, "_search/scroll", more)
    finally:
        with anyio.CancelScope(shield=True), suppress(TailerError):
            await client.call("DELETE", "_search/scroll", {"scroll_id": page.scroll})


async def _find_page_rows(client: SearchClient, path: str) -> int:
    """Return how many documents of an index, of average size, make a page."""
    found = await client.call("GET", f"{path}/_stats/docs,store")
    try:
        sizes = found["_all"]["primaries"] if found is not None else {}
        size = sizes["store"]["size_in_bytes"] * _PACKED // max(1, sizes["docs"]["count"])
        return max(1, min(_PAGE_ROWS_MAX, _PAGE_BYTES // max(1, int(size))))
    except (KeyError, TypeError, ValueError):
        return _PAGE_ROWS_MAX // 20


async def _ask_page(
    client: SearchClient, path: str, body: Mapping[str, Any], **query: str
) -> _Page:
    status, answer = await client.send("POST", path, body, **query)
    try:
        page = msgspec.json.decode(answer, type=_Page)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        said = answer[:10_000].decode(errors="replace")
        raise client.make_error(str(status), f"answered {status} ({said})") from e
    check_shards(client, page.shards)
    if page.timed_out:
        raise TransientError(f"{client.location}: some shards do not answer")
    return page


def check_shards(client: SearchClient, shards: Mapping[str, Any]) -> None:
    """Raise :class:`TransientError` for an answer without some documents. A shard that is nowhere
    has not failed: the engine answers 200 with what the others have."""
    if not shards or shards.get("successful") != shards.get("total"):
        raise TransientError(f"{client.location}: some shards do not answer")


class SearchCopy:
    """See :class:`tailer.sink.MirrorCopy`. Values are compared as JSON."""

    def __init__(
        self, portal: BlockingPortal, client: SearchClient, document: ProgressDocument, index: str,
        key: tuple[str, ...],
    ) -> None:  # fmt: skip
        self._document = document
        self._progress = document.now
        self.offset = None if document.now is None else document.now.offset
        self.key = key
        self.at: int | None = None
        self._portal = portal
        self._client = client
        self._index = index

    def as_held(self, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG002  # the same for all
        return json_values(column)

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        newest = -1
        for hits in self._list_hits():
            newest = max(newest, self._find_newest(hits))
            rows = [hit.source for hit in hits]
            columns = [find_column(rows, field) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)

        self._check_unchanged(newest)

    def find_strays(self) -> Iterator[tuple[str, int]]:
        """Yield id and version of each document under an id that is not its key's: somebody else
        has written it."""
        for hits in self._list_hits():
            rows, texts = [hit.source for hit in hits], [pa.field(n, pa.string()) for n in self.key]
            keys = pa.table([find_column(rows, field) for field in texts], names=list(self.key))
            for hit, wanted in zip(hits, find_ids_of_texts(keys).to_pylist(), strict=True):
                if hit.id != wanted:
                    yield hit.id, hit.version

    def _list_hits(self) -> Iterator[list[Hit]]:
        if self._progress is None or self._progress.made is None:
            return
        yield from pull_batches(self._portal, list_hits(self._client, self._index))

    def _find_newest(self, hits: list[Hit]) -> int:
        assert self._progress is not None, "there are documents"
        return max(find_table_version(hit.version, self._progress.era) for hit in hits)

    def _check_unchanged(self, newest: int) -> None:
        """Raise :class:`TransientError` if the feed has written since the offset was read, or is
        about to have: documents are there before their offset. A feed that has stopped there has
        left a part of a version, which differs from the table."""
        give_up = time.monotonic() + _SETTLE_S
        while True:
            if self._portal.call(self._document.load) != self._progress:
                raise TransientError(
                    f"{self._client.location}: the feed has written the index {self._index!r} "
                    "meanwhile; verify it again"
                )
            ahead = self.offset is not None and newest >= self.offset.version
            if not ahead or time.monotonic() > give_up:
                return
            time.sleep(_SETTLE_S / 10)


class SearchRepair:
    """See :class:`tailer.sink.MirrorRepair`. What it writes has the last external version before
    those of the feed's next write, which so wins in any order."""

    def __init__(
        self, portal: BlockingPortal, document: ProgressDocument, copy: SearchCopy,
        write: Callable[[list[bytes]], Any],
    ) -> None:  # fmt: skip
        self._portal = portal
        self._document = document
        self._copy = copy
        self._has_strays = True
        self._write = write

    @property
    def offset(self) -> Offset | None:
        return None if self._document.now is None else self._document.now.offset

    def reload(self) -> bool:
        before = self.offset
        self._portal.call(self._document.load)
        return self.offset != before

    def replace(self, batch: ChangeBatch) -> None:
        def make(version: int) -> list[bytes]:
            found: Messages = make_repair_actions(batch, self._copy.key, version)
            actions: list[bytes] = found.values.to_pylist()
            return actions

        self._write_over(make)

    def remove(self, keys: pa.Table) -> None:
        ids = find_ids_of_texts(keys.select(list(self._copy.key)))
        self._write_over(lambda version: make_removals(ids, [version] * len(ids)))

    def _write_over(self, make: Callable[[int], list[bytes]]) -> None:
        """Send actions. If documents have later versions, a feed has stopped in the middle of a
        version: then an era begins, in which it writes that version again."""
        if not self._send(make(self._find_version())):
            return
        self._check_overtaken()
        self._portal.call(self._document.begin_era)
        if self._send(make(self._find_version())):
            raise TargetRefused(
                "some documents have a later version than the feed's: another program gives them "
                "versions of its own; delete them, and repair the copy again"
            )

    def _find_version(self) -> int:
        now = self._document.now
        if now is None or now.offset is None:
            raise TargetRefused("there is no copy to be repaired")
        return find_last_version(now.era, now.offset.version - 1)

    def _send(self, actions: list[bytes]) -> bool:
        """Send actions; return whether a document has a later version than that of its action."""
        self._check_overtaken()
        if self._has_strays:
            self._has_strays = False
            strays = list(self._copy.find_strays())
            if strays:
                ids, versions = zip(*strays, strict=True)
                self._portal.call(self._write, make_removals(pa.array(ids), versions))
        return bool(self._portal.call(self._write, actions))

    def _check_overtaken(self) -> None:
        before = self._document.now
        if self._portal.call(self._document.load) != before:
            self._document.now = before
            raise TransientError("the feed has written the copy meanwhile; repair it again")
