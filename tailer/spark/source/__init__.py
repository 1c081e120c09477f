"""The data source: its options, its planning in the driver, its readers.

from tailer.spark.source import TailerSource
spark.dataSource.register(TailerSource)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailer.spark.source.data_source import TailerSource

__all__ = ["TailerSource"]  # made on first use


def __getattr__(name: str) -> Any:
    """Import PySpark only for what needs it; executors load modules below alone."""
    if name == "TailerSource":
        from tailer.spark.source.data_source import TailerSource

        return TailerSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
