"""What a run has seen, as a file that a release carries. Its form is stable::

    {"schema": 1, "commit": "a61a3d3e", "version": "0.1.0", "command": "python -m ...",
     "begun": "2026-11-26T04:40:00Z", "seconds": 3600.0,
     "seeds": [5000, 5031], "rounds": 31, "failed": 0,
     "versions": 2100, "rows": 41000, "events": 310000,
     "by": {"store": {"s3": {"rounds": 9, "failed": 0, "times": 9}},
            "sink": {}, "proof": {}, "format": {}, "writer": {}, "table": {}, "operation": {},
            "fault": {}},
     "missing": {"azurite": "Node is missing"},
     "failures": [{"seed": 5007, "recipe": "...", "error": "...", "repeat": "..."}]}

``versions`` are those of the tables, ``rows`` those compared at the end of rounds, ``events`` those
that targets of events had. ``times`` counts a fault, or an operation of the writer, as often as it
was done; elsewhere it is the number of rounds. ``proof`` is what was promised and seen: ``mirror``,
``exactly once`` or ``at least once``. The file is written again after each round. Files of several
runs are added by :func:`merged`, or ``python -m tests.torture.summary FILE...``.
"""

from __future__ import annotations

import datetime as dt
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.support.source import ROOT

SCHEMA = 1
#: What rounds are counted by.
DIMENSIONS = ("store", "sink", "proof", "format", "writer", "table", "operation", "fault")
_SUMS = ("rounds", "failed", "versions", "rows", "events")


class Summary:
    """The counts of one run, written to a file as they grow, if there is one."""

    def __init__(
        self, first: int, missing: Mapping[str, str], file: Path | None, arguments: Sequence[str]
    ) -> None:
        self._file = file
        self._begun = time.monotonic()
        self.record: dict[str, Any] = {
            "schema": SCHEMA,
            "commit": _commit(),
            "version": version("delta-tailer"),
            "command": shlex.join(["python", "-m", "tests.torture", *_repeatable(arguments)]),
            "begun": dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "seconds": 0.0,
            "seeds": [first, first],
            **dict.fromkeys(_SUMS, 0),
            "by": {dimension: {} for dimension in DIMENSIONS},
            "missing": dict(missing),
            "failures": [],
        }

    def add(
        self,
        seed: int,
        traits: Mapping[str, Sequence[str]],
        sums: Mapping[str, int],
        failure: Mapping[str, Any] | None = None,
    ) -> None:
        """Count one round. ``traits`` are what it had of each dimension, a fault as often as it was
        done; ``sums`` are its versions, rows and events."""
        record = self.record
        record["seeds"][1] = seed
        for name, number in {**sums, "rounds": 1, "failed": int(failure is not None)}.items():
            record[name] += number
        for dimension, values in traits.items():
            for value in set(values):
                none = {"rounds": 0, "failed": 0, "times": 0}
                counts = record["by"][dimension].setdefault(value, none)
                counts["rounds"] += 1
                counts["failed"] += failure is not None
                counts["times"] += list(values).count(value)
        if failure is not None:
            record["failures"].append(dict(failure))
        self.write()

    def write(self) -> None:
        """Write the file as of now."""
        self.record["seconds"] = round(time.monotonic() - self._begun, 1)
        if self._file is not None:
            self._file.write_text(json.dumps(self.record, indent=1) + "\n")


def merged(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of several runs' records; what differs between runs is a list in their order."""
    runs = list(records)
    assert all(run["schema"] == SCHEMA for run in runs), "a summary has another form"
    by: dict[str, dict[str, dict[str, int]]] = {dimension: {} for dimension in DIMENSIONS}
    for run in runs:
        for dimension, values in run["by"].items():
            for value, counts in values.items():
                total = by[dimension].setdefault(value, dict.fromkeys(counts, 0))
                for name, number in counts.items():
                    total[name] += number
    each = {name: [run[name] for run in runs] for name in ("commit", "command", "begun", "seeds")}
    return {
        "schema": SCHEMA,
        **each,
        "seconds": sum(run["seconds"] for run in runs),
        **{name: sum(run[name] for run in runs) for name in _SUMS},
        "by": {dimension: dict(sorted(values.items())) for dimension, values in by.items()},
        "missing": {name: why for run in runs for name, why in run["missing"].items()},
        "failures": [failure for run in runs for failure in run["failures"]],
    }


def _repeatable(arguments: Sequence[str]) -> list[str]:
    """The arguments without ``--summary FILE``, which says nothing of the rounds."""
    words = list(arguments)
    if "--summary" in words:
        at = words.index("--summary")
        del words[at : at + 2]
    return words


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    print(json.dumps(merged(json.loads(Path(name).read_text()) for name in sys.argv[1:]), indent=1))
