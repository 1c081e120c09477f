"""The same feed on Spark: a data source for any query, and the daemon's feeds on a cluster.

Nothing here decodes: the driver plans with :mod:`tailer.log.table` and :mod:`tailer.plan.rules`,
and the executors decode with :mod:`tailer.decode.rows`, as the daemon does.
"""

from __future__ import annotations

from typing import Any

__all__ = ["changes", "foreach_batch"]  # made on first use


def __getattr__(name: str) -> Any:
    """Import PySpark only for what needs it."""
    if name == "changes":
        from tailer.spark.frames.changes import changes

        return changes
    if name == "foreach_batch":
        from tailer.spark.frames.streams import foreach_batch

        return foreach_batch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
