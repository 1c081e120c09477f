"""The actions of a history's commits and checkpoints, as JSON objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.fuzz.model import START_MS, Action, File, State
from tests.fuzz.values import schema_json

if TYPE_CHECKING:
    from tests.fuzz.table import Table

__all__ = ["add_action", "metadata_action", "protocol_action", "remove_action"]

_READER = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)


def add_action(table: Table, file: File, *, data_change: bool) -> Action:
    found = {"path": table.spelled(file.path), **file.action, "dataChange": data_change}
    if file.vector is not None:
        found["deletionVector"] = dict(file.vector)
    elif "stats" in table.odd and table.rng.random() < 0.1:
        found.pop("stats", None)
    return {"add": found}


def remove_action(table: Table, file: File, *, data_change: bool) -> Action:
    found = {"path": table.spelled(file.path), "dataChange": data_change}
    if file.vector is not None:
        found["deletionVector"] = dict(file.vector)
    lean = table.rng.random()
    if lean < 0.8:
        found["deletionTimestamp"] = START_MS
    if lean < 0.6:
        known = ("partitionValues", "size", "baseRowId", "defaultRowCommitVersion", "tags")
        found |= {k: file.action[k] for k in known if k in file.action}
        found["extendedFileMetadata"] = True
    return {"remove": found}


def protocol_action(state: State) -> Action:
    if state.legacy:
        known = state.features
        writer = 5 if "columnMapping" in known else 4 if "changeDataFeed" in known else 2
        reader = 2 if "columnMapping" in known else 1
        return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}}
    readers = sorted(state.features & _READER)
    found: Action = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    if readers:
        found["readerFeatures"] = readers
    if readers == ["columnMapping"] and state.more.get("reader2"):
        found = {"minReaderVersion": 2, "minWriterVersion": 7}
    return {"protocol": {**found, "writerFeatures": sorted(state.features)}}


def metadata_action(table: Table, state: State) -> Action:
    names = {c.physical: c.name for c in state.columns}

    def decorate() -> dict[str, Any]:
        return {"comment": "é"} if state.more.get("comments") else {}

    properties = dict(state.properties)
    if state.mapping != "none":
        properties["delta.columnMapping.mode"] = state.mapping
        properties["delta.columnMapping.maxColumnId"] = str(table.numbers)
    found = {
        "id": table.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema_json(state.columns, decorate)),
        "partitionColumns": [names[p] for p in state.by],
        "configuration": properties,
    }
    return {
        "metaData": {
            **found,
            **{k: state.more[k] for k in ("name", "createdTime") if k in state.more},
        }
    }
