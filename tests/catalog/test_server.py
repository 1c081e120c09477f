"""The tests' own server answers as the API's description says, whatever it is asked
(schemathesis)."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.server import API, TOKEN, CatalogServer
from tests.catalog.writer import ManagedTable
from tests.support.components import require

DESCRIPTION = Path(__file__).parent / "api.yaml"
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_schema_conformance", "ignored_auth",
)  # fmt: skip


def vend() -> list[dict[str, Any]]:
    keys = {"s3.access-key-id": "access", "s3.secret-access-key": "secret"}
    end_ms = int(time.time() * 1000) + 3_600_000
    return [{"prefix": "s3://lake/orders", "operation": "READ", "config": keys,
             "expiration-time-ms": end_ms}]  # fmt: skip


@pytest.mark.slow  # of a server of the tests' own
@pytest.mark.timeout(600)
def test_it_answers_as_the_description_says(server: CatalogServer, tmp_path: Path) -> None:
    require("schemathesis", find_spec("schemathesis") is not None)
    managed = ManagedTable(server.endpoint, TOKEN, "managed").create()
    for _ in range(3):
        managed.commit()
    managed.publish()
    server.table("orders", "s3://lake/orders")
    server.table("secret", "s3://lake/secret")
    server.forbidden.add("secret")
    server.vended["main.sales.orders"] = vend
    server.requests.clear()
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", str(DESCRIPTION),
         "--url", f"{server.endpoint}{API}", "--header", f"Authorization: Bearer {TOKEN}",
         "--checks", ",".join(CHECKS), "--seed", "20261121", "--max-examples", "6",
         "--generation-deterministic", "--phases", "examples,coverage,fuzzing", "--no-color",
         "--suppress-health-check", "too_slow"],
        capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-2000:]
    for path in ("/tables/orders", "/tables/managed", "/tables/secret", "/no/"):
        assert server.seen(path), f"{path} was not asked for"
