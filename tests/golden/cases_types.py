"""Golden tables about values: every type, every partition value, every way Parquet stores them."""

from __future__ import annotations

from tests.golden.cases_cdf import CDF, rows
from tests.golden.lab import Lab

TYPES = (
    "id INT, b BOOLEAN, i8 TINYINT, i16 SMALLINT, i64 BIGINT, f32 FLOAT, f64 DOUBLE, s STRING,"
    " bin BINARY, d DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, d9 DECIMAL(9, 2), d18 DECIMAL(18, 6),"
    " d38 DECIMAL(38, 18), arr ARRAY<INT>, arrs ARRAY<STRUCT<x: INT, y: STRING>>,"
    " m MAP<STRING, INT>, mm MAP<INT, ARRAY<STRING>>,"
    " st STRUCT<a: INT, b: STRUCT<c: STRING, d: ARRAY<DOUBLE>>>,"
    " deep MAP<STRING, STRUCT<t: TIMESTAMP, n: DECIMAL(18, 6), k: DATE, raw: BINARY>>"
)

LOWEST = (
    "0, false, -128, -32768, CAST('-9223372036854775808' AS BIGINT), FLOAT('-Infinity'),"
    " DOUBLE('-Infinity'), '', X'', DATE'1582-10-15', TIMESTAMP'1900-01-01 00:00:00.000001',"
    " TIMESTAMP_NTZ'1900-01-01 00:00:00.000001', -9999999.99, -999999999999.999999,"
    " CAST('-99999999999999999999.999999999999999999' AS DECIMAL(38, 18)), array(), array(),"
    " map(), map(), named_struct('a', NULL, 'b', NULL), map()"
)
HIGHEST = (
    "1, true, 127, 32767, 9223372036854775807, FLOAT('Infinity'), DOUBLE('Infinity'),"
    " 'ü 日本 😀 \\u0000 \\n end', X'00FF80', DATE'9999-12-31',"
    " TIMESTAMP'9999-12-31 23:59:59.999999', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999',"
    " 9999999.99, 999999999999.999999,"
    " CAST('99999999999999999999.999999999999999999' AS DECIMAL(38, 18)),"
    " array(1, NULL, 2147483647), array(named_struct('x', 1, 'y', 'why'), NULL,"
    " named_struct('x', NULL, 'y', '')), map('', 1, 'k', NULL), map(1, array('a', NULL), 2, NULL),"
    " named_struct('a', 1, 'b', named_struct('c', 'sea', 'd', array(0.5D, NULL, DOUBLE('NaN')))),"
    " map('t', named_struct('t', TIMESTAMP'1969-12-31 23:59:59.999999', 'n', -0.000001,"
    " 'k', DATE'1969-12-31', 'raw', X'01'), 'null', NULL)"
)
ODD = (
    "2, NULL, 0, -1, 0, FLOAT('NaN'), DOUBLE('NaN'), ' ', X'20', DATE'1969-12-31',"
    " TIMESTAMP'1969-12-31 23:59:59.999999', TIMESTAMP_NTZ'1969-12-31 23:59:59.999999', 0,"
    " 0.000001, 0.000000000000000001, NULL, NULL, NULL, NULL, NULL, NULL"
)
ZERO = (
    "3, false, 0, 0, 0, FLOAT('-0.0'), DOUBLE('-0.0'), 'x', X'78', DATE'1970-01-01',"
    " TIMESTAMP'1970-01-01 00:00:00', TIMESTAMP_NTZ'1970-01-01 00:00:00', 0, 0, 0, array(0),"
    " array(named_struct('x', 0, 'y', '0')), map('0', 0), map(0, array()),"
    " named_struct('a', 0, 'b', named_struct('c', '', 'd', array(-0.0D, DOUBLE('4.9E-324')))),"
    " map()"
)
NULLS = "4" + ", NULL" * 20


