"""What is set up before a process reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_LOADS = """
import sys, threading
from pathlib import Path
from tailer.process.reading import begin_reading

begin_reading()
for thread in threading.enumerate()[1:]:
    thread.join()
assert "pyarrow" not in sys.modules
maps = Path("/proc/self/maps").read_text()
print("libarrow.so" in maps, "libparquet.so" in maps)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it knows the wheels for Linux alone")
def test_arrow_s_libraries_are_loaded_without_pyarrow() -> None:
    loaded = subprocess.check_output([sys.executable, "-c", _LOADS], text=True)
    assert loaded.split() == ["True", "True"]


@pytest.mark.parametrize("files", [[], ["__init__.py"], ["__init__.py", "libarrow_substrait.so.1"]])
def test_without_its_libraries_nothing_is_loaded_and_nothing_is_said(
    tmp_path: Path, files: list[str]
) -> None:
    """No pyarrow, one whose libraries lie elsewhere, and a damaged one."""
    for name in files:
        (tmp_path / "pyarrow").mkdir(exist_ok=True)
        (tmp_path / "pyarrow" / name).write_text("")
    program = f"import sys\nfrom tailer.process import reading\nsys.path = [{str(tmp_path)!r}]\n"
    program += "reading._load_arrow()\n"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
