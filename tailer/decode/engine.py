"""The out-of-core engine behind the comparison of rows: DuckDB, and the few queries it is asked.

Rows come in as a stream of Arrow batches and are grouped by value. Memory stays below
``memory_bytes_max``; beyond that the engine spills into ``spill_folder``. NaN equals NaN, -0.0
equals 0.0, null equals null, maps have no order. Columns are named by number, so that no name of a
table ever enters a query.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from tailer.decode.share import Share
from tailer.errors import CorruptLog, UnsupportedTable

__all__ = ["COMING", "LEAVING", "MAP_DEPTH_MAX", "REF_FIELDS", "DiffOptions", "Engine", "RowStream"]

LEAVING, COMING = 0, 1

#: How deep maps may be nested, counting the lists around them: what the engine needs to prepare a
#: query doubles with every level, and is a gigabyte at 15.
MAP_DEPTH_MAX = 8

#: Tells which of a row's columns are null, for as many as there are bits.
_NULLS = pa.field("#nulls", pa.int64())
_NULLS_MAX = 62
_NARROW_DIGITS = 18
#: Begins the second hash: only what is mixed in before a value changes how that one is mixed.
_SALT = "17"

#: What every row of a stream begins with: its side, and its reference on that side.
REF_FIELDS = (pa.field("#side", pa.int8()), pa.field("#ref", pa.int64()))


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """Bounds of the comparison. ``memory_bytes_max`` is the engine's; ``spill_folder`` None: the
    system's temporary folder. ``keep_bytes_max`` bounds the decoded rows that are kept for output,
    so that a file need not be read a second time. ``share`` None: everything is asked for."""

    memory_bytes_max: int = 512 * 1024 * 1024
    spill_folder: str | None = None
    threads: int = 2
    keep_bytes_max: int = 96 * 1024 * 1024
    share: Share | None = None


@dataclass(slots=True)
class RowStream:
    """A stream of rows for the engine, which remembers the error that ended it.

    The engine would only say that its input failed.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    error: BaseException | None = None

    def key(self) -> str:
        """SQL for all values of a row, such that equal values are equal there.

        Raises :class:`UnsupportedTable` for maps that are nested too deep to be compared.
        """
        self._check_depth()
        return ", ".join(_canonical(f.name, f.type) for f in list(self.schema)[len(REF_FIELDS) :])

    def _check_depth(self) -> None:
        if any(_map_depth(f.type) > MAP_DEPTH_MAX for f in self.schema):
            raise UnsupportedTable(
                f"its rows can't be compared: maps are nested more than {MAP_DEPTH_MAX} deep",
                hint="follow it with its change data feed on",
            )

    def bucket(self, share: Share | None, by: Sequence[int]) -> str:
        """SQL for whether a row is in the share: equal values of the columns with the numbers
        ``by`` (none: of all columns) always go to the same one."""
        if share is None:
            return "true"
        columns = list(self.schema)[len(REF_FIELDS) :]
        chosen = [columns[number] for number in by] or columns
        values = ", ".join(_canonical(f.name, f.type) for f in chosen)
        return f"hash({values}) % {share.of} = {share.number}"

    def fingerprint(self) -> dict[str, str]:
        """SQL, by name, for what stands for all values of a row: 128 bits of hash, and values.

        The engine's hash has 64 bits, and salting it gives no further ones, since it mixes hashes
        of single values: two strings of one hash are alike under every salt. So the second hash
        takes strings with a prefix. An integer has a hash of its own, but the one whose hash is
        that of NULL is only told by which columns are null. Halves of wide decimals may change
        places unseen, and nested values hide all of this; those are compared by value.
        """
        self._check_depth()
        narrow = self._narrow()
        first, second, exact = [f'"{_NULLS.name}"'], [_SALT, f'"{_NULLS.name}"'], []
        for field in list(self.schema)[len(REF_FIELDS) :]:
            value = _canonical(field.name, field.type)
            if field not in narrow:
                exact.append(value)
                continue
            first.append(value)
            if _is_text(field.type):
                prefix = "'fingerp~'" if pa.types.is_string(field.type) else "'fingerp~'::BLOB"
                value = f"{prefix} || {value}"
            second.append(value)
        hashes = {"h1": f"hash({', '.join(first)})", "h2": f"hash({', '.join(second)})"}
        return hashes | {f"v{i}": sql for i, sql in enumerate(exact)}

    def _narrow(self) -> list[pa.Field]:
        """The columns that 128 bits of hash may stand for."""
        columns = list(self.schema)[len(REF_FIELDS) :]
        return [f for f in columns if _is_narrow(f.type)][:_NULLS_MAX]

    def reader(self) -> pa.RecordBatchReader:
        """The stream as the engine takes it, once; with a column that tells which are null."""
        schema = self.schema.append(_NULLS)
        numbers = [self.schema.names.index(f.name) for f in self._narrow()]

        def guarded() -> Iterator[pa.RecordBatch]:
            try:
                for batch in self.batches:
                    nulls = _null_mask([batch.column(i) for i in numbers], batch.num_rows)
                    yield pa.RecordBatch.from_arrays([*batch.columns, nulls], schema=schema)
            except BaseException as e:
                self.error = e
                raise

        return pa.RecordBatchReader.from_batches(schema, guarded())


