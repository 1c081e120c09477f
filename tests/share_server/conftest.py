"""The official Python client in a virtual environment of its own, and tables for it to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.share_server.goldens import served_goldens
from tests.share_server.serving import Served
from tests.sharing.official import official_python


@pytest.fixture(scope="session")
def client_python() -> Path:
    """The interpreter of a venv with the client."""
    return official_python()


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server of all golden tables, for clients that only read."""
    with served_goldens(tmp_path_factory.mktemp("goldens")) as running:
        yield running
