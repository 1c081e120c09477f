"""The commands of docs/operations.md, docs/runbook.md and docs/metrics.md, at a real daemon."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.components import require
from tests.support.ordered import TOKEN, Setting, wait_for_state
from tests.support.pages import Block, blocks


def by_shell(block: Block, setting: Setting) -> None:
    """Run a block as it stands, but for the port."""
    text = replace(block, text=block.text.replace("9464", str(setting.port))).text
    command = ["bash", "-ec", text.replace("curl ", "curl --fail --silent --show-error ")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_feed_is_paused_and_started_by_the_pages_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("curl", shutil.which("curl") is not None)
    monkeypatch.setenv("TAILER_TOKEN", TOKEN)
    setting = Setting(tmp_path)
    setting.table("orders")
    setting.feed("orders")
    pause = next(block for block in blocks("docs/operations.md", "") if "curl" in block.text)
    start = next(block for block in blocks("docs/runbook.md", "") if "curl" in block.text)
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        by_shell(pause, setting)
        wait_for_state(program, setting, "paused")
        setting.order("orders", "stop")
        wait_for_state(program, setting, "stopped")
        by_shell(start, setting)
        wait_for_state(program, setting, "following")
        assert program.stop() == 0