class Engine:
    """The few queries that the comparison is made of, on one private DuckDB instance."""

    def __init__(self, options: DiffOptions) -> None:
        import duckdb

        self._spill = tempfile.TemporaryDirectory(prefix="tailer-diff-", dir=options.spill_folder)
        self._connection: Any = duckdb.connect(
            config={
                "threads": options.threads,
                "memory_limit": f"{options.memory_bytes_max // 1_000_000}MB",
                "temp_directory": self._spill.name,
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._spill.cleanup()

    @contextmanager
    def _over(self, rows: RowStream) -> Iterator[None]:
        """With the stream as the table ``rows``; an error of the stream is raised as it is."""
        import duckdb

        self._connection.register("rows", rows.reader())
        try:
            yield
        except duckdb.Error as e:
            if rows.error is not None:
                raise rows.error from None
            first_line = str(e).splitlines()[0]
            raise CorruptLog(f"the rows can't be compared ({first_line})") from e
        finally:
            self._connection.unregister("rows")

    def _query(self, rows: RowStream, sql: str) -> pa.Table:
        with self._over(rows):
            return self._connection.sql(sql).to_arrow_table()

    def unmatched(
        self, rows: Callable[[], RowStream], share: Share | None = None, by: Sequence[int] = ()
    ) -> tuple[pa.Array, pa.Array]:
        """The references of the rows that leave, and of those that come, without a partner.

        One pass finds those that have no equal row at all; of the others that don't balance, only
        those are looked at again. Of a share only its rows, see :meth:`RowStream.bucket`.
        """
        stream = rows()
        columns = stream.fingerprint()
        mine = stream.bucket(share, by)
        found = self._query(
            stream,
            f'SELECT h1, h2, count(*) AS n, count(*) FILTER ("#side" = {COMING}) AS n_came, '
            f'min("#ref") AS low FROM {_selected(columns, mine)} GROUP BY {", ".join(columns)} '
            "HAVING n <> 2 * n_came",
        )
        alone, comes = pc.equal(found["n"], 1), pc.equal(found["n_came"], 1)
        left = found.filter(pc.and_not(alone, comes))["low"].combine_chunks()
        came = found.filter(pc.and_(alone, comes))["low"].combine_chunks()
        several = found.filter(pc.invert(alone)).select(["h1", "h2"])
        if several.num_rows:
            more_left, more_came = self._several(rows(), columns, mine, several)
            left, came = pa.concat_arrays([left, more_left]), pa.concat_arrays([came, more_came])
        return left, came

    def _several(
        self, rows: RowStream, columns: dict[str, str], mine: str, wanted: pa.Table
    ) -> tuple[pa.Array, pa.Array]:
        """As :meth:`unmatched`, for those of the groups with these hashes that don't balance."""
        self._connection.register("wanted", wanted)
        refs = 'list("#ref" ORDER BY "#ref") FILTER ("#side" = {})'
        found = self._query(
            rows,
            f"SELECT {refs.format(LEAVING)} AS l, {refs.format(COMING)} AS c "
            f"FROM {_selected(columns, mine)} SEMI JOIN wanted USING (h1, h2) "
            f"GROUP BY {', '.join(columns)}",
        )
        self._connection.unregister("wanted")
        return (
            _first_of_surplus(found["l"], found["c"]),
            _first_of_surplus(found["c"], found["l"]),
        )

    def changed_ids(self, rows: Callable[[], RowStream]) -> pa.Table | None:
        """Row id and both references (null: not on that side) of all rows that are not kept."""
        on = '{} FILTER ("#side" = {})'
        version = "min(row_commit_version)"
        columns = {
            "left": on.format('min("#ref")', LEAVING),
            "came": on.format('min("#ref")', COMING),
            "v_left": on.format(version, LEAVING),
            "v_came": on.format(version, COMING),
            "n_left": on.format("count(*)", LEAVING),
            "n_came": on.format("count(*)", COMING),
        }
        selected = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
        found = self._query(
            rows(),
            f"SELECT row_id, {selected} FROM rows GROUP BY row_id "
            "HAVING v_left IS DISTINCT FROM v_came OR n_left > 1 OR n_came > 1",
        )
        if any((pc.max(found[n]).as_py() or 0) > 1 for n in ("n_left", "n_came")):
            return None
        return found.select(["row_id", "left", "came"]).combine_chunks()

    def unbalanced(self, rows: RowStream, limit: int) -> tuple[int, int, pa.Table]:
        """Where the signs of equal rows (their side: -1 or 1) don't add up to zero.

        Returns how many rows there are too few and too many, and up to ``limit`` examples: the
        values, then ``surplus``.
        """
        names = [f.name for f in list(rows.schema)[len(REF_FIELDS) :]]
        values = ", ".join(f"any_value({name}) AS {name}" for name in names)
        with self._over(rows):
            self._connection.execute(
                f'CREATE TEMP TABLE unbalanced AS SELECT {values}, sum("#side")::BIGINT AS surplus '
                f"FROM rows GROUP BY {rows.key()} HAVING surplus <> 0"
            )
        totals = self._connection.sql(
            "SELECT coalesce(sum(-surplus) FILTER (surplus < 0), 0)::BIGINT, "
            "coalesce(sum(surplus) FILTER (surplus > 0), 0)::BIGINT FROM unbalanced"
        ).fetchall()[0]
        examples = self._connection.sql(
            f"SELECT * FROM unbalanced ORDER BY ALL LIMIT {limit}"
        ).to_arrow_table()
        return totals[0], totals[1], examples

    def equal_images(self, rows: Callable[[], RowStream], updated: pa.Table) -> pa.Array:
        """The ids of the updated rows whose two images are equal."""
        pairs = pa.table(
            {
                "#side": pa.concat_arrays(
                    [
                        pa.repeat(pa.scalar(side, pa.int8()), updated.num_rows)
                        for side in (LEAVING, COMING)
                    ]
                ),
                "#ref": pa.chunked_array([*updated["left"].chunks, *updated["came"].chunks]),
                "row_id": pa.chunked_array([*updated["row_id"].chunks] * 2),
            }
        )
        images = rows()
        columns = images.fingerprint()
        self._connection.register("pairs", pairs)
        found = self._query(
            images,
            f'SELECT row_id FROM {_selected(columns)} JOIN pairs USING ("#side", "#ref") '
            f"GROUP BY row_id, {', '.join(columns)} HAVING count(*) = 2",
        )
        self._connection.unregister("pairs")
        return found["row_id"].combine_chunks()

    def find_partners(self, rows: RowStream) -> None:
        """Pair the rows of equal values, where there is one on each side and no other, for
        :meth:`partners` to list."""
        left, came = (f'min("#ref") FILTER ("#side" = {side})' for side in (LEAVING, COMING))
        with self._over(rows):
            self._connection.execute(
                f"CREATE TEMP TABLE partners AS SELECT {left} AS l, {came} AS c FROM rows "
                f"GROUP BY {rows.key()} HAVING count(*) = 2 AND l IS NOT NULL AND c IS NOT NULL"
            )

    def partners(self, order: Literal["l", "c"]) -> Iterator[pa.RecordBatch]:
        """The references of partners: ``l`` of the one that leaves, ``c`` of the one that comes,
        sorted by one of them, in batches. Only one such iteration may be going on."""
        found = self._connection.sql(f"SELECT l, c FROM partners ORDER BY {order}")
        yield from pa.RecordBatchReader.from_stream(found)


def _selected(columns: dict[str, str], condition: str = "true") -> str:
    """The rows that meet the condition, with these columns, worked out once for each row."""
    listed = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    return f'(SELECT "#side", "#ref", {listed} FROM rows WHERE {condition})'


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _is_narrow(data_type: pa.DataType) -> bool:
    """Whether the engine keeps a value in 64 bits, or as bytes."""
    types = pa.types
    if types.is_decimal(data_type):
        return bool(data_type.precision <= _NARROW_DIGITS)
    return bool(types.is_primitive(data_type) or _is_text(data_type))


def _null_mask(columns: list[pa.Array], count: int) -> pa.Int64Array:
    mask = pa.repeat(pa.scalar(0, pa.int64()), count)
    for i, column in enumerate(columns):
        if column.null_count:
            bit = pa.scalar(1 << i, pa.int64())
            mask = pc.add(mask, pc.multiply(column.is_null().cast(pa.int64()), bit))
    return mask


def _first_of_surplus(mine: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    """Of each list as many first elements as it is longer than the other one."""
    mine, other = mine.combine_chunks(), other.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(mine), 0)
    surplus = pc.subtract(lengths, pc.fill_null(pc.list_value_length(other), 0))
    groups = pc.list_parent_indices(mine)
    flat = pc.list_flatten(mine)
    starts = pc.subtract(pc.cumulative_sum(lengths), lengths)
    rank = pc.subtract(pa.arange(0, len(flat)), starts.take(groups))
    return flat.filter(pc.less(rank, surplus.take(groups)))


def _canonical(name: str, data_type: pa.DataType) -> str:
    """SQL for a value such that equal values are equal there: maps have no order."""
    types = pa.types
    if types.is_map(data_type):
        key = _canonical("e.key", data_type.key_type)
        value = _canonical("e.value", data_type.item_type)
        entry = f"struct_pack(key := {key}, value := {value})"
        return f"list_sort(list_transform(map_entries({name}), lambda e: {entry}))"
    if types.is_struct(data_type) and _has_map(data_type):
        parts = ", ".join(
            f"f{i} := {_canonical(_member(name, f.name), f.type)}" for i, f in enumerate(data_type)
        )
        return f"CASE WHEN {name} IS NULL THEN NULL ELSE struct_pack({parts}) END"
    if types.is_list(data_type) and _has_map(data_type):
        element = _canonical("x", data_type.value_type)
        return f"list_transform({name}, lambda x: {element})"
    return name


def _member(name: str, field_name: str) -> str:
    quoted = field_name.replace('"', '""')
    return f'{name}."{quoted}"'


def _map_depth(data_type: pa.DataType) -> int:
    """How many maps and lists lie around each other, down to the innermost map."""
    if not _has_map(data_type):
        return 0
    inside = max(_map_depth(data_type.field(i).type) for i in range(data_type.num_fields))
    return inside + (not pa.types.is_struct(data_type))


def _has_map(data_type: pa.DataType) -> bool:
    if pa.types.is_map(data_type):
        return True
    return any(
        _has_map(data_type.field(i).type) for i in range(getattr(data_type, "num_fields", 0))
    )
