"""Other PySparks than the one that the tests run with, each in an environment of its own.

They see all else that this environment has. `make torture` alone has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.components import Component, make_environment, no_java, python_tag
from tests.support.source import ROOT

#: The other releases that the source is for: the last ones of older lines, and a newer patch.
OTHER_LINES = ("4.0.5", "4.1.4", "4.2.1")
#: The one that the tests run with.
OWN = "4.2.0"

_PROGRAM = str(Path(__file__).parent / "other_program.py")


def _other(version: str, extra: str = "") -> Component:
    wanted = f"pyspark{extra and f'[{extra}]'}=={version}"

    def install(folder: Path) -> None:
        make_environment(folder, wanted)
        # What it has itself comes first; the rest is this environment's.
        (found,) = folder.glob("lib/python*/site-packages")
        rest = [path for path in sys.path if path.endswith("site-packages")]
        (found / "tests.pth").write_text("\n".join(rest) + "\n", encoding="utf-8")

    return Component(
        f"pyspark{extra and f'-{extra}'}-{version}",
        f"{wanted} in an environment of its own,",
        home=lambda: f"other-pyspark{extra and f'-{extra}'}-{version}-{python_tag()}",
        make=install,
        missing=no_java,
    )


OTHERS = {
    (version, extra): _other(version, extra)
    for version, extra in [*((other, "") for other in OTHER_LINES), (OWN, "pipelines")]
}


def required_python(version: str, extra: str = "") -> Path:
    """The Python that has this PySpark."""
    return OTHERS[version, extra].path() / "bin" / "python"


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
