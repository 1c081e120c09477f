"""Nodes without the package: it is sent as an environment, or as a file, by the commands of
docs/spark-details.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import sinks
import tailer
from tailer.testing.table import TableBuilder
from tests.spark.cluster import Cluster
from tests.support.components import SPARK_PATIENCE
from tests.support.pages import blocks

SPARK_HOME = Path(pyspark.__file__).parent
SUBMIT_S = 900.0
CONFIG = """
[daemon]
http = ""
[feeds.orders]
table = "orders"
from = "earliest"
sink = { type = "jsonl", path = "orders.jsonl", ids = "all" }
"""
pytestmark = pytest.mark.timeout(SUBMIT_S + 300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=1) as started:
        yield started


def environment(folder: Path) -> Path:
    """Make a virtual environment with the dependencies alone; return where packages lie in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # What is named so has no effect by files like this one, as an editable installation does.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return packages


def package_into(folder: Path) -> None:
    """What the wheel has."""
    for module in (tailer, sinks):
        assert module.__file__ is not None
        source = Path(module.__file__).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    installed = distribution("delta-tailer")
    described = folder / f"delta_tailer-{installed.version}.dist-info"
    described.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (described / name).write_text(installed.read_text(name) or "")


def archived_environment(folder: Path) -> dict[str, str]:
    """What the first block makes; its ``pip`` would want the network."""
    package_into(environment(folder / "env"))
    for command in commands("env.tar.gz")[:2]:
        subprocess.run(["sh", "-c", command.rpartition("&& ")[2]], check=True, cwd=folder)
    return {}


def package_file(folder: Path) -> dict[str, str]:
    """What the second block makes, beside nodes with the dependencies."""
    environment(folder / "node")
    package_into(folder / "package")
    shutil.make_archive(str(folder / "tailer"), "zip", folder / "package")
    (folder / "start.py").write_text("from tailer.__main__ import run\nrun()\n")
    shutil.rmtree(folder / "package")
    return {"PYSPARK_PYTHON": str(folder / "node/bin/python")}


def commands(part: str, language: str = "sh") -> list[str]:
    """The commands of the guide's block with this part."""
    (block,) = (
        block
        for block in blocks("docs/spark-details.md", language)
        if part in block.text and "spark-submit" in block.text
    )
    return block.lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "part"), [(archived_environment, "env.tar.gz"), (package_file, "tailer.zip")]
)
def test_nodes_without_the_package_read_a_table(
    make: Callable[[Path], dict[str, str]], part: str, cluster: Cluster, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}])
    table.insert([{"id": 2}, {"id": 3}])
    (tmp_path / "tailer.toml").write_text(CONFIG)
    named = make(tmp_path)
    settings = {
        name: value
        for name, value in cluster.settings().items()
        if name not in ("spark.master", "spark.executorEnv.PYTHONPATH")
    }
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in settings.items())
    )
    command = commands(part)[-1].replace("spark://master:7077", cluster.url)
    # All is read by the executors, and no more than there is.
    submitted = subprocess.run(
        ["sh", "-c", f"{command} --available-now --driver-bytes-max 0"],
        cwd=tmp_path, text=True, capture_output=True, timeout=SUBMIT_S, check=False,
        env={
            "HOME": str(tmp_path),
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            "PATH": f"{SPARK_HOME / 'bin'}:{os.environ['PATH']}",
            "SPARK_CONF_DIR": str(conf),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **SPARK_PATIENCE,
            **named,
        },
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr + cluster.said()
    rows = (tmp_path / "orders.jsonl").read_text().splitlines()
    assert len(rows) == 3, rows
