"""What a query may get wrong, and the one sentence that it is told: no Spark is started here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tailer.errors import ConfigError
from tailer.setting_fields import settings_of
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.options import source_options
from tailer.spark.source import TailerSource
from tailer.spark.source.limited_stream import LimitedStreamReader
from tailer.store.objects.options import AzureOptions, GcsOptions
from tailer.store.s3.options import S3Options
from tailer.store.unity.options import CatalogOptions
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
RANGE = {"startingVersion": 0}


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Version 1 adds three rows, version 2 rewrites them."""
    built = TableBuilder(tmp_path / "t", SCHEMA)
    built.create()
    rows: list[dict[str, Any]] = [{"id": i, "name": "n"} for i in range(3)]
    first = built.add(rows)
    built.commit(first)
    built.commit(built.remove(first), built.add(rows[1:]))
    return built


def test_spark_hides_every_secret_of_a_store_or_is_not_given_it() -> None:
    hides = re.compile("(?i)secret|password|token|access[.]?key")  # spark.redaction.regex
    for options in (S3Options, AzureOptions, GcsOptions, CatalogOptions):
        for name, setting in settings_of(options).items():
            if not setting.secret or hides.search(name) or name == "access_key_id":
                continue  # AWS's key ids are names, and shown in its own logs
            with pytest.raises(ConfigError, match=f"'store.secret.{name}', which Spark hides"):
                source_options({"path": "t", f"store.{name}": "x"})


def source(folder: Path | str, **options: Any) -> TailerSource:
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    return TailerSource({"path": str(folder), **given})


def batch(folder: Path | str, **options: Any) -> int:
    """How many changes a batch has."""
    asked = source(folder, **options)
    reader = asked.reader(asked.schema())
    return sum(b.num_rows for p in reader.partitions() for b in reader.read(p))  # type: ignore[union-attr]


def stream(folder: Path | str, **options: Any) -> int:
    """How many changes the first batch of a stream has, behind the one that pins the place."""
    asked = source(folder, **options)
    reader = asked.streamReader(asked.schema())
    assert isinstance(reader, LimitedStreamReader)
    start = reader.initialOffset()
    if "start" in start:
        start = reader.latestOffset(start, ReadAllAvailable())
    end = reader.latestOffset(start, ReadAllAvailable())
    return sum(b.num_rows for p in reader.partitions(start, end) for b in reader.read(p))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"path": "/nowhere"}, r"\[table\] /nowhere: no Delta table there"),
    ({"path": ""}, "say which table"),
    ({"table": "x"}, "'table' of the tailer source is the same as 'path'; leave one out"),
    ({"path": "nowhere://bucket/t"}, "no store for 'nowhere://bucket/t'"),
    ({"startingVersion": -1}, "must be a version, latest, earliest or snapshot"),
    ({"startingVersion": "1.5"}, "must be a version, latest, earliest or snapshot"),
    ({"startingVersion": 99}, "the starting version is 99, and the newest is 2"),
    ({"startingTimestamp": "yesterday"}, "'yesterday', and must be a time such as"),
    ({"startingTimestamp": "2999-01-01"}, "no version is at or after 2999"),
    ({**RANGE, "startingTimestamp": "2020-01-01"}, "exclude each other; give one"),
    ({"startingOffset": "x"}, "must be an offset of this table as JSON"),
    ({**RANGE, "endingVersion": "x"},
     "option 'endingVersion' of the tailer source is 'x', and must be a version"),
    ({**RANGE, "maxFilesPerTrigger": 0},
     "is '0', and must be a whole number of files, greater than 0"),
    ({**RANGE, "maxBytesPerTrigger": "1x"}, "'maxBytesPerTrigger' of the tailer source is '1x'"),
    ({**RANGE, "ignoreDeletes": "perhaps"}, "must be true or false"),
    ({**RANGE, "ignoreChanges": "false"}, "is not known: it is for reading tables"),
    ({**RANGE, "excludeRegex": "part-1"}, "is not known: leave it out, and filter rows"),
    ({**RANGE, "withEventTimeOrder": "true"}, "always in the order of versions"),
    ({**RANGE, "readChangeFeed": "false"}, "the source reads nothing else"),
    ({**RANGE, "changeSource": "x"}, "must be one of auto, cdf, derived"),
    ({**RANGE, "onSchemaChange": "x"}, "must be one of fail, cast"),
    ({**RANGE, "key": "nope"}, "has no column 'nope'; it has id, name"),
    ({**RANGE, "columns": "id.x"}, "has no column 'id.x'; it has id, name"),
    ({**RANGE, "columns": "id,id"}, "each once"),
    ({**RANGE, "columns": '["id"'}, "as a JSON list"),
    ({**RANGE, "writerTimezone": "Mars/Base"}, "must be an IANA time zone name"),
    ({**RANGE, "diffMemoryBytesMax": "1m"},
     "must be a whole number of bytes, 16777216 .16 MiB. or greater"),
    ({**RANGE, "spillFolder": "/nowhere"}, "spillFolder /nowhere is not a folder"),
    ({**RANGE, "store__region": "x"}, "takes no option 'region'"),
    ({**RANGE, "path": "s3://b/t", "store__secret_key": "hush"},
     "option 'secret_key' of the S3 store is not known"),
    ({**RANGE, "path": "s3://b/t", "store__secret_access_key": "hush"},
     "access_key_id and secret_access_key go together"),
    ({**RANGE, "path": "az://c/t", "store__account_key": "hush"},
     "in its plans; call the option 'store.secret.account_key', which Spark hides"),
    ({**RANGE, "readChangeData": "false"}, "the source reads nothing else"),
    ({**RANGE, "frobnicate": 1},
     "option 'frobnicate' of the tailer source is not known; known are changeSource"),
    ({**RANGE, "startingVersoin": 1},
     r"option 'startingversoin' of the tailer source is not known .did you mean .*.$"),
    ({**RANGE, "versionAsOf": 1}, "changes are read from startingVersion to endingVersion"),
    ({**RANGE, "schemaTrackingLocation": "/x"}, "leave it out"),
]  # fmt: skip


