"""The cursor of a log without a log: answers go in, actions come out, and nothing is read."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailer.log.cursor
import tailer.log.questions
from tailer.changes import Offset
from tailer.delta.actions import Metadata, Protocol
from tailer.delta.commit import Commit, CommitHeader
from tailer.delta.segment import format_commit_name
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptLog, DataLoss, TableReplaced, TailerError, TransientError
from tailer.log import questions as ask
from tailer.log.cursor import BACKLOG_COMMITS_MAX, FollowOptions, LogCursor, LogFacts
from tests.support.extent import examples

FACTS = LogFacts("/orders", torn_commit_max_s=1.0)
NOTHING = ask.Listing((), ())


def state_of(table_id: str) -> TableState:
    return TableState.from_actions(Protocol(1, 2), Metadata(table_id))


STATES = {table_id: state_of(table_id) for table_id in ("mine", "other")}


def commit(version: int, table_id: str = "mine") -> Commit:
    state = STATES[table_id]
    return Commit(
        version, format_commit_name(version), version, version, 10, CommitHeader(), list,
        state, state,
        tag(version),
    )  # fmt: skip


def tag(version: int) -> str:
    return f"tag {version}"


def listing(*versions: int) -> ask.Listing:
    return ask.Listing(versions, versions)


def cursor_at(
    version: int = 3, *, index: int = 0, last: int | None = None, facts: LogFacts = FACTS,
    options: FollowOptions | None = None, table_id: str | None = None,
) -> LogCursor:  # fmt: skip
    before, seen = (STATES["mine"], tag(version - 1)) if version else (None, None)
    start = Offset(version, index, table_id=table_id)
    return LogCursor(facts, start, before, seen, lambda: 0.5, last=last, options=options)


def answered(cursor: LogCursor, *answers: ask.CursorAnswer, now: float = 0.0) -> Any:
    """What the cursor asks for after these answers."""
    for answer in answers:
        assert cursor.next_action(now) is not None
        cursor.receive(answer)
    return cursor.next_action(now)


def refused(cursor: LogCursor, *answers: ask.CursorAnswer) -> TailerError:
    """The error by which the cursor ends; it stays at its end."""
    with pytest.raises(TailerError) as caught:
        answered(cursor, *answers)
    with pytest.raises(type(caught.value)):
        cursor.next_action(0.0)
    return caught.value


def newest(version: int) -> ask.CommitsRead:
    """The commit of a version whose predecessor was looked up afterwards."""
    return ask.CommitsRead([commit(version)], ask.FileTag(tag(version - 1)))


def waiting(version: int = 3, **how: Any) -> LogCursor:
    """A cursor that has found out that the next version does not exist."""
    cursor = cursor_at(version, **how)
    answered(cursor, ask.NotThere(0.0))
    return cursor


def test_the_example_of_the_module() -> None:
    cursor = cursor_at(1)
    assert answered(cursor) == ask.ReadCommit(1, STATES["mine"], None, 0.0)
    assert answered(cursor, ask.CommitsRead([commit(1)])) == ask.StatCommit(0)
    assert answered(cursor, ask.FileTag(tag(0))) == ask.ListLog(format_commit_name(1))
    assert answered(cursor, listing(1, 2)) == ask.ReadMore(commit(1), 1)
    both = ask.Deliver([commit(1), commit(2)], at_head=True)
    assert answered(cursor, ask.CommitsRead([commit(2)])) == both
    assert cursor.newest == 2
    assert answered(cursor, None) == ask.ReadCommit(3, STATES["mine"], 2, 0.0)
    assert answered(cursor, ask.NotThere(0.0)) == ask.ListLog(f"{3:020d}")
    assert answered(cursor, NOTHING) == ask.StatCommit(2)
    assert answered(cursor, ask.FileTag(tag(2))) == ask.Wait(0.0)
    read = answered(cursor, None)
    assert read == ask.ReadCommit(3, STATES["mine"], 2, 0.0), "what came before the watch"
    answered(cursor, ask.NotThere(0.0), NOTHING)
    wait = answered(cursor, ask.FileTag(tag(2)))
    assert isinstance(wait, ask.Wait)
    assert 0.25 <= wait.seconds <= 0.5
    answered(cursor, None)
    assert answered(cursor, newest(3)) == ask.Deliver([commit(3)], at_head=True)


def test_a_bounded_read_ends_after_its_last_version() -> None:
    cursor = cursor_at(3, last=4)
    assert answered(cursor, newest(3)) == ask.ListLog(format_commit_name(3))
    assert answered(cursor, listing(3, 4, 5, 6)) == ask.ReadMore(commit(3), 1)
    two = ask.Deliver([commit(3), commit(4)], at_head=False)
    assert answered(cursor, ask.CommitsRead([commit(4)])) == two
    assert answered(cursor, None) is None
    assert cursor.next_action(0.0) is None
    assert cursor_at(5, last=4).next_action(0.0) is None


def test_a_backlog_comes_in_spans() -> None:
    cursor = cursor_at(3)
    more = answered(cursor, newest(3), listing(*range(3, 1000)))
    assert more == ask.ReadMore(commit(3), BACKLOG_COMMITS_MAX - 1)
    span = [commit(version) for version in range(4, 10)]
    answered(cursor, ask.CommitsRead(span), None)
    more = answered(cursor, newest(10))
    assert more == ask.ReadMore(commit(10), BACKLOG_COMMITS_MAX - 1), "listed once"


def test_the_first_version_has_no_predecessor() -> None:
    cursor = cursor_at(0)
    assert answered(cursor, ask.CommitsRead([commit(0)])) == ask.ListLog(format_commit_name(0))


def test_a_gap_is_an_error_once_the_commit_was_looked_up() -> None:
    cursor = waiting()
    assert answered(cursor, listing(4, 7)) == ask.StatCommit(3)
    error = refused(cursor, ask.FileTag(None))
    assert isinstance(error, DataLoss)
    assert cursor.state == "GAP"
    assert "version 3" in str(error)
    assert "though version 4 exists" in str(error)


def test_a_listing_that_lags_behind_is_no_gap() -> None:
    cursor = waiting()
    answered(cursor, listing(4), ask.FileTag(tag(3)))
    assert cursor.state == "waiting"
    assert answered(cursor, None) == ask.ReadCommit(3, STATES["mine"], None, 0.0)


def test_a_commit_that_is_listed_and_not_there_may_heal() -> None:
    error = refused(waiting(), listing(3, 4), ask.FileTag(None))
    assert isinstance(error, TransientError)
    assert "version 3 is listed and can't be read" in str(error)


@pytest.mark.parametrize("now", [ask.FileTag("another"), ask.FileTag(None)])
def test_a_replaced_table_is_noticed_by_the_predecessor(now: ask.FileTag) -> None:
    cursor = cursor_at()
    assert answered(cursor, ask.CommitsRead([commit(3)]), now) == ask.ReadTableId(3)
    error = refused(cursor, ask.TableId("other"))
    assert isinstance(error, TableReplaced)
    assert cursor.state == "REPLACED"
    assert "its id was mine and is other" in str(error)


def test_a_log_that_was_copied_or_cleaned_up_goes_on() -> None:
    cursor = cursor_at(last=3)
    answered(cursor, ask.CommitsRead([commit(3)]), ask.FileTag(None), ask.TableId("mine"))
    assert cursor.state == "delivering"


def test_a_changed_table_whose_snapshot_can_t_be_built_is_not_trusted() -> None:
    cursor = cursor_at()
    error = refused(cursor, ask.CommitsRead([commit(3)], ask.FileTag("new")), ask.TableId(None))
    assert isinstance(error, TableReplaced)
    assert cursor.state == "UNPROVEN"


def test_a_commit_that_makes_another_table_is_refused_if_one_is_followed() -> None:
    error = refused(cursor_at(), ask.CommitsRead([commit(3, "other")], ask.FileTag(tag(2))))
    assert "its id was mine and is other" in str(error)
    both = cursor_at(last=3, options=FollowOptions(same_table=False))
    other = ask.CommitsRead([commit(3, "other")], ask.FileTag(tag(2)))
    assert answered(both, other) == ask.Deliver([commit(3, "other")], at_head=True)


def test_another_table_s_commits_are_not_delivered_with_these() -> None:
    cursor = cursor_at()
    answered(cursor, newest(3), listing(3, 4, 5))
    span = answered(cursor, ask.CommitsRead([commit(4), commit(5, "other")]))
    assert span == ask.Deliver([commit(3), commit(4)], at_head=False)


def test_the_first_version_must_be_of_the_offset_s_table() -> None:
    error = refused(cursor_at(0, table_id="other"), ask.CommitsRead([commit(0)]))
    assert "its id was other and is mine" in str(error)


def test_a_table_that_was_replaced_while_waiting_is_noticed() -> None:
    cursor = waiting()
    answered(cursor, NOTHING, ask.FileTag("another"))
    assert answered(cursor, listing(0, 1)) == ask.ReadTableId(None)
    assert isinstance(refused(cursor, ask.TableId("other")), TableReplaced)


@pytest.mark.parametrize("table", [ask.TableId("mine"), ask.TableId(None)])
def test_a_table_that_went_back_is_noticed(table: ask.TableId) -> None:
    cursor = waiting()
    answered(cursor, NOTHING, ask.FileTag(None), listing(0, 1))
    assert answered(cursor, table) == ask.StatCommit(2)
    error = refused(cursor, ask.FileTag(None))
    assert isinstance(error, TableReplaced)
    assert cursor.state == "WENT_BACK"
    assert "went back to version 1" in str(error)


def test_a_version_of_which_a_part_was_delivered_is_not_waited_for() -> None:
    cursor = cursor_at(index=7)
    assert answered(cursor) == ask.StatCommit(3)
    answered(cursor, ask.FileTag(None), listing(0, 1, 2), ask.TableId("mine"))
    error = refused(cursor, ask.FileTag(None))
    assert "went back to version 2" in str(error)
    there = answered(cursor_at(index=7), ask.FileTag(tag(3)))
    assert there == ask.ReadCommit(3, STATES["mine"], None, 0.0)
    # A server that makes the log of its answers need not know earlier ones.
    shared = LogFacts("/orders", server_log=True)
    assert answered(cursor_at(index=7, facts=shared)) == there


def test_an_empty_log_proves_nothing() -> None:
    cursor = waiting()
    error = refused(cursor, NOTHING, ask.FileTag(None), NOTHING)
    assert isinstance(error, TransientError)
    assert cursor.state == "AWAY"
    assert "the table is gone" in str(error)


def test_a_log_that_was_cleaned_up_is_waited_for() -> None:
    cursor = waiting()
    answered(cursor, NOTHING, ask.FileTag(None), ask.Listing((2,), ()), ask.TableId("mine"))
    assert cursor.next_action(0.0) == ask.Wait(0.0)
    assert cursor.newest == 2


def test_a_torn_commit_is_waited_for_and_then_refused() -> None:
    cursor = cursor_at()
    pauses = []
    while isinstance(pause := answered(cursor, ask.Torn()), ask.Pause):
        pauses.append(pause.seconds)
        answered(cursor, None)
        if sum(pauses) >= FACTS.torn_commit_max_s:
            break
    assert pauses == sorted(pauses)
    error = refused(cursor, ask.Torn())
    assert isinstance(error, CorruptLog)
    assert cursor.state == "TORN"
    assert "half-written" in str(error)


def test_a_torn_commit_that_is_finished_goes_on() -> None:
    cursor = cursor_at(last=3)
    answered(cursor, ask.Torn(), None, newest(3))
    assert cursor.state == "delivering"


def test_a_commit_that_is_no_json_is_not_waited_for() -> None:
    error = refused(cursor_at(), ask.Torn("packed by gzip"))
    assert "packed by gzip" in str(error)


def test_an_old_answer_is_asked_again_at_once() -> None:
    """It was requested ahead, and the sink has taken its time."""
    cursor = cursor_at()
    cursor.next_action(10.0)
    cursor.receive(ask.NotThere(9.4))
    again = cursor.next_action(10.0)
    assert isinstance(again, ask.ReadCommit)
    cursor.receive(ask.NotThere(9.6))
    assert isinstance(cursor.next_action(10.0), ask.ListLog)


def test_a_folder_at_rest_is_not_listed() -> None:
    cursor = waiting()
    answered(cursor, NOTHING, ask.FileTag(tag(2)), None)
    assert isinstance(answered(cursor, ask.NotThere(0.0, idle=True)), ask.Wait)


def test_a_log_is_examined_now_and_then_while_it_is_polled() -> None:
    """Each poll of a server is one request, most of the time."""
    cursor = waiting(facts=LogFacts("s3://b/orders", check_s=60.0))
    answered(cursor, NOTHING, ask.FileTag(tag(2)), None)
    assert isinstance(answered(cursor, ask.NotThere(0.0)), ask.Wait)
    answered(cursor, None)
    assert isinstance(answered(cursor, ask.NotThere(61.0), now=61.0), ask.ListLog)


def test_polls_become_rarer_up_to_the_longest_pause() -> None:
    cursor = waiting(options=FollowOptions(poll_min_s=1.0, poll_max_s=8.0))
    answered(cursor, NOTHING, ask.FileTag(tag(2)), None)
    waits = []
    for _ in range(6):
        action = answered(cursor, ask.NotThere(0.0, idle=True))
        waits.append(action.seconds)
        answered(cursor, None)
    for wait, longest in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert longest / 2 <= wait <= longest
    assert waits[3:] == [8.0] * 3


def test_a_commit_that_was_waited_for_needs_no_listing() -> None:
    cursor = waiting()
    answered(cursor, NOTHING, ask.FileTag(tag(2)), None)
    answered(cursor, ask.NotThere(0.0, idle=True), None)
    assert answered(cursor, newest(3)) == ask.Deliver([commit(3)], at_head=True)


def test_every_way_of_the_table_leads_somewhere() -> None:
    ways = tailer.log.cursor._NEXT
    ends = {"FINISHED", "AWAY", "GAP", "REPLACED", "TORN", "UNPROVEN", "WENT_BACK"}
    reached = {state for leads in ways.values() for state in leads.values()} | {"resuming"}
    assert reached == set(ways) | ends


tags = st.builds(ask.FileTag, st.sampled_from([None, "changed"]) | st.integers(0, 9).map(tag))
listings = st.lists(st.integers(0, 9), max_size=4).map(lambda found: listing(*found))
ids = st.builds(ask.TableId, st.sampled_from(["mine", "mine", "other", None]))
missing = st.builds(ask.NotThere, st.just(100.0), st.booleans())
torn = st.builds(ask.Torn)


def answers_to(action: Any) -> st.SearchStrategy[ask.CursorAnswer]:
    match action:
        case ask.ReadCommit(version):
            read = st.builds(ask.CommitsRead, st.just([commit(version)]), st.none() | tags)
            return read | missing | torn
        case ask.ReadMore(after, count):
            more = [commit(after.version + i) for i in range(1, min(count, 3) + 1)]
            return st.integers(0, len(more)).map(lambda n: ask.CommitsRead(more[:n]))
        case ask.StatCommit():
            return tags
        case ask.ListLog():
            return listings
        case ask.ReadTableId():
            return ids
    return st.none()


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), st.integers(0, 4), st.none() | st.integers(3, 9))
def test_whatever_is_answered_versions_come_once_and_in_order(
    data: st.DataObject, first: int, last: int | None
) -> None:
    cursor = cursor_at(first, last=last)
    delivered: list[int] = []
    for now in range(40):
        try:
            action = cursor.next_action(float(now))
        except TailerError:
            break
        if action is None:
            assert not delivered or delivered[-1] == last
            break
        if isinstance(action, ask.Deliver):
            delivered += [one.version for one in action.commits]
        cursor.receive(data.draw(answers_to(action)))
    assert delivered == list(range(first, first + len(delivered)))


@pytest.mark.parametrize("module", [tailer.log.cursor, tailer.log.questions])
def test_a_cursor_knows_no_store_no_clock_no_chance_and_no_wait(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [f"{getattr(node, 'module', '')}.{name.name}" for node in nodes for name in node.names]
    known = (
        "__future__", "collections.abc", "itertools", "msgspec", "typing",
        "tailer.changes", "tailer.delta", "tailer.errors", "tailer.log.questions", "tailer.offset",
    )  # fmt: skip
    assert [name for name in names if not name.startswith(known)] == []
    assert not any(isinstance(node, ast.Await | ast.AsyncFunctionDef) for node in ast.walk(tree))
