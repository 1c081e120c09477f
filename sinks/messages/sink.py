"""What all sinks do that send each event as a message: encode ahead, send in pieces, in order."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pyarrow as pa

from sinks.formats.json_formats import all_format_settings, message_settings
from sinks.formats.load import load_encoder
from sinks.messages.messages import Messages
from sinks.shared.encode_ahead import Pieces, slice_batch
from sinks.shared.record_form import build_record_form, check_record_form
from sinks.shared.routes import Route
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import TailerError, TargetRefused
from tailer.settings import Setting
from tailer.sink import Sink, SinkTraits
from tailer.sink.encoder import Encoder, Records

_MIB = 1024**2


class MessageSink(Sink):
    """Each event as a message, in order. Leaves say how they connect and send.

    A target that stores progress stores it with each piece; for any other, the feed saves its
    offset after each. So one piece at most is sent again after a crash, with the same ids and
    bytes.
    """

    #: The sink's type, and those of its options that say where the messages go.
    kind: ClassVar[str]
    places: ClassVar[tuple[str, ...]] = ()
    #: The one of them that may name columns, and what a value's part of it can't have.
    routed: ClassVar[tuple[str, re.Pattern[str]] | None] = None
    place_bytes_max: ClassVar[int] = 0
    #: Whether the target keeps the offset: see :class:`tailer.sink.SinkTraits`.
    keeps_offset: ClassVar[bool] = False
    #: What is encoded, sent and, if the target keeps progress, stored in one step.
    piece_rows: ClassVar[int] = 10_000
    piece_bytes: ClassVar[int] = 8 * _MIB
    #: The sink's options.
    given: Mapping[str, Any]

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        return message_settings(format)

    @classmethod
    def listed_settings(cls) -> Mapping[str, Mapping[str, Setting]]:
        of_formats = all_format_settings(cls.format_settings) if "format" in cls.settings else {}
        return {"": cls.settings, "format": of_formats}

    def __init__(self, format: str, options: Mapping[str, Any]) -> None:  # noqa: A002
        self.format = format
        self.options = dict(options)
        self._encoder = load_encoder(format, self.options)
        one, keeps = self._encoder, self.keeps_offset
        self.traits = SinkTraits(
            one.paired, one.key_columns, spans=True, own=one.own, keeps_offset=keeps
        )
        #: Whether the feed has written to the target before this process did.
        self.written_before = False
        #: When the target was made, where it says so: then, and by what is open now.
        self.made_before: str | None = None
        self.made: str | None = None
        self._feed = ""
        self._at: Offset | None = None
        self._failed_at: Offset | None = None
        #: How many messages of the piece that is sent are durable, from its first one on.
        self._taken = 0
        self._threads: ThreadPoolExecutor | None = None
        self._preview: Encoder | None = None

    @property
    def route(self) -> Route | None:
        """Return the place that names columns, with the feed's name in it; None if none does."""
        route = self._build_route()
        return route if route is not None and route.columns else None

    def _build_route(self) -> Route | None:
        if self.routed is None:
            return None
        option, unsafe = self.routed
        return Route(self.fill_option(option), option, (), unsafe, bytes_max=self.place_bytes_max)

    @property
    def place(self) -> str:
        """Return where all messages go, where no place names columns."""
        route = self._build_route()
        if route is not None:
            return route.mask_columns("*")
        return self.fill_option(self.places[-1]) if self.places else self.kind

    def format_place(self, place: str) -> str:
        """Return how people read a place."""
        return place

    def check_columns(self, schema: pa.Schema) -> None:
        if self.route is not None:
            self.route.check(schema)

    @abstractmethod
    async def _connect(self) -> Offset | None:
        """Get ready to send; return the offset that the target keeps, if it keeps one."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Release everything, also after half of :meth:`_connect`."""

    @abstractmethod
    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        """Send messages, in order; they are durable when this returns, with the offset after them
        if the target keeps it. A target that keeps none counts those that are durable."""

    def _note_taken(self, count: int) -> None:
        """Note how many messages of the piece, from its first one on, are durable."""
        self._taken = count

    async def _save_offset(self, then: Offset) -> None:  # a target without progress
        """Store an offset without messages, if the target keeps it."""

    def fill_option(self, name: str) -> str:
        """Return one of :attr:`places`, with the feed's name in it."""
        return str(self.given[name]).replace("{feed}", self._feed)

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        self._feed, self.written_before = feed, bool(saved)
        self.made_before = (saved or {}).get("made")
        named = {name: self.fill_option(name) for name in self.places}
        if self.routed is not None and self.route is None:
            named[self.routed[0]] = self.place  # as it is meant, whatever it is written like
        form = build_record_form(self.options, type=self.kind, format=self.format, **named)
        if self._threads is not None and self.made is not None:
            form["made"] = self.made
        return check_record_form(form, saved, feed, at)

    def preview(self, feed: str, batch: ChangeBatch) -> Iterator[tuple[str, Records]]:
        self._feed = feed
        if self._preview is None:
            self._preview = load_encoder(self.format, {**self.options, "name": feed}, dry=True)
        encoder, route = self._preview, self.route
        for name, rows in route.split_rows(batch, {}) if route else ((self.place, batch),):
            yield self.format_place(name), encoder.encode(rows)

    async def open(self, feed: str) -> Offset | None:
        await self.aclose()
        self._feed = feed
        self._encoder = load_encoder(self.format, {**self.options, "name": feed})
        try:
            self._at = await self._connect()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._disconnect()
            raise
        self._threads = ThreadPoolExecutor(1, "encode")
        return self._at

    async def look(self, feed: str) -> Offset | None:
        self._feed = feed
        try:
            return await self._look_at_target()
        finally:
            await self._disconnect()

    async def _look_at_target(self) -> Offset | None:
        """Return what :meth:`_connect` would, changing nothing."""
        return await self._connect()

    async def aclose(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        self._failed_at = None
        await self._disconnect()

    def prepare(self, batch: ChangeBatch) -> object:
        if self._threads is None or not batch.num_rows:
            return None
        return self._threads, self._begin_encoding(batch, self._threads)

    def _find_prepared(self, batch: ChangeBatch) -> Pieces[Messages] | None:
        """Return what was prepared of a batch since the sink was opened."""
        threads, pieces = batch.prepared if isinstance(batch.prepared, tuple) else (None, None)
        return pieces if threads is self._threads else None

    def _begin_encoding(self, batch: ChangeBatch, threads: ThreadPoolExecutor) -> Pieces[Messages]:
        pieces = slice_batch(batch, self.piece_rows, self.piece_bytes)
        return Pieces(pieces, self._make_messages, threads)

    def _make_messages(self, batch: ChangeBatch) -> Messages:
        """Encode a piece; in a thread."""
        return Messages.from_batch(batch, self._encoder, self.route)

    async def write(self, batch: ChangeBatch) -> None:
        async for _ in self.write_pieces(batch):
            pass

    async def write_pieces(self, batch: ChangeBatch) -> AsyncGenerator[Offset, None]:
        if self._threads is None:
            raise TargetRefused("the sink is not open")
        # Rows of a snapshot that is taken while the stream continues do not move its offset.
        end = batch.next_offset
        at = self._at
        stays = batch.offset.snapshot and at is not None and end.position == at.position
        left = self._drop_sent_rows(batch)
        if not left.num_rows:
            if not batch.num_rows:
                await self._move_offset(end)
            return
        found = iter(self._find_prepared(left) or self._begin_encoding(left, self._threads))
        self._failed_at = left.offset
        while (piece := await anyio.to_thread.run_sync(next, found, None)) is not None:
            then = piece.batch.next_offset
            self._taken = 0
            try:
                await self._send_messages(piece, end if stays else then)
            except TailerError:
                # What was taken of the piece is not sent again either.
                if self._taken and len(piece) == piece.batch.num_rows:
                    self._failed_at = piece.batch.slice(0, self._taken).next_offset
                    if not stays:
                        yield self._failed_at
                raise
            self._failed_at, self._at = then, end if stays else then
            if not stays:
                yield then
        self._failed_at = None

    def _drop_sent_rows(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the rows of a batch that were not sent by a write that failed since the sink was
        opened: a feed that parks rows writes the halves of a refused batch."""
        failed = self._failed_at
        if failed is None or failed.snapshot != batch.offset.snapshot:
            return batch
        sent = batch.rows_before(failed)
        return batch.slice(sent, batch.num_rows) if sent else batch

    async def announce(self, notice: Notice) -> None:
        """Store a notice's offset."""
        if notice.kind != "heartbeat":
            if notice.next_offset != notice.offset:
                await self._move_offset(notice.next_offset)
            self._at = notice.next_offset

    async def _move_offset(self, then: Offset) -> None:
        await self._save_offset(then)
        self._at = then
