"""What a long run has seen, for people and for ``python -m tests.reliability``."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.source import ROOT

__all__ = ["commit", "record_outcome"]


def record_outcome(capsys: pytest.CaptureFixture[str], component: str, **facts: int | str) -> None:
    """Print one line for a test that has passed; with ``TAILER_TORTURE_RESULTS``, the name of a
    file, the facts are added to it, too."""
    with capsys.disabled():
        print(f"\n{component}: {', '.join(f'{n} {name}' for name, n in facts.items())}")
    if name := os.environ.get("TAILER_TORTURE_RESULTS"):
        test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
        line: dict[str, Any] = {
            "component": component, "test": test, **facts,
            "commit": commit(), "at": datetime.now(UTC).date().isoformat(),
        }  # fmt: skip
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def commit() -> str:
    """The commit of this checkout, short."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
