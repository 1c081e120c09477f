"""Golden tables without the feed, and the ways in which log and files may lie on disk."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.golden.cases_cdf import CDF, history, rows
from tests.golden.lab import Lab

SMALL_PARTS = {"spark.databricks.delta.checkpoint.partSize": "8"}
TOP_LEVEL_FORMAT = "spark.databricks.delta.checkpointV2.topLevelFileFormat"


def plain(lab: Lab) -> None:
    """Every plain operation, no feed, no row ids, copied on write."""
    lab.create(partitioned="part", enableDeletionVectors="false")
    history(lab)
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 5")
    lab.sql("UPDATE {t} SET val = val WHERE id < 10")
    lab.write(
        f"SELECT * FROM delta.`{lab.path}`", mode="overwrite", options={"dataChange": "false"}
    )
    lab.write(f"SELECT * FROM delta.`{lab.path}` WHERE id <> 3", mode="overwrite")


def toggled(lab: Lab) -> None:
    """The feed is on for a while, and rows of one file change before, during and after it."""
    lab.create(enableDeletionVectors="false")
    lab.write(rows(0, 8))
    lab.sql("UPDATE {t} SET val = 1 WHERE id = 0")
    lab.set(enableChangeDataFeed="true")
    lab.sql("UPDATE {t} SET val = 2 WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE id = 2")
    lab.set(enableChangeDataFeed="false")
    lab.sql("UPDATE {t} SET val = 3 WHERE id = 3")
    lab.sql("DELETE FROM {t} WHERE id = 4")


def plain_dv(lab: Lab) -> None:
    """Every plain operation with deletion vectors, which RESTORE makes smaller."""
    lab.create(partitioned="part", enableDeletionVectors="true")
    history(lab)
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 4")
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    lab.sql("DELETE FROM {t} WHERE id = 3")


def v2_checkpoint_json(lab: Lab) -> None:
    """V2 checkpoints, JSON with several sidecars; the commits before one are gone."""
    lab.create(
        partitioned="part",
        checkpointPolicy="v2",
        checkpointInterval="4",
        enableDeletionVectors="true",
    )
    with lab.conf({TOP_LEVEL_FORMAT: "json", **SMALL_PARTS}):
        history(lab)
    lab.forget(4)


def v2_checkpoint_parquet(lab: Lab) -> None:
    """V2 checkpoints, Parquet with several sidecars; the commits before one are gone."""
    lab.create(
        partitioned="part",
        checkpointPolicy="v2",
        checkpointInterval="4",
        enableDeletionVectors="false",
        **CDF,
    )
    with lab.conf({TOP_LEVEL_FORMAT: "parquet", **SMALL_PARTS}):
        history(lab)
    lab.forget(4)


def multi_part_checkpoint(lab: Lab) -> None:
    """Classic checkpoints in several parts; the commits before one are gone."""
    lab.create(partitioned="part", checkpointInterval="4", enableDeletionVectors="false")
    with lab.conf(SMALL_PARTS):
        history(lab)
    lab.forget(4)


def struct_stats_checkpoint(lab: Lab) -> None:
    """Checkpoints with statistics and partition values as structs, none as JSON."""
    lab.create(
        partitioned="part",
        checkpointInterval="4",
        checkpoint_writeStatsAsStruct="true",
        checkpoint_writeStatsAsJson="false",
        enableDeletionVectors="true",
    )
    history(lab)
    lab.forget(4)


def log_compaction(lab: Lab) -> None:
    """Compacted log files: never a source of changes, a stand-in for commits in a snapshot."""
    lab.create(partitioned="part", enableDeletionVectors="false")
    history(lab)
    lab.compact_log(1, 4)
    lab.compact_log(5, 9)


def log_compaction_stand_in(lab: Lab) -> None:
    """Commits 1 to 3 are gone, and stand in a compacted file on the checkpoint of version 0."""
    lab.create(partitioned="part", enableDeletionVectors="false")
    lab.checkpoint()
    history(lab)
    lab.compact_log(1, 3)
    lab.forgotten_later = {0, 1, 2, 3}  # Spark itself insists on every commit


def clustered(lab: Lab) -> None:
    """Liquid clustering, re-clustered by other columns; its columns are domain metadata."""
    lab.create(clustered="id, part")
    lab.write(rows(0, 9), files=2)
    lab.write(rows(9, 9))
    lab.sql("OPTIMIZE {t} FULL")
    lab.sql("UPDATE {t} SET val = 0 WHERE id = 4")
    lab.sql("ALTER TABLE {t} CLUSTER BY (name)")
    lab.sql("DELETE FROM {t} WHERE id = 5")
    lab.sql("OPTIMIZE {t} FULL")


def reorg_purge(lab: Lab) -> None:
    """REORG ... PURGE rewrites files without their deleted rows: no change at all."""
    lab.create(partitioned="part", enableDeletionVectors="true")
    lab.write(rows(0, 18), files=2)
    lab.sql("DELETE FROM {t} WHERE id IN (1, 4, 8)")
    lab.sql("REORG TABLE {t} APPLY (PURGE)")
    lab.sql("UPDATE {t} SET val = 0 WHERE id = 7")
    lab.sql("DELETE FROM {t} WHERE id = 2")
    lab.sql("REORG TABLE {t} APPLY (PURGE)")


def replace_where(lab: Lab) -> None:
    """Overwrites of a part of the rows: by partition, by predicate, dynamically."""
    lab.create(partitioned="part", enableDeletionVectors="false")
    lab.write(rows(0, 12), files=2)
    kept = f"SELECT * FROM delta.`{lab.path}`"
    lab.write(
        f"{kept} WHERE part = 1 AND id <> 4", mode="overwrite", options={"replaceWhere": "part = 1"}
    )
    lab.write(
        "SELECT 7L id, 'seven' name, 7D val, 1 part",
        mode="overwrite",
        options={"replaceWhere": "id = 7"},
    )
    lab.write(
        f"{kept} WHERE part = 2", mode="overwrite", options={"partitionOverwriteMode": "dynamic"}
    )
    lab.sql("INSERT INTO {t} REPLACE WHERE val > 2 SELECT 99L, 'replaced', 3D, 0")


def truncated(lab: Lab) -> None:
    """Everything deleted, twice, with rows between."""
    lab.create(enableDeletionVectors="true")
    lab.write(rows(0, 6), files=2)
    lab.sql("DELETE FROM {t} WHERE id = 2")
    lab.sql("DELETE FROM {t}")
    lab.write(rows(6, 3))
    lab.sql("DELETE FROM {t} WHERE true")


def random_prefixes(lab: Lab) -> None:
    """Files below random folder names instead of partition folders."""
    lab.create(
        partitioned="part",
        randomizeFilePrefixes="true",
        randomPrefixLength="3",
        enableDeletionVectors="true",
        **CDF,
    )
    history(lab)


def transactions(lab: Lab) -> None:
    """`txn` actions of an idempotent writer and of a stream, among the file actions."""
    lab.create()
    for version in (1, 2, 2, 5):  # the second write of 2 is skipped by Spark
        options = {"txnAppId": "loader", "txnVersion": str(version)}
        lab.write(rows(version * 10, 2), options=options)
    beside = lab.path.parent  # below the case's own folder it would be packed
    source = Path(f"{beside}.source")
    lab.spark.sql(rows(0, 4)).write.format("delta").save(str(source))
    stream = lab.spark.readStream.format("delta").load(str(source))
    writer = stream.writeStream.format("delta").trigger(availableNow=True)
    checkpoint = f"{beside}.checkpoint"
    writer.option("checkpointLocation", checkpoint).start(str(lab.path)).awaitTermination()
    lab.sql("DELETE FROM {t} WHERE id IN (1, 20)")


def iceberg_compat(lab: Lab) -> None:
    """IcebergCompatV2: partition columns are in the files too, the log's values win."""
    lab.create(
        partitioned="part",
        columnMapping_mode="name",
        enableIcebergCompatV2="true",
        enableDeletionVectors="false",
    )
    lab.write(rows(0, 9))
    lab.sql("UPDATE {t} SET part = 9 WHERE id = 2")
    lab.sql("DELETE FROM {t} WHERE id = 3")


