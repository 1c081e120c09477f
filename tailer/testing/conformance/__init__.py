"""What every store, offset store, sink and format must hold: suites to subclass, for pytest.

Each suite is a class whose fixtures a subclass fills in; pytest then collects the suite's tests
under the subclass's name. They run on asyncio through anyio's pytest plugin, which is installed
with anyio::

    from tailer.testing.conformance import SinkConformance

    class TestMySink(SinkConformance):
        @pytest.fixture
        def make_sink(self, tmp_path): ...

        @pytest.fixture
        def read_events(self, tmp_path): ...

        @pytest.fixture
        def target_faults(self): ...
"""

import pytest

# Before they are loaded: a failing assertion then shows its values.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{suite}"
        for suite in ("faults", "formats", "mirror", "offsets", "sink", "store", "target")
    )
)

from tailer.testing.conformance.faults import TargetFaults  # noqa: E402
from tailer.testing.conformance.formats import FormatConformance  # noqa: E402
from tailer.testing.conformance.mirror import MirrorConformance  # noqa: E402
from tailer.testing.conformance.offsets import (  # noqa: E402
    OffsetStoreConformance,
    PersistentOffsetStoreConformance,
)
from tailer.testing.conformance.sink import SinkConformance  # noqa: E402
from tailer.testing.conformance.store import StoreConformance  # noqa: E402
from tailer.testing.conformance.target import TargetConformance  # noqa: E402

__all__ = [
    "FormatConformance",
    "MirrorConformance",
    "OffsetStoreConformance",
    "PersistentOffsetStoreConformance",
    "SinkConformance",
    "StoreConformance",
    "TargetConformance",
    "TargetFaults",
]
