"""What the tests need and pip does not bring with this project is fetched and built here, before
the first test: a test's time is its own.

    python -m tests.prepare [NAME ...]

`make test` prepares all of it, and any other pytest what the tests that it has selected are marked
to need. What is there already is left as it is. What can't be had is skipped by name; where
``CI=true`` the run fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tests.clouds.servers import AZURITE, GCS
from tests.console.axe import AXE
from tests.deploy.helm import HELM
from tests.kafka.broker import KAFKA, OLDER_KAFKA
from tests.s3.fixture import S3_SERVER
from tests.sharing.official import OFFICIAL_CLIENT
from tests.spark.others import OTHERS
from tests.support.aws import MOTO
from tests.support.clickhouse import CHDB
from tests.support.components import DELTA, SPARK_CLASSES, Component, NotMade
from tests.support.connect import CONNECT
from tests.support.crate import CRATE
from tests.support.elasticsearch import ELASTICSEARCH
from tests.support.flink import FLINK
from tests.support.hdfs import HDFS
from tests.support.iceberg_rest import ICEBERG_REST
from tests.support.opensearch import OPENSEARCH
from tests.support.postgres import PGVECTOR
from tests.support.pubsub_server import PUBSUB
from tests.support.registry import REGISTRY
from tests.support.s3a import S3A
from tests.support.yarn import YARN

#: What the tests of `make test` need, and what only the `slow` ones do.
EVERY_RUN = (
    CRATE, S3_SERVER, AZURITE, GCS, DELTA, KAFKA, REGISTRY, OFFICIAL_CLIENT, MOTO, OPENSEARCH, CHDB,
    PGVECTOR, PUBSUB, AXE, HDFS, ELASTICSEARCH, ICEBERG_REST,
)  # fmt: skip
SLOW = (CONNECT, FLINK, HELM, SPARK_CLASSES, YARN, S3A)
TORTURE = (OLDER_KAFKA, *OTHERS.values())
COMPONENTS = {component.name: component for component in (*EVERY_RUN, *SLOW, *TORTURE)}

# How often it is said what is still being made.
BEAT_S = 30.0


def prepare(names: Iterable[str], say: Callable[[str], None]) -> dict[str, str]:
    """Make what is not there, all at once; returns what could not be made, and why."""
    begun = time.monotonic()
    failed: dict[str, str] = {}
    wanted = [COMPONENTS[name] for name in names]
    with ThreadPoolExecutor(max_workers=len(wanted) or 1) as pool:
        running = {pool.submit(component.prepare): component for component in wanted}
        while running:
            ended, _ = wait(running, BEAT_S, FIRST_COMPLETED)
            for made in ended:
                component = running.pop(made)
                why = _outcome(made, component, begun, say)
                if why:
                    failed[component.name] = why
            if running and not ended:
                titles = "; ".join(c.title.rstrip(",") for c in running.values())
                say(f"preparing, {time.monotonic() - begun:.0f} s: {titles}")
    return failed


def _outcome(
    made: Future[bool], component: Component, begun: float, say: Callable[[str], None]
) -> str:
    title, took = component.title.rstrip(","), f"{time.monotonic() - begun:.0f} s"
    try:
        if made.result():
            say(f"prepared after {took}: {title}")
    except (NotMade, OSError, RuntimeError, subprocess.SubprocessError) as e:
        why = f"{e}" if isinstance(e, NotMade) else f"{type(e).__name__}: {e}"[:500]
        say(f"can't be prepared: {title}: {why}")
        return why
    return ""


def prepare_all(names: Iterable[str] = (), *, slow: bool = True) -> dict[str, str]:
    """Prepare these, or what `make test-all` needs, without ``slow`` `make test`, and more for
    `make torture`; where ``CI=true`` the process ends if anything is missing."""
    every: list[Component] = [*EVERY_RUN, *(SLOW if slow else ())]
    if "TAILER_TORTURE_ROUNDS" in os.environ:
        every = [*COMPONENTS.values()]
    failed = prepare(list(names) or [component.name for component in every], _print)
    if failed and os.environ.get("CI") == "true":
        sys.exit(f"not prepared: {', '.join(failed)}; with CI=true no test is skipped")
    return failed


def _print(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Prepare what is named, or all; the status is 1 where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.prepare")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMPONENTS)}")
    names = parser.parse_args().names
    if unknown := set(names) - set(COMPONENTS):
        parser.error(f"no such component: {', '.join(sorted(unknown))}")
    sys.exit(1 if prepare_all(names) else 0)


if __name__ == "__main__":
    main()
