"""Make the golden tables with Spark and pack each with Spark's own answers.

usage: python -m tests.golden.generate [NAME ...] [--data FOLDER] [--list]

Each case becomes `<name>.tar.gz`: `<name>/table/`, a Delta table, and `<name>/expected/`, what
Spark says of that very table. Needs PySpark, Java and, the first time, Maven Central; the tests
need none of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.golden.answers import answer, commit_files, write_summary
from tests.golden.cases_cdf import CASES as CDF_CASES
from tests.golden.cases_deltalake import CASES as DELTALAKE_CASES
from tests.golden.cases_layout import CASES as LAYOUT_CASES
from tests.golden.cases_schema import CASES as SCHEMA_CASES
from tests.golden.cases_types import CASES as TYPE_CASES
from tests.golden.lab import Lab
from tests.support.components import start_spark

BUILDERS: dict[str, Callable[[Lab], None]] = {
    build.__name__: build
    for cases in (CDF_CASES, TYPE_CASES, SCHEMA_CASES, LAYOUT_CASES, DELTALAKE_CASES)
    for build in cases
}
NS_PER_MS = 1_000_000
HALF_MS_NS = 500_000


def strip_checksums(table: Path) -> None:
    """Take away Hadoop's `.name.crc` files; `_delta_log/<version>.crc` is Delta's and stays."""
    for path in table.rglob(".*.crc"):
        path.unlink()


def settle_times(table: Path) -> None:
    """Put each log file's modification time at the middle of its millisecond.

    Commit timestamps are those times in whole milliseconds, and an archive keeps them as decimal
    fractions: from the middle no rounding, here or in a reader's tar, reaches another one.
    """
    for path in (table / "_delta_log").rglob("*"):
        time_ns = path.stat().st_mtime_ns // NS_PER_MS * NS_PER_MS + HALF_MS_NS
        os.utime(path, ns=(time_ns, time_ns))


def times_ms(table: Path) -> dict[int, int]:
    """Modification times of the commit files, in ms since the epoch, by version."""
    files = commit_files(table)
    return {version: path.stat().st_mtime_ns // NS_PER_MS for version, path in files.items()}


def forget(case: Path, versions: set[int], summary: dict[str, Any]) -> None:
    """Take commits from the table after Spark has answered, and what hangs on them from the rest.

    The snapshot of the last of them stays: it is the base of the next version.
    """
    for version in versions:
        for path in (case / "table" / "_delta_log").glob(f"{version:020}.[jc]*"):
            if path.suffix in {".json", ".crc"}:
                path.unlink()
        if version != max(versions):
            shutil.rmtree(case / "expected" / "snapshots" / str(version))
            del summary["snapshots"][str(version)]
        for facts in ("ops", "timestamps", "cdf_errors"):
            summary[facts].pop(str(version), None)
    summary["versions"][0] = max(versions) + 1
    write_summary(summary, case / "expected")


def pack(folder: Path, archive: Path) -> None:
    """Write the folder's case as a pax archive, which keeps fractions of a second."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=9) as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder.parent)), recursive=False, filter=anonymous)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive with its times."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="tar")


def make(spark: SparkSession, name: str, scratch: Path, data: Path) -> None:
    """Build one table, let Spark answer for its copy elsewhere, pack both and unpack to check."""
    built = scratch / "built" / name / "table"
    built.parent.mkdir(parents=True)
    lab = Lab(spark, built)
    BUILDERS[name](lab)
    strip_checksums(built)
    settle_times(built)
    draft = scratch / f"{name}.tar.gz"
    pack(built.parent, draft)
    # A copy at another path: nothing of the session's caches, and no path of the builder, helps.
    unpack(draft, scratch / "copied")
    case = scratch / "copied" / name
    shutil.rmtree(built)
    summary = answer(
        spark,
        case / "table",
        case / "expected",
        across_schemas=lab.across_schemas,
        changes_from=lab.changes_from,
    )
    if lab.forgotten_later:
        forget(case, lab.forgotten_later, summary)
    strip_checksums(case / "table")
    packed = data / f"{name}.tar.gz"
    pack(case, packed)
    unpack(packed, scratch / "checked")
    want, got = times_ms(case / "table"), times_ms(scratch / "checked" / name / "table")
    assert want == got, f"{name}: commit times changed in the archive: {want} {got}"
    changes = summary.get("changes", {"startingVersion": "-", "rows": 0})
    print(
        f"{name}: versions {summary['versions']}, changes from {changes['startingVersion']}"
        f" ({changes['rows']} rows), {packed.stat().st_size} bytes",
        flush=True,
    )


def main() -> None:
    """Make the named cases, or all; a case that fails is told at the end, the others are kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(BUILDERS))
        return
    arguments.data.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        spark = start_spark(scratch)
        for name in arguments.names or BUILDERS:
            started = time.monotonic()
            try:
                make(spark, name, scratch, arguments.data)
            except Exception as error:  # noqa: BLE001 - the other cases are wanted all the same
                failed[name] = str(error)[:2000]
            print(f"  {time.monotonic() - started:.0f} s", flush=True)
        spark.stop()
    for name, words in failed.items():
        print(f"FAILED {name}: {words}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
