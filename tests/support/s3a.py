"""Hadoop's own client of S3, with which a cluster reads ``s3a://``, and the jars that it needs."""

from __future__ import annotations

from pathlib import Path

from tests.support.components import Component, no_java, run_maven
from tests.support.hdfs import find_hadoop_version

_SDK, _ACCELERATOR = "2.57.8", "1.3.1"
_AWS = "software.amazon.awssdk"
_PARTS = ("s3", "s3-transfer-manager", "apache-client", "netty-nio-client", "sts")
#: PySpark has others of these.
_SPARKS = ("netty-*-4.1.*", "slf4j-*", "httpclient-4*", "httpcore-4*", "commons-*")


def _pom() -> str:
    def dependency(group: str, artifact: str, more: str = "") -> str:
        names = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        return f"<dependency>{names}{more}</dependency>"

    none = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    hadoop = f"<version>{find_hadoop_version()}</version><exclusions>{none}</exclusions>"
    bom = f"<version>{_SDK}</version><type>pom</type><scope>import</scope>"
    accelerator = f"<version>{_ACCELERATOR}</version>"
    wanted = [
        dependency("org.apache.hadoop", "hadoop-aws", hadoop),
        dependency(
            "software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", accelerator
        ),
        *(dependency(_AWS, part) for part in _PARTS),
    ]
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>s3a</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencyManagement>
    <dependencies>{dependency(_AWS, "bom", bom)}</dependencies>
  </dependencyManagement>
  <dependencies>{"".join(wanted)}</dependencies>
</project>
"""


def _make(home: Path) -> None:
    project = home / "s3a.xml"
    project.write_text(_pom())
    jars = home / "jars"
    into = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    run_maven("-f", str(project), *into)
    for pattern in _SPARKS:
        for jar in jars.glob(pattern):
            jar.unlink()


S3A = Component(
    "s3a",
    "Hadoop's client of S3, by Maven,",
    home=lambda: f"s3a-{find_hadoop_version()}-{_SDK}",
    make=_make,
    missing=no_java,
)


def s3a_settings(bucket: str, url: str, region: str, account: tuple[str, str]) -> dict[str, str]:
    """What a cluster has for one bucket, and for all others an account that nobody knows."""
    key, secret = account
    of_bucket = f"spark.hadoop.fs.s3a.bucket.{bucket}."
    return {
        "spark.driver.extraClassPath": f"{S3A.path() / 'jars'}/*",
        "spark.executor.extraClassPath": f"{S3A.path() / 'jars'}/*",
        "spark.hadoop.fs.s3a.access.key": "nobody",
        "spark.hadoop.fs.s3a.secret.key": "nothing",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        f"{of_bucket}endpoint": url,
        f"{of_bucket}endpoint.region": region,
        f"{of_bucket}access.key": key,
        f"{of_bucket}secret.key": secret,
    }
