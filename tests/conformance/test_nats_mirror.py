"""A copy in a key-value bucket of NATS against the public suite."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import MirrorConformance, TargetFaults
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import MakeSink
from tests.conformance.faults import nats_faults
from tests.support.brokers import Nats
from tests.support.json_rows import typed_rows
from tests.support.message_targets import nats_entries


class TestNatsMirror(MirrorConformance):
    @pytest.fixture
    def options(self, nats_server: Nats) -> dict[str, Any]:
        servers, bucket = [nats_server.url()], f"t{uuid.uuid4().hex}"
        return {"servers": servers, "mode": "mirror", "bucket": bucket, "key": ["id"]}

    @pytest.fixture
    def target_faults(self, nats_server: Nats, options: dict[str, Any]) -> TargetFaults:
        return nats_faults(nats_server, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("nats", options, Path())

    @pytest.fixture
    def read_rows(self, nats_server: Nats, options: dict[str, Any]) -> ReadRows:
        def read() -> Sequence[dict[str, Any]]:
            values = nats_entries(nats_server, options["bucket"]).values()
            return typed_rows([json.loads(value, parse_float=Decimal) for value in values])

        return read

    async def test_a_column_that_is_added_or_dropped_is_that_of_the_copy(  # type: ignore[override]
        self,
    ) -> None:
        """Rows keep what they were written with: see tests/sinks/nats_mirror/test_rows.py."""
