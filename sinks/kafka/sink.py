"""The Kafka sink: sessions with Kafka, each in worker threads."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import anyio.to_thread
import pyarrow as pa

from sinks.formats.load import LISTED, load_encoder
from sinks.kafka.at_least_once import AtLeastOnce
from sinks.kafka.broker import KafkaBroker
from sinks.kafka.client.failures import FAULTS
from sinks.kafka.client.security import Security
from sinks.kafka.exactly_once import DataTopics, ExactlyOnce
from sinks.kafka.feed_transactions import FeedTransactions
from sinks.kafka.options import SETTINGS, KafkaOptions, fill_topic_name, format_settings
from sinks.kafka.settlement import Settlement
from sinks.shared.record_form import check_record_form
from sinks.shared.routes import Targets
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import TargetRefused
from tailer.setting_fields import settings_of
from tailer.settings import Setting
from tailer.sink import Sink, SinkTraits
from tailer.sink.encoder import Encoder, Records


class KafkaSink(Sink):
    """Events as records of a Kafka topic, exactly once or at least once."""

    faults = FAULTS
    settings = SETTINGS

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        encoder = load_encoder(options.format, options.encoder)
        self.traits = SinkTraits(
            paired=encoder.paired,
            key_columns=encoder.key_columns,
            spans=True,
            own=encoder.own,
            keeps_offset=options.exactly_once,
        )
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"
        self._claimed = 0
        self._settlement: Settlement | None = None
        self._session: ExactlyOnce | AtLeastOnce | None = None
        #: With at-least-once delivery: the topics that were written to, with their ids.
        self._written: dict[str, str] = {}
        self._targets = Targets()
        #: The encoders of a preview, by topic.
        self._previews: dict[str, Encoder] = {}

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> KafkaSink:
        """Create the sink. Options: those of :class:`sinks.kafka.options.KafkaOptions`, of
        :class:`sinks.kafka.client.security.Security` and of the format."""
        return cls(KafkaOptions.from_options(options, folder))

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        return format_settings(format)

    @classmethod
    def listed_settings(cls) -> Mapping[str, Mapping[str, Setting]]:
        own, security = settings_of(KafkaOptions), settings_of(Security)
        return {"": own, "security": security, "format": LISTED}

    @property
    def targets(self) -> int:
        return len(self._targets)

    def check_columns(self, schema: pa.Schema) -> None:
        self.options.route.check(schema)

    def preview(self, feed: str, batch: ChangeBatch) -> Iterator[tuple[str, Records]]:
        for name, rows in self.options.split_by_topic(feed, batch):
            own = {**self.options.encoder, "name": feed, "topic": name}
            if name not in self._previews:
                self._previews[name] = load_encoder(self.options.format, own, dry=True)
            yield name, self._previews[name].encode(rows)

    async def open(self, feed: str) -> Offset | None:
        """Return the offset to resume from, with exactly-once delivery."""
        return await anyio.to_thread.run_sync(self._open_session, feed)

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form. With exactly-once delivery Kafka keeps it."""
        form: dict[str, Any] = {"type": "kafka"}
        if not self.options.exactly_once:
            form |= self.options.build_form(feed)
        if self._session is None:  # else it was compared before it was opened
            check_record_form(form, saved, feed, at)
            self._written.update((saved or {}).get("topics", {}))
        if self.options.exactly_once:
            return form
        return {**form, "topics": dict(self._written)} if self._written else form

    async def look(self, feed: str) -> Offset | None:
        return await anyio.to_thread.run_sync(self._look_at_target, feed)

    def _look_at_target(self, feed: str) -> Offset | None:
        session = self._make_session(feed, dry_run=True)
        try:
            return session.look()
        finally:
            session.close()

    def _make_session(
        self, feed: str, *, dry_run: bool = False, overwrites: bool = False
    ) -> ExactlyOnce | AtLeastOnce:
        options = self.options
        own = fill_topic_name(options.transactional_id, feed)
        if self._settlement is None or self._settlement.transactional_id != own:
            self._settlement = Settlement(own)
        broker = KafkaBroker(options, feed, self._settlement, dry_run=dry_run)
        data = DataTopics(options, feed, self._targets)
        writes = bool(options.notice_topic)
        if not options.exactly_once:
            return AtLeastOnce(broker, data, self._written, writes_notices=writes)
        transactions = FeedTransactions(
            feed,
            self._owner,
            options.build_form(feed),
            claimed=self._claimed,
            bytes_max=options.transaction_bytes,
            overwrites=overwrites,
        )
        fenced_why = (
            f"no newer daemon has claimed feed {feed!r}, so either a transaction took longer than "
            f"transaction_timeout_ms ({options.transaction_timeout_ms}), or another producer, "
            f"perhaps another feed's, has the transactional id {own} too: each feed needs one of "
            "its own"
        )
        return ExactlyOnce(broker, transactions, data, writes_notices=writes, fenced_why=fenced_why)

    def _open_session(self, feed: str, *, overwrites: bool = False) -> Offset | None:
        self._close_session()
        session = self._session = self._make_session(feed, overwrites=overwrites)
        offset = session.open()
        if isinstance(session, ExactlyOnce):
            self._claimed = session.transactions.claimed
        else:
            self._written.update(session.find_topic_ids())
        return offset

    async def write(self, batch: ChangeBatch) -> None:
        if self._session is None:
            raise TargetRefused("the sink is not open")
        await anyio.to_thread.run_sync(self._session.write, batch)
        if isinstance(self._session, AtLeastOnce):
            self._written.update(self._session.find_topic_ids())

    def prepare(self, batch: ChangeBatch) -> object:
        return None if self._session is None else self._session.prepare(batch)

    async def announce(self, notice: Notice) -> None:
        """Write a notice to ``notice_topic``, if there is one."""
        if self._session is None:
            raise TargetRefused("the sink is not open")
        await anyio.to_thread.run_sync(self._session.announce, notice)

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the progress that Kafka keeps for a feed, fencing a daemon that runs it.

        None: the feed's start decides. With at-least-once delivery the feed's offset store has the
        progress, and this does nothing.
        """
        if self.options.exactly_once:
            await anyio.to_thread.run_sync(partial(self._set_offset, feed, offset))

    def _set_offset(self, feed: str, offset: Offset | None) -> None:
        try:
            self._open_session(feed, overwrites=True)
            if isinstance(self._session, ExactlyOnce):
                self._session.set_offset(offset)
        finally:
            self._close_session()

    async def aclose(self) -> None:
        await anyio.to_thread.run_sync(self._close_session)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
