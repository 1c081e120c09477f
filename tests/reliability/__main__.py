"""Add what runs have seen to docs/reliability.json, and write the pages' tables from it.

    TAILER_TORTURE_RESULTS=seen.jsonl make torture
    python -m tests.reliability --seen seen.jsonl --torture summary.json --soak FOLDER
    python -m tests.reliability --lies lies.jsonl

A component's newer lines replace its older ones.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.reliability.tables import DATA, read, with_lies, with_seen
from tests.soak.verdict import judge, picture
from tools.docs_tables import write_tables

PICTURE = DATA.with_name("reliability-soak.svg")


def _soak_of(folder: Path) -> dict[str, Any]:
    """What a soak's folder says so far; draws its picture."""
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    last = samples[-1]
    title = f"{last['feeds']:.0f} feeds, {last['hours']:.1f} hours, {last['commits']} commits"
    PICTURE.write_text(picture(samples, title), encoding="utf-8")
    measures = [
        {name: round(x, 3) if isinstance(x, float) else x for name, x in asdict(one).items()}
        for one in judge(samples)
    ]
    return {
        "feeds": int(last["feeds"]), "hours": round(last["hours"], 2), "commits": last["commits"],
        **json.loads((folder / "begun.json").read_text()), "measures": measures,
    }  # fmt: skip


def _torture_of(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without what is of one machine alone: its paths, and what programs said there."""
    failures = [{"seed": one["seed"], "recipe": one["recipe"]} for one in summary["failures"]]
    rest = {name: value for name, value in summary.items() if name != "command"}
    return {**rest, "failures": failures}


def main() -> None:
    """Add results to the data, and write the page from them."""
    parser = argparse.ArgumentParser(prog="tests.reliability", description=__doc__)
    parser.add_argument("--seen", type=Path, help="lines of TAILER_TORTURE_RESULTS")
    parser.add_argument("--lies", type=Path, help="results of tests.hostile.peer_trial")
    parser.add_argument("--torture", type=Path, help="a summary of tests.torture")
    parser.add_argument("--soak", type=Path, help="the folder of a soak")
    asked = parser.parse_args()
    data = read()
    if asked.seen:
        new = [json.loads(line) for line in asked.seen.read_text().splitlines()]
        data["seen"] = with_seen(data["seen"], new)
    if asked.lies:
        new = [json.loads(line) for line in asked.lies.read_text().splitlines()]
        data["lies"] = with_lies(data.get("lies", []), new)
    if asked.torture:
        data["torture"] = _torture_of(json.loads(asked.torture.read_text()))
    if asked.soak:
        data["soak"] = _soak_of(asked.soak)
    DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    write_tables()


if __name__ == "__main__":
    main()
