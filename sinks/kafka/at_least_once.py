"""At least once: no transactions. The feed's offset store keeps the offset, and after a failure the
batch being sent may come again, with the same ids."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from sinks.kafka.broker import KafkaBroker
from sinks.kafka.exactly_once import DataTopics, Prepared, find_prepared
from sinks.kafka.feed_transactions import check_same_topic
from tailer.changes import ChangeBatch, Notice
from tailer.errors import TailerError


class AtLeastOnce:
    """See :class:`sinks.kafka.exactly_once.ExactlyOnce`. ``written`` are the topics that earlier
    sessions have written to, with their ids."""

    def __init__(
        self,
        broker: KafkaBroker,
        data: DataTopics,
        written: Mapping[str, str],
        *,
        writes_notices: bool = False,
    ) -> None:
        self.broker = broker
        self._data = data
        self._written = dict(written)
        self._writes_notices = writes_notices
        self._open_topics: set[str] = set()

    def open(self) -> None:
        """Get ready to write."""
        name = self._data.find_common_topic()
        self.broker.connect(name)
        if name is not None:
            self._open_topic(name)

    def look(self) -> None:
        """Raise what :meth:`open` would. For a broker that creates nothing."""
        self.broker.check_notice_topic()
        self.open()

    def _open_topic(self, name: str) -> None:
        seen = self.broker.find_topic(name)
        if (known := self._written.get(name)) is not None:
            check_same_topic(self.broker.feed, name, known, seen, "the saved offset")
        if seen is None:
            self.broker.make_topic(name)
        self.broker.open_topic(name)
        self._open_topics.add(name)

    def find_topic_ids(self) -> dict[str, str]:
        """Return the topics that the session writes to, with their ids."""
        return self.broker.find_topic_ids()

    def prepare(self, batch: ChangeBatch) -> Prepared | None:
        """Start to encode a batch. Neither waits nor raises."""
        with suppress(TailerError):
            if not batch.num_rows or self._data.are_routed:
                return None
            ((name, _),) = self._data.split_by_topic(batch)
            if name in self._open_topics:
                return Prepared(self, batch, self.broker.encode(name, batch))
        return None

    def write(self, batch: ChangeBatch) -> None:
        """Write a batch; durable when this returns."""
        found = self._data.split_by_topic(batch)
        if not found:
            return
        for name, _ in found:
            if name not in self._open_topics:
                self._open_topic(name)
        prepared = find_prepared(self, batch)
        if prepared is not None:
            self.broker.write([(found[0][0], prepared.encoded)])
        else:
            self.broker.write([(name, self.broker.encode(name, rows)) for name, rows in found])

    def announce(self, notice: Notice) -> None:
        """Write a notice, if they are written."""
        if self._writes_notices:
            self.broker.announce(notice)

    def close(self) -> None:
        """Release everything."""
        self.broker.close()
