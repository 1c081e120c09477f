"""The official Python client against our server, over every golden table, in both formats.

What it can't read is listed with its own words: an entry that no longer holds fails the test.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.share_server.goldens import TABLES, golden
from tests.share_server.official_client import rows
from tests.share_server.serving import Served

WAYS = ("snapshot:parquet", "snapshot:delta", "snapshot:auto", "changes:parquet", "changes:delta")
# The client chooses one of the two formats itself; that it does so is seen by a few.
AUTO = ("plain", "plain_dv", "mapping_name", "variant")

# Our own refusals: the parquet format has no words for these tables, and it is all that was asked.
NEEDS_DELTA = {
    "cdf_dv", "cdf_dv_large_file", "cdf_log_cleaned", "cdf_log_cleaned_no_base",
    "cdf_partition_types", "cdf_restore_dv", "cdf_types", "delta_rs", "iceberg_compat",
    "legacy_format", "mapping_back", "mapping_id", "mapping_id_cdf", "mapping_name",
    "mapping_name_cdf", "mapping_nested", "mapping_upgraded", "overwrite_schema",
    "partition_widened", "plain_dv", "random_prefixes", "reorg_purge", "rowtracking_dv",
    "rowtracking_mapping", "rowtracking_noop", "struct_stats_checkpoint", "truncated",
    "type_widening", "type_widening_cdf", "types", "v2_checkpoint_json", "variant",
    "variant_shredded",
}  # fmt: skip
DELTA_ONLY = "the table needs responseformat=delta"
UNANNOUNCED = "the table needs the reader features"
STRUCTS = "Found unmasked nulls for non-nullable StructArray"
LISTS = "Cannot cast list to non-list data types"
SCHEMAS = "Start and end version schemas are different"

# What the client can't do, by table and way (a prefix of it): its own error, or "" for rows that
# differ from Spark's. docs/sharing-server.md says the same to users.
LIMITS: dict[tuple[str, str], str] = {
    ("ancient_dates", "snapshot:parquet"): "",  # pandas has nanoseconds from 1677 to 2262
    ("ancient_dates", "changes:parquet"): "",
    ("ancient_dates", "snapshot:delta"): LISTS,
    ("ancient_dates", "changes:delta"): LISTS,
    ("ancient_dates_legacy", "snapshot:parquet"): "",
    ("ancient_dates_legacy", "snapshot:delta"): LISTS,
    ("cdf_dv_large_file", "changes:delta"): "",  # rows beyond the first batch of a file, unchanged
    ("cdf_overwrite_schema", "changes:delta"): SCHEMAS,
    ("cdf_partition_types", "changes:delta"): UNANNOUNCED,
    ("cdf_schema_evolution", "changes:parquet"): "",  # a new field of a struct is not filled in
    ("cdf_schema_evolution", "changes:delta"): SCHEMAS,
    ("cdf_types", "snapshot:delta"): STRUCTS,
    ("cdf_types", "changes:delta"): UNANNOUNCED,
    ("delta_rs", "changes:delta"): UNANNOUNCED,
    ("deltalake_0_19_2_cdf", "changes:delta"): SCHEMAS,
    ("deltalake_0_25_5_cdf", "changes:delta"): SCHEMAS,
    ("deltalake_1_1_4_cdf", "changes:delta"): SCHEMAS,
    ("deltalake_1_4_2_cdf", "changes:delta"): SCHEMAS,
    ("legacy_format", "snapshot:delta"): STRUCTS,
    ("mapping_id_cdf", "changes:delta"): SCHEMAS,
    ("mapping_name_cdf", "changes:delta"): SCHEMAS,
    ("mapping_nested", "changes:delta"): SCHEMAS,
    ("partition_widened", "snapshot:delta"): UNANNOUNCED,
    ("partition_widened", "changes:delta"): UNANNOUNCED,
    ("special_columns", "snapshot:parquet"): "",  # char(5) is not padded
    ("partition_binary", "snapshot:parquet"): "",  # the log's text, not its bytes
    ("special_columns", "snapshot:delta"): "",
    ("type_widening", "snapshot:delta"): UNANNOUNCED,
    ("type_widening_cdf", "snapshot:delta"): UNANNOUNCED,
    ("type_widening_cdf", "changes:delta"): UNANNOUNCED,
    ("types", "snapshot:delta"): STRUCTS,
    ("variant", "snapshot:delta"): UNANNOUNCED,
    ("variant", "snapshot:auto"): UNANNOUNCED,
    ("variant", "changes:delta"): UNANNOUNCED,
    ("variant_shredded", "snapshot:delta"): UNANNOUNCED,
    ("void_column", "snapshot:parquet"): "Could not parse datatype: void",
    ("void_column", "snapshot:delta"): "Unsupported Delta table type: 'void'",
}


@dataclass(frozen=True)
class Asked:
    """A request, Spark's rows, and the client's answer."""

    table: str
    way: str
    wanted: list[str]
    answer: dict[str, Any]

    def complaint(self) -> str | None:
        """What is not as it is listed."""
        error, got = self.answer.get("error"), self.answer.get("rows")
        if self.way.endswith("parquet") and self.table in NEEDS_DELTA:
            listed: str | None = DELTA_ONLY
        else:
            listed = LIMITS.get((self.table, self.way))
        if listed is None:
            if error is not None:
                return str(error)[:300]
            return (
                None if self.equal() else f"{len(got or [])} rows, not {len(self.wanted)}, differ"
            )
        if listed == "":
            return None if error is None and not self.equal() else f"no longer differs: {error}"
        return None if listed in (error or "") else f"{listed!r} is listed, and it said {error}"

    def equal(self) -> bool:
        got = self.answer.get("rows") or []
        if self.way == "changes:parquet":
            return got == self.wanted
        # The client's kernel has the times of files, which it sets to whole seconds.
        return _without_times(got) == _without_times(self.wanted)


def _without_times(lines: list[str]) -> list[str]:
    found = [json.loads(line) for line in lines]
    kept = ({k: v for k, v in row.items() if k != "_commit_timestamp"} for row in found)
    return sorted(json.dumps(row, sort_keys=True) for row in kept)


def _wanted(table: pa.Table, *, milliseconds: bool) -> list[str]:
    if milliseconds:
        at = table.schema.get_field_index("_commit_timestamp")
        times = table.column(at).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        table = table.set_column(at, "_commit_timestamp", times)
    return rows(table.column_names, [list(row.values()) for row in table.to_pylist()])


def ask(python: Path, server: Served, requests: list[list[Any]]) -> list[Any]:
    """The client's answers."""
    script = Path(__file__).parent / "official_client.py"
    done = subprocess.run(
        [python, script, server.profile, "golden.d"],
        input=json.dumps(requests), capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout))


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_client_has_sparks_rows(client_python: Path, goldens: Served) -> None:
    requests: list[list[Any]] = []
    wanted: list[list[str]] = []
    for name in TABLES:
        case = golden(goldens.config.parent, name)
        for way in WAYS:
            if way == "snapshot:auto" and name not in AUTO:
                continue
            if way.startswith("snapshot") and (there := case.snapshot()) is not None:
                requests.append([name, way, None])
                wanted.append(_wanted(there, milliseconds=False))
            elif way.startswith("changes") and case.start is not None:
                requests.append([name, way, case.start])
                wanted.append(_wanted(case.changes(), milliseconds=way == "changes:parquet"))
    answers = ask(client_python, goldens, requests)
    asked = [Asked(r[0], r[1], w, a) for r, w, a in zip(requests, wanted, answers, strict=True)]
    complaints = [f"{a.table} {a.way}: {said}" for a in asked if (said := a.complaint())]
    assert not complaints, "\n".join(["", *complaints])
    assert sum(a.equal() for a in asked) > 90


