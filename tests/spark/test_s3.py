"""Tables on S3, read by executors of a real cluster: with an account of the options, and with the
one that the executors' own environment has. Neither secret is told anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import anyio
import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.cli.main import main
from tests.golden.compare import difference, read_folder
from tests.golden.test_golden import hold
from tests.s3.fixture import REGION, Bucket, run_server
from tests.s3.tables import upload
from tests.spark.cluster import ROOT, Cluster
from tests.support.components import java_major, require

PATIENCE_S = 500.0
# Secrets as AWS has them, that nothing else would look like.
ENVIRONMENT = ("AKIAENVIRONMENT", "hush/environment/wJalrXUtnFEMI7MDENG")
OPTIONS = ("AKIAOPTIONS", "hush/options/bPxRfiCYEXAMPLEKEY")
SECRETS = (ENVIRONMENT[1], OPTIONS[1])


def make_table(folder: Path) -> None:
    """Appends, an update and a delete, with a change data feed; five versions."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    feed = {"delta.enableChangeDataFeed": "true"}
    table = deltalake.DeltaTable.create(str(folder), schema, configuration=feed)
    for first in (0, 50):
        ids = [*range(first, first + 50)]
        rows = pa.table({"id": ids, "name": [f"name {i}" for i in ids]}, schema=schema)
        deltalake.write_deltalake(table, rows, mode="append")
    table.update(predicate="id % 10 = 3", updates={"name": "'another'"})
    table.delete("id % 10 = 4")


class Accounts:
    """Two servers of one account each, with the same table; ``reads`` are the program's."""

    def __init__(self, mine: Bucket, theirs: Bucket) -> None:
        self.environment = {
            "AWS_ACCESS_KEY_ID": ENVIRONMENT[0],
            "AWS_SECRET_ACCESS_KEY": ENVIRONMENT[1],
            "AWS_ENDPOINT_URL": mine.url,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.tables = {"environment": mine.address("orders"), "options": theirs.address("orders")}
        self.store = {
            "endpoint_url": theirs.url,
            "region": REGION,
            "access_key_id": OPTIONS[0],
            "secret_access_key": OPTIONS[1],
        }
        own = {f"store.{name}": value for name, value in self.store.items()}
        common = {"startingVersion": "0"}
        self.reads: dict[str, dict[str, str]] = {
            "environment": {**common, "path": self.tables["environment"]},
            "options": {**common, "path": self.tables["options"], **own},
            "options_derived": {
                **common, "path": self.tables["options"], **own, "changeSource": "derived",
            },
            "refused_secret": {
                **common, "path": self.tables["options"], **own,
                "store.access_key_id": ENVIRONMENT[0],
            },
            "refused_file": {**common, "path": theirs.address("broken"), **own},
        }  # fmt: skip


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    """The servers, and the environment that this process and all that it starts have."""
    require("Java 17 or newer", java_major() >= 17)
    make_table(tmp_path / "orders")
    with ExitStack() as running:
        buckets = []
        for account in (ENVIRONMENT, OPTIONS):
            folder = tmp_path / account[0]
            folder.mkdir()
            bucket = running.enter_context(run_server(folder, account=account)).bucket("lake")
            anyio.run(upload, tmp_path / "orders", bucket, "orders")
            buckets.append(bucket)
        # Of an append: the rewritten files of the other commits are not read, their cdc files are.
        (lost,) = deltalake.DeltaTable(tmp_path / "orders", version=1).file_uris()
        Path(lost).unlink()
        anyio.run(upload, tmp_path / "orders", buckets[1], "broken")
        found = Accounts(*buckets)
        for name in [n for n in os.environ if n.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def run_program(cluster: Cluster, folder: Path, reads: Mapping[str, Mapping[str, str]]) -> Path:
    """Run it on the cluster; the folder with all that was told."""
    told = folder / "told"
    (told / "events").mkdir(parents=True)
    settings = {
        **cluster.settings(),
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (told / "events").as_uri(),
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "INFO",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.session.timeZone": "UTC",
        "spark.task.maxFailures": "1",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    paths = folder / "settings.json", folder / "reads.json"
    for path, values in zip(paths, (settings, reads), strict=True):
        path.write_text(json.dumps(values))
    command = [sys.executable, "-m", "tests.spark.s3_program", *map(str, paths), str(told)]
    with (told / "driver.log").open("wb") as log:
        done = subprocess.run(
            command, stdout=log, stderr=log, cwd=ROOT, env=cluster.environment(),
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    said = (told / "driver.log").read_text(errors="replace")[-4000:]
    assert done.returncode == 0, f"{said}\n{cluster.said()}"
    return told


def read_by_tailer(accounts: Accounts, name: str, output: Path) -> pa.Table:
    """The same read by `tailer read`."""
    account = "options" if name.startswith("options") else "environment"
    store = accounts.store if account == "options" else {}
    options = [f"--store-option={key}={value}" for key, value in store.items()]
    source = accounts.reads[name].get("changeSource", "auto")
    asked = ["--from", "0", "--change-source", source, "--output", str(output)]
    assert main(["read", accounts.tables[account], *options, *asked]) == 0
    return pq.read_table(output)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.needs("s3")
def test_executors_read_s3_with_either_account_and_tell_neither_secret(
    accounts: Accounts, tmp_path: Path
) -> None:
    with Cluster(tmp_path / "cluster", workers=1) as cluster:
        told = run_program(cluster, tmp_path, accounts.reads)
    for name in ("environment", "options", "options_derived"):
        wanted = read_by_tailer(accounts, name, tmp_path / f"{name}.parquet")
        assert wanted.num_rows
        for kind in ("batch", "stream")[: 2 if name in accounts.tables else 1]:
            hold(difference(wanted, read_folder(told / name / kind)))
    assert "check the" in (told / "refused_secret" / "message").read_text()
    assert "[data_loss]" in (told / "refused_file" / "message").read_text()
    check_nothing_told(told, tmp_path / "cluster")


def check_nothing_told(*folders: Path) -> None:
    """Plans, pages, events, checkpoints and the logs of all processes have what they should have,
    and no secret."""
    texts = {
        path: path.read_bytes() for folder in folders for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".jar", ".parquet")
    }  # fmt: skip
    names = {path.name for path in texts} | {path.parent.name for path in texts}
    kinds = {"driver.log", "batch_plans", "frame_plans", "stream_plans", "told", "stderr"}
    assert kinds | {"offsets", "commits", "message", "worker-0.log"} <= names
    assert any(b"SparkListenerSQLExecutionStart" in text for text in texts.values())
    leaks = {
        str(path): text[max(0, at - 80) : at + 20]
        for path, text in texts.items()
        for secret in SECRETS
        if (at := text.find(secret.encode())) >= 0
    }
    assert leaks == {}
