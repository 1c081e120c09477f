"""Java beside this package's Python: compiled in the driver by the compiler that Spark has for its
queries, in a twentieth of a second. It lives there alone, so there is no jar to ship.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: One thread compiles: Java's side of Python tells classes apart by their names alone, so that a
#: second class of one name would break whoever has used the first.
_compiling = Lock()


def java_session(spark: SparkSession) -> Any:
    """Return Java's session; None in a client of Spark Connect, which has none."""
    return getattr(spark, "_jsparkSession", None)


def maker_of(spark: SparkSession, name: str) -> Any:
    """Return a ``Maker`` of the class ``name``, which is compiled once for a Java process."""
    with _compiling:
        return _compile_maker(spark.sparkContext._jvm, name)  # noqa: SLF001  # as Spark's own modules reach Java


@lru_cache(maxsize=4)
def _compile_maker(jvm: Any, name: str) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setSourceVersion(8)  # a lower one can't call what an interface has itself
    compiler.setTargetVersion(8)
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(files(__package__).joinpath(f"{name}.java").read_text(encoding="utf-8"))
    return compiler.getClassLoader().loadClass(f"tailer.spark.{name}$Maker").newInstance()
