"""The schema of a query, and whether it has what the versions have that the query reads.

A query's rows have one schema: of a batch, that of its last version; of a stream, the table's as it
starts. An older version may have columns that are not in it, because they were dropped or
overwritten, and a younger one may have others. What that means depends on the query:

| | a stream, ``fail`` | a batch, ``fail`` | ``cast`` |
| --- | --- | --- | --- |
| the query lacks columns of the version | refused | without them | without them |
| it lacks all of them | refused | refused | null |
| a column has a type that can't be read as the query's | refused | refused | refused |
| the version is younger, and has another schema | refused | refused | cast |

The rows that leave in a version that changes the schema have the schema before it. No query has
both, so these are refused only where nothing would be left of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from tailer.changes import ChangeFile, Offset
from tailer.decode.naming import Removal, find_file_schema
from tailer.delta.arrow_types import arrow_schema, arrow_type
from tailer.delta.schema import ArrayType, DataType, MapType, StructField, StructType
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptRow, SchemaChanged
from tailer.log.follow import FollowOptions, follow_commits
from tailer.log.table import TableLog
from tailer.plan.mapping_removals import KnownRemovals
from tailer.spark.options import QueryTarget
from tailer.spark.source.planned_version import Planned


@dataclass(slots=True)
class _Difference:
    """What a query's schema lacks of a version's: columns, and types that it can't read."""

    lost: list[str] = field(default_factory=list)
    retyped: list[str] = field(default_factory=list)
    kept: bool = False


class QuerySchema:
    """Compares the versions of one query with its schema, ``target``: a state with its version.

    ``cast`` is the query's ``onSchemaChange``; ``columns`` are those it selects.
    """

    def __init__(
        self,
        log: TableLog,
        target: QueryTarget,
        *,
        stream: bool,
        cast: bool,
        columns: Sequence[str] | None,
    ) -> None:
        self._log = log
        self._target, self._version = target
        self._stream = stream
        self._cast = cast
        self._columns = columns
        self._removals = KnownRemovals(log, target)
        #: By the identity of a state, which is kept so that nothing else gets it.
        self._known: dict[int, tuple[TableState, _Difference]] = {}

    async def find_removals(self, first: int, planned: Planned) -> tuple[Removal, ...]:
        """Return the column mapping removals between the versions from ``first`` up to the planned
        one, and the query's schema."""
        return await self._removals.find_removals(first, planned.version, planned.state)

    async def check(self, first: int, planned: Planned) -> None:
        """Raise :class:`SchemaChanged` if the query can't have the rows of a planned version.

        ``first`` is the version at which reading began.
        """
        if not self._cast and self._changes_schema(planned):
            raise self._make_changed_error(planned)
        for file in planned.all_files():
            difference = await self._find_difference(first, planned, file)
            if not (difference.lost or difference.retyped):
                continue
            own = _has_same_schema(file.state, planned.state)
            if difference.retyped:
                raise await self._make_refusal(planned, difference, own=own)
            if self._cast or (difference.kept and not (self._stream and own)):
                continue
            if not difference.kept or self._columns is None:  # those that the query names, it has
                raise await self._make_refusal(planned, difference, own=own)

    def _changes_schema(self, planned: Planned) -> bool:
        if planned.version <= self._version or planned.state is self._target:
            return False
        return not arrow_schema(planned.state.schema).equals(arrow_schema(self._target.schema))

    def _make_changed_error(self, planned: Planned) -> SchemaChanged:
        was, now = set(self._target.schema.names), set(planned.state.schema.names)
        changes = [
            f"{what} {', '.join(sorted(names))}"
            for what, names in (("adds", now - was), ("drops", was - now))
            if names
        ]
        again = "restart the query" if self._stream else "make the frame again"
        return SchemaChanged(
            "the version changes the table's schema: it "
            f"{' and '.join(changes) or 'changes a type'}",
            table=self._log.store.root,
            version=planned.version,
            hint=f"{again} to take up the new schema, or set onSchemaChange to cast to keep the "
            "columns that it has",
        )

    async def _find_difference(self, first: int, planned: Planned, file: ChangeFile) -> _Difference:
        state = file.state
        cached = self._known.get(id(state))
        if cached is None:
            difference = _Difference()
            if not (
                _has_same_schema(state, self._target) and state.mapping == self._target.mapping
            ):
                removals = await self.find_removals(first, planned)
                target, mapping = find_file_schema(self._target, self._version, file, removals)
                difference = _compare_schemas(state, target, mapping, self._columns)
            cached = self._known[id(state)] = state, difference
        return cached[1]

    async def _make_refusal(
        self, planned: Planned, difference: _Difference, *, own: bool
    ) -> SchemaChanged:
        """Return the error for a version, or, if ``own`` is false, for the rows that leave in
        it."""
        rows = "the version has" if own else "the rows removed by this version have"
        lost = ", ".join(difference.lost)
        if difference.retyped:
            what = f"columns of other types than the query ({', '.join(difference.retyped)})"
        elif difference.kept:
            what = f"columns that the query lacks ({lost})"
        else:
            what = f"none of the query's columns, but {lost}"
        return SchemaChanged(
            f"{rows} {what}: the query's schema is that of version {self._version}",
            table=self._log.store.root,
            version=planned.version,
            hint=await self._make_hint(planned, own=own, castable=not difference.retyped),
        )

    async def _make_hint(self, planned: Planned, *, own: bool, castable: bool) -> str:
        cast = ", or set onSchemaChange to cast to do without them" if castable else ""
        if not own and self._stream:
            return f"start a new query with a new checkpoint{cast}"
        if not own:
            return f"end before this version or start after it{cast}"
        last = await self._last_alike(planned)
        if self._stream:
            return (
                f"to have them, run the query once with endingVersion {last} and "
                f"Trigger.AvailableNow, and then without it{cast}"
            )
        return f"to have them, read up to endingVersion {last} by itself{cast}"

    async def _last_alike(self, planned: Planned) -> int:
        """Return the last version up to which the table has the schema of a planned one."""
        last, options = planned.version, FollowOptions(same_table=False)
        following = follow_commits(self._log, Offset(last + 1), self._version, options)
        async with aclosing(following) as commits:
            async for commit in commits:
                if not _has_same_schema(commit.after, planned.state):
                    break
                last = commit.version
        return last


