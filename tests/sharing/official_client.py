"""Runs in the environment of the official client: calls as JSON on stdin, results on stdout."""

import json
import os
import sys
from importlib import import_module
from typing import Any


def rows(frame: Any) -> Any:
    """A frame's rows, their times in milliseconds."""
    return json.loads(frame.to_json(orient="records", date_format="epoch", date_unit="ms"))


def call(profile: str | None, function: str, arguments: dict[str, Any]) -> Any:
    """One call of the client's public functions."""
    client = import_module("delta_sharing")
    match function:
        case "list_all_tables":
            tables = client.SharingClient(profile).list_all_tables()
            return [[t.share, t.schema, t.name] for t in tables]
        case "get_table_version":
            return client.get_table_version(**arguments)
        case "get_table_metadata":
            return client.get_table_metadata(**arguments).schema_string
        case "load_as_pandas" | "load_table_changes_as_pandas":
            return rows(getattr(client, function)(**arguments))
    raise ValueError(function)


def main() -> None:
    """Do all calls."""
    found: list[dict[str, Any]] = []
    for asked in json.load(sys.stdin):
        try:
            result = call(asked.get("profile"), asked["function"], asked.get("arguments", {}))
            found.append({"result": result})
        except Exception as e:  # noqa: BLE001 - what it says is what is asked
            found.append({"error": f"{type(e).__name__}: {e}"})
    print(json.dumps(found), flush=True)
    # The client's native threads may abort the process at an ordinary end, with all said.
    os._exit(0)


main()
