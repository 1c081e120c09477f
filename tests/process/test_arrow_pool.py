"""Where pyarrow takes its memory from."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_CHOSEN = """
from tailer.process.arrow_pool import choose_arrow_pool

choose_arrow_pool("system")
choose_arrow_pool("jemalloc")
import pyarrow

print(pyarrow.default_memory_pool().backend_name)
"""
_NAME = "ARROW_DEFAULT_MEMORY_POOL"


def _pool(code: str, **chosen: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != _NAME} | chosen
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=environment, text=True).strip()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pyarrow chooses")
def test_the_first_choice_holds_and_the_user_s_before_it() -> None:
    assert _pool(_CHOSEN) == "system"
    assert _pool(_CHOSEN, **{_NAME: "mimalloc"}) == "mimalloc"
