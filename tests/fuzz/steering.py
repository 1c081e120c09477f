"""The steps of a history that change what steers the table: columns, properties, features."""

from __future__ import annotations

from dataclasses import replace

from tests.fuzz.commits import (
    cdc_files,
    is_tracking,
    new_files,
    nothing,
    remove,
    rewritten,
    some_files,
)
from tests.fuzz.model import State
from tests.fuzz.table import Table
from tests.fuzz.values import Column, Struct, random_type, wider

_PREFIX = "delta.rowTracking.materializedRow"


def create(table: Table) -> None:
    """Version 0, with the features that the history wants from the start."""
    rng, wanted = table.rng, table.wanted
    features, properties = {"appendOnly", "invariants"}, dict[str, str]()
    mapping = next((m for m in ("name", "id") if m in wanted), "none")
    legacy = "legacy" in wanted and not wanted & {
        "dvs",
        "tracking",
        "times",
        "v2",
        "widening",
        "ntz",
    }
    if "cdf" in wanted:
        features.add("changeDataFeed")
        properties["delta.enableChangeDataFeed"] = rng.choice(["true", "true", "TRUE"])
    elif rng.random() < 0.2 and not legacy:
        properties["delta.enableChangeDataFeed"] = "true"  # counts only with its feature
    if mapping != "none":
        features.add("columnMapping")
    if legacy and mapping != "none":
        features.add("changeDataFeed")  # writers of version 5 have it
    if not legacy:
        readers = {"dvs": "deletionVectors", "v2": "v2Checkpoint", "widening": "typeWidening"}
        features |= {f for name, f in readers.items() if name in wanted}
        features |= set(
            rng.sample(["vacuumProtocolCheck", "unknownWriter", "clustering"], rng.randrange(3))
        )
        features.add("timestampNtz")
    more = {"comments": rng.random() < 0.3, "reader2": rng.random() < 0.5}
    state = State((), (), properties, frozenset(features), mapping, legacy, more)
    columns = tuple(_column(table, state) for _ in range(rng.randint(1, 4)))
    by: tuple[str, ...] = ()
    if "partitions" in wanted:
        parts = [_column(table, state, partition=True) for _ in range(rng.randint(1, 2))]
        columns, by = (*parts, *columns), tuple(p.physical for p in parts)
        if rng.random() < 0.2:
            properties["x.materialise"] = "true"
    shuffled = rng.sample(columns, len(columns))
    state = replace(state, columns=tuple(shuffled), by=by)
    if "tracking" in wanted and not legacy:
        state = _tracked(table, state)
    if "times" in wanted and not legacy and rng.random() < 0.5:
        state = _timed(state, {})
    files = new_files(table, state) if rng.random() < 0.7 else []
    table.commit(come=files, state=state, preserved=True)


def _column(table: Table, state: State, *, partition: bool = False) -> Column:
    kind = random_type(table.rng, partition=partition)
    if state.legacy and "timestamp_ntz" in str(kind):
        kind = "timestamp"
    if not partition and table.rng.random() < 0.03:
        kind = "void"
    return table.column(kind, mapped=state.mapping != "none", fresh=state.mapping != "none")


def _tracked(table: Table, state: State) -> State:
    names = {f"{_PREFIX}{kind}ColumnName": f"_row-{kind}-{table.next_number()}"
             for kind in ("Id", "CommitVersion")}  # fmt: skip
    properties = {**state.properties, **names, "delta.enableRowTracking": "true"}
    features = state.features | {"rowTracking", "domainMetadata"}
    return replace(state, properties=properties, features=features)


def _timed(state: State, more: dict[str, str]) -> State:
    properties = {**state.properties, "delta.enableInCommitTimestamps": "true", **more}
    feature = "inCommitTimestamp" if len(state.columns) % 2 else "inCommitTimestamps"
    return replace(state, properties=properties, features=state.features | {feature})


def _changed_columns(table: Table) -> State:
    rng, state = table.rng, table.state
    columns, mapped = list(state.columns), state.mapping != "none"
    free = [c for c in columns if c.physical not in state.by]
    draw = rng.random()
    ways = [c for c in columns if "typeWidening" in state.features and _wider(state, c)]
    if ways and draw < 0.6:
        column = rng.choice(ways)
        kind = rng.choice(_wider(state, column))
        columns[columns.index(column)] = replace(
            column, type=kind, was=(*column.was, str(column.type))
        )
    elif mapped and draw < 0.3 and (structs := [c for c in free if isinstance(c.type, Struct)]):
        column = rng.choice(structs)
        assert isinstance(column.type, Struct)
        names = [f"n{table.next_number()}" for _ in column.type.fields]
        renamed = (replace(f, name=n) for f, n in zip(column.type.fields, names, strict=True))
        columns[columns.index(column)] = replace(column, type=Struct(tuple(renamed)))
    elif mapped and draw < 0.75:
        column = rng.choice(columns)
        # Names may be exchanged, too.
        other = rng.choice([c for c in columns if c is not column] or [column])
        name = f"r{table.next_number()}"
        if other is not column and rng.random() < 0.4:
            columns[columns.index(other)] = replace(other, name=column.name)
            name = other.name
        columns[columns.index(column)] = replace(column, name=name)
    elif mapped and draw < 0.85 and len(free) > 1:
        columns.remove(rng.choice(free))
    elif draw < 0.9 and any(isinstance(c.type, Struct) for c in free):
        column = next(c for c in free if isinstance(c.type, Struct))
        assert isinstance(column.type, Struct)
        more = table.column(random_type(rng, depth=2), mapped=mapped)
        struct = Struct((*column.type.fields, more))
        columns[columns.index(column)] = replace(column, type=struct)
    else:
        columns.insert(rng.randint(0, len(columns)), _column(table, state))
    if state.legacy and "timestamp_ntz" in str(columns):
        return state
    return replace(state, columns=tuple(columns))