def _types_history(lab: Lab) -> None:
    micros = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
    lab.sql(f"INSERT INTO {{t}} VALUES ({LOWEST}), ({NULLS})")
    with lab.conf(micros):
        lab.sql(f"INSERT INTO {{t}} VALUES ({HIGHEST}), ({ODD}), ({ZERO})")
        lab.sql("UPDATE {t} SET s = 'updated', f64 = f64 + 1 WHERE id IN (0, 2, 4)")
    lab.sql("DELETE FROM {t} WHERE isnan(f64) OR id = 1")
    lab.sql(f"INSERT INTO {{t}} VALUES ({HIGHEST}), ({ODD})")
    lab.sql("OPTIMIZE {t}")
    lab.sql("UPDATE {t} SET f64 = 0.0D, f32 = 0.0F, st.a = 7 WHERE id = 3")


def cdf_types(lab: Lab) -> None:
    """All types with their edges, nested ones too; timestamps as INT96 and as microseconds."""
    lab.create(TYPES, **CDF)
    _types_history(lab)


def types(lab: Lab) -> None:
    """The same without the feed: rows are compared by value to find the changes."""
    lab.create(TYPES, enableDeletionVectors="false")
    _types_history(lab)


HARD_STRINGS = (
    "NULL",
    "''",
    "' '",
    "' lead'",
    "'trail '",
    "'a b'",
    "'a%b'",
    "'a%20b%2Fc'",
    "'a/b'",
    "'a\\\\b'",
    '"it\'s"',
    "'\"quoted\"'",
    "'a=b'",
    "'a:b'",
    "'ä€ß'",
    "'日本語'",
    "'😀'",
    "'#?&+;*'",
    "'line\\nbreak\\ttab'",
    "'{}[]<>|^`~'",
    "'.'",
    "'..'",
    "'null'",
)


def cdf_partition_strings(lab: Lab) -> None:
    """Partition values that folder names and URIs must encode, among them null and empty."""
    lab.create("id INT, s STRING, v INT", partitioned="s", enableDeletionVectors="false", **CDF)
    values = ", ".join(f"({number}, {text}, 0)" for number, text in enumerate(HARD_STRINGS))
    lab.sql(f"INSERT INTO {{t}} VALUES {values}")
    lab.sql("UPDATE {t} SET v = 1 WHERE id % 3 = 0")
    lab.sql("UPDATE {t} SET s = concat(s, ' %/') WHERE id % 7 = 4")
    lab.sql("DELETE FROM {t} WHERE s IS NULL OR contains(s, '%')")


PARTITION_TYPES = (
    "pd DATE, pts TIMESTAMP, pntz TIMESTAMP_NTZ, pdec DECIMAL(20, 4), pb BOOLEAN, pf64 DOUBLE,"
    " pf32 FLOAT, pi8 TINYINT, pi16 SMALLINT, pi32 INT, pi64 BIGINT, pbin BINARY"
)


def cdf_partition_types(lab: Lab) -> None:
    """Partition columns of all other types; timestamps with a zone and, older, without."""
    columns = [part.split()[0] for part in PARTITION_TYPES.replace("(20, 4)", "").split(",")]
    lab.create(f"id INT, {PARTITION_TYPES}", partitioned=", ".join(columns), **CDF)
    lab.sql(
        "INSERT INTO {t} VALUES"
        " (0, DATE'1969-12-31', TIMESTAMP'2024-03-31 01:30:00.123456',"
        " TIMESTAMP_NTZ'2024-03-31 02:30:00.5', -1234567890123456.7891, true, -1.5E300, 0.1, -128,"
        " -32768, -2147483648, CAST('-9223372036854775808' AS BIGINT), X'61C3A9'),"
        " (1, DATE'0001-01-01', TIMESTAMP'1969-12-31 23:59:59.999999',"
        " TIMESTAMP_NTZ'1900-01-01 00:00:00', 0, false, DOUBLE('NaN'), FLOAT('NaN'), 127, 32767,"
        " 2147483647, 9223372036854775807, X'2F25'),"
        " (2, DATE'9999-12-31', TIMESTAMP'9999-12-31 23:59:59', TIMESTAMP_NTZ'1970-01-01 00:00:00',"
        " 0.0001, NULL, DOUBLE('-Infinity'), FLOAT('Infinity'), 0, 0, 0, 0, X'01')"
    )
    lab.sql("INSERT INTO {t} (id) VALUES (3)")
    zoneless = {"spark.databricks.delta.write.utcTimestampPartitionValues": "false"}
    with lab.conf(zoneless):
        lab.sql("INSERT INTO {t} (id, pts) VALUES (4, TIMESTAMP'2024-10-27 01:30:00.000001')")
        lab.sql("INSERT INTO {t} (id, pts) VALUES (5, TIMESTAMP'2024-07-01 00:00:00')")
    lab.sql("UPDATE {t} SET id = id + 10 WHERE id IN (0, 1, 4)")
    lab.sql("DELETE FROM {t} WHERE id IN (2, 10)")
    lab.sql("DELETE FROM {t} WHERE pts = TIMESTAMP'2024-07-01 00:00:00'")


