"""Every transition of a feed's transactions, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from sinks.kafka.client.failures import Fenced
from sinks.kafka.feed_transactions import FeedTransactions, SeenTopic, TopicTransaction
from sinks.kafka.progress import TopicProgress
from tailer.changes import Notice, Offset
from tailer.errors import (
    ConfigError,
    RowsRefused,
    SinkRejected,
    TableError,
    TargetRefused,
    TransientError,
)
from tailer.testing.batches import change_batch, empty_batch
from tests.kafka.sinks import SCHEMA, batch

FORM = {"topic": "t", "format": "rows", "key": ["id"]}
BEFORE = TopicProgress("orders", epoch=3, owner="a", offset=Offset(7), topics={"t": "T1"})


def fenced(found: TopicProgress | None = BEFORE, **options: object) -> FeedTransactions:
    transactions = FeedTransactions("orders", "b", FORM, **options)  # type: ignore[arg-type]
    transactions.resume_from(found)
    return transactions


def idle(found: TopicProgress | None = BEFORE) -> FeedTransactions:
    transactions = fenced(found)
    transactions.note_commit(transactions.claim())
    return transactions


def places(planned: list[TopicTransaction]) -> list[tuple[int, int] | None]:
    offsets = [t.after.offset for t in planned]
    return [None if offset is None else offset.position for offset in offsets]


def test_a_claim_keeps_the_offset_and_has_a_higher_epoch_and_our_name() -> None:
    transactions = fenced()
    assert transactions.state == "FENCED"
    claim = transactions.claim()
    assert claim == TopicTransaction(replace(BEFORE, epoch=4, owner="b"))
    assert (transactions.state, transactions.claimed) == ("CLAIMED", 0)
    transactions.note_commit(claim)
    assert (transactions.state, transactions.claimed) == ("IDLE", 4)
    assert transactions.offset == Offset(7)


def test_a_batch_and_the_progress_after_it_are_one_transaction() -> None:
    transactions = idle()
    rows = batch(7, [1, 2])
    (planned,) = transactions.plan(rows)
    assert planned.rows is rows
    assert planned.after.offset == rows.next_offset
    assert (planned.after.record_form, planned.after.epoch) == (FORM, 4)
    assert transactions.offset == Offset(7), "it is not committed"
    transactions.note_commit(planned)
    assert transactions.offset == rows.next_offset
    assert transactions.catch_up() == []


def test_a_large_batch_is_several_and_each_is_committed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sinks.kafka.feed_transactions._ROWS_MAX", 6)
    transactions = idle()
    first, second = transactions.plan(batch(7, range(10)))
    assert places([first, second]) == [(7, 6), (8, 0)]
    states: list[str] = []
    for planned in (first, second):
        transactions.note_commit(planned)
        states.append(transactions.state)
        assert transactions.offset == planned.after.offset
    assert states == ["IN_TRANSACTION", "IDLE"]


def test_versions_without_changes_are_saved_when_asked_for() -> None:
    transactions = idle()
    assert transactions.catch_up() == []
    skipped = empty_batch(SCHEMA, version=7)
    assert transactions.plan(skipped) == []
    assert (transactions.state, transactions.offset) == ("IDLE", skipped.next_offset)
    assert transactions.progress.offset == Offset(7)
    (saved,) = transactions.catch_up()
    assert saved.after.offset == skipped.next_offset
    transactions.note_commit(saved)
    assert (transactions.catch_up(), transactions.progress.offset) == ([], skipped.next_offset)


def test_rows_save_the_versions_without_changes_before_them() -> None:
    transactions = idle()
    transactions.plan(empty_batch(SCHEMA, version=7))
    (planned,) = transactions.plan(batch(8, [1]))
    transactions.note_commit(planned)
    assert transactions.skipped_to is None
    assert places([planned]) == [(9, 0)]


@pytest.mark.parametrize(
    ("kind", "moves_to", "way", "expected"),
    [
        ("schema_change", 7, "silent", None),
        ("schema_change", 7, "told", (7, 0)),
        ("skipped_version", 8, "silent", (8, 0)),
        ("skipped_version", 8, "told", (8, 0)),
        ("heartbeat", 9, "silent", None),
        ("heartbeat", 9, "told", (7, 0)),  # the only one that does not say where the feed is
    ],
)
def test_a_notice_is_committed_with_the_offset_that_it_moves_to(
    kind: str, moves_to: int, way: str, expected: tuple[int, int] | None
) -> None:
    notice = Notice(kind, 7, 0, Offset(7), Offset(moves_to), {})  # type: ignore[arg-type]
    told = way == "told"
    planned = idle().plan(notice, writes_notice=told)
    assert places(planned) == ([] if expected is None else [expected])
    assert all((t.notice is notice) == told for t in planned)


def test_rows_of_a_snapshot_beside_the_stream_do_not_move_its_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sinks.kafka.feed_transactions._ROWS_MAX", 2)
    transactions = idle()
    rows = [{"id": i, "name": "x"} for i in range(3)]
    beside = structs.replace(
        change_batch(SCHEMA, rows, version=5),
        offset=Offset(5, snapshot=True),
        next_offset=Offset(7),
    )
    assert places(transactions.plan(beside)) == [(7, 0), (7, 0)]


@pytest.mark.parametrize("error", [RowsRefused("too large"), TableError("no such column")])
def test_refused_rows_roll_back_and_what_is_committed_is_not_planned_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.kafka.feed_transactions._ROWS_MAX", 4)
    transactions = idle()
    whole = batch(7, range(10))
    transactions.note_commit(transactions.plan(whole)[0])
    transactions.note_failure(error)
    assert transactions.state == "IDLE"
    half, other = whole.slice(0, 5), whole.slice(5, 10)
    (left,) = transactions.plan(half)
    assert left.rows is not None
    assert left.rows.rows["id"].to_pylist() == [4]
    transactions.note_commit(left)
    assert transactions.plan(whole.slice(0, 2)) == []
    assert sum(t.rows.num_rows for t in transactions.plan(other) if t.rows) == 5


def test_without_a_refusal_a_version_that_is_counted_anew_is_written_from_its_start() -> None:
    """A restart may have other options for finding changes: the old index says nothing then."""
    transactions = idle(replace(BEFORE, offset=Offset(7, 2)))
    (planned,) = transactions.plan(batch(7, [1, 2, 3]))
    assert planned.rows is not None
    assert planned.rows.num_rows == 3


def planned(transactions: FeedTransactions) -> None:
    transactions.plan(batch(7, [1]))


@pytest.mark.parametrize("come_to", [lambda _: None, planned])
@pytest.mark.parametrize(
    "error",
    [
        TransientError("no answer"),
        Fenced("another producer"),
        KeyError("a bug"),
        SinkRejected("no right"),
        ConfigError("no such option"),
    ],
)
def test_after_any_other_error_nothing_more_is_written(
    come_to: Callable[[FeedTransactions], None], error: Exception
) -> None:
    transactions = idle()
    come_to(transactions)
    transactions.note_failure(error)
    assert transactions.state == "BROKEN"
    said = type(error) if isinstance(error, SinkRejected | ConfigError) else TransientError
    for item in (batch(8, [1]), empty_batch(SCHEMA, version=8)):
        with pytest.raises(said):
            transactions.plan(item)
    with pytest.raises(said):
        transactions.catch_up()


def test_a_refusal_while_opening_is_no_roll_back() -> None:
    transactions = fenced()
    transactions.claim()
    transactions.note_failure(RowsRefused("?"))
    assert transactions.state == "BROKEN"


def test_a_newer_claim_ends_everything() -> None:
    transactions = idle()
    transactions.check_owner(replace(BEFORE, epoch=4, owner="b"))  # our own
    transactions.check_owner(replace(BEFORE, epoch=3, owner="c"))  # an older one
    with pytest.raises(TargetRefused, match="taken over by a newer daemon, c"):
        transactions.check_owner(replace(BEFORE, epoch=5, owner="c"))
    assert transactions.state == "TAKEN_OVER"
    transactions.note_failure(Fenced("so it was"))
    assert transactions.state == "TAKEN_OVER"
    with pytest.raises(TargetRefused, match="taken over"):
        transactions.plan(batch(7, [1]))


def test_who_has_claimed_nothing_takes_over() -> None:
    transactions = FeedTransactions("orders", "b", FORM)
    transactions.check_owner(replace(BEFORE, epoch=9, owner="c"))
    assert transactions.state == "NEW"


@pytest.mark.parametrize(
    ("call", "state"),
    [
        (lambda t: t.claim(), "NEW"),
        (lambda t: t.plan(batch(7, [1])), "NEW"),
        (lambda t: t.overwrite(None), "NEW"),
        (lambda t: t.note_commit(TopicTransaction(BEFORE)), "NEW"),
    ],
)
def test_what_is_out_of_turn_is_a_bug(
    call: Callable[[FeedTransactions], object], state: str
) -> None:
    with pytest.raises(RuntimeError, match=state):
        call(FeedTransactions("orders", "b", FORM))


def test_no_second_transaction_is_planned_while_one_is_open() -> None:
    transactions = idle()
    transactions.plan(batch(7, [1]))
    with pytest.raises(RuntimeError, match="plan in the state IN_TRANSACTION"):
        transactions.plan(batch(8, [1]))
    with pytest.raises(RuntimeError):
        transactions.catch_up()


def test_a_transaction_is_committed_once() -> None:
    transactions = idle()
    (planned,) = transactions.plan(batch(7, [1]))
    transactions.note_commit(planned)
    with pytest.raises(RuntimeError, match="note_commit in the state IDLE"):
        transactions.note_commit(planned)


# --- topics and form


def test_topic_and_progress_belong_together() -> None:
    transactions = fenced()
    assert transactions.check_topic("t", SeenTopic("T1", has_records=True))
    assert not transactions.check_topic("new", None)
    assert transactions.check_topic("new", SeenTopic("N1", has_records=False))
    with pytest.raises(TargetRefused, match="the topic t is gone"):
        transactions.check_topic("t", None)
    with pytest.raises(TargetRefused, match="deleted and created again"):
        transactions.check_topic("t", SeenTopic("T2", has_records=False))
    with pytest.raises(TargetRefused, match="there is no progress of feed 'orders' in it"):
        transactions.check_topic("new", SeenTopic("N1", has_records=True))
    transactions.note_topic("new", "N1")
    assert transactions.claim().after.topics == {"t": "T1", "new": "N1"}


def test_another_form_is_refused_and_what_overwrites_forgets_it() -> None:
    other = replace(BEFORE, record_form={**FORM, "key": ["name"]})
    with pytest.raises(ConfigError, match=r'key from \["name"\] to \["id"\] at version 7'):
        fenced(other)
    transactions = fenced(other, overwrites=True)
    assert transactions.check_topic("new", SeenTopic("N1", has_records=True))
    transactions.note_commit(transactions.claim())
    (planned,) = transactions.overwrite(Offset(2))
    assert (planned.after.offset, planned.after.record_form) == (Offset(2), None)


def test_a_feed_that_has_nothing_yet_begins() -> None:
    transactions = idle(None)
    assert (transactions.offset, transactions.progress.epoch) == (None, 1)


#: As the first release writes it. Never change it: a later release must read it.
PROGRESS = (
    b'{"format":1,"feed":"orders","epoch":7,"owner":"host-1-ab","offset":{"format":1,"tabl'
    b'e_id":"kept","version":3,"index":4,"snapshot":false,"timestamp_floor_ms":17000000020'
    b'00,"plan":"7c45662334b3"},"events":0,"schema":"f00d","topics":{"orders":"AAAAAAAAAAA'
    b'AAAAAAAAAAA"},"begun":null,"delivery":{"topic":"orders","format":"rows","key":[]},"c'
    b'hecksum":"24ddae7ee7446aa1"}'
)


def test_a_progress_record_of_the_first_release_is_read_and_written_as_it_was() -> None:
    progress = TopicProgress.from_bytes(PROGRESS)
    assert progress.offset == Offset(3, 4, False, "kept", 1_700_000_002_000, "7c45662334b3")
    assert (progress.feed, progress.epoch, progress.owner) == ("orders", 7, "host-1-ab")
    assert progress.to_bytes() == PROGRESS
