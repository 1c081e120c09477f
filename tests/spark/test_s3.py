"""Tables on S3, Azure and Google storage, read by executors of a real cluster: with an account of
the options, and with the one that the executors' own environment has. No secret is told anywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.cli.main import main
from tests.clouds.servers import ACCOUNT, KEY, CloudServer, Container
from tests.golden.compare import difference, read_folder
from tests.golden.test_golden import hold
from tests.s3.fixture import REGION, Bucket, run_server
from tests.s3.tables import upload
from tests.spark.cluster import ROOT, Cluster
from tests.support.components import java_major, require
from tests.support.programs import run_tailer

PATIENCE_S = 900.0
# Secrets as AWS has them, that nothing else would look like.
ENVIRONMENT = ("AKIAENVIRONMENT", "hush/environment/wJalrXUtnFEMI7MDENG")
OPTIONS = ("AKIAOPTIONS", "hush/options/bPxRfiCYEXAMPLEKEY")
SECRETS = (ENVIRONMENT[1], OPTIONS[1], KEY)


PIPELINE = """
[daemon]
http = ""
state = "{state}"

[store.az]
account_name = "{account}"
account_key = "${{AZURE_KEY}}"
endpoint_url = "{azure_url}"

[store.gs]
anonymous = true
endpoint_url = "{google_url}"

[feeds.azure]
table = "{azure}"
from = "earliest"
sink = {{ type = "jsonl", path = "azure.jsonl", ids = "all" }}

[feeds.gcs]
table = "{google}"
from = "earliest"
sink = {{ type = "jsonl", path = "gcs.jsonl", ids = "all" }}
"""


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
    """Two servers of S3 with one account each, and one of each cloud, with the same table;
    ``reads`` are the program's."""

    def __init__(self, buckets: Sequence[Bucket], containers: Sequence[Container]) -> None:
        mine, theirs = buckets
        self.containers = containers
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
        for container in containers:
            self.reads[container.cloud] = {
                **common, "path": container.address("orders"), **container.spark,
            }  # fmt: skip

    def of(self, name: str) -> tuple[str, Mapping[str, str]]:
        """The table of a read, and the options of its store."""
        account = {
            option.removeprefix("store.").removeprefix("secret."): value
            for option, value in self.reads[name].items()
            if option.startswith("store.")
        }
        return self.reads[name]["path"], account


@pytest.fixture
def accounts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    azurite: CloudServer,
    gcs_server: CloudServer,
) -> Iterator[Accounts]:
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
        containers = [server.container() for server in (azurite, gcs_server)]
        for container in containers:
            anyio.run(container.upload, tmp_path / "orders", "orders")
        # Of an append: the rewritten files of the other commits are not read, their cdc files are.
        (lost,) = deltalake.DeltaTable(tmp_path / "orders", version=1).file_uris()
        Path(lost).unlink()
        anyio.run(upload, tmp_path / "orders", buckets[1], "broken")
        found = Accounts(buckets, containers)
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
    table, account = accounts.of(name)
    options = [f"--store-option={key}={value}" for key, value in account.items()]
    source = accounts.reads[name].get("changeSource", "auto")
    asked = ["--from", "0", "--change-source", source, "--output", str(output)]
    assert main(["read", table, *options, *asked]) == 0
    return pq.read_table(output)


def run_pipeline(cluster: Cluster, accounts: Accounts, folder: Path) -> None:
    """The feeds of the clouds' tables as `tailer spark`, each file a task of the cluster; the state
    lies on Azure. What is said goes to ``told/pipeline.log``."""
    azure, google = accounts.containers
    config = folder / "tailer.toml"
    config.write_text(
        PIPELINE.format(
            state=azure.address("state"),
            account=ACCOUNT, azure=azure.address("orders"), azure_url=azure.url,
            google=google.address("orders"), google_url=google.url,
        )
    )  # fmt: skip
    confs = [part for conf in cluster.settings().items() for part in ("--conf", "=".join(conf))]
    more = ["--available-now", "--driver-bytes-max", "0"]
    with (folder / "told" / "pipeline.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", "tailer", "spark", str(config), *more, *confs],
            stdout=log, stderr=log, cwd=ROOT, timeout=PATIENCE_S, check=False,
            env={**cluster.environment(), "AZURE_KEY": KEY},
        )  # fmt: skip
    assert done.returncode == 0, (folder / "told" / "pipeline.log").read_text()[-4000:]


def run_daemons_feed(accounts: Accounts, name: str, folder: Path) -> bytes:
    """The lines of the same table by `tailer tail`."""
    table, account = accounts.of(name)
    options = [f"--store-option={key}={value}" for key, value in account.items()]
    done = run_tailer("tail", table, "--with-ids", "--from", "0", "--to", "4", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.encode()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.needs("s3")
def test_executors_read_each_store_with_either_account_and_tell_no_secret(
    accounts: Accounts, tmp_path: Path
) -> None:
    with Cluster(tmp_path / "cluster", workers=1) as cluster:
        told = run_program(cluster, tmp_path, accounts.reads)
        run_pipeline(cluster, accounts, tmp_path)
    for name in accounts.reads:
        if name.startswith("refused"):
            continue
        wanted = read_by_tailer(accounts, name, tmp_path / f"{name}.parquet")
        assert wanted.num_rows
        for kind in ("batch", "stream")[: 1 if name.endswith("derived") else 2]:
            hold(difference(wanted, read_folder(told / name / kind)))
    for name in ("azure", "gcs"):
        lines = (tmp_path / f"{name}.jsonl").read_bytes()
        assert lines == run_daemons_feed(accounts, name, tmp_path)
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
