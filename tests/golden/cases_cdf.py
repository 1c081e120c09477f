"""Golden tables with the change data feed on: every way of writing, times, gaps, big files."""

from __future__ import annotations

import os

from tests.golden.lab import Lab

CDF = {"enableChangeDataFeed": "true"}
DAY_S = 86_400

# One task, and a row group every so many rows: small files with the shape of large ones.
ROW_GROUPS = {"parquet.block.row.count.limit": "2500", "parquet.writer.version": "v2"}


def rows(first: int, count: int) -> str:
    """A query for `count` rows of the usual columns from id `first` on, with nulls among them."""
    return (
        f"SELECT id, IF(id % 6 = 5, NULL, concat('name ', id)) name, id * 0.25D val,"
        f" CAST(id % 3 AS INT) part FROM range({first}, {first + count})"
    )


def history(lab: Lab) -> None:
    """Versions 1 to 10 of a table with the usual columns: each plain operation of Delta."""
    lab.write(rows(0, 24), files=2)
    lab.sql("UPDATE {t} SET val = val + 100 WHERE id % 7 = 0")
    lab.sql("DELETE FROM {t} WHERE id % 5 = 1")
    lab.sql(
        "MERGE INTO {t} t USING (SELECT id * 2 id, 'merged' name FROM range(12, 24)) s"
        " ON t.id = s.id"
        " WHEN MATCHED AND s.id % 3 = 0 THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET t.name = s.name"
        " WHEN NOT MATCHED THEN INSERT (id, name, val, part) VALUES (s.id, s.name, NULL, 1)"
        " WHEN NOT MATCHED BY SOURCE AND t.id < 4 THEN UPDATE SET t.val = -1"
    )
    lab.write(rows(22, 14))  # some rows stand twice now
    lab.sql("OPTIMIZE {t}")
    lab.sql("DELETE FROM {t} WHERE part = 2")
    lab.sql("UPDATE {t} SET part = 2, name = 'moved' WHERE id IN (3, 4)")
    lab.sql("DELETE FROM {t} WHERE id = 9")
    lab.write(rows(100, 6), mode="overwrite")


def cdf_partitioned(lab: Lab) -> None:
    """Append, update, delete, merge, optimize and overwrite, copied on write."""
    lab.create(partitioned="part", enableDeletionVectors="false", **CDF)
    history(lab)


def cdf_dv(lab: Lab) -> None:
    """The same with deletion vectors; the overwrite removes files whose rows they hide."""
    lab.create(partitioned="part", enableDeletionVectors="true", **CDF)
    history(lab)


def cdf_write_shapes(lab: Lab) -> None:
    """Commits that write cdc files unexpectedly, or none though rows change."""
    lab.create(partitioned="part", **CDF)
    lab.write(rows(0, 12), files=2)
    lab.sql(  # insert-only: adds, no cdc files
        "MERGE INTO {t} t USING (SELECT id FROM range(10, 14)) s ON t.id = s.id"
        " WHEN NOT MATCHED THEN INSERT (id, name, val, part) VALUES (s.id, 'new', 0, 1)"
    )
    lab.write(
        "SELECT 50L id, 'only' name, 1D val, 1 part",
        mode="overwrite",
        options={"replaceWhere": "part = 1"},
    )
    lab.write(
        "SELECT 2L id, 'kept?' name, 1D val, 2 part",
        mode="overwrite",
        options={"replaceWhere": "id = 2"},  # not a partition column: rewrites files
    )
    lab.write(
        "SELECT id, 'dynamic' name, 2D val, 0 part FROM range(60, 62)",
        mode="overwrite",
        options={"partitionOverwriteMode": "dynamic"},
    )
    lab.sql("DELETE FROM {t} WHERE part = 0")  # whole partitions: removes, no cdc files
    lab.sql("UPDATE {t} SET val = 9 WHERE id = -1")  # no row matches
    lab.write(rows(70, 6), files=2)
    lab.write(  # a compaction by hand: rows are rewritten, none changes
        f"SELECT * FROM delta.`{lab.path}`", mode="overwrite", options={"dataChange": "false"}
    )
    lab.sql("UPDATE {t} SET val = val")  # pre- and postimages are equal
    lab.sql("DELETE FROM {t}")
    lab.write(rows(80, 3))


