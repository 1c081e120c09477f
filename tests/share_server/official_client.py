"""Reads shared tables with the official Python client; runs in a venv of its own.

    python official_client.py PROFILE SHARE.SCHEMA < requests.json > answers.json

A request is `[table, what, version]` with what one of `snapshot:parquet`, `snapshot:delta`,
`snapshot:auto`, `changes:parquet` and `changes:delta`; its answer `{"rows": [...]}` or
`{"error": text}`. Rows are sorted JSON texts, made by `shown` from whatever pandas has.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import io
import json
import math
import os
import sys
from typing import Any

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)  # noqa: UP017 - as old as the client allows


def shown(value: Any) -> Any:
    """A value as JSON, the same whichever type a library gave it."""
    if hasattr(value, "tolist") and not isinstance(value, bytes):  # NumPy's values and arrays
        value = value.tolist()
    if hasattr(value, "to_pydatetime"):
        value = None if value != value else value.to_pydatetime(warn=False)  # noqa: PLR0124 - NaT
    if isinstance(value, float | decimal.Decimal | int) and not isinstance(value, bool):
        # A column of numbers with nulls is one of floats in pandas.
        return None if math.isnan(value) else f"{float(value):.15g}"
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=EPOCH.tzinfo)
        return f"{(aware - EPOCH) // dt.timedelta(microseconds=1)} us"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(k): shown(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value if value is None or isinstance(value, bool | str) else str(value)


def rows(columns: list[str], records: list[list[Any]]) -> list[str]:
    """Sorted texts of rows."""
    lines = [dict(zip(columns, map(shown, record), strict=True)) for record in records]
    return sorted(json.dumps(line, sort_keys=True) for line in lines)


def ask(url: str, what: str, version: int | None) -> Any:
    """The client's pandas frame."""
    import delta_sharing  # type: ignore[import-not-found]  # it is in a venv of its own

    kind, form = what.split(":")
    use_delta = {"parquet": False, "delta": True, "auto": None}[form]
    if kind == "snapshot":
        return delta_sharing.load_as_pandas(url, version=version, use_delta_format=use_delta)
    return delta_sharing.load_table_changes_as_pandas(
        url, starting_version=version, use_delta_format=use_delta
    )


def main() -> None:
    """Answer all requests."""
    profile, schema = sys.argv[1:]
    answers: list[dict[str, Any]] = []
    for table, what, version in json.load(sys.stdin):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):  # the client prints as it goes
                frame = ask(f"{profile}#{schema}.{table}", what, version)
            records = [list(r) for r in frame.astype(object).itertuples(index=False, name=None)]
            answers.append({"rows": rows(list(frame.columns), records)})
        except BaseException as e:  # noqa: BLE001 - a panic of its kernel is an answer as well
            answers.append({"error": f"{type(e).__name__}: {e}"})
    json.dump(answers, sys.stdout)
    sys.stdout.flush()
    # The client's native threads may abort the process at an ordinary end, with all said.
    os._exit(0)


if __name__ == "__main__":
    main()
