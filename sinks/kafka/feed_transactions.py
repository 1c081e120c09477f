"""What a feed writes to Kafka, transaction by transaction: exactly once, decided without I/O.

:class:`FeedTransactions` learns what Kafka has and how each transaction ended, and decides what to
write next. It knows no client, no thread and no clock. :mod:`sinks.kafka.exactly_once` carries
its plans out on a :class:`sinks.kafka.broker.Broker`.

The rules:

1. Fence before the progress is read. Until the older producers are fenced, one of them may commit
   after we have read, and its rows would be written again.
2. Claim before anything else is written: the same offset, a higher epoch, our name. A daemon that
   is fenced finds out from it that it was taken over, and by whom.
3. Records and the progress after them are in one transaction. Nothing is ever saved elsewhere that
   a restart would believe.
4. After any error but a refusal of rows, the outcome of the open transaction is unknown. Nothing
   more is written (``BROKEN``); the next session reads what Kafka has.

A worked example, with at most six rows in a transaction::

    resume_from(offset (7, 0), epoch 3, owner a)   state FENCED
    claim()            -> progress (7, 0), epoch 4, owner b
    plan(rows 0 to 9 of version 7, the whole of it)
                       -> rows 0 to 5, then progress (7, 6)
                          rows 6 to 9, then progress (8, 0)
    note_commit(first)      the progress is (7, 6)
    note_failure(time-out)  state BROKEN: the next session finds (7, 6), or (8, 0) if only the
                       answer was lost, and the feed reads on from there: each row is there once.

What must never happen: a transaction is begun while the outcome of another one is unknown; a
transaction is committed a second time; rows go without the progress after them, or the other way
round; the progress of a batch comes before rows of that batch that are still to be written.

=============== ============ ========= ============== =========== ============ ============
state           resume_from  claim     plan           note_commit refused rows other error
=============== ============ ========= ============== =========== ============ ============
NEW             FENCED                                                         BROKEN
FENCED                       CLAIMED                                           BROKEN
CLAIMED                                               IDLE                     BROKEN
IDLE                                   IN_TRANSACTION             IDLE         BROKEN
IN_TRANSACTION                                        IDLE, or on IDLE         BROKEN
BROKEN
TAKEN_OVER
=============== ============ ========= ============== =========== ============ ============

After a batch without rows ``plan`` may stay in ``IDLE``. A newer daemon's claim leads from every
state to ``TAKEN_OVER``. No way leads out of the last two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

from sinks.kafka.progress import TopicProgress
from sinks.shared.encode_ahead import slice_batch
from sinks.shared.record_form import check_record_form
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import (
    ConfigError,
    RowsRefused,
    SinkRejected,
    TableError,
    TargetRefused,
    TransientError,
)

State = Literal["NEW", "FENCED", "CLAIMED", "IDLE", "IN_TRANSACTION", "BROKEN", "TAKEN_OVER"]
#: The states in which each call is allowed. The next state is in the call.
_ALLOWED: dict[str, tuple[State, ...]] = {
    "resume_from": ("NEW",),
    "claim": ("FENCED",),
    "plan": ("IDLE",),
    "note_commit": ("CLAIMED", "IN_TRANSACTION"),
}
#: Errors that opening the session again does not mend.
_FOR_GOOD = (SinkRejected, ConfigError)
#: The most rows of one transaction.
_ROWS_MAX = 131_072


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A data topic as the brokers have it: ``id`` changes when it is deleted and created again."""

    id: str
    has_records: bool


@dataclass(frozen=True, slots=True)
class TopicTransaction:
    """One transaction: the rows or the notice in it, and the progress that is its last record."""

    after: TopicProgress
    rows: ChangeBatch | None = None
    notice: Notice | None = None


