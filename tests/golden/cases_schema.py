"""Golden tables whose columns or rows have identities: mapping, widening, row tracking."""

from __future__ import annotations

from tests.golden.cases_cdf import CDF, history, rows
from tests.golden.lab import Lab

MAPPED = (
    "id BIGINT, `col a` STRING, `x.y` DOUBLE, `part key` INT, st STRUCT<`f 1`: INT, g: STRING>,"
    " kv MAP<STRING, STRUCT<h: INT>>"
)


def _mapped_rows(first: int, last: int, columns: str) -> str:
    return (
        f"INSERT INTO {{t}} ({columns}) SELECT id, concat('a', id), id * 0.5D, id % 2,"
        f" named_struct('f', id, 'g', 'gee'), map('k', named_struct('h', id))"
        f" FROM range({first}, {last})"
    )


def _mapped(lab: Lab, mode: str, **properties: str) -> None:
    """Rename, drop, add and re-add columns between writes; data files know physical names alone."""
    lab.across_schemas = True
    mapping = {"columnMapping_mode": mode, "enableDeletionVectors": "false"}
    lab.create(MAPPED, partitioned="`part key`", **mapping, **properties)
    lab.sql(_mapped_rows(0, 6, "id, `col a`, `x.y`, `part key`, st, kv"))
    lab.sql("UPDATE {t} SET `x.y` = -1 WHERE id = 1")
    lab.sql("ALTER TABLE {t} ADD COLUMNS (extra DATE)")
    lab.sql("UPDATE {t} SET extra = DATE'2020-02-02' WHERE id IN (2, 3)")
    lab.sql("ALTER TABLE {t} RENAME COLUMN `col a` TO `name,;{}()=`")
    lab.sql("ALTER TABLE {t} RENAME COLUMN `part key` TO `part`")
    lab.sql("ALTER TABLE {t} RENAME COLUMN st.`f 1` TO `f one`")
    lab.sql(_mapped_rows(6, 9, "id, `name,;{}()=`, `x.y`, part, st, kv"))
    lab.sql("DELETE FROM {t} WHERE id IN (0, 7)")
    lab.sql("ALTER TABLE {t} DROP COLUMN `x.y`")
    lab.sql("UPDATE {t} SET st.g = 'new' WHERE id = 4")
    lab.sql("ALTER TABLE {t} ADD COLUMNS (`x.y` STRING)")  # the name returns, its values do not
    lab.sql("UPDATE {t} SET `x.y` = 'text' WHERE id = 5")
    lab.sql("OPTIMIZE {t}")
    lab.sql("DELETE FROM {t} WHERE part = 1 AND id > 3")


def mapping_name(lab: Lab) -> None:
    """Column mapping by name, no feed."""
    _mapped(lab, "name")


def mapping_name_cdf(lab: Lab) -> None:
    """Column mapping by name with the feed on."""
    _mapped(lab, "name", **CDF)


def mapping_id(lab: Lab) -> None:
    """Column mapping by field id, no feed."""
    _mapped(lab, "id")


def mapping_id_cdf(lab: Lab) -> None:
    """Column mapping by field id with the feed on."""
    _mapped(lab, "id", **CDF)


def mapping_upgraded(lab: Lab) -> None:
    """Mapping is switched on for a table that has files with logical names."""
    lab.create(partitioned="part", enableDeletionVectors="true")
    lab.write(rows(0, 9))
    lab.set(columnMapping_mode="name", minReaderVersion="3", minWriterVersion="7")
    lab.sql("ALTER TABLE {t} RENAME COLUMN val TO amount")
    lab.sql("UPDATE {t} SET amount = 0 WHERE id < 3")
    lab.sql("ALTER TABLE {t} DROP COLUMN name")
    lab.sql("DELETE FROM {t} WHERE id = 5")
    lab.write("SELECT 20L id, 1.5D amount, 2 part")


def mapping_removed(lab: Lab) -> None:
    """Mapping is removed, which rewrites every file under the names that users see."""
    lab.create(
        "id INT, name STRING, part INT, st STRUCT<a: INT>",
        partitioned="part",
        columnMapping_mode="name",
        enableDeletionVectors="false",
        **CDF,
    )
    lab.sql("INSERT INTO {t} SELECT id, concat('n', id), id % 2, struct(id) FROM range(4)")
    lab.sql("ALTER TABLE {t} RENAME COLUMN name TO title")
    lab.sql("UPDATE {t} SET title = 'u' WHERE id = 1")
    lab.set(columnMapping_mode="none")
    lab.sql("UPDATE {t} SET st.a = 9 WHERE id = 2")
    lab.sql("DELETE FROM {t} WHERE id = 1")


