"""Hadoop's own client of S3, with which a cluster reads ``s3a://``, and the jars that it needs."""

from __future__ import annotations

from pathlib import Path

from tests.support.components import Component, no_java
from tests.support.hdfs import find_hadoop_version
from tests.support.maven import copy_jar, copy_jars

_SDK = "2.57.8"
_ARTIFACTS = (
    *(
        f"software.amazon.awssdk:{part}:{_SDK}"
        for part in ("s3", "s3-transfer-manager", "apache-client", "netty-nio-client", "sts")
    ),
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)
#: PySpark has others of these.
_SPARKS = ("netty-*-4.1.*", "slf4j-*", "httpclient-4*", "httpcore-4*", "commons-*")


def _make(home: Path) -> None:
    jars = home / "jars"
    copy_jars(jars, _ARTIFACTS)
    for pattern in _SPARKS:
        for jar in jars.glob(pattern):
            jar.unlink()
    # Alone: PySpark has what it needs of Hadoop.
    copy_jar(jars, f"org.apache.hadoop:hadoop-aws:{find_hadoop_version()}")


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