def partition_binary(lab: Lab) -> None:
    """Binary partition values, bytes among them that are no text; changes are derived."""
    lab.create("id INT, b BINARY", partitioned="b", enableDeletionVectors="false")
    lab.sql(
        "INSERT INTO {t} VALUES (1, X'61C3A9'), (2, X'FF'), (3, X'FE80'), (4, X''),"
        " (5, NULL), (6, X'EFBFBD'), (7, X'2F3D2520'), (8, X'F09F9880'), (9, X'01027F22')"
    )
    lab.sql("INSERT INTO {t} VALUES (12, X'FF'), (13, X'FE80'), (11, X'61C3A9')")
    lab.sql("UPDATE {t} SET id = id + 100 WHERE id IN (1, 2, 5, 8)")
    lab.sql("UPDATE {t} SET b = X'C0' WHERE id IN (3, 9)")
    lab.sql("OPTIMIZE {t}")
    lab.sql("DELETE FROM {t} WHERE id IN (11, 12)")


def duplicates(lab: Lab) -> None:
    """Equal rows many times over, NaN and both zeros among them, rewritten by copy."""
    lab.create("k INT, f DOUBLE, m MAP<STRING, DOUBLE>", enableDeletionVectors="false")
    nan, zero = "DOUBLE('NaN')", "DOUBLE('-0.0')"
    values = f"(1, {nan}, map('x', {nan}, 'y', {zero})), (1, {zero}, map()), (NULL, NULL, NULL)"
    for _ in range(3):
        lab.sql(f"INSERT INTO {{t}} VALUES {values}, {values}, (2, 0.0, map('y', 0.0D))")
    lab.sql("OPTIMIZE {t}")
    lab.sql("UPDATE {t} SET k = 1, f = 0.0D WHERE k = 2")
    lab.sql(
        "MERGE INTO {t} t USING (SELECT 1 k) s ON t.k = s.k AND isnan(t.f)"
        " WHEN MATCHED THEN UPDATE SET f = t.f"
    )
    lab.sql("DELETE FROM {t} WHERE k IS NULL")
    lab.sql(f"INSERT INTO {{t}} VALUES {values}")


OLD_TIMES = (
    "(1, DATE'0002-01-01', TIMESTAMP'0002-01-01 00:00:00', array(TIMESTAMP'1000-02-28 12:00:00')),"
    " (2, DATE'1582-10-04', TIMESTAMP'1582-10-04 23:59:59.999999', array()),"
    " (3, DATE'1582-10-15', TIMESTAMP'1582-10-15 00:00:00', NULL),"
    " (4, DATE'1899-12-31', TIMESTAMP'1899-12-31 23:59:59.999999', array(NULL))"
)


def _old_times(lab: Lab, kind: str, calendar: str) -> None:
    settings = {
        "spark.sql.parquet.outputTimestampType": kind,
        "spark.sql.parquet.datetimeRebaseModeInWrite": calendar,
        "spark.sql.parquet.int96RebaseModeInWrite": calendar,
    }
    with lab.conf(settings):
        lab.sql(f"INSERT INTO {{t}} VALUES {OLD_TIMES}")