def _wider(state: State, column: Column) -> list[str]:
    kinds = wider(column.type)
    if column.physical in state.by:
        kinds = [k for k in kinds if k in ("short", "integer", "long")]
    return kinds


def change_columns(table: Table) -> None:
    """Add, rename, drop or widen a column; now and then with new files in the same commit."""
    state = _changed_columns(table)
    come = new_files(table, state) if table.rng.random() < 0.3 else []
    gone = some_files(table, 1) if table.rng.random() < 0.2 else []
    if gone and table.rng.random() < 0.5:
        come += rewritten(table, gone, keep=False, change=True, state=state)
    table.commit(come=come, gone=gone, state=state, preserved=not gone)


def overwrite(table: Table) -> None:
    """Replace the rows, and perhaps columns and partitioning at once."""
    rng, state = table.rng, table.state
    gone = list({f.path: f for f in table.files.values()}.values())
    if len(gone) < len(table.files):  # one path has two logical files: not both in one commit
        remove(table)
        return
    if rng.random() < 0.6 and state.cdf:
        count = rng.randint(1, 3)
        kept = rng.sample(state.columns, rng.randrange(len(state.columns)))
        columns = (*kept, *(_column(table, state) for _ in range(count)))
        by = tuple(c.physical for c in columns if isinstance(c.type, str) and c.type != "void")
        keep = [c for c in columns if c.type != "void" and c.physical not in state.by]
        by = tuple(rng.sample(by, min(len(by), rng.randrange(2)))) if keep else ()
        if len(by) == len(columns) or any(
            str(c.type).startswith("decimal(5") or str(c.type).startswith("decimal(38")
            for c in columns
            if c.physical in by
        ):
            by = ()
        state = replace(state, columns=columns, by=by)
        table.epoch += 1
    come = new_files(table, state)
    if gone and rng.random() < 0.4 and state is table.state:
        come += rewritten(table, gone[:1], keep=False, change=False)
    cdc = cdc_files(table, state) if state.cdf and rng.random() < 0.2 else []
    table.commit(gone=gone, come=come, cdc=cdc, state=state)


def change_properties(table: Table) -> None:
    """Switch the change feed, turn column mapping on, or change what concerns no reader."""
    rng, state = table.rng, table.state
    properties, draw = dict(state.properties), rng.random()
    if "mapping_later" in table.wanted and state.mapping == "none" and draw < 0.5:
        columns = tuple(table.mapped(c, fresh=False) for c in state.columns)
        features = state.features | {"columnMapping", "changeDataFeed"}
        state = replace(state, columns=columns, mapping="name", features=features)
    elif draw < 0.6 and (not state.legacy or "changeDataFeed" in state.features):
        on = "false" if state.cdf else "true"
        properties["delta.enableChangeDataFeed"] = on
        features = state.features | {"changeDataFeed"}
        state = replace(state, properties=properties, features=features)
    elif draw < 0.8:
        properties["delta.appendOnly"] = "false"
        properties[f"x.{table.next_number()}"] = "é\\"
        state = replace(state, properties=properties)
    else:
        more = {**state.more, "name": rng.choice([None, "n"]), "createdTime": rng.choice([0, None])}
        state = replace(state, more=more)
    table.commit(state=state, preserved=True)


def enable_tracking(table: Table) -> None:
    """Turn row tracking on: the files that are there come again, with their base row ids."""
    state = table.state
    paths = [f.path for f in table.files.values()]
    if state.legacy or is_tracking(table) or len(paths) > len(set(paths)):
        nothing(table)
        return
    state = _tracked(table, state)
    if table.rng.random() < 0.3:
        supported = {**state.properties, "delta.enableRowTracking": "false"}
        state = replace(state, properties=supported)
    files = list(table.files.values())
    table.commit(come=files, still=files, state=state, preserved=table.rng.random() < 0.5)


def enable_times(table: Table) -> None:
    """Turn in-commit timestamps on, from this commit on."""
    state = table.state
    if state.legacy or state.on("delta.enableInCommitTimestamps"):
        nothing(table)
        return
    number = table.version + 1
    more = {
        "delta.inCommitTimestampEnablementVersion": str(number),
        "delta.inCommitTimestampEnablementTimestamp": str(table.stamp(number)),
    }
    table.commit(state=_timed(state, more), preserved=True)
