"""Every Python block of the pages about Spark is run here, in order, on a table of Spark's."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.spark.mirror import mirror_into
from tests.spark.others import OTHER_LINES, OWN
from tests.support.pages import blocks as page_blocks
from tests.support.source import ROOT

GUIDE = ROOT / "docs" / "spark.md"
PAGES = (GUIDE, GUIDE.with_name("spark-details.md"))
Run = Callable[[str], dict[str, Any]]
#: Sections whose blocks make a frame, and no more.
FRAMES = ("A frame that Spark reads itself", "Another schema")


def blocks() -> dict[str, list[str]]:
    """The pages' Python by section."""
    texts = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    sections = re.split(r"^## ", texts, flags=re.MULTILINE)
    found = {s.splitlines()[0]: re.findall(r"```python\n(.*?)```", s, re.DOTALL) for s in sections}
    return {title: code for title, code in found.items() if code}


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """Runs a section's blocks, with its /data in a folder of the test, and returns their names."""
    folder = tmp_path / "guide"
    table = f"delta.`{folder}/orders`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, name STRING) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    names: dict[str, Any] = {"spark": spark, "folder": folder, "table": table}
    change(spark, table, "INSERT INTO {} VALUES (1, 'a'), (2, 'b'), (3, 'c')")

    def run(section: str) -> dict[str, Any]:
        for code in blocks()["The source"][:1] + blocks()[section]:
            exec(code.replace("/data/", f"{folder}/"), names)  # noqa: S102  # our own guide
        return names

    return run


def test_each_line_of_pyspark_that_is_supported_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = project["optional-dependencies"]["spark"]
    tested = {version.rpartition(".")[0] for version in (*OTHER_LINES, OWN)}
    assert wanted == f"pyspark>={min(tested)},<4.{int(max(tested)[2:]) + 1}"
    *others, last = sorted(tested)
    assert f"PySpark {', '.join(others)} and {last} are supported" in GUIDE.read_text()


def change(spark: SparkSession, table: str, *statements: str) -> None:
    for statement in statements:
        spark.sql(statement.format(table))


def more_changes(spark: SparkSession, table: str) -> None:
    change(
        spark, table,
        "UPDATE {} SET name = 'x' WHERE id = 1",
        "UPDATE {} SET name = 'y' WHERE id = 1",
        "DELETE FROM {} WHERE id = 2",
        "INSERT INTO {} VALUES (4, 'c'), (2, 'again')",
        "UPDATE {} SET id = 5 WHERE id = 3",
    )  # fmt: skip


def rows(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.read.format("delta").load(str(path)).collect())


def test_the_source(run: Run) -> None:
    names = run("The source")
    spark = names["spark"]
    written = spark.read.parquet(f"{names['folder']}/changes")
    assert written.exceptAll(names["changes"]).isEmpty()
    assert written.count() == names["changes"].count() >= 3


def test_the_frames_of_the_guide(run: Run) -> None:
    for section in FRAMES:
        names = run(section)
    assert {row.name for row in names["recent"].collect()} == {"b", "c"}
    assert "_change_type" in names["before"].columns


def test_the_runbook_s_statement_is_one_of_spark_s(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path}/orders`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING delta")
    (block,) = page_blocks("docs/runbook.md", "sql")
    spark.sql(block.text.replace("orders", table, 1))
    (detail,) = spark.sql(f"DESCRIBE DETAIL {table}").collect()
    assert detail.properties["delta.logRetentionDuration"] == "interval 60 days"


@pytest.mark.timeout(600)  # half a dozen queries
@pytest.mark.slow
def test_mirror_history_and_totals_follow_the_table(run: Run) -> None:
    sections = [title for title in blocks() if title not in ("The source", *FRAMES)]
    assert len(sections) == 4
    for section in sections:
        names = run(section)
    spark, folder = names["spark"], names["folder"]
    more_changes(spark, names["table"])
    for section in sections:
        run(section)
    now = rows(spark, folder / "orders")
    assert rows(spark, folder / "mirror") == rows(spark, folder / "planned-mirror") == now

    history = spark.read.format("delta").load(str(folder / "history"))
    current = history.where("valid_to IS NULL").select("id", "name").collect()
    assert sorted(tuple(row) for row in current) == now
    of_one = history.where("id = 1").orderBy("valid_from").collect()
    assert [row.name for row in of_one] == ["a", "x", "y"]
    assert [row.valid_to for row in of_one[:2]] == [row.valid_from for row in of_one[1:]]

    counted: dict[str, int] = {}
    for _, name in now:
        counted[name] = counted.get(name, 0) + 1
    totals = dict(rows(spark, folder / "totals"))
    assert {name: count for name, count in totals.items() if count} == counted


@pytest.mark.slow
def test_a_mirror_of_another_checkpoint_is_refused(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    names = run("The source")
    merge, target = mirror_into(str(tmp_path), ["id"], "a"), tmp_path
    merge(names["changes"], 0)
    version = spark.sql(f"DESCRIBE HISTORY delta.`{target}` LIMIT 1").collect()[0].version
    merge(names["changes"], 0)
    again = spark.sql(f"DESCRIBE HISTORY delta.`{target}` LIMIT 1").collect()[0].version
    assert again == version, "a batch that comes again is merged once"
    with pytest.raises(Exception, match="they do not belong together"):
        merge(names["changes"], 5)
    with pytest.raises(Exception, match="knows nothing of 'b'"):
        mirror_into(str(tmp_path), ["id"], "b")(names["changes"], 1)


def test_what_is_wrong_is_one_sentence(spark: SparkSession, run: Run) -> None:
    names = run("The source")
    for options, told in (
        ({"startingVersion": "x"}, "option 'startingVersion' of the tailer source is 'x'"),
        (
            {"startingVerson": "0"},
            "'startingverson' of the tailer source is not known (did you mean",
        ),
        ({"startingVersion": "0", "columns": "nope"}, "has no column 'nope'"),
        ({"startingVersion": "99"}, "the newest is"),
        ({}, "a batch read needs startingVersion"),
    ):
        reader = spark.read.format("tailer").options(**options)
        with pytest.raises(PySparkException) as refused:
            reader.load(f"{names['folder']}/orders").collect()
        assert told in str(refused.value)
        assert "Traceback" not in str(refused.value)


@pytest.mark.slow
def test_pruned_columns_have_the_same_rows(run: Run) -> None:
    names = run("The source")
    reader = names["spark"].read.format("tailer").option("startingVersion", 0)
    path = f"{names['folder']}/orders"
    narrow = reader.option("columns", "name").option("minPartitions", 3).load(path)
    assert narrow.columns == ["name", "_change_type", "_commit_version", "_commit_timestamp"]
    assert narrow.exceptAll(names["changes"].drop("id")).isEmpty()


def test_no_option_of_the_store_is_in_the_plan(spark: SparkSession, run: Run) -> None:
    names = run("The source")
    frame = spark.read.format("tailer").option("startingVersion", 0)
    plan = frame.load(f"{names['folder']}/orders")._jdf.queryExecution().toString()
    assert "tailer" in plan
    assert "startingVersion" not in plan
