"""A feed's progress, kept in Kafka: one record in each transaction, with the data.

The progress topic has one partition and is compacted; the key is the feed's name. A record is a
JSON object with a checksum, so that other programs' records are never taken for progress.

A process that opens the feed first writes a claim: the same offset, a higher epoch, and its name.
From these claims, two daemons that meet know which of them is the newer one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from sinks.kafka.cluster import LastRecord
from tailer.changes import Offset
from tailer.errors import OffsetError, TargetRefused

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """One progress record.

    ``offset`` is the next change to write (None: nothing is written yet, the feed's start decides);
    ``epoch`` counts the claims, and ``owner`` made the last one; ``topics`` are those written to,
    with their ids; ``schema`` is the id of the schema of what was written last; ``record_form`` the
    form of the records (:mod:`sinks.shared.record_form`), None before the first.
    """

    feed: str
    epoch: int = 0
    owner: str = ""
    offset: Offset | None = None
    schema: str = ""
    topics: dict[str, str] = field(default_factory=dict)
    record_form: dict[str, Any] | None = None

    def claim_for(self, owner: str) -> TopicProgress:
        """Return the same progress with a new owner."""
        return replace(self, epoch=self.epoch + 1, owner=owner)

    def to_bytes(self) -> bytes:
        """Return the record's value; the order of its keys never changes. ``events`` and ``begun``
        belong to the format, and say nothing."""
        document = {
            "format": _FORMAT,
            "feed": self.feed,
            "epoch": self.epoch,
            "owner": self.owner,
            "offset": None if self.offset is None else self.offset.to_json(),
            "events": 0,
            "schema": self.schema,
            "topics": self.topics,
            "begun": None,
            "delivery": self.record_form,
        }
        return _format_json({**document, "checksum": _compute_checksum(document)})

    @classmethod
    def from_bytes(cls, value: bytes) -> TopicProgress:
        """Parse a record's value. Raises ``ValueError`` saying what is wrong with it."""
        document = json.loads(value)
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004  # a wrong value, as others
        checksum = document.pop("checksum", None)
        if checksum != _compute_checksum(document):
            raise ValueError("its checksum is wrong or missing")
        if document.get("format") != _FORMAT:
            raise ValueError(f"its format is {document.get('format')!r}, and {_FORMAT} is known")
        try:
            offset = document["offset"]
            return cls(
                feed=document["feed"],
                epoch=document["epoch"],
                owner=document["owner"],
                offset=None if offset is None else Offset.from_json(offset),
                schema=document["schema"],
                topics=document["topics"],
                record_form=document["delivery"],
            )
        except (KeyError, TypeError, OffsetError) as e:
            raise ValueError(f"a field is missing or wrong: {e}") from e


def _format_json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _compute_checksum(document: dict[str, Any]) -> str:
    return blake2b(_format_json(document), digest_size=8).hexdigest()


def parse_progress(record: LastRecord | None, topic: str, feed: str) -> TopicProgress | None:
    """Return the progress in a feed's last record; None for no record or a tombstone.

    Raises :class:`SinkRejected`, naming topic and offset, for a record that is not ours.
    """
    if record is None or record.value is None:
        return None
    try:
        progress = TopicProgress.from_bytes(record.value)
        if progress.feed != feed:
            raise ValueError(f"it is of the feed {progress.feed!r}")
    except ValueError as e:
        raise TargetRefused(
            f"the progress of feed {feed!r} is damaged: the record at offset {record.offset} of "
            f"the topic {topic} was not written by delta-tailer ({e}); find out who writes there, "
            "then say where the feed continues by `tailer offsets set`"
        ) from e
    return progress
