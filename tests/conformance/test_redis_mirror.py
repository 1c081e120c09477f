"""A copy in Redis against the public suite."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import MirrorConformance, TargetFaults
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import MakeSink
from tests.conformance.faults import redis_faults
from tests.support.brokers import Redis
from tests.support.json_rows import typed_rows


class TestRedisMirror(MirrorConformance):
    @pytest.fixture
    def options(self, redis_server: Redis) -> dict[str, Any]:
        prefix = f"t{uuid.uuid4().hex}:"
        return {"url": redis_server.url(), "mode": "mirror", "prefix": prefix, "key": ["id"]}

    @pytest.fixture
    def target_faults(self, redis_server: Redis, options: dict[str, Any]) -> TargetFaults:
        return redis_faults(redis_server, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("redis", options, Path())

    @pytest.fixture
    def read_rows(self, redis_server: Redis, options: dict[str, Any]) -> ReadRows:
        def read() -> Sequence[dict[str, Any]]:
            with closing(redis.Redis.from_url(redis_server.url())) as client:
                names: Any = client.keys(f"{options['prefix']}*")
                values: Any = client.mget(names) if names else []
            return typed_rows([json.loads(value, parse_float=Decimal) for value in values])

        return read

    async def test_a_column_that_is_added_or_dropped_is_that_of_the_copy(  # type: ignore[override]
        self,
    ) -> None:
        """Rows keep what they were written with: see tests/sinks/test_redis_mirror.py."""
