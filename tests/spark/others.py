"""Other PySparks than the one that the tests run with, each in an environment of its own.

They are installed once a checkout, by pip, into ``.cache``, and see all else that this environment
has. A machine without an index is one without them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.source import ROOT

__all__ = ["OLDER", "pyspark_python", "run_python"]

#: The older lines that the source is for.
OLDER = ("4.0.5", "4.1.4")


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