def converted(lab: Lab) -> None:
    """CONVERT TO DELTA of files with names of their own, in folders that must be encoded."""
    lab.spark.sql(
        "SELECT id, concat('n', id) name, IF(id % 4 = 0, NULL, concat('p /%', id % 3)) p,"
        " DATE'2024-01-01' + CAST(id AS INT) % 2 d FROM range(12)"
    ).write.partitionBy("p", "d").parquet(str(lab.path))
    for number, file in enumerate(sorted(lab.path.rglob("*.parquet"))):
        file.rename(file.with_name(f"my file {number} %25 ä+.parquet"))
    for checksum in lab.path.rglob("*.crc"):
        checksum.unlink()
    lab.spark.sql(f"CONVERT TO DELTA parquet.`{lab.path}` PARTITIONED BY (p STRING, d DATE)")
    lab.set(**CDF)
    lab.sql("UPDATE {t} SET name = 'u' WHERE id < 4")
    lab.sql("DELETE FROM {t} WHERE p IS NULL")
    lab.sql("UPDATE {t} SET p = 'new/ü %41' WHERE id = 5")


def _arrow_rows(first: int, last: int) -> pa.Table:
    """Rows whose texts, bytes and lists are in each of Arrow's forms."""
    ids = range(first, last)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "s": pa.array([None if i % 5 == 4 else f"n{i}" for i in ids], pa.large_string()),
            "sv": pa.array([f"v{i}" for i in ids], pa.string_view()),
            "dic": pa.array([f"d{i % 2}" for i in ids]).dictionary_encode(),
            "ntz": pa.array(
                [dt.datetime(2020, 1, 1, 0, 0, i, 0, dt.UTC) for i in ids], pa.timestamp("us")
            ),
            "ts": pa.array(
                [dt.datetime(1960, 1, 1, 0, 0, i, 7, dt.UTC) for i in ids],
                pa.timestamp("us", "UTC"),
            ),
            "st": pa.array([{"a": i, "b": [i, None]} for i in ids]),
            "dec": pa.array([Decimal(i) / 4 for i in ids], pa.decimal128(38, 10)),
            "m": pa.array([[("k", i)] for i in ids], pa.map_(pa.string(), pa.int32())),
            "bin": pa.array([bytes([i]) for i in ids], pa.large_binary()),
            "ll": pa.array([[f"x{i}"] for i in ids], pa.large_list(pa.large_string())),
        }
    )