class FeedTransactions:
    """The transactions of one session. ``owner`` names this process, and ``claimed`` is the epoch
    of its last claim on the feed, 0 before the first. ``form`` is the form of the records.

    ``overwrites``: the session is opened to set an offset, and accepts whatever it finds.
    """

    def __init__(
        self,
        feed: str,
        owner: str,
        form: Mapping[str, Any],
        *,
        claimed: int = 0,
        bytes_max: int = 32 * 1024 * 1024,
        overwrites: bool = False,
    ) -> None:
        self.feed = feed
        self.owner = owner
        self.claimed = claimed
        self.state: State = "NEW"
        #: What is committed.
        self.progress = TopicProgress(feed)
        #: Where the feed is by versions without changes, if that is beyond what is committed.
        self.skipped_to: Offset | None = None
        self._form = dict(form)
        self._bytes_max = bytes_max
        self.overwrites = overwrites
        self._left = 0  # planned transactions that are not committed
        self._committed_before_refusal: Offset | None = None
        self._failure: BaseException | None = None
        self._schema: tuple[object, str] = (None, "")

    # Opening

    def resume_from(self, stored: TopicProgress | None) -> None:
        """Take up the progress that Kafka has. Call it after the fence: see rule 1.

        Raises :class:`TargetRefused` if a newer daemon has claimed the feed, :class:`ConfigError`
        if the records before have another form than ours.
        """
        self._check_state("resume_from")
        self.check_owner(stored)
        progress = stored or TopicProgress(self.feed)
        if progress.record_form is not None and not self.overwrites:
            form = {"type": "kafka", **self._form}
            check_record_form(form, progress.record_form, self.feed, progress.offset)
            progress = replace(progress, record_form=self._form)
        elif self.overwrites:
            progress = replace(progress, record_form=None)
        self.progress = progress
        self.state = "FENCED"

    def check_owner(self, stored: TopicProgress | None) -> None:
        """Raise :class:`TargetRefused` if a newer daemon has claimed the feed since we did."""
        if self.claimed and stored and stored.epoch > self.claimed and stored.owner != self.owner:
            self.state = "TAKEN_OVER"
            self._failure = TargetRefused(
                f"feed {self.feed!r} was taken over by a newer daemon, {stored.owner} (epoch "
                f"{stored.epoch}, ours was {self.claimed}); this one stops. Run one daemon for a "
                "feed, or give them names, or progress_topic and transactional_id, of their own"
            )
            raise self._failure

    def check_topic(self, name: str, seen: SeenTopic | None) -> bool:
        """Return whether the feed may write to a topic as it is; if not, it is to be created.

        Raises :class:`TargetRefused` if topic and progress do not belong together.
        """
        topic_id = self.progress.topics.get(name)
        if topic_id is not None:
            check_same_topic(self.feed, name, topic_id, seen, str(self.progress.offset))
        elif seen is not None and seen.has_records and not self.overwrites:
            raise TargetRefused(
                f"the topic {name} has been written to, and there is no progress of feed "
                f"{self.feed!r} in it; give the feed a topic of its own, or, if it may append to "
                "what is there, say where it continues by `tailer offsets set`, or by `reset` for "
                "its start"
            )
        return seen is not None

    def note_topic(self, name: str, topic_id: str) -> None:
        """Note the id of a topic that the next transactions write to."""
        self.progress = replace(self.progress, topics={**self.progress.topics, name: topic_id})

    def claim(self) -> TopicTransaction:
        """Return the transaction that claims the feed for this process."""
        self._check_state("claim")
        self.state, self._left = "CLAIMED", 1
        return TopicTransaction(self.progress.claim_for(self.owner))

    # Writing

    @property
    def offset(self) -> Offset | None:
        """Return where the feed is: what is committed, and versions without changes after it."""
        return self.progress.offset if self.skipped_to is None else self.skipped_to

    def plan(
        self, item: ChangeBatch | Notice, *, writes_notice: bool = False
    ) -> list[TopicTransaction]:
        """Return the transactions that write a batch or a notice; none for versions without
        changes, which :meth:`catch_up` saves. A notice is written if ``writes_notice``; the
        versions that it skips are progress, which is committed at once: it must not come again.
        """
        self._check_state("plan")
        if isinstance(item, Notice):
            planned = self._plan_notice(item, writes_notice=writes_notice)
        elif item.num_rows:
            planned = self._plan_rows(item)
        else:
            self.skipped_to, planned = item.next_offset, []
        return self._begin_transactions(planned)

    def catch_up(self) -> list[TopicTransaction]:
        """Return the transaction that saves the progress over versions without changes, if any."""
        self._check_state("plan")
        if self.skipped_to is None:
            return []
        return self._begin_transactions(
            [TopicTransaction(replace(self.progress, offset=self.skipped_to))]
        )

    def overwrite(self, offset: Offset | None) -> list[TopicTransaction]:
        """Return the transaction that sets another offset; None: the feed's start decides."""
        self._check_state("plan")
        return self._begin_transactions([TopicTransaction(replace(self.progress, offset=offset))])

    def _begin_transactions(self, planned: list[TopicTransaction]) -> list[TopicTransaction]:
        if planned:
            self.state, self._left = "IN_TRANSACTION", len(planned)
        return planned

    def _plan_notice(self, notice: Notice, *, writes_notice: bool) -> list[TopicTransaction]:
        moves = notice.kind != "heartbeat"
        if not writes_notice and (not moves or notice.next_offset == notice.offset):
            return []
        after = notice.next_offset if moves else self.offset
        return [
            TopicTransaction(
                replace(self.progress, offset=after), notice=notice if writes_notice else None
            )
        ]

    def _plan_rows(self, batch: ChangeBatch) -> list[TopicTransaction]:
        rows = self._drop_committed_rows(batch)
        if not rows.num_rows:
            return []
        at = self.offset
        # Rows of a snapshot that is taken while the stream continues do not move its offset.
        beside_stream = (
            batch.offset.snapshot and at is not None and batch.next_offset.position == at.position
        )
        return [
            TopicTransaction(
                replace(
                    self.progress,
                    offset=batch.next_offset if beside_stream else part.next_offset,
                    schema=self._schema_id(part),
                    record_form=self._form,
                ),
                part,
            )
            for part in self.split_batch(rows)
        ]

    def split_batch(self, batch: ChangeBatch) -> list[ChangeBatch]:
        """Return a batch as the consecutive parts that a transaction each has."""
        return list(slice_batch(batch, _ROWS_MAX, self._bytes_max))

    def _drop_committed_rows(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the rows of a batch that are not committed. After a refusal of rows, a batch comes
        again in pieces, and its transactions before the refused row are committed."""
        done = self._committed_before_refusal
        if done is None or batch.offset.snapshot != done.snapshot:
            return batch
        committed = batch.rows_before(done)
        return batch.slice(committed, batch.num_rows) if committed else batch

    # What became of a transaction

    def note_commit(self, transaction: TopicTransaction) -> None:
        """Note that a transaction, the next one of those planned, is committed."""
        self._check_state("note_commit")
        if self.state == "CLAIMED":
            self.claimed = transaction.after.epoch
        self.progress, self.skipped_to = transaction.after, None
        self._left -= 1
        if not self._left:
            self.state = "IDLE"

    def note_failure(self, error: BaseException) -> None:
        """Note that a transaction, or what comes before it, failed. If rows were refused, no broker
        was asked to commit; of any other error the outcome is unknown, and a new session finds
        out."""
        if self.state == "TAKEN_OVER":
            return
        if self.state in ("IDLE", "IN_TRANSACTION") and isinstance(error, RowsRefused | TableError):
            self.state, self._committed_before_refusal = "IDLE", self.progress.offset
        else:
            self.state, self._failure = "BROKEN", error

    def _check_state(self, call: str) -> None:
        if self.state in ("BROKEN", "TAKEN_OVER"):
            if isinstance(self._failure, _FOR_GOOD):
                raise self._failure
            raise TransientError("the session with Kafka has failed; it is opened again")
        if self.state not in _ALLOWED[call]:
            raise RuntimeError(f"{call} in the state {self.state}")

    def _schema_id(self, batch: ChangeBatch) -> str:
        text = batch.state.metadata.schema_string
        if self._schema[0] is not text:
            self._schema = (text, blake2b(text.encode(), digest_size=8).hexdigest())
        return self._schema[1]


def check_same_topic(feed: str, name: str, topic_id: str, seen: SeenTopic | None, at: str) -> None:
    """Raise :class:`TargetRefused` if a topic that the feed has written to is another one."""
    if seen is None:
        raise TargetRefused(
            f"the topic {name} is gone, and feed {feed!r} had written to it up to {at}; restore "
            "it, or give the feed another topic or name"
        )
    if topic_id != seen.id:
        raise TargetRefused(
            f"the topic {name} was deleted and created again since feed {feed!r} wrote to it up "
            f"to {at} (its id was {topic_id}, and is {seen.id}); give the feed another name to "
            "write the table to it again"
        )
