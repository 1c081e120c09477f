"""An index of OpenSearch a test."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tailer.sink import Sink, make_sink
from tests.support.opensearch import OpenSearch


@pytest.fixture
def index() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def options(opensearch: OpenSearch, index: str) -> dict[str, Any]:
    return {"url": opensearch.url, "index": index, "key": ["id"]}


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("search", {**options, **more}, Path())