def mapping_back(lab: Lab) -> None:
    """Mapping comes late, goes with its feature, and comes again; columns are renamed each time."""
    lab.create(
        "id INT, name STRING, part INT, st STRUCT<a: INT, b: STRING>",
        partitioned="part",
        enableDeletionVectors="false",
        **CDF,
    )
    lab.sql("INSERT INTO {t} SELECT id, concat('n', id), id % 2, struct(id, 'x') FROM range(3)")
    lab.set(columnMapping_mode="name")
    lab.sql("ALTER TABLE {t} RENAME COLUMN name TO title")
    lab.sql("ALTER TABLE {t} RENAME COLUMN st.a TO c")
    lab.sql("ALTER TABLE {t} RENAME COLUMN part TO half")
    lab.sql("ALTER TABLE {t} ADD COLUMN name STRING")
    lab.sql("INSERT INTO {t} SELECT 3, 't3', 1, struct(3, 'y'), 'new'")
    lab.sql("UPDATE {t} SET title = 'u' WHERE id = 1")
    lab.sql("ALTER TABLE {t} DROP FEATURE columnMapping")
    lab.sql("UPDATE {t} SET st.c = 9 WHERE id = 2")
    lab.sql("INSERT INTO {t} SELECT 4, 't4', 0, struct(4, 'z'), 'plain'")
    lab.set(columnMapping_mode="name")
    lab.sql("ALTER TABLE {t} RENAME COLUMN title TO label")
    lab.sql("ALTER TABLE {t} RENAME COLUMN name TO title")
    lab.sql("ALTER TABLE {t} RENAME COLUMN st.c TO d")
    lab.sql("UPDATE {t} SET label = 'v' WHERE id = 3")
    lab.sql("DELETE FROM {t} WHERE id = 0")


NESTED = (
    "id INT, st STRUCT<a: INT, b: STRUCT<c: STRING, d: INT>>, arr ARRAY<STRUCT<x: INT, y: STRING>>,"
    " m MAP<STRUCT<k1: INT>, STRUCT<v1: INT, v2: ARRAY<STRUCT<deep: INT>>>>"
)


def _nested_rows(first: int, last: int, c: str, x: str, k: str, deep: str) -> str:
    """Rows of those columns under the names that some of their fields have by then."""
    return (
        "INSERT INTO {t} SELECT id,"
        f" named_struct('a', id, 'b', named_struct('{c}', 'c', 'd', 1)), array({x}, NULL),"
        f" map(named_struct('{k}', 1), named_struct('v1', 1, 'v2',"
        f" array(named_struct('{deep}', id)))) FROM range({first}, {last})"
    )


def mapping_nested(lab: Lab) -> None:
    """Fields of structs in structs, arrays, map keys and map values are renamed, dropped, back."""
    lab.across_schemas = True
    lab.create(NESTED, columnMapping_mode="name", **CDF)
    lab.sql(_nested_rows(0, 4, "c", "named_struct('x', 1, 'y', 'y')", "k1", "deep"))
    lab.sql("ALTER TABLE {t} RENAME COLUMN st.b.c TO cc")
    lab.sql("ALTER TABLE {t} DROP COLUMN arr.element.x")
    lab.sql("ALTER TABLE {t} ADD COLUMN arr.element.x STRING")
    lab.sql("ALTER TABLE {t} RENAME COLUMN m.value.v2.element.deep TO deeper")
    lab.sql("ALTER TABLE {t} RENAME COLUMN m.key.k1 TO kk")
    lab.sql(_nested_rows(4, 6, "cc", "named_struct('y', 'y', 'x', 'q')", "kk", "deeper"))
    lab.sql("UPDATE {t} SET st.b.d = 7 WHERE id IN (1, 4)")
    lab.sql("ALTER TABLE {t} DROP COLUMN st.b")
    lab.sql("ALTER TABLE {t} ADD COLUMN st.b INT")
    lab.sql("UPDATE {t} SET st.b = 7 WHERE id IN (2, 4)")
    lab.sql("DELETE FROM {t} WHERE id = 3")
    lab.sql("OPTIMIZE {t}")


WIDENED = (
    "id INT, b TINYINT, s SMALLINT, i INT, f FLOAT, d DATE, dec DECIMAL(6, 2), ib INT,"
    " st STRUCT<x: SMALLINT, y: FLOAT>, arr ARRAY<SMALLINT>, m MAP<TINYINT, SMALLINT>, p SMALLINT"
)
WIDER = (
    "b TYPE SMALLINT",
    "b TYPE BIGINT",
    "s TYPE INT",
    "i TYPE DOUBLE",
    "f TYPE DOUBLE",
    "d TYPE TIMESTAMP_NTZ",
    "dec TYPE DECIMAL(12, 4)",
    "ib TYPE DECIMAL(14, 2)",
    "st.x TYPE INT",
    "arr.element TYPE BIGINT",
    "m.key TYPE INT",
    "m.value TYPE BIGINT",
    "p TYPE INT",
)


