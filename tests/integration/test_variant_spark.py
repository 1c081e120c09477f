"""Variants that real Spark wrote, plain and shredded in many ways, read as Spark reads them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks.jsonl import format_batch
from tailer.delta.arrow_types import VARIANT
from tailer.testing.table import TableBuilder
from tests.support.feeds import batches
from tests.support.variants import parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark writes is also in tests/golden, as `variant` and `variant_shredded`.
pytestmark = pytest.mark.slow

SHREDDED = "spark.sql.variant.writeShredding.enabled"
SCHEMA = "spark.sql.variant.forceShreddingSchemaForTest"
INFERRED = "spark.sql.variant.inferShreddingSchema"

# Of each type that Spark can put into a variant, as SQL, and as it stands in a line.
SCALARS = {
    "NULL": "null",
    "true": "true",
    "7Y": "7",
    "-300S": "-300",
    "70000": "70000",
    "-9223372036854775808L": "-9223372036854775808",
    "1.50BD": "1.50",
    "CAST(-0.000000000012 AS DECIMAL(18, 12))": "-0.000000000012",
    "CAST('-12345678901234567890.123456789012345678' AS DECIMAL(38, 18))":
        "-12345678901234567890.123456789012345678",
    "0.1D": "0.1",
    "1e300D": "1e+300",
    "CAST('NaN' AS DOUBLE)": '"NaN"',
    "CAST('-Infinity' AS FLOAT)": '"-Infinity"',
    "CAST(0.1 AS FLOAT)": "0.1",
    "DATE '0001-01-01'": '"0001-01-01"',
    "DATE '1969-12-31'": '"1969-12-31"',
    "TIMESTAMP '2024-02-29 23:59:59.000007'": '"2024-02-29T23:59:59.000007Z"',
    "TIMESTAMP_NTZ '1583-01-01 00:00:00'": '"1583-01-01T00:00:00.000000"',
    "'größe'": '"größe"',
    "repeat('x', 64)": json.dumps("x" * 64),
    "X'00FF'": '"AP8="',
    "array(1, 2)": "[1,2]",
    "to_variant_object(map('b', 1, 'a', 2))": '{"a":2,"b":1}',
}  # fmt: skip

DOCUMENTS = [
    '{"a": 1, "b": "x", "c": {"d": 1.25, "e": [1, 2, "z"]}}',
    '{"a": "no", "zz": {"y": 1, "a": 2}, "b": null}',
    '{"c": {"e": [], "d": 100, "f": true}, "a": 9223372036854775807}',
    '{"c": 5, "b": "' + "l" * 80 + '", "ä": [{"a": {"a": []}}]}',
    '{"a": 1.5, "c": {}}',
    "{}",
    "[]",
    "null",
    '[1, "x", null, {"a": 1}]',
    "12345678901234567890.5",
    '"text"',
    '{"x": ' * 60 + "1" + "}" * 60,
]

SCHEMAS = [
    "",
    "a bigint, b string, c struct<d decimal(9,2), e array<int>>",
    "a decimal(38,10), c struct<e array<string>, f boolean>, zz struct<y tinyint>, new string",
    "c variant, b variant",
    "array<struct<a int>>",
    "string",
    "double",
]


@contextmanager
def conf(spark: SparkSession, **settings: str) -> Iterator[None]:
    """Spark's settings for a while; a key's dots are its own."""
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


def forced(spark: SparkSession, schema: str) -> AbstractContextManager[None]:
    """Whatever is written is shredded by this schema, if there is one.

    With a forced schema Spark can't write tables of more columns.
    """
    shredding = {SHREDDED: str(bool(schema)).lower(), INFERRED: "false"}
    return conf(spark, **shredding, **({SCHEMA: schema} if schema else {}))


def selected(expressions: Iterable[str], first: int = 0) -> str:
    """A query of one row for each expression, with ids from ``first`` on."""
    return " UNION ALL ".join(
        f"SELECT {first + i} AS id, CAST({text} AS VARIANT) AS v"
        for i, text in enumerate(expressions)
    )


def write(spark: SparkSession, folder: Path, schema: str, expressions: Iterable[str]) -> Path:
    """A table with one variant a row, shredded if there is a schema."""
    table = folder / "table"
    with forced(spark, schema):
        spark.sql(
            f"CREATE TABLE delta.`{table}` USING delta "
            f"TBLPROPERTIES ('delta.enableVariantShredding' = '{bool(schema)}') AS "
            f"SELECT id, v FROM ({selected(expressions)})"
        )
    return table


def spark_rows(spark: SparkSession, table: Path, folder: Path) -> dict[int, dict[str, Any]]:
    """What Spark reads from the table, by id: the variants' bytes, and their JSON as ``text``."""
    with conf(spark, **{SHREDDED: "false"}):
        frame = spark.read.format("delta").load(str(table))
        frame.selectExpr("*", "to_json(v) AS text").write.parquet(str(folder / "answer"))
    files = sorted((folder / "answer").glob("*.parquet"))
    return {row["id"]: row for f in files for row in pq.ParquetFile(f).read().to_pylist()}


def is_shredded(files: Collection[Path]) -> bool:
    assert files
    return all("typed_value" in str(pq.ParquetFile(f).schema) for f in files)


def lines(table: Path) -> dict[int, str]:
    """The lines of the table's events, by id."""
    text = b"".join(bytes(format_batch(b, ids=False)) for b in batches_of(table)).decode()
    return {json.loads(line)["id"]: line for line in text.splitlines()}


def batches_of(table: Path) -> list[Any]:
    return batches(TableBuilder(table, pa.schema([])))