def _has_same_schema(one: TableState, other: TableState) -> bool:
    return one is other or one.metadata.schema_string == other.metadata.schema_string


def _compare_schemas(
    written: TableState, target: StructType, mapping: str, columns: Sequence[str] | None
) -> _Difference:
    found = _Difference(kept=not written.schema.fields)
    mapped = written.mapping != "none"
    for own, other in _pair_fields(written.schema, target, mapping, mapped=mapped):
        if other is None:
            if _describe_type(own.type) != "void":
                found.lost.append(own.name)
            continue
        found.kept = True
        if columns is None or other.name in columns:
            _compare_types(own.name, own.type, other.type, mapping, found, mapped=mapped)
    return found


def _pair_fields(
    written: StructType, target: StructType, mapping: str, *, mapped: bool
) -> Iterator[tuple[StructField, StructField | None]]:
    """Yield each field of a file with the target's field that is read from it, if there is one.

    The target has the names that its fields have in the file.
    """
    by_id = {f.field_id: f for f in target if f.field_id is not None}
    names = {(f.name if mapping == "none" else f.physical_name).lower(): f for f in target}
    for own in written:
        if mapping == "id":
            yield own, None if own.field_id is None else by_id.get(own.field_id)
        else:
            yield own, names.get((own.physical_name if mapped else own.name).lower())


def _compare_types(
    name: str,
    own: DataType,
    other: DataType,
    mapping: str,
    difference: _Difference,
    *,
    mapped: bool,
) -> None:
    """Compare the types of one column, and the fields within them."""
    match own, other:
        case StructType(), StructType():
            for inner, read in _pair_fields(own, other, mapping, mapped=mapped):
                inside = f"{name}.{inner.name}"
                if read is None:
                    difference.lost.append(inside)
                else:
                    _compare_types(
                        inside, inner.type, read.type, mapping, difference, mapped=mapped
                    )
        case ArrayType(), ArrayType():
            _compare_types(name, own.element, other.element, mapping, difference, mapped=mapped)
        case MapType(), MapType():
            _compare_types(name, own.key, other.key, mapping, difference, mapped=mapped)
            _compare_types(name, own.value, other.value, mapping, difference, mapped=mapped)
        case _ if own != other and not _is_readable_as(own, other, mapping):
            difference.retyped.append(
                f"{name} is {_describe_type(own)} and not {_describe_type(other)}"
            )


def _is_readable_as(own: DataType, other: DataType, mapping: str) -> bool:
    from tailer.decode.project import make_converter  # on demand: few columns change their type

    try:
        make_converter(arrow_type(own), other, mapping, "")
    except CorruptRow:
        return False
    return True


def _describe_type(kind: DataType) -> str:
    match kind:
        case StructType():
            return "a struct"
        case ArrayType():
            return "an array"
        case MapType():
            return "a map"
    return kind.name
