"""docs/examples/changes.ipynb: run as a user runs it, in a kernel of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.source import ROOT

NOTEBOOK = ROOT / "docs" / "examples" / "changes.ipynb"
#: The client in a process of its own: it leaves sockets to the garbage collector.
RUN = """
import sys, nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=250, resources={"metadata": {"path": sys.argv[2]}}).execute()
print(nbformat.writes(notebook))
"""


def run_notebook(folder: Path) -> list[dict[str, Any]]:
    """The outputs of all cells."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(NOTEBOOK), str(folder)],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each for cell in json.loads(done.stdout)["cells"] for each in cell.get("outputs", ())]


def test_the_notebook_runs_to_its_end(tmp_path: Path) -> None:
    outputs = run_notebook(tmp_path)
    printed = ["".join(each["text"]) for each in outputs if each["output_type"] == "stream"]
    # 140 rows came, 72 were changed, 28 deleted, and one more between the last two cells.
    first, second = (int(text.split()[0]) for text in printed)
    assert second == 1
    assert first == 140 + 2 * 72 + 28
    (plot,) = [each for each in outputs if "image/png" in each.get("data", {})]
    assert len(plot["data"]["image/png"]) > 5000
    assert not [each for each in outputs if each["output_type"] == "error"]


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