def rows_of(table: Path) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for batch in batches_of(table) for row in batch.rows.to_pylist()}


TYPED = ["", "boolean", "tinyint", "bigint", "decimal(9,2)", "decimal(18,12)", "decimal(38,18)",
         "float", "date", "timestamp", "timestamp_ntz", "binary", "string"]  # fmt: skip
TEXTS = [*("parse_json('" + text.replace("'", "''") + "')" for text in DOCUMENTS), "NULL"]


class Shredded:
    """One table for many shreddings, each in a commit of its own: Spark is asked once for all."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.places = [(s, tuple(TEXTS)) for s in SCHEMAS] + [(s, tuple(SCALARS)) for s in TYPED]
        self.files: list[bool] = []
        table, seen = folder / "table", set[Path]()
        spark.sql(
            f"CREATE TABLE delta.`{table}` (id INT, v VARIANT) USING delta "
            "TBLPROPERTIES ('delta.enableVariantShredding' = 'true')"
        )
        for number, (schema, expressions) in enumerate(self.places):
            with forced(spark, schema):
                rows = selected(expressions, 1000 * number)
                spark.sql(f"INSERT INTO delta.`{table}` {rows}")
            new = set(table.glob("*.parquet")) - seen
            self.files.append(is_shredded(new))
            seen |= new
        self._spark, self._ours = spark_rows(spark, table, folder), rows_of(table)
        self._lines = lines(table)
        assert self._ours.keys() == self._lines.keys() == self._spark.keys()

    def of(self, schema: str, expressions: Iterable[str]) -> list[tuple[Any, str, dict[str, Any]]]:
        """For each expression under this schema: our value, our line, and Spark's row."""
        number = self.places.index((schema, tuple(expressions)))
        assert self.files[number] is bool(schema)
        ids = range(1000 * number, 1000 * number + len(self.places[number][1]))
        return [(self._ours[i]["v"], self._lines[i], self._spark[i]) for i in ids]


@pytest.fixture(scope="module")
def shredded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shredded:
    return Shredded(spark, tmp_path_factory.mktemp("shredded"))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_documents_are_read_as_spark_reads_them(shredded: Shredded, schema: str) -> None:
    for number, (found, line, expected) in enumerate(shredded.of(schema, TEXTS)):
        assert found == expected["v"], number
        if expected["text"] is not None:
            assert parsed(line)["v"] == parsed(expected["text"])


@pytest.mark.parametrize("schema", TYPED)
def test_each_type_is_read_as_spark_reads_it(shredded: Shredded, schema: str) -> None:
    rows = shredded.of(schema, SCALARS)
    for (expression, text), (found, line, expected) in zip(SCALARS.items(), rows, strict=True):
        assert found == expected["v"], expression
        # As numbers: a shredded decimal's scale is that of its column, no more its own.
        assert parsed(line)["v"] == parsed(text), expression


def test_spark_s_own_choice_of_columns_is_read(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with conf(spark, **{SHREDDED: "true", INFERRED: "true"}):
        spark.sql(
            f"CREATE TABLE delta.`{table}` USING delta "
            "TBLPROPERTIES ('delta.enableVariantShredding' = 'true') AS "
            "SELECT id, v, named_struct('v', v) AS s, array(v) AS l FROM (SELECT id, parse_json("
            """concat('{"n":', id, ',"t":["', id, '"],"o":{"d":', id / 4, '}}')) AS v """
            "FROM range(500))"
        )
    assert is_shredded([*table.glob("*.parquet")])
    expected, found = spark_rows(spark, table, tmp_path), rows_of(table)
    assert len(found) == 500
    assert {n: found[n]["v"] for n in found} == {n: row["v"] for n, row in expected.items()}
    assert {n: found[n]["s"] for n in found} == {n: row["s"] for n, row in expected.items()}
    assert {n: found[n]["l"] for n in found} == {n: row["l"] for n, row in expected.items()}


def test_shredding_a_table_anew_is_no_change(spark: SparkSession, tmp_path: Path) -> None:
    table = write(spark, tmp_path, "", TEXTS)
    with conf(spark, **{SHREDDED: "true", INFERRED: "false", SCHEMA: SCHEMAS[1]}):
        spark.sql(
            f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES "
            "('delta.enableVariantShredding' = 'true')"
        )
        spark.sql(
            f"INSERT OVERWRITE delta.`{table}` SELECT id, "
            "CASE WHEN id = 2 THEN parse_json('2') ELSE v END "
            f"FROM delta.`{table}`"
        )
    rows = [row for batch in batches_of(table) for row in batch.rows.to_pylist()]
    last = max(row["_commit_version"] for row in rows)
    changes = [(r["id"], r["_change_type"]) for r in rows if r["_commit_version"] == last]
    assert sorted(changes) == [(2, "delete"), (2, "insert")]


def test_spark_reads_what_was_put_together(spark: SparkSession, tmp_path: Path) -> None:
    table = write(spark, tmp_path, SCHEMAS[1], TEXTS[:-1])
    expected = {n: row["text"] for n, row in spark_rows(spark, table, tmp_path).items()}
    copy = TableBuilder(tmp_path / "copy", pa.schema([("id", pa.int32()), ("v", VARIANT)]))
    features = {"readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}
    copy.create(copy.protocol(3, 7, **features))
    copy.insert([{"id": n, "v": row["v"]} for n, row in rows_of(table).items()])
    frame = spark.read.format("delta").load(str(copy.folder))
    found = {row.id: row.text for row in frame.selectExpr("id", "to_json(v) AS text").collect()}
    assert found == expected
    assert len(found) == len(DOCUMENTS)
