"""The official Python client in a virtual environment of its own, and tables for it to read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import require
from tests.sharing.server.goldens import served_goldens
from tests.sharing.server.serving import Served
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


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server of all golden tables, for clients that only read."""
    with served_goldens(tmp_path_factory.mktemp("goldens")) as running:
        yield running
