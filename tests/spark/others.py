"""Other PySparks than the one that the tests run with, each in an environment of its own.

They are installed once a checkout, by pip, into ``.cache``, and see all else that this environment
has. A machine without an index is one without them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.components import java_major, require
from tests.source import ROOT

__all__ = ["OLDER", "OWN", "done_by", "pyspark_python", "required_python", "run_python"]

#: The older lines that the source is for.
OLDER = ("4.0.5", "4.1.4")
#: The one that the tests run with.
OWN = "4.2.0"

_PROGRAM = str(Path(__file__).parent / "other_program.py")


def pyspark_python(version: str, extra: str = "") -> Path | None:
    """The Python that has this PySpark; None where it can't be installed."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folder = ROOT / ".cache" / f"pyspark{extra and '-' + extra}-{version}-{tag}"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    wanted = f"pyspark{extra and f'[{extra}]'}=={version}"
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", wanted],
            check=True,
            timeout=900,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # What it has itself comes first; the rest is this environment's.
    (found,) = folder.glob("lib/python*/site-packages")
    rest = [path for path in sys.path if path.endswith("site-packages")]
    (found / "tests.pth").write_text("\n".join(rest) + "\n", encoding="utf-8")
    done.touch()
    return python


def required_python(version: str, extra: str = "") -> Path:
    """The Python that has this PySpark; the test is skipped, or fails with CI=true, without it."""
    require("Java 17 or newer", java_major() >= 17)
    python = pyspark_python(version, extra)
    require(f"pip with an index that has PySpark {version}", python is not None)
    assert python is not None
    return python


def done_by(python: Path, kind: str, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    """What came of each step of ``other_program.py``, in one session of that kind."""
    finished = run_python(python, _PROGRAM, kind, json.dumps(steps))
    assert finished.returncode == 0, finished.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(finished.stdout.splitlines()[-1])
    return found


def run_python(
    python: Path, *arguments: str, timeout_s: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run it in this checkout, with the driver's and the workers' Python being that one."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK_"))
    }
    return subprocess.run(
        [str(python), *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
