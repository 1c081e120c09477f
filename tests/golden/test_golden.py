"""The tables of data/, read by `tailer read`, against what Spark said of each. See README.md."""

from __future__ import annotations

import itertools
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.cli.main import main
from tests.golden.compare import (
    CHANGE_COLUMNS,
    comparable,
    difference,
    read_folder,
    replay,
    replayable,
    unchanged,
)
from tests.support.extent import WHOLE, ends, sampled

HERE = Path(__file__).parent

# Changes from the feed that the writer kept, or from its data files where it kept none.
CORE = (
    "cdf_dv",
    "cdf_dv_large_file",
    "cdf_ict",
    "cdf_ict_midway",
    "cdf_large_cdc_file",
    "cdf_log_cleaned",
    "cdf_log_cleaned_no_base",
    "cdf_overwrite_schema",
    "cdf_partition_strings",
    "cdf_partition_types",
    "cdf_partitioned",
    "cdf_replaced",
    "cdf_restore_dv",
    "cdf_schema_evolution",
    "cdf_times_backwards",
    "cdf_toggled",
    "cdf_types",
    "cdf_write_shapes",
)

# Changes of every other table, derived where no feed was kept.
EVERY_TABLE = (
    "ancient_dates",
    "ancient_dates_legacy",
    "clustered",
    "codecs",
    "converted",
    "delta_rs",
    "deltalake_0_12_0",
    "deltalake_0_15_3",
    "deltalake_0_17_4",
    "deltalake_0_19_2",
    "deltalake_0_19_2_cdf",
    "deltalake_0_22_3",
    "deltalake_0_25_5",
    "deltalake_0_25_5_cdf",
    "deltalake_1_0_2",
    "deltalake_1_1_4",
    "deltalake_1_1_4_cdf",
    "deltalake_1_4_2",
    "deltalake_1_4_2_cdf",
    "duplicates",
    "iceberg_compat",
    "legacy_format",
    "log_compaction",
    "log_compaction_stand_in",
    "mapping_back",
    "mapping_id",
    "mapping_id_cdf",
    "mapping_name",
    "mapping_name_cdf",
    "mapping_nested",
    "mapping_removed",
    "mapping_upgraded",
    "multi_part_checkpoint",
    "overwrite_schema",
    "partition_binary",
    "partition_widened",
    "plain",
    "plain_dv",
    "random_prefixes",
    "reorg_purge",
    "replace_where",
    "rowtracking",
    "rowtracking_backfilled",
    "rowtracking_cdf",
    "rowtracking_dropped",
    "rowtracking_dv",
    "rowtracking_mapping",
    "rowtracking_noop",
    "special_columns",
    "struct_stats_checkpoint",
    "toggled",
    "transactions",
    "truncated",
    "type_widening",
    "type_widening_cdf",
    "types",
    "v2_checkpoint_json",
    "v2_checkpoint_parquet",
    "variant",
    "variant_shredded",
    "void_column",
)

CASES = (*CORE, *EVERY_TABLE)

# Operations after which the rows are as before.
REWRITES = ("OPTIMIZE", "REORG")


@dataclass(frozen=True)
class Golden:
    """One unpacked case."""

    table: Path
    expected: Path
    summary: dict[str, Any]

    def changes(self) -> pa.Table:
        """Spark's change feed from `changes.startingVersion` to the last version."""
        return read_folder(self.expected / "changes")

    def snapshots(self) -> dict[int, pa.Table]:
        """Spark's rows at each version that it can still build."""
        counts = self.summary["snapshots"].items()
        versions = [int(version) for version, rows in counts if isinstance(rows, int)]
        return {v: read_folder(self.expected / "snapshots" / str(v)) for v in versions}

    def sources(self) -> list[str]:
        """Where changes may come from: its change data files, and in the whole run also all other
        files, which have tables of their own."""
        commits = (self.table / "_delta_log").glob("*.json")
        has_feed = any(b'"cdc"' in commit.read_bytes() for commit in commits)
        return ["auto", "derived"] if has_feed and WHOLE else ["auto"]

    def steps(self) -> dict[int, tuple[pa.Table, pa.Table]]:
        """By version, the snapshots before and after it, where both have the same columns."""
        snapshots = self.snapshots()
        told_wrong = self.summary.get("writer_inconsistent", [])
        return {
            version: (snapshots[version - 1], after)
            for version, after in snapshots.items()
            if version - 1 in snapshots
            and version not in told_wrong
            and replayable(snapshots[version - 1], after)
        }


GoldenCase = Callable[[str], Golden]


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenCase:
    """A case by its name, unpacked once: reading a table leaves no trace in it."""
    folder = tmp_path_factory.mktemp("golden")
    unpacked: dict[str, Golden] = {}

    def case(name: str) -> Golden:
        if name not in unpacked:
            with tarfile.open(HERE / "data" / f"{name}.tar.gz") as archive:
                archive.extractall(folder, filter="tar")
            expected = folder / name / "expected"
            summary = json.loads((expected / "summary.json").read_text(encoding="utf-8"))
            unpacked[name] = Golden(folder / name / "table", expected, summary)
        return unpacked[name]

    return case


