"""Suppresses empty profiles from Spark's workers, which end a pipeline's run with an error.

PySpark 4.2.0's workers that ask a source for its schema or its reader report a profile each time,
an empty one if profiling is off. ``spark-pipelines`` takes these for answers that it does not
know, and fails after its run is completed.
"""

from __future__ import annotations

import sys

from pyspark import accumulators


def drop_empty_profiles() -> None:
    """Leave the profiles out of this worker's reports, if it is a worker and not profiled."""
    ids = getattr(accumulators, "SpecialAccumulatorIds", None)
    registry = getattr(accumulators, "_accumulatorRegistry", None)
    if ids is None or registry is None or _is_profiled():
        return
    for name in ("SQL_UDF_PROFIER", "SQL_UDF_PROFIER_V2"):  # Spark's spelling
        number = getattr(ids, name, None)
        found = registry.get(number)
        if found is not None and found._value == {}:  # noqa: SLF001  # value is for drivers alone
            del registry[number]


def _is_profiled() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # as in cProfile from Python 3.12 on
    if monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID) is not None:
        return True
    return sys.getprofile() is not None or sys.gettrace() is not None
