"""The operations of random histories: what people do to a table, each by a seed of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.property.values import SCHEMA, WIDER, row_of, value_of
from tests.support.builders import CLASSIC_KINDS, V2_KINDS
from tests.tables.model import Column, TableVersion, columns_of
from tests.tables.writer import TableWriter

_PROPERTIES = {
    "deletion_vectors": ("delta.enableDeletionVectors", "true"),
    "row_tracking": ("delta.enableRowTracking", "true"),
    "v2_checkpoints": ("delta.checkpointPolicy", "v2"),
    "in_commit_timestamps": ("delta.enableInCommitTimestamps", "true"),
}
#: Spark reads old versions only where it may take their files for kept.
_KEPT = {"delta.deletedFileRetentionDuration": "interval 5000 weeks"}
FEATURES = (
    "cdf",
    *_PROPERTIES,
    "name_mapping",
    "id_mapping",
    "partitioned",
    "type_widening",
)


@dataclass(frozen=True)
class Setting:
    """With what a table is created: names of FEATURES, except type widening."""

    features: frozenset[str]
    seed: int


def created(folder: Path, setting: Setting) -> TableWriter:
    """The empty table of a setting."""
    wanted = setting.features
    partition_by = [["p"], ["q"], ["q", "p"]][setting.seed % 3] if "partitioned" in wanted else []
    modes = {"id_mapping": "id", "name_mapping": "name"}
    return TableWriter(
        folder,
        SCHEMA,
        partition_by=partition_by,
        mapping=next((mode for name, mode in modes.items() if name in wanted), "none"),
        cdf="cdf" in wanted,
        properties=_KEPT | dict(_PROPERTIES[name] for name in sorted(wanted & _PROPERTIES.keys())),
        seed=setting.seed,
        lean_removes=setting.seed % 4 == 1,
    )


def features_of(version: TableVersion) -> set[str]:
    """Those of FEATURES that are in force at a version."""
    found = {
        name for name, (key, value) in _PROPERTIES.items() if version.properties.get(key) == value
    }
    if version.on("delta.enableChangeDataFeed"):
        found.add("cdf")
    if version.mapping != "none":
        found.add(f"{version.mapping}_mapping")
    if version.partition_by:
        found.add("partitioned")
    if any(f.widened for c in version.columns for f in (c, *c.fields)):
        found.add("type_widening")
    return found


def ensure(writer: TableWriter, feature: str, rng: random.Random) -> None:
    """Bring a feature (back) into force, where an operation ended it."""
    if feature in features_of(writer.present):
        return
    ways: dict[str, Callable[[], object]] = {
        "cdf": lambda: writer.set_cdf(on=True),
        "deletion_vectors": lambda: writer.set_deletion_vectors(on=True),
        "row_tracking": lambda: writer.set_row_tracking(on=True),
        "name_mapping": writer.set_column_mapping,
        "in_commit_timestamps": writer.set_in_commit_timestamps,
        "partitioned": lambda: writer.overwrite([], schema=SCHEMA, partition_by=["p"]),
        "type_widening": lambda: _widen_column(writer, rng),
    }
    ways[feature]()


# Rows


def _rows(writer: TableWriter, rng: random.Random, most: int = 4) -> list[dict[str, Any]]:
    """Some rows; a third of them are equal to one that is there already, or to the one before."""
    columns, there = writer.present.columns, writer.present.rows()
    found: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, most)):
        equal = found + there
        again = equal and rng.random() < 0.33
        found.append(rng.choice(equal) if again else row_of(columns, rng))
    return found


def _filled(writer: TableWriter, rng: random.Random) -> None:
    """Have rows to work on, and not too many."""
    rows = sum(1 for _ in writer.present.live())
    if rows < 2:
        writer.append(_rows(writer, rng, 6), files=2)
    elif rows > 14:
        writer.delete(lambda _: rng.random() < 0.6)


def _some(rng: random.Random, share: float = 0.35) -> Callable[[dict[str, Any]], bool]:
    """Holds for some rows, of two equal ones maybe for one only; for the first one certainly."""
    first = [True]

    def holds(_: dict[str, Any]) -> bool:
        was, first[0] = first[0], False
        return was or rng.random() < share

    return holds


def _edited(
    columns: tuple[Column, ...], rng: random.Random
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Sets one column, or none at all: an update whose images are equal."""

    def edit(row: dict[str, Any]) -> dict[str, Any]:
        column = rng.choice(columns)
        value = row_of((column,), rng)[column.name]
        return {**row, column.name: value} if rng.random() < 0.8 else dict(row)

    return edit


