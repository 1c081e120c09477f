"""The actions of a history's commits and checkpoints, as JSON objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tailer.testing import actions
from tests.fuzz.model import START_MS, Action, File, State
from tests.fuzz.values import schema_json
from tests.support.builders import features_protocol

if TYPE_CHECKING:
    from tests.fuzz.table import Table


def add_action(table: Table, file: File, *, data_change: bool) -> Action:
    found = {"path": table.spelled(file.path), **file.action, "dataChange": data_change}
    if file.vector is not None:
        found["deletionVector"] = dict(file.vector)
    elif "stats" in table.odd and table.rng.random() < 0.1:
        found.pop("stats", None)
    return {"add": found}


def remove_action(table: Table, file: File, *, data_change: bool) -> Action:
    known = {**file.action, "path": table.spelled(file.path)}
    if file.vector is not None:
        known["deletionVector"] = dict(file.vector)
    lean, fields = table.rng.random(), {"dataChange": data_change, "deletionTimestamp": START_MS}
    removed = actions.remove_action({"add": known}, lean=lean >= 0.6, **fields)
    if lean >= 0.8:
        del removed["remove"]["deletionTimestamp"]
    return removed


def protocol_action(state: State) -> Action:
    if state.legacy:
        known = state.features
        writer = 5 if "columnMapping" in known else 4 if "changeDataFeed" in known else 2
        reader = 2 if "columnMapping" in known else 1
        return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}}
    found = features_protocol(state.features)
    if found["protocol"].get("readerFeatures") == ["columnMapping"] and state.more.get("reader2"):
        found["protocol"]["minReaderVersion"] = 2
        del found["protocol"]["readerFeatures"]
    return found


def metadata_action(table: Table, state: State) -> Action:
    names = {c.physical: c.name for c in state.columns}

    def decorate() -> dict[str, Any]:
        return {"comment": "é"} if state.more.get("comments") else {}

    properties = dict(state.properties)
    if state.mapping != "none":
        properties["delta.columnMapping.mode"] = state.mapping
        properties["delta.columnMapping.maxColumnId"] = str(table.numbers)
    text, by = json.dumps(schema_json(state.columns, decorate)), [names[p] for p in state.by]
    metadata = actions.metadata_action(table.id, text, by, properties)["metaData"]
    del metadata["createdTime"]
    more = {k: state.more[k] for k in ("name", "createdTime") if k in state.more}
    return {"metaData": {**metadata, **more}}
