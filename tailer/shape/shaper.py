"""The last step before a sink: which rows are delivered, with which columns, masked how.

It comes after all that counts rows: offsets, event ids and places are those of a feed that delivers
every row of the files that a partition does not leave out. The order for each row:

1. ``where`` sees the table's own values, also of columns that are masked or not selected.
2. Columns are masked.
3. ``select`` computes with what the masks have left.

| an update whose images are known | becomes |
|---|---|
| both are wanted | an update; nothing, if ``unchanged = "drop"`` and what is selected is equal |
| the postimage alone | an insert |
| the preimage alone | a delete, of the preimage |
| none | nothing |

Images that are not known to be a pair stand alone: a preimage leaves, a postimage comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeFile, Part
from tailer.compare.equal_rows import find_differing_rows
from tailer.delta.arrow_types import arrow_schema
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptRow, SchemaChanged, TableError, printable
from tailer.native.values import make_flags
from tailer.shape import sql
from tailer.shape.columns import TableColumns
from tailer.shape.expressions import Condition
from tailer.shape.masks import mask_columns
from tailer.shape.plan import Inputs, Planner, StatePlan
from tailer.shape.pruning import Pruning
from tailer.shape.selection import Selection

_SHOWN_CHARACTERS = 100


class Shaper:
    """Shapes the batches of one feed. ``target``: the state in whose schema all rows are."""

    def __init__(
        self,
        selection: Selection,
        columns: TableColumns,
        target: TableState | None = None,
        pruning: Pruning | None = None,
    ) -> None:
        self.selection = selection
        #: The last state that was found to fit.
        self.checked: TableState | None = None
        self._target = target
        self._pruning = pruning
        self._masks = {name.lower(): mask for name, mask in selection.masks.items()}
        self._planner = Planner(selection.select, self._masks, columns)
        self._opened: sql.ExpressionDatabase | None = None
        self._lock = Lock()
        self._last: tuple[TableState, StatePlan] | None = None

    @property
    def is_needed(self) -> bool:
        """Whether rows change here at all."""
        chosen = self.selection
        return bool(self._masks or chosen.select or chosen.where or chosen.unchanged == "drop")

    def check_state(self, state: TableState) -> None:
        """Refuse a state that the selection does not fit. Raises :class:`SchemaChanged`."""
        names = {name.lower() for name in state.schema.names}
        for name in self.selection.masks:
            if name.lower() not in names:
                raise SchemaChanged(
                    f"there is no column {name!r} to mask",
                    hint="it was renamed, dropped or misspelt; say in the feed's `mask` what is "
                    "to be masked now",
                )
        self.shape_state(state)

    def shape_state(self, state: TableState) -> TableState:
        """Return the part of the state that sinks may see."""
        return self._find_plan(state).state if self.is_needed else state

    def shape_schema(self, state: TableState) -> pa.Schema:
        """Return the schema of the rows that sinks get."""
        return pa.schema(
            [*arrow_schema(self.shape_state(self._target or state).schema), *METADATA_FIELDS]
        )

    def shape_batch(self, batch: ChangeBatch) -> Iterator[ChangeBatch]:
        """Yield the rows of a batch as sinks get them, in their order; work for a thread, unless
        they are few.

        A row that an expression can't be computed for comes alone, with null for what is computed:
        :attr:`~tailer.changes.ChangeBatch.refused` says why.
        """
        plan = self._find_plan(batch.state)
        try:
            yield self._shape_rows(batch, plan)
        except sql.NotComputed as e:
            if batch.num_rows < 2:
                yield self._build_refused(batch, plan, e)
                return
            middle = batch.num_rows // 2
            for half in (batch.slice(0, middle), batch.slice(middle, batch.num_rows)):
                yield from self.shape_batch(half)

    def check_condition(self, where: Condition, state: TableState) -> None:
        """Refuse a condition that does not fit a state. Raises :class:`SchemaChanged`."""
        with self._lock:
            self._planner.plan_condition(self._open_database(), where, state)

    def filter_batch(self, batch: ChangeBatch, where: Condition) -> ChangeBatch:
        """Return the rows of a batch that meet another condition. Raises :class:`CorruptRow` if it
        can't be computed for one."""
        state = self._target or batch.state
        with self._lock:
            inputs = self._planner.plan_condition(self._open_database(), where, state)
        try:
            return batch.kept(
                self._find_matching(where, inputs, _split_data(batch.rows), batch.num_rows)
            )
        except sql.NotComputed as e:
            why = "" if self._sees_masked(inputs) else f": {e}"
            raise CorruptRow(
                f"the condition {where.text!r} can't be computed for a row{why}",
                version=batch.version,
            ) from None

    def list_unchanged(self, where: Condition, state: TableState) -> list[str] | None:
        """Return the columns that another condition needs, if sinks get all of them as the table
        has them; None if they do not."""
        with self._lock:
            inputs = self._planner.plan_condition(self._open_database(), where, state)
        outputs = dict(self._find_plan(state).outputs)
        found = [each.column for each in inputs.columns if each.column is not None]
        passed = all(outputs.get(n) == n and n.lower() not in self._masks for n in found)
        return found if passed and len(found) == len(inputs.columns) else None

    def find_met(
        self, where: Condition, state: TableState, rows: pa.RecordBatch
    ) -> pa.BooleanArray:
        """Return which rows meet a condition of :meth:`list_unchanged`; all of them if it can't be
        computed for one."""
        data = dict(zip(rows.schema.names, rows.columns, strict=True))
        with self._lock:
            inputs = self._planner.plan_condition(self._open_database(), where, state)
        try:
            return self._find_matching(where, inputs, data, rows.num_rows)
        except sql.NotComputed:
            return pa.repeat(pa.scalar(True), rows.num_rows)  # a value

    def _sees_masked(self, where: Inputs) -> bool:
        """Return whether a condition sees values that are masked: what DuckDB says of it may show
        them."""
        return any((c.column or "").lower() in self._masks for c in where.columns)

    def _find_plan(self, state: TableState) -> StatePlan:
        state = self._target or state
        with self._lock:
            if self._last is None or self._last[0] is not state:
                plan = self._planner.plan_state(self._open_database(), state, self.selection.where)
                self._last = state, plan
            return self._last[1]

    def _open_database(self) -> sql.ExpressionDatabase:
        if self._opened is None:
            self._opened = sql.ExpressionDatabase()
        return self._opened

    def _compute_values(self, expressions: Sequence[str], rows: pa.RecordBatch) -> list[pa.Array]:
        with self._lock:
            return self._open_database().compute_values(rows, list(expressions))

    def _shape_rows(self, batch: ChangeBatch, plan: StatePlan) -> ChangeBatch:
        if self.selection.where is not None:
            batch = self._select_wanted(batch, plan)
        before, partner = (
            None if images is None else self._shape_images(images, plan)
            for images in (batch.before, batch.partner)
        )
        columns = self._build_columns(_split_data(batch.rows), batch.num_rows, plan)
        rows = _add_metadata(columns, plan, batch.rows)
        shaped = self._shape_files(
            structs.replace(batch, rows=rows, before=before, partner=partner)
        )
        return _drop_equal_updates(shaped) if self.selection.unchanged == "drop" else shaped

    def _shape_files(self, batch: ChangeBatch) -> ChangeBatch:
        """Return a batch without what its files tell of columns that are not delivered."""
        return structs.replace(
            batch,
            state=self.shape_state(batch.state),
            file=None if batch.file is None else self._shape_file(batch.file),
            span=tuple(
                structs.replace(part, file=self._shape_file(part.file)) for part in batch.span
            ),
        )

    def _shape_file(self, file: ChangeFile) -> ChangeFile:
        return structs.replace(
            file, state=self.shape_state(file.state), partition_values={}, stats=None
        )

    def _select_wanted(self, batch: ChangeBatch, plan: StatePlan) -> ChangeBatch:
        where = self.selection.where
        assert where is not None
        if batch.num_rows and all(map(self._is_certain, batch.parts())):
            return batch
        after = self._find_matching(where, plan.where, _split_data(batch.rows), batch.num_rows)
        if batch.partner is not None:  # the other image of a row may be none that is wanted
            met = self._find_matching(
                where, plan.where, _split_fields(batch.partner), batch.num_rows
            )
            shown = pc.if_else(met, pa.arange(0, batch.num_rows), None)
            batch = structs.replace(batch, partner=batch.partner.take(shown))
        if batch.before is None or batch.before.null_count == len(batch.before):
            return batch.kept(after)
        pairs = batch.before.is_valid()
        before = pc.and_(
            pairs, self._find_matching(where, plan.where, _split_fields(batch.before), len(pairs))
        )
        left, came = pc.and_not(before, after), pc.and_(pc.and_not(after, before), pairs)
        return _convert_crossing(batch, left, came).kept(pc.or_(before, after))

    def _is_certain(self, part: Part) -> bool:
        """Return whether a partition alone decides that all rows are wanted."""
        return (
            self._pruning is not None
            and self._pruning.find_results(part.file, statistics=False).certain
        )

    def _find_matching(
        self, where: Condition, inputs: Inputs, data: Mapping[str, pa.Array], count: int
    ) -> pa.BooleanArray:
        if not count:
            return make_flags([])
        (found,) = self._compute_values([where.sql], inputs.build_batch(data, count))
        return pc.coalesce(found, make_flags([False])[0])

    def _shape_images(self, images: pa.StructArray, plan: StatePlan) -> pa.StructArray:
        """Return the other images of rows as sinks get them; null stays null."""
        here = images.is_valid()
        there = images.filter(here)
        columns = self._build_columns(_split_fields(there), len(there), plan)
        names = [name for name, _ in plan.outputs]
        if not names:
            return pa.nulls(len(images), pa.struct([]))
        places = pc.subtract(pc.cumulative_sum(here.cast(pa.int64())), 1)
        return pa.StructArray.from_arrays(columns, names=names).take(pc.if_else(here, places, None))

    def _build_columns(
        self, data: Mapping[str, pa.Array], count: int, plan: StatePlan
    ) -> list[pa.Array]:
        data = mask_columns(data, self._masks, self.selection.mask_key)
        computed: list[pa.Array] = []
        if plan.expressions and count:
            found = self._compute_values(plan.expressions, plan.inputs.build_batch(data, count))
            computed = [_cast_column(c, kind) for c, kind in zip(found, plan.types, strict=True)]
        elif plan.expressions:
            computed = [pa.nulls(0, kind) for kind in plan.types]
        return [data[what] if isinstance(what, str) else computed[what] for _, what in plan.outputs]

    def _build_refused(
        self, row: ChangeBatch, plan: StatePlan, error: sql.NotComputed
    ) -> ChangeBatch:
        """Return a row that an expression can't be computed for."""
        data = mask_columns(_split_data(row.rows), self._masks, self.selection.mask_key)
        needed = [c.column for c in (*plan.inputs.columns, *plan.where.columns) if c.column]
        shown = ", ".join(
            f"{name}={printable(str(data[name][0].as_py()), _SHOWN_CHARACTERS)!r}"
            for name in dict.fromkeys(needed)
            if name in data
        )
        why = "" if self._sees_masked(plan.where) else f": {error}"
        refused: TableError = CorruptRow(
            f"an expression can't be computed for a row ({shown}){why}",
            version=row.version,
            path=row.file.path if row.file is not None else None,
            hint="change the expression, as with TRY(...) or TRY_CAST; a feed can park such rows, "
            'with on_reject = "park"',
        )
        columns = [
            data[what] if isinstance(what, str) else pa.nulls(row.num_rows, plan.types[what])
            for _, what in plan.outputs
        ]
        rows = _add_metadata(columns, plan, row.rows)
        bare = structs.replace(row, rows=rows, before=None, partner=None, refused=refused)
        return self._shape_files(bare)