@pytest.mark.parametrize("reads", [batch, stream])
@pytest.mark.parametrize(("options", "told"), WRONG, ids=[told for _, told in WRONG])
def test_each_mistake_is_one_sentence(
    options: dict[str, Any], told: str, reads: Any, table: TableBuilder
) -> None:
    given = {"folder": table.folder, **options}
    if "path" in options:
        given["folder"] = given.pop("path")
    with pytest.raises(TailerSourceError, match=told) as refused:
        reads(**given)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert "hush" not in sentence
    assert "feed" not in sentence.partition("known are")[2]


def test_a_range_and_a_streams_end_are_told_apart(table: TableBuilder) -> None:
    with pytest.raises(TailerSourceError, match="ends at version 0, before it starts at 1"):
        batch(table.folder, startingVersion=1, endingVersion=0)
    with pytest.raises(TailerSourceError, match="a batch read needs startingVersion"):
        batch(table.folder)
    assert stream(table.folder, startingVersion=0, endingVersion=1) == 3
    assert batch(table.folder, startingVersion=0, endingVersion=99) == 4, "to the newest"
    assert stream(table.folder, startingVersion=3) == 0, "the next version that there will be"


@pytest.mark.parametrize(
    "options",
    [{"columns": '["id"]'}, {"columns": "name, id"}, {"key": "id"}, {"startingVersion": " 0 "},
     {"readChangeFeed": "true"}, {"readChangeData": "true"},
     {"maxBytesPerTrigger": "10m"}, {"CHANGESOURCE": "Derived"}, {"writerTimezone": "Asia/Tokyo"}],
    ids=str,
)  # fmt: skip
def test_what_is_right_is_taken(options: dict[str, Any], table: TableBuilder) -> None:
    assert batch(table.folder, **{**RANGE, **options}) == 4
    assert stream(table.folder, **{**RANGE, **options}) == 4


@pytest.mark.parametrize("reads", [batch, stream])
def test_what_is_wrong_with_a_file_is_told_with_the_tables_name(
    reads: Any, table: TableBuilder
) -> None:
    (file, *_) = sorted(table.folder.glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(TailerSourceError, match=f"{table.folder}, version .*{file.name}: the data"):
        reads(table.folder, **RANGE)
    file.unlink()
    with pytest.raises(TailerSourceError, match=r"\[data_loss\] .*the data file is gone"):
        reads(table.folder, **RANGE)


def test_a_column_with_the_name_of_one_of_ours_has_to_be_left_out(tmp_path: Path) -> None:
    schema = pa.schema(
        [("_Change_Type", pa.string()), ("_event_id", pa.string()), ("n", pa.int64())]
    )
    table = TableBuilder(tmp_path / "t", schema)
    table.create()
    table.insert([{"_Change_Type": "x", "n": 1}])
    for options in (RANGE, {**RANGE, "columns": "_event_id", "withIds": "true"}):
        with pytest.raises(TailerSourceError, match="exclude it with the option select"):
            batch(table.folder, **options)
    assert batch(table.folder, **RANGE, columns="_event_id,n") == 1
    assert batch(table.folder, **RANGE, columns="n", withIds="true") == 1


def test_only_the_columns_of_the_table_may_be_null(table: TableBuilder) -> None:
    asked = source(table.folder, **RANGE, withIds="true")
    schema = asked.schema()
    assert {f.name for f in schema if f.nullable} == {"id", "name"}
    reader = asked.reader(schema)
    for partition in reader.partitions():
        for rows in reader.read(partition):
            assert [f.nullable for f in rows.schema] == [f.nullable for f in schema]  # type: ignore[union-attr]
            assert not any(c.null_count for c in rows.columns)  # type: ignore[union-attr]


def test_a_spill_folder_is_used_and_left_empty(table: TableBuilder, tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    folder.mkdir()
    assert batch(table.folder, **RANGE, spillFolder=folder) == 4
    assert not [*folder.iterdir()]
