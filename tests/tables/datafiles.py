"""The data files and cdc files of a :class:`~tests.tables.writer.TableWriter`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

import pyarrow as pa

from tailer.testing.actions import cdc_action
from tests.support.builders import VersatileBuilder
from tests.tables.model import Change, Column, DataFile, Row, stored_schema, visible
from tests.tables.transaction import Draft

_ROW_ID = "delta.rowTracking.materializedRowIdColumnName"
_ROW_VERSION = "delta.rowTracking.materializedRowCommitVersionColumnName"


class DataFiles:
    """The part of a writer that writes rows into Parquet files."""

    builder: VersatileBuilder
    rng: random.Random
    unique: Callable[[], str]

    def _files(
        self, draft: Draft, rows: Sequence[Row], files: int = 1, *, keep_ids: bool = False
    ) -> list[DataFile]:
        """Write rows into up to so many new files for each partition."""
        columns = draft.columns or draft.base.columns
        by = draft.base.partition_by if draft.partition_by is None else draft.partition_by
        properties = draft.base.properties if draft.properties is None else draft.properties
        found = []
        for texts, group in _partitioned(rows, by):
            size = -(-len(group) // files)
            for at in range(0, len(group), size):
                part = tuple(group[at : at + size])
                if not keep_ids:
                    part = tuple(Row(row.values) for row in part)
                path = self._path(texts, properties)
                length = self._write(path, part, columns, by, properties if keep_ids else {})
                found.append(DataFile(path, texts, length, part))
        return found

    def _path(self, texts: Mapping[str, str | None], properties: Mapping[str, str]) -> str:
        name = f"part-{self.unique()}.parquet"
        if "delta.columnMapping.mode" in properties:
            return f"{self.rng.choice(['a1', 'Zz'])}/{name}"  # a prefix that means nothing
        folders = (
            f"{p}={quote(t or '__HIVE_DEFAULT_PARTITION__', safe='')}/" for p, t in texts.items()
        )
        return "".join(folders) + name

    def _write(
        self,
        path: str,
        rows: Sequence[Row],
        columns: Sequence[Column],
        partition_by: Sequence[str],
        properties: Mapping[str, str],
        kinds: Sequence[str] = (),
    ) -> int:
        """Write a Parquet file, with the materialised row ids and commit versions that there are
        and with ``kinds`` as a cdc file's change types. Returns its size in bytes."""
        stored = [c for c in columns if c.physical not in partition_by]
        tracked = {
            _ROW_ID: [row.row_id for row in rows],
            _ROW_VERSION: [row.commit_version for row in rows],
        }
        return self.builder.write_rows(
            path,
            [visible(row.values, stored) for row in rows],
            pa.schema(stored_schema(stored)),
            numbers={properties[key]: n for key, n in tracked.items() if key in properties},
            kinds=kinds,
            compression="none",
            row_group_size=self.rng.choice([2, 100, 100]),
        )

    def _write_cdc(self, draft: Draft, changes: list[Change]) -> None:
        """Write cdc files, one for each partition, and put them into the draft."""
        columns = draft.columns or draft.base.columns
        by, draft.cdc = draft.base.partition_by, changes
        rows = [Row({**c.values, "": c.kind}) for c in changes]
        for texts, group in _partitioned(rows, by):
            path = f"_change_data/cdc-{self.unique()}.parquet"
            kinds = [row.values[""] for row in group]
            size = self._write(path, group, columns, by, {}, kinds)
            draft.cdc_actions.append(cdc_action(path, size, texts))


def _partitioned(
    rows: Sequence[Row], partition_by: Sequence[str]
) -> list[tuple[dict[str, str | None], list[Row]]]:
    """The rows by their partition values, as the log spells them ("Partition Value
    Serialization")."""
    groups: dict[tuple[str | None, ...], list[Row]] = {}
    for row in rows:
        values = (row.values.get(name) for name in partition_by)
        texts = tuple(None if value is None else str(value) for value in values)
        groups.setdefault(texts, []).append(row)
    return [(dict(zip(partition_by, t, strict=True)), group) for t, group in groups.items()]
