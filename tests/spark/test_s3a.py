"""A cluster's own access to S3: Hadoop's client writes and reads the tables, and what reads them
here has nothing but the session's configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.s3.fixture import ACCESS, REGION, SECRET, S3Server
from tests.spark.test_pipeline import configured, lines, run_spark
from tests.support.components import java_major, require
from tests.support.s3a import s3a_settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("s3a"),
    pytest.mark.needs("delta"),
    pytest.mark.timeout(900),
]
BUCKET, SESSION_S = "cluster", 600.0


def test_the_sessions_account_alone_reads_and_writes(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("Java 17 or newer", java_major() >= 17)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3_server.bucket(BUCKET)
    program = [sys.executable, "-m", "tests.spark.s3a_session", s3_server.url, BUCKET]
    ended = subprocess.run(
        [*program, str(tmp_path / "spark")],
        capture_output=True, text=True, check=False, timeout=SESSION_S,
    )  # fmt: skip
    assert not ended.returncode, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    wrong = {of: [what for what, right in each.items() if not right] for of, each in found.items()}
    assert not any(wrong.values()), wrong

    config = configured(tmp_path / "feed", {"name": "keyed", "table": f"s3a://{BUCKET}/keyed"})
    settings = s3a_settings(BUCKET, s3_server.url, REGION, (ACCESS, SECRET))
    confs = [part for conf in settings.items() for part in ("--conf", "=".join(conf))]
    ended = run_spark(config, *confs)
    assert not ended.returncode, ended.stderr[-3000:]
    kinds = [json.loads(line)["_change_type"] for line in lines(config, "keyed")]
    assert sorted(kinds) == [*["delete"] * 2, *["insert"] * 10], "an update without a key is both"