def _widening(lab: Lab, **properties: str) -> None:
    lab.across_schemas = True
    # Widening a date brings a type in, and so a feature, that the table did not need before.
    known = {"enableTypeWidening": "true", "feature_timestampNtz": "supported"}
    lab.create(WIDENED, partitioned="p", **known, **properties)
    lab.sql(
        "INSERT INTO {t} VALUES (0, 127, 32767, 2147483647, 0.1, DATE'1900-01-01', 9999.99, 1,"
        " named_struct('x', 1, 'y', 0.3), array(1, NULL), map(1, 2), 1),"
        " (1, -128, -32768, -1, FLOAT('NaN'), DATE'2024-02-29', -0.01, -7, NULL, NULL, NULL, 2),"
        " (2" + ", NULL" * 11 + ")"
    )
    for change in WIDER:
        lab.sql(f"ALTER TABLE {{t}} ALTER COLUMN {change}")
    lab.sql(
        "INSERT INTO {t} VALUES (3, 9223372036854775807, 2147483647, 1.5, 0.1,"
        " TIMESTAMP_NTZ'2024-02-29 12:00:00.000001', 12345678.9012, 123456789012.34,"
        " named_struct('x', 70000, 'y', 0.5), array(5000000000), map(300, 5000000000), 70000)"
    )
    lab.sql("UPDATE {t} SET b = 300 WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE id IN (0, 3)")
    lab.sql("OPTIMIZE {t}")


def type_widening(lab: Lab) -> None:
    """Types widened after files were written: flat, nested and partition columns."""
    _widening(lab, enableDeletionVectors="false")


def type_widening_cdf(lab: Lab) -> None:
    """The same with the feed and deletion vectors: old files are read with wider types."""
    _widening(lab, enableDeletionVectors="true", **CDF)


PARTITIONS_WIDENED = "id INT, f FLOAT, d DATE, i INT, b TINYINT, dec DECIMAL(5, 2), v STRING"


def partition_widened(lab: Lab) -> None:
    """Partition columns of every kind are widened: old files' values are read from their texts."""
    lab.across_schemas = True
    known = {"enableTypeWidening": "true", "feature_timestampNtz": "supported"}
    lab.create(PARTITIONS_WIDENED, partitioned="f, d, i, b, dec", **known, **CDF)
    lab.sql(
        "INSERT INTO {t} VALUES (1, 0.1, DATE'2020-02-03', 7, 3, 1.25, 'a'),"
        " (2, NULL, NULL, NULL, NULL, NULL, 'b'),"
        " (3, FLOAT('1.0E-10'), DATE'0001-01-01', -1, -128, -999.99, 'c')"
    )
    for change in ("f TYPE DOUBLE", "d TYPE TIMESTAMP_NTZ", "i TYPE DECIMAL(14, 3)"):
        lab.sql(f"ALTER TABLE {{t}} ALTER COLUMN {change}")
    lab.sql("ALTER TABLE {t} ALTER COLUMN b TYPE DOUBLE")
    lab.sql("ALTER TABLE {t} ALTER COLUMN dec TYPE DECIMAL(12, 4)")
    lab.sql("UPDATE {t} SET v = 'u' WHERE id IN (1, 3)")
    lab.sql("DELETE FROM {t} WHERE id = 2")


def rowtracking(lab: Lab) -> None:
    """Row ids from the start, copied on write: ids in the files where rows were moved."""
    lab.create(partitioned="part", enableRowTracking="true", enableDeletionVectors="false")
    history(lab)
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 5")  # old ids and commit versions come back
    lab.sql("UPDATE {t} SET val = -2 WHERE id < 10")


def rowtracking_dv(lab: Lab) -> None:
    """Row ids with deletion vectors."""
    lab.create(partitioned="part", enableRowTracking="true", enableDeletionVectors="true")
    history(lab)
    lab.sql("RESTORE TABLE {t} TO VERSION AS OF 4")


def rowtracking_cdf(lab: Lab) -> None:
    """Row ids and the feed: two ways to find the same changes."""
    lab.create(partitioned="part", enableRowTracking="true", enableDeletionVectors="false", **CDF)
    history(lab)


def rowtracking_backfilled(lab: Lab) -> None:
    """Row tracking is enabled later, by a backfill that changes no row, and disabled again."""
    lab.create(enableDeletionVectors="false")
    lab.write(rows(0, 8), files=2)
    lab.sql("UPDATE {t} SET val = 1 WHERE id = 1")
    lab.set(enableRowTracking="true")
    lab.sql("UPDATE {t} SET val = 2 WHERE id = 2")
    lab.sql("OPTIMIZE {t}")
    lab.write(rows(8, 4))
    lab.sql("DELETE FROM {t} WHERE id IN (0, 9)")
    lab.set(enableRowTracking="false")
    lab.sql("UPDATE {t} SET val = 3 WHERE id = 3")


