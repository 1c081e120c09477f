"""The formats of this package pass the public suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sinks.formats.load import FORMATS, TEXT_FORMATS, load_encoder
from tailer.sink.encoder import Encoder
from tailer.testing.conformance import FormatConformance
from tests.sinks.formats import MemoryRegistry


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
class TestFormats(FormatConformance):
    @pytest.fixture
    def make_encoder(self, name: str, keyed: bool) -> Callable[[], Encoder]:  # noqa: FBT001
        options = {"key": ["id"], "tombstones": True} if keyed else {}
        if name == "upsert":  # it always has a key, and tombstones of its own
            options = {"key": ["id"]}
        return lambda: load_encoder(name, {"topic": "t", **options}, MemoryRegistry())

    def test_sinks_of_text_take_those_that_say_so(
        self, name: str, make_encoder: Callable[[], Encoder]
    ) -> None:
        assert make_encoder().is_text == (name in TEXT_FORMATS)