def _add_metadata(
    columns: Sequence[pa.Array], plan: StatePlan, rows: pa.RecordBatch
) -> pa.RecordBatch:
    fields = [pa.field(name, c.type) for (name, _), c in zip(plan.outputs, columns, strict=True)]
    return pa.RecordBatch.from_arrays(
        [*columns, *rows.columns[-len(METADATA_FIELDS) :]],
        schema=pa.schema([*fields, *METADATA_FIELDS]),
    )


def _split_data(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    end = rows.num_columns - len(METADATA_FIELDS)
    return dict(zip(rows.schema.names[:end], rows.columns[:end], strict=True))


def _split_fields(images: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip(images.type.names, images.flatten(), strict=True))


def _convert_crossing(
    batch: ChangeBatch, left: pa.BooleanArray, came: pa.BooleanArray
) -> ChangeBatch:
    """Return a batch whose updates that leave what is wanted are deletes of their preimages, and
    those that come into it inserts. Their ids stay those of the updates."""
    if not (left.true_count or came.true_count):
        return batch
    assert batch.before is not None
    kinds = batch.rows.column(CHANGE_TYPE)
    old = _split_fields(batch.before)
    # Whatever the types are: the images after the rows, taken from there.
    taken = pc.add(pa.arange(0, len(left)), pc.if_else(left, len(left), 0))
    columns = [
        pa.concat_arrays([column, old[name]]).take(taken) if name in old else column
        for name, column in zip(batch.rows.schema.names, batch.rows.columns, strict=True)
    ]
    columns[batch.rows.schema.get_field_index(CHANGE_TYPE)] = pc.if_else(
        left, "delete", pc.if_else(came, "insert", kinds)
    )
    rows = pa.RecordBatch.from_arrays(columns, schema=batch.rows.schema)
    alone = pc.or_(left, came)
    before = batch.before.take(pc.if_else(alone, None, pa.arange(0, len(alone))))
    return structs.replace(batch, rows=rows, before=before, id_kinds=kinds)


def _drop_equal_updates(batch: ChangeBatch) -> ChangeBatch:
    """Return a batch without the updates whose images are equal: pairs, and neighbours of a file
    that are a preimage and a postimage."""
    data = _split_data(batch.rows)
    if batch.before is not None and batch.before.null_count < len(batch.before):
        pairs = batch.before.is_valid()
        differs, _ = find_differing_rows(
            data.values(), _split_fields(batch.before).values(), batch.num_rows
        )
        return batch.kept(pc.or_(pc.invert(pairs), differs))
    if batch.before is not None or batch.num_rows < 2:
        return batch
    return batch.kept(_find_unequal_neighbours(batch, data))


def _find_unequal_neighbours(batch: ChangeBatch, data: Mapping[str, pa.Array]) -> pa.BooleanArray:
    """Return which rows are no image that has an equal one beside it."""
    kinds, count = batch.rows.column(CHANGE_TYPE), batch.num_rows
    places = batch.row_indices()
    pre = pc.equal(kinds.slice(0, count - 1), "update_preimage")
    post = pc.equal(kinds.slice(1), "update_postimage")
    beside = pc.equal(pc.subtract(places.slice(1), places.slice(0, count - 1)), 1)
    differs, _ = find_differing_rows(
        [c.slice(0, count - 1) for c in data.values()],
        [c.slice(1) for c in data.values()],
        count - 1,
    )
    equal = pc.and_not(pc.and_(pc.and_(pre, post), beside), differs)
    no = make_flags([False])
    first, second = pa.concat_arrays([equal, no]), pa.concat_arrays([no, equal])
    return pc.invert(pc.or_(first, second))


def _cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
