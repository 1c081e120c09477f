"""The official Python client, in an environment of its own.

It needs another pyarrow than this project does.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.components import Component, make_environment, python_tag

VERSION = "1.4.2"
SCRIPT = Path(__file__).parent / "official_client.py"


def _install(folder: Path) -> None:
    make_environment(folder, f"delta-sharing=={VERSION}")


OFFICIAL_CLIENT = Component(
    "official",
    f"the official client, delta-sharing {VERSION},",
    home=lambda: f"official-client-{VERSION}-{python_tag()}",
    make=_install,
)


def official_python() -> Path:
    """The Python that has the official client."""
    return OFFICIAL_CLIENT.path() / "bin" / "python"


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
        timeout=500,
        env={**os.environ, "PYTHONPATH": "", "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found