class Reader:
    """`tailer read` and `tailer snapshot` into an Arrow file below a folder."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "rows.arrow"

    def changes(self, table: Path, first: int, last: int, source: str) -> pa.Table:
        """The changes of versions `first` to `last`; the status must be 0."""
        assert self.read_status(table, first, last, source) == 0
        return self._rows()

    def read_status(self, table: Path, first: int, last: int, source: str) -> int:
        """The exit status of reading the changes."""
        versions = ["--from", str(first), "--to", str(last)]
        output = ["--change-source", source, "--output", str(self.output)]
        return main(["read", str(table), *versions, *output])

    def snapshot(self, table: Path, version: int) -> pa.Table:
        """The rows at a version; the status must be 0."""
        output = ["--output", str(self.output)]
        assert main(["snapshot", str(table), "--version", str(version), *output]) == 0
        return self._rows()

    def _rows(self) -> pa.Table:
        with pa.OSFile(str(self.output)) as file:
            rows = pa.ipc.open_file(file).read_all()
        self.output.unlink()
        return rows


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Where this test reads to."""
    return Reader(tmp_path)


def replayed(case: Golden, reader: Reader, source: str) -> list[str]:
    """What is wrong with the changes of each version, told together. Versions that follow each
    other without a change of columns are read at once."""
    lines = []
    steps = case.steps()
    changes = pa.table({})
    for version, (before, after) in steps.items():
        if version - 1 not in steps:
            last = next(v for v in itertools.count(version) if v + 1 not in steps)
            changes = reader.changes(case.table, version, last, source)
        own = changes.filter(pc.equal(changes["_commit_version"], version))
        wrong = replay(before, own, after)
        names = comparable(after.schema)
        derived = source == "derived" or "changes" not in case.summary
        if derived and names == after.schema.names:  # rows may differ in a variant alone
            wrong += unchanged(own, names)
        lines += [f"version {version}: {line}" for line in wrong]
    return lines


def hold(differences: list[str]) -> None:
    """Fail with one line for each difference."""
    assert not differences, "\n".join(["", *differences])


def test_every_archive_is_tested_and_described() -> None:
    packed = {path.name.removesuffix(".tar.gz") for path in (HERE / "data").glob("*.tar.gz")}
    assert packed == {*CORE, *EVERY_TABLE}
    catalogue = (HERE / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(packed) if f"| `{name}` |" not in catalogue] == []


@pytest.mark.parametrize("name", CASES)
def test_the_change_feed_is_sparks(name: str, golden: GoldenCase, reader: Reader) -> None:
    case = golden(name)
    first, last = case.summary["versions"]
    if "changes" not in case.summary:  # Spark refuses every start; the test of refusals goes on
        assert [*case.summary["cdf_errors"]] == [str(v) for v in range(first, last + 1)]
        return
    start = case.summary["changes"]["startingVersion"]
    got = reader.changes(case.table, start, last, "auto")
    hold(difference(case.changes(), got))


@sampled
@pytest.mark.parametrize("name", CASES)
def test_changes_lead_from_snapshot_to_snapshot(
    name: str, golden: GoldenCase, reader: Reader
) -> None:
    case = golden(name)
    found = {source: replayed(case, reader, source) for source in case.sources()}
    hold([f"{source}: {line}" for source, lines in found.items() for line in lines])


@sampled
@pytest.mark.parametrize("name", CASES)
def test_a_snapshot_has_sparks_rows(name: str, golden: GoldenCase, reader: Reader) -> None:
    case = golden(name)
    lines = []
    for version, rows in ends(case.snapshots().items()):
        got = reader.snapshot(case.table, version)
        assert got.column("_change_type").to_pylist() == ["insert"] * got.num_rows
        assert got.column("_commit_version").to_pylist() == [version] * got.num_rows
        wrong = difference(rows, got.drop_columns([*CHANGE_COLUMNS]))
        lines += [f"version {version}: {line}" for line in wrong]
    hold(lines)


def test_a_read_crosses_a_replaced_table_and_a_feed_does_not(
    golden: GoldenCase, reader: Reader
) -> None:
    table = golden("cdf_replaced").table
    assert reader.changes(table, 0, 2, "auto").num_rows == 5
    for first, last in ((2, 3), (4, 5), (4, 6)):
        assert reader.read_status(table, first, last, "auto") == 0
    assert main(["tail", str(table), "--from", "0", "--to", "6"]) == 1


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("mapping_removed", 6),
        ("mapping_back", 8),  # mapped late: files from before it
        ("mapping_back", 15),  # removed, with the feature
        ("mapping_back", 21),  # mapped again
    ],
)
def test_rows_from_before_a_mapping_came_or_went_keep_their_values(
    name: str, last: int, golden: GoldenCase, reader: Reader
) -> None:
    case = golden(name)
    read = reader.changes(case.table, 0, last, "auto")
    after = case.snapshots()[last]
    assert replay(after.slice(0, 0), read, after) == []


@sampled
@pytest.mark.parametrize("name", CASES)
def test_a_feed_that_spark_lacks_is_refused(name: str, golden: GoldenCase, reader: Reader) -> None:
    case = golden(name)
    last = case.summary["versions"][1]
    # Spark refuses by the property alone. Where no row changes, nothing is missing either.
    told = {int(v) for v, operation in case.summary["ops"].items() if operation not in REWRITES}
    missing = [
        int(start)
        for start, words in case.summary.get("cdf_errors", {}).items()
        if "DELTA_MISSING_CHANGE_DATA" in words and int(start) <= max(told)
    ]
    tried = ends(missing)
    statuses = {start: reader.read_status(case.table, start, last, "cdf") for start in tried}
    assert statuses == dict.fromkeys(tried, 1)
