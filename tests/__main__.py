"""All tests, in two parts side by side: those that start Java, and all others. `make test`.

Each part is a pytest with components of its own. The output of the first comes while it runs, that
of the second behind it; both are whole. Where a part fails, so does the whole, by its status.
Options for both are in ``PYTEST_ADDOPTS``; one part alone is ``pytest -m java``, or
``pytest -m "not java"``.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.source import ROOT

PARTS = {"tests with Java": "java", "tests without Java": "not java"}
PAUSE_S = 0.2


def main() -> None:
    """Run both parts; the status is that of the first one that failed, or 0."""
    parts: dict[str, subprocess.Popen[bytes]] = {}
    _leave_ending_to(parts)
    with tempfile.TemporaryDirectory() as folder:
        (first, live), (second, later) = PARTS.items()
        output = Path(folder, "output")
        with output.open("wb") as written:
            parts[first] = subprocess.Popen(_pytest(live), cwd=ROOT)
            parts[second] = subprocess.Popen(
                _pytest(later), cwd=ROOT, stdout=written, stderr=subprocess.STDOUT
            )
        parts[first].wait()
        _show(output, parts[second])
    for name, part in parts.items():
        print(f"{name}: {f'failed with status {part.returncode}' if part.returncode else 'passed'}")
    sys.exit(next((abs(part.returncode) for part in parts.values() if part.returncode), 0))


def _pytest(expression: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", expression]


def _leave_ending_to(parts: dict[str, subprocess.Popen[bytes]]) -> None:
    """A part that is interrupted ends its components and says how far it came. Ctrl-C reaches the
    parts by itself; to a job that is ended its signal is passed on."""

    def interrupt(*_: object) -> None:
        for part in parts.values():
            part.send_signal(signal.SIGINT)

    # Functions, for what is ignored here would be ignored in the parts too.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, interrupt)


def _show(output: Path, part: subprocess.Popen[bytes]) -> None:
    """Show what a part has written and, until it has ended, what it writes."""
    with output.open("rb") as written:
        ended = False
        while not ended:
            ended = part.poll() is not None  # looked at first: what comes until then is shown
            shutil.copyfileobj(written, sys.stdout.buffer)
            sys.stdout.flush()
            if not ended:
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
