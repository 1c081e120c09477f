"""How the rows of one state become the rows that are delivered: planned once for each schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct, structs

from tailer.changes import METADATA_FIELDS
from tailer.delta.arrow_types import arrow_type, delta_type, holds_arrow_variant
from tailer.delta.schema import parse_schema
from tailer.delta.snapshot import TableState
from tailer.delta.types import StructField
from tailer.errors import SchemaChanged, meant
from tailer.shape import sql
from tailer.shape.columns import TableColumns
from tailer.shape.expressions import Condition, Expression, Select, Star

_PHYSICAL = "delta.columnMapping.physicalName"


class Input(Struct, frozen=True):
    """A column that an expression needs: its ``name`` there, the column of the rows (None: there is
    none, and it is null), and the type in which it computes (None: its own)."""

    name: str
    column: str | None
    kind: pa.DataType | None = None

    def build_array(self, data: Mapping[str, pa.Array], count: int) -> pa.Array:
        """Return its values for ``count`` rows."""
        if self.column is None:
            return pa.nulls(count, self.kind)
        values = data[self.column]
        if self.kind is None or values.type == self.kind:
            return values
        try:
            return values.cast(self.kind)
        except pa.ArrowInvalid:  # it was replaced by another one of its name
            return values


class Inputs(Struct, frozen=True):
    """The columns that some expressions need."""

    columns: tuple[Input, ...]

    def build_batch(self, data: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
        """Return them for ``count`` rows."""
        arrays, names = (
            [c.build_array(data, count) for c in self.columns],
            [c.name for c in self.columns],
        )
        if not names:  # a table without columns would have no rows
            arrays, names = [pa.nulls(count, pa.int8())], ["none"]
        return pa.RecordBatch.from_arrays(arrays, names=names)


class StatePlan(Struct, frozen=True):
    """The plan of one state.

    ``outputs`` are the columns that are delivered: each a column of the rows, or the number of one
    of the ``expressions``, which have ``types``. ``state`` is what sinks may see. ``inputs`` are
    those of the expressions, ``where`` those of the condition, if it needs any.
    """

    outputs: tuple[tuple[str, str | int], ...]
    expressions: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    inputs: Inputs
    where: Inputs
    state: TableState


class Planner:
    """Plans states for a selection. ``masks`` has how each column is masked, in lower case."""

    def __init__(
        self, select: Select | None, masks: Mapping[str, str], columns: TableColumns
    ) -> None:
        self._select = select or Select((Star(),))
        self._masks = masks
        self._columns = columns

    def plan_state(
        self,
        database: sql.ExpressionDatabase,
        state: TableState,
        where: Condition | None = None,
    ) -> StatePlan:
        """Plan a state. Raises :class:`SchemaChanged` for one that an expression does not fit."""
        document = json.loads(state.metadata.schema_string)
        documents = {field["name"]: field for field in document["fields"]}
        outputs: list[tuple[str, str | int]] = []
        computed: list[Expression] = []
        fields: list[dict[str, Any]] = []
        for name, what in self._list_outputs(state):
            if isinstance(what, StructField):
                outputs.append((name, what.name))
                fields.append(self._pass_on(documents[what.name], name))
            else:
                outputs.append((name, len(computed)))
                fields.append({"name": name})
                computed.append(what)
        names = [name.lower() for name, _ in outputs]
        for reserved in METADATA_FIELDS:
            if reserved.name in names:
                raise SchemaChanged(
                    f"`select` gives a column {reserved.name!r}, and that is a column of every "
                    "change",
                    hint="give it another name",
                )
        for name in names:
            if names.count(name) > 1:
                raise SchemaChanged(
                    f"`select` gives two columns {name!r}", hint="name one of them with AS"
                )
        inputs = self._find_inputs(computed, state, masked=True)
        types = self._complete_fields(database, computed, inputs, fields, state)
        for field in fields:
            if state.mapping != "none":
                field["metadata"].setdefault(_PHYSICAL, field["name"])
        text = json.dumps({**document, "fields": fields}, ensure_ascii=False, separators=(",", ":"))
        same = {name for name, what in outputs if name == what}
        metadata = structs.replace(
            state.metadata,
            schema_string=text,
            partition_columns=tuple(n for n in state.metadata.partition_columns if n in same),
        )
        return StatePlan(
            tuple(outputs),
            tuple(each.sql for each in computed),
            types,
            inputs,
            self.plan_condition(database, where, state),
            structs.replace(state, metadata=metadata, schema=parse_schema(text)),
        )

    def plan_condition(
        self, database: sql.ExpressionDatabase, where: Condition | None, state: TableState
    ) -> Inputs:
        """Return what a condition needs of a state's rows. Raises :class:`SchemaChanged` for one
        that does not fit it."""
        if where is None:
            return Inputs(())
        inputs = self._find_inputs([where], state, masked=False)
        data = {f.name: pa.nulls(1, arrow_type(f.type)) for f in state.schema}
        (found,) = _find_types(database, [where.sql], inputs.build_batch(data, 1), [where.text])
        if found != pa.bool_():
            raise SchemaChanged(
                f"`where` gives {found} and is no condition: {where.text}",
                hint="compare it with something",
            )
        return inputs

    def _list_outputs(self, state: TableState) -> Iterator[tuple[str, StructField | Expression]]:
        for item in self._select.items:
            if isinstance(item, Star):
                yield from self._list_star(item, state)
            elif item.column is None:
                yield item.name, item
            else:
                field = self._columns.find_column(item.column, state)
                if field is not None and not self._is_dropped(field.name):
                    yield (field.name if item.name == item.column else item.name), field

    def _list_star(
        self, star: Star, state: TableState
    ) -> Iterator[tuple[str, StructField | Expression]]:
        replaced = {each.name.lower(): each for each in star.replaced}
        renamed = dict(star.renamed)
        for field in state.schema:
            name = field.name.lower()
            if name not in star.excluded and (name in replaced or not self._is_dropped(name)):
                yield renamed.get(name, field.name), replaced.get(name, field)

    def _is_dropped(self, name: str) -> bool:
        return self._masks.get(name.lower()) == "drop"

    def _pass_on(self, document: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the field of a column that is passed on, perhaps under another name."""
        hashed = self._masks.get(document["name"].lower()) == "hash"
        kind = {"type": "string"} if hashed else {}
        return {**document, **kind, "name": name, "metadata": {**document.get("metadata", {})}}

    def _find_inputs(
        self, expressions: Iterable[Expression | Condition], state: TableState, *, masked: bool
    ) -> Inputs:
        found: dict[str, Input] = {}
        for each in expressions:
            for name in each.columns:
                text = each.text if isinstance(each, Condition) else f"{each.sql} AS {each.name}"
                # DuckDB's names are equal by their ASCII letters.
                found.setdefault(name.lower(), self._find_input(name, text, state, masked=masked))
        return Inputs(tuple(found.values()))

    def _find_input(self, name: str, text: str, state: TableState, *, masked: bool) -> Input:
        field, newest = self._columns.find_column(name, state), self._columns.find_newest_type(name)
        if field is None and newest is None:
            raise SchemaChanged(
                f"there is no column {name!r}{meant(name, state.schema.names)}, which {text!r} "
                "needs",
                hint="it was renamed, dropped or misspelt; there are "
                f"{', '.join(state.schema.names)}",
            )
        kinds = [arrow_type(t) for t in (newest, field.type if field else None) if t is not None]
        if any(map(holds_arrow_variant, kinds)):
            raise SchemaChanged(
                f"{text!r} needs {name!r}, which holds a variant", hint="pass it on as it is"
            )
        if field is None:
            return Input(name, None, kinds[0])
        mask = self._masks.get(field.name.lower()) if masked else None
        if mask == "drop":
            raise SchemaChanged(f"{text!r} needs {name!r}, which `mask` drops")
        # 0.1 as a float is another number as a double.
        widened = len(set(kinds)) > 1 and mask is None and pa.float32() not in kinds
        return Input(name, field.name, kinds[0] if widened else None)

    def _complete_fields(
        self,
        database: sql.ExpressionDatabase,
        computed: list[Expression],
        inputs: Inputs,
        fields: list[dict[str, Any]],
        state: TableState,
    ) -> tuple[pa.DataType, ...]:
        """Complete the fields of the expressions, and return the types of their values."""
        if not computed:
            return ()
        data = {
            f.name: pa.nulls(
                1, pa.string() if self._masks.get(f.name.lower()) == "hash" else arrow_type(f.type)
            )
            for f in state.schema
        }
        texts = [f"{each.sql} AS {each.name}" for each in computed]
        found = _find_types(database, [e.sql for e in computed], inputs.build_batch(data, 1), texts)
        types = []
        waiting = (field for field in fields if "type" not in field)
        for field, kind, text in zip(waiting, found, texts, strict=True):
            try:
                field |= {"type": delta_type(kind), "nullable": True, "metadata": {}}
            except ValueError:
                raise SchemaChanged(
                    f"{text!r} gives {kind}, which Delta does not have",
                    hint="cast it, as in ...::BIGINT",
                ) from None
            (parsed,) = parse_schema(json.dumps({"type": "struct", "fields": [field]})).fields
            types.append(arrow_type(parsed.type))
        return tuple(types)


def _find_types(
    database: sql.ExpressionDatabase, texts: list[str], rows: pa.RecordBatch, shown: list[str]
) -> list[pa.DataType]:
    """Return the types of expressions over these columns, whose one row is null: what is wrong
    with a constant shows."""
    try:
        return [array.type for array in database.compute_values(rows, texts)]
    except sql.NotComputed as e:
        if len(texts) > 1:  # which one?
            for text, one in zip(texts, shown, strict=True):
                _find_types(database, [text], rows, [one])
        raise SchemaChanged(f"{shown[0]!r} can't be computed: {e}") from None
