"""docs/tutorial.md, run from its first command to its last in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.support.tutorial import tutorial
from tools.first_minutes import steps


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_tutorial_does_what_it_says(kafka: Broker, tmp_path: Path) -> None:
    script = "\n".join(tutorial(kafka.bootstrap, "tutorial").values())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    rows = re.findall(r"│ +(\d) │ (\w+) +│ +(\d+) │", said)
    assert rows == [
        ("1", "pears", "4"),
        ("3", "figs", "10"),
        ("4", "quinces", "1"),
        ("5", "figs", "4"),
    ]
    assert "4 rows in the mirror: exact" in said
    kinds = re.findall(r'"_change_type":"(\w+)","_commit_version":(\d)', said.partition("exact")[2])
    assert [kind for kind, _ in kinds].count("insert") == 5
    assert [kind for kind, _ in kinds].count("update_postimage") == 2
    assert kinds[-1] == ("delete", "3")


def test_the_first_minutes_are_the_pages_commands() -> None:
    scripts = steps(Path("delta_tailer.whl"), "127.0.0.1:9092")
    assert list(scripts) == [
        "installed", "first event", "in polars", "SQL over a copy", "Kafka", "PySpark installed",
        "Spark",
    ]  # fmt: skip
    for script in scripts.values():
        subprocess.run(["bash", "-n", "-c", script], check=True)
    assert "tailer tail orders --from earliest" in scripts["first event"]
    assert "tailer verify tailer.toml orders" in scripts["SQL over a copy"]
    assert "python consume.py" in scripts["Kafka"]
    assert '.load("orders")' in scripts["Spark"]
