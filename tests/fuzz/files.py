"""How the files of a history are written: the builder's bytes, in a form that is drawn."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.fuzz.model import START_MS, Action
from tests.fuzz.odd_json import line
from tests.support.builders import RememberingBuilder

if TYPE_CHECKING:
    from tests.fuzz.table import Table

_COMMIT = re.compile(r"_delta_log/\d{20}\.json")
#: Fields of actions that a checkpoint may lack a column of.
_OPTIONAL = ("tags", "deletionVector", "baseRowId", "lastUpdated", "createdTime")


class HistoryFiles:
    """The store of a history, with times: commits and data in ``plain``, the rest in ``log``."""

    def __init__(self) -> None:
        self.plain: dict[str, tuple[bytes, int]] = {}
        self.log: dict[str, tuple[bytes, int]] = {}

    def _of(self, location: str) -> dict[str, tuple[bytes, int]]:
        upkeep = location.startswith("_delta_log/") and not _COMMIT.fullmatch(location)
        return self.log if upkeep else self.plain

    def put(
        self, location: str, data: bytes, *, mtime_ms: int | None = None, new: bool = False
    ) -> None:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        files = self._of(location)
        assert not (new and location in files), location
        files[location] = data, START_MS if mtime_ms is None else mtime_ms

    def read(self, location: str) -> bytes:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        return self._of(location)[location][0]

    def names(self, folder: str) -> list[str]:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        paths = (path.rpartition("/") for path in {**self.plain, **self.log})
        return [name for place, _, name in paths if place == folder]

    def remove(self, location: str) -> None:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        self._of(location).pop(location, None)

    def uri(self, location: str) -> str:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        return f"file://{location}" if location.startswith("/") else f"file:///memory/{location}"


class HistoryBuilder(RememberingBuilder):
    """The builder of a history. What the protocol leaves open is drawn."""

    def __init__(self, table: Table, store: HistoryFiles) -> None:
        self.table = table
        super().__init__(store, pa.schema([]), table_id="of a history")

    def new_id(self) -> uuid.UUID:
        return self.table.uuid()

    def version_actions(self, version: int) -> list[Action]:
        """As they were meant: the commits have oddities."""
        return self.table.actions[version]

    def encode_lines(self, actions: Sequence[Action]) -> bytes:
        """In any order, each as odd as the history has it."""
        rng = self.table.rng
        shuffled = rng.sample(actions, len(actions))
        return "".join(line(a, rng, self.table.odd) + "\n" for a in shuffled).encode()

    def encode_rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        schema: pa.Schema,
        *,
        texts: pa.DataType | None = None,
        **form: Any,
    ) -> bytes:
        """With ``texts``: the Arrow type of texts."""
        if texts is not None:
            fields = (f.with_type(texts) if pa.types.is_string(f.type) else f for f in schema)
            schema = pa.schema(fields)
        return super().encode_rows(rows, schema, **form)

    def encode_actions(self, actions: Sequence[Action], schema: pa.Schema) -> bytes:
        """Any column that no action needs may be missing."""
        rng = self.table.rng
        kinds = {kind for action in actions for kind in action}
        names = [n for n in schema.names if n in kinds or rng.random() < 0.5] or schema.names[:1]
        rng.shuffle(names)
        rows, fields = rng.sample(actions, len(actions)), []
        for name in names:
            values = [action[name] for action in actions if name in action]
            inner = [
                f for f in schema.field(name).type
                if f.name not in _OPTIONAL or rng.random() >= 0.3
                or any(v.get(f.name) is not None for v in values)
            ]  # fmt: skip
            if name == "add":
                rows, inner = _parsed_statistics(rows, inner, rng)
            fields.append(pa.field(name, pa.struct(inner)))
        return super().encode_rows(
            rows,
            pa.schema(fields),
            row_group_size=rng.choice([2, 1000, 1000, 1000]),
            compression=rng.choice(["none", "snappy"]),
            store_schema=rng.random() < 0.5,
        )

    def sidecar(self, files: Sequence[Action]) -> Action:
        """Its path may be absolute."""
        action = super().sidecar(files)
        name = action["sidecar"]["path"]
        absolute = self.store.uri(f"_delta_log/_sidecars/{name}")
        action["sidecar"]["path"] = self.table.rng.choice([name, name, absolute])
        return action


def _parsed_statistics(
    rows: list[Action], fields: list[pa.Field], rng: random.Random
) -> tuple[list[Action], list[pa.Field]]:
    """Now and then with statistics as a struct in place of the text, or beside it."""
    draw = rng.random()
    if draw < 0.6:
        return rows, fields
    parsed = pa.field("stats_parsed", pa.struct({"numRecords": pa.int64()}))
    kept = [f for f in fields if draw >= 0.8 or f.name != "stats"]
    return [_with_parsed(row) for row in rows], [*kept, parsed]


def _with_parsed(action: Action) -> Action:
    text = action.get("add", {}).get("stats")
    records = json.loads(text).get("numRecords") if text else None
    if records is None:
        return action
    return {"add": {**action["add"], "stats_parsed": {"numRecords": records}}}


def form(rng: random.Random, *, plain: bool) -> dict[str, Any]:
    """Draw how a Parquet file is written."""
    if plain:
        return {"texts": pa.string(), "compression": "none"}
    return {
        "texts": rng.choice([pa.string(), pa.string(), pa.large_string(),
                             pa.dictionary(pa.int32(), pa.string())]),
        "compression": rng.choice(["none", "snappy", "gzip", "zstd"]),
        "row_group_size": rng.choice([2, 100, 100]),
        "use_dictionary": rng.random() < 0.5,
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "write_statistics": rng.random() < 0.5,
        "store_schema": rng.random() < 0.5,
        "use_deprecated_int96_timestamps": rng.random() < 0.3,
        "use_compliant_nested_type": rng.random() < 0.8,
        "store_decimal_as_integer": rng.random() < 0.4,
        "version": rng.choice(["1.0", "2.4", "2.6"]),
    }  # fmt: skip
