"""The official Python client, in an environment of its own.

It needs another pyarrow than this project does. It is installed once a checkout, by pip, into
``.cache``; a machine without an index is one without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.components import making

__all__ = ["VERSION", "call_official", "official_python"]

VERSION = "1.4.2"
SCRIPT = Path(__file__).parent / "official_client.py"


def official_python() -> Path | None:
    """The Python that has the official client; None where it can't be installed."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    with making("delta-sharing") as cache:
        return _installed(cache / f"delta-sharing-{VERSION}-{tag}")


def _installed(folder: Path) -> Path | None:
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check",
             f"delta-sharing=={VERSION}"],
            check=True,
            timeout=500,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    done.touch()
    return python


def call_official(python: Path, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Have the client do some calls, in one process; see ``official_client.py``.

    Each gives ``{"result": ...}`` or ``{"error": text}``. Rows are dictionaries.
    """
    done = subprocess.run(
        [str(python), str(SCRIPT)],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "PYTHONPATH": "", "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found
