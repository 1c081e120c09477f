"""A real HDFS for tests: a namenode and a datanode in one process, with the jars of PySpark."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.components import Component, no_java, run_maker, server_java
from tests.support.maven import copy_jar
from tests.support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRAM = Path(__file__).with_name("MiniHdfs.java")
#: The one user that may do anything; whoever else tests are, is nobody there.
_SUPERUSER = "hdfs"


def find_spark_jars() -> Path:
    """The folder of PySpark's jars."""
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return Path(spark.origin).parent / "jars"


def find_hadoop_version() -> str:
    """The version of Hadoop that PySpark has."""
    (client,) = find_spark_jars().glob("hadoop-client-api-*.jar")
    return client.stem.removeprefix("hadoop-client-api-")


def _make(home: Path) -> None:
    cluster = f"org.apache.hadoop:hadoop-client-minicluster:{find_hadoop_version()}"
    copy_jar(home, cluster)
    classes = f"{home}/*:{find_spark_jars()}/*"
    run_maker(["javac", "-nowarn", "-cp", classes, "-d", home, _PROGRAM])


HDFS = Component(
    "hdfs",
    "Hadoop's HDFS, by Maven,",
    home=lambda: f"hdfs-{find_hadoop_version()}",
    make=_make,
    missing=no_java,
)


class Hdfs(Server):
    """One cluster, which keeps its data over a restart."""

    name = "hdfs"

    def __init__(self) -> None:
        self.home = HDFS.path()
        super().__init__()

    def start(self) -> None:
        classes = ["-cp", f"{self.home}:{self.home}/*:{find_spark_jars()}/*", "MiniHdfs"]
        user = f"-DHADOOP_USER_NAME={_SUPERUSER}"
        (self.folder / "log").write_text("")
        self.launch(*server_java("300m"), user, *classes, str(self.port), self.folder / "data")

    def answers(self) -> bool:
        return "listening" in (self.folder / "log").read_text()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"hdfs://127.0.0.1:{self.port}"

    def files(self, spark: SparkSession) -> Any:
        """Java's `FileSystem` for a superuser."""
        java: Any = spark.sparkContext._jvm
        conf = java.org.apache.hadoop.conf.Configuration()
        return java.org.apache.hadoop.fs.FileSystem.newInstance(
            java.java.net.URI(self.url), conf, _SUPERUSER
        )

    def upload(self, spark: SparkSession, folder: Path, name: str) -> str:
        """Copy a folder of this machine; returns its address there."""
        path: Any = spark.sparkContext._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
        address = f"{self.url}/{name}"
        self.files(spark).copyFromLocalFile(path(f"file:{folder}"), path(address))
        return address
