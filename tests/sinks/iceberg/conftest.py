"""An Iceberg table a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.iceberg import Lake, make_lake

KEY = ["id"]


@pytest.fixture(params=["sql_catalog", "rest_catalog"])
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    return make_lake(tmp_path, request)


def held(lake: Lake) -> list[dict[str, Any]]:
    """The rows, in an order."""
    return sorted(lake.rows(), key=str)
