"""Which Python Spark's tasks run: the driver's, on one machine, unless the user names another."""

from __future__ import annotations

import os
import sys

from pyspark import SparkContext


def use_this_python() -> None:
    """Let the tasks of a local Spark run the Python of this process, if nothing names one.

    Spark takes the first ``python3`` of the PATH, which is not that of a virtual environment. On a
    cluster, the driver's path need not exist on the workers: there Spark's choice is kept.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001
    if context is None or "PYSPARK_PYTHON" in os.environ:
        return
    if (context.master or "").startswith("local") and context.getConf().get(
        "spark.pyspark.python"
    ) is None:
        context.pythonExec = sys.executable
