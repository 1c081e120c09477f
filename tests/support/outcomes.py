"""What a long run has seen, for people and for ``python -m tests.reliability``."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.source import ROOT


def record(component: str, by: str, **facts: int | str) -> None:
    """Add what was seen of a component to the file that ``TAILER_TORTURE_RESULTS`` names, if it
    does. ``by`` is the test or the command."""
    if name := os.environ.get("TAILER_TORTURE_RESULTS"):
        at = datetime.now(UTC).date().isoformat()
        line = {"component": component, "by": by, **facts, "commit": commit(), "at": at}
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def record_outcome(capsys: pytest.CaptureFixture[str], component: str, **facts: int | str) -> None:
    """Print and record what the present test has seen; it has passed."""
    with capsys.disabled():
        print(f"\n{component}: {', '.join(f'{n} {name}' for name, n in facts.items())}")
    record(component, os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0], **facts)


def commit() -> str:
    """The commit of this checkout, short."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()
