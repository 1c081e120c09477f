"""The API is what its own description says, whatever it is asked (schemathesis)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.share_server.serving import served
from tests.support.components import require
from tests.support.extent import WHOLE, sampled

EXAMPLES = int(os.environ.get("TAILER_SCHEMATHESIS_EXAMPLES", "6" if WHOLE else "2"))
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "ignored_auth",
)  # fmt: skip


def description(server_description: Any) -> Any:
    """The description with names that are there, and one that is not: chance would find none."""
    for operations in server_description["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    there = {"share": "s", "schema": "x", "table": "t"}[parameter["name"]]
                    parameter["schema"] = {"type": "string", "enum": [there, there.upper(), "no"]}
    return server_description


@sampled
@pytest.mark.timeout(600)
def test_the_api_is_as_described(tmp_path: Path) -> None:
    require("schemathesis", find_spec("schemathesis") is not None)
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    for n in range(3):
        table.insert([{"id": n}])
    limits = "requests_per_s = 10000"
    with served(tmp_path, {"s.x.t": table.folder}, share=limits) as server:
        document = tmp_path / "openapi.json"
        document.write_text(json.dumps(description(server.get("/openapi.json").json)))
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", str(document), "--url", server.url,
             "--header", f"Authorization: Bearer {server.bearer}", "--checks", ",".join(CHECKS),
             "--seed", "20261121", "--max-examples", str(EXAMPLES), "--generation-deterministic",
             "--phases", "examples,coverage,fuzzing", "--no-color",
             "--suppress-health-check", "too_slow"],
            capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        statuses = {line["status"] for line in server.audit()}
        assert {200, 400, 401, 404} <= statuses
        assert not {status for status in statuses if status >= 500 or status == 499}