def delta_rs(lab: Lab) -> None:
    """A table that delta-rs alone has written: its merge, its cdc files, its checkpoint."""
    path = str(lab.path)
    write_deltalake(path, _arrow_rows(0, 8), configuration={"delta.enableChangeDataFeed": "true"})
    table = DeltaTable(path)
    table.update(updates={"s": "'up'"}, predicate="id < 2")
    table.delete("id = 3")
    merged = _arrow_rows(6, 11).set_column(1, "s", pa.array(["m"] * 5, pa.large_string()))
    merge = table.merge(merged, "t.id = s.id", source_alias="s", target_alias="t")
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    merge.when_not_matched_by_source_delete("t.id = 0").execute()
    table.optimize.compact()
    write_deltalake(table, _arrow_rows(20, 22), mode="append")
    write_deltalake(table, _arrow_rows(20, 21), mode="overwrite", predicate="id = 20")
    DeltaTable(path).create_checkpoint()
    table = DeltaTable(path)
    table.delete()
    write_deltalake(table, _arrow_rows(1, 3), mode="append")
    DeltaTable(path).restore(2)


CASES = (
    plain,
    plain_dv,
    toggled,
    v2_checkpoint_json,
    v2_checkpoint_parquet,
    multi_part_checkpoint,
    struct_stats_checkpoint,
    log_compaction,
    log_compaction_stand_in,
    clustered,
    reorg_purge,
    replace_where,
    truncated,
    random_prefixes,
    transactions,
    iceberg_compat,
    converted,
    delta_rs,
)
