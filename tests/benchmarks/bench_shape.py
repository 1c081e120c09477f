"""What choosing and computing costs a feed to JSON lines, and what a condition saves a read.

    python -m tests.benchmarks.bench_shape [--rounds 5] [--quick]

A condition on a number and two computed columns, beside a feed of the same rows as they are, for
large versions and for many small ones, by `tailer run --once`; and a condition that one of a
hundred files can meet, for `tailer read`, beside the whole table and beside load_cdf with the same
condition, in pyarrow and in DuckDB. All are whole processes, by turns; a first round is not
counted.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.feed_tables import feed_table, many_files
from tests.benchmarks.measure import Cost, by_turns, environment, print_costs, python
from tests.benchmarks.results import Results, options

FILE_ROWS, FILE_ROWS_QUICK = 170_000, 1_000
VERSIONS, VERSIONS_QUICK = 5_000, 50
FILES, CLUSTERED_ROWS, CLUSTERED_ROWS_QUICK = 100, 60_000, 100
#: Of the large table, and of the small versions: all rows meet the condition.
LARGE = ("quantity >= 0", "* replace (upper(token) as token, round(score * 2, 3) as score)")
#: The first and the last id of the few.
FEW = ("5", "20")
SMALL = ("amount >= 0", "* replace (upper(name) as name, round(amount * 2, 3) as amount)")


FEED = """
[daemon]
http = ""
state = "{name}-state"
[feeds.{name}]
table = "{table}"
from = "1"
{chosen}
[feeds.{name}.sink]
type = "jsonl"
path = "{name}.jsonl"
"""


def read_lines(table: Path, output: Path, where: str = "") -> list[str]:
    """The command line of a read of all changes to lines."""
    chosen = ("--where", where) if where else ()
    return python("tailer", "read", table, "--from", 1, "--output", output, *chosen)


def run_feed(table: Path, folder: Path, name: str, chosen: str = "") -> list[str]:
    """The command line of a run of a feed to lines, until its end."""
    config = folder / f"{name}.toml"
    config.write_text(FEED.format(name=name, table=table, chosen=chosen))
    return python("tailer", "run", config, "--once")


def compare(
    table: Path, chosen: tuple[str, str], folder: Path, name: str, rounds: int
) -> dict[str, Cost]:
    """The same rows as they are, and chosen and computed."""
    where, select = chosen
    shape = f'where = "{where}"\nselect = ["{select}"]'
    found = {
        "plain": run_feed(table, folder, "plain"),
        "shaped": run_feed(table, folder, "shaped", shape),
    }

    def forget(name: str) -> None:
        _remove(folder / f"{name}.jsonl")
        shutil.rmtree(folder / f"{name}-state", ignore_errors=True)

    costs = by_turns(found, rounds, before=forget)
    print_costs(costs, name)
    return costs


def prune(table: Path, folder: Path, rounds: int) -> dict[str, Cost]:
    """A condition that one file can meet, beside the whole and beside load_cdf."""
    output = folder / "pruned.jsonl"
    contenders = python("tests.benchmarks.contenders")
    found = {
        "whole": read_lines(table, output),
        "pruned": read_lines(table, output, "id between {} and {}".format(*FEW)),
        "load_cdf, pyarrow": [*contenders, "filter", str(table), *FEW, str(output)],
        "load_cdf, DuckDB": [*contenders, "duckdb", str(table), *FEW, str(output)],
    }
    rows: dict[str, int] = {}

    def count(name: str) -> None:
        rows[name] = output.read_bytes().count(b"\n")

    costs = by_turns(found, rounds, before=lambda _: _remove(output), after=count)
    print_costs(costs, "pruned")
    if len({count for name, count in rows.items() if name != "whole"}) != 1:
        sys.exit(f"not the same rows: {rows}")
    return costs


def _remove(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    asked = options(__doc__).parse_args()
    results, rounds = Results(asked.quick), 0 if asked.quick else asked.rounds
    large = feed_table(FILE_ROWS_QUICK if asked.quick else FILE_ROWS)
    clustered = many_files(FILES, CLUSTERED_ROWS_QUICK if asked.quick else CLUSTERED_ROWS)
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as name:
        folder = Path(name)
        costs = compare(large, LARGE, folder, "large", rounds)
        results.ratio("shape", costs["shaped"], costs["plain"])
        more = costs["shaped"].peak_mib - costs["plain"].peak_mib
        results.value("shape-memory", more)

        small = folder / "small"
        count = VERSIONS_QUICK if asked.quick else VERSIONS
        write = python("tests.benchmarks.runs_contenders", "write", small, count)
        subprocess.run(write, check=True, env=environment())
        costs = compare(small, SMALL, folder, "small", rounds)
        results.ratio("shape-small", costs["shaped"], costs["plain"])

        costs = prune(clustered, folder, rounds)
        results.ratio("prune", costs["pruned"], costs["whole"])
        best = min((costs["load_cdf, pyarrow"], costs["load_cdf, DuckDB"]), key=lambda c: c.wall_s)
        results.ratio("prune-peer", costs["pruned"], best)
    results.end()


if __name__ == "__main__":
    main()