def rowtracking_dropped(lab: Lab) -> None:
    """Row tracking is dropped, which takes every file's ids away, and enabled anew."""
    lab.create(enableDeletionVectors="false")
    lab.write(rows(0, 8), files=2)
    lab.set(enableRowTracking="true")
    lab.sql("UPDATE {t} SET val = 2 WHERE id = 2")
    lab.sql("ALTER TABLE {t} DROP FEATURE rowTracking")
    lab.sql("UPDATE {t} SET val = 3 WHERE id = 3")
    lab.set(enableRowTracking="true")
    lab.sql("UPDATE {t} SET val = 4 WHERE id = 4")
    lab.sql("DELETE FROM {t} WHERE id = 5")


def rowtracking_noop(lab: Lab) -> None:
    """Updates that give rows the values that they have, alone or among others: by copy, by DV."""
    lab.create(partitioned="part", enableRowTracking="true", enableDeletionVectors="false")
    lab.write(rows(0, 12), files=2)
    lab.sql("UPDATE {t} SET val = val WHERE id < 6")
    lab.sql("UPDATE {t} SET val = CASE WHEN id < 3 THEN val ELSE -1 END WHERE id < 6")
    lab.sql("UPDATE {t} SET name = name WHERE id = 4")
    lab.set(enableDeletionVectors="true")
    lab.sql("UPDATE {t} SET val = val WHERE id IN (1, 7)")
    lab.sql("UPDATE {t} SET val = CASE WHEN id = 7 THEN val ELSE -2 END WHERE id IN (2, 7)")
    lab.sql(
        "MERGE INTO {t} t USING (SELECT id, val FROM {t} WHERE id IN (3, 8)) s ON t.id = s.id"
        " WHEN MATCHED AND t.id = 3 THEN UPDATE SET val = s.val WHEN MATCHED THEN DELETE"
    )


def rowtracking_mapping(lab: Lab) -> None:
    """Row ids under column mapping: the materialised id columns have physical names too."""
    lab.create(enableRowTracking="true", columnMapping_mode="name", enableDeletionVectors="false")
    lab.write(rows(0, 8))
    lab.sql("UPDATE {t} SET val = 2 WHERE id = 2")
    lab.sql("ALTER TABLE {t} RENAME COLUMN name TO title")
    lab.sql("UPDATE {t} SET title = 'renamed' WHERE id IN (2, 3)")
    lab.sql("DELETE FROM {t} WHERE id = 4")


def overwrite_schema(lab: Lab) -> None:
    """Overwrites that change columns, types and partitioning in the commit of the new rows."""
    replace = {"overwriteSchema": "true"}
    lab.create(partitioned="part", enableDeletionVectors="true")
    lab.write(rows(0, 6))
    lab.sql("DELETE FROM {t} WHERE id = 1")
    lab.write(
        "SELECT CAST(id AS STRING) id, id % 2 = 0 even FROM range(4)",
        mode="overwrite",
        options=replace,
    )
    lab.sql("UPDATE {t} SET even = NULL WHERE id = '2'")
    lab.write(rows(0, 6), mode="overwrite", options=replace)
    lab.sql("DELETE FROM {t} WHERE id = 1")


def special_columns(lab: Lab) -> None:
    """Identity, default, generated, char, varchar, NOT NULL and CHECK: all are the writer's."""
    lab.create(
        "k BIGINT GENERATED ALWAYS AS IDENTITY, a INT DEFAULT 7,"
        " g INT GENERATED ALWAYS AS (a * 2), c CHAR(5), v VARCHAR(5), n INT NOT NULL",
        feature_allowColumnDefaults="supported",
    )
    lab.sql("INSERT INTO {t} (a, c, v, n) VALUES (1, 'ab', 'cd', 3), (2, 'abcde', '', 4)")
    lab.sql("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (n > 0)")
    lab.sql("INSERT INTO {t} (c, v, n) VALUES ('x', 'y', 5)")
    lab.sql("UPDATE {t} SET a = 9, c = 'z' WHERE n = 4")
    lab.sql("DELETE FROM {t} WHERE n = 3")


CASES = (
    mapping_name,
    mapping_name_cdf,
    mapping_id,
    mapping_id_cdf,
    mapping_upgraded,
    mapping_removed,
    mapping_back,
    mapping_nested,
    type_widening,
    type_widening_cdf,
    partition_widened,
    rowtracking,
    rowtracking_dv,
    rowtracking_cdf,
    rowtracking_backfilled,
    rowtracking_dropped,
    rowtracking_noop,
    rowtracking_mapping,
    overwrite_schema,
    special_columns,
)
