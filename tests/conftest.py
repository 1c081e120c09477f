"""Fixtures and settings of all tests. See README.md in this folder."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.components import java_major, require, start_spark
from tests.s3.fixture import ACCESS, SECRET, Bucket, S3Server, run_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first test that uses S3 also waits for its server to be built, once a machine.
S3_TIMEOUT_S = 600
# The first test that uses Spark also waits for its jars, once a machine, and for its start.
SPARK_TIMEOUT_S = 300

# No deadline: the same example is slow once, while something else has the processor.
settings.register_profile(
    "user", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", settings.get_profile("user"), max_examples=200, print_blob=True, derandomize=True
)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "user")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses Spark, and give it time for its start."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
        elif (
            "s3_server" in getattr(item, "fixturenames", ())
            and item.get_closest_marker("timeout") is None
        ):
            item.add_marker(pytest.mark.timeout(S3_TIMEOUT_S))


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests marked ``anyio``: asyncio, as aiohttp and aiobotocore need it."""
    return "asyncio"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One real Spark with Delta for all tests: UTC, two threads, reachable from here alone."""
    require("Java 17 or newer", java_major() >= 17)
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One real S3 server for all tests."""
    with run_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket; its account is in the environment, as it is for users."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return s3_server.bucket(f"b-{uuid.uuid4()}")