def cdf_schema_evolution(lab: Lab) -> None:
    """Columns and nested fields come by mergeSchema, ALTER TABLE and MERGE."""
    merge_schema = {"mergeSchema": "true"}
    lab.create("id INT, a STRING", **CDF)
    lab.write("SELECT CAST(id AS INT) id, 'one' a FROM range(3)")
    lab.write("SELECT 3 id, 'two' a, array(1, NULL) b", options=merge_schema)
    lab.sql("UPDATE {t} SET a = 'changed' WHERE id IN (0, 3)")
    lab.sql("ALTER TABLE {t} ADD COLUMNS (c STRUCT<x: INT> FIRST)")
    lab.sql("INSERT INTO {t} (id, a, b, c) VALUES (4, 'three', array(), named_struct('x', 1))")
    lab.sql("ALTER TABLE {t} ADD COLUMNS (c.y STRING AFTER x, d DATE AFTER id)")
    lab.sql("UPDATE {t} SET c = named_struct('x', 2, 'y', 'deep') WHERE id = 0")
    lab.sql("DELETE FROM {t} WHERE id = 1")
    lab.sql(
        "MERGE WITH SCHEMA EVOLUTION INTO {t} t USING"
        " (SELECT 4 id, 'merged' a, map('k', 1L) e UNION ALL SELECT 5, 'new', NULL) s"
        " ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    lab.sql("ALTER TABLE {t} ALTER COLUMN a AFTER b")
    lab.sql("DELETE FROM {t} WHERE id = 3")


def cdf_restore_dv(lab: Lab) -> None:
    """RESTORE brings back smaller deletion vectors, removed files, and an emptied table."""
    lab.create(enableDeletionVectors="true", **CDF)
    lab.write(rows(0, 12))
    lab.sql("DELETE FROM {t} WHERE id IN (1, 5)")
    lab.sql("DELETE FROM {t} WHERE id IN (2, 6, 7)")
    lab.sql("UPDATE {t} SET name = 'updated' WHERE id = 3")
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    lab.sql("DELETE FROM {t} WHERE id = 8")
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 1")
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 6")
    lab.sql("OPTIMIZE {t}")
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 3")
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 0")
    lab.write(rows(20, 2))


def cdf_toggled(lab: Lab) -> None:
    """Switched on late, off, on again. While it is off, whole files come and go, no more."""
    lab.create(partitioned="part", enableDeletionVectors="false")
    lab.write(rows(0, 6))
    lab.sql("DELETE FROM {t} WHERE part = 0")
    lab.set(enableChangeDataFeed="true")
    lab.sql("UPDATE {t} SET val = 2 WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE id = 2")
    lab.set(enableChangeDataFeed="false")
    lab.write(rows(6, 3))
    lab.sql("DELETE FROM {t} WHERE part = 2")
    lab.set(enableChangeDataFeed="true")
    lab.sql("UPDATE {t} SET val = 4 WHERE id = 4")
    lab.sql("DELETE FROM {t} WHERE id = 1")


def _age(lab: Lab, ages_s: dict[int, int]) -> None:
    """Set the modification times of commit files back by so many seconds."""
    for version, age_s in ages_s.items():
        path = lab.log / f"{version:020}.json"
        time_s = path.stat().st_mtime - age_s
        os.utime(path, (time_s, time_s))


def cdf_times_backwards(lab: Lab) -> None:
    """File times that run backwards and stand still: commit timestamps still grow."""
    lab.create(**CDF)
    for first in range(5):
        lab.write(rows(first, 1))
    lab.sql("DELETE FROM {t} WHERE id = 2")
    hour_s = 3600
    _age(lab, {0: DAY_S, 1: 9 * hour_s, 2: 10 * hour_s, 3: 8 * hour_s, 4: 3 * DAY_S, 5: DAY_S})
    fifth, sixth = (lab.log / f"{version:020}.json" for version in (5, 6))
    os.utime(sixth, ns=(fifth.stat().st_mtime_ns, fifth.stat().st_mtime_ns))


def cdf_ict(lab: Lab) -> None:
    """In-commit timestamps from the start; the files' times say something else."""
    lab.create(enableInCommitTimestamps="true", **CDF)
    lab.write(rows(0, 3))
    lab.sql("UPDATE {t} SET val = 5 WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE id = 2")
    _age(lab, {1: DAY_S, 2: 2 * DAY_S})


def cdf_ict_midway(lab: Lab) -> None:
    """In-commit timestamps from version 3 on, file times before."""
    lab.create(**CDF)
    lab.write(rows(0, 3))
    lab.sql("UPDATE {t} SET val = 5 WHERE id = 1")
    lab.set(enableInCommitTimestamps="true")
    lab.sql("DELETE FROM {t} WHERE id = 2")
    lab.write(rows(3, 2))
    _age(lab, {0: DAY_S, 4: DAY_S, 5: 2 * DAY_S})


def cdf_dv_large_file(lab: Lab) -> None:
    """A file of eight row groups loses rows at their edges; few changes, large file."""
    lab.create("id BIGINT, name STRING, part INT", enableDeletionVectors="true", **CDF)
    with lab.conf(ROW_GROUPS):
        lab.write("SELECT id, concat('n', id % 8) name, 0 part FROM range(0, 20000, 1, 1)")
    lab.sql("DELETE FROM {t} WHERE id IN (0, 2499, 2500, 19999)")
    lab.sql("UPDATE {t} SET name = 'updated' WHERE id IN (2501, 7499)")
    lab.sql("DELETE FROM {t} WHERE id BETWEEN 5000 AND 7499 AND id % 2 = 0")
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 3")


def cdf_large_cdc_file(lab: Lab) -> None:
    """An update's cdc file of several row groups, pre- and postimages in it."""
    lab.create("id BIGINT, name STRING, part INT", enableDeletionVectors="false", **CDF)
    lab.write("SELECT id, concat('n', id % 8) name, 0 part FROM range(0, 4000, 1, 1)")
    with lab.conf({**ROW_GROUPS, "parquet.block.row.count.limit": "700"}):
        lab.sql("UPDATE {t} SET part = 1 WHERE id % 2 = 0")
        lab.sql("DELETE FROM {t} WHERE id % 3 = 0")


def cdf_replaced(lab: Lab) -> None:
    """REPLACE TABLE, empty and AS SELECT: each makes another table, by its id, at the same place.

    Spark reads changes over the last replacement; a feed belongs to one table, and starts after.
    """
    lab.changes_from = 6
    lab.create("id INT, a STRING, part INT", partitioned="part", **CDF)
    lab.sql("INSERT INTO {t} VALUES (1, 'one', 0), (2, 'two', 1), (3, NULL, NULL)")
    lab.sql("UPDATE {t} SET a = 'uno' WHERE id = 1")
    lab.create("id INT, k STRING, b DOUBLE", partitioned="k", verb="REPLACE", **CDF)
    lab.sql("INSERT INTO {t} VALUES (10, 'x', 1.5), (11, 'y', NULL)")
    lab.sql(
        "CREATE OR REPLACE TABLE {t} USING delta TBLPROPERTIES"
        " ('delta.enableChangeDataFeed' = 'true')"
        " AS SELECT id * 10 id, b, array(k) ks FROM {t}"
    )
    lab.sql("DELETE FROM {t} WHERE id = 110")


def cdf_overwrite_schema(lab: Lab) -> None:
    """One table whose columns and partitioning change in the commits that overwrite its rows."""
    lab.across_schemas = True
    replace = {"overwriteSchema": "true"}
    lab.create("id INT, a STRING, part INT", partitioned="part", **CDF)
    lab.sql("INSERT INTO {t} VALUES (1, 'one', 0), (2, 'two', 1), (3, NULL, NULL)")
    lab.sql("UPDATE {t} SET a = 'uno' WHERE id = 1")
    other = "SELECT CAST(id AS INT) id, concat('k', id % 2) k, id * 0.5D b FROM range(10, 14)"
    lab.write(other, mode="overwrite", options=replace, partitioned="k")
    lab.sql("UPDATE {t} SET b = -1 WHERE id = 11")
    lab.write("SELECT 2 id, array('k') ks, 1 part", mode="overwrite", options=replace)
    lab.sql("DELETE FROM {t} WHERE id = 2")


def cdf_log_cleaned(lab: Lab) -> None:
    """Old commits are gone; the checkpoint of version 4 is where the table begins."""
    lab.create(partitioned="part", enableDeletionVectors="true", checkpointInterval="4", **CDF)
    history(lab)
    lab.forget(4)


def cdf_log_cleaned_no_base(lab: Lab) -> None:
    """Versions 6 and 7 have commits but no checkpoint to stand on; 8 has one."""
    lab.create(partitioned="part", enableDeletionVectors="true", checkpointInterval="4", **CDF)
    history(lab)
    lab.forget(6, checkpoints_before=8)


CASES = (
    cdf_partitioned,
    cdf_dv,
    cdf_write_shapes,
    cdf_schema_evolution,
    cdf_restore_dv,
    cdf_toggled,
    cdf_times_backwards,
    cdf_ict,
    cdf_ict_midway,
    cdf_dv_large_file,
    cdf_large_cdc_file,
    cdf_replaced,
    cdf_overwrite_schema,
    cdf_log_cleaned,
    cdf_log_cleaned_no_base,
)
