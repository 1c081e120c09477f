"""Spark's own Kafka sink, put together by hand.

``spark-sql-kafka-0-10`` of this Spark resolves from Maven Central, and its token provider does not;
the one of Spark 4.0.0 does, has the same interface, and is only used where a cluster asks for
delegation tokens.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.components import require
from tests.support.source import ROOT

__all__ = ["kafka_jars"]

SPARK_VERSION = "4.2.0"
TOKEN_PROVIDER_VERSION = "4.0.0"

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>spark-kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.spark</groupId>
      <artifactId>spark-token-provider-kafka-0-10_2.13</artifactId>
      <version>{TOKEN_PROVIDER_VERSION}</version></dependency>
    <dependency><groupId>org.apache.spark</groupId>
      <artifactId>spark-sql-kafka-0-10_2.13</artifactId>
      <version>{SPARK_VERSION}</version>
      <exclusions><exclusion><groupId>org.apache.spark</groupId>
        <artifactId>spark-token-provider-kafka-0-10_2.13</artifactId>
      </exclusion></exclusions></dependency>
  </dependencies>
</project>
"""


def kafka_jars() -> str:
    """The jars of Spark's Kafka sink, as ``spark.jars`` takes them; fetched once."""
    home = ROOT / ".cache" / f"spark-kafka-{SPARK_VERSION}"
    if not (home / "ready").exists():
        require("Maven", shutil.which("mvn") is not None)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        (home / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "-ntp", "-f", str(home / "pom.xml")]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        command += [f"-DoutputDirectory={home / 'lib'}"]
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=300)
        (home / "ready").touch()
    # Spark brings the rest itself, and of the same versions.
    own = _names(Path(_spark_home(), "jars"))
    found = [jar for jar in sorted((home / "lib").glob("*.jar")) if _name(jar) not in own]
    return ",".join(str(jar) for jar in found)


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def _name(jar: Path) -> str:
    """A jar's name without its version."""
    return jar.name.rsplit("-", 1)[0]


def _names(folder: Path) -> set[str]:
    return {_name(jar) for jar in folder.glob("*.jar")}
