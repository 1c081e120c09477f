"""A span's rows and offsets, one step at a time: no worker thread, no sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tailer.changes import ChangeBatch, ChangeFile, Offset
from tailer.decode.options import DecodeOptions
from tailer.decode.rows import Skip
from tailer.decode.small_files import SmallFiles
from tailer.delta.actions import AddFile
from tailer.errors import FileGone
from tailer.feed.options import FeedOptions
from tailer.feed.read_context import ReadContext
from tailer.feed.rows.batches import BatchAssembler
from tailer.feed.rows.decoding import SpanDecoder
from tailer.feed.rows.files import SpanFiles
from tailer.feed.rows.span import DecodedStep, Span, SpanEntry, Version, VersionFiles
from tailer.testing.table import TableBuilder
from tests.support.feeds import ID, table_log

pytestmark = pytest.mark.anyio

START = Offset(1, 0)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Version 1 has two files with three and two rows, version 2 has none, version 3 one."""
    table = TableBuilder(tmp_path / "orders", ID)
    table.create()
    table.commit(*(table.add([{"id": i} for i in ids]) for ids in ([1, 2, 3], [4, 5])))
    table.commit()
    table.insert([{"id": 6}])
    return table


def reading_of(table: TableBuilder, **decode: int) -> ReadContext:
    options = FeedOptions(decode=DecodeOptions(**decode))  # type: ignore[arg-type]  # only numbers
    return ReadContext.from_options(table_log(table), options)


async def span_of(context: ReadContext, last: int = 3) -> Span:
    span = Span(START)
    before = await context.log.state_before(1)
    for number in range(1, last + 1):
        commit = await context.log.read_commit(number, before, None)
        before = commit.after
        files = [
            ChangeFile(
                add.path,
                add.path,
                number,
                number * 10,
                commit.after.table_id,
                commit.after,
                {},
                "insert",
                "files",
                add.size,
                num_records=add.num_records,
            )
            for add in commit.file_actions()
            if isinstance(add, AddFile)
        ]
        version = Version(number, number * 10, commit.after, VersionFiles.from_list(files))
        assert span.can_take(version)
        span.add_version(version)
    return span


async def group_of(context: ReadContext, span: Span) -> list[SpanEntry]:
    files = SpanFiles(context, span, context.make_finder(span.first))
    (group,) = [group async for group in files]
    return group


def decoder(context: ReadContext, group: Sequence[SpanEntry], *, spans: bool) -> SpanDecoder:
    small = SmallFiles(context.decode, context.layouts) if spans else None
    return SpanDecoder(context, small, group, Skip())


def steps_of(decoder: SpanDecoder) -> list[DecodedStep]:
    steps = [decoder.decode_step()]
    while not steps[-1].is_last:
        steps.append(decoder.decode_step())
    decoder.close()
    return steps


def places(batches: Sequence[ChangeBatch]) -> list[tuple[tuple[int, int], int, tuple[int, int]]]:
    return [(b.offset.position, b.num_rows, b.next_offset.position) for b in batches]


async def test_each_batch_leads_on_and_a_versions_last_one_to_the_next_version(
    table: TableBuilder,
) -> None:
    context = reading_of(table)
    span = await span_of(context)
    group = await group_of(context, span)
    alone = BatchAssembler(context, context.make_finder(START), START, spans=False)
    (step,) = steps_of(decoder(context, group, spans=False))
    assert (step.files_read, step.is_last) == (3, True)
    assert places(alone.add_step(step.decoded)) == [
        ((1, 0), 3, (1, 3)),
        ((1, 3), 2, (2, 0)),
        ((2, 0), 0, (3, 0)),
        ((3, 0), 1, (4, 0)),
    ]
    (step,) = steps_of(decoder(context, group, spans=True))
    together = BatchAssembler(context, context.make_finder(START), START, spans=True)
    (batch,) = together.add_step(step.decoded)
    assert places([batch]) == [((1, 0), 6, (4, 0))]
    assert [part.offset.position for part in batch.parts()] == [(1, 0), (1, 3), (3, 0)]


async def test_a_lost_file_is_counted_and_has_no_rows(table: TableBuilder) -> None:
    context = reading_of(table)
    group = await group_of(context, await span_of(context))
    group[0].is_unread = True
    (step,) = steps_of(decoder(context, group, spans=True))
    made = BatchAssembler(context, context.make_finder(START), START, spans=True).add_step(
        step.decoded
    )
    assert places(made) == [((1, 3), 3, (4, 0))]


async def test_a_step_has_no_more_rows_than_a_batch(table: TableBuilder) -> None:
    context = reading_of(table, batch_rows_max=2)
    group = await group_of(context, await span_of(context))
    steps = steps_of(decoder(context, group, spans=True))
    rows = [sum(d.rows.batch.num_rows for d in step.decoded if d.rows) for step in steps]
    assert rows == [2, 1, 2, 1]
    assembler = BatchAssembler(context, context.make_finder(START), START, spans=True)
    made = [batch for step in steps for batch in assembler.add_step(step.decoded)]
    assert [batch.offset.position for batch in made] == [(1, 0), (1, 2), (1, 3), (3, 0)]
    assert made[-1].next_offset.position == (4, 0)


@pytest.mark.parametrize("spans", [False, True])
async def test_an_error_is_raised_after_the_rows_before_it(
    table: TableBuilder,
    spans: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    context = reading_of(table)
    group = await group_of(context, await span_of(context))
    assert group[1].file is not None
    (table.folder / group[1].file.location).unlink()
    under_test = decoder(context, group, spans=spans)
    step = under_test.decode_step()
    assert [d.counts for d in step.decoded] == [[(group[0], 3)]]
    assert not step.is_last
    for _ in range(2):
        with pytest.raises(FileGone, match="version 1") as gone:
            under_test.decode_step()
    assert gone.value.rows == 2
    under_test.close()


async def test_a_group_that_can_not_be_completed_comes_before_its_error(
    table: TableBuilder,
) -> None:
    context = reading_of(table)
    span = await span_of(context, 1)

    def planned() -> Iterator[ChangeFile]:
        yield from ()
        raise FileGone("it was planned too late")

    span.versions.append(Version(2, 20, span.versions[0].state, VersionFiles(planned())))
    files = SpanFiles(context, span, context.make_finder(span.first))
    group = await anext(files)
    assert [entry.file is None for entry in group] == [False, False, True]
    for _ in range(2):
        with pytest.raises(FileGone, match="too late"):
            await anext(files)
    await files.aclose()


async def test_a_span_ends_before_a_version_that_is_too_large(table: TableBuilder) -> None:
    span = await span_of(reading_of(table), 1)
    version = span.versions[0]
    file = next(iter(version.files.in_order))
    for files, fits in (([file] * 1022, True), ([file] * 1023, False), (None, False)):
        plan = VersionFiles(iter([file])) if files is None else VersionFiles.from_list(files)
        assert span.can_take(Version(2, 20, version.state, plan)) is fits
    within = Span.from_version(version, Offset(1, 1))
    assert not within.can_take(Version(2, 20, version.state, VersionFiles.from_list([]))), (
        "its offset"
    )
