"""A plugin of pytest that says at once which test failed, and why, in a line of its own.

Where several parts run side by side, pytest's letters are lines that nobody counts; its report
comes when a part ends.
"""

from __future__ import annotations

import os

import pytest

_CHARACTERS = 500


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print the test and the first line of its error."""
    if not report.failed:
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    why = str(crash.message if crash else report.longrepr).strip().splitlines() or [""]
    text = f"\nFAILED {report.nodeid} ({report.when}): {why[0][:_CHARACTERS]}\n"
    # Past what pytest captures of a test, and whole: the letters before it have no end of line.
    os.write(1, text.encode())
