"""Where a feed is, and which process writes for it: one document for each index.

Every write of it names the one before, so a process behind whose back another one has written
learns it, and writes nothing more.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

from msgspec import Struct, structs

from sinks.search.client import SearchClient
from tailer.changes import Offset
from tailer.errors import ConfigError, OffsetError, TransientError


class IndexProgress(Struct, frozen=True):
    """What a document says. ``era`` begins whenever the offset is set. ``made`` is the id that the
    engine gave the index, which was empty then; ``fields`` are the columns that a copy has had;
    ``is_whole`` says that its snapshot has ended. Each write has a ``token`` of its own."""

    feed: str
    mode: str
    epoch: int = 0
    era: int = 0
    offset: Offset | None = None
    made: str | None = None
    fields: Mapping[str, Any] = {}
    is_whole: bool = False
    token: str = ""


class ProgressDocument:
    """The document of one index."""

    def __init__(self, client: SearchClient, offsets_index: str, index: str) -> None:
        self._client = client
        self._index = index
        self._folder = quote(offsets_index, "")
        self._path = f"{self._folder}/_doc/{quote(index, '')}"
        #: Which write of the document is the last that this process knows.
        self._last: dict[str, str] | None = None
        self.now: IndexProgress | None = None

    async def load(self) -> IndexProgress | None:
        """Read the document; None if there is none."""
        found = await self._client.call("GET", self._path)
        self.now, self._last = None, None
        if found is not None:
            self._note_write(found)
            self.now = self._parse(found.get("_source"))
        return self.now

    def check(self, feed: str, mode: str) -> None:
        """Raise :class:`ConfigError` for an index of another feed or mode."""
        if self.now is not None and (self.now.feed, self.now.mode) != (feed, mode):
            raise ConfigError(
                f"{self._client.location}: the index {self._index!r} is written by the feed "
                f"{self.now.feed!r} as a {self.now.mode}; name another one in the option 'index'"
            )

    async def save(self, **changes: Any) -> None:
        """Write the document. Raises :class:`ConfigError` if another process has written it."""
        assert self.now is not None, "a document is claimed before it is written"
        now = structs.replace(self.now, **changes, token=secrets.token_hex(8))
        offset = None if now.offset is None else str(now.offset)
        body = {**structs.asdict(now), "offset": offset, "fields": json.dumps(now.fields)}
        condition = {"op_type": "create"} if self._last is None else self._last
        found = await self._client.call("PUT", self._path, body, absent=(409,), **condition)
        if found is None:
            # A request that came twice, as some clients and proxies send it, finds itself there.
            written = await self.load()
            if written is None:
                raise TransientError(f"{self._client.location}: the document {self._path} is gone")
            if written.token != now.token:
                self._refuse()
            return
        self._note_write(found)
        self.now = now

    async def claim(self, feed: str, mode: str, made: str | None) -> None:
        """Make this process the one that writes."""
        if self.now is None:
            self.now = IndexProgress(feed, mode)
            await self._client.create_index(self._folder, {"mappings": {"dynamic": False}})
        await self.save(epoch=self.now.epoch + 1, made=made)

    async def begin_era(self, **changes: Any) -> IndexProgress:
        """Write the document; documents of the copy that are written from now on win over all that
        are there."""
        assert self.now is not None, "a document is loaded"
        await self.save(era=self.now.era + 1, **changes)
        return self.now

    async def confirm(self) -> None:
        """Raise :class:`ConfigError` if another process has written the document."""
        last = self._last
        before = self.now
        await self.load()
        if self._last != last or before is None:
            self._refuse()

    async def remove(self) -> None:
        """Remove the document."""
        await self._client.call("DELETE", self._path)
        self.now = self._last = None

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"{self._client.location}: another process writes the index {self._index!r} now; stop "
            "one of them"
        )

    def _note_write(self, found: Mapping[str, Any]) -> None:
        number, term = found.get("_seq_no"), found.get("_primary_term")
        if not isinstance(number, int) or not isinstance(term, int):
            raise TransientError(f"{self._client.location}: an answer without _seq_no")
        self._last = {"if_seq_no": str(number), "if_primary_term": str(term)}

    def _parse(self, source: Any) -> IndexProgress:
        try:
            text = source["offset"]
            offset = None if text is None else Offset.from_json(json.loads(text))
            made, fields = source["made"], dict(json.loads(source["fields"]))
            epoch, era = int(source["epoch"]), int(source["era"])
            feed, mode, token = (str(source[name]) for name in ("feed", "mode", "token"))
            whole = bool(source["is_whole"])
            return IndexProgress(feed, mode, epoch, era, offset, made, fields, whole, token)
        except (KeyError, TypeError, ValueError, OffsetError) as e:
            raise ConfigError(
                f"{self._client.location}: the document {self._path} is damaged ({e!r}); set the "
                "offset by `tailer offsets set`"
            ) from e