# Operations


def _append(writer: TableWriter, rng: random.Random) -> None:
    writer.append(_rows(writer, rng), files=rng.choice([1, 2]))


def _new_column(writer: TableWriter, rng: random.Random) -> pa.Schema:
    taken = {c.name for c in writer.present.columns}
    free = [n for n in ("a", "n", "s", "m", "t") if n not in taken]
    name = free[0] if free and rng.random() < 0.7 else f"c{writer.present.version}"
    types = [pa.int32(), pa.string(), pa.float64(), pa.struct([("x", pa.int16())])]
    return pa.schema([(name, rng.choice(types))])


def _append_evolving(writer: TableWriter, rng: random.Random) -> None:
    schema = _new_column(writer, rng)
    name, value = schema.names[0], [None, _sample(schema, rng)]
    rows = [{**row, name: rng.choice(value)} for row in _rows(writer, rng)]
    writer.append(rows, evolve=schema)


def _sample(schema: pa.Schema, rng: random.Random) -> Any:
    data_type = schema.field(0).type
    return {"x": 1} if pa.types.is_struct(data_type) else value_of(data_type, rng)


def _append_and_compact(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    writer.append(_rows(writer, rng), compact=True)


def _append_and_renew(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    writer.append(_rows(writer, rng), renew=True)


def _delete(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    writer.delete(_some(rng), preserve=rng.random() < 0.8)


def _delete_all(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    writer.delete(lambda _: True)


def _update(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    edit = _edited(writer.present.columns, rng)
    writer.update(_some(rng), edit, preserve=rng.random() < 0.8)


def _merge(writer: TableWriter, rng: random.Random, evolve: pa.Schema | None = None) -> None:
    _filled(writer, rng)
    edit = _edited(writer.present.columns, rng)
    fates: list[Callable[[dict[str, Any]], dict[str, Any] | None]] = [
        lambda row: row, lambda row: row, edit, lambda _: None,
    ]  # fmt: skip
    turns = chain([edit], iter(lambda: rng.choice(fates), None))

    def decide(row: dict[str, Any]) -> dict[str, Any] | None:
        return next(turns)(row)

    writer.change(
        decide,
        _rows(writer, rng) if rng.random() < 0.7 else (),
        preserve=rng.random() < 0.8,
        evolve=evolve,
    )


def _merge_evolving(writer: TableWriter, rng: random.Random) -> None:
    _merge(writer, rng, _new_column(writer, rng))


def _overwrite(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    rows = writer.present.rows() if rng.random() < 0.5 else []
    writer.overwrite([*rows[1:], *_rows(writer, rng)])


def _overwrite_schema(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    by = {c.physical: c.name for c in writer.present.columns}
    partitioned = [by[p] for p in writer.present.partition_by]
    columns = list(SCHEMA)
    rng.shuffle(columns)
    kept = [f for f in columns if f.name in ("p", "q", "id") or rng.random() < 0.7]
    schema = pa.schema([f if f.name != "s" else pa.field("s", pa.int64()) for f in kept])
    partition_by = rng.choice([["p"], ["q"]]) if partitioned else []
    rows = [row_of(columns_of(schema), rng) for _ in range(rng.randrange(5))]
    writer.overwrite([*rows, {"id": 7, "q": 1}], schema=schema, partition_by=partition_by)


def _optimise(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    writer.optimise(preserve=rng.random() < 0.8)


def _purge(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    writer.purge()


def _renew(writer: TableWriter, rng: random.Random) -> None:
    _filled(writer, rng)
    writer.renew()


def oldest(writer: TableWriter) -> int:
    """The oldest version that can be built."""
    if writer.builder.commit_path(0).exists():
        return 0
    names = (f.name for f in writer.builder.log.glob("*.checkpoint.*"))
    return min(int(name[:20]) for name in names)


def _restore(writer: TableWriter, rng: random.Random) -> None:
    writer.restore(rng.randint(max(oldest(writer), writer.present.version - 5),
                               writer.present.version))  # fmt: skip


def _nested(columns: tuple[Column, ...]) -> list[tuple[Column, tuple[str, ...]]]:
    """All columns and fields, with their paths."""
    found: list[tuple[Column, tuple[str, ...]]] = []
    for c in columns:
        found.append((c, (c.name,)))
        found += [(f, (c.name, f.name)) for f in c.fields]
    return found


def _add_column(writer: TableWriter, rng: random.Random) -> None:
    structs = [c.name for c in writer.present.columns if c.fields]
    field = _new_column(writer, rng).field(0)
    if structs and rng.random() < 0.4:
        writer.add_column(f"z{writer.present.version}", pa.int32(), rng.choice(structs))
    else:
        writer.add_column(field.name, field.type)


def _rename_column(writer: TableWriter, rng: random.Random) -> None:
    if writer.present.mapping == "none":
        writer.set_column_mapping()
    _, path = rng.choice(_nested(writer.present.columns))
    writer.rename_column(f"r{writer.present.version}", *path)


def _drop_column(writer: TableWriter, rng: random.Random) -> None:
    if writer.present.mapping == "none":
        writer.set_column_mapping()
    by = writer.present.partition_by
    tops = [c for c in writer.present.columns if c.physical not in by]
    free = [path for c, path in _nested(tuple(tops)) if len(path) == 1 or not _alone(tops, path)]
    if len(free) < 3:
        writer.add_column(f"c{writer.present.version}", pa.int32())
        free = [(writer.present.columns[-1].name,)]
    writer.drop_column(*rng.choice(free))


def _alone(columns: list[Column], path: tuple[str, ...]) -> bool:
    """Whether it is its struct's only field."""
    return any(len(c.fields) == 1 for c in columns if c.name == path[0])


def _widen_column(writer: TableWriter, rng: random.Random) -> None:
    ways = [(c, path) for c, path in _nested(writer.present.columns) if _wider(writer, c)]
    if not ways:
        writer.add_column(f"w{writer.present.version}", pa.int16())
        ways = [(c := writer.present.columns[-1], (c.name,))]
    column, path = rng.choice(ways)
    writer.widen_column(rng.choice(_wider(writer, column)), *path)


def _wider(writer: TableWriter, column: Column) -> list[Any]:
    found = [] if column.fields else WIDER.get(column.type, [])
    if column.physical in writer.present.partition_by:  # kept simple: integers as texts stay so
        return [t for t in found if pa.types.is_integer(t)]
    return found


def _checkpoint(writer: TableWriter, rng: random.Random) -> None:
    v2 = "v2Checkpoint" in writer.present.features
    writer.checkpoint(rng.choice([*CLASSIC_KINDS, *(V2_KINDS * 2 if v2 else ())]))


def _compact_log(writer: TableWriter, rng: random.Random) -> None:
    if writer.present.version - oldest(writer) < 3:
        _append(writer, rng)
        _append(writer, rng)
    first = rng.randint(oldest(writer) + 1, writer.present.version - 1)
    writer.compact_log(first)


def _clean_log(writer: TableWriter, rng: random.Random) -> None:
    _checkpoint(writer, rng)
    if rng.random() < 0.6:
        _append(writer, rng)
    writer.clean_log()


OPERATIONS: dict[str, Callable[[TableWriter, random.Random], object]] = {
    "append": _append,
    "append_evolving": _append_evolving,
    "append_and_compact": _append_and_compact,
    "append_and_renew": _append_and_renew,
    "delete": _delete,
    "delete_all": _delete_all,
    "update": _update,
    "merge": _merge,
    "merge_evolving": _merge_evolving,
    "overwrite": _overwrite,
    "overwrite_schema": _overwrite_schema,
    "optimise": _optimise,
    "purge": _purge,
    "renew": _renew,
    "restore": _restore,
    "add_column": _add_column,
    "rename_column": _rename_column,
    "drop_column": _drop_column,
    "widen_column": _widen_column,
    "cdf_on": lambda writer, _: writer.set_cdf(on=True),
    "cdf_off": lambda writer, _: writer.set_cdf(on=False),
    "deletion_vectors_on": lambda writer, _: writer.set_deletion_vectors(on=True),
    "deletion_vectors_off": lambda writer, _: writer.set_deletion_vectors(on=False),
    "row_tracking_on": lambda writer, _: writer.set_row_tracking(on=True),
    "row_tracking_off": lambda writer, _: writer.set_row_tracking(on=False),
    "column_mapping_on": lambda writer, _: writer.set_column_mapping(),
    "in_commit_timestamps_on": lambda writer, _: writer.set_in_commit_timestamps(),
    "checkpoint": _checkpoint,
    "compact_log": _compact_log,
    "clean_log": _clean_log,
}
