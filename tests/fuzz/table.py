"""The table that a history writes: what its writer knows, and the files in its store.

``plain`` has every commit and nothing else in its log; ``dressed`` is what a reader finds, with
checkpoints, compactions and checksums, and without what was cleaned up.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from tailer.testing.actions import inline_vector, vector_file, z85_encode
from tests.fuzz.actions import add_action, metadata_action, protocol_action, remove_action
from tests.fuzz.files import HistoryBuilder, HistoryFiles, form
from tests.fuzz.model import START_MS, Action, File, Row, State
from tests.fuzz.odd_json import line
from tests.fuzz.values import Array, Column, Struct, Type, partition_text, stored_field, value

_PREFIX = "delta.rowTracking.materializedRow"


class Table:
    """A table that is being written. ``rng`` is that of the step at hand."""

    def __init__(self, rng: random.Random, features: Sequence[str], odd: set[str]) -> None:
        self.rng = rng
        self.wanted = frozenset(features)
        self.odd = frozenset(odd)
        self.actions: list[list[Action]] = []
        self.store = HistoryFiles()
        self.builder = HistoryBuilder(self, self.store)
        self.plain, self.log = self.store.plain, self.store.log
        self.cleaned = 0  # the first version whose commit is still there
        self.buildable = 0  # the first version whose snapshot can be built
        self.version = -1
        self.state = State((), (), {}, frozenset())
        self.files: dict[tuple[str, str], File] = {}
        self.gone: dict[tuple[str, str], File] = {}
        self.vectors: list[str] = []
        self.spares: dict[str, tuple[frozenset[int], Action]] = {}
        self.row_ids = 0
        self.epoch = 0
        self.numbers = 0  # of columns, and of whatever needs a name
        self.story: list[str] = []
        self.id = str(self.uuid())

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    @property
    def dressed(self) -> dict[str, tuple[bytes, int]]:
        """The files of the table as its readers find it."""
        old = {f"_delta_log/{v:020d}.json" for v in range(self.cleaned)}
        return {k: v for k, v in self.plain.items() if k not in old} | self.log

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    # Columns

    def column(self, data_type: Type, *, mapped: bool, fresh: bool = True) -> Column:
        """A new column, with an id and a physical name where the table maps columns."""
        number = self.next_number()
        plain = self.rng.random() < 0.6
        name = (
            f"c{number}"
            if plain
            else self.rng.choice([f"C {number}é", f"a.{number}", f"`{number}`"])
        )
        column = Column(name, data_type, name, 0)
        return self.mapped(column, fresh=fresh) if mapped else column

    def mapped(self, column: Column, *, fresh: bool) -> Column:
        number = self.next_number()
        physical = f"col-{number:08x}-0000-4000-8000-000000000000" if fresh else column.physical
        return replace(
            column, number=number, physical=physical, type=self._mapped(column.type, fresh=fresh)
        )

    def _mapped(self, data_type: Type, *, fresh: bool) -> Type:
        if isinstance(data_type, Struct):
            return Struct(tuple(self.mapped(f, fresh=fresh) for f in data_type.fields))
        if isinstance(data_type, str):
            return data_type
        if isinstance(data_type, Array):
            return replace(data_type, element=self._mapped(data_type.element, fresh=fresh))
        return replace(data_type, value=self._mapped(data_type.value, fresh=fresh))

    # Files

    def row(self, state: State) -> Row:
        """A new row, without its partition values."""
        stored = (c for c in state.columns if c.physical not in state.by)
        return Row({c.physical: value(c.type, self.rng) for c in stored})

    def partition(self, state: State) -> dict[str, Any]:
        """Typed values of the partition columns."""
        by = (c for c in state.columns if c.physical in state.by)
        return {c.physical: value(c.type, self.rng, null=0.15) for c in by}

    def new_file(self, state: State, rows: Sequence[Row], partition: Mapping[str, Any]) -> File:
        """Write a data file; row ids that its rows have are materialised."""
        where = self._path(f"part-{self.uuid()}.parquet")
        size = self.write_rows(where, rows, state, partition)
        texts = self.partition_texts(partition, state)
        action = {
            "partitionValues": texts,
            "size": size,
            "modificationTime": START_MS,
            **self._stats(rows, state),
        }
        if "more_actions" in self.odd and self.rng.random() < 0.2:
            action["tags"] = {"ZCUBE_ID": "x", "": "y"}
        return File(where, tuple(rows), partition, action, self.epoch)

    def partition_texts(self, partition: Mapping[str, Any], state: State) -> dict[str, str | None]:
        by = [c for c in state.columns if c.physical in state.by]
        return {
            c.physical: partition_text(partition[c.physical], str(c.type), self.rng) for c in by
        }

    def write_rows(
        self,
        path: str,
        rows: Sequence[Row],
        state: State,
        partition: Mapping[str, Any],
        kinds: Sequence[str] = (),
    ) -> int:
        """Put a Parquet file into the store, and return its size."""
        columns = [c for c in state.columns if c.physical not in state.by and c.type != "void"]
        # Iceberg's compatibility has partition columns in the files too.
        columns += [
            c for c in state.columns if c.physical in state.by and state.on("x.materialise")
        ]
        if len(columns) > 1 and self.rng.random() < 0.1:  # a file may lack columns
            columns = [
                c for c in columns if any(r.values.get(c.physical) is not None for r in rows)
            ]
        self.rng.shuffle(columns)
        fields = [stored_field(c) for c in columns]
        values = [{**partition, **row.values} for row in rows]
        for name in (c.physical for c in columns if c.type == "timestamp_ntz"):
            for row_values in values:
                row_values[name] = _as_time(row_values.get(name))
        tracked = {"Id": [r.id for r in rows], "CommitVersion": [r.version for r in rows]}
        known = {state.properties.get(f"{_PREFIX}{n}ColumnName"): n for n in tracked}
        numbers = {column: tracked[n] for column, n in known.items() if column}
        if not kinds and state.cdf and self.rng.random() < 0.1:
            # "Note for non-change data readers"
            fields.append(pa.field("_change_type", pa.string()))
        if not (fields or kinds or any(n is not None for some in numbers.values() for n in some)):
            fields = [pa.field("unused", pa.int32(), metadata={"PARQUET:field_id": "999"})]
        drawn = form(self.rng, plain="forms" not in self.odd)
        schema = pa.schema(fields)
        return self.builder.write_rows(path, values, schema, numbers=numbers, kinds=kinds, **drawn)

    def _path(self, name: str) -> str:
        if "paths" not in self.odd:
            return name
        return self.rng.choice(
            [
                name,
                f"a b/{name}",
                f"é%25/{name}",
                f"x=1/y=%3A/{name}",
                f"#?+&;😀/{name}",
                f"/elsewhere/{name}",
            ]
        )

    def spelled(self, path: str) -> str:
        """A path as the log spells it: a URI."""
        if path.startswith("/"):
            return self.rng.choice([f"file://{quote(path)}", f"file:{quote(path)}"])
        if "paths" in self.odd and self.rng.random() < 0.1:
            return quote(path).replace("part-", "%70art-")
        return quote(path, safe=self.rng.choice(["/", "/="]))

    def _stats(self, rows: Sequence[Row], state: State) -> dict[str, Any]:
        stats: dict[str, Any] = {"numRecords": len(rows)}
        if "stats" not in self.odd or self.rng.random() < 0.2:
            return {"stats": json.dumps(stats)}
        stats |= {"minValues": {}, "maxValues": {}, "nullCount": {}}
        for c in state.columns:
            if c.physical in state.by or c.type not in (
                "long",
                "integer",
                "short",
                "byte",
                "string",
            ):
                continue
            found = [v for r in rows if (v := r.values.get(c.physical)) is not None]
            stats["nullCount"][c.physical] = len(rows) - len(found)
            if found and self.rng.random() < 0.9:
                stats["minValues"][c.physical] = min(found)
                stats["maxValues"][c.physical] = max(found)
        return {"stats": json.dumps(stats)}

    def with_vector(self, file: File, deleted: frozenset[int], *, spare: bool = True) -> File:
        """The same data file with these rows deleted; or with the rows of a vector that was written
        beside the one before it, in the same file."""
        stats = json.loads(file.action["stats"]) if "stats" in file.action else {}
        stats = {**stats, "numRecords": len(file.rows), "tightBounds": False}
        stats.pop("nullCount", None)
        action = {**file.action, "stats": json.dumps(stats)}
        everything, vector = (
            self.spares.pop(file.path, (deleted, None)) if spare else (deleted, None)
        )
        if vector is not None:
            return replace(file, deleted=everything, vector=vector, action=action)
        vector = self._vector(deleted)
        if spare and "offset" in vector and self.rng.random() < 0.5:
            everything = frozenset(range(len(file.rows)))
            stored = self.store.read(self.vectors[-1])
            data, (place,) = vector_file([everything])
            self.store.put(self.vectors[-1], stored + data[1:])
            self.spares[file.path] = everything, {**vector, **place, "offset": len(stored)}
        return replace(file, deleted=deleted, vector=vector, action=action)

    def _vector(self, deleted: frozenset[int]) -> dict[str, Any]:
        run = self.rng.random() < 0.3
        if self.rng.random() < 0.4:
            return inline_vector(sorted(deleted), run=run)
        others = [[9]] * self.rng.randrange(2)
        stored, places = vector_file([*others, sorted(deleted)], run=run)
        prefix, name = self.rng.choice(["", "", "ab"]), self.uuid()
        path = f"{prefix}/deletion_vector_{name}.bin".removeprefix("/")
        kind, text = "u", prefix + z85_encode(name.bytes)
        if self.rng.random() < 0.3:
            path = f"/elsewhere/{path}"
            kind, text = "p", self.store.uri(path)
        self.store.put(path, stored)
        self.vectors.append(path)
        return {"storageType": kind, "pathOrInlineDv": text, **places[-1]}

    # Commits

    @staticmethod
    def stamp(number: int) -> int:
        """The in-commit timestamp of a version: later than any file before it."""
        return START_MS + 10_000 * number + 100 * (number % 7)

    def commit(
        self,
        *,
        gone: Iterable[File] = (),
        come: Iterable[File] = (),
        still: Iterable[File] = (),
        cdc: Sequence[Action] = (),
        state: State | None = None,
        preserved: bool = False,
        more: Sequence[Action] = (),
        void_removes: Sequence[Action] = (),
    ) -> None:
        """Commit: files that leave and come, those among them with dataChange=false, a new state.

        ``preserved``: the stable row ids are kept. ``void_removes`` are of files that the
        table does not have.
        """
        number, before = self.version + 1, self.state
        after = before if state is None else state
        unchanged = {id(file) for file in still}
        actions: list[Action] = [*cdc, *void_removes, *more]
        for file in gone:
            actions.append(remove_action(self, file, data_change=id(file) not in unchanged))
            self.files.pop(file.key, None)
            self.gone[file.key] = file
        for come_file in come:
            file, action = self._placed(come_file, after, number), come_file
            self.files[file.key] = file
            self.gone.pop(file.key, None)
            actions.append(add_action(self, file, data_change=id(action) not in unchanged))
        if number == 0 or protocol_action(after) != protocol_action(before):
            actions.append(protocol_action(after))
        if number == 0 or after != before:
            actions.append(metadata_action(self, after))
        self.state = after
        if "shuffle" in self.odd:
            self.rng.shuffle(actions)
        self._write_commit(number, actions, preserved=preserved)

    def _write_commit(self, number: int, actions: list[Action], *, preserved: bool) -> None:
        rng, stamps = self.rng, self.state.on("delta.enableInCommitTimestamps")
        info: Action = {"operation": "FUZZ", "timestamp": START_MS}
        stamp = self.stamp(number)
        if stamps:
            info["inCommitTimestamp"] = stamp
        if "rowTracking" in self.state.features or rng.random() < 0.1:
            info["tags"] = {"delta.rowTracking.preserved": "true" if preserved else "false"}
        if stamps or info.get("tags") or rng.random() < 0.7:
            actions.insert(0 if stamps else rng.randint(0, len(actions)), {"commitInfo": info})
        if "more_actions" in self.odd and rng.random() < 0.2:
            actions.append({"futureAction": {"path": "x", "add": {"path": "y"}}})
        if not actions:
            actions = [{"commitInfo": info}]
        end = "\r\n" if "crlf" in self.odd else "\n"
        odd = self.odd if rng.random() < 0.7 else self.odd & {"shuffle"}
        text = end.join(line(action, rng, odd) for action in actions)
        if "no_end" not in self.odd or rng.random() < 0.5:
            text += end
        mtime = START_MS + 10_000 * number + rng.choice([0, 0, -15_000, 3])
        if stamps:
            mtime = START_MS
        self.version = number
        self.store.put(f"_delta_log/{number:020d}.json", text.encode(), mtime_ms=mtime)
        self.actions.append(actions)
        kinds = [next(iter(a)) for a in actions]
        self.story.append(f"  version {number}: {', '.join(kinds)}")

    def _placed(self, file: File, after: State, number: int) -> File:
        """A file with its row ids, where the table gives them."""
        if "rowTracking" not in after.features or "baseRowId" in file.action:
            return file
        ids = {"baseRowId": self.row_ids, "defaultRowCommitVersion": number}
        self.row_ids += len(file.rows)
        return replace(file, action={**file.action, **ids})


def _as_time(typed: Any) -> Any:
    """A value of a column that had dates before it was widened."""
    if isinstance(typed, dt.date) and not isinstance(typed, dt.datetime):
        return dt.datetime(typed.year, typed.month, typed.day)  # noqa: DTZ001 - it has none
    return typed
