"""An Iceberg table a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.iceberg import Lake

KEY = ["id"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def held(lake: Lake) -> list[dict[str, Any]]:
    """The rows, in an order."""
    return sorted(lake.rows(), key=str)