def ancient_dates(lab: Lab) -> None:
    """Dates and timestamps before 1582 in the proleptic Gregorian calendar, in three encodings."""
    lab.create("id INT, d DATE, ts TIMESTAMP, more ARRAY<TIMESTAMP>", **CDF)
    for kind in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        _old_times(lab, kind, "CORRECTED")
    lab.sql("UPDATE {t} SET id = id + 10 WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE d < DATE'1582-10-15'")


def ancient_dates_legacy(lab: Lab) -> None:
    """The same days written in the hybrid calendar of old Sparks, which the footer tells."""
    lab.create("id INT, d DATE, ts TIMESTAMP, more ARRAY<TIMESTAMP>")
    for kind in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        _old_times(lab, kind, "LEGACY")
    lab.sql("UPDATE {t} SET id = id + 10 WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE id = 2")


def legacy_format(lab: Lab) -> None:
    """Old lists (bag, array), decimals as fixed bytes, INT96: `writeLegacyFormat`."""
    lab.create(TYPES, enableDeletionVectors="false")
    legacy = {
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.parquet.outputTimestampType": "INT96",
    }
    lab.sql(f"INSERT INTO {{t}} VALUES ({ZERO}), ({LOWEST})")
    with lab.conf(legacy):
        lab.sql(f"INSERT INTO {{t}} VALUES ({HIGHEST}), ({ODD}), ({NULLS})")
        lab.sql("UPDATE {t} SET i8 = 5 WHERE id IN (0, 1)")
    lab.sql("DELETE FROM {t} WHERE id IN (1, 4)")


def codecs(lab: Lab) -> None:
    """One commit for each compression that Spark writes without native libraries."""
    lab.create()
    for number, codec in enumerate(("uncompressed", "snappy", "gzip", "zstd", "lz4_raw")):
        with lab.conf({"spark.sql.parquet.compression.codec": codec}):
            lab.write(rows(number * 5, 5))
    lab.sql("UPDATE {t} SET val = 0 WHERE id % 5 = 0")


def variant(lab: Lab) -> None:
    """Variant columns, nested ones too, with the feed on."""
    lab.create("id INT, n INT, v VARIANT, st STRUCT<v: VARIANT>, arr ARRAY<VARIANT>", **CDF)
    lab.sql(
        "INSERT INTO {t} SELECT CAST(id AS INT), 0, parse_json(concat('{\"a\": ', id, '}')),"
        " named_struct('v', parse_json('null')), array(parse_json('[1, \"x\"]'), NULL)"
        " FROM range(3)"
    )
    lab.sql("INSERT INTO {t} VALUES (3, NULL, NULL, NULL, NULL)")
    lab.sql("UPDATE {t} SET n = 1, v = parse_json('\"text\"') WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE id = 2")


def variant_shredded(lab: Lab) -> None:
    """Variants whose common fields lie in Parquet columns of their own."""
    lab.create("id INT, n INT, v VARIANT", enableVariantShredding="true")
    lab.sql(
        "INSERT INTO {t} SELECT CAST(id AS INT), 0,"
        " parse_json(concat('{\"a\": ', id, ', \"b\": \"x', id, '\"}')) FROM range(8)"
    )
    lab.sql("UPDATE {t} SET n = 1, v = parse_json('[1, 2]') WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE id = 2")


def void_column(lab: Lab) -> None:
    """A column of type void has no values and is in no Parquet file."""
    lab.write("SELECT id, NULL n, 'x' s FROM range(4)")
    lab.sql("UPDATE {t} SET s = 'y' WHERE id = 1")
    lab.sql("DELETE FROM {t} WHERE id = 2")


CASES = (
    cdf_types,
    cdf_partition_strings,
    cdf_partition_types,
    partition_binary,
    types,
    duplicates,
    ancient_dates,
    ancient_dates_legacy,
    legacy_format,
    codecs,
    variant,
    variant_shredded,
    void_column,
)
