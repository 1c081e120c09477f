"""Updates as one row: a preimage is held until its postimage is delivered beside it.

There are two phases. :func:`tailer.compare.pairs.plan_pairs` finds the partners from the columns
that identify them. Then :class:`Pairing` takes the paired preimages out of the plain sequence of
the version's rows.

Rows are named by their place in the plain sequence, which is what an offset's index counts, so
offsets mean the same whether updates are paired or not. Waiting preimages are held in memory up to
a bound, then in files.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, check_key
from tailer.compare.pairs import PAIR, Pairs, VersionRows, plan_pairs
from tailer.compare.preimages import Numbers, Preimages
from tailer.decode.options import DiffOptions
from tailer.decode.vectors import positions_within
from tailer.delta.snapshot import TableState

#: The images of an update, and the step from each of them to the other one beside it.
_IMAGES = pa.array(["update_preimage", "update_postimage"])
_STEPS = pa.array([1, -1], pa.int64())


def find_pairs(
    reading: VersionRows,
    before: TableState | None,
    options: DiffOptions,
    key: tuple[str, ...] = (),
) -> Pairing | None:
    """Find the pairs of a version with these files; None if it has no update.

    ``before`` is the table's state before the version.
    """
    after = reading.after
    check_key(key, after.schema.names)
    with ExitStack() as stack:
        pairs = plan_pairs(reading, options, key, stack)
        if not pairs:
            return None
        waiting = stack.enter_context(
            Preimages(options.memory_bytes_max // 8, options.spill_folder)
        )
        # If some preimages come after their postimage, or must be read in the schema that the
        # version leads to, all preimages are read first.
        set_aside = pairs.early or (before is not None and before.schema != after.schema)
        if set_aside:
            _set_aside(reading, pairs, waiting)
        return Pairing(pairs, waiting, stack.pop_all(), set_aside=set_aside)


def _set_aside(reading: VersionRows, pairs: Pairs, waiting: Preimages) -> None:
    """Put all paired preimages aside, in the schema that the version leads to."""
    options = structs.replace(reading.decode, row_ids=False)
    if options.target is None:
        options = structs.replace(options, target=reading.after, target_version=reading.version)
    for _, at, rows in reading.read_rows(options):
        places = positions_within(pairs.paired, at, at + rows.batch.num_rows)
        if len(places):
            taken = pc.subtract(places, pa.scalar(at, pa.int64()))
            waiting.add_rows(places, _select_data(reading.select(rows.batch.take(taken))))


class Pairing:
    """Moves each paired preimage out of the batches, to the side of its postimage.

    ``waiting`` holds the waiting preimages; with ``set_aside`` all were put there before. Close it
    to free the resources of ``stack``: the engine and the files of waiting preimages.
    """

    def __init__(
        self, pairs: Pairs, waiting: Preimages, stack: ExitStack, *, set_aside: bool
    ) -> None:
        self._pairs = pairs
        self._waiting = waiting
        self._stack = stack
        self._set_aside = set_aside
        self._listed = pairs.by_postimage()
        self._next = pa.RecordBatch.from_pylist([], schema=PAIR)

    def close(self) -> None:
        """Free the engine and the files of waiting preimages."""
        self._stack.close()

    def fold_batch(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the batch without its paired preimages, and with those of its updates in
        ``before``.

        Batches of the plain sequence come here in order, from the version's first row on.
        """
        first = batch.offset.index
        places = pa.arange(first, first + batch.num_rows)
        partners = self._take_partners(first + batch.num_rows)
        batch = structs.replace(batch, partner=self._pair_neighbours(batch, places, partners))
        rows_kept = None
        leaving = positions_within(self._pairs.paired, first, first + batch.num_rows)
        if len(leaving):
            alone = pc.invert(pc.is_in(places, value_set=leaving))
            if not self._set_aside:
                taken = pc.subtract(leaving, pa.scalar(first, pa.int64()))
                self._waiting.add_rows(leaving, _select_data(batch.rows.take(taken)))
            rows_kept = pa.arange(0, batch.num_rows).filter(alone)
            places = places.filter(alone)
        before = self._build_before(partners, places, _list_data_fields(batch.rows.schema))
        return structs.replace(_take_rows(batch, rows_kept), before=before, indices=places)

    def _pair_neighbours(
        self, batch: ChangeBatch, places: pa.Int64Array, partners: pa.RecordBatch
    ) -> pa.StructArray | None:
        """Pair neighbours of a file of such updates: beside each image without a partner, return
        the update's other image, if that has no partner either."""
        if batch.file is None or batch.file.path not in self._pairs.adjacent:
            return None
        count = batch.num_rows
        taken = positions_within(self._pairs.paired, places[0].as_py(), places[0].as_py() + count)
        alone = pc.invert(
            pc.or_(
                pc.is_in(places, value_set=taken),
                pc.is_in(places, value_set=partners.column("c")),
            )
        )
        step = _STEPS.take(pc.index_in(batch.rows.column(CHANGE_TYPE), _IMAGES))
        beside = pc.if_else(alone, pc.add(pa.arange(0, count), step), None)
        beside = pc.if_else(pc.fill_null(alone.take(beside), False), beside, None)
        if beside.null_count == count:
            return None
        return _select_data(batch.rows).to_struct_array().take(beside)

    def _take_partners(self, end: int) -> pa.RecordBatch:
        """Return the pairs with a postimage before ``end`` that were not returned yet."""
        slices: list[pa.RecordBatch] = []
        while True:
            count = bisect_left(Numbers(self._next.column("c")), end)
            slices.append(self._next.slice(0, count))
            self._next = self._next.slice(count)
            if self._next.num_rows:
                break
            following = next(self._listed, None)
            if following is None:
                break
            self._next = following
        return pa.concat_batches(slices)

    def _build_before(
        self, partners: pa.RecordBatch, places: pa.Int64Array, fields: list[pa.Field]
    ) -> pa.StructArray:
        if not partners.num_rows:
            return pa.nulls(len(places), pa.struct(fields))
        images = self._waiting.take_rows(partners.column("l"))
        at = pc.index_in(places, value_set=partners.column("c"))
        return images.take(at)


def drop_before_index(batch: ChangeBatch, index: int) -> ChangeBatch:
    """Return the rows of a folded batch from this place in the version on."""
    first = bisect_left(Numbers(batch.row_indices()), index)
    if not first:
        return batch
    places = batch.row_indices().slice(first)
    before = None if batch.before is None else batch.before.slice(first)
    rows_kept = pa.arange(first, batch.num_rows)
    return structs.replace(_take_rows(batch, rows_kept), before=before, indices=places)


def _take_rows(batch: ChangeBatch, rows_kept: pa.Int64Array | None) -> ChangeBatch:
    """Return the batch with only these of its rows; None: with all."""
    if rows_kept is None:
        return batch
    return structs.replace(
        batch,
        rows=batch.rows.take(rows_kept),
        positions=batch.positions.take(rows_kept),
        row_ids=None if batch.row_ids is None else batch.row_ids.take(rows_kept),
        partner=None if batch.partner is None else batch.partner.take(rows_kept),
    )


def _list_data_fields(schema: pa.Schema) -> list[pa.Field]:
    return list(schema)[: -len(METADATA_FIELDS)]


def _select_data(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the data columns alone."""
    fields = _list_data_fields(rows.schema)
    if not fields:
        return pa.RecordBatch.from_struct_array(
            pa.nulls(rows.num_rows, pa.struct([])).fill_null({})
        )
    return pa.RecordBatch.from_arrays(rows.columns[: len(fields)], schema=pa.schema(fields))
