"""The official Python client, in a virtual environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.components import require
from tests.source import ROOT

# It needs an older pyarrow than we use ourselves.
CLIENT = "delta-sharing==1.4.2"


@pytest.fixture(scope="session")
def client_python() -> Path:
    """The interpreter of a venv with the client; made once a checkout, which needs the network."""
    folder = ROOT / ".cache" / CLIENT.replace("==", "-")
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False)
        install = [str(python), "-m", "pip", "install", "--quiet", CLIENT]
        if made.returncode == 0 and subprocess.run(install, check=False).returncode == 0:
            done.touch()
    require(CLIENT, done.exists())
    return python
