"""An index of each search engine a test."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tailer.sink import Sink, make_sink
from tests.support.search_engine import SearchEngine


@pytest.fixture
def index() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def options(search_engine: SearchEngine, index: str) -> dict[str, Any]:
    return {"url": search_engine.url, "index": index, "key": ["id"]}


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("search", {**options, **more}, Path())
