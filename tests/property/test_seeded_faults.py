"""The audit of histories sees a fault when there is one: each of these is put into the decoder
alone, and a short history made for it is no longer read right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from tailer.changes import ChangeFile
from tailer.compare import comparison, diff, stream
from tailer.compare.comparison import Comparison
from tailer.compare.engine import Engine
from tailer.decode.project import find_field
from tailer.decode.tracking import read_tracked_rows
from tailer.delta.actions import AddFile, CommitInfo, RemoveFile
from tailer.delta.commit import Commit
from tailer.delta.parsing import parse_entries, parse_line
from tailer.errors import TailerError
from tailer.plan import rules
from tests.property.histories import Auditor, Tally
from tests.tables.writer import TableWriter

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
TRACKING = {"delta.enableRowTracking": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}


def numbered(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "x": i / 2, "s": f"row {i}"} for i in range(first, first + count)]


def with_id(*ids: int) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["id"] in ids


def renamed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "s": f"{row['s']} anew"}


# The histories


def vectors(folder: Path, seed: int) -> TableWriter:
    """Rows go and come back by deletion vectors alone; then their file goes."""
    writer = TableWriter(folder, SCHEMA, properties=VECTORS, seed=seed)
    writer.append(numbered(6))
    for i in range(3):
        writer.delete(with_id(i))
    writer.restore(2)
    writer.delete(lambda _: True)
    return writer


def feed(folder: Path, seed: int) -> TableWriter:
    """A change data feed, with a version that only rearranges."""
    writer = TableWriter(folder, SCHEMA, cdf=True, seed=seed)
    writer.append(numbered(5), files=2)
    writer.update(with_id(1, 4), renamed)
    writer.optimise()
    writer.change(lambda row: None if row["id"] == 2 else row, numbered(2, 10))
    return writer


def tracking(folder: Path, seed: int) -> TableWriter:
    """Row ids that are kept, that are not kept, and that a RESTORE brings back."""
    writer = TableWriter(folder, SCHEMA, properties=TRACKING, seed=seed)
    writer.append(numbered(6), files=2)
    writer.append(numbered(3, 10))
    writer.update(with_id(1, 4), renamed)
    writer.update(with_id(1, 2), renamed)
    writer.optimise()
    writer.restore(3)
    writer.append(numbered(1, 20), compact=True)
    writer.update(with_id(3, 11), renamed, preserve=False)
    return writer


def schemas(folder: Path, seed: int) -> TableWriter:
    """Rows that leave have another schema than those that come."""
    writer = TableWriter(folder, SCHEMA, seed=seed)
    writer.append(numbered(4))
    writer.overwrite(
        [{"id": "a", "y": 1}], schema=pa.schema([("id", pa.string()), ("y", pa.int8())])
    )
    writer.set_column_mapping()
    writer.rename_column("z", "y")
    writer.append([{"id": "b", "z": 2}])
    return writer


def duplicates(folder: Path, seed: int) -> TableWriter:
    """Of equal rows some go, and others stay."""
    writer = TableWriter(folder, SCHEMA, seed=seed)
    writer.append(numbered(2) * 3)
    again = iter([True, False, True])
    writer.delete(lambda row: row["id"] == 1 and next(again))
    return writer


def zeros(folder: Path, seed: int) -> TableWriter:
    """An update that says 0.0 for -0.0, and nothing else."""
    writer = TableWriter(folder, SCHEMA, seed=seed)
    writer.append([{"id": i, "x": -0.0} for i in range(3)])
    writer.update(with_id(1), lambda row: {**row, "x": 0.0})
    return writer


History = Callable[[Path, int], TableWriter]
HISTORIES: list[History] = [vectors, feed, tracking, schemas, duplicates, zeros]
SEEDS = range(3)


def failures(history: History, folder: Path) -> list[str]:
    """What the audit says of a history, played with a few seeds."""
    found = []
    for seed in SEEDS:
        writer = history(folder / f"{history.__name__}-{seed}", seed)
        try:
            Auditor(writer, Tally(), seed).audit()
        except (AssertionError, TailerError) as e:
            found.append(str(e) or type(e).__name__)
    return found


# The faults

Patch = pytest.MonkeyPatch


def a_pair_of_vectors_is_swapped(patch: Patch) -> None:
    pairs = rules._find_vector_changes
    swapped = lambda *a, **k: {p: (new, old) for p, (old, new) in pairs(*a, **k).items()}  # noqa: E731
    patch.setattr(rules, "_find_vector_changes", swapped)


def data_change_is_ignored(patch: Patch) -> None:
    def changing(line: bytes, **options: Any) -> Any:
        action = parse_line(line, **options)
        if isinstance(action, AddFile | RemoveFile):
            return structs.replace(action, data_change=True)
        return action

    def entries(lines: list[bytes]) -> Any:
        added, removed, others = parse_entries(lines)
        both = ([structs.replace(e, data_change=True) for e in side] for side in (added, removed))
        return (*both, others)

    patch.setattr("tailer.delta.commit.parse_line", changing)
    patch.setattr("tailer.delta.commit.parse_entries", entries)


def a_removed_file_s_vector_is_not_applied(patch: Patch) -> None:
    work_order = rules._build_change_file

    def whole(commit: Commit, action: Any, *args: Any, **more: Any) -> ChangeFile:
        order = work_order(commit, action, *args, **more)
        return structs.replace(order, without=None) if isinstance(action, RemoveFile) else order

    patch.setattr(rules, "_build_change_file", whole)


def rows_that_leave_have_the_new_schema(patch: Patch) -> None:
    leaving = rules._plan_leaving
    patch.setattr(
        rules,
        "_plan_leaving",
        lambda commit, *rest: leaving(structs.replace(commit, before=commit.after), *rest),
    )


def cdc_files_are_read_beside_the_others(patch: Patch) -> None:
    def both(commit: Commit, *known: Any) -> Iterator[ChangeFile]:
        files = rules._plan_file_changes(commit, *known)
        return chain(rules._plan_cdc_files(commit), files) if commit.header.cdcs else files

    patch.setattr("tailer.plan.commit.plan_changes", both)


def row_ids_are_believed_without_the_tag(patch: Patch) -> None:
    patch.setattr(CommitInfo, "row_tracking_preserved", property(lambda _: True))


def only_rows_of_this_version_s_commit_came(patch: Patch) -> None:
    def by_row_ids(sides: Comparison) -> Any:
        found = diff.compare_by_row_ids(sides)
        assert found is not None
        for number, changed in list(found.coming.items()):
            file = sides.coming[number]
            source, selection = sides.open_file(file)
            with source:
                batches = list(read_tracked_rows(source, file, selection))
            copied = [
                row["position"]
                for batch in batches
                for row in batch.to_pylist()
                if row["row_commit_version"] != file.version
            ]
            found.coming[number] = changed - type(changed)(copied)
        return found

    patch.setattr("tailer.feed.derive.compare_by_row_ids", by_row_ids)


def zero_has_a_sign(patch: Patch) -> None:
    canonical = stream._build_canonical_sql

    def signed(name: str, data_type: pa.DataType) -> str:
        return f"{name}::VARCHAR" if pa.types.is_floating(data_type) else canonical(name, data_type)

    patch.setattr(stream, "_build_canonical_sql", signed)


def equal_rows_cancel_however_many_they_are(patch: Patch) -> None:
    execute = Engine.execute
    exact, once = "HAVING n <> 2 * n_came", "HAVING n_came = 0 OR n_came = n"

    def cancelled(self: Engine, sql: str, *rows: Any) -> None:
        execute(self, sql.replace(exact, once), *rows)

    patch.setattr(Engine, "execute", cancelled)


def the_base_row_id_is_off_by_one(patch: Patch) -> None:
    def shifted(source: Any, file: ChangeFile, *rest: Any) -> Any:
        base = (file.base_row_id or 0) + 1
        return read_tracked_rows(source, structs.replace(file, base_row_id=base), *rest)

    patch.setattr(comparison, "read_tracked_rows", shifted)


def materialised_row_ids_are_not_read(patch: Patch) -> None:
    patch.setattr("tailer.decode.tracking._ID", "delta.rowTracking.noSuchColumnName")


def columns_go_by_their_logical_names(patch: Patch) -> None:
    by_name = lambda fields, wanted, _: find_field(fields, wanted, "none")  # noqa: E731
    patch.setattr("tailer.decode.output.find_field", by_name)


FAULTS: list[tuple[Callable[[Patch], None], History]] = [
    (a_pair_of_vectors_is_swapped, vectors),
    (a_removed_file_s_vector_is_not_applied, vectors),
    (data_change_is_ignored, feed),
    (cdc_files_are_read_beside_the_others, feed),
    (row_ids_are_believed_without_the_tag, tracking),
    (only_rows_of_this_version_s_commit_came, tracking),
    (the_base_row_id_is_off_by_one, tracking),
    (materialised_row_ids_are_not_read, tracking),
    (rows_that_leave_have_the_new_schema, schemas),
    (columns_go_by_their_logical_names, schemas),
    (equal_rows_cancel_however_many_they_are, duplicates),
    (zero_has_a_sign, zeros),
]


@pytest.mark.parametrize("history", HISTORIES)
def test_without_a_fault_each_history_is_read_right(history: History, tmp_path: Path) -> None:
    assert failures(history, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "history"), FAULTS)
def test_a_fault_is_caught(
    fault: Callable[[Patch], None],
    history: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    found = failures(history, tmp_path)
    assert found, "the audit has let it pass"
    print(found[0])