@pytest.mark.timeout(600)
def test_the_client_finds_its_way_around(client_python: Path, goldens: Served) -> None:
    program = """
import json, os, sys
import delta_sharing as ds
profile = sys.argv[1]
client = ds.SharingClient(profile)
url = f"{profile}#golden.d.cdf_partitioned"
print(json.dumps({
    "tables": sorted(f"{t.share}.{t.schema}.{t.name}" for t in client.list_all_tables()),
    "shares": [s.name for s in client.list_shares()],
    "schemas": [s.name for s in client.list_schemas(client.list_shares()[0])],
    "version": ds.get_table_version(url),
    "first": ds.get_table_version(url, starting_timestamp="2000-01-01T00:00:00Z"),
    "protocols": [ds.get_table_protocol(url, f).min_reader_version for f in (True, False)],
    "partitions": [ds.get_table_metadata(url, f).partition_columns for f in (True, False)],
    "limited": len(ds.load_as_pandas(url, limit=2, use_delta_format=False)),
    "travelled": [
        len(ds.load_as_pandas(url, version=1, use_delta_format=f)) for f in (True, False)
    ],
    "hinted": len(ds.load_as_pandas(url, jsonPredicateHints='{"op":"nonsense"}')),
    "all": len(ds.load_as_pandas(url)),
    "ranged": [
        len(ds.load_table_changes_as_pandas(url, 1, 2, use_delta_format=f)) for f in (True, False)
    ],
}), file=sys.stderr, flush=True)
os._exit(0)  # its native threads may abort the process at an ordinary end
"""
    done = subprocess.run(
        [client_python, "-c", program, goldens.profile],
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stderr.splitlines()[-1])
    assert found["tables"] == [f"golden.d.{name}" for name in TABLES]
    assert found["shares"] == ["golden"]
    assert found["schemas"] == ["d"]
    assert found["version"] == int(
        goldens.get("/shares/golden/schemas/d/tables/cdf_partitioned/version").headers[
            "delta-table-version"
        ]
    )
    assert found["first"] == 0
    assert found["protocols"] == [1, 1]
    assert found["partitions"] == [found["partitions"][0]] * 2 != [[], []]
    assert found["limited"] == 2
    assert found["travelled"][0] == found["travelled"][1] > 0
    assert found["hinted"] == found["all"] > 2
    assert found["ranged"][0] == found["ranged"][1] > 0
